"""When all faults have stopped, everything is well within a bound.

A leader is there, appends commit, all logs are the same, and what was asked for of the voter set is done:
a reassignment has reached its target, every voter is named where it is reached, and no witness leads.
"""

from __future__ import annotations

from functools import partial
from random import Random

from quorumd.raft.node import RaftNode
from quorumd.raft.roles import Leader, Role
from simulation.clients.workload import Workload
from simulation.faults.chaos import Chaos
from simulation.history.voter_change_requests import VoterChangeKind, VoterChangeRequest
from simulation.machines.machine import Machine
from simulation.scheduler import MS, SECOND
from simulation.violation import Violation

STEP_US = 500 * MS
"""Time that a step of a reassignment may take besides the timeouts."""
LOAD_US = 200 * MS
"""So long clients go on at least: what is judged here is the way back, under load."""
AFTERMATH_US = 5 * SECOND
"""Time after the end of the faults by which everything late has arrived."""


def recover(chaos: Chaos, workload: Workload) -> None:
    """Raises Violation if it takes too long."""
    scheduler, settings = chaos.scheduler, chaos.env.settings
    timeouts_ms = (
        settings.fetch_timeout_ms + 2 * settings.election_timeout_ms + settings.request_timeout_ms
    )
    begin_us = scheduler.now_us
    bound_us = begin_us + 15 * SECOND + 6 * timeouts_ms * MS
    if settings.is_dynamic:
        bound_us += 2 * len(chaos.machines) * STEP_US
    scheduler.call_later(AFTERMATH_US, partial(_end_aftermath, chaos))
    probe = workload.add_probe()
    probe.start()
    scheduler.run_until(begin_us + LOAD_US)
    while not any(append.client == probe.name for append in chaos.facts.appends):
        scheduler.run_until(scheduler.now_us + 50 * MS)
    for client in workload.clients:
        client.is_stopping = True
    _wait_until_well(chaos, begin_us, bound_us)


def _end_aftermath(chaos: Chaos) -> None:
    """Nothing that has happened has any effect any more, unless a call of a disk still hangs."""
    hangs_us = max(machine.hangs_until_us for machine in chaos.machines) - chaos.scheduler.now_us
    if hangs_us > 0:
        chaos.scheduler.call_later(hangs_us + AFTERMATH_US, partial(_end_aftermath, chaos))
    else:
        chaos.facts.is_undisturbed = True


def settle(chaos: Chaos) -> None:
    """All that was late has arrived, and has had its effect. Raises Violation if that takes too long."""
    while not chaos.facts.is_undisturbed:
        chaos.scheduler.run_until(chaos.scheduler.now_us + 20 * MS)
    begin_us = chaos.scheduler.now_us
    _wait_until_well(chaos, begin_us, begin_us + 15 * SECOND)


def _wait_until_well(chaos: Chaos, begin_us: int, bound_us: int) -> None:
    advice_us = (begin_us + bound_us) // 2
    while not is_well(chaos):
        if chaos.scheduler.now_us >= advice_us:
            advice_us = bound_us
            _follow_advice(chaos)
        if chaos.scheduler.now_us >= bound_us:
            raise Violation("liveness", _what_is_not_well(chaos, (bound_us - begin_us) / SECOND))
        chaos.scheduler.run_until(chaos.scheduler.now_us + 20 * MS)


def _follow_advice(chaos: Chaos) -> None:
    """An operator does what an observer says that has heard of an epoch which the quorum does not know.

    Whatever told it of that epoch has lost its disk since, or has lied.
    """
    leader = chaos.cluster.leader_machine()
    if leader is None or leader.process is None:
        return
    nodes = [machine.process.node for machine in chaos.machines if machine.process is not None]
    ahead = [
        node.epoch
        for node in nodes
        if node.role is Role.OBSERVER and node.status().older_epoch is not None
    ]
    missing = max(ahead, default=0) - leader.process.node.epoch
    requests = [VoterChangeRequest(VoterChangeKind.TRANSFER) for _ in range(missing)]
    if requests:
        random = Random(f"{chaos.env.settings.voters}/advice")
        chaos.begin_operation("transfer leader", requests, random)


def is_well(chaos: Chaos) -> bool:
    """True if a leader is there, and every machine has all of its log."""
    leader = chaos.cluster.leader_machine()
    if leader is None or leader.process is None:
        return False
    if any(append.is_awaited for append in chaos.facts.appends):
        return False
    if any(operator.is_busy for operator in chaos.operators):
        return False
    if leader.process.partition.view.pending_changes():
        return False
    node = leader.process.node
    end_offset = node.core.log.end_offset
    return (
        node.high_watermark == end_offset
        and not _membership_problem(chaos, node)
        and all(
            machine.process is not None
            and machine.process.node.high_watermark == end_offset
            and machine.replica.log == leader.replica.log
            for machine in chaos.machines
        )
    )


def _membership_problem(chaos: Chaos, leader: RaftNode) -> str:
    """Difference of the membership from what was wanted; empty if there is none."""
    target = leader.core.electorate.entry.record.target
    if target is not None:
        return f"a reassignment to {target} is under way"
    if leader.config.is_witness and _could_lead(chaos):
        return "a witness leads"
    misplaced = [
        machine.host
        for machine in chaos.machines
        if chaos.cluster.address_map.is_misplaced(machine)
    ]
    if misplaced:
        return f"{', '.join(misplaced)} cannot be reached where the voter set says"
    return ""


def _could_lead(chaos: Chaos) -> list[Machine]:
    """Voters that are no witnesses."""
    return [m for m in chaos.machines if chaos.cluster.is_voter(m) and not m.config.quorum_witness]


def _what_is_not_well(chaos: Chaos, seconds: float) -> str:
    rows = []
    for machine in chaos.machines:
        if machine.process is None:
            rows.append(f"{machine.host} is down")
            continue
        node = machine.process.node
        rows.append(
            f"{machine.replica.key}: {node.role} of epoch {node.epoch}, leader {node.leader},"
            f" log end {node.core.log.end_offset}, high watermark {node.high_watermark},"
            f" voters {', '.join(map(str, node.voters.keys))};"
            f" {'; '.join(machine.process.partition.health.problems()) or 'no problem'}"
        )
        if isinstance(node.core.state, Leader) and (problem := _membership_problem(chaos, node)):
            pending = machine.process.partition.view.pending_changes()
            waits_for = "; ".join(
                f"{change.kind} waits for {change.waits_for}" for change in pending
            )
            rows.append(f"    {problem}. {waits_for}")
    waiting = [append.client for append in chaos.facts.appends if append.is_awaited]
    waiting += [operator.name for operator in chaos.operators if operator.is_busy]
    return (
        f"not well {seconds:.0f} s after all faults have stopped; waiting: {waiting}\n    "
        + "\n    ".join(rows)
    )
