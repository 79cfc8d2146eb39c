"""Spark's processes started for half the processor time.

Java has one compiler, and classes from an archive that it maps; a JVM whose jars are others does not use it.
Spark makes no Java code of its queries, which would be compiled for a few rows.
Python's workers load the PySpark that is installed, and not a zip of its sources, which each of them would
compile: SPARK_HOME is a folder of links to PySpark's without that zip. Both are made once, in
`.cache/spark-classes`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import MutableMapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from quorumd.pipeline.errors import JavaMissing
from quorumd.pipeline.java import find_java
from tests.pipeline.nodes import make_node

JAVA_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""For JVMs that are over in seconds."""
CONFIGURATION = {
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "2",
}
"""For Spark programs that handle a few rows."""
MAKE_TIMEOUT_S = 600.0
COMMAND = (sys.executable, "-c", "from quorumd.pipeline.cli import main; main()")
"""`quorumd-pipeline` of the tree that is tested."""

_CACHE = Path(__file__).resolve().parents[2] / ".cache" / "spark-classes"
_SILENT = "-Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off"


def java_options() -> str:
    """Options for a JVM of Spark that runs on a class path which begins as that of PySpark."""
    archive = _archive()
    uses = f" {_SILENT} -XX:SharedArchiveFile={archive}" if archive.exists() else ""
    return JAVA_OPTIONS + uses


def pyspark_folder() -> Path:
    """The PySpark that is installed, which is a SPARK_HOME as well."""
    spec = find_spec("pyspark")
    assert spec is not None, "PySpark is installed"
    assert spec.origin is not None
    return Path(spec.origin).parent


def link_spark(folder: Path, *, without: str) -> None:
    """Make an empty folder a SPARK_HOME that is PySpark's, but for one thing that may be in it."""
    for path in sorted(pyspark_folder().iterdir()):
        if path.name != without:
            (folder / path.name).symlink_to(path)


def start_quickly(environ: MutableMapping[str, str] = os.environ) -> None:
    """From now on PySpark starts its JVMs so, and the processes that inherit this environment do."""
    _use_options(java_options(), environ)


def archive_classes() -> Path | None:
    """The archive, made if there is none: by a JVM that fills tables from a small log.

    None if that JVM has made none: then all of them start more slowly.
    """
    archive = _archive()
    if not archive.exists():
        archive.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=archive.parent) as scratch:
            folder = Path(scratch)
            made = folder / archive.name
            environ = dict(os.environ)
            options = f"{JAVA_OPTIONS} {_SILENT} -XX:ArchiveClassesAtExit={made}"
            _use_options(options, environ)
            make_node(folder / "node", 1)
            run = ["run", "--available-now", "--path", folder / "node", "--master", "local[2]"]
            subprocess.run(
                [*COMMAND, *map(str, run), "--output", str(folder / "tables")],
                env=environ,
                capture_output=True,
                timeout=MAKE_TIMEOUT_S,
                check=False,
            )
            _wait_for_process_with(str(made))
            if made.exists():
                made.rename(archive)
    return archive if archive.exists() else None


def _wait_for_process_with(argument: str) -> None:
    """Until no process has this in its command line: Java writes the archive after Python has ended."""
    deadline_s = time.monotonic() + MAKE_TIMEOUT_S
    while time.monotonic() < deadline_s:
        commands = (_command_line(path) for path in Path("/proc").glob("[0-9]*/cmdline"))
        if not any(argument.encode() in command for command in commands):
            return
        time.sleep(0.1)


def _command_line(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has just ended
        return b""


def _archive() -> Path:
    return _CACHE / f"{_spark_home().name}-java{find_java().version}.jsa"


def _spark_home() -> Path:
    home = _CACHE / f"home-{version('pyspark')}-python3.{sys.version_info.minor}"
    if not home.exists():
        _CACHE.mkdir(parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(dir=_CACHE))
        link_spark(new, without="python")
        try:
            new.rename(home)
        except OSError:  # another process was first
            shutil.rmtree(new)
    return home


def _use_options(options: str, environ: MutableMapping[str, str]) -> None:
    environ["SPARK_HOME"] = str(_spark_home())
    # Beside what a program gives as spark.driver.extraJavaOptions, which would replace the same in a file.
    environ["SPARK_SUBMIT_OPTS"] = options
    conf = " ".join(f"--conf {name}={value}" for name, value in CONFIGURATION.items())
    environ["PYSPARK_SUBMIT_ARGS"] = f"{conf} pyspark-shell"


if __name__ == "__main__":  # before the tests, so that no test's time limit covers it
    try:
        print(f"Spark's classes: {archive_classes() or 'no archive'}")
    except JavaMissing as error:
        print(f"Spark's classes: {error}")
