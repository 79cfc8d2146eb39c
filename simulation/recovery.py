"""When all faults have stopped, everything is well within a bound.

A leader is there, appends commit, all logs are the same, and what was asked for of the voter set is done:
a reassignment has reached its target, every voter is named where it is reached, and no witness leads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorumd.raft.node import RaftNode
from quorumd.raft.roles import Leader
from simulation.clients.client import Client
from simulation.machines.machine import Machine
from simulation.scheduler import MS, SECOND
from simulation.violation import Violation

if TYPE_CHECKING:
    from simulation.world import World

STEP_US = 500 * MS
"""What a step of a reassignment may take besides the timeouts."""
LOAD_US = 200 * MS
"""So long clients go on at least: what is judged here is the way back, under load."""
AFTERMATH_US = 5 * SECOND
"""What was late when the faults stopped has arrived by then."""


def recover(world: World) -> None:
    """Raises Violation if it takes too long."""
    settings = world.settings
    timeouts_ms = (
        settings.fetch_timeout_ms + 2 * settings.election_timeout_ms + settings.request_timeout_ms
    )
    begin_us = world.scheduler.now_us
    bound_us = begin_us + 15 * SECOND + 6 * timeouts_ms * MS
    if settings.is_dynamic:
        bound_us += 2 * len(world.machines) * STEP_US
    world.scheduler.call_later(AFTERMATH_US, world.be_calm)
    probe = world.add_probe()
    probe.start()
    world.run_until(begin_us + LOAD_US)
    while not any(append.client == probe.name for append in world.appends):
        world.run_until(world.scheduler.now_us + 50 * MS)
    clients: list[Client] = [*world.producers, *world.readers]
    for client in clients:
        client.is_stopping = True
    _wait_until_well(world, begin_us, bound_us)


def settle(world: World) -> None:
    """All that was late has arrived, and has had its effect. Raises Violation if that takes too long."""
    while not world.facts.is_undisturbed:
        world.run_until(world.scheduler.now_us + 20 * MS)
    begin_us = world.scheduler.now_us
    _wait_until_well(world, begin_us, begin_us + 15 * SECOND)


def _wait_until_well(world: World, begin_us: int, bound_us: int) -> None:
    while not is_well(world):
        if world.scheduler.now_us >= bound_us:
            raise Violation("liveness", _what_is_not_well(world, (bound_us - begin_us) / SECOND))
        world.run_until(world.scheduler.now_us + 20 * MS)


def is_well(world: World) -> bool:
    """Who has the leader's id, and another disk, has to wait until somebody else leads."""
    leader = world.leader_machine()
    if leader is None or leader.process is None:
        return False
    if any(a.is_idempotent and a.offset is None for a in world.appends):
        return False
    if any(operator.is_busy for operator in world.operators):
        return False
    if leader.process.partition.view.pending_changes():
        return False
    node = leader.process.partition.node
    end_offset = node.core.log.end_offset
    return (
        node.high_watermark == end_offset
        and not _membership_problem(world, node)
        and all(
            machine.process is not None
            and machine.process.partition.node.high_watermark == end_offset
            and machine.replica.log == leader.replica.log
            for machine in world.machines
            if machine is leader or machine.id != leader.id
        )
    )


def _membership_problem(world: World, leader: RaftNode) -> str:
    """What is not as it was wanted; empty if nothing."""
    target = leader.core.electorate.entry.record.target
    if target is not None:
        return f"a reassignment to {target} is under way"
    if leader.config.is_witness and _could_lead(world):
        return "a witness leads"
    misplaced = [
        machine.host for machine in world.machines if world.address_map.is_misplaced(machine)
    ]
    if misplaced:
        return f"{', '.join(misplaced)} cannot be reached where the voter set says"
    return ""


def _could_lead(world: World) -> list[Machine]:
    """Voters that are no witnesses."""
    return [m for m in world.machines if world.is_voter(m) and not m.config.quorum_witness]


def _what_is_not_well(world: World, seconds: float) -> str:
    rows = []
    for machine in world.machines:
        if machine.process is None:
            rows.append(f"{machine.host} is down")
            continue
        node = machine.process.partition.node
        rows.append(
            f"{machine.replica.key}: {node.role} of epoch {node.epoch}, leader {node.leader},"
            f" log end {node.core.log.end_offset}, high watermark {node.high_watermark},"
            f" voters {', '.join(map(str, node.voters.keys))};"
            f" {'; '.join(machine.process.partition.problems()) or 'no problem'}"
        )
        if isinstance(node.core.state, Leader) and (problem := _membership_problem(world, node)):
            pending = machine.process.partition.view.pending_changes()
            waits_for = "; ".join(
                f"{change.kind} waits for {change.waits_for}" for change in pending
            )
            rows.append(f"    {problem}. {waits_for}")
    waiting = [a.client for a in world.appends if a.is_idempotent and a.offset is None]
    waiting += [operator.name for operator in world.operators if operator.is_busy]
    return (
        f"not well {seconds:.0f} s after all faults have stopped; waiting: {waiting}\n    "
        + "\n    ".join(rows)
    )
