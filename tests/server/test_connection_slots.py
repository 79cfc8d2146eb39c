"""Who gets a place among a node's inbound connections, and who has to go for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from quorumd.security.identity import Identity
from quorumd.server.net.connection_slots import (
    IDLE_NS,
    NEW_NS,
    OPERATOR_MAX,
    PEER_MAX,
    ConnectionKind,
    ConnectionSlots,
)
from quorumd.server.net.connection_state import CloseReason

API_VERSIONS, FETCH, VOTE = 18, 1, 52
NEW, CLIENT, PEER, OPERATOR = ConnectionKind
SECOND_NS = 1_000_000_000


@dataclass(eq=False)
class Caller:
    """A connection that only knows when it asked for something."""

    ip: str = "10.0.0.99"
    is_local: bool = False
    active_ns: int = 0
    in_flight: int = 0
    is_silent: bool = True
    identity: Identity | None = None
    closed: list[CloseReason] = field(default_factory=list)

    def abort(self, closed: CloseReason, reason: str) -> None:
        assert reason
        self.closed.append(closed)


class Quorum:
    """Voters 1 to 3; voter 2 was reached at 10.0.0.2."""

    def __init__(self) -> None:
        self.connected: list[int] = []

    def on_peer_connected(self, replica_id: int) -> None:
        self.connected.append(replica_id)

    def is_voter_or_leader(self, replica_id: int) -> bool:
        return replica_id in (1, 2, 3)

    def is_voters_ip(self, ip: str) -> bool:
        return ip == "10.0.0.2"


class House:
    """The connection slots of a node."""

    def __init__(
        self,
        max_clients: int = 2,
        new_max: int = 4,
        may_speak_for: Callable[[str, int], bool] | None = None,
    ) -> None:
        self.counts = {kind.value: 0 for kind in ConnectionKind}
        self.quorum = Quorum()
        self.slots: ConnectionSlots[Caller] = ConnectionSlots(
            max_clients, self.quorum, self.counts, new_max, may_speak_for
        )

    def enter(self, **about: Any) -> Caller:
        caller = Caller(**about)
        assert self.slots.enter(caller)
        return caller

    def client(self, **about: Any) -> Caller:
        caller = self.enter(**about)
        assert self.slots.show(caller, FETCH, "somebody") == (True, True)
        return caller

    def replica(self, replica_id: int, **about: Any) -> Caller:
        caller = self.enter(**about)
        assert self.slots.show(caller, VOTE, f"raft-client-{replica_id}") == (True, True)
        return caller

    def is_refused(self, client_id: str, **about: Any) -> bool:
        return not self.slots.show(self.enter(**about), FETCH, client_id)[0]


def test_each_kind_is_counted_apart_and_what_leaves_is_counted_no_more() -> None:
    house = House()
    callers = [house.client(), house.replica(1), house.replica(2), house.enter()]
    operator = house.enter(is_local=True)
    house.slots.show(operator, API_VERSIONS, "quorumctl")
    assert house.counts == {NEW: 1, CLIENT: 1, PEER: 2, OPERATOR: 1}
    for caller in (*callers, operator, operator):
        house.slots.leave(caller)
    assert set(house.counts.values()) == {0}


def test_clients_at_their_limit_take_no_place_of_a_voter_or_of_an_operator() -> None:
    house = House(max_clients=2)
    for _ in range(2):
        house.client()
    assert house.is_refused("somebody")
    for replica_id in (1, 2, 3):
        house.replica(replica_id)
    assert not house.is_refused("quorumctl", is_local=True)
    assert house.is_refused("quorumctl"), "elsewhere it is a client"
    assert house.is_refused("raft-client-4"), "nobody knows that replica"
    assert house.is_refused("raft-client-1x")


def test_api_versions_does_not_show_yet_who_a_client_is() -> None:
    house = House(max_clients=1)
    caller = house.enter()
    assert house.slots.show(caller, API_VERSIONS, "") == (True, False)
    assert house.counts[CLIENT] == 1
    assert house.slots.show(caller, VOTE, "raft-client-2") == (True, True)
    assert (house.counts[CLIENT], house.counts[PEER]) == (0, 1)


def test_who_says_nothing_makes_room_for_newer_ones_the_oldest_first() -> None:
    house = House(new_max=3)
    first, second, third = house.enter(), house.enter(), house.enter()
    house.slots.show(second, FETCH, "somebody")
    house.enter()
    assert [caller.closed for caller in (first, second, third)] == [[], [], []]
    house.enter()
    assert first.closed == [CloseReason.DISPLACED]
    house.enter()
    assert third.closed == [CloseReason.DISPLACED]
    assert second.closed == [], "it has shown who it is"


def test_a_voters_address_is_not_displaced_by_strangers() -> None:
    house = House(new_max=2)
    voter, stranger = house.enter(ip="10.0.0.2"), house.enter()
    house.enter(ip="10.0.0.2")
    assert (voter.closed, stranger.closed) == ([], [CloseReason.DISPLACED])
    assert not house.slots.enter(Caller()), "only voters' addresses wait"
    house.enter(ip="10.0.0.2")
    assert voter.closed == [CloseReason.DISPLACED]


def test_who_says_nothing_for_long_is_closed_though_there_is_room() -> None:
    house = House()
    silent, slow = house.enter(), house.enter(is_silent=False)
    client = house.client()
    house.slots.sweep(NEW_NS - 1)
    assert silent.closed == []
    house.slots.sweep(NEW_NS)
    assert silent.closed == [CloseReason.SILENT]
    assert (slow.closed, client.closed) == ([], [])
    assert house.counts[NEW] == 1


def test_the_client_that_is_idle_for_longest_makes_room_after_two_looks() -> None:
    house = House(max_clients=3)
    busy, waits, idle = (
        house.client(active_ns=5),
        house.client(active_ns=1, in_flight=1),
        house.client(active_ns=3),
    )
    house.slots.sweep(10)
    assert house.is_refused("somebody"), "one look does not tell"
    busy.active_ns = 11
    house.slots.sweep(SECOND_NS)
    house.client(active_ns=SECOND_NS)
    assert (busy.closed, waits.closed, idle.closed) == ([], [], [CloseReason.DISPLACED])
    assert house.is_refused("somebody"), "nobody else is idle"


def test_a_client_that_has_asked_again_since_the_look_stays() -> None:
    house = House(max_clients=1)
    client = house.client()
    house.slots.sweep(1)
    house.slots.sweep(2)
    client.active_ns = 3
    assert house.is_refused("somebody")
    assert client.closed == []


def test_places_that_were_free_in_between_are_looked_at_anew() -> None:
    house = House(max_clients=1)
    first = house.client()
    house.slots.sweep(1)
    house.slots.sweep(2)
    house.slots.leave(first)
    house.slots.sweep(3)
    second = house.client()
    assert house.is_refused("somebody")
    assert (first.closed, second.closed) == ([], [])


def test_a_peer_beyond_its_places_displaces_its_own_that_are_not_at_its_address_first() -> None:
    house = House(max_clients=1)
    others = house.replica(3)
    real = [house.replica(2, ip="10.0.0.2", active_ns=n) for n in range(PEER_MAX - 1)]
    liar = house.replica(2, active_ns=100)
    house.replica(2, ip="10.0.0.2", active_ns=101)
    assert liar.closed == [CloseReason.DISPLACED]
    house.replica(2, ip="10.0.0.2", active_ns=102)
    assert real[0].closed == [CloseReason.DISPLACED]
    assert house.counts[PEER] == PEER_MAX + 1
    assert others.closed == []


def test_it_is_told_once_that_a_peer_has_connected() -> None:
    house = House()
    caller = house.replica(3)
    house.slots.show(caller, FETCH, "raft-client-3")
    house.client()
    house.slots.show(house.enter(), FETCH, "raft-client-4")
    assert house.quorum.connected == [3]


def test_peers_that_all_wait_for_answers_keep_their_places() -> None:
    house = House(max_clients=1)
    for _ in range(PEER_MAX):
        house.replica(2, in_flight=1)
    house.replica(2)
    assert (house.counts[PEER], house.counts[CLIENT]) == (PEER_MAX, 1), "it is taken for a client"
    assert house.is_refused("raft-client-2")


def test_operators_that_asked_a_moment_ago_stay_and_others_make_room() -> None:
    house = House(max_clients=0)
    for n in range(OPERATOR_MAX):
        caller = house.enter(is_local=True, active_ns=n)
        house.slots.show(caller, FETCH, "quorumctl")
    assert house.is_refused("quorumctl", is_local=True, active_ns=IDLE_NS - 1)
    assert not house.is_refused("quorumctl", is_local=True, active_ns=IDLE_NS)


def test_who_only_says_hello_displaces_nobody_and_waits_among_the_new_ones() -> None:
    house = House(max_clients=1, new_max=10_000)
    old = house.client()
    for second in (1, 2):
        house.slots.sweep(second * SECOND_NS)
    for client_id in ("somebody", "quorumctl", "raft-client-1"):
        hellos = [house.enter(is_local=True, active_ns=2 * SECOND_NS) for _ in range(100)]
        for caller in hellos:
            answered, is_final = house.slots.show(caller, API_VERSIONS, client_id)
            assert answered
            assert is_final == house.slots.is_peer(caller) or client_id == "quorumctl"
    assert house.counts == {CLIENT: 1, OPERATOR: OPERATOR_MAX, PEER: PEER_MAX, NEW: 300 - 24}
    assert old.closed == []
    operator = house.enter(is_local=True, active_ns=3 * SECOND_NS)
    for key in (API_VERSIONS, FETCH):
        assert house.slots.show(operator, key, "quorumctl")[0]
    assert house.counts[OPERATOR] == OPERATOR_MAX
    client = house.enter()
    for key in (API_VERSIONS, FETCH):
        assert house.slots.show(client, key, "somebody")[0]
    assert old.closed == [CloseReason.DISPLACED]
    house.slots.sweep(2 * SECOND_NS + NEW_NS)
    assert house.counts[NEW] == 0, "who asked for no more in five seconds goes"


def test_a_replica_that_has_a_clients_place_keeps_it_where_no_other_is_free() -> None:
    house = House(max_clients=1)
    caller = house.enter()
    for _ in range(PEER_MAX):
        house.replica(2, in_flight=1)
    assert house.slots.show(caller, API_VERSIONS, "raft-client-2") == (True, False)
    assert house.slots.show(caller, VOTE, "raft-client-2") == (True, True)
    assert house.counts[CLIENT] == 1


def test_by_tls_a_certificate_makes_a_peer_and_not_what_it_calls_itself() -> None:
    house = House(may_speak_for=lambda principal, replica_id: principal == f"User:n{replica_id}")
    shown = {}
    for principal in ("User:n2", "User:n3", "User:somebody"):
        caller = house.enter(identity=Identity(principal, 1e12, b"der"))
        assert house.slots.show(caller, VOTE, "raft-client-2") == (True, True)
        shown[principal] = house.slots.is_peer(caller)
    assert shown == {"User:n2": True, "User:n3": False, "User:somebody": False}
    in_plaintext = house.enter()
    house.slots.leave(in_plaintext)
    in_plaintext = house.enter()
    assert house.slots.show(in_plaintext, VOTE, "raft-client-3")[0]
    assert house.slots.is_peer(in_plaintext), "without TLS as ever"


def test_new_ones_of_this_host_wait_while_strangers_are_displaced() -> None:
    house = House(new_max=2)
    stranger, near = house.enter(), house.enter(is_local=True)
    house.enter()
    assert (stranger.closed, near.closed) == ([CloseReason.DISPLACED], [])
