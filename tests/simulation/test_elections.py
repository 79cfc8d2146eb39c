"""How fast a quorum elects, and what it keeps, when one thing goes wrong; seed after seed."""

from __future__ import annotations

import statistics

import pytest

from quorumd.raft.roles import Role
from simulation.history.voter_change_requests import VoterChangeKind
from simulation.machines.machine import Machine
from simulation.scenario import Scenario, settings_of

pytestmark = pytest.mark.sim


def established(seed: int, voters: int = 3) -> Scenario:
    """A quorum that has elected its first leader, named its voters and committed some records."""
    scenario = Scenario(seed, settings_of(voters))
    scenario.start()
    scenario.settle()
    for _ in range(3):
        scenario.append()
        scenario.run(20)
    return scenario


def epoch_of(scenario: Scenario, machine: Machine) -> int:
    return scenario.node(machine).epoch


def until_led(scenario: Scenario, after_epoch: int = 0) -> int:
    """How many ms it takes, 8,000 at most."""
    return scenario.run(8000, lambda: scenario.is_led(after_epoch))


def test_three_fresh_nodes_have_a_leader_soon_after_the_last_start() -> None:
    """It commits soon, too: a follower that waits before it connects again need not when the leader has
    connected to it."""
    elected, led = [], []
    for seed in range(40):
        scenario = Scenario(seed)
        for machine in scenario.machines:
            scenario.start(machine)
            scenario.run(scenario.random.choice([0, 30, 300]))
        waited = scenario.run(3000, lambda s=scenario: s.cluster.leader_machine() is not None)
        elected.append(waited)
        led.append(waited + until_led(scenario))
    assert max(elected) <= 150, sorted(elected)
    assert max(led) <= 150, sorted(led)


def test_all_three_restarted_have_a_leader_soon() -> None:
    times = []
    for seed in range(40):
        scenario = established(seed)
        epoch = max(epoch_of(scenario, machine) for machine in scenario.machines)
        for machine in scenario.machines:
            scenario.kill(machine)
        scenario.run(500)
        for machine in scenario.random.sample(scenario.machines, 3):
            scenario.start(machine)
            scenario.run(scenario.random.choice([0, 30, 300]))
        times.append(until_led(scenario, epoch))
        scenario.settle()
        scenario.check_end()
    assert statistics.median(times) <= 100, sorted(times)
    assert max(times) <= 500, sorted(times)


@pytest.mark.parametrize("voters", [3, 5])
def test_a_killed_leader_is_replaced_in_about_50_ms(voters: int) -> None:
    times = []
    for seed in range(60):
        scenario = established(seed, voters)
        leader = scenario.leader
        for _ in range(seed % 3):
            scenario.append()
        scenario.run(seed % 7)
        epoch = epoch_of(scenario, leader)
        scenario.kill(leader)
        times.append(until_led(scenario, epoch))
    assert statistics.median(times) <= 50, sorted(times)
    assert max(times) <= 250, sorted(times)


def test_a_paused_leader_is_replaced_within_the_fetch_timeout_and_300_ms() -> None:
    times = []
    for seed in range(60):
        scenario = established(seed)
        leader = scenario.leader
        epoch = epoch_of(scenario, leader)
        scenario.run(scenario.random.randint(0, 600))
        if seed % 2:  # one of the two lacks the last record
            lagging = scenario.random.choice(scenario.others(leader))
            scenario.env.network.cut([leader.host], [lagging.host], "lagging")
            scenario.append()
            scenario.run(10)
            scenario.env.network.mend(leader.host, lagging.host, "lagging")
        leader.pause(60_000_000)
        times.append(until_led(scenario, epoch))
        scenario.settle()
        scenario.check_end()
    assert max(times) <= 2300, sorted(times)


