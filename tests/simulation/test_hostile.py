"""A client that nobody has recognised, and a quorum that is well or loses its leader: seed after seed."""

from __future__ import annotations

from random import Random

import pytest

from simulation.faults.chaos import Chaos
from simulation.faults.hostile import send_forged
from simulation.scenario import Scenario, settings_of

pytestmark = pytest.mark.sim


def established(seed: int) -> tuple[Scenario, Chaos]:
    scenario = Scenario(seed, settings_of(3))
    scenario.start()
    scenario.settle()
    scenario.append()
    scenario.run(50)
    return scenario, Chaos(scenario.cluster)


@pytest.mark.parametrize("seed", range(20))
def test_no_forged_frame_ends_the_term_of_a_leader_that_all_reach(seed: int) -> None:
    scenario, chaos = established(seed)
    leader, random = scenario.leader, Random(seed)
    epoch = scenario.node(leader).epoch
    for _ in range(500):
        send_forged(chaos, random, random.choice(scenario.machines))
        scenario.run(random.choice([0, 1, 10]))
    assert {scenario.node(machine).epoch for machine in scenario.machines} == {epoch}
    assert scenario.leader is leader
    kept = scenario.append()
    scenario.run(100)
    assert kept.offset is not None


@pytest.mark.parametrize("seed", range(20))
def test_a_follower_that_restarts_meanwhile_brings_no_forged_epoch_along(seed: int) -> None:
    scenario, chaos = established(seed)
    leader, random = scenario.leader, Random(seed)
    epoch = scenario.node(leader).epoch
    follower = scenario.others(leader)[0]
    scenario.kill(follower)
    scenario.start(follower)
    for _ in range(300):
        send_forged(chaos, random, follower)
        scenario.run(random.choice([0, 1]))
    scenario.settle()
    assert {scenario.node(machine).epoch for machine in scenario.machines} == {epoch}
    assert scenario.leader is leader


@pytest.mark.parametrize("seed", range(20))
def test_forged_frames_keep_no_quorum_from_a_new_leader(seed: int) -> None:
    scenario, chaos = established(seed)
    leader, random = scenario.leader, Random(seed)
    epoch = scenario.node(leader).epoch
    scenario.kill(leader)
    for _ in range(300):
        send_forged(chaos, random, random.choice(scenario.others(leader)))
        scenario.run(random.choice([0, 1]))
    assert scenario.run(3000, lambda: scenario.is_led(epoch)) < 3000
    scenario.start(leader)
    scenario.settle()
    scenario.check_end()
