"""What a follower of the log is told: snapshots, committed batches, leaders, outages.

Values only. Offsets of ends are exclusive; times are ms since 1970.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from quorumd.client.errors import QuorumUnavailable
from quorumd.client.spool import SnapshotSpool
from quorumd.raft.types import SnapshotId
from quorumd.wire.records import Record


@dataclass(frozen=True, slots=True)
class SnapshotLoaded:
    """A snapshot stands for everything below `id.end_offset`: forget what came before it.

    It is complete and checked. `last_contained_log_timestamp` is the greatest time below its end.
    """

    id: SnapshotId
    size_bytes: int
    last_contained_log_timestamp: int
    _spool: SnapshotSpool

    def records(self) -> Iterator[Record]:
        """One record for each key that has a value, ascending by key, as it was in the log.

        Reads a temporary file that is gone when the next event is asked for.
        """
        return self._spool.records()


@dataclass(frozen=True, slots=True)
class BatchCommitted:
    """The committed offsets from `base_offset` to `next_offset` (exclusive), without a gap to the last.

    There are no records in a control batch, nor if `problem` says why they can't be read by anybody.
    """

    base_offset: int
    next_offset: int
    epoch: int
    timestamp: int
    records: tuple[Record, ...]
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class LeaderChanged:
    """This node leads since this epoch: the first event, and again when a new leader has committed."""

    leader_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class QuorumLost:
    """Nobody could be read from for the client's timeout. The follower goes on trying."""

    error: QuorumUnavailable


@dataclass(frozen=True, slots=True)
class QuorumRestored:
    """The end of a QuorumLost. Nothing was missed."""


LogEvent = SnapshotLoaded | BatchCommitted | LeaderChanged | QuorumLost | QuorumRestored
