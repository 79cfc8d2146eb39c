"""What the snapshot manager is given: its settings, and how much was written to the log."""

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
    """Who has not asked for the next chunk of a snapshot for so long does not copy it any more."""


class WriteProgress(Protocol):
    """What was written to the log, as far as snapshots depend on it."""

    base: SnapshotFacts | None
    """What the newest snapshot says; the manager sets it for one that was taken here."""
    written_bytes: int
    """Of records, since the start."""
