"""Slots for inbound connections: max.connections for clients, reserved slots for replicas and operators.

A connection is new until its first request identifies its client. New connections have slots of their own, so
that one that sends nothing takes no slot of a client or a peer. Each voter has reserved slots, and so has
`quorumctl` on this host: whatever clients do, a voter reaches its leader. Observers have a few in common, so
that a new replica can be added, and else count as clients. The client id in a request's header identifies
them: replicas, Apache Kafka's too, are `raft-client-<id>`. On a listener with TLS the certificate has to be
that replica's as well. Without TLS any host can claim such an id: where slots run out, a connection from the
address at which this node reached that voter last displaces those from elsewhere, and new connections from
voters' addresses and from this host stay. Belongs to the event loop's thread.
`max.connections.per.ip` and `max.connection.creation.rate` are in `connection_quotas`.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from functools import partial
from types import MappingProxyType
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from quorumd.raft.types import Endpoint
from quorumd.security.identity import Identity
from quorumd.server.net.connection_state import CloseReason
from quorumd.server.net.displacement import ConnectionsByAddress
from quorumd.wire.registry import API_VERSIONS_KEY

NEW_MAX: Final = 1_024
"""More than the kernel accepts in one turn: none is displaced before its first request could be read."""
NEW_NS: Final = 5_000_000_000
"""Time that a new connection may send nothing."""
PEER_MAX: Final = 40
"""Slots of each replica: four for links, one for each of 16 changes of voters that it passes on, and as many
again while it reconnects."""
OBSERVER_MAX: Final = 16
"""Slots of all observers together, for four of them that are added at the same time."""
OPERATOR_MAX: Final = 8
OPERATOR_ID: Final = "quorumctl"
IDLE_NS: Final = 1_000_000_000
"""A connection that sent a request within this time is not displaced."""

_ANY: Final = ""
"""Stands for all listeners."""

_REPLICAS_CLIENT_ID: Final = re.compile(r"raft-client-(\d{1,10})", re.ASCII)


def client_id_of(replica_id: int) -> str:
    """The client id of a replica's requests, as Apache Kafka's replicas have it."""
    return f"raft-client-{replica_id}"


def replica_of(client_id: str) -> int | None:
    """The replica that has this client id; None if it is none's."""
    named = _REPLICAS_CLIENT_ID.fullmatch(client_id)
    return None if named is None else int(named[1])


class ConnectionKind(StrEnum):
    """The client at the other end, as far as its requests have identified it."""

    NEW = "new"
    CLIENT = "client"
    PEER = "peer"
    OBSERVER = "observer"
    OPERATOR = "operator"


class KnownPeers(Protocol):
    """The part of the quorum's state that decides about slots."""

    def is_voter_or_leader(self, replica_id: int) -> bool:
        """True for a voter of the log or of the configuration, and for the known leader."""

    def is_voters_ip(self, ip: str) -> bool:
        """True if a replica that votes or leads now was reached there last."""

    def is_ip_of(self, replica_id: int, ip: str) -> bool:
        """True if this replica was reached there last."""

    def on_peer_connected(self, replica_id: int) -> None:
        """A connection was identified as such a replica's: its process runs."""


class SlotHolder(Protocol):
    """A connection that holds a slot, or wants one."""

    listener: Endpoint
    ip: str
    is_local: bool
    """The other end is on this host."""
    active_ns: int
    identity: Identity | None
    """Of the client's certificate; None without TLS."""

    @property
    def in_flight(self) -> int: ...
    @property
    def is_silent(self) -> bool:
        """No byte has arrived."""

    def abort(self, closed: CloseReason, reason: str) -> None: ...


class _Pool(NamedTuple):
    """The slots of one kind, and of one replica if that kind is PEER."""

    kind: ConnectionKind
    replica_id: int = -1
    """Of a peer; for new connections 0 if they come from a voter's address or this host."""


_NEW_FROM_ELSEWHERE: Final = _Pool(ConnectionKind.NEW)
_NEW_FROM_QUORUM: Final = _Pool(ConnectionKind.NEW, 0)
_CLIENTS: Final = _Pool(ConnectionKind.CLIENT)
_OBSERVERS: Final = _Pool(ConnectionKind.OBSERVER)
_OPERATORS: Final = _Pool(ConnectionKind.OPERATOR)
_RESERVED: Final = {
    ConnectionKind.PEER: PEER_MAX,
    ConnectionKind.OBSERVER: OBSERVER_MAX,
    ConnectionKind.OPERATOR: OPERATOR_MAX,
}

C = TypeVar("C", bound=SlotHolder)


