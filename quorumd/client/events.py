"""The events of `QuorumClient.follow`: snapshots, committed batches, leaders, outages.

Values only. Offsets of ends are exclusive; times are ms since 1970.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from quorumd.client.errors import QuorumUnavailable
from quorumd.client.spool import SnapshotSpool
from quorumd.raft.types import SnapshotId
from quorumd.security.errors import CertificateProblem
from quorumd.wire.records import Record


@dataclass(frozen=True, slots=True)
class SnapshotLoaded:
    """A snapshot replaces all records below `id.end_offset`: discard the state built so far.

    It is complete and checked. `last_contained_log_timestamp` is the greatest timestamp below its end.
    """

    id: SnapshotId
    size_bytes: int
    last_contained_log_timestamp: int
    _spool: SnapshotSpool

    def records(self) -> Iterator[Record]:
        """One record for each key that has a value, ascending by key, as it was in the log.

        Reads a temporary file, which is deleted when the next event is requested.
        """
        return self._spool.records()


@dataclass(frozen=True, slots=True)
class BatchCommitted:
    """The committed offsets from `base_offset` to `next_offset` (exclusive), without a gap to the last.

    A control batch has no records, nor has one that no reader can unpack: `problem` is the reason then.
    """

    base_offset: int
    next_offset: int
    epoch: int
    timestamp: int
    records: tuple[Record, ...]
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class LeaderChanged:
    """The leader and its epoch: the first event, and again when a new leader has committed."""

    leader_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class QuorumLost:
    """No leader was reached for the client's timeout, or certificates forbid it. Retries continue."""

    error: QuorumUnavailable | CertificateProblem


@dataclass(frozen=True, slots=True)
class QuorumRestored:
    """The end of a QuorumLost. No event was missed."""


LogEvent = SnapshotLoaded | BatchCommitted | LeaderChanged | QuorumLost | QuorumRestored
