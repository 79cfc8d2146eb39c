"""Planted bugs of what is kept on disk."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

from quorumd.server.disk import group_commit
from quorumd.server.disk.group_commit import DiskLoop, Jobs, Pause, Step
from quorumd.server.model.disk_jobs import Job
from quorumd.storage import log_writer, quorum_state, torn_tail
from quorumd.storage.errors import StorageError
from quorumd.storage.filesystem import FileSystem, write_all
from quorumd.storage.log import Log
from quorumd.storage.log_writer import LogWriter
from quorumd.storage.recovery import _Inspection
from quorumd.storage.segment import ActiveFile
from quorumd.storage.segment_removal import remove_segment
from simulation.planted.table import AT_A_NAME, AT_A_WRITE, POWER, Plant, planted


@planted(
    "log is never synced",
    "The disk thread writes records and skips the fsync (storage-format, durability).",
    caught_by=["what was synced survives"],
    seeds=10,
    faults=POWER,
)
def _log_is_never_synced(plant: Plant) -> None:
    plant(LogWriter, "sync", lambda writer: None)


@planted(
    "quorum state is renamed, not synced",
    "The rename of quorum-state.json is not made durable by an fsync of its directory (fsync(2)).",
    caught_by=["epoch and high watermark never go back", "votes survive restarts"],
    seeds=8,
    faults=POWER,
)
def _rename_is_not_synced(plant: Plant) -> None:
    def wrong(fs: FileSystem, path: Path, data: bytes) -> None:
        _replace(fs, path, data, is_synced=True)

    plant(quorum_state, "replace_file", wrong)


@planted(
    "quorum state is replaced unsynced",
    "quorum-state.json is renamed into its place before its bytes are synced (fsync(2)).",
    caught_by=["a sound disk is not refused", "epoch and high watermark never go back"],
    seeds=5,
    faults=POWER,
)
def _replaced_unsynced(plant: Plant) -> None:
    def wrong(fs: FileSystem, path: Path, data: bytes) -> None:
        _replace(fs, path, data, is_synced=False)
        fs.fsync_directory(path.parent)

    plant(quorum_state, "replace_file", wrong)


def _replace(fs: FileSystem, path: Path, data: bytes, *, is_synced: bool) -> None:
    temporary = path.with_name(path.name + ".tmp")
    handle = fs.open(temporary, writable=True, create=True)
    fs.truncate(handle, 0)
    write_all(fs, handle, [data], 0)
    if is_synced:
        fs.fsync(handle)
    fs.close(handle)
    fs.rename(temporary, path)


@planted(
    "new segment is not synced in its directory",
    "A roll does not make the new file's name durable before records go into it (fsync(2)).",
    caught_by=["what was synced survives", "a sound disk is not refused"],
    seeds=24,
    faults=POWER,
)
def _new_segment_is_not_synced(plant: Plant) -> None:
    right = ActiveFile.__init__

    def wrong(
        file: ActiveFile,
        fs: FileSystem,
        path: Path,
        size_bytes: int,
        segment_bytes: int,
        *,
        create: bool,
    ) -> None:
        if create:
            fs.close(fs.open(path, writable=True, create=True))
        right(file, fs, path, size_bytes, segment_bytes, create=False)

    plant(ActiveFile, "__init__", wrong)


@planted(
    "recovery cuts one batch too many",
    "After a torn write recovery drops the last whole batch, too (storage-format, recovery).",
    caught_by=["what was synced survives"],
    seeds=36,
    faults=frozenset({"crash at a call"}),
)
def _recovery_cuts_too_much(plant: Plant) -> None:
    right = Log.open

    def wrong(*args: Any, **kwargs: Any) -> Log:
        log = right(*args, **kwargs)
        if log.recovery.cut_bytes and log.log_end_offset:
            log.truncate(log.log_end_offset - 1)
        return log

    plant(Log, "open", staticmethod(wrong))


@planted(
    "recovered log is not synced",
    "A start counts what it finds in the log without an fsync (storage-format, recovery).",
    caught_by=["what was synced survives"],
    seeds=8,
    faults=frozenset({"crash at a call"}),
)
def _recovered_log_is_not_synced(plant: Plant) -> None:
    right = _Inspection._inspect

    def wrong(inspection: _Inspection, base_offset: int, *, is_last: bool) -> None:
        with patch.object(type(inspection.fs), "fsync", lambda fs, handle: None):
            right(inspection, base_offset, is_last=is_last)

    plant(_Inspection, "_inspect", wrong)


@planted(
    "torn group is taken for damage",
    "A power loss in the midst of several batches that were written together stops the node"
    " (storage-format, the mark behind a group).",
    caught_by=["a sound disk is not refused"],
    seeds=36,
    faults=AT_A_WRITE | {"slow disk"},
)
def _torn_group_is_damage(plant: Plant) -> None:
    plant(torn_tail, "has_unwritten_sector", lambda *place: False)


@planted(
    "truncation is not synced",
    "A file is cut without an fsync, so that a power loss brings back what was dropped (fsync(2)).",
    caught_by=["what was synced survives", "a sound disk is not refused"],
    seeds=12,
    faults=AT_A_WRITE | {"deposed leader"},
)
def _truncation_is_not_synced(plant: Plant) -> None:
    def wrong(file: ActiveFile, size_bytes: int) -> None:
        if size_bytes > file._synced_bytes:
            file.sync()
        file._fs.truncate(file._handle, size_bytes)
        file.size_bytes = file._synced_bytes = file._zeros_end = size_bytes

    plant(ActiveFile, "cut", wrong)


@planted(
    "newest segments are deleted first",
    "Deletion goes from the log's middle to its start, so that a power loss leaves a gap"
    " (storage-format, deletion).",
    caught_by=["a sound disk is not refused"],
    seeds=24,
    faults=AT_A_NAME | {"snapshot asked for"},
)
def _newest_are_deleted_first(plant: Plant) -> None:
    right = LogWriter.delete_before

    def wrong(writer: LogWriter, offset: int) -> int:
        bases: list[int] = []
        with patch.object(log_writer, "remove_segment", lambda fs, place, base: bases.append(base)):
            start_offset = right(writer, offset)
        for base in reversed(bases):
            remove_segment(writer._fs, writer._directory, base)
        return start_offset

    plant(LogWriter, "delete_before", wrong)


@planted(
    "writes are completed before the sync",
    "The disk thread reports writes to the event loop as soon as they are written, not synced.",
    caught_by=["the high watermark is synced by a majority"],
    seeds=5,
    faults=frozenset(),
)
def _completed_before_the_sync(plant: Plant) -> None:
    right = DiskLoop._carry_out

    def wrong(loop: DiskLoop, jobs: list[Job]) -> Iterator[Pause]:
        steps = right(loop, jobs)
        for step in steps:
            if step is Step.SYNC_NEXT:
                loop._call_on_loop(loop._listener.on_writes_completed, jobs[-1].write, None)
            yield step

    plant(DiskLoop, "_carry_out", wrong)


@planted(
    "what came last is written first",
    "Of jobs that were handed over one after another the disk thread begins with the last.",
    caught_by=["the disk is written in order"],
    seeds=5,
    faults=frozenset({"slow disk"}),
)
def _last_is_written_first(plant: Plant) -> None:
    right = DiskLoop._next_jobs

    def wrong(loop: DiskLoop) -> Generator[Pause, Jobs, tuple[list[Job], bool]]:
        jobs, is_last = yield from right(loop)
        return sorted(jobs, key=lambda job: -job.write), is_last

    plant(DiskLoop, "_next_jobs", wrong)
    # Else an older quorum state would take the place of the newer one, and only one would be written.
    plant(group_commit, "_is_superseded", lambda jobs, at: False)


@planted(
    "failed writes are completed",
    "The disk thread goes on after an error as if the write had succeeded (a failed fsync is final).",
    caught_by=["the high watermark is synced by a majority", "no rule is broken"],
    seeds=12,
    faults=frozenset({"sync error"}),
)
def _failed_writes_are_completed(plant: Plant) -> None:
    right = DiskLoop._carry_out

    def wrong(loop: DiskLoop, jobs: list[Job]) -> Generator[Pause, Jobs, float | None]:
        try:
            return (yield from right(loop, jobs))
        except StorageError:
            return None

    plant(DiskLoop, "_carry_out", wrong)
