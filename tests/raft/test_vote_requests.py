"""Votes and pre-votes at their edges: what a request may hold, and what one changes that is refused."""

from __future__ import annotations

import pytest

from quorumd.raft.config import StoredState
from quorumd.raft.control import VotersRecord
from quorumd.raft.effects import Vote
from quorumd.raft.election_timeout import election_deadline_ms
from quorumd.raft.events import LeaderHint
from quorumd.raft.leader_discovery import EPOCH_STEP_LIMIT
from quorumd.raft.log_view import VoterEntry
from quorumd.raft.roles import Role
from quorumd.raft.types import ReplicaKey
from tests.raft.harness import (
    CLUSTER,
    Bench,
    follower,
    fresh,
    key,
    log_of,
    unattached,
    voter_set,
)

END = (3, 2)


def knows_no_leader(bench: Bench, replica_id: int) -> None:
    hint = LeaderHint(epoch=bench.node.epoch)
    bench.fetched(error="NOT_LEADER_OR_FOLLOWER", hint=hint, to=key(replica_id))


def test_why_a_vote_is_refused_at_once_is_said() -> None:
    bench = unattached()
    assert not bench.vote(key(2), 4, END, cluster_id="other").granted
    assert f"vote request of {key(2)} refused: cluster other" in bench.reports
    assert not bench.vote(ReplicaKey(-1), 4, END).granted
    assert "vote request of -1 refused: impossible values" in bench.reports


def test_the_first_id_is_a_possible_one() -> None:
    assert unattached().vote(key(0), 4, END).granted


@pytest.mark.parametrize("epoch", [3 + EPOCH_STEP_LIMIT, 3 + EPOCH_STEP_LIMIT + 1])
def test_an_epoch_that_is_so_far_ahead_is_believed_and_none_further(epoch: int) -> None:
    bench = unattached()
    assert bench.vote(key(2), epoch, END).granted == (epoch == 3 + EPOCH_STEP_LIMIT)


def test_who_has_contact_with_its_leader_asks_nobody_about_epochs_far_ahead() -> None:
    bench = follower()
    bench.all.clear()
    assert not bench.vote(key(3), 3 + EPOCH_STEP_LIMIT + 1, END).granted
    assert not bench.requests(Vote, bench.all)


def test_who_votes_waits_for_its_candidate_from_then_on() -> None:
    bench = unattached()
    bench.now_ms += 500
    assert bench.vote(key(2), 3, END).granted
    assert election_deadline_ms(bench.node.core) == bench.now_ms + 1500


def test_a_pre_vote_that_is_granted_neither_hastens_the_own_campaign_nor_puts_it_off() -> None:
    bench = unattached()
    due_ms = election_deadline_ms(bench.node.core)
    assert bench.pre_vote(key(2), 3, END).granted
    assert election_deadline_ms(bench.node.core) == due_ms
    knows_no_leader(bench, 3)
    assert election_deadline_ms(bench.node.core) == bench.now_ms + 25


def test_a_voter_set_counts_from_the_first_offset_on() -> None:
    """As in a log that was formatted with its voters."""
    log = log_of(1)
    log.voter_entries.append(VoterEntry(0, VotersRecord(voter_set(1, 2, 3), CLUSTER)))
    bench = unattached(log=log, stored=StoredState(epoch=1, applied_offset=1))
    assert bench.role is Role.UNATTACHED
    assert bench.vote(key(2), 2, (1, 1)).granted


# -- witness


def witness(bench: Bench) -> bool:
    """True if it would campaign."""
    return bench.node.core.witness.must_lead


def test_a_witness_in_contact_with_its_leader_leaves_everything_as_it_is() -> None:
    bench = follower(is_witness=True)
    assert not bench.pre_vote(key(3), 3, (2, 1)).granted
    assert not witness(bench)
    assert not bench.pre_vote(key(3), 3, END).granted
    assert bench.node.core.witness.defers_until_ms is None


def test_a_witness_that_may_not_vote_yet_has_nothing_that_others_lack() -> None:
    bench = fresh(1, is_bootstrap=False, is_witness=True)
    bench.pre_vote(key(3), 0, (0, 0))
    assert bench.node.core.witness.defers_until_ms is None


def test_a_witness_defers_to_an_able_voter_up_to_a_time_and_no_longer() -> None:
    bench = unattached(is_witness=True)
    assert not bench.pre_vote(key(3), 3, (2, 1)).granted
    assert witness(bench)
    assert bench.pre_vote(key(2), 3, END).granted
    assert not witness(bench)
    bench.now_ms += 2000 + 2 * 1000 + 1000 - 1
    bench.pre_vote(key(3), 3, (2, 1))
    assert not witness(bench)
    bench.now_ms += 1
    bench.pre_vote(key(3), 3, (2, 1))
    assert witness(bench)


def test_a_witness_that_has_to_lead_does_so_soon_where_nobody_knows_a_leader() -> None:
    """That others may have voted for who lacks its records is no reason to wait: it refuses that one."""
    bench = unattached(is_witness=True)
    assert not bench.vote(key(3), 3, (2, 1)).granted
    assert witness(bench)
    knows_no_leader(bench, 2)
    assert election_deadline_ms(bench.node.core) == bench.now_ms + 25
