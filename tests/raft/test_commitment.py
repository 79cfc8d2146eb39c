"""What follows from a commit: the cluster id, the record of the voter set, a removal that is known."""

from __future__ import annotations

import pytest

from quorumd.raft.commitment import commit, record_voter_set
from quorumd.raft.config import StoredState
from quorumd.raft.control import VotersRecord
from quorumd.raft.core import Core
from quorumd.raft.effects import (
    AdoptClusterId,
    AnnounceHighWatermark,
    FetchReply,
    PersistQuorumState,
    PersistRemoval,
    SendReply,
)
from quorumd.raft.electorate import Electorate
from quorumd.raft.high_watermark import advance_high_watermark
from quorumd.raft.log_view import LogView, VoterEntry
from quorumd.raft.parked_fetches import ANNOUNCE_DELAY_MS
from quorumd.raft.roles import Leader
from quorumd.raft.types import ReplicaKey, VoterSet
from tests.raft.harness import CLUSTER, config_of, key, leader, log_of, unattached, voter_set
from tests.raft.test_bootstrap import first_leader


def kinds(core: Core, *wanted: type) -> list[object]:
    """The effects of these kinds since the last look."""
    found = [effect for effect in core.effects if isinstance(effect, wanted)]
    core.effects.clear()
    return found


def log_with(*entries: tuple[int, VoterSet]) -> LogView:
    """Five records, and voter sets named at these offsets."""
    log = log_of(1, 1, 2, 2, 2)
    log.voter_entries += [VoterEntry(at, VotersRecord(voters, CLUSTER)) for at, voters in entries]
    return log


def core_with(*entries: tuple[int, VoterSet], applied: int = 0, **more: object) -> Core:
    """A replica that has just started on such a log."""
    stored = StoredState(epoch=3, applied_offset=applied)
    core = unattached(log=log_with(*entries), stored=stored, **more).node.core
    core.effects.clear()
    return core


def test_a_commit_is_announced_once_and_nothing_smaller_is() -> None:
    core = core_with((1, voter_set(1, 2, 3)), applied=2)
    commit(core, 1)
    assert (core.high_watermark, kinds(core, AnnounceHighWatermark)) == (None, [])
    commit(core, 2)
    assert core.high_watermark == 2
    assert kinds(core, AnnounceHighWatermark) == [AnnounceHighWatermark(offset=2)]
    commit(core, 2)
    commit(core, 1)
    assert (core.high_watermark, core.effects) == (2, [])


def test_the_cluster_id_is_adopted_when_the_record_that_names_it_is_committed() -> None:
    for at in (0, 1):
        core = core_with((at, voter_set(1, 2, 3)), cluster_id=None)
        commit(core, 0)
        commit(core, at)
        assert (core.cluster_id, kinds(core, AdoptClusterId)) == (None, [])
        commit(core, at + 1)
        assert core.cluster_id == CLUSTER
        assert kinds(core, AdoptClusterId) == [AdoptClusterId(cluster_id=CLUSTER)]
        commit(core, at + 2)
        assert kinds(core, AdoptClusterId) == []


def test_a_voter_set_without_cluster_id_gives_none() -> None:
    core = core_with(cluster_id=None)
    core.log.add_voters(1, VotersRecord(voter_set(1, 2, 3), None))
    commit(core, 2)
    assert (core.cluster_id, kinds(core, AdoptClusterId)) == (None, [])


def test_the_voter_set_is_recorded_as_soon_as_it_is_committed_and_synced() -> None:
    core = core_with((1, voter_set(1, 2, 3)))
    commit(core, 0)
    assert kinds(core, PersistQuorumState) == []
    commit(core, 1)
    assert kinds(core, PersistQuorumState) == []
    core.log.synced_end_offset = 1
    commit(core, 3)
    assert kinds(core, PersistQuorumState) == []
    core.log.synced_end_offset = 2
    record_voter_set(core)
    (written,) = kinds(core, PersistQuorumState)
    assert isinstance(written, PersistQuorumState)
    assert written.applied_offset == 2
    record_voter_set(core)
    assert kinds(core, PersistQuorumState) == []


def test_a_voter_set_right_behind_what_is_recorded_is_recorded_too() -> None:
    core = core_with((1, voter_set(1, 2, 3)), applied=1)
    commit(core, 2)
    assert len(kinds(core, PersistQuorumState)) == 1


def test_a_removal_is_noted_once_when_it_is_committed() -> None:
    for first in (0, 1):
        core = core_with((first, voter_set(1, 2, 3)), (3, voter_set(2, 3)))
        commit(core, 2)
        commit(core, 3)
        assert (core.was_removed, kinds(core, PersistRemoval)) == (False, [])
        commit(core, 4)
        assert (core.was_removed, kinds(core, PersistRemoval)) == (True, [PersistRemoval()])
        commit(core, 5)
        assert kinds(core, PersistRemoval) == []


