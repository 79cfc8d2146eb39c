"""Faults of messages: each changes the conditions of the network for a while."""

from __future__ import annotations

from random import Random

from simulation.faults.chaos import Chaos
from simulation.faults.registry import Faults
from simulation.scheduler import MS, SECOND

FAULTS = Faults()


def _condition(name: str, field: str, *shares: float) -> None:
    @FAULTS.fault(name)
    def act(chaos: Chaos, random: Random) -> None:
        share = random.choice(shares)
        network = chaos.network
        usual = getattr(type(network.conditions)(), field)

        def end() -> None:
            setattr(network.conditions, field, usual)

        chaos.during(random, lambda: setattr(network.conditions, field, share), end)


_condition("loss", "loss", 0.02, 0.1, 0.4)
_condition("reset", "reset", 0.02, 0.1, 0.3)
_condition("duplicate", "duplicate", 0.05, 0.3, 0.8)
_condition("partial frame", "partial", 0.05, 0.3)
_condition("at a deadline", "at_deadline", 0.05, 0.3)
_condition("damaged piece", "damage", 0.1, 0.5)


@FAULTS.fault("delay")
def delay(chaos: Chaos, random: Random) -> None:
    """Some messages take much longer for a while."""
    conditions = chaos.network.conditions
    conditions.delay_us = random.choice([5 * MS, 50 * MS, 500 * MS, 3 * SECOND])

    def begin() -> None:
        conditions.delay = random.choice([0.05, 0.3, 1.0])

    def end() -> None:
        conditions.delay = 0.0

    chaos.during(random, begin, end)


@FAULTS.fault("reorder")
def reorder(chaos: Chaos, random: Random) -> None:
    """Messages overtake each other for a while."""
    conditions = chaos.network.conditions

    def begin() -> None:
        conditions.reorder, conditions.latency_us = True, (100, random.choice([5 * MS, 100 * MS]))

    def end() -> None:
        conditions.reorder, conditions.latency_us = False, type(conditions)().latency_us

    chaos.during(random, begin, end)


@FAULTS.fault("silent deaths")
def silent_deaths(chaos: Chaos, random: Random) -> None:
    """Connections of dead processes are not reset for a while."""
    conditions = chaos.network.conditions
    chaos.count_all("silent deaths")

    def set_to(value: bool) -> None:
        conditions.silent_deaths = value

    chaos.during(random, lambda: set_to(True), lambda: set_to(False))