def test_leadership_is_handed_to_the_voter_that_is_asked_for_though_all_are_far_away() -> None:
    """The others hear of the end no later, and campaign with no less delay than the network has."""
    for seed in range(20):
        scenario = established(seed)
        scenario.env.network.conditions.latency_us = (40_000, 45_000)
        scenario.run(1_000)
        old, epoch = scenario.leader, epoch_of(scenario, scenario.leader)
        to = scenario.random.choice(scenario.others(old))
        scenario.request(VoterChangeKind.TRANSFER, to.replica.key)
        until_led(scenario, epoch)
        assert scenario.leader is to, seed
        scenario.settle()
        scenario.check_end()


def test_a_leader_that_resigns_is_replaced_at_once() -> None:
    times = []
    for seed in range(40):
        scenario = established(seed)
        leader = scenario.leader
        epoch = epoch_of(scenario, leader)
        scenario.resign(leader)
        times.append(until_led(scenario, epoch))
    assert statistics.median(times) <= 40, sorted(times)
    assert max(times) <= 150, sorted(times)


@pytest.mark.parametrize("seed", range(20))
def test_a_partitioned_follower_does_not_disturb_when_it_returns(seed: int) -> None:
    scenario = established(seed)
    leader = scenario.leader
    epoch, lonely = epoch_of(scenario, leader), scenario.others(leader)[0]
    scenario.isolate(lonely)
    for _ in range(10):
        scenario.append()
        scenario.run(1000)
    assert epoch_of(scenario, lonely) == epoch
    scenario.rejoin(lonely)
    scenario.run(3000)
    assert scenario.leader is leader
    assert epoch_of(scenario, leader) == epoch
    assert scenario.node(lonely).log_end_offset == scenario.node(leader).log_end_offset


@pytest.mark.parametrize("seed", range(20))
def test_a_partitioned_leader_steps_down_and_its_tail_is_cut(seed: int) -> None:
    scenario = established(seed)
    old = scenario.leader
    epoch = epoch_of(scenario, old)
    scenario.isolate(old)
    lost = [scenario.append(old) for _ in range(3)]
    scenario.run(10)
    assert {append.identity for append in lost} <= {b.identity for b in old.replica.log}
    scenario.run(4000)
    assert scenario.node(old).role in (Role.RESIGNED, Role.PROSPECTIVE, Role.UNATTACHED)
    assert scenario.is_led(epoch)
    kept = scenario.append()
    scenario.run(100)
    assert kept.offset is not None
    scenario.settle()
    identities = {batch.identity for batch in old.replica.log}
    assert kept.identity in identities
    assert not identities & {append.identity for append in lost}
    scenario.check_end()


@pytest.mark.parametrize("seed", range(20))
def test_a_replaced_disk_follows_and_never_votes_a_record_away(seed: int) -> None:
    scenario = established(seed)
    leader = scenario.leader
    lost = scenario.others(leader)[0]
    scenario.kill(lost)
    lost.note_damaged()
    lost.replace_disk()
    scenario.start(lost)
    scenario.run(3000)
    assert scenario.node(lost).role is Role.OBSERVER
    assert lost.replica.log == leader.replica.log
    assert scenario.leader is leader


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_committed_before_every_voter_has_the_first_voter_set(seed: int) -> None:
    scenario = Scenario(seed)
    one, two, three = scenario.machines
    scenario.start(one, two)
    scenario.run(5000)
    assert scenario.node(scenario.leader).high_watermark is None
    scenario.append()
    scenario.run(100)
    assert not scenario.env.facts.committed
    scenario.start(three)
    scenario.settle()


@pytest.mark.parametrize("seed", range(20))
def test_a_disk_replaced_during_bootstrap_takes_the_place_of_the_lost_one(seed: int) -> None:
    scenario = Scenario(seed)
    one, two, three = scenario.machines
    scenario.start(one, two)
    scenario.run(2000)
    scenario.start(three)
    scenario.run(scenario.random.randint(0, 6))
    scenario.kill(three)
    assert not scenario.env.facts.committed
    lost = three.replica.key
    three.note_damaged()
    three.replace_disk()
    scenario.run(3000)
    scenario.start(three)
    scenario.settle()
    keys = scenario.node(scenario.leader).voters.keys
    assert three.replica.key in keys
    assert lost not in keys
