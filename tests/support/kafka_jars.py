"""Apache Kafka's own clients, tools and servers, for tests: its jars, and how to run one of them.

The jars come from Maven Central once, into `.cache/kafka-libs` of the project. Tests that need them
are marked with `requires_java`.
"""

from __future__ import annotations

import fcntl
import functools
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

KAFKA_VERSION = "4.3.1"
SERVER = "kafka.Kafka"
"""The class that a controller or a broker is; all others are tools."""
OTHER_VERSIONS = ("3.9.1", "4.1.0", "4.4.0")
"""The oldest whose controllers a node can stand beside, one in the middle, and the newest."""
JAVA_VERSION_MIN = 17
DOWNLOAD_TIMEOUT_S = 900
LIBS_VARIABLE = "QUORUMD_KAFKA_LIBS"

_ROOT = Path(__file__).resolve().parents[2]
_CACHE = _ROOT / ".cache" / "kafka-libs"
_LOG_CONFIGURATION = Path(__file__).with_name("log4j2.properties")
# A short-lived JVM on few cores: no concurrent collector, no optimising compiler.
_QUICK_START = (
    *("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
    *("-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"),
)
_DEPENDENCIES = (
    ("org.apache.kafka", "kafka_2.13", KAFKA_VERSION),
    ("org.apache.kafka", "kafka-tools", KAFKA_VERSION),
    ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4"),
    ("com.fasterxml.jackson.dataformat", "jackson-dataformat-yaml", "2.21.2"),
)

requires_java = pytest.mark.java
"""Skips a test where Java or Maven is missing; where the variable CI is `true`, fails it."""


def missing_tools() -> str | None:
    """Why Kafka's Java programs cannot run here, or None if they can."""
    version = _java_version()
    if version is None:
        return f"Java is missing: install a JRE {JAVA_VERSION_MIN} or newer"
    if version < JAVA_VERSION_MIN:
        return f"Java {version} is too old: Kafka {KAFKA_VERSION} needs {JAVA_VERSION_MIN} or newer"
    has_jars = LIBS_VARIABLE in os.environ or _cached_libs().is_dir()
    if not has_jars and shutil.which("mvn") is None:
        return f"Maven (mvn) is missing: install it, or name a folder of jars in {LIBS_VARIABLE}"
    return None


def kafka_libs(version: str = KAFKA_VERSION) -> Path:
    """The folder of jars, downloaded first if need be; safe to call from several processes.

    Raises RuntimeError with Maven's last lines if the download fails.
    """
    named = os.environ.get(LIBS_VARIABLE)
    if named and version == KAFKA_VERSION:
        libs = Path(named).absolute()
        if not (libs / _server_jar(version)).is_file():
            raise RuntimeError(f"{LIBS_VARIABLE}={named} has no {_server_jar(version)}")
        return libs
    libs = _cached_libs(version)
    if not libs.is_dir():
        _CACHE.mkdir(parents=True, exist_ok=True)
        with (_CACHE / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not libs.is_dir():
                _download(libs, version)
    return libs


def java_command(
    main_class: str,
    *arguments: str,
    heap: str = "256m",
    properties: Mapping[str, str] | None = None,
    version: str = KAFKA_VERSION,
) -> list[str]:
    """The command line that runs a class of the jars; `properties` become -D options.

    What it logs at WARN and above goes to stderr; older versions log nothing.
    """
    defined = {"log4j2.configurationFile": str(_LOG_CONFIGURATION), **(properties or {})}
    options = [f"-D{name}={value}" for name, value in defined.items()]
    if version == KAFKA_VERSION and class_archive(main_class).is_file():
        options.append(f"-XX:SharedArchiveFile={class_archive(main_class)}")
    class_path = f"{kafka_libs(version)}/*"
    return [
        "java",
        f"-Xmx{heap}",
        *_QUICK_START,
        *options,
        "-cp",
        class_path,
        main_class,
        *arguments,
    ]


def run_java(
    main_class: str,
    *arguments: str,
    timeout_s: float = 60,
    stdin: str | None = None,
    heap: str = "256m",
    properties: Mapping[str, str] | None = None,
    version: str = KAFKA_VERSION,
) -> subprocess.CompletedProcess[str]:
    """Runs a tool to its end and returns exit code, stdout and stderr, whatever they are.

    Raises subprocess.TimeoutExpired, the process killed, after `timeout_s` seconds.
    """
    return subprocess.run(
        java_command(main_class, *arguments, heap=heap, properties=properties, version=version),
        input=stdin if stdin is not None else "",
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def _cached_libs(version: str = KAFKA_VERSION) -> Path:
    return _CACHE / version


def _server_jar(version: str) -> str:
    return f"kafka_2.13-{version}.jar"


def class_archive(main_class: str) -> Path:
    """Where the classes of such programs are kept in a form that a JVM maps; `kafka_classes` makes it."""
    kind = "server" if main_class == SERVER else "tools"
    return _CACHE / f"{KAFKA_VERSION}-java{_java_version()}-{kind}.jsa"


@functools.cache
def _java_version() -> int | None:
    """The feature version of the `java` on the path; None without one, or if it does not start."""
    try:
        done = subprocess.run(
            ["java", "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    return int(match.group(1)) if match else None


def _download(libs: Path, version: str) -> None:
    """Fetches the jars beside `libs` and renames their folder, so that `libs` is whole or absent."""
    with tempfile.TemporaryDirectory(dir=_CACHE) as scratch:
        pom = Path(scratch, "pom.xml")
        pom.write_text(_pom(version))
        fetched = Path(scratch, "libs")
        goal = "dependency:copy-dependencies"
        options = ["-DincludeScope=runtime", f"-DoutputDirectory={fetched}"]
        done = subprocess.run(
            ["mvn", "-q", "-B", "-f", str(pom), goal, *options],
            capture_output=True,
            text=True,
            timeout=DOWNLOAD_TIMEOUT_S,
            check=False,
        )
        if done.returncode or not (fetched / _server_jar(version)).is_file():
            output = (done.stdout + done.stderr)[-2000:]
            raise RuntimeError(f"Maven could not fetch Kafka {version}: {output}")
        fetched.rename(libs)


def _pom(version: str) -> str:
    older = (("org.apache.kafka", "kafka_2.13", version),)
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{number}</version></dependency>"
        for group, artifact, number in (_DEPENDENCIES if version == KAFKA_VERSION else older)
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>quorumd</groupId><artifactId>kafka-libs</artifactId><version>1</version>"
        f"<dependencies>{dependencies}</dependencies></project>"
    )


if __name__ == "__main__":  # before the tests, so that no test's time limit covers the download
    missing = missing_tools()
    print(f"Java tests: {missing or kafka_libs()}")
    if missing is None:
        for other_version in OTHER_VERSIONS:
            kafka_libs(other_version)
