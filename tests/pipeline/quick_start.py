"""Spark's Java started for half the processor time: one compiler, and classes from an archive that it maps.

The archive is made once, into `.cache/spark-classes`. A JVM whose jars are others does not use it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import MutableMapping
from importlib.metadata import version
from pathlib import Path

from quorumd.pipeline.errors import JavaMissing
from quorumd.pipeline.java import find_java
from tests.pipeline.nodes import make_node

JAVA_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""For JVMs that are over in seconds."""
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


def start_quickly(folder: Path, environ: MutableMapping[str, str] = os.environ) -> None:
    """From now on PySpark starts its JVMs so, and the processes that inherit this environment do.

    What a program sets itself goes before. The settings are written to a file in `folder`.
    """
    _use_options(java_options(), folder, environ)


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
            _use_options(options, folder, environ)
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
    return _CACHE / f"{version('pyspark')}-java{find_java().version}.jsa"


def _use_options(options: str, folder: Path, environ: MutableMapping[str, str]) -> None:
    path = folder / "quick-start.conf"
    settings = {"spark.driver.extraJavaOptions": options, "spark.sql.shuffle.partitions": "2"}
    path.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    environ["PYSPARK_SUBMIT_ARGS"] = f"--properties-file {path} pyspark-shell"


if __name__ == "__main__":  # before the tests, so that no test's time limit covers it
    try:
        print(f"Spark's classes: {archive_classes() or 'no archive'}")
    except JavaMissing as error:
        print(f"Spark's classes: {error}")
