"""Whole histories: elections, replication and truncation among several replicas, seed after seed."""

from __future__ import annotations

import statistics

import pytest

from quorumd.raft.roles import Role
from tests.raft.harness import key
from tests.raft.network import Cluster, Disk


def established(seed: int, size: int = 3, observers: int = 0) -> Cluster:
    """A quorum that has elected its first leader, named its voters and committed some records."""
    cluster = Cluster(seed, size, observers)
    cluster.settle()
    for _ in range(3):
        cluster.append()
        cluster.run(20)
    return cluster


def is_led(cluster: Cluster, after_epoch: int = 0) -> bool:
    """True if a leader of a later epoch has committed a record of its own."""
    leader = cluster.leader()
    return (
        leader is not None
        and not leader.is_stopped
        and leader.node.epoch > after_epoch
        and leader.node.high_watermark is not None
    )


def misfortune(cluster: Cluster) -> None:
    """One random thing that goes wrong, or right again."""
    draw, network = cluster.random, cluster.network
    match draw.choice(
        [
            "crash",
            "blink",
            "blink",
            "start",
            "start",
            "cut",
            "heal",
            "lossy",
            "slow",
            "stop",
            "resign",
        ]
    ):
        case "crash" if cluster.replicas:
            cluster.crash(draw.choice(list(cluster.replicas)))
        case "start":
            for who in cluster.keys:
                if who not in cluster.replicas and draw.random() < 0.7:
                    cluster.start(who)
        case "cut":
            one, other = draw.sample(cluster.keys, 2)
            network.cut.add((one.id, other.id))
            if draw.random() < 0.5:
                network.isolate([one.id], [k.id for k in cluster.keys if k != one])
        case "blink" if cluster.replicas:
            who = draw.choice(list(cluster.replicas))
            cluster.crash(who)
            cluster.run(draw.randint(0, 8))
            cluster.start(who)
        case "heal":
            network.cut.clear()
            network.loss, network.latency_ms = 0.0, (1, 3)
            network.sync_ms = draw.choice([(0, 3), (5, 40)])
        case "lossy":
            network.loss = draw.choice([0.05, 0.2, 0.5])
            network.tells_of_deaths = draw.random() < 0.5
        case "slow":
            network.latency_ms, network.sync_ms = (0, draw.choice([20, 80, 300])), (0, 60)
        case "stop" if cluster.replicas:
            who = draw.choice(list(cluster.replicas))
            if not cluster.replicas[who].is_stopped:
                cluster.stop(who)
            else:
                cluster.resume(who)
        case "resign":
            leader = cluster.leader()
            if leader is not None:
                from quorumd.raft.events import ResignationRequested

                leader.step(ResignationRequested("maintenance", shutting_down=False))


@pytest.mark.parametrize("block", range(10))
@pytest.mark.parametrize(("size", "observers"), [(3, 0), (3, 1), (5, 0), (2, 1), (1, 1)])
def test_no_history_loses_or_forks_what_was_committed(
    size: int, observers: int, block: int
) -> None:
    for seed in range(block * 5, block * 5 + 5):
        cluster = Cluster(seed * 7 + size, size, observers)
        cluster.run(cluster.random.choice([0, 20, 200]))
        for _ in range(25):
            misfortune(cluster)
            for _ in range(cluster.random.randint(0, 3)):
                running = list(cluster.replicas.values())
                cluster.append(cluster.random.choice(running) if running else None)
                cluster.run(cluster.random.randint(0, 30))
            cluster.run(cluster.random.choice([0, 5, cluster.random.randint(10, 80), 300, 1500]))
        cluster.settle(20_000)
        cluster.check_end()


def test_three_fresh_nodes_have_a_leader_soon_after_the_last_start() -> None:
    times = []
    for seed in range(40):
        cluster = Cluster(seed, start=False)
        for who in cluster.keys:
            cluster.start(who)
            cluster.run(cluster.random.choice([0, 30, 300]))
        times.append(cluster.run(3000, lambda c=cluster: is_led(c)))
    assert max(times) <= 150, sorted(times)


def test_all_three_restarted_have_a_leader_soon() -> None:
    times = []
    for seed in range(40):
        cluster = established(seed)
        for who in cluster.keys:
            cluster.crash(who)
        cluster.run(500)
        epoch = max(disk.stored.epoch for disk in cluster.disks.values())
        order = cluster.random.sample(cluster.keys, 3)
        for who in order:
            cluster.start(who)
            cluster.run(cluster.random.choice([0, 30, 300]))
        times.append(cluster.run(5000, lambda c=cluster, e=epoch: is_led(c, e)))
        cluster.settle()
        cluster.check_end()
    assert statistics.median(times) <= 100, sorted(times)
    assert max(times) <= 500, sorted(times)


@pytest.mark.parametrize("size", [3, 5])
def test_a_killed_leader_is_replaced_in_about_50_ms(size: int) -> None:
    times = []
    for seed in range(60):
        cluster = established(seed, size)
        leader = cluster.leader()
        assert leader is not None
        for _ in range(seed % 3):
            cluster.append()
        cluster.run(seed % 7)
        epoch = leader.node.epoch
        cluster.crash(leader.local)
        times.append(cluster.run(5000, lambda c=cluster, e=epoch: is_led(c, e)))
    assert statistics.median(times) <= 50, sorted(times)
    assert max(times) <= 250, sorted(times)


