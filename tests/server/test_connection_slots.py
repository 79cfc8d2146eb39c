"""Which connections get a slot of a node, and which are displaced for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from quorumd.raft.types import Endpoint
from quorumd.security.identity import Identity
from quorumd.server.net.connection_slots import (
    IDLE_NS,
    NEW_NS,
    OBSERVER_MAX,
    OPERATOR_MAX,
    PEER_MAX,
    ConnectionKind,
    ConnectionSlots,
    replica_of,
)
from quorumd.server.net.connection_state import CloseReason
from quorumd.server.peers.client_changes import CHANGES_MAX

API_VERSIONS, FETCH, VOTE = 18, 1, 52
NEW, CLIENT, PEER, OBSERVER, OPERATOR = ConnectionKind
SECOND_NS = 1_000_000_000
LISTENER = Endpoint("SECURE", "127.0.0.1", 1)


@dataclass(eq=False)
class Caller:
    """A connection that only knows when it sent its last request."""

    listener: Endpoint = LISTENER
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

    def is_ip_of(self, replica_id: int, ip: str) -> bool:
        return (replica_id, ip) == (2, "10.0.0.2")


class NodeSlots:
    """The connection slots of a node."""

    def __init__(
        self,
        max_clients: int = 2,
        new_max: int = 4,
        may_speak_for: Callable[[str, str, int], bool] | None = None,
        is_behind: Callable[[int], bool] | None = None,
        max_clients_of: Mapping[str, int] | None = None,
    ) -> None:
        self.counts = {kind.value: 0 for kind in ConnectionKind}
        self.quorum = Quorum()
        self.slots: ConnectionSlots[Caller] = ConnectionSlots(
            max_clients,
            self.quorum,
            self.counts,
            new_max,
            may_speak_for,
            is_behind,
            max_clients_of or {},
        )

    def enter(self, **about: Any) -> Caller:
        caller = Caller(**about)
        assert self.slots.enter(caller)
        return caller

    def client(self, **about: Any) -> Caller:
        caller = self.enter(**about)
        assert self.slots.identify(caller, FETCH, "a-client") == (True, True)
        return caller

    def replica(self, replica_id: int, **about: Any) -> Caller:
        caller = self.enter(**about)
        assert self.slots.identify(caller, VOTE, f"raft-client-{replica_id}") == (True, True)
        return caller

    def is_refused(self, client_id: str, **about: Any) -> bool:
        return not self.slots.identify(self.enter(**about), FETCH, client_id)[0]


def test_before_anything_is_known_of_the_quorum_whoever_names_a_replica_is_a_client() -> None:
    slots: ConnectionSlots[Caller] = ConnectionSlots(
        2, None, {each.value: 0 for each in ConnectionKind}
    )
    caller = Caller()
    assert not slots.is_peer(caller), "it has no slot"
    assert slots.enter(caller)
    assert slots.identify(caller, VOTE, "raft-client-1") == (True, True)
    assert not slots.is_peer(caller)


def test_each_kind_is_counted_apart_and_what_leaves_is_counted_no_more() -> None:
    node = NodeSlots()
    callers = [node.client(), node.replica(1), node.replica(2), node.enter()]
    operator = node.enter(is_local=True)
    node.slots.identify(operator, API_VERSIONS, "quorumctl")
    assert node.counts == {NEW: 1, CLIENT: 1, PEER: 2, OBSERVER: 0, OPERATOR: 1}
    for caller in (*callers, operator, operator):
        node.slots.leave(caller)
    assert set(node.counts.values()) == {0}


def test_clients_at_their_limit_take_no_slot_of_a_voter_or_of_an_operator() -> None:
    node = NodeSlots(max_clients=2)
    for _ in range(2):
        node.client()
    assert node.is_refused("a-client")
    for replica_id in (1, 2, 3):
        node.replica(replica_id)
    assert not node.is_refused("quorumctl", is_local=True)
    assert node.is_refused("quorumctl"), "elsewhere it is a client"
    assert node.is_refused("raft-client-1x")


@pytest.mark.parametrize(
    ("client_id", "replica_id"),
    [
        ("raft-client-0", 0),
        ("raft-client-2147483647", 2147483647),
        ("raft-client-\u0661", None),
        ("raft-client-", None),
        ("raft-client--1", None),
        ("raft-client-1 ", None),
        ("raft-client-12345678901", None),
    ],
)
def test_a_replica_is_named_in_plain_digits(client_id: str, replica_id: int | None) -> None:
    assert replica_of(client_id) == replica_id


def test_api_versions_does_not_identify_a_client() -> None:
    node = NodeSlots(max_clients=1)
    caller = node.enter()
    assert node.slots.identify(caller, API_VERSIONS, "") == (True, False)
    assert node.counts[CLIENT] == 1
    assert node.slots.identify(caller, VOTE, "raft-client-2") == (True, True)
    assert (node.counts[CLIENT], node.counts[PEER]) == (0, 1)


def test_silent_connections_are_displaced_by_newer_ones_the_oldest_first() -> None:
    node = NodeSlots(new_max=3)
    first, second, third = node.enter(), node.enter(), node.enter()
    node.slots.identify(second, FETCH, "a-client")
    node.enter()
    assert [caller.closed for caller in (first, second, third)] == [[], [], []]
    node.enter()
    assert first.closed == [CloseReason.DISPLACED]
    node.enter()
    assert third.closed == [CloseReason.DISPLACED]
    assert second.closed == [], "it is identified"


def test_a_storm_of_new_connections_displaces_its_own_and_not_those_of_other_addresses() -> None:
    node = NodeSlots(new_max=8)
    client = node.enter(ip="10.0.0.8")
    storm = [node.enter(ip="10.0.0.66") for _ in range(100)]
    assert client.closed == []
    assert [bool(each.closed) for each in storm] == [True] * 93 + [False] * 7
    node.enter(ip="10.0.0.7")
    assert client.closed == []
    assert storm[93].closed == [CloseReason.DISPLACED]


def test_to_displace_a_connection_takes_no_longer_the_more_there_are() -> None:
    seen = 0

    class Ip(str):
        __slots__ = ()

        def __hash__(self) -> int:
            nonlocal seen
            seen += 1
            return super().__hash__()

    def looks(new_max: int) -> int:
        nonlocal seen
        node = NodeSlots(new_max=new_max)
        for _ in range(new_max):
            node.enter(ip=Ip("10.0.0.66"))
        seen = 0
        node.enter(ip=Ip("10.0.0.66"))
        return seen

    assert 0 < looks(100) == looks(4)


def test_new_connections_of_a_voters_address_are_not_displaced_by_others() -> None:
    node = NodeSlots(new_max=2)
    voter, other = node.enter(ip="10.0.0.2"), node.enter()
    node.enter(ip="10.0.0.2")
    assert (voter.closed, other.closed) == ([], [CloseReason.DISPLACED])
    assert not node.slots.enter(Caller()), "only voters' addresses wait"
    node.enter(ip="10.0.0.2")
    assert voter.closed == [CloseReason.DISPLACED]


def test_a_connection_that_is_silent_for_long_is_closed_though_slots_are_free() -> None:
    node = NodeSlots()
    silent, slow = node.enter(), node.enter(is_silent=False)
    client = node.client()
    node.slots.sweep(NEW_NS - 1)
    assert silent.closed == []
    node.slots.sweep(NEW_NS)
    assert silent.closed == [CloseReason.SILENT]
    assert (slow.closed, client.closed) == ([], [])
    assert node.counts[NEW] == 1


def test_the_client_that_is_idle_for_longest_is_displaced_after_two_sweeps() -> None:
    node = NodeSlots(max_clients=3)
    busy, waits, idle = (
        node.client(active_ns=5),
        node.client(active_ns=1, in_flight=1),
        node.client(active_ns=3),
    )
    node.slots.sweep(10)
    assert node.is_refused("a-client"), "one sweep does not tell"
    busy.active_ns = 11
    node.slots.sweep(SECOND_NS)
    node.client(active_ns=SECOND_NS)
    assert (busy.closed, waits.closed, idle.closed) == ([], [], [CloseReason.DISPLACED])
    assert node.is_refused("a-client"), "no other is idle"


def test_a_client_that_sent_a_request_since_the_sweep_stays() -> None:
    node = NodeSlots(max_clients=1)
    client = node.client()
    node.slots.sweep(1)
    node.slots.sweep(2)
    client.active_ns = 3
    assert node.is_refused("a-client")
    assert client.closed == []


def test_a_client_that_waited_until_just_now_is_not_idle() -> None:
    """Its response is newer than what is known of its last request."""
    node = NodeSlots(max_clients=1)
    waiting = node.client(in_flight=1)
    for now_s in (10, 11):
        node.slots.sweep(now_s * SECOND_NS)
    waiting.in_flight = 0
    assert node.is_refused("a-client")
    for now_s in (12, 13):
        node.slots.sweep(now_s * SECOND_NS)
    assert not node.is_refused("a-client")
    assert waiting.closed == [CloseReason.DISPLACED]


def test_slots_that_were_free_in_between_begin_a_new_count_of_idle_clients() -> None:
    node = NodeSlots(max_clients=1)
    first = node.client()
    node.slots.sweep(1)
    node.slots.sweep(2)
    node.slots.leave(first)
    node.slots.sweep(3)
    second = node.client()
    assert node.is_refused("a-client")
    assert (first.closed, second.closed) == ([], [])


OTHER = Endpoint("OTHER", "127.0.0.1", 2)


def test_clients_of_a_listener_at_its_limit_take_no_slot_of_another_listener() -> None:
    node = NodeSlots(max_clients=4, max_clients_of={"SECURE": 2})
    first, _ = node.client(), node.client()
    assert node.is_refused("a-client")
    for _ in range(2):
        node.client(listener=OTHER)
    assert node.is_refused("a-client", listener=OTHER), "the node's limit holds beside"
    node.slots.leave(first)
    node.client()
    assert node.is_refused("a-client")
    for replica_id in (1, 2, 3):
        node.replica(replica_id)
    assert not node.is_refused("quorumctl", is_local=True)


def test_at_the_limit_of_a_listener_its_own_idle_client_is_displaced() -> None:
    node = NodeSlots(max_clients=9, max_clients_of={"SECURE": 1})
    oldest, own = node.client(listener=OTHER, active_ns=1), node.client(active_ns=2)
    node.slots.sweep(SECOND_NS)
    assert node.is_refused("a-client"), "one sweep does not tell"
    node.slots.sweep(2 * SECOND_NS)
    node.client(active_ns=2 * SECOND_NS)
    assert (oldest.closed, own.closed) == ([], [CloseReason.DISPLACED])
    assert node.is_refused("a-client"), "no other of this listener is idle"
    assert node.counts[CLIENT] == 2


def test_at_the_limit_of_the_node_any_idle_client_is_displaced_once() -> None:
    node = NodeSlots(max_clients=2, max_clients_of={"SECURE": 1})
    own, other = node.client(active_ns=1), node.client(listener=OTHER, active_ns=2)
    node.slots.sweep(SECOND_NS)
    node.slots.sweep(2 * SECOND_NS)
    node.client(listener=OTHER, active_ns=2 * SECOND_NS)
    assert (own.closed, other.closed) == ([CloseReason.DISPLACED], [])
    node.client(active_ns=2 * SECOND_NS)
    assert other.closed == [CloseReason.DISPLACED]
    assert node.is_refused("a-client"), "both are young"


def test_a_client_that_turns_out_to_be_a_voter_makes_room_at_its_listener() -> None:
    node = NodeSlots(max_clients=9, max_clients_of={"SECURE": 1})
    caller = node.client()
    assert node.slots.identify(caller, VOTE, "raft-client-3") == (True, True)
    node.client()


def test_a_peer_beyond_its_slots_displaces_its_own_that_are_not_at_its_address_first() -> None:
    node = NodeSlots(max_clients=1)
    others = node.replica(3)
    real = [node.replica(2, ip="10.0.0.2", active_ns=n) for n in range(PEER_MAX - 1)]
    liar = node.replica(2, active_ns=100)
    node.replica(2, ip="10.0.0.2", active_ns=101)
    assert liar.closed == [CloseReason.DISPLACED]
    node.replica(2, ip="10.0.0.2", active_ns=102)
    assert real[0].closed == [CloseReason.DISPLACED]
    assert node.counts[PEER] == PEER_MAX + 1
    assert others.closed == []


def test_a_peer_that_has_connected_is_reported_once() -> None:
    node = NodeSlots()
    caller = node.replica(3)
    node.slots.identify(caller, FETCH, "raft-client-3")
    node.client()
    node.slots.identify(node.enter(), FETCH, "raft-client-4")
    assert node.quorum.connected == [3]


@pytest.mark.parametrize("ip", ["10.0.0.2", "10.0.0.99"])
def test_peers_with_requests_in_flight_keep_their_slots(ip: str) -> None:
    node = NodeSlots(max_clients=1)
    for _ in range(PEER_MAX):
        node.replica(2, ip=ip, in_flight=1)
    node.replica(2, ip=ip)
    assert (node.counts[PEER], node.counts[CLIENT]) == (PEER_MAX, 1), "it is taken for a client"
    assert node.is_refused("raft-client-2", ip=ip)


def test_strangers_with_requests_in_flight_keep_no_voter_out() -> None:
    node = NodeSlots(max_clients=1)
    node.client(in_flight=1)
    strangers = [node.replica(2, in_flight=1, active_ns=n) for n in range(PEER_MAX)]
    voter = [node.replica(2, ip="10.0.0.2", in_flight=1) for _ in range(PEER_MAX)]
    assert all(each.closed == [CloseReason.DISPLACED] for each in strangers)
    assert all(node.slots.is_peer(each) and not each.closed for each in voter)
    assert node.is_refused("raft-client-2"), "who comes from elsewhere displaces none of them"
    assert node.is_refused("raft-client-2", ip="10.0.0.2")


def test_a_voter_whose_changes_all_wait_for_the_leader_reconnects_its_links() -> None:
    node = NodeSlots(max_clients=0)
    for _ in range(2):  # once more while it reconnects
        for _ in range(4 + CHANGES_MAX):
            node.replica(2, ip="10.0.0.2", in_flight=1)
    assert node.counts[PEER] == 2 * (4 + CHANGES_MAX)


def test_who_is_refused_a_slot_holds_none() -> None:
    node = NodeSlots(max_clients=1)
    node.client(in_flight=1)
    assert node.is_refused("a-client")
    assert (node.counts[NEW], node.counts[CLIENT]) == (0, 1)


def test_a_client_that_turns_out_to_be_an_observer_stays_one_where_their_slots_are_taken() -> None:
    node = NodeSlots()
    for _ in range(OBSERVER_MAX):
        node.replica(4)
    caller = node.client()
    assert node.slots.identify(caller, API_VERSIONS, "raft-client-9") == (True, False)
    assert node.slots.identify(caller, FETCH, "raft-client-9") == (True, True)
    assert (node.counts[CLIENT], node.counts[OBSERVER]) == (1, OBSERVER_MAX)


def test_a_new_replica_has_a_slot_though_clients_that_wait_hold_all_of_theirs() -> None:
    node = NodeSlots(max_clients=1)
    node.client(in_flight=1)
    incoming = node.replica(4)
    assert node.counts[OBSERVER] == 1
    assert not node.slots.is_peer(incoming)


def test_strangers_that_claim_to_be_observers_take_slots_of_theirs_alone_and_leave_some() -> None:
    node = NodeSlots(max_clients=1)
    strangers = [
        node.replica(n, ip="10.0.0.66", in_flight=1) for n in range(100, 100 + OBSERVER_MAX)
    ]
    client = node.client()
    incoming = [node.replica(4, ip="10.0.0.4", in_flight=1, active_ns=n) for n in range(4)]
    assert node.counts[OBSERVER] == OBSERVER_MAX
    assert [each.closed for each in strangers].count([CloseReason.DISPLACED]) == len(incoming)
    assert not any(each.closed for each in (client, *incoming))
    assert node.is_refused("raft-client-100", ip="10.0.0.66")
    assert not any(each.closed for each in incoming)


def test_an_address_does_not_displace_another_to_have_as_many_observers_as_that_one() -> None:
    node = NodeSlots(max_clients=0)
    half = OBSERVER_MAX // 2
    many = [node.replica(n, ip="10.0.0.4") for n in range(100, 100 + half)]
    for n in range(half - 1):
        node.replica(200 + n, ip="10.0.0.5")
    node.replica(300, ip="10.0.0.6")
    assert node.counts[OBSERVER] == OBSERVER_MAX
    assert node.is_refused("raft-client-299", ip="10.0.0.5")
    node.replica(301, ip="10.0.0.6")
    assert [each.closed for each in many].count([CloseReason.DISPLACED]) == 1


def test_more_observers_than_have_reserved_slots_displace_none_where_clients_have_free_ones() -> (
    None
):
    node = NodeSlots(max_clients=4)
    first = [node.replica(n, ip="10.0.0.4") for n in range(10, 10 + OBSERVER_MAX)]
    node.replica(4, ip="10.0.0.5")
    assert (node.counts[OBSERVER], node.counts[CLIENT]) == (OBSERVER_MAX, 1)
    assert not any(each.closed for each in first)


def test_where_links_are_tls_an_observer_without_its_certificate_is_a_client() -> None:
    node = NodeSlots(
        may_speak_for=lambda _, principal, replica_id: principal == f"User:n{replica_id}",
        is_behind=lambda replica_id: False,
    )
    node.replica(4)
    node.replica(4, identity=Identity("User:n5", 1e12, b"der"))
    assert (node.counts[OBSERVER], node.counts[CLIENT]) == (0, 2)
    node.replica(4, identity=Identity("User:n4", 1e12, b"der"))
    assert node.counts[OBSERVER] == 1


def test_an_idle_connection_of_a_voter_is_not_displaced_from_elsewhere() -> None:
    node = NodeSlots(max_clients=0)
    voter = [node.replica(2, ip="10.0.0.2") for _ in range(PEER_MAX)]
    assert node.is_refused("raft-client-2", active_ns=IDLE_NS)
    assert not any(each.closed for each in voter)


def test_where_links_are_tls_a_peer_without_certificate_is_one_that_is_behind_at_its_address() -> (
    None
):
    behind: set[int] = set()
    node = NodeSlots(
        max_clients=9,
        may_speak_for=lambda _, principal, replica_id: principal == f"User:n{replica_id}",
        is_behind=behind.__contains__,
    )

    def is_peer(replica_id: int, ip: str) -> bool:
        return node.slots.is_peer(node.replica(replica_id, ip=ip))

    assert not is_peer(2, "10.0.0.2")
    behind.update((2, 3))
    assert is_peer(2, "10.0.0.2")
    assert not is_peer(2, "10.0.0.99")
    assert not is_peer(3, "10.0.0.2"), "which is not its own"
    assert node.quorum.connected == [2]
    by_certificate = node.replica(2, identity=Identity("User:n2", 1e12, b"der"))
    assert node.slots.is_peer(by_certificate)


def test_operators_that_sent_a_request_lately_stay_and_idle_ones_are_displaced() -> None:
    node = NodeSlots(max_clients=0)
    for n in range(OPERATOR_MAX):
        caller = node.enter(is_local=True, active_ns=n)
        node.slots.identify(caller, FETCH, "quorumctl")
    assert node.is_refused("quorumctl", is_local=True, active_ns=IDLE_NS - 1)
    assert not node.is_refused("quorumctl", is_local=True, active_ns=IDLE_NS)


def test_no_operator_is_displaced_while_clients_have_a_free_slot() -> None:
    node = NodeSlots(max_clients=2)
    callers = []
    for n in range(OPERATOR_MAX + 2):
        callers.append(node.enter(is_local=True, active_ns=n * IDLE_NS))
        for key in (API_VERSIONS, FETCH):
            assert node.slots.identify(callers[-1], key, "quorumctl")[0]
    assert [caller.closed for caller in callers] == [[]] * len(callers)
    assert (node.counts[OPERATOR], node.counts[CLIENT]) == (OPERATOR_MAX, 2)
    assert not node.is_refused("quorumctl", is_local=True, active_ns=100 * IDLE_NS)
    assert callers[0].closed == [CloseReason.DISPLACED]


def test_api_versions_alone_displaces_no_connection_and_leaves_it_among_the_new_ones() -> None:
    node = NodeSlots(max_clients=1, new_max=10_000)
    old = node.client()
    for second in (1, 2):
        node.slots.sweep(second * SECOND_NS)
    for client_id in ("a-client", "quorumctl", "raft-client-1"):
        new = [node.enter(is_local=True, active_ns=2 * SECOND_NS) for _ in range(100)]
        for caller in new:
            answered, is_final = node.slots.identify(caller, API_VERSIONS, client_id)
            assert answered
            assert is_final == node.slots.is_peer(caller) or client_id == "quorumctl"
    assert node.counts == {
        CLIENT: 1,
        OPERATOR: OPERATOR_MAX,
        PEER: PEER_MAX,
        OBSERVER: 0,
        NEW: 300 - 48,
    }
    assert old.closed == []
    operator = node.enter(is_local=True, active_ns=3 * SECOND_NS)
    for key in (API_VERSIONS, FETCH):
        assert node.slots.identify(operator, key, "quorumctl")[0]
    assert node.counts[OPERATOR] == OPERATOR_MAX
    client = node.enter()
    for key in (API_VERSIONS, FETCH):
        assert node.slots.identify(client, key, "a-client")[0]
    assert old.closed == [CloseReason.DISPLACED]
    node.slots.sweep(2 * SECOND_NS + NEW_NS)
    assert node.counts[NEW] == 0, "what sent no other request in five seconds is closed"


def test_a_replica_that_has_a_clients_slot_keeps_it_where_no_other_is_free() -> None:
    node = NodeSlots(max_clients=1)
    caller = node.enter()
    for _ in range(PEER_MAX):
        node.replica(2, in_flight=1)
    assert node.slots.identify(caller, API_VERSIONS, "raft-client-2") == (True, False)
    assert node.slots.identify(caller, VOTE, "raft-client-2") == (True, True)
    assert node.counts[CLIENT] == 1


def test_by_tls_a_certificate_makes_a_peer_and_the_client_id_alone_does_not() -> None:
    node = NodeSlots(
        may_speak_for=lambda _, principal, replica_id: principal == f"User:n{replica_id}"
    )
    shown = {}
    for principal in ("User:n2", "User:n3", "User:other"):
        caller = node.enter(identity=Identity(principal, 1e12, b"der"))
        assert node.slots.identify(caller, VOTE, "raft-client-2") == (True, True)
        shown[principal] = node.slots.is_peer(caller)
    assert shown == {"User:n2": True, "User:n3": False, "User:other": False}
    in_plaintext = node.enter()
    node.slots.leave(in_plaintext)
    in_plaintext = node.enter()
    assert node.slots.identify(in_plaintext, VOTE, "raft-client-3")[0]
    assert node.slots.is_peer(in_plaintext), "without TLS as ever"


def test_new_connections_of_this_host_stay_while_others_are_displaced() -> None:
    node = NodeSlots(new_max=2)
    other, near = node.enter(), node.enter(is_local=True)
    node.enter()
    assert (other.closed, near.closed) == ([CloseReason.DISPLACED], [])


def test_who_has_a_clients_slot_for_want_of_another_is_not_identified_by_api_versions() -> None:
    node = NodeSlots(max_clients=1)
    caller = node.enter()
    assert node.slots.identify(caller, API_VERSIONS, "a-client") == (True, False)
    for _ in range(OBSERVER_MAX):
        assert node.slots.identify(node.enter(), FETCH, "raft-client-9") == (True, True)
    assert node.slots.identify(caller, API_VERSIONS, "raft-client-9") == (True, False)
    assert node.slots.identify(caller, FETCH, "raft-client-9") == (True, True)
    assert (node.counts[OBSERVER], node.counts[CLIENT]) == (OBSERVER_MAX, 1)


def test_who_is_identified_once_stays_it_whatever_it_asks() -> None:
    node = NodeSlots()
    caller = node.replica(2)
    assert node.slots.identify(caller, API_VERSIONS, "raft-client-2") == (True, True)
    assert node.quorum.connected == [2]


def test_a_peer_for_which_there_is_only_a_clients_slot_is_not_connected() -> None:
    node = NodeSlots()
    for _ in range(PEER_MAX):
        node.replica(1, in_flight=1)
    before = list(node.quorum.connected)
    assert node.slots.identify(node.enter(), API_VERSIONS, "raft-client-1") == (True, False)
    assert (node.counts[CLIENT], node.quorum.connected) == (1, before)
