"""Last of all, in some seeds: an older copy of a directory must be noticed.

Either it replaces the directory, or it is started elsewhere while the node runs on. No quorum can be safe
from that, so nothing else is checked any more. A copy whose log may name one voter only is left alone: it
would be a quorum of its own.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from quorumd.raft.replica_progress import log_regression
from quorumd.raft.types import ReplicaKey
from simulation.cluster import Cluster
from simulation.faults.chaos import Chaos
from simulation.history.replica import Replica
from simulation.history.voter_history import Keys, VoterHistory
from simulation.machines.disk import Snapshot
from simulation.machines.machine import FirstVoter, Machine
from simulation.recovery import settle
from simulation.scheduler import MS, SECOND
from simulation.violation import Violation


class DiskCopy(NamedTuple):
    """The files of a machine at some moment.

    `end_offset` is where the log in them ends at most, as not all need be synced, and `voters` are the
    sets that it may name last.
    """

    key: ReplicaKey
    end_offset: int
    voters: set[Keys]
    files: Snapshot


def copy_disks(cluster: Cluster) -> dict[str, DiskCopy]:
    """Of every machine, by its name."""
    return {
        machine.host: DiskCopy(
            machine.replica.key,
            machine.replica.end_offset,
            _voters(cluster.env.facts.voters, machine.replica),
            machine.disk.snapshot(),
        )
        for machine in cluster.machines
    }


def _voters(history: VoterHistory, replica: Replica) -> set[Keys]:
    """Every set that a log may name last whose latest changes may be on disk, or not."""
    unsynced = history.named.keys() & (set(replica.log) - set(replica.synced))
    named = {history.named[batch].keys for batch in unsynced}
    return {history.last_in(replica.synced), history.last_in(replica.log), *named}


def start_from_stale_disk(chaos: Chaos, copies: dict[str, DiskCopy]) -> None:
    """Raises Violation if no node reports it."""
    random = Random(f"{chaos.env.seed}/copy")
    kind = random.choice(["none", "none", "rollback", "clone"])
    if kind == "none":
        return
    # Only the leader knows how far a replica was: nothing may change that any more.
    settle(chaos)
    leader = chaos.cluster.leader_machine()
    if leader is None:
        return
    # Another disk under the leader's id does not follow it.
    others = [machine for machine in chaos.machines if machine.id != leader.id]
    if not others:
        return
    victim = random.choice(others)
    copy = copies[victim.host]
    # Records synced a moment ago, and not acknowledged yet, cannot be missed.
    acknowledged = _acknowledged(leader, victim.replica.key)
    if copy.end_offset >= acknowledged or copy.key != victim.replica.key:
        return
    if any(len(keys) == 1 for keys in copy.voters):
        return
    chaos.env.observer.is_watching = False
    victim.count(kind)
    victim.is_damaged = True
    machine = victim
    if kind == "rollback":
        victim.is_wanted = False
        victim.end_process("its directory is rolled back")
    else:
        machine = Machine(
            chaos.env, chaos.cluster.address_map, "clone", victim.config, random, FirstVoter()
        )
        machine.replica = Replica(
            victim.replica.key, chaos.facts.committed_below, chaos.facts.voters.note
        )
        machine.is_damaged = True
        chaos.cluster.add_machine(machine)
    machine.disk.restore(copy.files)
    machine.start()
    end_us = chaos.scheduler.now_us + 10 * SECOND
    while not _is_noticed(chaos, victim.replica.key, machine):
        if chaos.scheduler.now_us >= end_us:
            raise Violation(
                "an old copy of a directory is noticed",
                f"{kind} of {victim.replica.key} from {acknowledged} to"
                f" {copy.end_offset}: no node has reported it within 10 s",
            )
        chaos.scheduler.run_until(chaos.scheduler.now_us + 20 * MS)


def _acknowledged(leader: Machine, key: ReplicaKey) -> int:
    """The end of what this leader knows a replica to have on disk, -1 if nothing."""
    if leader.process is None:
        return -1
    rows = leader.process.node.progress()
    return next((row.end_offset for row in rows if row.key == key), -1)


def _is_noticed(chaos: Chaos, key: ReplicaKey, machine: Machine) -> bool:
    """True if it refused to start, or a node reports that it went back."""
    report = log_regression(key, 0, 0).partition(" from offset ")[0]
    return machine.process is None or any(report in said for said in chaos.env.observer.reports)
