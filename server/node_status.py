"""Listeners of a node, for `/status` and the page: how they are reached, and by whom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from quorumd.config.model import Config
from quorumd.config.tls import SecurityProtocol
from quorumd.config.tls_port import HTTP
from quorumd.raft.types import Address
from quorumd.server.net.connection import Connection

if TYPE_CHECKING:
    from quorumd.server.node_tls import NodeTls


def access_as_json(
    config: Config, connections: Iterable[Connection], tls: NodeTls | None
) -> dict[str, object]:
    """Listeners and HTTP with their protocol, connections and certificates; how other nodes are reached."""
    counts = Counter(connection.listener.name for connection in connections)
    plaintext = {each.name for each in config.listeners if config.security_of(each.name) is None}
    found: dict[str, object] = {
        "listeners": [
            {
                "name": listener.name,
                "address": str(Address(listener.host, listener.port)),
                "protocol": _protocol(listener.name not in plaintext),
                "connections": counts[listener.name],
                **({} if listener.name in plaintext or tls is None else tls.status(listener.name)),
            }
            for listener in config.advertised_listeners
        ],
        "links": _protocol(config.listeners[0].name not in plaintext),
        "plaintext_connections": sum(counts[name] for name in plaintext),
    }
    if config.http_listen is not None:
        is_tls = config.http_tls is not None
        found["http"] = {
            "address": str(config.http_listen),
            "protocol": _protocol(is_tls),
            **(tls.status(HTTP) if is_tls and tls is not None else {}),
        }
    return found


def _protocol(is_tls: bool) -> str:
    return (SecurityProtocol.SSL if is_tls else SecurityProtocol.PLAINTEXT).value
