"""Recovery of a partition's directory at the start, and the rules' view of the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quorumd.raft.control import VotersRecord
from quorumd.raft.log_view import LogView
from quorumd.server.model.producer_state import ProducerState
from quorumd.server.translate.control_records import control_records_of, voters_from_wire
from quorumd.storage.log import Log
from quorumd.storage.snapshot_file import SnapshotFacts
from quorumd.storage.snapshot_store import SnapshotStore


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredLog:
    """The contents of a partition's directory after a start.

    `facts` are those of the snapshots, ascending; the newest does not stand for `new_bytes` of records.
    """

    log: Log
    snapshots: SnapshotStore
    facts: Sequence[SnapshotFacts]
    producers: ProducerState
    new_bytes: int


def log_view(opened: RecoveredLog) -> LogView:
    """The rules' view of a log that was just opened: its ends, epochs, voter sets and snapshots."""
    log = opened.log
    view = LogView(
        start_offset=log.log_start_offset,
        end_offset=log.log_end_offset,
        synced_end_offset=log.log_end_offset,
        epoch_starts=[(entry.epoch, entry.start_offset) for entry in log.epochs],
        snapshots=[facts.id for facts in opened.facts],
    )
    if opened.facts:
        newest = opened.facts[-1]
        voters = voters_of(newest)
        if voters is not None:
            view.add_voters(newest.id.end_offset - 1, voters)
    for batch in log.control_batches():
        for offset, record in control_records_of(batch):
            if isinstance(record, VotersRecord):
                view.add_voters(offset, record)
    return view


def voters_of(facts: SnapshotFacts) -> VotersRecord | None:
    """The voter set that a snapshot names, if any."""
    return None if facts.voters is None else voters_from_wire(facts.voters)
