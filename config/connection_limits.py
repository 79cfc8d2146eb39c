"""Limits of the connections of a node or of one of its listeners, as configured."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple


class ConnectionLimits(NamedTuple):
    """By address and by second; None: no limit."""

    per_ip: int | None = None
    per_ip_overrides: Mapping[str, int] = MappingProxyType({})
    per_second: int | None = None


NO_LIMITS: Final = ConnectionLimits()


class ListenerLimits(NamedTuple):
    """Of one listener, beside those of the node; `clients` is its max.connections."""

    clients: int | None = None
    quotas: ConnectionLimits = NO_LIMITS
