"""`quorumd-pipeline run` and `batch`: tables made from the log and kept up to date."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from quorumd.cli.options import (
    COMMAND_CONFIG_VARIABLE,
    TIMEOUT,
    Count,
    Seconds,
    option_group,
    read_command_config,
    servers_option,
    to_ms,
)
from quorumd.pipeline.errors import PipelineError, plain_message
from quorumd.pipeline.session import build_session
from quorumd.pipeline.tables.ingest import (
    OFFSETS_PER_BATCH,
    IngestProgress,
    StreamingIngest,
    run_once,
)
from quorumd.pipeline.tables.manifests import read_chain
from quorumd.pipeline.tables.origin import LogOrigin, check_origin
from quorumd.pipeline.tables.output import Output, held_output

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

F = TypeVar("F", bound=Callable[..., Any])

_TABLES = """The folder gets the tables records, leadership, voter_sets, state and key_history as Parquet
files, and manifests that say which files count. Whatever ends a run, the next one goes on where the tables
end: no record is lost, none is there twice."""

_RUN_HELP = f"""Keep tables up to date with the log, as a stream, until Ctrl-C.

{_TABLES}

Exit codes: 0 stopped or done, 1 failed, 2 wrong usage, 3 damaged files.

\b
Examples:
  quorumd-pipeline run -b localhost:9093 --output tables
  quorumd-pipeline run -b localhost:9093 --output tables --available-now
  quorumd-pipeline run --path /var/lib/quorumd --output tables
"""

_BATCH_HELP = f"""Bring tables up to date with the log in one pass.

{_TABLES}

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 damaged files.

\b
Examples:
  quorumd-pipeline batch --path /backup/node-1 --output tables
  quorumd-pipeline batch -b localhost:9093 --output tables
"""


def _to_pairs(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> dict[str, str]:
    """The settings, with paths that do not depend on the reader's working directory."""
    if value is None:
        return {}
    pairs = read_command_config(value)[1]
    is_path = re.compile(r"ssl\..*\.location")
    return {
        name: str(Path(text).absolute()) if is_path.fullmatch(name) and text else text
        for name, text in pairs.items()
    }


def _command_config_option(command: F) -> F:
    return click.option(
        "--command-config",
        "security",
        callback=_to_pairs,
        metavar="FILE",
        envvar=COMMAND_CONFIG_VARIABLE,
        show_envvar=True,
        help="Properties for a quorum that is not in plaintext, as for Kafka's own tools. The stores "
        "that it names are read at the same path on every executor.",
    )(command)


def master_option(command: F) -> F:
    """--master."""
    return click.option(
        "--master", metavar="URL", help="Spark master; by default all cores of this machine."
    )(command)


log_options = option_group(
    servers_option("Read the live quorum that these nodes belong to."),
    _command_config_option,
    click.option(
        "--path",
        metavar="DIR",
        help="Read files: a node's storage directory, or a copy or backup of it.",
    ),
    click.option(
        "--replica",
        type=Count(min=0),
        metavar="N",
        help="Which one, if there are several replicas below the path.",
    ),
    click.option(
        "--output",
        "-o",
        "folder",
        type=click.Path(path_type=Path, file_okay=True),
        required=True,
        metavar="DIR",
        help="Folder of the tables; made if it is not there.",
    ),
    click.option(
        "--timeout",
        "timeout_s",
        type=TIMEOUT,
        default=30.0,
        show_default=True,
        metavar="SECONDS",
        help="How long to look for a leader before giving up.",
    ),
    master_option,
)
"""For the source of the log, the folder of the tables, and Spark."""


@click.command(help=_RUN_HELP, short_help="Keep tables up to date with the log, as a stream.")
@log_options
@click.option("--available-now", is_flag=True, help="Stop at what is the end of the log now.")
@click.option(
    "--interval",
    "interval_s",
    type=Seconds(0),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="From one batch to the next; each makes a file.",
)
@click.option(
    "--max-offsets",
    type=Count(min=1),
    default=OFFSETS_PER_BATCH,
    show_default=True,
    metavar="N",
    help="The most that one batch takes.",
)
def run(
    servers: str | None,
    security: dict[str, str],
    path: str | None,
    replica: int | None,
    folder: Path,
    timeout_s: float,
    master: str | None,
    available_now: bool,
    interval_s: float,
    max_offsets: int,
) -> int:
    """The subcommand."""
    origin = _origin(servers, security, path, replica, timeout_s)
    with _prepared("run", origin, folder, master) as (spark, output):
        follower = StreamingIngest(
            spark,
            origin,
            output,
            interval_s=interval_s,
            available_now=available_now,
            offsets_per_batch=max_offsets,
        )
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: follower.stop())
        with _shown() as show:
            follower.run(show, lambda text: click.echo(f"Warning: {text}", err=True))
    return 0


@click.command(help=_BATCH_HELP, short_help="Bring tables up to date with the log in one pass.")
@log_options
def batch(
    servers: str | None,
    security: dict[str, str],
    path: str | None,
    replica: int | None,
    folder: Path,
    timeout_s: float,
    master: str | None,
) -> int:
    """The subcommand."""
    origin = _origin(servers, security, path, replica, timeout_s)
    with _prepared("batch", origin, folder, master) as (spark, output):
        run_once(spark, origin, output)
    return 0


def _origin(
    servers: str | None,
    security: dict[str, str],
    path: str | None,
    replica: int | None,
    timeout_s: float,
) -> LogOrigin:
    if path is not None and servers is not None:
        source = click.get_current_context().get_parameter_source("servers")
        if source is click.core.ParameterSource.ENVIRONMENT:
            servers = None
    if (path is None) == (servers is None):
        raise click.UsageError("Give --bootstrap-server for a live quorum, or --path for files.")
    security = {} if servers is None else security
    return LogOrigin(servers, path, replica, to_ms(timeout_s), security)


@contextmanager
def _prepared(
    name: str, origin: LogOrigin, folder: Path, master: str | None
) -> Iterator[tuple[SparkSession, Output]]:
    """Checks what can be checked before Spark starts, and says at the end what there is now."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it gives no types

    with held_output(folder.absolute()) as output:
        log_end = check_origin(origin, output.last)
        _say(f"the log ends at offset {log_end}, the tables at {output.end_offset}; Spark starts")
        spark = build_session(f"quorumd-pipeline {name}", master=master)
        try:
            yield spark, output
        except ConnectionError as error:
            # Java was killed, or ran out of memory.
            raise PipelineError(plain_message(error)) from None
        finally:
            # Where Java has ended there is nothing to stop.
            with suppress(ConnectionError, Py4JError):
                spark.stop()
        rows = sum(manifest.rows for manifest in read_chain(output.folder, "log"))
        click.echo(f"{folder}: {rows} records, up to offset {output.end_offset} (exclusive)")


@contextmanager
def _shown() -> Iterator[Callable[[IngestProgress], None]]:
    """Shows progress on stderr: a line that changes on a terminal, else one for each batch."""
    if not sys.stderr.isatty():
        yield lambda progress: _say(_line(progress))
        return
    from rich.console import Console

    with Console(stderr=True).status("reading") as status:
        yield lambda progress: status.update(_line(progress))


def _line(progress: IngestProgress) -> str:
    behind = max(0, progress.log_end_offset - progress.end_offset)
    rate = f", {progress.records_per_s:,.0f} records/s" if progress.records_per_s else ""
    return f"offset {progress.end_offset:,}, {behind:,} behind{rate}"


def _say(text: str) -> None:
    click.echo(text, err=True)
