"""The files of a partition, as the disk thread changes them, and the replica's book that learns of it.

What is on disk is noted where a call of the log returns, so that the thread may be wrong about it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from quorumd.server.model.disk_jobs import Files
from quorumd.storage.log import Chunk, Log
from quorumd.storage.quorum_state import QuorumState
from simulation.history.replica import Replica
from simulation.machines.hardware import DELETION, RESET, TRUNCATION, Hardware


def watched(files: Files, log: Log, book: Replica, machine: Hardware) -> Files:
    """The same files; `log` is theirs, and they are on the disk of this machine."""

    def save_state(state: QuorumState) -> None:
        files.save_state(state)
        book.saved(state)

    return Files(WatchedLog(log, book, machine), files.snapshots, save_state)


class WatchedLog:
    """A `quorumd.server.model.disk_jobs.LogFiles`."""

    def __init__(self, log: Log, book: Replica, machine: Hardware) -> None:
        self._log = log
        self._book = book
        self._machine = machine

    @contextmanager
    def _under_way(self, operation: str) -> Iterator[None]:
        self._machine.disk_operation = operation
        try:
            yield
        finally:
            self._machine.disk_operation = ""

    def write_many(self, chunks: Sequence[Chunk]) -> None:
        self._log.write_many(chunks)
        self._book.written(chunks)

    def sync(self) -> None:
        self._log.sync()
        self._book.was_synced()

    def truncate(self, end_offset: int) -> None:
        self._book.truncates(end_offset)
        with self._under_way(TRUNCATION):
            self._log.truncate(end_offset)
        self._book.truncated()

    def reset(self, end_offset: int) -> None:
        self._book.resets(end_offset)
        with self._under_way(RESET):
            self._log.reset(end_offset)
        self._book.was_reset(end_offset)

    def delete_before(self, start_offset: int) -> None:
        with self._under_way(DELETION):
            self._log.delete_before(start_offset)

    def prepare(self) -> None:
        self._log.prepare()
