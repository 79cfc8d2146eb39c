"""A log, clocks of different rates, and processes that contend for one lock: everything that a seed draws.

Requests are late, doubled or lost, responses too; readers lag; processes are stopped and go on. Judged is the
real time: never do two processes believe, each by its own clock, that they hold the lock.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from quorumd.client.coordination.claim_record import ClaimRecord, claim_record_of
from quorumd.client.coordination.contender import ClaimWrite, Contender, Intent, WaitUntil
from quorumd.client.coordination.contest import ContestBoard
from quorumd.client.coordination.keys import ClaimKind, Place
from quorumd.client.view import KeyChange
from quorumd.wire.records import Record

PLACE = Place(ClaimKind.LOCK, "a")
TTL_MS = 1000
RATES = (0.96, 1.04)
RESPONSE_S = 0.3
CALM_S = 60.0
"""Behind the faults: everybody gets the lock then."""

BELIEVING = ("wanting", "holding")
"""Phases in which a process may believe that it holds the lock."""

MakeContender = Callable[[Place, ClaimRecord], Contender]


class Overlap(AssertionError):
    """Two believe that they hold the lock."""


class NoHeir(AssertionError):
    """The lock was handed over to a claim that had left the queue."""


class ModelLog:
    """Judges conditions as the leader does, and commits at once."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self._newest: dict[bytes, int] = {}

    def has(self, key: bytes) -> bool:
        """Has the key a value?"""
        offset = self._newest.get(key)
        return offset is not None and self.records[offset].value is not None

    def append(self, write: ClaimWrite) -> int | None:
        """The offset of the first record, None if a key has changed."""
        keys = [record.key or b"" for record in write.records]
        if any(self._newest.get(key, -1) >= write.since for key in keys):
            return None
        base = len(self.records)
        for key, record in zip(keys, write.records, strict=True):
            self._newest[key] = len(self.records)
            self.records.append(record._replace(offset=len(self.records)))
        return base


@dataclass(slots=True)
class Process:
    """One that wants the lock, holds it for a while, gives it back, and wants it again."""

    number: int
    rate: float
    start_s: float
    make: MakeContender
    board: ContestBoard = field(default_factory=lambda: ContestBoard(lambda claim: None))
    position: int = 0
    contender: Contender | None = None
    phase: str = "idle"
    acquired: int = 0
    writing: int = 0
    """The number of the write whose response is waited for, 0 if there is none."""
    stopped_until_s: float = 0.0
    until_s: float = 0.0
    claims: int = 0

    def clock_s(self, now_s: float) -> float:
        """Its own clock at a real moment."""
        return self.start_s + now_s * self.rate

    def believes(self, now_s: float) -> bool:
        """Would it say that it holds the lock, if it were asked now?"""
        if self.contender is None or self.phase not in BELIEVING:
            return False
        return self.contender.holds(self.clock_s(now_s))

    def read(self, log: ModelLog, end_offset: int, now_s: float) -> None:
        self.board.leader_time.note(self.clock_s(now_s))
        for record in log.records[self.position : end_offset]:
            change = KeyChange(record.key or b"", record.value, record.offset, 0)
            self.board.apply(change, self.clock_s(now_s))
        self.position = max(self.position, end_offset)


