"""Everything that goes wrong, by name: each fault begins at a moment and ends by itself.

A fault gets the world and a random of its own, so that leaving one out does not change what the others
draw. Damage that no quorum can survive is kept out: `simulation.faults.risk`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from simulation.machines.disk import SimDisk
from simulation.scheduler import MS, SECOND

if TYPE_CHECKING:
    from simulation.machines.machine import Machine
    from simulation.world import World

Act = Callable[["World", Random], None]
FAULTS: dict[str, Act] = {}
"""In the order in which they are defined."""
LONE_WITNESS, LEADER_FAILS = "lone witness", "struck at a change"
"""Faults that mean nothing where there is no witness, or where no voters come and go."""


def fault(name: str) -> Callable[[Act], Act]:
    def register(act: Act) -> Act:
        FAULTS[name] = act
        return act

    return register


def _while(
    world: World, random: Random, begin: Callable[[], None], end: Callable[[], None]
) -> None:
    begin()
    world.scheduler.call_later(_span_us(random), end)


def _span_us(random: Random) -> int:
    """How long something lasts: mostly short, at times longer than any timeout."""
    return random.choice([50 * MS, 300 * MS, SECOND, 5 * SECOND]) * random.randint(50, 150) // 100


# -- messages


def _condition(name: str, field: str, *shares: float) -> None:
    @fault(name)
    def act(world: World, random: Random) -> None:
        share = random.choice(shares)
        network = world.network
        calm = getattr(type(network.conditions)(), field)

        def end() -> None:
            setattr(network.conditions, field, calm)

        _while(world, random, lambda: setattr(network.conditions, field, share), end)


_condition("loss", "loss", 0.02, 0.1, 0.4)
_condition("reset", "reset", 0.02, 0.1, 0.3)
_condition("duplicate", "duplicate", 0.05, 0.3, 0.8)
_condition("partial frame", "partial", 0.05, 0.3)
_condition("damaged piece", "damage", 0.1, 0.5)


@fault("delay")
def delay(world: World, random: Random) -> None:
    conditions = world.network.conditions
    conditions.delay_us = random.choice([5 * MS, 50 * MS, 500 * MS, 3 * SECOND])

    def begin() -> None:
        conditions.delay = random.choice([0.05, 0.3, 1.0])

    def end() -> None:
        conditions.delay = 0.0

    _while(world, random, begin, end)


@fault("reorder")
def reorder(world: World, random: Random) -> None:
    conditions = world.network.conditions

    def begin() -> None:
        conditions.reorder, conditions.latency_us = True, (100, random.choice([5 * MS, 100 * MS]))

    def end() -> None:
        conditions.reorder, conditions.latency_us = False, type(conditions)().latency_us

    _while(world, random, begin, end)


@fault("silent deaths")
def silent_deaths(world: World, random: Random) -> None:
    conditions = world.network.conditions
    world.count_all("silent deaths")

    def set_to(value: bool) -> None:
        conditions.silent_deaths = value

    _while(world, random, lambda: set_to(True), lambda: set_to(False))


# -- partitions


def _cut_groups(world: World, random: Random, why: str, groups: list[list[str]]) -> None:
    """Groups do not reach each other for a while."""
    pairs = [
        (a, b)
        for group in groups
        for other in groups
        if other is not group
        for a in group
        for b in other
    ]
    _cut_pairs(world, random, why, pairs)


def _cut_pairs(world: World, random: Random, why: str, pairs: list[tuple[str, str]]) -> None:
    world.count_all(why)
    _cut(world, random, why, pairs)


def _cut(world: World, random: Random, why: str, pairs: list[tuple[str, str]]) -> None:
    for source, target in pairs:
        world.network.cut([source], [target], why)

    def end() -> None:
        for source, target in pairs:
            world.network.mend(source, target, why)

    world.scheduler.call_later(_span_us(random), end)


def _shuffled(world: World, random: Random) -> list[str]:
    """All nodes; the leader, if there is one, is as often in front as anywhere."""
    hosts = [machine.host for machine in world.machines]
    random.shuffle(hosts)
    leader = world.leader_machine()
    if leader is not None and random.random() < 0.5:
        hosts.remove(leader.host)
        hosts.insert(0, leader.host)
    return hosts


@fault("majority partition")
def majority_partition(world: World, random: Random) -> None:
    """The leader, as a rule, stays with the majority."""
    hosts = _shuffled(world, random)
    most = len(hosts) // 2 + 1
    _cut_groups(world, random, "majority partition", [hosts[:most], hosts[most:]])


@fault("minority partition")
def minority_partition(world: World, random: Random) -> None:
    """The leader, as a rule, is among the few."""
    hosts = _shuffled(world, random)
    few = (len(hosts) - 1) // 2
    _cut_groups(world, random, "minority partition", [hosts[:few], hosts[few:]])


@fault("deposed leader")
def deposed_leader(world: World, random: Random) -> None:
    """The leader and a few others are cut off until the rest has elected, or could not in 5 s."""
    leader, most_cut = world.leader_machine(), (len(world.facts.voters.current) - 1) // 2
    if leader is None or not most_cut:
        return
    voters = [m for m in world.machines if world.is_voter(m) and m is not leader]
    few = [leader, *random.sample(voters, min(len(voters), random.randrange(most_cut)))]
    rest = [m for m in world.machines if m not in few]
    pairs = [pair for a in few for b in rest for pair in ((a.host, b.host), (b.host, a.host))]
    for source, target in pairs:
        world.network.cut([source], [target], "deposed leader")
    for machine in few:
        machine.count("deposed leader")
    give_up_us = world.scheduler.now_us + 5 * SECOND

    def look() -> None:
        if world.leader_machine() is leader and world.scheduler.now_us < give_up_us:
            world.scheduler.call_later(20 * MS, look)
        else:
            world.scheduler.call_later(random.randrange(300 * MS), end)

    def end() -> None:
        for source, target in pairs:
            world.network.mend(source, target, "deposed leader")

    look()


@fault(LONE_WITNESS)
def lone_witness(world: World, random: Random) -> None:
    """A bare majority goes on without the others, and all of it but the witness dies: only the witness
    has the newest records."""
    leader, voters = world.leader_machine(), [m for m in world.machines if world.is_voter(m)]
    witnesses = [m for m in voters if m.config.quorum_witness and m is not leader]
    if leader is None or not witnesses or len(voters) < 3:
        return
    others = [m for m in voters if m is not leader and m is not witnesses[0]]
    dying = [leader, *random.sample(others, len(voters) // 2 - 1)]
    few = [witnesses[0], *dying]
    rest = [m for m in world.machines if m not in few]
    pairs = [pair for a in few for b in rest for pair in ((a.host, b.host), (b.host, a.host))]
    for source, target in pairs:
        world.network.cut([source], [target], LONE_WITNESS)
    for machine in few:
        machine.count(LONE_WITNESS)

    def end() -> None:
        for machine in dying:
            machine.is_wanted = False
            machine.end_process("kill -9")
            world.scheduler.call_later(_span_us(random), machine.start)
        for source, target in pairs:
            world.network.mend(source, target, LONE_WITNESS)

    world.later(random.randrange(50 * MS, SECOND), end)


@fault(LEADER_FAILS)
def leader_fails_at_a_change(world: World, random: Random) -> None:
    """The next leader that appends a voter set is cut off, dies, or stops, before anybody has it."""

    def fail(leader: Machine) -> None:
        leader.count(LEADER_FAILS)
        match random.choice(["cut off", "cut off", "cut off", "kill", "pause"]):
            case "kill":
                leader.end_process("kill -9")
            case "pause":
                leader.pause(_span_us(random))
            case _:
                others = [m.host for m in world.machines if m is not leader]
                cut = random.sample(others, random.choice([len(others), len(others) // 2]))
                here = leader.host
                _cut(world, random, LEADER_FAILS, [p for o in cut for p in ((here, o), (o, here))])

    world.on_next_change = fail


@fault("isolate one")
def isolate_one(world: World, random: Random) -> None:
    hosts = _shuffled(world, random)
    _cut_groups(world, random, "isolate one", [hosts[:1], hosts[1:]])


@fault("ring")
def ring(world: World, random: Random) -> None:
    """Everybody reaches two neighbours only."""
    hosts = _shuffled(world, random)
    count = len(hosts)
    pairs = [
        (a, b)
        for i, a in enumerate(hosts)
        for j, b in enumerate(hosts)
        if i != j and (i - j) % count not in (1, count - 1)
    ]
    _cut_pairs(world, random, "ring", pairs)


@fault("bridge")
def bridge(world: World, random: Random) -> None:
    """Two groups that have one node in common."""
    hosts = _shuffled(world, random)
    middle = random.randrange(len(hosts))
    rest = hosts[:middle] + hosts[middle + 1 :]
    half = len(rest) // 2
    _cut_groups(world, random, "bridge", [rest[:half], rest[half:]])


@fault("one way")
def one_way(world: World, random: Random) -> None:
    """Some can be heard, but hear nothing, or the other way round."""
    hosts = _shuffled(world, random)
    count = random.randint(1, max(1, len(hosts) // 2))
    some, others = hosts[:count], hosts[count:]
    if random.random() < 0.5:
        some, others = others, some
    _cut_pairs(world, random, "one way", [(a, b) for a in some for b in others])


@fault("flapping")
def flapping(world: World, random: Random) -> None:
    """One link that comes and goes."""
    hosts = _shuffled(world, random)
    if len(hosts) < 2:
        return
    a, b = hosts[:2]
    world.count_all("flapping")

    def flap(left: int) -> None:
        world.network.cut([a], [b], "flapping")
        world.network.cut([b], [a], "flapping")
        world.scheduler.call_later(random.randrange(200 * MS), lambda: restore(left))

    def restore(left: int) -> None:
        world.network.mend(a, b, "flapping")
        world.network.mend(b, a, "flapping")
        if left:
            world.later(random.randrange(200 * MS), lambda: flap(left - 1))

    flap(random.randint(3, 15))


@fault("link by link")
def link_by_link(world: World, random: Random) -> None:
    """Links stop one after another and are restored one after another, in random orders."""
    hosts = [machine.host for machine in world.machines]
    links = [(a, b) for a in hosts for b in hosts if a < b]
    stopping, restoring = random.sample(links, len(links)), random.sample(links, len(links))
    step_us = random.randrange(10 * MS, 200 * MS)
    world.count_all("link by link")

    def stop(link: tuple[str, str]) -> None:
        world.network.cut([link[0]], [link[1]], "link by link")
        world.network.cut([link[1]], [link[0]], "link by link")

    def restore(link: tuple[str, str]) -> None:
        world.network.mend(link[0], link[1], "link by link")
        world.network.mend(link[1], link[0], "link by link")

    for at, link in enumerate(stopping):
        world.later(at * step_us, partial(stop, link))
    for at, link in enumerate(restoring, len(links)):
        world.scheduler.call_later(at * step_us, partial(restore, link))


# -- processes


@fault("kill")
def kill(world: World, random: Random) -> None:
    victim = world.victim(random)
    victim.count("kill")
    victim.end_process("kill -9")


@fault("crash at an effect")
def crash_at_an_effect(world: World, random: Random) -> None:
    """Killed in the midst of carrying out what the rules ask for."""
    victim = world.victim(random)
    if victim.process is not None:
        victim.process.effects_left = random.randrange(20)


@fault("crash at a call")
def crash_at_a_call(world: World, random: Random) -> None:
    """Killed at a call of the file system, of this life or of its next start."""
    victim = world.victim(random)
    if random.random() < 0.3:
        victim.end_process("kill -9")
    victim.disk.crash_after(random.randint(1, 60))
    victim.count("crash at a call")


@fault("power loss")
def power_loss(world: World, random: Random) -> None:
    victim = world.victim(random)
    victim.count("power loss")
    victim.end_process("power loss", power=True)


@fault("power loss at a write")
def power_loss_at_a_write(world: World, random: Random) -> None:
    """Power goes between a write of records and its fsync: that machine's, or everybody's."""
    victim = world.victim(random)
    victims = random.choice([[victim], world.machines])
    least_batches = random.choice([1, 1, 2, 3])

    def on_written() -> None:
        replica = victim.replica
        if len(replica.log) - len(replica.synced) >= least_batches:
            victim.on_written = None
            world.later(0, go_dark)

    def go_dark() -> None:
        for machine in victims:
            if machine.process is not None:
                machine.count("power loss at a write")
                machine.end_process("power loss", power=True)

    victim.on_written = on_written


@fault("power loss of all")
def power_loss_of_all(world: World, random: Random) -> None:
    """All die; a bare majority comes back, in any order, and the others much later."""
    world.count_all("power loss of all")
    machines = [machine for machine in world.machines if machine.is_wanted]
    for machine in machines:
        machine.is_wanted = False
        machine.end_process("power loss", power=random.random() < 0.7)
    random.shuffle(machines)
    most = len(world.facts.voters.current) // 2 + 1
    machines.sort(key=lambda machine: not world.is_voter(machine))
    for at, machine in enumerate(machines):
        delay_us = random.randrange(2 * SECOND) + (0 if at < most else 3 * SECOND)
        world.scheduler.call_later(delay_us, machine.start)


@fault("pause")
def pause(world: World, random: Random) -> None:
    victim = world.victim(random)
    if victim.process is not None:
        victim.count("pause")
        victim.pause(_span_us(random))


@fault("clean stop")
def clean_stop(world: World, random: Random) -> None:
    victim = world.victim(random)
    victim.count("clean stop")
    victim.stop()


@fault("snapshot asked for")
def snapshot_asked_for(world: World, random: Random) -> None:
    """An operator wants a snapshot now, and often another one soon after it."""
    victim = world.victim(random)

    def ask() -> None:
        if victim.process is not None:
            victim.count("snapshot asked for")
            victim.process.run(victim.process.take_snapshot)

    ask()
    if random.random() < 0.5:
        world.later(random.randrange(50 * MS), ask)


# -- clocks


@fault("clock drift")
def clock_drift(world: World, random: Random) -> None:
    victim = world.victim(random)
    victim.count("clock drift")
    ppm = random.choice([500_000, 900_000, 999_000, 1_001_000, 1_100_000, 2_000_000])
    _while(
        world,
        random,
        lambda: victim.clock.set_rate(ppm),
        lambda: victim.clock.set_rate(1_000_000),
    )


@fault("wall clock step")
def wall_clock_step(world: World, random: Random) -> None:
    """Somebody sets the clock, back or forth, by up to half an hour."""
    victim = world.victim(random)
    victim.count("wall clock step")
    victim.clock.wall_offset_us = random.randrange(-1800, 1800) * SECOND


@fault("clock jump")
def clock_jump(world: World, random: Random) -> None:
    """The machine was suspended: all of a sudden it is later."""
    victim = world.victim(random)
    victim.count("clock jump")
    victim.clock.jump(random.choice([100 * MS, SECOND, 10 * SECOND]))


# -- disks


def _disk_error(name: str, field: str, call: str, *rates: float) -> None:
    """Once and then never again, or every now and then for a while."""

    @fault(name)
    def act(world: World, random: Random) -> None:
        victim = world.victim(random)
        victim.count(name)
        victim.has_disk_errors = True
        if random.random() < 0.5:
            victim.disk.fail_next(call)
            return
        faults = victim.disk.faults
        rate = random.choice(rates)
        _while(
            world,
            random,
            lambda: setattr(faults, field, rate),
            lambda: setattr(faults, field, 0.0),
        )


_disk_error("read error", "read_error", "pread", 0.05, 0.5)
_disk_error("write error", "write_error", "pwritev", 0.02, 0.2)
_disk_error("sync error", "sync_error", "fdatasync", 0.02, 0.2)


@fault("short write")
def short_write(world: World, random: Random) -> None:
    victim = world.victim(random)
    victim.count("short write")
    faults = victim.disk.faults

    def set_to(rate: float) -> None:
        faults.short_write = rate

    _while(world, random, lambda: set_to(0.3), lambda: set_to(0.0))


@fault("full disk")
def full_disk(world: World, random: Random) -> None:
    victim = world.victim(random)
    disk = victim.disk

    def set_to(capacity_bytes: int | None) -> None:
        disk.capacity_bytes = capacity_bytes

    room = random.choice([0, 100, 5_000])
    _while(world, random, lambda: set_to(disk.used_bytes + room), lambda: set_to(None))


@fault("slow disk")
def slow_disk(world: World, random: Random) -> None:
    victim = world.victim(random)
    victim.count("slow disk")
    speed = victim.speed
    usual = type(speed)()

    def begin() -> None:
        speed.sync_us = (5 * MS, random.choice([20 * MS, 300 * MS]))

    def end() -> None:
        speed.sync_us = usual.sync_us

    _while(world, random, begin, end)


@fault("stalled disk")
def stalled_disk(world: World, random: Random) -> None:
    victim = world.victim(random)
    victim.count("stalled disk")
    victim.speed.stalled_until_us = world.scheduler.now_us + _span_us(random)


def _damage(name: str, hit: Callable[[SimDisk, str], object | None]) -> None:
    @fault(name)
    def act(world: World, random: Random) -> None:
        victim = world.victim(random)
        if world.risk.may_lose(victim.replica.key):
            world.note_damaged(victim)
            # Any file, but before the voters are committed just logs.
            pattern = random.choice(["*.log", "*.log", "*" if _is_formed(victim) else "*.log"])
            found = hit(victim.disk, pattern)
            victim.note(f"{name}: {found}")
            if found is not None:
                victim.count(name)


def _is_formed(machine: Machine) -> bool:
    """False as long as just meta.properties says who votes: what a leader reads there all believe."""
    return bool(machine.config.quorum_voters or machine.world.facts.voters.committed)


_damage("bit flip", SimDisk.flip_bit)
_damage("stale sector", SimDisk.stale_sector)
_damage("misplaced sector", SimDisk.misplace_sector)


@fault("read flip")
def read_flip(world: World, random: Random) -> None:
    """A bit is wrong in what is read, and right again the next time."""
    victim = world.victim(random)
    if not (world.risk.may_lose(victim.replica.key) and _is_formed(victim)):
        return
    world.note_damaged(victim)
    victim.count("read flip")
    faults = victim.disk.faults

    def set_to(rate: float) -> None:
        faults.flip_read = rate

    _while(world, random, lambda: set_to(0.2), lambda: set_to(0.0))


@fault("lost disk")
def lost_disk(world: World, random: Random) -> None:
    victim = world.victim(random)
    if world.risk.may_lose(victim.replica.key):
        victim.count("lost disk")
        victim.lose_disk()
