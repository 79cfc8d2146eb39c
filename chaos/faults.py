"""Faults of a chaos run, and operations of operators meanwhile.

A fault begins, lasts, and ends; whatever it did, everything is whole again afterwards. An operation is a
command of `quorumctl`, which may fail while a fault is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from random import Random

from chaos.hosts import CLIENTS
from chaos.nodes import Nodes

Begin = Callable[[Nodes, Random], Iterator[str]]
"""Yields once, with a description, when the fault has begun."""


class Trouble(Exception):
    """A command failed though nothing stood against it."""


def kill(nodes: Nodes, draw: Random) -> Iterator[str]:
    node = draw.choice(nodes.ids)
    yield from _down(nodes, [node], f"kill -9 of node {node}")


def kill_leader(nodes: Nodes, draw: Random) -> Iterator[str]:
    node = nodes.leader() or draw.choice(nodes.ids)
    yield from _down(nodes, [node], f"kill -9 of the leader, node {node}")


def kill_all(nodes: Nodes, draw: Random) -> Iterator[str]:
    yield from _down(nodes, list(nodes.ids), "kill -9 of all nodes")


def restart(nodes: Nodes, draw: Random) -> Iterator[str]:
    node = draw.choice(nodes.ids)
    nodes.stop(node)
    yield f"node {node} stopped in order"
    nodes.start(node)


def pause(nodes: Nodes, draw: Random) -> Iterator[str]:
    node = draw.choice([nodes.leader() or 1, draw.choice(nodes.ids)])
    nodes.pause(node)
    yield f"node {node} paused"
    nodes.go_on(node)


def isolate(nodes: Nodes, draw: Random) -> Iterator[str]:
    node = draw.choice([nodes.leader() or 1, draw.choice(nodes.ids)])
    others = [each for each in (CLIENTS, *nodes.ids) if each != node]
    pairs = [pair for each in others for pair in ((node, each), (each, node))]
    yield from _cut(nodes, pairs, f"node {node} isolated")


def split(nodes: Nodes, draw: Random) -> Iterator[str]:
    mixed = draw.sample(nodes.ids, len(nodes.ids))
    at = draw.randint(1, len(mixed) - 1)
    left, right = mixed[:at], mixed[at:]
    pairs = [pair for a in left for b in right for pair in ((a, b), (b, a))]
    yield from _cut(nodes, pairs, f"nodes {left} and {right} parted; clients reach all")


def one_way(nodes: Nodes, draw: Random) -> Iterator[str]:
    leader = nodes.leader() or draw.choice(nodes.ids)
    other = draw.choice([each for each in nodes.ids if each != leader])
    pair = draw.choice([(leader, other), (other, leader)])
    yield from _cut(nodes, [pair], f"nothing arrives from node {pair[0]} at node {pair[1]}")


def bridge(nodes: Nodes, draw: Random) -> Iterator[str]:
    middle = draw.choice(nodes.ids)
    others = [each for each in nodes.ids if each != middle]
    draw.shuffle(others)
    left, right = others[::2], others[1::2]
    pairs = [pair for a in left for b in right for pair in ((a, b), (b, a))]
    yield from _cut(nodes, pairs, f"nodes {left} and {right} see each other through {middle} only")


def full_disk(nodes: Nodes, draw: Random) -> Iterator[str]:
    node = draw.choice([nodes.leader() or 1, draw.choice(nodes.ids)])
    nodes.hosts.fill(node)
    yield f"the disk of node {node} is full"
    nodes.hosts.empty(node)


def clock(nodes: Nodes, draw: Random) -> Iterator[str]:
    node = draw.choice(nodes.ids)
    # Far behind, a leader takes the clients' timestamps for mistakes, as Kafka does.
    ahead_s = draw.choice([-1_800.0, -5.0, 5.0, 86_400.0])
    nodes.hosts.set_clock(node, ahead_s)
    yield f"the wall clock of node {node} is {ahead_s:+,.0f} s"
    nodes.hosts.set_clock(node, 0.0)


def lost_disk(nodes: Nodes, draw: Random) -> Iterator[str]:
    """Only while all others are there: a quorum survives the loss of one disk at a time."""
    node = draw.choice(nodes.ids)
    nodes.kill(node)
    nodes.lose_disk(node)
    nodes.start(node)
    yield f"node {node} came back with an empty disk"
    if node in nodes.voters():
        code, said = nodes.quorumctl("replace-voter", node)
        if code:
            raise Trouble(_told(f"replace-voter {node}", code, said))


def transfer(nodes: Nodes, draw: Random) -> Iterator[str]:
    code, said = nodes.quorumctl("transfer-leader")
    yield _told("transfer-leader", code, said)


def change_voters(nodes: Nodes, draw: Random) -> Iterator[str]:
    """A voter more or less, so that there are three to five."""
    voters = nodes.voters()
    observers = [node for node in nodes.ids if node not in voters]
    if observers and (len(voters) <= 3 or draw.random() < 0.5):
        what = ["add-voter", "--replica-id", str(draw.choice(observers))]
    elif len(voters) > 3:
        what = ["remove-voter", "--replica-id", str(draw.choice(voters))]
    else:
        return
    code, said = nodes.quorumctl(*what, "--timeout", 20)
    yield _told(" ".join(what), code, said)


FAULTS: Mapping[str, Begin] = {
    "kill": kill,
    "kill-leader": kill_leader,
    "kill-all": kill_all,
    "restart": restart,
    "pause": pause,
    "isolate": isolate,
    "split": split,
    "one-way": one_way,
    "bridge": bridge,
    "full-disk": full_disk,
    "clock": clock,
    "lost-disk": lost_disk,
    "transfer": transfer,
    "change-voters": change_voters,
}
ALONE = frozenset({"lost-disk", "kill-all"})
"""Not together with others."""
NEED_CUTS = frozenset({"isolate", "split", "one-way", "bridge"})
NEED_FILLING = frozenset({"full-disk"})


def possible(nodes: Nodes) -> list[str]:
    """The faults that can be had on these hosts."""
    hosts = nodes.hosts
    missing = set() if hosts.can_cut else set(NEED_CUTS)
    missing |= set() if hosts.can_fill else NEED_FILLING
    missing |= set() if hosts.can_set_clocks else {"clock"}
    return [name for name in FAULTS if name not in missing]


def _down(nodes: Nodes, which: list[int], what: str) -> Iterator[str]:
    for node in which:
        nodes.kill(node)
    yield what
    for node in which:
        nodes.start(node)


def _cut(nodes: Nodes, pairs: list[tuple[int, int]], what: str) -> Iterator[str]:
    with _cuts(nodes, pairs):
        yield what


@contextmanager
def _cuts(nodes: Nodes, pairs: list[tuple[int, int]]) -> Iterator[None]:
    for pair in pairs:
        nodes.hosts.cut(*pair)
    try:
        yield
    finally:
        for pair in pairs:
            nodes.hosts.mend(*pair)


def _told(command: str, code: int, said: str) -> str:
    last = said.strip().splitlines()[-1:] or [""]
    return f"{command}: {'done' if code == 0 else f'exit code {code}: {last[0]}'}"
