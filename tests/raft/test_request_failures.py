"""Requests that fail: what a failure says, and what it does not."""

from __future__ import annotations

import pytest

from quorumd.raft.config import StoredState
from quorumd.raft.effects import BootstrapServer, Fetch, FetchSnapshot, Halt, Vote
from quorumd.raft.election_timeout import election_deadline_ms
from quorumd.raft.events import RequestFailed
from quorumd.raft.roles import Candidate, Role
from tests.raft.copying import offered
from tests.raft.harness import Bench, candidate, follower, fresh, key, log_of, unattached

FOREIGN = "INCONSISTENT_CLUSTER_ID"


def foreign(bench: Bench, replica_id: int, leader_id: int | None) -> None:
    """This voter belongs to another cluster, and names its leader."""
    for sent in bench.requests(Fetch, bench.all):
        if sent.to == bench.node.core.key_of(replica_id):
            request_id = sent.request_id
    bench.step(
        RequestFailed(request_id=request_id, reason="foreign", error=FOREIGN, leader_id=leader_id)
    )
    bench.wait(1000)


def test_what_was_asked_in_a_former_epoch_fails_without_consequence() -> None:
    bench = follower()
    late = bench.outstanding(Fetch, key(2)).request_id
    bench.begin(2, 4)
    bench.step(RequestFailed(request_id=late, reason="reset"))
    assert not bench.node.core.requests.backoffs
    assert bench.outstanding(Fetch, key(2))


def test_a_vote_that_fails_after_a_refusal_ends_the_round() -> None:
    bench = candidate()
    bench.grant(key(2), granted=False)
    state = bench.node.core.state
    assert isinstance(state, Candidate)
    assert not state.is_lost
    bench.fail(Vote, key(3))
    assert state.is_lost


def test_a_fetch_that_fails_says_nothing_of_a_vote() -> None:
    """The leader is asked for its records during a campaign, too."""
    bench = follower()
    bench.wait(2025)
    assert bench.role is Role.PROSPECTIVE
    bench.grant(key(3), granted=False)
    bench.node.core.connections.unreachable.add(2)
    bench.fail(Fetch, key(2))
    assert bench.role is Role.PROSPECTIVE


def test_only_a_chunk_that_is_refused_ends_a_download() -> None:
    bench = follower()
    offered(bench)
    bench.fail(FetchSnapshot)
    assert bench.node.core.download is not None
    bench.begin(3, 9, says_so=False)
    bench.fail(Vote, key(3), error="UNSUPPORTED_VERSION")
    assert bench.node.core.download is not None
    bench.wait(20)
    bench.fail(FetchSnapshot, error="SNAPSHOT_NOT_FOUND")
    assert bench.node.core.download is None


def test_the_next_deadline_is_when_the_first_peer_may_be_asked_again() -> None:
    bench = unattached()
    for _ in range(3):
        bench.fail(Fetch, key(2))
        bench.fire()
    bench.fail(Fetch, key(2))
    bench.fail(Fetch, key(3))
    assert bench.node.next_deadline_ms() == bench.now_ms + 20
    assert election_deadline_ms(bench.node.core) != bench.now_ms + 20


# -- another cluster


def test_only_a_fetch_that_was_refused_for_it_tells_of_another_cluster() -> None:
    bench = unattached()
    bench.fail(Fetch, key(2))
    bench.fail(Fetch, key(3), error="UNSUPPORTED_VERSION")
    bench.wait(5000)
    bench.fail(Vote, key(2), error=FOREIGN)
    assert "another cluster" not in bench.reports


def test_who_names_no_leader_takes_nothing_back() -> None:
    bench = fresh(1, cluster_id="mine")
    for replica_id, leader_id in ((2, 3), (2, None), (3, 3)):
        assert not bench.find_all(Halt)
        foreign(bench, replica_id, leader_id)
    assert len(bench.find_all(Halt)) == 1


def test_the_leader_of_the_other_cluster_has_to_say_so_itself() -> None:
    bench = fresh(1, cluster_id="mine")
    for replica_id in (2, 3):
        foreign(bench, replica_id, 9)
    assert not bench.find_all(Halt)


def test_a_bootstrap_server_of_another_cluster_is_only_reported() -> None:
    bench = fresh(1, cluster_id="mine", bootstrap_servers=1)
    server = BootstrapServer(index=0)
    bench.fail(Fetch, server, error=FOREIGN, leader_id=3)  # type: ignore[arg-type]  # bootstrap servers are fetched from, too
    assert "another cluster" in bench.reports


@pytest.mark.parametrize(("records", "halts"), [(0, True), (1, False)])
def test_one_record_is_enough_to_know_ones_cluster(records: int, halts: bool) -> None:
    bench = unattached(log=log_of(*[1] * records), stored=StoredState(), is_bootstrap=True)
    for replica_id in (2, 3):
        foreign(bench, replica_id, 3)
    assert bool(bench.find_all(Halt)) is halts
