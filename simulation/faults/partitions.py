"""Partitions: which nodes do not reach which others, and for how long."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

from quorumd.raft.roles import Role
from simulation.faults.chaos import Chaos, span_us
from simulation.faults.registry import Faults
from simulation.machines.machine import Machine
from simulation.scheduler import MS, SECOND

FAULTS = Faults()
LONE_WITNESS, LEADER_FAILS = "lone witness", "struck at a change"
"""Faults that mean nothing where there is no witness, or where no voters come and go."""
FIREWALLS = "firewalls"
"""A fault that lasts until all stop: it is drawn apart."""


def _cut_groups(chaos: Chaos, random: Random, why: str, groups: list[list[str]]) -> None:
    """Groups do not reach each other for a while."""
    pairs = [
        (a, b)
        for group in groups
        for other in groups
        if other is not group
        for a in group
        for b in other
    ]
    _cut_pairs(chaos, random, why, pairs)


def _cut_pairs(chaos: Chaos, random: Random, why: str, pairs: list[tuple[str, str]]) -> None:
    chaos.count_all(why)
    _cut(chaos, random, why, pairs)


def _cut(chaos: Chaos, random: Random, why: str, pairs: list[tuple[str, str]]) -> None:
    for source, target in pairs:
        chaos.network.cut([source], [target], why)

    def end() -> None:
        for source, target in pairs:
            chaos.network.mend(source, target, why)

    chaos.scheduler.call_later(span_us(random), end)


def _cut_off(chaos: Chaos, few: list[Machine], why: str) -> Callable[[], None]:
    """A few machines and the rest do not reach each other. Returns what mends that."""
    rest = [machine for machine in chaos.machines if machine not in few]
    pairs = [pair for a in few for b in rest for pair in ((a.host, b.host), (b.host, a.host))]
    for source, target in pairs:
        chaos.network.cut([source], [target], why)
    for machine in few:
        machine.count(why)

    def mend() -> None:
        for source, target in pairs:
            chaos.network.mend(source, target, why)

    return mend


def _shuffled(chaos: Chaos, random: Random) -> list[str]:
    """All nodes; the leader, if there is one, is as often in front as anywhere."""
    hosts = [machine.host for machine in chaos.machines]
    random.shuffle(hosts)
    leader = chaos.cluster.leader_machine()
    if leader is not None and random.random() < 0.5:
        hosts.remove(leader.host)
        hosts.insert(0, leader.host)
    return hosts


@FAULTS.fault("majority partition")
def majority_partition(chaos: Chaos, random: Random) -> None:
    """The leader, as a rule, stays with the majority."""
    hosts = _shuffled(chaos, random)
    most = len(hosts) // 2 + 1
    _cut_groups(chaos, random, "majority partition", [hosts[:most], hosts[most:]])


@FAULTS.fault("minority partition")
def minority_partition(chaos: Chaos, random: Random) -> None:
    """The leader, as a rule, is among the few."""
    hosts = _shuffled(chaos, random)
    few = (len(hosts) - 1) // 2
    _cut_groups(chaos, random, "minority partition", [hosts[:few], hosts[few:]])


@FAULTS.fault("deposed leader")
def deposed_leader(chaos: Chaos, random: Random) -> None:
    """The leader and a few others are cut off until the rest has elected, or could not in 5 s."""
    leader, most_cut = chaos.cluster.leader_machine(), (len(chaos.facts.voters.current) - 1) // 2
    if leader is None or not most_cut:
        return
    voters = [m for m in chaos.machines if chaos.cluster.is_voter(m) and m is not leader]
    few = [leader, *random.sample(voters, min(len(voters), random.randrange(most_cut)))]
    mend = _cut_off(chaos, few, "deposed leader")
    give_up_us = chaos.scheduler.now_us + 5 * SECOND

    def await_election() -> None:
        if chaos.cluster.leader_machine() is leader and chaos.scheduler.now_us < give_up_us:
            chaos.scheduler.call_later(20 * MS, await_election)
        else:
            chaos.scheduler.call_later(random.randrange(300 * MS), mend)

    await_election()


@FAULTS.fault("leader among observers")
def leader_among_observers(chaos: Chaos, random: Random) -> None:
    """The other voters are cut off from the leader, those that do not vote are not."""
    leader = chaos.cluster.leader_machine()
    voters = [m for m in chaos.machines if chaos.cluster.is_voter(m) and m is not leader]
    if leader is None or not voters:
        return
    mend = _cut_off(chaos, voters, "leader among observers")
    chaos.scheduler.call_later(span_us(random), mend)


@FAULTS.fault("elected in vain")
def elected_in_vain(chaos: Chaos, random: Random) -> None:
    """One voter is elected twice or more and cut off before another one has a record of its epoch; then
    the others elect, and it has to drop records of several epochs."""
    why, leader = "elected in vain", chaos.cluster.leader_machine()
    if leader is None or len(chaos.facts.voters.current) < 3:
        return
    hosts = [machine.host for machine in chaos.machines]
    here = leader.host
    star = [pair for host in hosts if host != here for pair in ((here, host), (host, here))]
    rest = [(a, b) for a in hosts for b in hosts if a != b and here not in (a, b)]
    leader.count(why)

    def cut(pairs: list[tuple[str, str]]) -> None:
        for source, target in pairs:
            chaos.network.cut([source], [target], why)

    def mend(pairs: list[tuple[str, str]]) -> None:
        for source, target in pairs:
            chaos.network.mend(source, target, why)

    def wait(is_so: Callable[[], bool], go_on: Callable[[], None], left: int = 4_000) -> None:
        if not left:
            mend([*star, *rest])
        elif is_so():
            go_on()
        else:
            chaos.later(MS, partial(wait, is_so, go_on, left - 1))

    def resigns(elections: int) -> None:
        wait(lambda: leader.role != Role.LEADER, lambda: is_elected(elections))

    def is_elected(elections: int) -> None:
        mend(star)
        wait(lambda: leader.role == Role.LEADER, lambda: is_cut_off(elections - 1))

    def is_cut_off(elections: int) -> None:
        cut(star)
        if elections:
            resigns(elections)
            return
        mend(rest)
        wait(
            lambda: chaos.cluster.leader_machine() not in (None, leader),
            partial(chaos.later, random.randrange(300 * MS), partial(mend, star)),
        )

    cut([*star, *rest])
    resigns(random.randint(1, 3))


@FAULTS.fault(LONE_WITNESS)
def lone_witness(chaos: Chaos, random: Random) -> None:
    """A bare majority goes on without the others, and all of it but the witness dies: only the witness
    has the newest records."""
    leader = chaos.cluster.leader_machine()
    voters = [m for m in chaos.machines if chaos.cluster.is_voter(m)]
    witnesses = [m for m in voters if m.config.quorum_witness and m is not leader]
    if leader is None or not witnesses or len(voters) < 3:
        return
    others = [m for m in voters if m is not leader and m is not witnesses[0]]
    dying = [leader, *random.sample(others, len(voters) // 2 - 1)]
    few = [witnesses[0], *dying]
    mend = _cut_off(chaos, few, LONE_WITNESS)

    def end() -> None:
        for machine in dying:
            machine.is_wanted = False
            machine.end_process("kill -9")
            chaos.scheduler.call_later(span_us(random), machine.start)
        mend()

    chaos.later(random.randrange(50 * MS, SECOND), end)


@FAULTS.fault(LEADER_FAILS)
def leader_fails_at_a_change(chaos: Chaos, random: Random) -> None:
    """The next leader that appends a voter set is cut off, dies, or stops, before another replica has it."""

    def fail(leader: Machine) -> None:
        leader.count(LEADER_FAILS)
        match random.choice(["cut off", "cut off", "cut off", "kill", "pause"]):
            case "kill":
                leader.end_process("kill -9")
            case "pause":
                leader.pause(span_us(random))
            case _:
                others = [m.host for m in chaos.machines if m is not leader]
                cut = random.sample(others, random.choice([len(others), len(others) // 2]))
                here = leader.host
                _cut(chaos, random, LEADER_FAILS, [p for o in cut for p in ((here, o), (o, here))])

    chaos.on_next_change = fail


@FAULTS.fault("isolate one")
def isolate_one(chaos: Chaos, random: Random) -> None:
    """One node reaches no other, and none reaches it."""
    hosts = _shuffled(chaos, random)
    _cut_groups(chaos, random, "isolate one", [hosts[:1], hosts[1:]])


@FAULTS.fault("ring")
def ring(chaos: Chaos, random: Random) -> None:
    """Every node reaches two neighbours only."""
    hosts = _shuffled(chaos, random)
    count = len(hosts)
    pairs = [
        (a, b)
        for i, a in enumerate(hosts)
        for j, b in enumerate(hosts)
        if i != j and (i - j) % count not in (1, count - 1)
    ]
    _cut_pairs(chaos, random, "ring", pairs)


@FAULTS.fault("bridge")
def bridge(chaos: Chaos, random: Random) -> None:
    """Two groups that have one node in common."""
    hosts = _shuffled(chaos, random)
    middle = random.randrange(len(hosts))
    rest = hosts[:middle] + hosts[middle + 1 :]
    half = len(rest) // 2
    _cut_groups(chaos, random, "bridge", [rest[:half], rest[half:]])


@FAULTS.fault("one way")
def one_way(chaos: Chaos, random: Random) -> None:
    """Messages of some nodes arrive, but none arrives at them; or the other way round."""
    hosts = _shuffled(chaos, random)
    count = random.randint(1, max(1, len(hosts) // 2))
    some, others = hosts[:count], hosts[count:]
    if random.random() < 0.5:
        some, others = others, some
    _cut_pairs(chaos, random, "one way", [(a, b) for a in some for b in others])


@FAULTS.fault(FIREWALLS)
def firewalls(chaos: Chaos, random: Random) -> None:
    """A node, mostly the leader, opens connections to others, and hardly any opens one to it.

    It may not reach the node that still reaches it.
    """
    hosts = _shuffled(chaos, random)
    chaos.count_all(FIREWALLS)
    shut_in, still_reaches = hosts[0], hosts[1:2]
    for host in hosts[2:]:
        chaos.network.shut_out(host, shut_in)
    for host in still_reaches if random.random() < 0.7 else ():
        chaos.network.shut_out(shut_in, host)


@FAULTS.fault("flapping")
def flapping(chaos: Chaos, random: Random) -> None:
    """One link that comes and goes."""
    hosts = _shuffled(chaos, random)
    if len(hosts) < 2:
        return
    a, b = hosts[:2]
    chaos.count_all("flapping")

    def flap(left: int) -> None:
        chaos.network.cut([a], [b], "flapping")
        chaos.network.cut([b], [a], "flapping")
        chaos.scheduler.call_later(random.randrange(200 * MS), lambda: restore(left))

    def restore(left: int) -> None:
        chaos.network.mend(a, b, "flapping")
        chaos.network.mend(b, a, "flapping")
        if left:
            chaos.later(random.randrange(200 * MS), lambda: flap(left - 1))

    flap(random.randint(3, 15))


@FAULTS.fault("link by link")
def link_by_link(chaos: Chaos, random: Random) -> None:
    """Links stop one after another and are restored one after another, in random orders."""
    hosts = [machine.host for machine in chaos.machines]
    links = [(a, b) for a in hosts for b in hosts if a < b]
    stopping, restoring = random.sample(links, len(links)), random.sample(links, len(links))
    step_us = random.randrange(10 * MS, 200 * MS)
    chaos.count_all("link by link")

    def stop(link: tuple[str, str]) -> None:
        chaos.network.cut([link[0]], [link[1]], "link by link")
        chaos.network.cut([link[1]], [link[0]], "link by link")

    def restore(link: tuple[str, str]) -> None:
        chaos.network.mend(link[0], link[1], "link by link")
        chaos.network.mend(link[1], link[0], "link by link")

    for at, link in enumerate(stopping):
        chaos.later(at * step_us, partial(stop, link))
    for at, link in enumerate(restoring, len(links)):
        chaos.scheduler.call_later(at * step_us, partial(restore, link))
