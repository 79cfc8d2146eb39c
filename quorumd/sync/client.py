"""`QuorumClient` for code without asyncio."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from quorumd.client import client as asynchronous
from quorumd.client.client import TIMEOUT_MS_DEFAULT
from quorumd.client.connection import CLIENT_ID_DEFAULT
from quorumd.client.security import Security
from quorumd.raft.types import Address
from quorumd.sync.loop_thread import LoopThread, blocking, iterating


class QuorumClient:
    """A client of one quorum, as quorumd.QuorumClient. `close` it, or use it in `with`.

    Its event loop runs in a daemon thread; what is made of a client ends with it. Every call may raise
    RuntimeError: the client is closed, or was made before a fork.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[Address],
        *,
        client_id: str = CLIENT_ID_DEFAULT,
        timeout_ms: int = TIMEOUT_MS_DEFAULT,
        security: Security | None = None,
    ) -> None:
        self._inner = asynchronous.QuorumClient(
            bootstrap_servers, client_id=client_id, timeout_ms=timeout_ms, security=security
        )
        self._thread = LoopThread()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes all connections and ends the thread. Again, or in a forked child, it does nothing."""
        self._thread.close(self._inner.close)

    append = blocking(asynchronous.QuorumClient.append)
    fetch = blocking(asynchronous.QuorumClient.fetch)
    read = iterating(asynchronous.QuorumClient.read)
    follow = iterating(asynchronous.QuorumClient.follow)
    list_offsets = blocking(asynchronous.QuorumClient.list_offsets)
    describe_quorum = blocking(asynchronous.QuorumClient.describe_quorum)

    @property
    def timeout_ms(self) -> int:
        """Milliseconds: bounds each call that is not given another."""
        return self._inner.timeout_ms

    @property
    def twin(self) -> tuple[LoopThread, asynchronous.QuorumClient]:
        """For what is made of a client: the thread, and the client of asyncio that lives there."""
        return self._thread, self._inner
