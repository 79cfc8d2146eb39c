"""The target of faults and operations, from the beginning of a run until all faults stop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random

from simulation.clients.operator import Operator
from simulation.cluster import Cluster
from simulation.history.replica import Replica
from simulation.history.risk import Risk
from simulation.history.voter_change_requests import VoterChangeRequest
from simulation.machines.machine import Machine
from simulation.machines.network import EDGES_US
from simulation.scheduler import MS, SECOND

EDGE_RATE = 0.3
"""So many of the faults and operations begin where a rule has its edge."""


def span_us(random: Random) -> int:
    """Time in µs that a fault lasts: mostly short, at times longer than any timeout."""
    return random.choice([50 * MS, 300 * MS, SECOND, 5 * SECOND]) * random.randint(50, 150) // 100


class Chaos:
    """See the module's docstring. Damage that no quorum can survive is kept out by `risk`."""

    def __init__(self, cluster: Cluster) -> None:
        env = cluster.env
        self.cluster = cluster
        self.env = env
        self.scheduler = env.scheduler
        self.network = env.network
        self.facts = env.facts
        self.machines = cluster.machines
        self.risk = Risk(env.facts, auto_join=env.settings.auto_join)
        self.operators: list[Operator] = []
        self.is_over = False
        self.on_next_change: Callable[[Machine], None] | None = None
        """Called once, with the machine whose leader appends a voter set next."""
        env.observer.on_voters_appended = self._on_voters_appended

    def stop(self) -> None:
        """All faults stop, and operators finish. Machines keep what was done to them."""
        self.is_over = True
        self.env.trace.note("faults", "all stop")
        self.network.heal()
        self.on_next_change = None
        for operator in self.operators:
            operator.is_stopping = True
        for machine in self.machines:
            machine.heal()

    # -- for faults

    def later(self, delay_us: int, go_on: Callable[[], None]) -> None:
        """Go on with a fault, unless all have stopped by then."""
        self.scheduler.call_later(delay_us, lambda: None if self.is_over else go_on())

    def during(self, random: Random, begin: Callable[[], None], end: Callable[[], None]) -> None:
        """Begin now, and end after some time, also if all faults have stopped by then."""
        begin()
        self.scheduler.call_later(span_us(random), end)

    def victim(self, random: Random) -> Machine:
        """A machine that runs, if any does, the leader's more often than others."""
        leader = self.cluster.leader_machine()
        is_leader = random.random() < 0.4
        running = [machine for machine in self.machines if machine.process is not None]
        machine = random.choice(running or self.machines)
        return leader if is_leader and leader is not None else machine

    def edge_delay_us(self, random: Random) -> int:
        """Time in µs until just before, at, or just after a deadline of a node; mostly 0."""
        if random.random() >= EDGE_RATE:
            return 0
        deadline_us = self.victim(random).next_deadline_us()
        if deadline_us is None:
            return 0
        return max(0, deadline_us + random.choice(EDGES_US) - self.scheduler.now_us)

    def count_all(self, fault: str) -> None:
        """Note that a fault has hit all machines."""
        for machine in self.machines:
            machine.count(fault)

    def _on_voters_appended(self, leader: Replica) -> None:
        act, self.on_next_change = self.on_next_change, None
        machine = next((m for m in self.machines if m.replica is leader), None)
        if act is not None and machine is not None:
            # Not in the midst of the event that is observed.
            self.later(0, partial(act, machine))

    # -- for operations

    def begin_operation(
        self, operation: str, requests: Sequence[VoterChangeRequest], random: Random
    ) -> None:
        """An operator begins to ask for these, one after the other."""
        name = f"operator{len(self.operators)}"
        operator = Operator(self.cluster, self.risk, name, random, operation, requests)
        self.operators.append(operator)
        operator.start()
