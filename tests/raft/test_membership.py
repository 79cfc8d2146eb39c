"""Who takes part in elections at all: new and foreign disks, single voters, nodes that start or stop."""

from __future__ import annotations

import pytest

from quorumd.raft.config import StoredState
from quorumd.raft.effects import (
    EndQuorumEpoch,
    PersistQuorumState,
    Vote,
)
from quorumd.raft.events import (
    LeaderHint,
    ResignationRequested,
)
from quorumd.raft.roles import Role
from quorumd.raft.types import ReplicaKey
from tests.raft.harness import (
    candidate,
    config_of,
    follower,
    fresh,
    key,
    log_of,
    unattached,
    voter_set,
)

END = (3, 2)
"""The log end of every replica of these tests."""


# -- who takes part


def test_an_empty_directory_that_joins_neither_votes_nor_campaigns() -> None:
    bench = fresh(1, is_bootstrap=False)
    assert bench.role is Role.OBSERVER
    assert not bench.vote(key(2), 1, (0, 0)).granted
    assert not bench.pre_vote(key(2), 1, (0, 0)).granted
    bench.hinted(bench.outstanding(Vote), LeaderHint(epoch=1))
    assert not bench.vote(key(2), 1, (0, 0)).granted
    assert not bench.pre_vote(key(2), 1, (0, 0)).granted
    bench.wait(10_000)
    assert bench.role is Role.OBSERVER
    assert bench.node.epoch == 1


def test_it_votes_once_its_log_names_the_voters() -> None:
    log = log_of(1, 1, 2, voters=voter_set(2, 3, 4))
    bench = unattached(log=log, is_bootstrap=False)
    assert bench.role is Role.OBSERVER
    assert bench.vote(key(2), 4, END).top_level_error == "BROKER_NOT_AVAILABLE"
    bench.hinted(bench.outstanding(Vote, key(2)), LeaderHint(epoch=4))
    assert bench.vote(key(2), 4, END).granted


def test_a_directory_of_a_new_quorum_votes_and_campaigns_by_id() -> None:
    bench = fresh(1)
    assert bench.role is Role.UNATTACHED
    assert bench.vote(key(2), 1, (0, 0), cluster_id=None).granted
    assert fresh(2).pre_vote(key(3), 0, (0, 0)).granted


def test_another_disk_under_a_voters_id_is_an_observer() -> None:
    bench = unattached(local=key(1, disk=1))
    assert bench.role is Role.OBSERVER


# -- one voter


def test_the_only_voter_leads_as_soon_as_its_vote_is_on_disk() -> None:
    bench = unattached(1)
    assert bench.role is Role.CANDIDATE
    bench.sync()
    assert bench.role is Role.LEADER
    bench.sync()
    assert bench.node.high_watermark == bench.node.core.log.end_offset
    assert not bench.requests(Vote, bench.all)
    bench.wait(20_000)
    assert bench.role is Role.LEADER


def test_the_only_voter_leads_again_right_after_a_restart() -> None:
    bench = unattached(1, stored=StoredState(epoch=3, leader=key(1), voted=key(1)))
    bench.wait(0)
    bench.sync()
    assert (bench.role, bench.node.epoch) == (Role.LEADER, 5)


def test_two_voters_need_each_other() -> None:
    bench = candidate(2)
    assert bench.role is Role.CANDIDATE
    bench.grant(key(2))
    assert bench.role is Role.LEADER


# -- shutting down


def test_a_candidate_that_shuts_down_says_so_and_asks_no_more() -> None:
    bench = candidate()
    bench.step(ResignationRequested("stopped", shutting_down=True))
    ends = bench.requests(EndQuorumEpoch)
    assert {e.to for e in ends} == {key(2), key(3)}
    assert all(e.request.leader_id is None and e.request.epoch == 4 for e in ends)
    bench.grant(key(2))
    assert bench.role is Role.CANDIDATE
    bench.wait(10_000)
    assert bench.node.epoch == 4


def test_a_follower_that_shuts_down_does_not_campaign() -> None:
    bench = follower()
    bench.step(ResignationRequested("stopped", shutting_down=True))
    bench.wait(10_000)
    assert bench.role is Role.FOLLOWER


# -- start


@pytest.mark.parametrize(
    ("stored", "role", "epoch"),
    [
        (StoredState(), Role.UNATTACHED, 2),
        (StoredState(epoch=1, leader=key(2)), Role.UNATTACHED, 2),
        (StoredState(epoch=3), Role.UNATTACHED, 3),
        (StoredState(epoch=3, leader=key(2)), Role.FOLLOWER, 3),
        (StoredState(epoch=3, leader=key(1), voted=key(1)), Role.RESIGNED, 3),
        (StoredState(epoch=3, leader=ReplicaKey(1)), Role.RESIGNED, 3),
        (StoredState(epoch=3, leader=key(1, disk=1)), Role.UNATTACHED, 3),
        (StoredState(epoch=3, voted=key(1)), Role.UNATTACHED, 3),
        (StoredState(epoch=3, leader=key(8)), Role.UNATTACHED, 3),
    ],
)
def test_the_stored_state_decides_the_first_role(
    stored: StoredState, role: Role, epoch: int
) -> None:
    bench = unattached(stored=stored)
    assert (bench.role, bench.node.epoch) == (role, epoch)
    assert bench.find(PersistQuorumState)[0].epoch == epoch


def test_who_had_voted_for_itself_begins_anew_with_pre_votes() -> None:
    """Kafka's replica is a candidate of the same epoch again."""
    bench = unattached(stored=StoredState(epoch=3, voted=key(1)))
    assert not bench.vote(key(2), 3, END).granted
    while bench.role is not Role.PROSPECTIVE:
        bench.fire()
    assert bench.node.epoch == 3
    bench.grant(key(2))
    assert (bench.role, bench.node.epoch) == (Role.CANDIDATE, 4)


def test_the_only_voter_ends_its_former_epoch_before_it_leads_again() -> None:
    bench = unattached(1, stored=StoredState(epoch=3, leader=key(1), voted=key(1)))
    bench.wait(0)
    bench.sync()
    assert (bench.role, bench.node.epoch) == (Role.LEADER, 5)


def test_a_stored_leader_that_nobody_can_place_is_forgotten_but_not_the_vote() -> None:
    bench = unattached(stored=StoredState(epoch=3, leader=key(8), voted=key(2)))
    assert bench.node.leader is None
    assert not bench.vote(key(3), 3, END).granted
    assert bench.vote(key(2), 3, END).granted


def test_a_disk_that_lost_committed_records_stops_the_node() -> None:
    from quorumd.raft.effects import Halt

    bench = unattached(stored=StoredState(epoch=3, applied_offset=4))
    halt = bench.find(Halt)
    assert len(halt) == 1
    assert "4" in halt[0].reason
    assert not bench.find(PersistQuorumState)
    assert not unattached(stored=StoredState(epoch=3, applied_offset=3)).find(Halt)


def test_config_defaults_are_those_of_the_documents() -> None:
    config = config_of()
    assert (config.fetch_timeout_ms, config.election_timeout_ms) == (2000, 1000)
