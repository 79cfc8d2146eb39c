"""A claim as it lives: it contends for a name, holds and renews it, and gives it back."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack, nullcontext, suppress
from typing import Final, Literal

from quorumd.client.conditional import ReadAgain
from quorumd.client.coordination.claim_record import ClaimRecord, this_process
from quorumd.client.coordination.contender import (
    ClaimWrite,
    Contender,
    Intent,
    WaitUntil,
    may_be_over,
    watching_s,
)
from quorumd.client.coordination.coordinator import Coordinator
from quorumd.client.coordination.errors import NotAcquired
from quorumd.client.coordination.termination import TERMINATION
from quorumd.client.errors import (
    AppendFailed,
    ClientClosed,
    Conflict,
    QuorumError,
    QuorumUnavailable,
)
from quorumd.client.timing import RetryBackoff
from quorumd.security.errors import CertificateProblem

GIVE_BACK_S: Final = 5.0
"""Limit of the time to give a name back; after it the name is left to its ttl."""
_TRY_S_MIN: Final = 0.25
_TRY_S_MAX: Final = 3.0
_TRIES_PER_TTL: Final = 4


class LossEvent(asyncio.Event):
    """Set when what was held is lost. `is_set` reads the clock, so that it is true as soon as it is time,
    also for a process that was stopped meanwhile, and before the event loop has had a turn. In a forked child
    it is set: what a parent holds is not its child's."""

    def __init__(self, is_over: Callable[[], bool]) -> None:
        super().__init__()
        self._is_over = is_over

    def is_set(self) -> bool:
        """Is it lost?"""
        if not super().is_set() and self._is_over():
            self.set()
        return super().is_set()

    async def wait(self) -> Literal[True]:
        """Returns when it is lost."""
        return True if self.is_set() else await super().wait()


