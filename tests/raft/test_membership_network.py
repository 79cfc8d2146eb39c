"""Whole histories in which voters come and go, seed after seed."""

from __future__ import annotations

import pytest

from quorumd.raft.events import (
    AddVoterRequested,
    ReassignmentRequested,
    RemoveVoterRequested,
    ResignationRequested,
    TransferRequested,
)
from quorumd.raft.roles import Leader
from quorumd.raft.types import ReplicaKey, Voter, VoterSet
from tests.raft.harness import CLUSTER, endpoints, key, voter_set
from tests.raft.network import Cluster, Disk, Network


def dynamic(seed: int, size: int = 3, observers: int = 3, **config: object) -> Cluster:
    """A quorum whose voters are not a matter of configuration, with some observers."""
    values = {"configured_voters": VoterSet(), "formatted_voters": voter_set(*range(1, size + 1))}
    cluster = Cluster(seed, size, observers, start=False, config=values | config)
    for who in cluster.keys:
        cluster.start(who, bootstrap_servers=size + observers)
    cluster.settle()
    return cluster


def add(cluster: Cluster, who: ReplicaKey) -> int:
    voter = Voter(who, endpoints(who.id))
    return cluster.ask(AddVoterRequested, cluster_id=CLUSTER, voter=voter, timeout_ms=5000)


def remove(cluster: Cluster, who: ReplicaKey) -> int:
    return cluster.ask(RemoveVoterRequested, cluster_id=CLUSTER, key=who, timeout_ms=5000)


def reassign(cluster: Cluster, *ids: int) -> int:
    return cluster.ask(ReassignmentRequested, target=ids or None, timeout_ms=5000)


def voters(cluster: Cluster) -> tuple[ReplicaKey, ...]:
    leader = cluster.leader()
    assert leader is not None
    return leader.node.core.committed_voters.record.voters.keys


def outcome(cluster: Cluster, request: int, within_ms: int = 6000) -> str | None:
    cluster.run(within_ms, lambda: request in cluster.answers)
    assert request in cluster.answers, cluster.describe()
    return cluster.answers[request].error


@pytest.mark.parametrize("seed", range(10))
def test_an_observer_becomes_a_voter_and_one_again(seed: int) -> None:
    cluster = dynamic(seed)
    assert outcome(cluster, add(cluster, key(4))) is None
    assert voters(cluster) == tuple(map(key, (1, 2, 3, 4)))
    assert outcome(cluster, add(cluster, key(4))) == "DUPLICATE_VOTER"
    assert outcome(cluster, remove(cluster, key(4))) is None
    assert outcome(cluster, remove(cluster, key(4))) == "VOTER_NOT_FOUND"
    cluster.settle()
    assert voters(cluster) == tuple(map(key, (1, 2, 3)))
    assert cluster.disks[key(4)].was_removed
    cluster.check_end()


@pytest.mark.parametrize("seed", range(10))
def test_a_leader_removes_itself_and_another_one_takes_over(seed: int) -> None:
    cluster = dynamic(seed)
    leader = cluster.leader()
    assert leader is not None
    assert outcome(cluster, remove(cluster, leader.local)) is None
    cluster.settle()
    assert leader.local not in voters(cluster)
    assert cluster.leader() is not leader
    cluster.check_end()


@pytest.mark.parametrize("seed", range(10))
def test_all_voters_are_replaced_under_load(seed: int) -> None:
    cluster = dynamic(seed)
    assert outcome(cluster, reassign(cluster, 4, 5, 6)) is None
    for _ in range(200):
        cluster.append()
        cluster.run(20)
    cluster.settle()
    assert voters(cluster) == tuple(map(key, (4, 5, 6)))
    leader = cluster.leader()
    assert leader is not None
    assert leader.node.core.electorate.entry.record.target is None
    cluster.check_end()


@pytest.mark.parametrize("seed", range(10))
def test_a_reassignment_survives_the_death_of_every_leader(seed: int) -> None:
    cluster = dynamic(seed)
    assert outcome(cluster, reassign(cluster, 3, 4, 5)) is None
    for _ in range(12):
        cluster.run(cluster.random.randint(1, 60))
        leader = cluster.leader()
        if leader is not None:
            cluster.crash(leader.local)
            cluster.run(cluster.random.randint(0, 400))
            cluster.start(leader.local, bootstrap_servers=6)
    cluster.settle()
    cluster.run(5000, lambda: voters(cluster) == tuple(map(key, (3, 4, 5))))
    assert voters(cluster) == tuple(map(key, (3, 4, 5))), cluster.describe()
    cluster.settle()
    cluster.check_end()


