"""Faults of disks: errors, damage, no space, no hurry; and a disk that is lost."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from simulation.faults.chaos import Chaos, span_us
from simulation.faults.registry import Faults
from simulation.machines.disk import SimDisk
from simulation.machines.machine import Machine
from simulation.scheduler import MS

FAULTS = Faults()


def _disk_error(name: str, field: str, call: str, *rates: float) -> None:
    """Once and then never again, or every now and then for a while."""

    @FAULTS.fault(name)
    def act(chaos: Chaos, random: Random) -> None:
        victim = chaos.victim(random)
        victim.count(name)
        victim.has_disk_errors = True
        if random.random() < 0.5:
            victim.disk.fail_next(call)
            return
        faults = victim.disk.faults
        rate = random.choice(rates)
        chaos.during(
            random,
            lambda: setattr(faults, field, rate),
            lambda: setattr(faults, field, 0.0),
        )


_disk_error("read error", "read_error", "pread", 0.05, 0.5)
_disk_error("write error", "write_error", "pwritev", 0.02, 0.2)
_disk_error("sync error", "sync_error", "fdatasync", 0.02, 0.2)


@FAULTS.fault("short write")
def short_write(chaos: Chaos, random: Random) -> None:
    """Some writes write only a part of their bytes for a while."""
    victim = chaos.victim(random)
    victim.count("short write")
    faults = victim.disk.faults

    def set_to(rate: float) -> None:
        faults.short_write = rate

    chaos.during(random, lambda: set_to(0.3), lambda: set_to(0.0))


@FAULTS.fault("full disk")
def full_disk(chaos: Chaos, random: Random) -> None:
    """The disk is full for a while."""
    victim = chaos.victim(random)
    disk = victim.disk

    def set_to(capacity_bytes: int | None) -> None:
        disk.capacity_bytes = capacity_bytes

    room = random.choice([0, 100, 5_000])
    chaos.during(random, lambda: set_to(disk.used_bytes + room), lambda: set_to(None))


@FAULTS.fault("slow disk")
def slow_disk(chaos: Chaos, random: Random) -> None:
    """Every sync takes longer for a while."""
    victim = chaos.victim(random)
    victim.count("slow disk")
    speed = victim.speed
    usual = type(speed)()

    def begin() -> None:
        speed.sync_us = (5 * MS, random.choice([20 * MS, 300 * MS]))

    def end() -> None:
        speed.sync_us = usual.sync_us

    chaos.during(random, begin, end)


@FAULTS.fault("stalled disk")
def stalled_disk(chaos: Chaos, random: Random) -> None:
    """The disk does nothing for a while."""
    victim = chaos.victim(random)
    victim.count("stalled disk")
    victim.speed.stalled_until_us = chaos.scheduler.now_us + span_us(random)


def _damage(name: str, hit: Callable[[SimDisk, str], object | None]) -> None:
    @FAULTS.fault(name)
    def act(chaos: Chaos, random: Random) -> None:
        victim = chaos.victim(random)
        if chaos.risk.may_lose(victim.replica.key):
            victim.note_damaged()
            # Any file, but before the voters are committed just logs.
            pattern = random.choice(["*.log", "*.log", "*" if _is_formed(victim) else "*.log"])
            found = hit(victim.disk, pattern)
            victim.note(f"{name}: {found}")
            if found is not None:
                victim.count(name)


def _is_formed(machine: Machine) -> bool:
    """False as long as just meta.properties names the voters: replicas believe what a leader reads there."""
    return bool(machine.config.quorum_voters or machine.env.facts.voters.committed)


_damage("bit flip", SimDisk.flip_bit)
_damage("stale sector", SimDisk.stale_sector)
_damage("misplaced sector", SimDisk.misplace_sector)


@FAULTS.fault("read flip")
def read_flip(chaos: Chaos, random: Random) -> None:
    """A bit is wrong in what is read, and right again the next time."""
    victim = chaos.victim(random)
    if not (chaos.risk.may_lose(victim.replica.key) and _is_formed(victim)):
        return
    victim.note_damaged()
    victim.count("read flip")
    faults = victim.disk.faults

    def set_to(rate: float) -> None:
        faults.flip_read = rate

    chaos.during(random, lambda: set_to(0.2), lambda: set_to(0.0))


@FAULTS.fault("lost disk")
def lost_disk(chaos: Chaos, random: Random) -> None:
    """A disk is replaced by an empty one."""
    victim = chaos.victim(random)
    if chaos.risk.may_lose(victim.replica.key):
        victim.count("lost disk")
        victim.lose_disk()