def test_a_stopped_leader_is_replaced_within_the_fetch_timeout_and_300_ms() -> None:
    times = []
    for seed in range(60):
        cluster = established(seed)
        leader = cluster.leader()
        assert leader is not None
        epoch = leader.node.epoch
        cluster.run(cluster.random.randint(0, 600))
        followers = [k for k in cluster.keys if k != leader.local]
        if seed % 2:  # one of the two lacks the last record
            lagging = cluster.random.choice(followers)
            cluster.network.cut.add((leader.local.id, lagging.id))
            cluster.append()
            cluster.run(10)
            cluster.network.cut.clear()
        cluster.stop(leader.local)
        times.append(cluster.run(8000, lambda c=cluster, e=epoch: is_led(c, e)))
        cluster.resume(leader.local)
        cluster.settle()
        cluster.check_end()
    assert max(times) <= 2300, sorted(times)


def test_a_leader_that_resigns_is_replaced_at_once() -> None:
    from quorumd.raft.events import ResignationRequested

    times = []
    for seed in range(40):
        cluster = established(seed)
        leader = cluster.leader()
        assert leader is not None
        epoch = leader.node.epoch
        leader.step(ResignationRequested("stopped", shutting_down=True))
        times.append(cluster.run(5000, lambda c=cluster, e=epoch: is_led(c, e)))
    assert statistics.median(times) <= 40, sorted(times)
    assert max(times) <= 150, sorted(times)


def test_a_partitioned_follower_does_not_disturb_when_it_returns() -> None:
    for seed in range(20):
        cluster = established(seed)
        leader = cluster.leader()
        assert leader is not None
        lonely = next(k for k in cluster.keys if k != leader.local)
        cluster.network.isolate([lonely.id], [k.id for k in cluster.keys if k != lonely])
        for _ in range(10):
            cluster.append()
            cluster.run(1000)
        assert cluster.replicas[lonely].node.epoch == leader.node.epoch
        cluster.network.cut.clear()
        cluster.run(3000)
        assert cluster.leader() is leader
        assert cluster.replicas[lonely].node.core.log.end_offset == leader.node.core.log.end_offset


def test_a_partitioned_leader_steps_down_and_its_tail_is_cut() -> None:
    for seed in range(20):
        cluster = established(seed)
        old = cluster.leader()
        assert old is not None
        epoch = old.node.epoch
        cluster.network.isolate([old.local.id], [k.id for k in cluster.keys if k != old.local])
        lost = [cluster.append(old) for _ in range(3)]
        cluster.run(4000)
        assert old.node.role in (Role.RESIGNED, Role.PROSPECTIVE, Role.UNATTACHED)
        assert is_led(cluster, epoch)
        kept = cluster.append()
        cluster.run(100)
        assert kept in cluster.acknowledged
        cluster.settle()
        values = [record.value for record in old.records]
        assert kept in values
        assert not set(lost) & set(values)


def test_a_replaced_disk_follows_and_never_votes_a_record_away() -> None:
    for seed in range(20):
        cluster = established(seed)
        leader = cluster.leader()
        assert leader is not None
        lost = next(k for k in cluster.keys if k != leader.local)
        cluster.crash(lost)
        again = key(lost.id, disk=1)
        cluster.keys.append(again)
        cluster.disks[again] = Disk()
        cluster.start(again, is_bootstrap=False)
        cluster.run(3000)
        assert cluster.replicas[again].node.role is Role.OBSERVER
        assert cluster.replicas[again].records == leader.records
        assert cluster.leader() is leader


def test_nothing_is_committed_before_every_voter_has_the_first_voter_set() -> None:
    for seed in range(20):
        cluster = Cluster(seed, start=False)
        cluster.start(key(1))
        cluster.start(key(2))
        cluster.run(5000)
        leader = cluster.leader()
        assert leader is not None
        assert leader.node.high_watermark is None
        cluster.append()
        assert not cluster.committed
        cluster.start(key(3))
        cluster.settle()


def test_a_disk_replaced_during_bootstrap_takes_the_place_of_the_lost_one() -> None:
    for seed in range(20):
        cluster = Cluster(seed, start=False)
        for i in (1, 2):
            cluster.start(key(i))
        cluster.run(2000)
        cluster.start(key(3))
        cluster.run(cluster.random.randint(0, 6))
        cluster.crash(key(3))
        if cluster.committed:
            continue
        cluster.keys[2] = key(3, disk=1)
        cluster.disks[key(3, disk=1)] = Disk()
        cluster.run(3000)
        cluster.start(key(3, disk=1), is_bootstrap=bool(seed % 2))
        cluster.settle()
        leader = cluster.leader()
        assert leader is not None
        assert key(3, disk=1) in leader.node.voters.keys
        assert key(3) not in leader.node.voters.keys
