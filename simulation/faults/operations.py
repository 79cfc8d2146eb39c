"""Operations of operators, by name: each begins at a moment of the schedule, as faults do.

An operation is skipped if no node fits, or if it could leave the quorum without a
majority: `simulation.history.risk`.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from simulation.faults.chaos import Chaos
from simulation.faults.registry import Act
from simulation.history.voter_change_requests import VoterChangeKind, VoterChangeRequest
from simulation.machines.machine import Machine
from simulation.scheduler import MS, SECOND

OPERATIONS: dict[str, Act] = {}
"""In the order in which they are defined."""


def _operation(name: str) -> Callable[[Callable[[Chaos, Random], list[VoterChangeRequest]]], Act]:
    """Registers what returns the requests of an operator; none: there is nothing to do."""

    def register(act: Callable[[Chaos, Random], list[VoterChangeRequest]]) -> Act:
        def begin(chaos: Chaos, random: Random) -> None:
            requests = act(chaos, random)
            if requests:
                chaos.begin_operation(name, requests, random)

        OPERATIONS[name] = begin
        return begin

    return register


def _voters(chaos: Chaos) -> list[Machine]:
    """Machines whose replicas vote by the set that was committed last."""
    return [machine for machine in chaos.machines if chaos.cluster.is_voter(machine)]


@_operation("add voter")
def add_voter(chaos: Chaos, random: Random) -> list[VoterChangeRequest]:
    """An observer becomes a voter."""
    voters = _voters(chaos)
    others = [machine for machine in chaos.machines if machine not in voters]
    return (
        [VoterChangeRequest(VoterChangeKind.ADD, random.choice(others).replica.key)]
        if others
        else []
    )


@_operation("remove voter")
def remove_voter(chaos: Chaos, random: Random) -> list[VoterChangeRequest]:
    """Any voter; often one that is gone for good, or by mistake the one that has taken its place."""
    keys, lost = chaos.facts.voters.current, chaos.facts.excused
    gone = [key for key in keys if key in lost]
    heirs = [key for key in keys if key not in lost and key.id in {old.id for old in gone}]
    chosen = heirs if heirs and random.random() < 0.7 else random.choice([keys, gone or keys])
    return [VoterChangeRequest(VoterChangeKind.REMOVE, random.choice(chosen))]


@_operation("remove leader")
def remove_leader(chaos: Chaos, random: Random) -> list[VoterChangeRequest]:
    """The leader is removed from the voters."""
    leader = chaos.cluster.leader_machine()
    return (
        [] if leader is None else [VoterChangeRequest(VoterChangeKind.REMOVE, leader.replica.key)]
    )


@_operation("replace voter")
def replace_voter(chaos: Chaos, random: Random) -> list[VoterChangeRequest]:
    """A voter loses its disk, and another one takes its place under the same id; or, by mistake, the new
    one is removed again instead of the old one."""
    current = chaos.facts.voters.current
    lost = [key for key in current if key in chaos.facts.excused]
    voters = [m for m in _voters(chaos) if chaos.risk.may_lose(m.replica.key)]
    if not lost and voters:
        victim = random.choice(voters)
        lost = [victim.replica.key]
        victim.lose_disk()
    if not lost:
        return []
    old = random.choice(lost)
    machine = next(machine for machine in chaos.machines if machine.id == old.id)
    new = machine.replica.key
    return [
        VoterChangeRequest(VoterChangeKind.ADD, new),
        VoterChangeRequest(VoterChangeKind.REMOVE, new if random.random() < 0.3 else old),
    ]


def _target(chaos: Chaos, random: Random) -> tuple[int, ...]:
    """Ids that can vote: under that of a twin it is not clear which of the two is meant.

    A witness alone is no useful quorum.
    """
    settings = chaos.env.settings
    if not settings.is_dynamic:
        return tuple(range(1, settings.voters + 1))
    ids = [node_id for node_id in settings.node_ids if node_id != settings.twin]
    target = random.sample(ids, random.randint(1, len(ids))) if ids else []
    return () if target == [settings.witness] else tuple(sorted(target))


@_operation("reassign")
def reassign(chaos: Chaos, random: Random) -> list[VoterChangeRequest]:
    """The voters become those with drawn ids."""
    target = _target(chaos, random)
    return [VoterChangeRequest(VoterChangeKind.REASSIGN, target=target)] if target else []


@_operation("reassign otherwise")
def reassign_otherwise(chaos: Chaos, random: Random) -> list[VoterChangeRequest]:
    """A reassignment that is replaced by another one, or cancelled, while it is under way."""
    target = _target(chaos, random)
    if not target:
        return []
    then = None if random.random() < 0.5 else _target(chaos, random) or None
    pause_us = random.randrange(random.choice([20 * MS, 200 * MS, SECOND]))
    return [
        VoterChangeRequest(VoterChangeKind.REASSIGN, target=target),
        VoterChangeRequest(VoterChangeKind.REASSIGN, target=then, pause_us=pause_us),
    ]


@_operation("transfer leader")
def transfer_leader(chaos: Chaos, random: Random) -> list[VoterChangeRequest]:
    """Leadership is handed to a voter, or to any."""
    keys = chaos.facts.voters.current
    return [
        VoterChangeRequest(
            VoterChangeKind.TRANSFER, random.choice(keys) if random.random() < 0.7 else None
        )
    ]


def _move(chaos: Chaos, random: Random) -> None:
    """A node is reached elsewhere after a restart."""
    movable = {f"node{node_id}" for node_id in chaos.env.settings.movers}
    machines = [machine for machine in chaos.machines if machine.host in movable]
    if machines and chaos.facts.voters.committed:
        machine = random.choice(machines)
        machine.count("move")
        chaos.facts.is_undisturbed = False
        chaos.cluster.address_map.move(machine)


OPERATIONS["move"] = _move