class ConnectionSlots(Generic[C]):
    """The slots of a node and the connections that hold them. `counts`, by kind, is kept up to date."""

    def __init__(
        self,
        max_clients: int,
        known: KnownPeers | None,
        counts: dict[str, int],
        new_max: int = NEW_MAX,
        may_speak_for: Callable[[str, str, int], bool] | None = None,
        is_behind: Callable[[int], bool] | None = None,
        max_clients_of: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """`may_speak_for` tells whether a principal of a TLS listener is this replica's; without it, each is.

        `is_behind` tells of a replica whether its links are plaintext still, where those of nodes are TLS;
        without it they are plaintext. `max_clients_of` bounds the clients of one listener, by its name.
        """
        self._max_clients = max_clients
        self._max_clients_of = max_clients_of
        self._clients_of = dict.fromkeys(max_clients_of, 0)
        self._known = known
        self._counts = counts
        self._new_max = new_max
        self._may_speak_for = may_speak_for
        self._is_behind = is_behind
        self._pools: dict[_Pool, ConnectionsByAddress[C]] = {
            pool: ConnectionsByAddress()
            for pool in (_NEW_FROM_ELSEWHERE, _NEW_FROM_QUORUM, _CLIENTS)
        }
        self._pool_of: dict[C, _Pool] = {}
        self._seen_ns: dict[C, int] = {}
        self._idle: dict[str, deque[C]] = {}
        """Clients to be displaced, the longest idle first: of a listener that is full, by its name, or of
        _ANY; kept only while no slot is free there."""

    def enter(self, connection: C) -> bool:
        """Give a new connection a slot. Returns False if none can be made free.

        Of the address that has the most new connections the oldest is displaced first; those of voters'
        addresses and of this host last.
        """
        elsewhere, quorum = self._pools[_NEW_FROM_ELSEWHERE], self._pools[_NEW_FROM_QUORUM]
        is_of_quorum = connection.is_local or self.has_voters_ip(connection)
        pool = _NEW_FROM_QUORUM if is_of_quorum else _NEW_FROM_ELSEWHERE
        if len(elsewhere) + len(quorum) >= self._new_max:
            oldest = elsewhere.oldest_of_crowd()
            if oldest is None and pool is _NEW_FROM_QUORUM:
                oldest = next(iter(quorum), None)
            if oldest is None:
                return False
            self._displace(oldest)
        self._put(connection, pool)
        return True

    def identify(self, connection: C, api_key: int, client_id: str) -> tuple[bool, bool]:
        """Identify the client by a request. Returns whether it has a slot, and whether that is final.

        ApiVersions, with which most connections begin, identifies no client and displaces no connection:
        where no slot is free, a connection that sends nothing else stays among the new ones.
        """
        is_api_versions = api_key == API_VERSIONS_KEY
        wanted = self._pool_for(connection, client_id)
        current = self._pool_of.get(connection)
        if current == wanted:
            return True, not is_api_versions or wanted != _CLIENTS
        has_free = partial(self._has_free_slot, connection)
        # These are displaced only where there is no slot at all: most observers are clients, and a command
        # that follows the log, or holds a lock, goes on for days.
        is_last_resort = wanted in (_OBSERVERS, _OPERATORS) and not has_free(wanted)
        free_first = is_last_resort and (current == _CLIENTS or has_free(_CLIENTS))
        pools = (_CLIENTS,) if free_first else (wanted, _CLIENTS)
        for pool in dict.fromkeys(pools):
            if pool == current:
                return True, not is_api_versions
            if has_free(pool) or (not is_api_versions and self._displaces_one(pool, connection)):
                self.leave(connection)
                self._put(connection, pool)
                if self._known is not None and pool.kind is ConnectionKind.PEER:
                    self._known.on_peer_connected(pool.replica_id)
                return True, not is_api_versions or pool != _CLIENTS
        if is_api_versions:
            return True, False
        self.leave(connection)
        return False, True

    def is_peer(self, connection: C) -> bool:
        """True for another node of the quorum, as far as it has shown that it is one."""
        pool = self._pool_of.get(connection)
        return pool is not None and pool.kind is ConnectionKind.PEER

    def leave(self, connection: C) -> None:
        """Free the slot of a connection that is closed or about to be; it may have none."""
        pool = self._pool_of.pop(connection, None)
        if pool is not None:
            self._pools[pool].discard(connection)
            self._counts[pool.kind] -= 1
            self._count_client(connection, pool, -1)

    def sweep(self, now_ns: int) -> None:
        """Every second: closes new connections that were silent for NEW_NS, and finds idle clients."""
        for pool in (_NEW_FROM_ELSEWHERE, _NEW_FROM_QUORUM):
            for connection in list(self._pools[pool]):
                if connection.is_silent and connection.active_ns <= now_ns - NEW_NS:
                    self.leave(connection)
                    connection.abort(CloseReason.SILENT, "it sent no request within five seconds")
        clients = self._pools[_CLIENTS]
        full = [name for name in self._max_clients_of if self.limit_of(name) is not None]
        if len(clients) < self._max_clients and not full:
            self._seen_ns.clear()
            self._idle.clear()
            return
        # A response may be newer than its request by far: idle is what did not change between two sweeps.
        seen_ns = self._seen_ns
        self._seen_ns = {each: each.active_ns for each in clients if not each.in_flight}
        idle = [each for each, at_ns in self._seen_ns.items() if seen_ns.get(each) == at_ns]
        idle.sort(key=lambda each: each.active_ns)
        self._idle = {
            name: deque(each for each in idle if each.listener.name == name) for name in full
        }
        self._idle[_ANY] = deque(idle)

    def limit_of(self, listener: str) -> int | None:
        """Limit of clients of a listener that has reached it; None if it may have more."""
        limit = self._max_clients_of.get(listener)
        return limit if limit is not None and self._clients_of[listener] >= limit else None

    def _count_client(self, connection: C, pool: _Pool, change: int) -> None:
        name = connection.listener.name
        if pool == _CLIENTS and name in self._clients_of:
            self._clients_of[name] += change

    def has_voters_ip(self, connection: C) -> bool:
        """True if a node of the quorum was last reached at its address."""
        return self._known is not None and self._known.is_voters_ip(connection.ip)

    def _pool_for(self, connection: C, client_id: str) -> _Pool:
        known, replica_id = self._known, replica_of(client_id)
        if known is not None and replica_id is not None and self._may_be(connection, replica_id):
            if known.is_voter_or_leader(replica_id):
                return _Pool(ConnectionKind.PEER, replica_id)
            return _OBSERVERS
        if client_id == OPERATOR_ID and connection.is_local:
            return _OPERATORS
        return _CLIENTS

    def _may_be(self, connection: C, replica_id: int) -> bool:
        """True if nothing is against a connection's being this replica's."""
        identity = connection.identity
        if identity is None:
            if self._is_behind is None:
                return True
            return self._is_behind(replica_id) and self._is_from(connection, replica_id)
        name, may_speak_for = connection.listener.name, self._may_speak_for
        return may_speak_for is None or may_speak_for(name, identity.principal, replica_id)

    def _is_from(self, connection: C, replica_id: int) -> bool:
        """True if it comes from this replica: by its certificate, or from where the replica was reached."""
        if connection.identity is not None:
            return True
        return self._known is not None and self._known.is_ip_of(replica_id, connection.ip)

    def _has_free_slot(self, connection: C, pool: _Pool) -> bool:
        held = self._pools.get(pool)
        if held is None:
            held = self._pools[pool] = ConnectionsByAddress()
        if pool is _CLIENTS:
            is_full = self.limit_of(connection.listener.name) is not None
            return len(held) < self._max_clients and not is_full
        return len(held) < _RESERVED[pool.kind]

    def _displaces_one(self, pool: _Pool, incoming: C) -> bool:
        """Displace a connection from a pool that is full. Returns False if none may be."""
        held = self._pools[pool]
        if pool is _CLIENTS:
            name = incoming.listener.name
            chosen = self._idle_client(_ANY if self.limit_of(name) is None else name)
        elif pool is _OPERATORS:
            until_ns = incoming.active_ns - IDLE_NS
            chosen = _longest_idle(each for each in held if each.active_ns <= until_ns)
        elif pool is _OBSERVERS:
            chosen = self._of_crowded_address(incoming)
        else:
            chosen = self._least_of_peer(pool, incoming)
        if chosen is not None:
            self._displace(chosen)
        return chosen is not None

    def _least_of_peer(self, pool: _Pool, incoming: C) -> C | None:
        """Of a replica's connections: one from elsewhere, even if it waits for a response, then an idle one.

        Nobody from elsewhere displaces one that comes from the replica.
        """
        held = self._pools[pool]
        elsewhere = [each for each in held if not self._is_from(each, pool.replica_id)]
        idle = _longest_idle(elsewhere)
        if idle is not None or not self._is_from(incoming, pool.replica_id):
            return idle
        return min(elsewhere, key=lambda each: each.active_ns, default=None) or _longest_idle(held)

    def _of_crowded_address(self, incoming: C) -> C | None:
        """One of the address with the most observers: the longest idle, else that with the oldest request.

        Any host can claim to be one: so an address has no more slots than others leave it.
        """
        held = self._pools[_OBSERVERS]
        counts = Counter(each.ip for each in held)
        most = max(counts.values())
        if counts[incoming.ip] + 1 >= most:
            return None
        crowd = [each for each in held if counts[each.ip] == most]
        return _longest_idle(crowd) or min(crowd, key=lambda each: each.active_ns)

    def _idle_client(self, listener: str) -> C | None:
        candidates = self._idle.get(listener)
        while candidates:
            found = candidates.popleft()
            is_same = self._seen_ns.get(found) == found.active_ns and not found.in_flight
            if is_same and self._pool_of.get(found) == _CLIENTS:
                return found
        return None

    def _put(self, connection: C, pool: _Pool) -> None:
        self._pools[pool].add(connection, connection.ip)
        self._pool_of[connection] = pool
        self._counts[pool.kind] += 1
        self._count_client(connection, pool, 1)

    def _displace(self, connection: C) -> None:
        self.leave(connection)
        connection.abort(CloseReason.DISPLACED, "another connection needed its slot")


def _longest_idle(connections: Iterable[C]) -> C | None:
    idle = (each for each in connections if not each.in_flight)
    return min(idle, key=lambda each: each.active_ns, default=None)
