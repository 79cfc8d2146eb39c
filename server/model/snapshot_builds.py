"""Building a snapshot, as its caller sees it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from quorumd.raft.types import SnapshotId


class BuildResult(NamedTuple):
    """A snapshot that is all in its unfinished file, and synced; `empty_batches` did not unpack."""

    id: SnapshotId
    empty_batches: int


class BuildFailed(Exception):
    """No snapshot was built; the message says why. `damaged` is one that it was to be built on.

    `is_log_damaged` says that the build has found the log on this disk so.
    """

    def __init__(
        self, message: str, damaged: SnapshotId | None = None, *, is_log_damaged: bool = False
    ) -> None:
        super().__init__(message)
        self.damaged = damaged
        self.is_log_damaged = is_log_damaged


class Build(Protocol):
    """A snapshot that is being built."""

    def cancel(self, ended: Callable[[], None]) -> None:
        """Give it up: `done` is not called; `ended` is, once, when nothing of it runs any more."""


class Builder(Protocol):
    """Begins to build the snapshot of a partition's directory that ends at an offset.

    `progress` gets how much is done, 0 to 1; `done` is called once, later.
    """

    def __call__(
        self,
        directory: Path,
        end_offset: int,
        progress: Callable[[float], None],
        done: Callable[[BuildResult | BuildFailed], None],
    ) -> Build: ...
