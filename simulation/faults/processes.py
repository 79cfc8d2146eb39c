"""Faults of processes: killed, paused, stopped, without power, asked for a snapshot."""

from __future__ import annotations

from pathlib import Path
from random import Random

from simulation.faults.chaos import Chaos, span_us
from simulation.faults.registry import Faults
from simulation.machines.disk import ProcessKilled
from simulation.machines.hardware import DELETION, RESET, TRUNCATION
from simulation.scheduler import MS, SECOND

FAULTS = Faults()
ANY_CALL = ""


@FAULTS.fault("kill")
def kill(chaos: Chaos, random: Random) -> None:
    """A process is killed; what is written stays."""
    victim = chaos.victim(random)
    victim.count("kill")
    victim.end_process("kill -9")


@FAULTS.fault("crash at an effect")
def crash_at_an_effect(chaos: Chaos, random: Random) -> None:
    """Killed in the midst of carrying out what the rules ask for."""
    victim = chaos.victim(random)
    if victim.process is not None:
        victim.process.effects_left = random.randrange(20)


@FAULTS.fault("crash at a call")
def crash_at_a_call(chaos: Chaos, random: Random) -> None:
    """Killed at a call of the file system, of this process or of the next one's start."""
    victim = chaos.victim(random)
    if random.random() < 0.3:
        victim.end_process("kill -9")
    victim.disk.crash_after(random.randint(1, 60))
    victim.count("crash at a call")


@FAULTS.fault("power loss")
def power_loss(chaos: Chaos, random: Random) -> None:
    """A machine loses power, and what its disk had not synced."""
    victim = chaos.victim(random)
    victim.count("power loss")
    victim.end_process("power loss", power=True)


@FAULTS.fault("power loss at a write")
def power_loss_at_a_write(chaos: Chaos, random: Random) -> None:
    """Power goes between a write of records and its fsync: of that machine, or of all."""
    victim = chaos.victim(random)
    victims = random.choice([[victim], chaos.machines])
    least_batches = random.choice([1, 1, 2, 3])

    def on_written() -> None:
        replica = victim.replica
        if len(replica.log) - len(replica.synced) >= least_batches:
            victim.on_written = None
            chaos.later(0, go_dark)

    def go_dark() -> None:
        for machine in victims:
            if machine.process is not None:
                machine.count("power loss at a write")
                machine.end_process("power loss", power=True)

    victim.on_written = on_written


@FAULTS.fault("power loss at a name")
def power_loss_at_a_name(chaos: Chaos, random: Random) -> None:
    """Power goes just before or just behind a change of a directory, or of a file's end: when a segment
    begins, is cut or deleted, when a quorum state or a snapshot gets its name; every second time in the
    midst of a truncation, a reset or a deletion."""
    victim = chaos.victim(random)
    wanted = random.choice(["rename", "fsync_directory", "unlink", "truncate"])
    operation = random.choice([None, None, None, TRUNCATION, RESET, DELETION])
    left, is_behind = random.randrange(4), random.random() < 0.5
    disk = victim.disk

    def on_call(call: str, path: Path | None) -> None:
        nonlocal left, wanted
        is_meant = wanted == call and operation in (None, victim.disk_operation)
        if not is_meant and wanted != ANY_CALL:
            return
        left -= 1
        if left >= 0:
            return
        if is_behind and wanted != ANY_CALL:
            wanted = ANY_CALL
            return
        disk.on_call = None
        victim.loses_power = True
        chaos.env.coverage.count("power loss at a name", victim.role, call)
        raise ProcessKilled

    disk.on_call = on_call


@FAULTS.fault("power loss of all")
def power_loss_of_all(chaos: Chaos, random: Random) -> None:
    """All die; a bare majority comes back, in any order, and the others much later."""
    chaos.count_all("power loss of all")
    machines = [machine for machine in chaos.machines if machine.is_wanted]
    for machine in machines:
        machine.is_wanted = False
        machine.end_process("power loss", power=random.random() < 0.7)
    random.shuffle(machines)
    most = len(chaos.facts.voters.current) // 2 + 1
    machines.sort(key=lambda machine: not chaos.cluster.is_voter(machine))
    for at, machine in enumerate(machines):
        delay_us = random.randrange(2 * SECOND) + (0 if at < most else 3 * SECOND)
        chaos.scheduler.call_later(delay_us, machine.start)


@FAULTS.fault("pause")
def pause(chaos: Chaos, random: Random) -> None:
    """A process stands still for a while."""
    victim = chaos.victim(random)
    if victim.process is not None:
        victim.count("pause")
        victim.pause(span_us(random))


@FAULTS.fault("clean stop")
def clean_stop(chaos: Chaos, random: Random) -> None:
    """A process is asked to stop, as an operator does."""
    victim = chaos.victim(random)
    victim.count("clean stop")
    victim.stop()


@FAULTS.fault("snapshot asked for")
def snapshot_asked_for(chaos: Chaos, random: Random) -> None:
    """An operator wants a snapshot now, and often another one soon after it."""
    victim = chaos.victim(random)

    def ask() -> None:
        if victim.process is not None:
            victim.count("snapshot asked for")
            victim.process.run(victim.process.take_snapshot)

    ask()
    if random.random() < 0.5:
        chaos.later(random.randrange(50 * MS), ask)
