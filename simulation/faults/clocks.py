"""Clocks that drift, are set, or jump."""

from __future__ import annotations

from random import Random

from simulation.faults.chaos import Chaos
from simulation.faults.registry import Faults
from simulation.scheduler import MS, SECOND

FAULTS = Faults()


@FAULTS.fault("clock drift")
def clock_drift(chaos: Chaos, random: Random) -> None:
    """A clock runs too fast or too slowly for a while."""
    victim = chaos.victim(random)
    victim.count("clock drift")
    ppm = random.choice([500_000, 900_000, 999_000, 1_001_000, 1_100_000, 2_000_000])
    chaos.during(
        random,
        lambda: victim.clock.set_rate(ppm),
        lambda: victim.clock.set_rate(1_000_000),
    )


@FAULTS.fault("wall clock step")
def wall_clock_step(chaos: Chaos, random: Random) -> None:
    """The clock is set, back or forth, by up to half an hour."""
    victim = chaos.victim(random)
    victim.count("wall clock step")
    victim.clock.wall_offset_us = random.randrange(-1800, 1800) * SECOND


@FAULTS.fault("clock jump")
def clock_jump(chaos: Chaos, random: Random) -> None:
    """The machine was suspended: all of a sudden it is later."""
    victim = chaos.victim(random)
    victim.count("clock jump")
    victim.clock.jump(random.choice([100 * MS, SECOND, 10 * SECOND]))
