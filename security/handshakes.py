"""The threads that make TLS handshakes while the event loop goes on.

A handshake takes one to four milliseconds of a processor, nearly all of it without Python's lock. Each
queue has one thread: a connection made here waits behind no client's hello, one of a voter's address or of
this host behind no stranger's. Strangers' addresses take turns, so that a storm from one of them holds up the
others for one step each.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from threading import Lock
from time import monotonic_ns
from typing import Any, Final, ParamSpec, TypeVar

from quorumd.security.tls_protocols import HasRecords, TlsTurns
from quorumd.security.tls_session import FOR_EVER

P = ParamSpec("P")
T = TypeVar("T")


class AddressTurns:
    """One thread whose work is done for one address after the other, each one's in order."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, name)
        self._lock = Lock()
        self._queues: dict[str, deque[tuple[Future[Any], Callable[[], None]]]] = {}
        """By address, of those with work; the next one comes first."""

    def of(self, ip: str) -> Executor:
        """Executor for the handshakes of this address."""
        return _AddressQueue(self, ip)

    def put(self, ip: str, future: Future[Any], work: Callable[[], None]) -> None:
        """Have `work` done, which ends `future`. Raises RuntimeError after `close`."""
        with self._lock:
            self._pool.submit(self._work)
            self._queues.setdefault(ip, deque()).append((future, work))

    def close(self) -> None:
        """Begin nothing any more; what waits is cancelled."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            left = [future for queue in self._queues.values() for future, _ in queue]
            self._queues.clear()
        for future in left:
            future.cancel()

    def _work(self) -> None:
        with self._lock:
            if not self._queues:
                return  # closed meanwhile
            ip = next(iter(self._queues))
            queue = self._queues.pop(ip)
            future, work = queue.popleft()
            if queue:
                self._queues[ip] = queue
        if future.set_running_or_notify_cancel():
            work()


class _AddressQueue(Executor):
    def __init__(self, turns: AddressTurns, ip: str) -> None:
        self._turns = turns
        self._ip = ip

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()

        def work() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # as the library's executors have it
                future.set_exception(error)

        self._turns.put(self._ip, future, work)
        return future


HELD_BYTES_MAX: Final = 32 << 20
"""Bytes that may have come for all handshakes of clients together: beyond, only as much as a first record
is held for each."""


class Handshakes:
    """One for a process; made without cost, since its threads begin with the first handshake."""

    def __init__(
        self, is_known: Callable[[str], bool] = lambda ip: False, turns: TlsTurns | None = None
    ) -> None:
        """`is_known` says of an IP address whether a node of the quorum was reached there.

        `turns` bounds what of the event loop goes to the records of all connections; without it a connection
        has as much as it needs.
        """
        self._is_known = is_known
        self._turns = turns
        self.held_bytes = 0
        """Bytes that have come for all handshakes of clients that are not done; kept by the event loop."""
        self._dialled = ThreadPoolExecutor(1, "tls-dialled")
        self._known = ThreadPoolExecutor(1, "tls-known")
        self._others = AddressTurns("tls-others")

    @property
    def dialled(self) -> Executor:
        """For connections that this process makes."""
        return self._dialled

    def accepted(self, ip: str, *, is_local: bool) -> Executor:
        """For one that was accepted from there; `is_local`: the other end is on this host."""
        return self._known if is_local or self._is_known(ip) else self._others.of(ip)

    def share(self) -> int:
        """Until when a connection may decrypt records that came together (`time.monotonic_ns`)."""
        return FOR_EVER if self._turns is None else self._turns.share(monotonic_ns())

    def later(self, stream: HasRecords, *, goes_first: bool) -> None:
        """Let a connection go on with its records in a turn to come."""
        if self._turns is None:
            asyncio.get_running_loop().call_soon(stream.go_on, FOR_EVER)
        else:
            self._turns.later(stream, goes_first=goes_first)

    def close(self) -> None:
        """Begin no step any more; streams whose handshakes are not done are ended."""
        for pool in (self._dialled, self._known):
            pool.shutdown(wait=False, cancel_futures=True)
        self._others.close()
