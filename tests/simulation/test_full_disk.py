"""A leader whose disk is full gives leadership away, and again where it is elected all the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quorumd.storage.directory import RESERVE_BYTES
from simulation.machines.machine import Machine
from simulation.scenario import Scenario, settings_of

pytestmark = pytest.mark.sim

SETTINGS = replace(settings_of(), segment_bytes=8192, batch_bytes_max=4096)
ROOM_BYTES = 400


def is_full(machine: Machine) -> bool:
    process = machine.process
    assert process is not None
    return process.partition.health.is_disk_full


def fill(scenario: Scenario, *machines: Machine) -> None:
    """What is reserved is room for small files alone; what was written ahead of time, for some records."""
    for machine in machines:
        machine.disk.capacity_bytes = machine.disk.used_bytes - RESERVE_BYTES + ROOM_BYTES
    for _ in range(50):
        for _ in range(8):  # more than there is room for, at once
            scenario.append()
        scenario.run(5, lambda: all(map(is_full, machines)))
        if all(map(is_full, machines)):
            return
    raise AssertionError("there is room still")


def newest_epoch(scenario: Scenario) -> int:
    return max(scenario.node(machine).epoch for machine in scenario.machines)


def is_elected(scenario: Scenario) -> bool:
    leader = scenario.cluster.leader_machine()
    return leader is not None and scenario.node(leader).epoch > 1


def is_led_by_one_with_space(scenario: Scenario) -> bool:
    return scenario.is_led(after_epoch=1) and not is_full(scenario.leader)


def test_a_node_whose_disk_is_full_does_not_stay_the_leader() -> None:
    """The others were away when it resigned, and hear of it when it asks for their votes again."""
    times, elected_full = [], 0
    for seed in range(80):
        scenario = Scenario(seed, SETTINGS)
        scenario.start()
        scenario.settle()
        full = scenario.leader
        fill(scenario, full)
        for other in scenario.others(full):
            other.pause(scenario.random.randint(2_000_000, 6_000_000))
        scenario.run(20_000, lambda s=scenario: is_elected(s))
        elected_full += scenario.leader is full and is_full(full)
        times.append(scenario.run(20_000, lambda s=scenario: is_led_by_one_with_space(s)))
        full.disk.capacity_bytes = None
        scenario.settle()
        scenario.check_end()
    assert elected_full > 5
    assert max(times) <= 5_000, sorted(times)


@pytest.mark.parametrize("full_count", [2, 3])
def test_where_a_majority_of_disks_is_full_there_is_no_election(full_count: int) -> None:
    for seed in range(8):
        scenario = Scenario(seed, SETTINGS)
        scenario.start()
        scenario.settle()
        full = scenario.random.sample(scenario.machines, full_count)
        fill(scenario, *full)
        # The first one that was full may have handed over to others that had space.
        scenario.run(5_000)
        leader = scenario.leader
        epoch = scenario.node(leader).epoch
        scenario.run(30_000)
        assert newest_epoch(scenario) == epoch, scenario.described()
        assert scenario.leader is leader
        assert scenario.node(leader).high_watermark is not None, "what is committed can be read"
        for machine in full:
            machine.disk.capacity_bytes = None
        scenario.run(5_000, lambda full=full: not any(map(is_full, full)))
        scenario.settle()
        assert scenario.leader is leader
        scenario.check_end()