class Tenure:
    """One claim: `acquire` it once, `release` it once."""

    def __init__(self, coordinator: Coordinator, contender: Contender) -> None:
        self.lost = LossEvent(self._is_over)
        self._coordinator = coordinator
        self._contender = contender
        self._place = contender.place
        self._wake = asyncio.Event()
        self._stack = ExitStack()
        self._writing: asyncio.Task[None] | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._pid = os.getpid()
        self._token = -1
        self._is_left = False
        self._leaving = asyncio.Lock()
        self._unwritten: QuorumUnavailable | CertificateProblem | None = None
        """The reason why its last write reached no leader; None if that reached one."""

    @property
    def token(self) -> int:
        """The offset of the record that acquired the name; -1 before."""
        return self._token

    def _is_over(self) -> bool:
        if self._token < 0:
            return False
        holds = self._contender.holds(self._coordinator.now_s())
        return self._is_left or self._is_of_parent or not holds

    @property
    def _is_of_parent(self) -> bool:
        """This is a forked child. Its copy is not renewed, and learns of nothing that becomes of the name."""
        return os.getpid() != self._pid

    async def acquire(self, wait_s: float | None) -> int:
        """The token, when the name is held. Raises NotAcquired after `wait_s` seconds.

        Raises QuorumUnavailable only if no leader responds for the client's timeout in the beginning, while
        the log is read for the first time, or with a `wait_s` of 0; and what ends the reader.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + wait_s if wait_s else None
        try:
            async with asyncio.timeout_at(until_s):
                await self._coordinator.enter()
        except TimeoutError:
            raise NotAcquired(self._place.in_words, wait_s or 0, self._coordinator.unread) from None
        if wait_s == 0:
            until_s = loop.time() + self._coordinator.client.timeout_ms / 1000
        self._stack.callback(self._coordinator.leave)
        waking = self._coordinator.waking(self._place, self._contender.claim)
        self._wake = self._stack.enter_context(waking)
        TERMINATION.guard(self)
        self._stack.callback(TERMINATION.unguard, self)
        try:
            has_it = await self._has_in_time(until_s, queues=wait_s != 0)
            if not has_it and not await self._outlasts():
                raise self._not_acquired(wait_s or 0)
        except BaseException:
            await self._leave()
            raise
        self._token = self._contender.token
        self._set_timer()
        self._keeper = asyncio.create_task(self._keep())
        return self._token

    async def release(self) -> bool:
        """Gives the name back. True if it was held until now; what is lost stays lost.

        Does nothing in a forked child: its parent holds the name, and uses the connections.
        """
        if self._is_of_parent:
            return False
        was_held = not self.lost.is_set()
        if self._keeper is not None:
            self._keeper.cancel()
        self._is_left = True
        if self._timer is not None:
            self._timer.cancel()
        await self._leave()
        return was_held

    # -- on the way to the name

    @property
    def _outage(self) -> QuorumUnavailable | CertificateProblem | None:
        """The reason why no leader is reached at the moment."""
        return self._unwritten or self._coordinator.problem

    async def _has_in_time(self, until_s: float | None, *, queues: bool) -> bool:
        try:
            async with asyncio.timeout_at(until_s):
                return await self._contend(lambda step: queues or not _queues(step))
        except TimeoutError:
            if queues:
                return False
        # The write that is under way tells if a leader responds.
        await self._written()
        if (outage := self._outage) is not None:
            raise outage
        return await self._contend(lambda _: False)

    async def _outlasts(self) -> bool:
        """The time is over, but the holder may be dead, or all who wait for a free name: then they are
        watched for as long as the rules want, by the own clock, or until there is a sign of life.

        Else a process that waits for less than a ttl, and ends, could never have what a dead one holds.
        """
        coordinator = self._coordinator
        contest = coordinator.contest(self._place)
        wall_ms = time.time_ns() // 1_000_000
        if self._outage is not None or not may_be_over(contest, wall_ms):
            return False
        watched = contest.holder

        def is_unchanged(_: object) -> bool:
            holder = coordinator.contest(self._place).holder
            return holder is None or (watched is not None and holder.offset == watched.offset)

        try:
            async with asyncio.timeout(watching_s(contest) + _TRY_S_MAX):
                await self._written()
                return await self._contend(is_unchanged)
        except TimeoutError:
            return False

    async def _contend(self, goes_on: Callable[[ClaimWrite | WaitUntil], bool]) -> bool:
        """True when the name is held; False as soon as this is not to go on."""
        coordinator, contender = self._coordinator, self._contender
        while True:
            coordinator.check()
            self._wake.clear()
            now_s = coordinator.now_s()
            step = contender.next_step(
                coordinator.contest(self._place), coordinator.end_offset, now_s
            )
            if step is None:
                return True
            if not goes_on(step):
                return False
            if isinstance(step, WaitUntil):
                await self._wait(step, now_s)
            else:
                await self._perform(step)

    def _not_acquired(self, wait_s: float) -> Exception:
        holder = self._coordinator.contest(self._place).holder
        held_by = "others wait for it"
        if holder is not None:
            record = holder.record
            comment = f" ({record.comment})" if record.comment else ""
            held_by = (
                f"{record.owner} on {record.host}, pid {record.pid}, has it since "
                f"{record.since}{comment}"
            )
        elif self._outage is not None:
            if not wait_s:
                return self._outage
            held_by = "no leader of the quorum responds"
        return NotAcquired(self._place.in_words, wait_s, held_by)

    # -- once it is held

    async def _keep(self) -> None:
        coordinator, contender = self._coordinator, self._contender
        backoff = RetryBackoff()
        try:
            while True:
                self._wake.clear()
                now_s = coordinator.now_s()
                step = contender.keep_step(
                    coordinator.contest(self._place), coordinator.end_offset, now_s
                )
                if step is None or coordinator.is_closed:
                    return
                if isinstance(step, WaitUntil):
                    await self._wait(step, now_s)
                    continue
                try:
                    await self._perform(step)
                    backoff.reset()
                except (QuorumError, CertificateProblem):
                    await asyncio.sleep(backoff.next_s())
                self._set_timer()
        finally:
            self._is_left = True
            self.lost.set()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay_s = self._contender.held_until_s - self._coordinator.now_s()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(0.0, delay_s), self._on_timer)

    def _on_timer(self) -> None:
        if self.lost.is_set():
            self._wake.set()
        elif self._contender.held_until_s > self._coordinator.now_s():
            self._set_timer()

    # -- the end

    async def _leave(self) -> None:
        """Whatever is in the log of this claim is deleted, if that is possible in time.

        A cancellation meanwhile comes out behind that: else others would have to wait for the ttl.
        """
        self._coordinator.board.give_up(self._place, self._contender.claim)
        until_s = asyncio.get_running_loop().time() + GIVE_BACK_S
        async with self._leaving:
            try:
                try:
                    await self._delete(until_s)
                except asyncio.CancelledError:
                    await self._delete(until_s)
                    raise
            finally:
                if self._writing is not None:
                    self._writing.cancel()
                self._stack.close()

    async def _delete(self, until_s: float) -> None:
        coordinator, contender = self._coordinator, self._contender
        with suppress(TimeoutError, QuorumError, CertificateProblem):
            async with asyncio.timeout_at(until_s):
                if self._keeper is not None:
                    await asyncio.gather(self._keeper, return_exceptions=True)
                await self._written()
                while True:
                    coordinator.check()
                    if coordinator.contest(self._place).queue:
                        # To hand the name over, it has to know the queue behind its own record.
                        await coordinator.reach(contender.offset + 1)
                    contest = coordinator.contest(self._place)
                    step = contender.leave_step(
                        contest, coordinator.end_offset, coordinator.now_s()
                    )
                    if step is None:
                        break
                    await self._perform(step)

    # -- what all of them do

    async def _wait(self, until: WaitUntil, now_s: float) -> None:
        if until.at_s is None:
            await self._wake.wait()
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, until.at_s - now_s)):
                await self._wake.wait()

    async def _written(self) -> None:
        """Returns when no write of it is under way any more."""
        if self._writing is not None:
            with suppress(QuorumError, CertificateProblem):
                await asyncio.shield(self._writing)

    async def _perform(self, step: ClaimWrite) -> None:
        """One try. What comes of it is seen on the board, or known already, when this returns.

        Raises AppendFailed if it is refused for other reasons than keys that have changed.
        """
        self._writing = asyncio.create_task(self._write(step))
        try:
            await asyncio.shield(self._writing)
        except Conflict as conflict:
            await self._coordinator.reach(conflict.offset + 1)
        except ReadAgain as again:
            await self._coordinator.reach(again.end_offset)
        except AppendFailed as failed:
            # Of a client that was closed the coordinator says so.
            if not isinstance(
                failed.__cause__, (QuorumUnavailable, CertificateProblem, ClientClosed)
            ):
                raise

    async def _write(self, step: ClaimWrite) -> None:
        try_s = min(_TRY_S_MAX, max(_TRY_S_MIN, self._contender.ttl_s / _TRIES_PER_TTL))
        # A claim that only queues, or leaves the queue, does not delay renewals of others.
        of_holder = any(record.key == self._place.key for record in step.records)
        turn = nullcontext() if of_holder else self._coordinator.turns
        try:
            async with turn:
                offset = await self._coordinator.append(step.records, step.since, try_s)
        except QuorumError as error:
            cause = error.__cause__
            self._unwritten = (
                cause if isinstance(cause, (QuorumUnavailable, CertificateProblem)) else None
            )
            raise
        self._unwritten = None
        self._contender.acknowledged(step, offset)


def _queues(step: ClaimWrite | WaitUntil) -> bool:
    return isinstance(step, ClaimWrite) and step.intent is Intent.QUEUE


def new_record(
    coordinator: Coordinator, *, owner: str | None, comment: str, ttl_ms: int, value: str
) -> ClaimRecord:
    """The record of a claim that is made now."""
    return this_process(
        owner=owner,
        comment=comment,
        ttl_ms=ttl_ms,
        claim=uuid.uuid4().hex,
        client=coordinator.client_uuid,
        value=value,
    )
