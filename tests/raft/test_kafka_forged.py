"""Forged requests at a witness beside Kafka's controllers: no epoch and no leader is taken from them.

And none is passed on: a Kafka node takes over a later epoch from any Vote, so no question to it names one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from random import Random
from typing import Any

import pytest

from quorumd.raft.effects import BeginQuorumEpoch, Fetch, PersistQuorumState, SendRequest, Vote
from quorumd.raft.leader_discovery import LAST_EPOCH
from quorumd.raft.roles import Role
from quorumd.raft.types import ReplicaKey
from tests.raft.harness import CLUSTER, Bench, endpoints, key
from tests.raft.test_kafka_witness import leading, witness

STRANGER = 4711
KEYS = (*map(key, (1, 2, 3, STRANGER)), key(1, disk=7), key(2, disk=7), ReplicaKey(3))
ENDS = ((0, 0), (3, 2), (2**40, 2**31 - 3))
AT = ((), endpoints(2), endpoints(STRANGER))


def forged(bench: Bench) -> Iterator[Callable[[], object]]:
    """What a client can send that knows all of the quorum; a Fetch of the present epoch acknowledges."""
    epoch = bench.node.epoch
    epochs = (epoch, epoch + 1, epoch + 2, epoch + 1000, 1_162_891_075, LAST_EPOCH, 2**31 - 1)
    for replica, at, cluster_id in product(KEYS, epochs, (None, CLUSTER)):
        more: dict[str, Any] = {"cluster_id": cluster_id}
        for last in ENDS:
            yield partial(bench.vote, replica, at, last, **more)
            yield partial(bench.pre_vote, replica, at, last)
            if at > epoch:
                yield partial(bench.fetch, replica, *last, epoch=at, **more)
        more["says_so"] = False
        yield partial(bench.end, None, at, **more)
        for where in AT:
            yield partial(bench.begin, replica.id, at, endpoints=where, **more)
            yield partial(bench.end, replica.id, at, *KEYS, endpoints=where, **more)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("bench_of", [witness, leading])
def test_thousands_of_forged_requests_move_no_witness(
    bench_of: Callable[[], Bench], seed: int
) -> None:
    bench = bench_of()
    node, start = bench.node, len(bench.all)
    role, epoch, leader, stored = bench.role, node.epoch, node.leader, node.core.voted
    frames = list(forged(bench))
    assert len(frames) > 1000
    Random(seed).shuffle(frames)
    for send in frames:
        send()
        assert (bench.role, node.epoch, node.leader) == (role, epoch, leader)
    assert node.core.voted == stored
    effects = bench.all[start:]
    assert not [each for each in effects if isinstance(each, PersistQuorumState)]
    asked = [each for each in effects if isinstance(each, SendRequest)]
    assert asked, "the leader, or who names a later epoch, is asked"
    for each in asked:
        assert isinstance(each.request, Vote | Fetch | BeginQuorumEpoch)
        assert getattr(each.request, "epoch", epoch) == epoch
        assert not isinstance(each.request, Vote) or each.request.pre_vote
        assert isinstance(each.to, ReplicaKey)
        assert each.to.id != node.local.id, "a vote under its own id ends a Kafka node"


def test_who_names_a_later_epoch_under_the_own_id_is_not_asked() -> None:
    bench = leading()
    begin = len(bench.all)
    bench.vote(key(1, disk=7), bench.node.epoch + 1, (3, 2))
    assert bench.requests(Vote, bench.all[begin:]) == []
    bench.vote(key(STRANGER), bench.node.epoch + 1, (3, 2))
    assert [each.to for each in bench.requests(Vote, bench.all[begin:])] == [key(STRANGER)]


def test_a_witness_whose_leader_says_nothing_more_loses_it_by_time_alone() -> None:
    """As many forged ends of the epoch as there may be change nothing about when."""
    quiet, disturbed = witness(), witness()
    for bench in (quiet, disturbed):
        while bench.role is Role.FOLLOWER and bench.node.has_leader_contact:
            if bench is disturbed:
                bench.end(2, 3, key(1), key(3), says_so=False)
            bench.fire()
    assert quiet.now_ms == disturbed.now_ms
