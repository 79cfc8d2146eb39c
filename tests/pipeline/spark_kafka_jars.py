"""The jars of Spark's own Kafka source: from Maven Central once, into `.cache/spark-kafka-libs`.

They are older than the Spark that runs the tests where Maven Central has no newer ones; Spark's
interfaces for sources have not changed since.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

DOWNLOAD_TIMEOUT_S = 300

_CACHE = Path(__file__).resolve().parents[2] / ".cache" / "spark-kafka-libs"
_JARS = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.2"),
    ("org.apache.commons", "commons-pool2", "2.13.1"),
)


def spark_kafka_jars() -> list[Path]:
    """The jars, downloaded first if need be; none where there is no Maven to do it.

    Raises RuntimeError with Maven's last lines if the download fails.
    """
    libs = _CACHE / "-".join(version for _, _, version in _JARS)
    if not libs.is_dir():
        if shutil.which("mvn") is None:
            return []
        _CACHE.mkdir(parents=True, exist_ok=True)
        with (_CACHE / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not libs.is_dir():
                _download(libs)
    return sorted(libs.glob("*.jar"))


def has_spark_kafka_source() -> bool:
    """Whether Spark's Kafka source can be tested here. On CI it must be: the test fails if it cannot."""
    has_jars = bool(spark_kafka_jars())
    if not has_jars and os.environ.get("CI") == "true":
        pytest.fail("on CI Spark's Kafka source must be tested, but Maven (mvn) is missing")
    return has_jars


def _download(libs: Path) -> None:
    """Fetches the jars beside `libs` and renames their folder, so that `libs` is whole or absent."""
    with tempfile.TemporaryDirectory(dir=_CACHE) as scratch:
        pom = Path(scratch, "pom.xml")
        pom.write_text(_pom())
        fetched = Path(scratch, "libs")
        done = subprocess.run(
            [
                "mvn",
                "-q",
                "-B",
                "-f",
                str(pom),
                "dependency:copy-dependencies",
                f"-DoutputDirectory={fetched}",
            ],
            capture_output=True,
            text=True,
            timeout=DOWNLOAD_TIMEOUT_S,
            check=False,
        )
        if done.returncode or len(list(fetched.glob("*.jar"))) != len(_JARS):
            output = (done.stdout + done.stderr)[-2000:]
            raise RuntimeError(f"Maven could not fetch Spark's Kafka source: {output}")
        fetched.rename(libs)


def _pom() -> str:
    """Nothing but the jars themselves: Spark has all else that they need."""
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{version}</version><exclusions><exclusion><groupId>*</groupId>"
        "<artifactId>*</artifactId></exclusion></exclusions></dependency>"
        for group, artifact, version in _JARS
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>quorumd</groupId><artifactId>spark-kafka-libs</artifactId><version>1</version>"
        f"<dependencies>{dependencies}</dependencies></project>"
    )


if __name__ == "__main__":  # before the tests, so that no test's time limit covers the download
    print(f"Spark's Kafka source: {spark_kafka_jars() or 'no jars, Maven (mvn) is missing'}")
