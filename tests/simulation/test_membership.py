"""What the simulator lets happen to voters, how it finds machines that move, and what it draws."""

from __future__ import annotations

from uuid import UUID

import pytest

from quorumd.config.model import Config
from quorumd.raft.types import ReplicaKey
from simulation.draw import draw_settings
from simulation.faults import FAULTS
from simulation.faults.operations import OPERATIONS
from simulation.history.facts import Facts
from simulation.history.risk import Risk
from simulation.history.voter_change_requests import VoterChangeKind, VoterChangeRequest
from simulation.options import Options
from simulation.scheduler import SECOND
from simulation.settings import moved
from simulation.world import World
from tests.simulation.sight import A, B, C, D, Sight, batch

E = ReplicaKey(5, UUID(int=5))
C2 = ReplicaKey(C.id, UUID(int=33))


def risk_of(*voters: ReplicaKey, auto_join: bool = False) -> tuple[Risk, Facts]:
    """Of a quorum with these voters, committed; all five replicas are there."""
    sight = Sight()
    for key in (A, B, C, D, E):
        sight.replica(key)
    sight.name(batch(0), *voters)
    sight.write(batch(1))
    sight.commit(batch(0), batch(1))
    return Risk(sight.facts, auto_join=auto_join), sight.facts


# -- what a quorum survives


def test_a_minority_of_the_voters_may_lose_its_data() -> None:
    risk, facts = risk_of(A, B, C)
    assert risk.may_lose(A)
    facts.excused.add(A)
    assert not risk.may_lose(B)
    assert risk.may_lose(A)
    assert risk.may_lose(D)


def test_one_of_two_must_not_be_lost() -> None:
    risk, _ = risk_of(A, B)
    assert not risk.may_lose(A)


def test_a_set_that_is_not_committed_counts_as_well() -> None:
    sight = Sight()
    sight.name(batch(0), A, B, C)
    sight.commit(batch(0))
    risk = Risk(sight.facts)
    assert risk.may_lose(A)
    sight.name(batch(1), A, B)
    assert not risk.may_lose(A)
    sight.commit(batch(1, epoch=2))
    assert risk.may_lose(A)


def test_a_living_voter_is_not_removed_if_the_rest_would_stand_still() -> None:
    risk, facts = risk_of(A, B, C)
    assert risk.may_request(VoterChangeRequest(VoterChangeKind.REMOVE, A))
    facts.excused.add(C)
    assert not risk.may_request(VoterChangeRequest(VoterChangeKind.REMOVE, A))
    assert risk.may_request(VoterChangeRequest(VoterChangeKind.REMOVE, C))


def test_what_was_asked_for_counts_until_it_is_over() -> None:
    risk, facts = risk_of(A, B, C)
    request = VoterChangeRequest(VoterChangeKind.REMOVE, A, sent=1)
    facts.change_requests.append(request)
    assert not risk.may_lose(B)
    request.responses, request.outcome = 1, "refused"
    assert risk.may_lose(B)
    request.sent = 2
    assert not risk.may_lose(B)


def test_who_is_about_to_be_added_must_not_be_lost() -> None:
    risk, facts = risk_of(A, B)
    assert risk.may_lose(D)
    facts.change_requests.append(VoterChangeRequest(VoterChangeKind.ADD, D))
    assert not risk.may_lose(D)


def test_a_reassignment_counts_as_the_smaller_of_both_sets() -> None:
    risk, facts = risk_of(A, B, C)
    assert risk.may_request(VoterChangeRequest(VoterChangeKind.REASSIGN, target=(4, 5)))
    facts.excused.add(B)
    assert not risk.may_request(VoterChangeRequest(VoterChangeKind.REASSIGN, target=(4, 5)))
    assert risk.may_request(VoterChangeRequest(VoterChangeKind.REASSIGN, target=(1, 3, 4)))
    facts.change_requests.append(VoterChangeRequest(VoterChangeKind.REASSIGN, target=(1, 3, 4)))
    assert not risk.may_lose(D)
    assert risk.may_lose(E)


def test_who_joins_by_itself_may_remove_the_other_of_its_id() -> None:
    for auto_join in (False, True):
        risk, _ = risk_of(A, C, C2, auto_join=auto_join)
        assert risk.may_lose(A) is not auto_join


def test_a_voter_that_may_be_removed_twice_over_must_not_be_lost() -> None:
    """By an operator, and by the other disk of its id: the estimate gets no worse if it is lost."""
    risk, facts = risk_of(A, C, auto_join=True)
    facts.replicas[C2] = facts.replicas[D]
    facts.change_requests.append(VoterChangeRequest(VoterChangeKind.REMOVE, C))
    assert not risk.may_lose(C)


# -- machines that move


@pytest.mark.long
def test_a_machine_that_has_moved_is_found_under_its_new_name_only() -> None:
    world = next(
        world
        for world in (World(seed, Options(faults=())) for seed in range(1, 100))
        if world.settings.is_dynamic and world.settings.voters > 2 and world.settings.movers
    )
    cluster, scheduler = world.cluster, world.env.scheduler
    for machine in cluster.machines:
        machine.start()
    scheduler.run_until(10 * SECOND)
    address_map = cluster.address_map
    movable = [f"node{node_id}" for node_id in world.settings.movers]
    machine = next(m for m in cluster.machines if m.host in movable and cluster.is_voter(m))
    before = machine.address
    assert address_map.listening_at(before) is machine.process
    address_map.move(machine)
    machine.start()
    assert machine.address == moved(before)
    assert moved(machine.address) == before
    assert address_map.listening_at(before) is None
    assert address_map.listening_at(machine.address) is machine.process
    assert address_map.host_at(before) == address_map.host_at(machine.address) == machine.host
    assert address_map.is_misplaced(machine)
    scheduler.run_until(scheduler.now_us + 20 * SECOND)
    assert not address_map.is_misplaced(machine)


# -- what is drawn


def configs(seed: int) -> list[Config]:
    settings = draw_settings(seed)
    return [settings.config_of(site) for site in settings.sites]


def test_a_dynamic_quorum_is_configured_by_addresses_alone() -> None:
    seen = set()
    for seed in range(1, 100):
        settings = draw_settings(seed)
        seen.add(settings.is_dynamic)
        for config in configs(seed):
            assert bool(config.quorum_voters) is not settings.is_dynamic
            is_listed = config.node_id in {voter.id for voter in config.quorum_voters}
            assert is_listed or config.quorum_bootstrap_servers
            assert config.quorum_witness is (config.node_id == settings.witness)
    assert seen == {True, False}


def test_every_kind_of_run_is_drawn() -> None:
    drawn = [draw_settings(seed) for seed in range(1, 400)]
    dynamic = [settings for settings in drawn if settings.is_dynamic]
    assert {len(settings.node_ids) for settings in dynamic} == set(range(1, 8))
    assert set().union(*(settings.faults for settings in drawn)) == {*FAULTS, *OPERATIONS}
    for is_there in (
        [settings.auto_join for settings in dynamic],
        [settings.witness is not None for settings in drawn],
        [settings.twin is not None for settings in drawn],
    ):
        assert 0 < sum(is_there) < len(is_there)
    assert all(settings.witness is None or settings.witness != settings.twin for settings in drawn)


@pytest.mark.parametrize("seed", range(1, 6))
def test_operations_are_drawn_apart_from_everything_else(seed: int) -> None:
    """So that to choose some changes nothing but the schedule."""
    some = draw_settings(seed, ["add voter", "kill"])
    assert set(some.faults) == {"add voter", "kill"}
    assert some.sites == draw_settings(seed).sites
    assert some.witness == draw_settings(seed).witness
