"""The settings of the snapshot manager, and its view of how much was written to the log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from quorumd.storage.snapshot_file import SnapshotFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSettings:
    """None is no limit."""

    max_new_record_bytes: int
    interval_s: float
    retention_bytes: int | None
    retention_ms: int | None
    builds: bool = True
    """False for the log of a Kafka quorum: its snapshots are Kafka's own, copied from its leader."""
    copier_silent_s: float
    """A replica that has requested no chunk for so long does not copy any more."""


class WriteProgress(Protocol):
    """Amount of data that was written to the log."""

    base: SnapshotFacts | None
    """The facts of the newest snapshot; the manager sets those of one that was taken here."""
    written_bytes: int
    """Of records, since the start."""
