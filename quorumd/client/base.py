"""The common part of QuorumClient and QuorumAdmin: bootstrap servers, a timeout, `async with`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from quorumd.client.addresses import check_addresses, parse_addresses
from quorumd.client.security import Security
from quorumd.client.timing import Deadline, limit_ms, whole_ms
from quorumd.raft.types import Address


class BaseClient(ABC):
    """`close` it, or use it in `async with`. A text that is no list of addresses raises ValueError.

    So does an empty list, and TypeError one with something else than Addresses in it; either of them a
    timeout that is no number.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[Address],
        timeout_ms: int,
        security: Security | None,
    ) -> None:
        if isinstance(bootstrap_servers, str):
            bootstrap_servers = parse_addresses(bootstrap_servers)
        self.timeout_ms = whole_ms(timeout_ms)
        self._bootstrap = check_addresses(bootstrap_servers)
        self._security = security

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Closes all connections."""

    def _deadline(self, timeout_ms: int | None) -> Deadline:
        return Deadline(limit_ms(timeout_ms, self.timeout_ms))
