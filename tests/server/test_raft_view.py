"""What responses say of the leader, as a follower knows it."""

from __future__ import annotations

from quorumd.raft.control import VotersRecord
from quorumd.raft.events import LeaderHint
from quorumd.raft.log_view import VoterEntry
from quorumd.raft.types import Endpoint, Voter, VoterSet
from quorumd.server.model.kafka_drift import KafkaDrift
from quorumd.server.model.metrics import Metrics
from quorumd.server.model.topic import METADATA
from quorumd.server.partition.raft_view import RaftPartitionView
from tests.raft.harness import CLUSTER, Bench, key, leader, resigned, unattached

INSIDE = Endpoint("CONTROLLER", "leader", 9093)
OUTSIDE = Endpoint("CLIENTS", "leader.example.com", 9094)


def follower_that_was_told(told: tuple[Endpoint, ...]) -> Bench:
    """A response to a fetch has named the leader, and one endpoint of it."""
    bench = unattached()
    hint = LeaderHint(epoch=bench.node.epoch, leader_id=2, endpoints=told)
    bench.fetched(error="NOT_LEADER_OR_FOLLOWER", hint=hint, to=key(3))
    assert bench.node.leader_id == 2
    return bench


def logged(bench: Bench, *endpoints: Endpoint) -> None:
    others = [voter for voter in bench.node.voters if voter.key != key(2)]
    voters = VoterSet.of([*others, Voter(key(2), endpoints)])
    bench.node.core.log.voter_entries.append(VoterEntry(2, VotersRecord(voters, CLUSTER)))


def view_of(bench: Bench) -> RaftPartitionView:
    return RaftPartitionView(
        METADATA, bench.node, KafkaDrift(Metrics()), lambda: 0, lambda: 0, lambda: 0.0
    )


def test_the_leaders_other_listeners_are_those_of_the_log() -> None:
    bench = follower_that_was_told((INSIDE,))
    view = view_of(bench)
    assert list(view.leader_endpoints) == [INSIDE]
    logged(bench, INSIDE, OUTSIDE)
    assert list(view.leader_endpoints) == [INSIDE, OUTSIDE]


def test_where_the_leader_was_heard_of_last_comes_before_the_log() -> None:
    moved = Endpoint("CONTROLLER", "elsewhere", 9093)
    bench = follower_that_was_told((moved,))
    logged(bench, INSIDE, OUTSIDE)
    assert list(view_of(bench).leader_endpoints) == [moved, OUTSIDE]


def test_who_has_resigned_is_no_leader_for_clients() -> None:
    led, gone = view_of(leader()), view_of(resigned())
    assert (led.leader_id, led.is_leader) == (1, True)
    assert (gone.leader_id, gone.is_leader, gone.leader_endpoints) == (None, False, ())
