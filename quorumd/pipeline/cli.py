"""The command `quorumd-pipeline`: its subcommands, and how every failure becomes a line and an exit code.

A subcommand is a module of its own, imported when it is called: add its line to COMMANDS.
Exit codes: 0 done, 1 failed, 2 wrong usage, 3 damage, 130 interrupted, 141 standard output was
closed. A traceback is shown only if QUORUMD_PIPELINE_TRACEBACK is set.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Final, NamedTuple

import click

from quorumd.cli.program import (
    EXIT_FAILED,
    CommandGroup,
    own_failure,
    prepare_streams,
    run_program,
)
from quorumd.pipeline.errors import plain_message
from quorumd.version_option import version_option

EXIT_DAMAGED = 3
TRACEBACK_VARIABLE = "QUORUMD_PIPELINE_TRACEBACK"


class CommandEntry(NamedTuple):
    """A subcommand: its place, and its line in the list of them."""

    module: str
    attribute: str
    short_help: str


COMMANDS: Final[dict[str, CommandEntry]] = {
    "doctor": CommandEntry(
        "quorumd.pipeline.doctor", "doctor", "Say whether Spark can run here, and on what."
    ),
    "run": CommandEntry(
        "quorumd.pipeline.run_command", "run", "Keep tables up to date with the log, as a stream."
    ),
    "batch": CommandEntry(
        "quorumd.pipeline.run_command", "batch", "Bring tables up to date with the log in one pass."
    ),
    "state": CommandEntry(
        "quorumd.pipeline.state_command", "state", "Show the state as of an offset or a time."
    ),
    "audit": CommandEntry(
        "quorumd.pipeline.audit_command",
        "audit",
        "Prove that replicas are sound and hold the same.",
    ),
    "metadata": CommandEntry(
        "quorumd.pipeline.metadata_command",
        "metadata",
        "Show the metadata records in a Kafka controller's log.",
    ),
    "report": CommandEntry(
        "quorumd.pipeline.report_command", "report", "Make an HTML page with plots of the tables."
    ),
}

_HELP = """Turn the replicated log into tables with Spark, and prove that its replicas agree.

\b
Find out whether Spark can run here:
  quorumd-pipeline doctor
\b
Make tables, keep them up to date, and look at them:
  quorumd-pipeline run -b host1:9093,host2:9093 --output tables
  quorumd-pipeline report tables --output report.html
\b
Compare the replicas, by their files or over the network:
  quorumd-pipeline audit node-1 node-2 node-3
  quorumd-pipeline audit -b host1:9093,host2:9093

\b
Exit codes: 0 done, 1 failed, 2 wrong usage, 3 damage, 130 interrupted.
"""


class _Commands(CommandGroup):
    """Subcommands that are imported when they are needed; help needs none of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = COMMANDS.get(cmd_name)
        if place is None:
            return None
        found = getattr(import_module(place.module), place.attribute)
        assert isinstance(found, click.Command)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, place.short_help) for name, place in COMMANDS.items()])


@click.group(cls=_Commands, help=_HELP, context_settings={"help_option_names": ["-h", "--help"]})
@version_option("quorumd-pipeline")
def cli() -> None:
    """The group of all subcommands."""


def run(arguments: Sequence[str]) -> int:
    """Runs one command line and returns its exit code; prints whatever goes wrong on stderr."""
    return run_program(cli, "quorumd-pipeline", arguments, _failed)


def _failed(error: Exception) -> int:
    if TRACEBACK_VARIABLE in os.environ:
        raise error
    click.echo(f"Error: {_message(error)}", err=True)
    return exit_code_of(error)


def _message(error: Exception) -> str:
    """The error in a line; one that was not made for users is ours, and says so."""
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename else str(error)
    if isinstance(error, ImportError) and not (error.name or "").startswith("quorumd"):
        return f"this needs more packages ({error}): pip install 'quorumd[spark]'"
    is_known = hasattr(error, "exit_code") or type(error).__name__ == "DamagedBatch"
    if is_known or type(error).__module__.startswith(("pyspark.", "py4j.")):
        return plain_message(error)
    return own_failure("quorumd-pipeline", error, TRACEBACK_VARIABLE)


def exit_code_of(error: BaseException) -> int:
    """3 for damaged files, also if the error came through Spark; else the error's own code, or 1."""
    if "DamagedBatch: " in str(error) or type(error).__name__ == "DamagedBatch":
        return EXIT_DAMAGED
    exit_code = getattr(error, "exit_code", None)
    return exit_code if isinstance(exit_code, int) else EXIT_FAILED


def main() -> None:
    """The entry point of the installed command."""
    prepare_streams()
    if TRACEBACK_VARIABLE not in os.environ:
        _silence_py4j()
    sys.exit(run(sys.argv[1:]))


def _silence_py4j() -> None:
    """py4j logs an error, and Ctrl-C, with a traceback before it raises it. Others still log."""
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    handler.addFilter(lambda record: "py4j" not in Path(record.pathname).parts)
    logging.getLogger().addHandler(handler)
