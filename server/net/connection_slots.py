"""ConnectionSlots for inbound connections: how many there are of each kind, and who goes when none is free.

A connection is new until its first request shows who asks, and new ones have a room of their own: whoever
says nothing takes no client's place, and no peer's. Voters have places of their own, and so has `quorumctl`
on this host: whatever clients do, a voter reaches its leader. The client id of the first request's header
tells them: replicas, Apache Kafka's too, are `raft-client-<id>`. On a listener with TLS the certificate has
to be that replica's as well. Without TLS anybody can say so: a voter's address goes before others then, as
far as it is known, and so does this host. Belongs to the event loop's thread.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from quorumd.security.identity import Identity
from quorumd.server.net.connection_state import CloseReason
from quorumd.wire.registry import API_VERSIONS_KEY

NEW_MAX: Final = 1_024
"""More than the kernel accepts in one turn: nobody is displaced before its first request could be read."""
NEW_NS: Final = 5_000_000_000
"""How long a connection may say nothing."""
PEER_MAX: Final = 16
"""Of one replica; it needs four, and as many again while it reconnects."""
OPERATOR_MAX: Final = 8
OPERATOR_ID: Final = "quorumctl"
IDLE_NS: Final = 1_000_000_000
"""Who asked for something a moment ago is not displaced."""

_REPLICA_ID: Final = re.compile(r"raft-client-(\d{1,10})", re.ASCII)


class ConnectionKind(StrEnum):
    """Who is at the other end, as far as it has shown."""

    NEW = "new"
    CLIENT = "client"
    PEER = "peer"
    OPERATOR = "operator"


class KnownPeers(Protocol):
    """What a node knows of its quorum."""

    def is_voter_or_leader(self, replica_id: int) -> bool:
        """As logged, as configured, or as the leader is known."""

    def is_voters_ip(self, ip: str) -> bool:
        """True if a replica that votes or leads now was reached there last."""

    def on_peer_connected(self, replica_id: int) -> None:
        """A connection has shown that it comes from such a replica: its process runs."""


class SlotHolder(Protocol):
    """A connection, as its place knows it."""

    ip: str
    is_local: bool
    """The other end is on this host."""
    active_ns: int
    identity: Identity | None
    """Who is there by TLS; None without it."""

    @property
    def in_flight(self) -> int: ...
    @property
    def is_silent(self) -> bool:
        """Not a byte has come."""

    def abort(self, closed: CloseReason, reason: str) -> None: ...


class _Room(NamedTuple):
    kind: ConnectionKind
    replica_id: int = -1
    """Of a peer; for new ones 0 if they come from a voter's address or this host."""


_STRANGERS: Final = _Room(ConnectionKind.NEW)
_NEIGHBOURS: Final = _Room(ConnectionKind.NEW, 0)
_CLIENTS: Final = _Room(ConnectionKind.CLIENT)
_OPERATORS: Final = _Room(ConnectionKind.OPERATOR)

C = TypeVar("C", bound=SlotHolder)


