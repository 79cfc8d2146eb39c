"""The threads that make TLS handshakes while the event loop goes on.

A handshake takes one to four milliseconds of a processor, nearly all of it without Python's lock. Each
queue has one thread: a connection made here waits behind no client's hello, one of a voter's address or of
this host behind no stranger's.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor


class Handshakes:
    """One for a process; made without cost, since its threads begin with the first handshake."""

    def __init__(self, is_known: Callable[[str], bool] = lambda ip: False) -> None:
        """`is_known` says of an IP address whether a node of the quorum was reached there."""
        self._is_known = is_known
        self._dialled = ThreadPoolExecutor(1, "tls-dialled")
        self._known = ThreadPoolExecutor(1, "tls-known")
        self._others = ThreadPoolExecutor(1, "tls-others")

    @property
    def dialled(self) -> Executor:
        """For connections that this process makes."""
        return self._dialled

    def accepted(self, ip: str, *, is_local: bool) -> Executor:
        """For one that was accepted from there; `is_local`: the other end is on this host."""
        return self._known if is_local or self._is_known(ip) else self._others

    def close(self) -> None:
        """Begin no step any more; streams whose handshakes are not done are ended."""
        for pool in (self._dialled, self._known, self._others):
            pool.shutdown(wait=False, cancel_futures=True)
