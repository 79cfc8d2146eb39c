"""Connection quotas: `max.connections.per.ip`, its overrides, and `max.connection.creation.rate`.

The node has them, and each listener may have its own beside: both hold, as in Kafka, which has no
`max.connections.per.ip` for one listener.

The addresses of other nodes and this host are exempt: whatever clients do, voters reach their leader.
Belongs to the event loop's thread.
Source: Apache Kafka, KIP-402 (max.connections.per.ip) and KIP-612 (max.connection.creation.rate), which
delays what is closed here: a connection that waited would hold a slot.
"""

from __future__ import annotations

from time import monotonic_ns

from quorumd.config.connection_limits import ConnectionLimits


class ConnectionQuotas:
    """Counts connections by address, as far as that is limited."""

    __slots__ = ("_at_ns", "_by_ip", "_counts", "_left", "_per_ip", "_per_second", "_scope")

    def __init__(self, limits: ConnectionLimits, scope: str = "") -> None:
        """`scope` is what the keys of these limits begin with."""
        self._scope = scope
        self._per_ip = limits.per_ip
        self._by_ip = dict(limits.per_ip_overrides)
        self._per_second = limits.per_second
        self._counts: dict[str, int] | None = None
        """By address; None if none is limited."""
        if limits.per_ip is not None or limits.per_ip_overrides:
            self._counts = {}
        self._left = float(limits.per_second or 0)
        self._at_ns = monotonic_ns()

    def enter(self, ip: str, *, is_exempt: bool) -> str | None:
        """Count a connection from this address. Returns the limit that forbids it; it is not counted then."""
        if self._per_second is not None and not is_exempt and not self._is_in_time():
            return f"{self._scope}max.connection.creation.rate={self._per_second}"
        if self._counts is not None:
            count = self._counts.get(ip, 0)
            limit = self._by_ip.get(ip, self._per_ip)
            if limit is not None and count >= limit and not is_exempt:
                return f"{self._scope}max.connections.per.ip={limit}"
            self._counts[ip] = count + 1
        return None

    def leave(self, ip: str) -> None:
        """A connection that was counted is closed."""
        if self._counts is not None:
            left = self._counts.get(ip, 0) - 1
            if left > 0:
                self._counts[ip] = left
            else:
                self._counts.pop(ip, None)

    def _is_in_time(self) -> bool:
        """A token bucket that holds the tokens of one second."""
        assert self._per_second is not None
        now_ns = monotonic_ns()
        grown = self._left + (now_ns - self._at_ns) * self._per_second / 1e9
        self._left = min(float(self._per_second), grown)
        self._at_ns = now_ns
        if self._left < 1:
            return False
        self._left -= 1
        return True