class LockModel:
    """One run. `pace` below 1 makes readers, requests and responses so much quicker.

    With `only_outages` nothing goes wrong but that there is no leader for a while: no process is stopped, and
    no request late or lost.
    """

    def __init__(
        self,
        seed: int,
        make: MakeContender = Contender,
        *,
        size: int = 4,
        pace: float = 1.0,
        only_outages: bool = False,
    ) -> None:
        self.draw = random.Random(seed)
        self._pace = pace
        self._has_outages = True
        self._outage_end_s = 0.0
        self.log = ModelLog()
        self.now_s = 0.0
        self.is_calm = only_outages
        self._held_s = self.draw.choice([0.1, 2.0])
        self.processes = [
            Process(n, self.draw.uniform(*RATES), self.draw.uniform(-1e4, 1e4), make)
            for n in range(size)
        ]
        self.tokens: list[int] = []
        self.overtaken = 0
        self.handed_over = 0
        self.expelled = 0
        """Places in the queue that others have deleted."""
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._writes = itertools.count(1)

    def run(self, seconds: float) -> None:
        """Raises Overlap."""
        for process in self.processes:
            self._tick_later(process)
        self._later(self.draw.uniform(0.0, 10.0), self._lose_the_leader)
        self._run_until(seconds)
        self.is_calm = True
        self._has_outages = False
        before = [process.acquired for process in self.processes]
        self._run_until(seconds + CALM_S)
        for process, count in zip(self.processes, before, strict=True):
            assert process.acquired > count, f"{process.number} never has it again"

    def _run_until(self, end_s: float) -> None:
        while self._events and self._events[0][0] < end_s:
            # Beliefs end by clocks alone, and begin in events: to judge behind each of these is enough.
            self.now_s, _, action = heapq.heappop(self._events)
            action()
            self._judge()

    def _judge(self) -> None:
        now_s = self.now_s
        believers = [
            each.number
            for each in self.processes
            if each.phase in BELIEVING and each.believes(now_s)
        ]
        if len(believers) > 1:
            raise Overlap(f"at {now_s:.3f} {believers}")

    def _later(self, delay_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_s + delay_s, next(self._order), action))

    def _delay_s(self) -> float:
        if self.is_calm or self.draw.random() < 0.8:
            return self.draw.uniform(0.001, 0.05) * self._pace
        return self.draw.uniform(0.05, 1.6)

    @property
    def _has_leader(self) -> bool:
        return self.now_s >= self._outage_end_s

    def _lose_the_leader(self) -> None:
        if self._has_outages:
            self._outage_end_s = self.now_s + self.draw.choice([0.3, 1.0, 4.0, 12.0])
            self._later(self.draw.uniform(1.0, 20.0), self._lose_the_leader)

    # -- a process

    def _tick_later(self, process: Process) -> None:
        delay_s = self.draw.uniform(0.01, 0.12) * self._pace
        self._later(delay_s, lambda: self._tick(process))

    def _tick(self, process: Process) -> None:
        self._tick_later(process)
        if self.now_s < process.stopped_until_s and not self.is_calm:
            return
        if not self.is_calm and self.draw.random() < 0.02 * self._pace:
            process.stopped_until_s = self.now_s + self.draw.uniform(0.1, 3.0)
            return
        end_offset = len(self.log.records)
        if not self.is_calm and self.draw.random() < 0.3:
            end_offset = self.draw.randint(process.position, end_offset)
        if self._has_leader:
            process.read(self.log, end_offset, self.now_s)
        if process.writing:
            return
        clock_s = process.clock_s(self.now_s)
        match process.phase:
            case "idle":
                self._begin(process)
            case "wanting":
                self._want(process, clock_s)
            case "holding":
                self._hold(process, clock_s)
            case "leaving":
                self._leave(process)

    def _begin(self, process: Process) -> None:
        process.claims += 1
        claim = f"{process.number:016x}{process.claims:016x}"
        record = ClaimRecord("o", "h", 1, "", "", TTL_MS, claim, f"{process.number:032x}")
        process.board.live.add(claim)
        process.contender = process.make(PLACE, record)
        process.phase = "wanting"

    def _want(self, process: Process, clock_s: float) -> None:
        assert process.contender is not None
        contest = process.board.contest(PLACE)
        step = process.contender.next_step(contest, process.position, clock_s)
        if step is None:
            process.phase = "holding"
            process.acquired += 1
            process.until_s = self.now_s + self.draw.uniform(0.0, self._held_s)
            self.tokens.append(process.contender.token)
        elif not self.is_calm and self.draw.random() < 0.02 * self._pace:
            process.phase = "leaving"
        elif isinstance(step, ClaimWrite):
            self._send(process, step)

    def _hold(self, process: Process, clock_s: float) -> None:
        assert process.contender is not None
        contest = process.board.contest(PLACE)
        step = process.contender.keep_step(contest, process.position, clock_s)
        if step is None or self.now_s >= process.until_s:
            process.phase = "leaving"
            self.overtaken += step is None
        elif isinstance(step, ClaimWrite):
            self._send(process, step)
        else:
            assert isinstance(step, WaitUntil)

    def _leave(self, process: Process) -> None:
        assert process.contender is not None
        process.board.give_up(PLACE, process.contender.claim)
        clock_s = process.clock_s(self.now_s)
        contest = process.board.contest(PLACE)
        step = process.contender.leave_step(contest, process.position, clock_s)
        if step is None:
            process.phase = "idle"
        else:
            self._send(process, step)

    def _is_queued(self, claim: str) -> bool:
        return self.log.has(Place(PLACE.kind, PLACE.name, claim).key)

    # -- a write

    def _send(self, process: Process, write: ClaimWrite) -> None:
        number = process.writing = next(self._writes)
        contender = process.contender
        assert contender is not None
        fate = 1.0 if self.is_calm else self.draw.random()
        copies = 0 if fate < 0.05 else 2 if fate < 0.15 else 1

        def arrive() -> None:
            if not self._has_leader:
                if process.writing == number:
                    self._later(self.draw.uniform(0.01, 0.05), arrive)
                return
            is_queued = self._is_queued(claim_record_of(write.records[0].value or b"").claim)
            base = self.log.append(write)
            if base is not None and write.intent is Intent.HAND_OVER:
                self.handed_over += 1
                if not is_queued:
                    raise NoHeir(f"at {self.now_s:.3f}, handed over by {process.number}")
            elif base is not None:
                own = (PLACE.key, Place(PLACE.kind, PLACE.name, contender.claim).key)
                self.expelled += sum(record.key not in own for record in write.records)
            if self.is_calm or self.draw.random() > 0.1:
                self._later(self._delay_s(), lambda: respond(base))

        def respond(base: int | None) -> None:
            if process.writing != number:
                return
            if self.now_s < process.stopped_until_s and not self.is_calm:
                self._later(process.stopped_until_s - self.now_s, lambda: respond(base))
                return
            process.writing = 0
            if base is not None:
                contender.acknowledged(write, base)

        def give_up() -> None:
            if process.writing == number:
                process.writing = 0

        for _ in range(copies):
            self._later(self._delay_s(), arrive)
        self._later(RESPONSE_S, give_up)
