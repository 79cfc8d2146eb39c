"""The shared part of all claims of one client: one reader of the log, its board of contests, and its writes.

The reader runs while a claim needs it, and a few seconds longer; it goes on where it stopped.
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from typing import TYPE_CHECKING, Final

from quorumd.client.client import LATEST
from quorumd.client.conditional import append_once
from quorumd.client.coordination.contest import Contest, ContestBoard
from quorumd.client.coordination.keys import PREFIX, Place, place_of
from quorumd.client.coordination.sweep import overdue
from quorumd.client.errors import ClientClosed, QuorumError, QuorumUnavailable
from quorumd.client.events import QuorumLost, QuorumRestored, SnapshotLoaded
from quorumd.client.view import KeyChange, KeyValueMap
from quorumd.security.errors import CertificateProblem
from quorumd.wire.records import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quorumd.client.client import QuorumClient

SWEEP_S: Final = (5.0, 15.0)
"""The pause between two searches for claims that are long over is drawn from between these: of many clients
one comes first, and the others find nothing."""
SWEEP_TRY_S: Final = 3.0
IN_FLIGHT_MAX: Final = 64
NEAR: Final = 1
"""With so many before it a claim is told of each change of the log at once."""
TURN_OVERHEAD_BYTES: Final = 160
"""A hand-over adds less than this to the log, beside its keys and its value, and no change of a name adds as
little as what is left of it. So who waits for the bytes of a turn sleeps through it, and not longer."""
PATIENT_CLAIMS_MAX: Final = 8
LINGER_S: Final = 5.0
"""The reader outlives the last claim by this, for the next one may come at once."""

_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_s() -> float:
    """Seconds of the clock that counts while the machine is suspended, too, where there is one."""
    return time.clock_gettime(_CLOCK)


class Coordinator:
    """One for a client: `client.companion(Coordinator)`."""

    def __init__(self, client: QuorumClient) -> None:
        self.client = client
        self.client_uuid = uuid.uuid4().hex
        self.now_s: Callable[[], float] = boot_s
        self.sweep_s = SWEEP_S
        self.turns = asyncio.Semaphore(IN_FLIGHT_MAX)
        """To be had for a write that is not urgent: ten thousand that come at once would time out."""
        self.board = ContestBoard(self._wake)
        self._map = KeyValueMap(key_filter=_is_ours, on_change=self._on_change)
        self._wakes: dict[str, asyncio.Event] = {}
        self._places: dict[str, Place] = {}
        """Of the claims that are woken."""
        self._watchers: dict[Place, list[asyncio.Event]] = {}
        self._reached: list[tuple[int, asyncio.Future[None]]] = []
        self._written_end = 0
        """Exclusive: what this client itself has written, as far as it knows, is below."""
        self._uses = 0
        self._start: asyncio.Task[None] | None = None
        self._reader: asyncio.Task[None] | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._begins_until: int | None = None
        """Exclusive: while the log is read in the beginning, up to where; else None."""
        self._problem: QuorumUnavailable | CertificateProblem | None = None
        self._error: Exception | None = None

    @property
    def problem(self) -> QuorumUnavailable | CertificateProblem | None:
        """The reason why no leader is reached at the moment, as far as the reader knows."""
        return self._problem

    @property
    def unread(self) -> str:
        """The condition that `enter` waits for, in words."""
        if self._begins_until is None:
            return "no leader of the quorum responds"
        return f"the log is read up to offset {self.end_offset} of {self._begins_until} so far"

    @property
    def end_offset(self) -> int:
        """Exclusive: the board has every committed record below."""
        return self._map.offset

    def contest(self, place: Place) -> Contest:
        """The contest for the name of this place, below `end_offset`."""
        return self.board.contest(place)

    # -- the reader

    async def enter(self) -> None:
        """The board is up to date when this returns, and kept so until `leave`.

        Raises QuorumUnavailable if no leader responds for the client's timeout meanwhile, and as
        QuorumClient.follow does; there is nothing to leave then.
        """
        self._uses += 1
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        if self._start is None or (self._start.done() and not self._is_reading):
            self._start = asyncio.create_task(self._begin())
        try:
            await asyncio.shield(self._start)
        except BaseException:
            self.leave()
            raise

    @property
    def _is_reading(self) -> bool:
        return self._reader is not None and not self._reader.done()

    def leave(self) -> None:
        """Takes back one `enter`."""
        self._uses -= 1
        if self._uses:
            return
        if not self._is_reading:
            self.close()
            return
        self._linger = asyncio.get_running_loop().call_later(LINGER_S, self.close)

    def close(self) -> None:
        """Ends the reader. Claims that still wait get ClientClosed, and holders lose their names."""
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        for task in (self._start, self._reader, self._sweeper):
            if task is not None:
                task.cancel()
        self._start = self._reader = self._sweeper = None
        if self._uses:
            self._end(ClientClosed())

    async def _begin(self) -> None:
        error, self._error = self._error, None
        # After an outage the reader goes on where it was.
        if not isinstance(error, (QuorumUnavailable, CertificateProblem, type(None))):
            live = self.board.live
            self.board = ContestBoard(self._wake)
            self.board.live = live
            self._map = KeyValueMap(key_filter=_is_ours, on_change=self._on_change)
            self._written_end = 0
        self._begins_until = (await self.client.list_offsets(LATEST)).offset
        try:
            self._problem = None
            self._reader = asyncio.create_task(self._follow())
            await self.reach(self._begins_until)
        finally:
            self._begins_until = None
        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._sweep())

    async def _follow(self) -> None:
        position = self._map.offset or None
        try:
            async with aclosing(
                self.client.follow(
                    from_offset=position,
                    on_response=self._on_response,
                    min_bytes=self._min_bytes,
                    waits_for_leader=True,
                )
            ) as events:
                async for event in events:
                    await self._map.apply(event)
                    match event:
                        case QuorumLost():
                            self._problem = event.error
                            if self._begins_until is not None:
                                raise event.error
                        case QuorumRestored():
                            self._problem = None
                        case SnapshotLoaded():
                            self._wake_all()
                    self._wake_reached()
        except Exception as error:
            self._end(error)

    def _min_bytes(self) -> int:
        """Bytes that must be new before this client needs to know: more where all that it wants is a place in
        queues, and others are before it. What adds less delays it by half a second at the most."""
        if self._watchers or self._reached or not 0 < len(self._places) <= PATIENT_CLAIMS_MAX:
            return 1
        return max(1, min(self._bytes_before(*each) for each in self._places.items()))

    def _bytes_before(self, claim: str, place: Place) -> int:
        """Bytes that are added until a claim is near its turn."""
        keys_bytes = len(place.key) + len(Place(place.kind, place.name, claim).key)
        ahead = self.contest(place).ahead_of(claim)
        return sum(len(seen.value) + keys_bytes + TURN_OVERHEAD_BYTES for seen in ahead[:-NEAR])

    def _on_response(self) -> None:
        now_s = self.now_s()
        was_stopped = self.board.leader_time.is_stopped(now_s)
        self.board.leader_time.note(now_s)
        if was_stopped:
            self._wake_all()

    def _end(self, error: Exception) -> None:
        self._error = error
        self._wake_all()
        self._wake_reached()

    async def _sweep(self) -> None:
        draw = random.Random()
        while True:
            await asyncio.sleep(draw.uniform(*self.sweep_s))
            places = overdue(self.board, self.now_s())
            if not places:
                continue
            records = [Record(key=place.key, value=None) for place in places]
            # A claim that was renewed or deleted meanwhile is checked again the next time.
            with suppress(QuorumError, CertificateProblem):
                await self.append(records, self.end_offset, SWEEP_TRY_S)

    def _on_change(self, change: KeyChange) -> None:
        place = self.board.apply(change, self.now_s())
        if place is not None and not place.claim:
            for event in self._watchers.get(place, ()):
                event.set()

    # -- waiting

    @contextmanager
    def waking(self, place: Place, claim: str) -> Iterator[asyncio.Event]:
        """An event that is set whenever something may have changed for this claim."""
        event = self._wakes[claim] = asyncio.Event()
        self._places[claim] = place
        self.board.live.add(claim)
        try:
            yield event
        finally:
            del self._wakes[claim], self._places[claim]
            self.board.give_up(place, claim)

    @contextmanager
    def watching(self, place: Place) -> Iterator[asyncio.Event]:
        """An event that is set when the holder of a name may have changed."""
        event = asyncio.Event()
        watchers = self._watchers.setdefault(place, [])
        watchers.append(event)
        try:
            yield event
        finally:
            watchers.remove(event)
            if not watchers:
                self._watchers.pop(place, None)

    async def reach(self, end_offset: int) -> None:
        """Returns when everything below is on the board. Raises what ended the reader."""
        self.check()
        if self.end_offset < end_offset:
            reached = asyncio.get_running_loop().create_future()
            self._reached.append((end_offset, reached))
            await reached
            self.check()

    async def reach_own(self) -> None:
        """As `reach`, for what this client itself has written; for no longer than its timeout."""
        try:
            async with asyncio.timeout(self.client.timeout_ms / 1000):
                await self.reach(self._written_end)
        except TimeoutError:
            if self._problem is not None:
                raise self._problem from None

    def check(self) -> None:
        """Raises what ended the reader, if it has ended."""
        if self._error is not None:
            raise self._error

    @property
    def is_closed(self) -> bool:
        """Was the client closed while this was in use?"""
        return isinstance(self._error, ClientClosed)

    def _wake(self, claim: str) -> None:
        event = self._wakes.get(claim)
        if event is not None:
            event.set()

    def _wake_all(self) -> None:
        for event in self._wakes.values():
            event.set()
        for watchers in self._watchers.values():
            for event in watchers:
                event.set()

    def _wake_reached(self) -> None:
        if not self._reached:
            return
        is_over = self._error is not None
        waiting, self._reached = self._reached, []
        for end_offset, reached in waiting:
            if not is_over and self.end_offset < end_offset:
                self._reached.append((end_offset, reached))
            elif not reached.done():
                reached.set_result(None)

    # -- writing

    async def append(self, records: Sequence[Record], since: int, timeout_s: float) -> int:
        """The offset of the first record. Raises as `append_once`."""
        timeout_ms = int(timeout_s * 1000)
        offsets = await append_once(self.client, records, since, timeout_ms=timeout_ms)
        self._written_end = max(self._written_end, offsets[-1] + 1)
        return offsets[0]


def _is_ours(key: bytes) -> bool:
    return key.startswith(PREFIX) and place_of(key) is not None