def test_who_never_voted_by_a_committed_set_of_the_log_was_not_removed() -> None:
    named_in_config_only = core_with((1, voter_set(2, 3)))
    observer = core_with((1, voter_set(1, 2, 3)), (3, voter_set(2, 3)), local=key(9))
    for core in (named_in_config_only, observer):
        commit(core, 4)
        assert (core.was_removed, kinds(core, PersistRemoval)) == (False, [])


# -- what a leader commits


def led(*entries: tuple[int, VoterSet]) -> tuple[Core, Leader]:
    bench = leader(log=log_with(*entries), stored=StoredState(epoch=3))
    core = bench.node.core
    assert isinstance(core.state, Leader)
    return core, core.state


def test_voters_named_by_the_first_record_of_the_log_commit() -> None:
    bench = leader(log=log_with((0, voter_set(1, 2, 3))), stored=StoredState(epoch=3))
    end = bench.node.core.log.end
    bench.fetch(key(2), *end)
    assert bench.node.high_watermark == end.offset


def test_nothing_is_committed_while_the_log_names_no_voters() -> None:
    core, state = led((1, voter_set(1, 2, 3)))
    for each in (key(2), key(3)):
        state.progress[each].end_offset = core.log.end_offset
        state.progress[ReplicaKey(each.id)] = state.progress[each]
    del core.log.voter_entries[1:]
    advance_high_watermark(core, state)
    assert core.high_watermark is None


def test_a_record_of_an_earlier_epoch_is_not_committed_by_counting() -> None:
    core, state = led((1, voter_set(1, 2, 3)))
    for end_offset in (3, state.epoch_start_offset):
        for other in (key(2), key(3)):
            state.progress[other].end_offset = end_offset
        advance_high_watermark(core, state)
        assert core.high_watermark is None


def test_the_same_high_watermark_is_announced_once() -> None:
    bench = leader(log=log_with((1, voter_set(1, 2, 3))), stored=StoredState(epoch=3))
    for other in (key(2), key(3)):
        bench.fetch(other, *bench.node.core.log.end)
    assert len(bench.find_all(AnnounceHighWatermark)) == 1


def test_the_voters_are_not_committed_before_each_of_them_has_their_record() -> None:
    bench = first_leader()
    bench.fetch(key(2), 0, 0)
    bench.fetch(key(3), 0, 0)
    bench.sync()
    end, epoch = bench.node.core.log.end
    named_at = bench.node.core.log.voters_offset
    bench.fetch(key(2), end, epoch)
    bench.fetch(key(3), named_at, epoch)
    assert bench.node.high_watermark is None
    bench.fetch(key(3), end, epoch)
    assert bench.node.high_watermark == end


def test_a_fetch_that_waits_hears_of_a_commit_that_another_brings_about() -> None:
    bench = leader(5)
    end = bench.node.core.log.end
    assert bench.fetch(key(2), *end) is None
    assert bench.node.high_watermark is None
    assert bench.fetch(key(3), *end, max_wait_ms=0) is not None
    assert bench.node.high_watermark == end.offset
    bench.wait(ANNOUNCE_DELAY_MS)
    (answer,) = bench.find(SendReply)
    assert isinstance(answer.reply, FetchReply)
    assert answer.reply.high_watermark == end.offset


# -- what a voter set means


def test_a_voter_without_endpoints_of_its_own_has_not_moved() -> None:
    entry = VoterEntry(1, VotersRecord(voter_set(1, 2, 3), CLUSTER))
    assert not Electorate.of(entry, config_of(endpoints=())).has_moved


def test_only_a_set_of_the_log_can_be_changed_by_its_leader() -> None:
    record = VotersRecord(voter_set(2, 3), CLUSTER)
    assert Electorate.of(VoterEntry(-1, record), config_of()).is_settled
    assert not Electorate.of(VoterEntry(0, record), config_of()).is_settled


@pytest.mark.parametrize(
    ("ids", "needed"),
    [((1,), 0), ((1, 2), 1), ((1, 2, 3), 1), ((2,), 1), ((2, 3), 2), ((2, 3, 4), 2)],
)
def test_who_does_not_vote_needs_a_whole_majority_of_others(
    ids: tuple[int, ...], needed: int
) -> None:
    entry = VoterEntry(1, VotersRecord(voter_set(*ids), CLUSTER))
    assert Electorate.of(entry, config_of()).others_needed == needed
