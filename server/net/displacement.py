"""Choice of the connection that makes room when a limit is full: one address fills none for others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class ConnectionsByAddress(Generic[T]):
    """Connections, the oldest first, each with the address that it comes from.

    Thousands may come at once, and each displaces one: to find that takes time for each address, not for each
    connection.
    """

    def __init__(self) -> None:
        self._ips: dict[T, str] = {}
        self._of_ip: dict[str, dict[T, None]] = {}
        """Without addresses that have none."""

    def __len__(self) -> int:
        return len(self._ips)

    def __iter__(self) -> Iterator[T]:
        return iter(self._ips)

    def add(self, connection: T, ip: str) -> None:
        """Add the youngest connection."""
        self._ips[connection] = ip
        self._of_ip.setdefault(ip, {})[connection] = None

    def discard(self, connection: T) -> None:
        """Remove a connection if it is there."""
        ip = self._ips.pop(connection, None)
        if ip is None:
            return
        of_ip = self._of_ip[ip]
        del of_ip[connection]
        if not of_ip:
            del self._of_ip[ip]

    def oldest_of_crowd(self) -> T | None:
        """The oldest connection of the address that has the most; None without connections."""
        crowd = max(self._of_ip.values(), key=len, default=None)
        return None if crowd is None else next(iter(crowd))
