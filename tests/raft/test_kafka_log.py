"""A replica of a real Kafka quorum's log copies it, and never adds a record of its own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quorumd.raft.control import VotersRecord
from quorumd.raft.control_appends import append_control
from quorumd.raft.effects import (
    AppendClient,
    AppendControl,
    PersistQuorumState,
    SendRequest,
    UpdateVoter,
    Vote,
)
from quorumd.raft.events import (
    AppendRequested,
    ConnectionLost,
    ConnectionRefused,
    ResignationRequested,
)
from quorumd.raft.invariants import InvariantViolation
from quorumd.raft.roles import Leader, Role
from tests.raft.changes import FREE, leading
from tests.raft.harness import Bench, key, keyed_set, observer

OF_KAFKA = {"is_kafka_log": True, **FREE}


def votes(bench: Bench) -> list[SendRequest]:
    """Votes asked for; to find a leader takes one, too."""
    return bench.requests(Vote, bench.all)


def named_a_voter() -> Bench:
    """Replica 9 observes a Kafka quorum whose operator has made it a voter."""
    bench = observer(**OF_KAFKA)
    voters = VotersRecord(keyed_set(key(1), key(2), key(3), key(9)))
    bench.fetched(epochs=[3], control=((bench.node.log_end_offset, voters),))
    bench.sync()
    bench.fetched(high_watermark=bench.node.log_end_offset)
    assert bench.node.voters.find(key(9)) is not None
    return bench


def test_an_observer_that_is_named_a_voter_of_a_kafka_quorum_never_campaigns() -> None:
    bench = named_a_voter()
    asked = len(votes(bench))
    bench.step(ConnectionLost(id=2))
    bench.step(ConnectionRefused(id=2))
    before = bench.node.epoch
    for _ in range(200):
        bench.wait(500)
    assert bench.role is Role.OBSERVER
    assert bench.node.epoch == before
    assert len(votes(bench)) == asked
    assert not bench.find_all(AppendControl) + bench.find_all(AppendClient)


def test_the_same_replica_of_a_quorumd_log_campaigns() -> None:
    bench = observer(**FREE)
    voters = VotersRecord(keyed_set(key(1), key(2), key(3), key(9)))
    bench.fetched(epochs=[3], control=((bench.node.log_end_offset, voters),))
    bench.sync()
    asked = len(votes(bench))
    bench.wait(10_000)
    assert len(votes(bench)) > asked


def test_a_kafka_leader_is_not_told_where_its_observer_is() -> None:
    bench = observer(**OF_KAFKA)
    for _ in range(10):
        bench.fetched(after_ms=1000)
    assert not bench.requests(UpdateVoter, bench.all)


def test_no_record_of_its_own_enters_a_kafka_log_even_if_a_rule_asked_for_it() -> None:
    bench = leading()
    core = bench.node.core
    core.config = replace(core.config, is_kafka_log=True)
    with pytest.raises(InvariantViolation, match="log of a Kafka quorum"):
        bench.step(AppendRequested(1, 1))
    bench = leading()
    core = bench.node.core
    core.config = replace(core.config, is_kafka_log=True)
    state = core.state
    assert isinstance(state, Leader)
    with pytest.raises(InvariantViolation, match="log of a Kafka quorum"):
        append_control(core, state, (VotersRecord(core.voters),))


def test_the_high_watermark_is_on_disk_within_a_second_and_at_the_end() -> None:
    """A lost quorum is restored from the directory up to there."""
    bench = observer(**OF_KAFKA)
    written = len(bench.find_all(PersistQuorumState))
    for _ in range(20):
        bench.fetched(epochs=[3], high_watermark=bench.node.log_end_offset, after_ms=500)
        bench.sync()
    records = bench.find_all(PersistQuorumState)[written:]
    assert len(records) == 10
    assert bench.node.committed_offset - records[-1].applied_offset <= 2
    bench.step(ResignationRequested("stop", shutting_down=True))
    last = bench.find_all(PersistQuorumState)[-1]
    assert last.applied_offset == bench.node.committed_offset


def test_what_is_committed_but_not_synced_is_no_reason_to_write() -> None:
    bench = observer(**OF_KAFKA)
    bench.fetched(epochs=[3], high_watermark=3)
    assert bench.node.core.recorded_offset == bench.node.core.log.synced_end_offset == 3
    written = len(bench.find_all(PersistQuorumState))
    bench.fetched(epochs=[3], high_watermark=4, after_ms=2_000)
    bench.step(ResignationRequested("stop", shutting_down=True))
    assert bench.node.committed_offset == 4
    assert len(bench.find_all(PersistQuorumState)) == written


def test_the_high_watermark_of_a_log_of_its_own_is_not_written_with_every_commit() -> None:
    bench = observer()
    bench.fetched(epochs=[3], high_watermark=3)
    written = len(bench.find_all(PersistQuorumState))
    for _ in range(5):
        bench.fetched(epochs=[3], high_watermark=bench.node.log_end_offset, after_ms=2_000)
        bench.sync()
    assert bench.node.committed_offset == bench.node.log_end_offset - 1
    assert len(bench.find_all(PersistQuorumState)) == written
