"""Commits: the files that tasks have written are checked, then one manifest makes them visible.

A range that is in the tables already, or does not follow what is, is refused: whatever Spark does again,
it is not in the tables twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from quorumd.pipeline.errors import PipelineError
from quorumd.pipeline.tables.history import ControlRow, LeadershipHistory, extend_history
from quorumd.pipeline.tables.manifests import Arrival, DataFile, Manifest, newest, write_manifest
from quorumd.pipeline.tables.origin import LogBeginning, beginning
from quorumd.pipeline.tables.output import fenced
from quorumd.pipeline.tables.parquet import read_rows, write_rows


class NotShared(PipelineError):
    """A worker's file is not on the driver: the folder is not shared."""


class NotContinued(PipelineError):
    """A range of the log that does not follow what the tables hold."""


@dataclass(slots=True)
class TaskOutput:
    """The files that one task has written, and what of the log it has seen, to `last_offset` (inclusive).

    `empty_offsets` counts those of batches that count as empty. `last_crcs` are those of its last offset's
    batches, -1 and none if it has seen nothing.
    """

    files: list[DataFile] = field(default_factory=list)
    control: list[ControlRow] = field(default_factory=list)
    newest_ms: int = 0
    first_offset: int = 0
    last_offset: int = -1
    empty_offsets: int = 0
    last_crcs: tuple[int, ...] = ()


def commit_log(
    folder: Path,
    token: str,
    written: Iterable[TaskOutput],
    origin: Mapping[str, str] | None = None,
) -> None:
    """Commits a range of the log.

    Raises NotContinued, NotShared, RunReplaced, DamagedTables, LogUnreachable, OSError.

    `origin` are the options that the log was read with: the first time it is asked what it begins
    with. None: the log begins at offset 0.
    """
    parts = [part for part in written if part.last_offset >= 0]
    if not parts:
        return
    files = sorted((file for part in parts for file in part.files), key=_first)
    with fenced(folder, token):
        _check_here(folder, files)
        before = newest(folder, "log")
        start = before.end_offset if before is not None else 0
        latest = max(parts, key=lambda part: part.last_offset)
        first, end = min(part.first_offset for part in parts), latest.last_offset + 1
        rows = sum(file.rows for file in files)
        offsets = rows + sum(part.empty_offsets for part in parts)
        control = [row for part in parts for row in part.control]
        if before is not None:
            _check_follows(start, first, end, offsets)
            complete_from = before.complete_from
        else:
            began = beginning(origin) if origin is not None else LogBeginning(0, [])
            _check_begins(began.complete_from, first, end, offsets)
            complete_from = began.complete_from
            control += began.control
        tables = {"records": tuple(files), **_history_files(folder, before, control)}
        now_ms = time.time_ns() // 1_000_000
        write_manifest(
            folder,
            Manifest(
                chain="log",
                number=before.number + 1 if before is not None else 0,
                start_offset=start,
                end_offset=end,
                complete_from=complete_from,
                written_ms=now_ms,
                arrivals=(Arrival(now_ms, latest.newest_ms),),
                rows=rows,
                last_crcs=latest.last_crcs,
                files=tables,
            ),
        )


def commit_state(
    folder: Path, token: str, end_offset: int, files: Iterable[tuple[str, DataFile]]
) -> None:
    """Commits `state` and `key_history` up to `end_offset`. Raises as `commit_log` does."""
    tables: dict[str, list[DataFile]] = {"state": [], "key_history": []}
    for table, file in files:
        tables[table].append(file)
    with fenced(folder, token):
        _check_here(folder, tables["state"] + tables["key_history"])
        before, log = newest(folder, "state"), newest(folder, "log")
        assert log is not None, "there is a log to have a state of"
        write_manifest(
            folder,
            Manifest(
                chain="state",
                number=before.number + 1 if before is not None else 0,
                start_offset=before.end_offset if before is not None else 0,
                end_offset=end_offset,
                complete_from=log.complete_from,
                written_ms=time.time_ns() // 1_000_000,
                rows=sum(file.rows for file in tables["key_history"]),
                files={table: tuple(sorted(found, key=_first)) for table, found in tables.items()},
            ),
        )


def _check_here(folder: Path, files: Iterable[DataFile]) -> None:
    for file in files:
        path = folder / file.path
        if not path.is_file() or path.stat().st_size != file.size_bytes:
            raise NotShared(
                f"a worker of Spark has written {path}, and it is not here: {folder} has to be the same "
                "folder on the driver and on all workers. Name one in --output that they share"
            )


def _check_follows(start: int, first: int, end: int, offsets: int) -> None:
    if first == start and offsets == end - start:
        return
    raise NotContinued(
        f"the tables hold everything below offset {start}, but what came next is {offsets} offsets from "
        f"{first} to {end - 1}: offsets are missing or twice there. Nothing of it was taken. Check "
        "the log with quorumctl verify, or build the tables anew in another folder"
    )


def _check_begins(complete_from: int, first: int, end: int, offsets: int) -> None:
    if end < complete_from:
        raise NotContinued(
            f"a snapshot up to offset {complete_from} came while the log was read up to {end}: run it again"
        )
    if not complete_from:
        _check_follows(0, first, end, offsets)


def _history_files(
    folder: Path, before: Manifest | None, control: Sequence[ControlRow]
) -> dict[str, tuple[DataFile, ...]]:
    """The new files of `leadership` and `voter_sets`."""
    if before is not None and not control:
        return {table: before.files[table] for table in ("leadership", "voter_sets")}
    history = LeadershipHistory(read_rows(folder, "leadership"), read_rows(folder, "voter_sets"))
    history = extend_history(history, control)
    return {
        "leadership": write_rows(folder, "leadership", history.leadership),
        "voter_sets": write_rows(folder, "voter_sets", history.voter_sets),
    }


def _first(file: DataFile) -> int:
    # Empty files are not written, and these tables have offsets.
    assert file.first_offset is not None
    return file.first_offset