class ConnectionSlots(Generic[C]):
    """All connections of a node, by kind. `counts` is kept up to date."""

    def __init__(
        self,
        max_clients: int,
        known: KnownPeers | None,
        counts: dict[str, int],
        new_max: int = NEW_MAX,
        may_speak_for: Callable[[str, int], bool] | None = None,
    ) -> None:
        """`may_speak_for` says of a principal by TLS whether it is this replica's; without it any is."""
        self._max_clients = max_clients
        self._known = known
        self._counts = counts
        self._new_max = new_max
        self._may_speak_for = may_speak_for
        self._rooms: dict[_Room, dict[C, None]] = {_STRANGERS: {}, _NEIGHBOURS: {}, _CLIENTS: {}}
        self._room_of: dict[C, _Room] = {}
        self._seen_ns: dict[C, int] = {}
        self._idle: deque[C] = deque()
        """Clients to be displaced, the longest idle first; kept only while there is no place for one."""

    def enter(self, connection: C) -> bool:
        """A new connection. Returns False if there is no place even for it.

        Who has waited longest to say something goes first, and voters' addresses and this host last.
        """
        strangers, neighbours = self._rooms[_STRANGERS], self._rooms[_NEIGHBOURS]
        is_near = connection.is_local or self.is_neighbour(connection)
        room = _NEIGHBOURS if is_near else _STRANGERS
        if len(strangers) + len(neighbours) >= self._new_max:
            oldest = next(iter(strangers), None)
            if oldest is None and room is _NEIGHBOURS:
                oldest = next(iter(neighbours), None)
            if oldest is None:
                return False
            self._displace(oldest)
        self._put(connection, room)
        return True

    def show(self, connection: C, api_key: int, client_id: str) -> tuple[bool, bool]:
        """A request shows who asks. Returns whether there is a place, and whether that is final.

        ApiVersions, with which most connections begin, says nothing of a client, and displaces nobody: where
        no place is free, whoever asks for no more stays among the new ones.
        """
        is_hello = api_key == API_VERSIONS_KEY
        wanted = self._caller(connection, client_id)
        current = self._room_of.get(connection)
        if current == wanted:
            return True, not is_hello or wanted != _CLIENTS
        for room in dict.fromkeys((wanted, _CLIENTS)):
            if room == current:
                return True, not is_hello
            if self._has_vacancy(room) or (not is_hello and self._displaced_one(room, connection)):
                self.leave(connection)
                self._put(connection, room)
                if self._known is not None and room.kind is ConnectionKind.PEER:
                    self._known.on_peer_connected(room.replica_id)
                return True, not is_hello or room != _CLIENTS
        if is_hello:
            return True, False
        self.leave(connection)
        return False, True

    def is_peer(self, connection: C) -> bool:
        """True for another node of the quorum, as far as it has shown that it is one."""
        room = self._room_of.get(connection)
        return room is not None and room.kind is ConnectionKind.PEER

    def leave(self, connection: C) -> None:
        """It is gone, or has to go; one without a place is none to complain of."""
        room = self._room_of.pop(connection, None)
        if room is not None:
            del self._rooms[room][connection]
            self._counts[room.kind] -= 1

    def sweep(self, now_ns: int) -> None:
        """Call it every second: closes who has said nothing for NEW_NS, and notes who is idle."""
        for room in (_STRANGERS, _NEIGHBOURS):
            for connection in list(self._rooms[room]):
                if connection.is_silent and connection.active_ns <= now_ns - NEW_NS:
                    self.leave(connection)
                    connection.abort(CloseReason.SILENT, "it asked for nothing in five seconds")
        clients = self._rooms[_CLIENTS]
        if len(clients) < self._max_clients:
            self._seen_ns.clear()
            self._idle.clear()
            return
        # A request may have been answered a moment ago, long after it came: two looks tell.
        seen_ns = self._seen_ns
        self._seen_ns = {each: each.active_ns for each in clients if not each.in_flight}
        idle = [each for each, at_ns in self._seen_ns.items() if seen_ns.get(each) == at_ns]
        self._idle = deque(sorted(idle, key=lambda each: each.active_ns))

    def is_neighbour(self, connection: C) -> bool:
        """True if a node of the quorum was reached at its address."""
        return self._known is not None and self._known.is_voters_ip(connection.ip)

    def _caller(self, connection: C, client_id: str) -> _Room:
        named = _REPLICA_ID.fullmatch(client_id)
        if named is not None and self._known is not None:
            replica_id = int(named[1])
            is_known = self._known.is_voter_or_leader(replica_id)
            if is_known and self._may_be(connection.identity, replica_id):
                return _Room(ConnectionKind.PEER, replica_id)
        if client_id == OPERATOR_ID and connection.is_local:
            return _OPERATORS
        return _CLIENTS

    def _may_be(self, identity: Identity | None, replica_id: int) -> bool:
        if identity is None or self._may_speak_for is None:
            return True
        return self._may_speak_for(identity.principal, replica_id)

    def _has_vacancy(self, room: _Room) -> bool:
        inside = self._rooms.setdefault(room, {})
        if room is _CLIENTS:
            return len(inside) < self._max_clients
        return len(inside) < (OPERATOR_MAX if room is _OPERATORS else PEER_MAX)

    def _displaced_one(self, room: _Room, newcomer: C) -> bool:
        """True if somebody could be displaced from a room that is full."""
        inside = self._rooms[room]
        if room is _CLIENTS:
            victim = self._idle_client()
        elif room is _OPERATORS:
            until_ns = newcomer.active_ns - IDLE_NS
            victim = _longest_idle(each for each in inside if each.active_ns <= until_ns)
        else:
            victim = _longest_idle(each for each in inside if not self.is_neighbour(each))
            victim = victim or _longest_idle(inside)
        if victim is not None:
            self._displace(victim)
        return victim is not None

    def _idle_client(self) -> C | None:
        while self._idle:
            found = self._idle.popleft()
            is_same = self._seen_ns.get(found) == found.active_ns and not found.in_flight
            if is_same and self._room_of.get(found) == _CLIENTS:
                return found
        return None

    def _put(self, connection: C, room: _Room) -> None:
        self._rooms[room][connection] = None
        self._room_of[connection] = room
        self._counts[room.kind] += 1

    def _displace(self, connection: C) -> None:
        self.leave(connection)
        connection.abort(CloseReason.DISPLACED, "another connection needed its place")


def _longest_idle(connections: Iterable[C]) -> C | None:
    idle = (each for each in connections if not each.in_flight)
    return min(idle, key=lambda each: each.active_ns, default=None)
