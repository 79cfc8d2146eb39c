"""A leader appends control records: LeaderChange, KRaftVersion and the voter sets."""

from __future__ import annotations

from quorumd.raft.check_quorum import check_quorum_ms
from quorumd.raft.control import RaftControlRecord, VotersRecord
from quorumd.raft.core import Core
from quorumd.raft.effects import AppendControl
from quorumd.raft.invariants import require
from quorumd.raft.parked_fetches import wake_fetches
from quorumd.raft.roles import Leader


def require_own_log(core: Core) -> None:
    """Nothing of this replica's own enters the log of a real Kafka quorum, or its nodes end for good."""
    require(not core.config.is_kafka_log, "a record of its own for the log of a Kafka quorum")


def append_control(core: Core, leader: Leader, records: tuple[RaftControlRecord, ...]) -> None:
    """Append control records as one batch; a voter set counts from now on, committed or not."""
    require_own_log(core)
    base = core.log.end_offset
    was_alone = not core.other_voters()
    core.log.append(base + len(records), ((core.epoch, base),))
    for at, record in enumerate(records):
        if isinstance(record, VotersRecord):
            core.log.add_voters(base + at, record)
            core.announce_voters()
            leader.heard_from.intersection_update(core.other_voters())
            leader.next_begin_ms = core.now_ms
            if was_alone:
                # Check quorum begins here: no other voter had to fetch before.
                leader.check_quorum_deadline_ms = core.now_ms + check_quorum_ms(core)
    write = core.writes.next_of_log(core.log.end_offset)
    core.effects.append(
        AppendControl(write=write, base_offset=base, epoch=core.epoch, records=records)
    )
    wake_fetches(core, leader)
