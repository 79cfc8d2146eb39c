"""Voters that come and go while nothing else goes wrong, or the one thing that the script says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quorumd.raft.roles import Role
from quorumd.storage.meta_properties import load_meta_properties
from simulation.clients.operator import DONE
from simulation.history.voter_change_requests import VoterChangeKind
from simulation.machines.machine import Machine
from simulation.machines.node_process import STORAGE
from simulation.scenario import Scenario, settings_of

pytestmark = pytest.mark.sim

ADD, REMOVE = VoterChangeKind.ADD, VoterChangeKind.REMOVE
REASSIGN, TRANSFER = VoterChangeKind.REASSIGN, VoterChangeKind.TRANSFER


def dynamic(seed: int, *, auto_join: bool = False) -> Scenario:
    """A quorum whose three voters are not a matter of configuration, with three observers."""
    settings = settings_of(3, 3, is_dynamic=True, auto_join=auto_join)
    scenario = Scenario(seed, settings)
    scenario.start()
    scenario.settle()
    return scenario


def ids(scenario: Scenario) -> list[int]:
    """Of the committed voters."""
    return [key.id for key in scenario.voters()]


def was_removed(machine: Machine) -> bool:
    """Whether its directory says so."""
    return load_meta_properties(machine.disk, STORAGE).removed


@pytest.mark.parametrize("seed", range(10))
def test_an_observer_becomes_a_voter_and_one_again(seed: int) -> None:
    scenario = dynamic(seed)
    machine = scenario.machine(4)
    key = machine.replica.key
    assert scenario.outcome(scenario.request(ADD, key)) == DONE
    assert ids(scenario) == [1, 2, 3, 4]
    assert scenario.refusal(ADD, key) == "DUPLICATE_VOTER"
    assert scenario.outcome(scenario.request(REMOVE, key)) == DONE
    assert scenario.refusal(REMOVE, key) == "VOTER_NOT_FOUND"
    scenario.settle()
    assert ids(scenario) == [1, 2, 3]
    assert was_removed(machine)
    scenario.check_end()


@pytest.mark.parametrize("seed", range(10))
def test_a_leader_removes_itself_and_another_one_takes_over(seed: int) -> None:
    scenario = dynamic(seed)
    leader = scenario.leader
    assert scenario.outcome(scenario.request(REMOVE, leader.replica.key)) == DONE
    scenario.settle()
    assert leader.replica.key not in scenario.voters()
    assert scenario.leader is not leader
    scenario.check_end()


@pytest.mark.parametrize("seed", range(10))
def test_all_voters_are_replaced_under_load(seed: int) -> None:
    scenario = dynamic(seed)
    assert scenario.outcome(scenario.request(REASSIGN, target=(4, 5, 6))) == DONE
    for _ in range(200):
        if scenario.cluster.leader_machine() is not None:
            scenario.append()
        scenario.run(20)
    scenario.settle()
    assert ids(scenario) == [4, 5, 6]
    assert scenario.env.facts.voters.target is None
    scenario.check_end()


@pytest.mark.parametrize("seed", range(10))
def test_a_reassignment_survives_the_death_of_every_leader(seed: int) -> None:
    scenario = dynamic(seed)
    assert scenario.outcome(scenario.request(REASSIGN, target=(3, 4, 5))) == DONE
    for _ in range(12):
        scenario.run(scenario.random.randint(1, 60))
        leader = scenario.cluster.leader_machine()
        if leader is not None:
            scenario.kill(leader)
            scenario.run(scenario.random.randint(0, 400))
            scenario.start(leader)
    scenario.settle()
    scenario.run(5000, lambda: ids(scenario) == [3, 4, 5])
    assert ids(scenario) == [3, 4, 5], scenario.described()
    scenario.settle()
    scenario.check_end()


@pytest.mark.parametrize("seed", range(10))
def test_leadership_is_handed_to_the_voter_that_is_named(seed: int) -> None:
    scenario = dynamic(seed)
    leader = scenario.leader
    to = next(m for m in scenario.others(leader) if m.replica.key in scenario.voters())
    assert scenario.outcome(scenario.request(TRANSFER, to.replica.key)) == DONE
    taken_ms = scenario.run(1000, lambda: scenario.cluster.leader_machine() not in (leader, None))
    assert scenario.leader is to, scenario.described()
    assert taken_ms < 100
    scenario.settle()
    scenario.check_end()


@pytest.mark.parametrize("seed", range(10))
def test_a_lost_disk_is_replaced_without_a_hand(seed: int) -> None:
    scenario = dynamic(seed, auto_join=True)
    leader = scenario.leader
    machine = next(m for m in scenario.others(leader) if m.replica.key in scenario.voters())
    lost = machine.replica.key
    scenario.kill(machine)
    machine.note_damaged()
    machine.replace_disk()
    scenario.start(machine)
    scenario.run(30_000, lambda: lost not in scenario.voters())
    assert lost not in scenario.voters(), scenario.described()
    assert machine.replica.key in scenario.voters()
    scenario.settle()
    scenario.check_end()


@pytest.mark.parametrize("seed", range(5))
def test_a_voter_follows_a_leader_that_has_its_id_and_another_storage_id(seed: int) -> None:
    """Without the voter that is gone, the two of one id are needed for every commit (KIP-856)."""
    scenario = Scenario(seed, replace(settings_of(3, is_dynamic=True), twin=2))
    scenario.start()
    scenario.settle()
    first, second = (machine for machine in scenario.machines if machine.id == 2)
    while scenario.leader is first:
        scenario.resign(first)
        scenario.run(5000, lambda: scenario.cluster.leader_machine() not in (first, None))
    scenario.kill(first)
    scenario.run(5000)
    assert scenario.outcome(scenario.request(ADD, second.replica.key)) == DONE
    scenario.start(first)
    scenario.settle()
    assert ids(scenario) == [1, 2, 2, 3]
    assert scenario.outcome(scenario.request(TRANSFER, first.replica.key)) == DONE
    scenario.run(5000, lambda: scenario.cluster.leader_machine() is first and scenario.is_led())
    scenario.kill(scenario.machine(1))
    kept = scenario.append()
    scenario.run(1000)
    assert kept.offset is not None, scenario.described()
    assert scenario.leader is first
    assert scenario.node(second).role is Role.FOLLOWER
    scenario.settle()
    scenario.check_end()