@pytest.mark.parametrize("seed", range(10))
def test_leadership_is_handed_to_whoever_is_named(seed: int) -> None:
    cluster = dynamic(seed)
    leader = cluster.leader()
    assert leader is not None
    to = next(k for k in voters(cluster) if k != leader.local)
    request = cluster.ask(TransferRequested, cluster_id=CLUSTER, to=to, timeout_ms=5000)
    assert outcome(cluster, request) is None
    taken = cluster.run(1000, lambda: cluster.leader() not in (leader, None))
    successor = cluster.leader()
    assert successor is not None, cluster.describe()
    assert successor.local == to
    assert taken < 100
    cluster.settle()
    cluster.check_end()


@pytest.mark.parametrize("seed", range(10))
def test_a_lost_disk_is_replaced_without_a_hand(seed: int) -> None:
    cluster = dynamic(seed, auto_join=True)
    dead = next(k for k in voters(cluster) if k != getattr(cluster.leader(), "local", None))
    cluster.crash(dead)
    fresh = key(dead.id, disk=1)
    cluster.disks[fresh] = Disk(cluster_id=CLUSTER)
    cluster.keys[dead.id - 1] = fresh
    cluster.start(fresh, bootstrap_servers=6, is_bootstrap=False)
    cluster.run(30_000, lambda: dead not in voters(cluster))
    assert dead not in voters(cluster), cluster.describe()
    assert fresh in voters(cluster)
    cluster.settle()
    cluster.check_end()


def misfortune(cluster: Cluster) -> None:
    """One random thing that goes wrong, or right again, or that an operator asks for."""
    draw, network = cluster.random, cluster.network
    running = list(cluster.replicas)
    what = draw.choice(
        ["crash", "start", "start", "start", "cut", "heal", "heal", "lossy", "resign"]
        + ["add", "remove", "reassign", "transfer", "replace"] * 2
    )
    match what:
        case "crash" if running:
            cluster.crash(draw.choice(running))
        case "start":
            for who in cluster.keys:
                if who not in cluster.replicas and draw.random() < 0.8:
                    cluster.start(who, bootstrap_servers=6, is_bootstrap=who == key(who.id, 0))
        case "cut":
            one = draw.choice(cluster.keys)
            others = draw.sample(cluster.keys, draw.randint(1, 5))
            network.isolate([one.id], [k.id for k in others if k != one])
        case "heal":
            network.cut.clear()
            network.loss, network.latency_ms = 0.0, (1, 3)
        case "lossy":
            network.loss = draw.choice([0.05, 0.2])
        case "resign" if cluster.leader() is not None:
            leader = cluster.leader()
            assert leader is not None
            leader.step(ResignationRequested("maintenance", shutting_down=False))
        case "add":
            add(cluster, draw.choice(cluster.keys))
        case "remove" if cluster.leader() is not None:
            remove(cluster, draw.choice(voters(cluster)))
        case "reassign":
            ids = draw.sample(range(1, 7), draw.randint(1, 5))
            reassign(cluster, *sorted(ids) if draw.random() < 0.8 else ())
        case "replace" if cluster.leader() is not None:
            replace_disk(cluster)
        case "transfer":
            to = draw.choice([None, *cluster.keys])
            cluster.ask(TransferRequested, cluster_id=CLUSTER, to=to, timeout_ms=1000)


def replace_disk(cluster: Cluster) -> None:
    """A voter loses its disk, if the others can do without it."""
    leader, who = cluster.leader(), cluster.random.choice(cluster.keys)
    cluster.run(3000)
    if leader is None or leader is not cluster.leader() or cluster.network != Network():
        return
    left = sum(k != who and k in cluster.replicas for k in voters(cluster))
    is_settled = leader.node.core.committed_voters is leader.node.core.electorate.entry
    if left <= len(voters(cluster)) // 2 or who not in cluster.replicas or not is_settled:
        return
    cluster.crash(who)
    disk = who.uuid.int % 1000 if who.uuid else 0
    fresh = key(who.id, disk=disk)
    cluster.keys[who.id - 1] = fresh
    cluster.disks[fresh] = Disk(cluster_id=CLUSTER)
    cluster.start(fresh, bootstrap_servers=6, is_bootstrap=False)
    # Whoever takes the dead one for alive could remove one that is needed now.
    state = leader.node.core.state
    if isinstance(state, Leader):
        state.changes.clear()
    cluster.run(3000)


@pytest.mark.parametrize("block", range(20))
def test_no_history_with_changing_voters_loses_or_forks_what_was_committed(block: int) -> None:
    for seed in range(block * 5, block * 5 + 5):
        cluster = dynamic(seed + 1000, auto_join=bool(seed % 2))
        for _ in range(40):
            misfortune(cluster)
            for _ in range(cluster.random.randint(0, 3)):
                running = list(cluster.replicas.values())
                cluster.append(cluster.random.choice(running) if running else None)
                cluster.run(cluster.random.randint(0, 30))
            cluster.run(cluster.random.choice([0, 5, cluster.random.randint(10, 80), 300, 1500]))
        cluster.settle(30_000)
        cluster.check_end()
