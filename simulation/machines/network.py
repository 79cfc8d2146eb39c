"""The simulated network: single messages between machines, lost, late, doubled, swapped, cut to pieces.

A message is a complete frame. What becomes of it is drawn when it is sent and again judged when it would
arrive: a machine that is cut off by then does not get it. Machines are named; a partition is a set of
directed pairs that do not reach each other. Firewalls are directed pairs, too: the first opens no connection
to the second, whose own ones carry requests and responses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from random import Random

from quorumd.wire.framing import FrameBuffer
from simulation.coverage import Coverage
from simulation.scheduler import MS, Scheduler

FRAME_BYTES_MAX = 1 << 30
EDGES_US = (-3 * MS, -1 * MS, -1, 0, 1, 1 * MS)
"""So far from a deadline are the moments at which a rule may be one too early or too late."""
DEADLINE_MAX_US = 3_000 * MS
"""No message waits longer for a deadline."""
PIECE = "FetchSnapshot response"
BEFORE_PIECE, BEHIND_PIECE = 80, 60
"""More bytes than a response has before and behind its piece of a snapshot."""


@dataclass(slots=True)
class NetworkConditions:
    """Rates are shares of messages; latencies are µs."""

    latency_us: tuple[int, int] = (200, 1_500)
    loss: float = 0.0
    reset: float = 0.0
    """Share of messages with which the connection is lost, so that both ends know."""
    delay: float = 0.0
    delay_us: int = 0
    """Longest delay of a delayed message."""
    at_deadline: float = 0.0
    """Share that arrives just before, at, or just after a deadline of its target."""
    duplicate: float = 0.0
    reorder: bool = False
    """Messages of one direction overtake each other."""
    partial: float = 0.0
    """Share that arrives in pieces; of every second one the last piece never comes."""
    damage: float = 0.0
    """Share of the pieces of snapshots in which a bit is flipped."""
    silent_deaths: bool = False
    """The death of a process resets no connection: they just fall silent."""


@dataclass(frozen=True, slots=True)
class NetworkMessage:
    """A frame on its way. `kind` names it for people: `Fetch`, `Fetch response`."""

    source: str
    target: str
    kind: str
    frame: bytes
    is_repeatable: bool = True
    """False: the network may not double it, because what it asks for would happen twice."""


class Network:
    """See the module's docstring. `role_of` names the role of a machine's process, for coverage;
    `deadline_of` says when a rule of it is due."""

    def __init__(
        self,
        scheduler: Scheduler,
        random: Random,
        coverage: Coverage,
        role_of: Callable[[str], str],
        deadline_of: Callable[[str], int | None],
        journal: Callable[[str, str, str], None],
    ) -> None:
        self._scheduler = scheduler
        self._random = random
        self._coverage = coverage
        self._role_of = role_of
        self._deadline_of = deadline_of
        self._journal = journal
        self.conditions = NetworkConditions()
        self._cuts: dict[tuple[str, str], list[str]] = {}
        self._firewalls: set[tuple[str, str]] = set()
        self._last_arrival_us: dict[tuple[str, str], int] = {}

    # -- partitions

    def cut(self, sources: Iterable[str], targets: Iterable[str], why: str) -> None:
        """Nothing sent by `sources` reaches `targets`; what is already under way does not either."""
        others = list(targets)
        for source in sources:
            for target in others:
                if source != target:
                    self._cuts.setdefault((source, target), []).append(why)

    def mend(self, source: str, target: str, why: str) -> None:
        """Take one cut back; others may still hold."""
        cuts = self._cuts.get((source, target), [])
        if why in cuts:
            cuts.remove(why)
            if not cuts:
                del self._cuts[source, target]

    def shut_out(self, source: str, target: str) -> None:
        """From now on `source` has no connection that it opened to `target`; until `heal`."""
        self._firewalls.add((source, target))

    def heal(self) -> None:
        """Every message reaches its target as usual."""
        self._cuts.clear()
        self._firewalls.clear()
        self.conditions = NetworkConditions()

    def reaches(self, source: str, target: str) -> bool:
        """False if the link from one host to the other is cut."""
        return (source, target) not in self._cuts

    def is_shut_out(self, source: str, target: str) -> bool:
        """True if `source` cannot open connections to `target`."""
        return (source, target) in self._firewalls

    def connects(self, source: str, target: str) -> bool:
        """True if a connection that `source` opens to `target` comes about, and lasts."""
        is_open = not self.is_shut_out(source, target)
        return is_open and self.reaches(source, target) and self.reaches(target, source)

    def latency_us(self) -> int:
        """A drawn time on the way."""
        return self._random.randint(*self.conditions.latency_us)

    # -- sending

    def send(
        self, message: NetworkMessage, deliver: Callable[[bytes], None], lost: Callable[[], None]
    ) -> None:
        """Bring a message to its target: `deliver` is called there, never or once or more often.

        `lost` is called if the connection is lost with it; for a message that just
        disappears neither is called.
        """
        draw, conditions = self._random.random, self.conditions
        if conditions.loss and draw() < conditions.loss:
            self._note("loss", message)
            return
        if conditions.reset and draw() < conditions.reset:
            self._note("reset", message)
            self._scheduler.call_later(self.latency_us(), lost)
            return
        holds_piece = message.kind == PIECE and len(message.frame) > BEFORE_PIECE + BEHIND_PIECE
        if conditions.damage and holds_piece and draw() < conditions.damage:
            self._note("damaged piece", message)
            message = replace(message, frame=self._flipped(message.frame))
        copies = 1
        if conditions.duplicate and message.is_repeatable and draw() < conditions.duplicate:
            self._note("duplicate", message)
            copies = 2
        for copy in range(copies):
            delay_us = self.latency_us()
            if conditions.delay and draw() < conditions.delay:
                self._note("delay", message)
                delay_us += self._random.randrange(conditions.delay_us)
            if conditions.at_deadline and draw() < conditions.at_deadline:
                delay_us = max(delay_us, self._deadline_delay_us(message))
            arrival_us = self._scheduler.now_us + delay_us
            pair = message.source, message.target
            if conditions.reorder or copy:
                if arrival_us < self._last_arrival_us.get(pair, 0):
                    self._note("reorder", message)
            else:
                arrival_us = max(arrival_us, self._last_arrival_us.get(pair, 0))
            self._last_arrival_us[pair] = max(arrival_us, self._last_arrival_us.get(pair, 0))
            if conditions.partial and draw() < conditions.partial:
                self._note("partial frame", message)
                self._send_pieces(message, arrival_us, deliver, lost)
            else:
                self._scheduler.call_at(arrival_us, lambda: self._arrive(message, deliver))

    def _deadline_delay_us(self, message: NetworkMessage) -> int:
        """Time in µs until a rule of the target is due, or a little more or less; 0 if none is soon."""
        deadline_us = self._deadline_of(message.target)
        if deadline_us is None:
            return 0
        delay_us = deadline_us - self._scheduler.now_us + self._random.choice(EDGES_US)
        if not 0 < delay_us < DEADLINE_MAX_US:
            return 0
        self._note("at a deadline", message)
        return delay_us

    def _flipped(self, frame: bytes) -> bytes:
        """In the bytes of the snapshot: what stands around them no protocol could do without."""
        flipped = bytearray(frame)
        at = self._random.randrange(BEFORE_PIECE, len(frame) - BEHIND_PIECE)
        flipped[at] ^= 1 << self._random.randrange(8)
        return bytes(flipped)

    def _arrive(self, message: NetworkMessage, deliver: Callable[[bytes], None]) -> None:
        if (message.source, message.target) in self._cuts:
            self._note(self._cuts[message.source, message.target][-1], message)
            return
        deliver(message.frame[4:])

    def _send_pieces(
        self,
        message: NetworkMessage,
        arrival_us: int,
        deliver: Callable[[bytes], None],
        lost: Callable[[], None],
    ) -> None:
        frame, random = message.frame, self._random
        cuts = sorted(random.randrange(1, len(frame)) for _ in range(random.randint(1, 3)))
        pieces = [frame[a:b] for a, b in zip([0, *cuts], [*cuts, len(frame)], strict=True)]
        is_broken_off = random.random() < 0.5
        buffer = FrameBuffer(FRAME_BYTES_MAX)
        is_lost = False

        def arrive(piece: bytes) -> None:
            nonlocal is_lost
            is_lost = is_lost or (message.source, message.target) in self._cuts
            if is_lost:
                return
            buffer.feed(piece)
            for whole in buffer.frames():
                deliver(whole)

        for piece in pieces[:-1] if is_broken_off else pieces:
            self._scheduler.call_at(arrival_us, partial(arrive, piece))
            arrival_us += random.randrange(5 * MS)
        if is_broken_off:
            self._scheduler.call_at(arrival_us, lost)

    def _note(self, fault: str, message: NetworkMessage) -> None:
        self._coverage.count(fault, self._role_of(message.source), message.kind)
        self._journal(message.source, fault, f"{message.kind} to {message.target}")
