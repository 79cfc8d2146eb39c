"""Links that stay broken one way: as long as some node could lead, one leads soon, and commits go on."""

from __future__ import annotations

from random import Random

import pytest

from simulation.machines.machine import Machine
from simulation.scenario import Scenario, settings_of

pytestmark = pytest.mark.sim

BOUND_MS = 8_000
"""Check quorum takes 3 s, a fetch timeout 2 s, and an election timeout up to 2 s."""


def established(seed: int, voters: int) -> Scenario:
    scenario = Scenario(seed, settings_of(voters))
    scenario.start()
    scenario.settle()
    return scenario


def longest_gap_ms(scenario: Scenario, ms: int) -> int:
    """How long nothing was committed while a client wrote to whoever led."""
    committed, longest, gap = len(scenario.env.facts.committed), 0, 0
    for _ in range(ms // 50):
        if scenario.cluster.leader_machine() is not None:
            scenario.append()
        scenario.run(50)
        former, committed = committed, len(scenario.env.facts.committed)
        gap = 0 if committed > former else gap + 50
        longest = max(longest, gap)
    return longest


@pytest.mark.parametrize("is_heard", [True, False])
@pytest.mark.parametrize("voters", [4, 6])
def test_a_leader_that_sends_but_is_hardly_fetched_from_is_not_elected_again_and_again(
    voters: int, is_heard: bool
) -> None:
    """Nobody but one follower reaches it; that one hears of it by its own fetches, or of elections, too."""
    for seed in range(2):
        scenario = established(seed, voters)
        leader = scenario.leader
        last, *others = scenario.others(leader)
        for other in others:
            scenario.env.network.shut_out(other.host, leader.host)
        if not is_heard:
            scenario.env.network.shut_out(leader.host, last.host)
        assert longest_gap_ms(scenario, 20_000) <= BOUND_MS
        assert scenario.leader is not leader
        scenario.settle()
        scenario.check_end()


@pytest.mark.parametrize("seed", range(12))
def test_a_majority_whose_links_are_sound_commits_whatever_is_broken_elsewhere(seed: int) -> None:
    random = Random(seed)
    voters = random.choice([4, 5, 6])
    scenario = established(seed, voters)
    sound = random.sample(scenario.machines, voters // 2 + 1)
    for source in scenario.machines:
        for target in scenario.machines:
            if source is not target and not {source, target} <= set(sound):
                _break(scenario, random, source, target)
    assert longest_gap_ms(scenario, 20_000) <= BOUND_MS
    scenario.settle()
    scenario.check_end()


def _break(scenario: Scenario, random: Random, source: Machine, target: Machine) -> None:
    """Perhaps: no message arrives any more, or no connection that the source opens."""
    match random.choice(["sound", "sound", "silent", "shut out"]):
        case "silent":
            scenario.env.network.cut([source.host], [target.host], "one way")
        case "shut out":
            scenario.env.network.shut_out(source.host, target.host)
