"""`quorumctl dump-log`: what is in log files, of quorumd and of Kafka's controllers, offline."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from quorumd.cli.options import output_option
from quorumd.cli.paths import EXIT_DAMAGED, print_error, read_progress, worst_exit_code
from quorumd.cli.program import EXIT_FAILED

if TYPE_CHECKING:
    from quorumd.cli.dump_format import DumpFormat
    from quorumd.cli.dump_reader import VoterHistory
    from quorumd.storage.reader import LogFile


_HELP = """Show what is in segments, snapshots and indexes.

A PATH is a file (.log, .checkpoint, .index, .timeindex), a __cluster_metadata-0 directory, or the
directory above it. The files may be those of a real Kafka controller. Nothing is written and no
lock is taken, so it can be used beside a running node.

Control records are always decoded; each voter set is also shown as the difference (ADD, REMOVE,
UPDATE) to the one before. Every CRC is checked. Damage is reported with its position on
stderr, and the exit code is 3; zeros written ahead at the end of a file are no damage.

\b
Examples:
  quorumctl dump-log /var/lib/quorumd
  quorumctl dump-log --print-data 00000000000000000000.log
  quorumctl dump-log --summary /var/lib/kafka/__cluster_metadata-0
  quorumctl dump-log --output json --print-data DIR | jq 'select(.type == "batch").records[]'
"""


@click.command("dump-log", help=_HELP, short_help="Show what is in log files.")
@click.argument(
    "paths", nargs=-1, required=True, metavar="PATH...", type=click.Path(path_type=Path)
)
@click.option("--print-data", is_flag=True, help="Show the records, too, decompressed.")
@click.option("--summary", is_flag=True, help="Only one line for each file.")
@output_option("text", "json")
def dump_log(paths: tuple[Path, ...], print_data: bool, summary: bool, output: str) -> int:
    """Goes through all paths, whatever is wrong with one of them; returns the worst exit code."""
    from quorumd.cli.dump_format import JsonDump, TextDump

    if print_data and summary:
        raise click.UsageError("--print-data and --summary exclude each other.")
    write = sys.stdout.write
    show: DumpFormat = (JsonDump if output == "json" else TextDump)(write, is_short=summary)
    return worst_exit_code(paths, lambda path: _dump_path(path, show, print_data=print_data))


def _dump_path(path: Path, show: DumpFormat, *, print_data: bool) -> int:
    from quorumd.cli.dump_reader import VoterHistory
    from quorumd.cli.index_files import is_index
    from quorumd.storage.reader import find_files

    if is_index(path) and path.is_file():
        return _dump_index(path, show)
    files = find_files(path)
    history = VoterHistory()
    segments = [file for file in files if file.snapshot_id is None]
    code = 0
    size_bytes = sum(file.path.stat().st_size for file in files)
    if sys.stdout.isatty() and not show.is_short:
        # No bar between lines of text.
        size_bytes = 0
    with read_progress("reading", size_bytes) as advance:
        for file in files:
            is_closed = file in segments[:-1] or _has_successor(file)
            code = max(
                code,
                _dump_file(
                    file, show, history, advance, print_data=print_data, is_closed=is_closed
                ),
            )
    return code


def _dump_file(
    file: LogFile,
    show: DumpFormat,
    history: VoterHistory,
    advance: Callable[[int], None],
    *,
    print_data: bool,
    is_closed: bool,
) -> int:
    from quorumd.cli.dump_reader import FileWalk

    walk = FileWalk(file, history, with_records=print_data, is_closed=is_closed)
    is_shown = False
    for batch in walk.batches():
        if not is_shown:
            show.file(file)
            is_shown = True
        show.batch(file, batch)
        advance(batch.found.header.size_bytes)
    if not is_shown and walk.summary.damage and not _is_named_as_log(file):
        print_error(
            f"{file.path}: is no log file: it does not begin with a record batch. Name a segment "
            "(.log), a snapshot (.checkpoint) or their directory"
        )
        return EXIT_FAILED
    if not is_shown:
        show.file(file)
    show.end(file, walk.summary)
    if not walk.summary.damage:
        return 0
    for damage in walk.summary.damage:
        print_error(f"{file.path}: {damage}")
    return EXIT_DAMAGED


def _dump_index(path: Path, show: DumpFormat) -> int:
    from quorumd.cli.index_files import read_index

    index = read_index(path)
    show.index(path, index)
    if index.problem is None:
        return 0
    print_error(f"{path}: {index.problem}. An index can be deleted: it is rebuilt from the .log")
    return EXIT_DAMAGED


def _is_named_as_log(file: LogFile) -> bool:
    return file.base_offset is not None or file.path.suffix in (".log", ".checkpoint")


def _has_successor(file: LogFile) -> bool:
    """True if a later segment lies beside this one, so that it is complete."""
    if file.base_offset is None:
        return False
    return any(
        other.stem.isascii() and other.stem.isdigit() and int(other.stem) > file.base_offset
        for other in file.path.parent.glob("*.log")
    )
