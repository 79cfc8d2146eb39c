"""Who may speak for which node, in every raft request and each of its versions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from quorumd.config.node_principals import NodePrincipals
from quorumd.raft.types import Endpoint
from quorumd.security.identity import ANONYMOUS, Identity
from quorumd.server.dispatch import Dispatch
from quorumd.server.model.metrics import Metrics
from quorumd.server.model.node_rights import NodeRights
from quorumd.server.model.topic import METADATA
from quorumd.server.net.connection_state import CloseReason
from quorumd.server.net.inbound_request import InboundRequest
from quorumd.server.partition.partition import Partition
from quorumd.server.requests.raft_gate import REMEMBERED_MAX, REMEMBERED_S, SPEAKERS, RaftGate
from quorumd.wire.codec import encode
from quorumd.wire.headers import encode_request_header
from quorumd.wire.messages.add_raft_voter import AddRaftVoterRequest
from quorumd.wire.messages.alter_partition_reassignments import AlterPartitionReassignmentsRequest
from quorumd.wire.messages.fetch import (
    FetchRequest,
    FetchRequestPartition,
    FetchRequestReplicaState,
    FetchRequestTopic,
)
from quorumd.wire.messages.fetch_snapshot import FetchSnapshotRequest
from quorumd.wire.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest
from quorumd.wire.messages.remove_raft_voter import RemoveRaftVoterRequest
from quorumd.wire.registry import APIS
from quorumd.wire.schema import Message
from tests.support.node_requests import BY_NODES, replica_fetch, request_of

# Handlers are machine code where quorumd is compiled, and have no doubles there.
pytestmark = pytest.mark.pure

RIGHTS = NodeRights(NodePrincipals(("User:quorumd-{id}",)), frozenset())
OPERATOR = "quorumctl"


class Caller:
    """A connection without a network: who is there, and what became of its requests."""

    listener = Endpoint("SECURE", "127.0.0.1", 1)
    peer = "tests"
    client_software_name = "quorumd"
    client_software_version = ""
    is_open = True
    in_flight_bytes = 0

    def __init__(self, principal: str | None) -> None:
        """None: in plaintext."""
        self.principal = principal or ANONYMOUS
        self.identity = None if principal is None else Identity(principal, 1e10, b"")
        self.reached: list[str] = []
        self.closed = ""

    def send(self, request: InboundRequest, buffers: Sequence[bytes | memoryview]) -> None:
        raise AssertionError("a refused raft request is never answered")

    def close_behind(self, request: InboundRequest, closed: CloseReason, reason: str) -> None:
        self.closed = reason

    def close(self, closed: CloseReason, reason: str) -> None:
        self.closed = reason


def ask(
    caller: Caller,
    message: Message,
    version: int,
    *,
    client_id: str = "raft-client-2",
    rights: NodeRights = RIGHTS,
    behind: Sequence[int] = (),
    takes_nodes: bool = True,
) -> bool:
    """Whether the request reaches its handler."""
    key = message.wire_spec.api_key
    assert key is not None
    header = encode_request_header(key, version, 1, client_id)
    frame = header + encode(message, version)
    metrics = Metrics()

    def reach(*_: object, **__: object) -> object:
        caller.reached.append(APIS[key].name)
        return lambda: None

    handler = SimpleNamespace(
        election=reach, fetch=reach, fetch_snapshot=reach, change=reach, reassign=reach
    )
    view = SimpleNamespace(is_leader=True, leader_id=1)
    partition = SimpleNamespace(
        topic=METADATA,
        raft_handler=handler,
        view=view,
        produce_handler=SimpleNamespace(handle=reach),
        offsets_handler=SimpleNamespace(offset_for_leader_epoch=reach),
        catch_up=lambda: None,
    )
    gate = RaftGate(
        rights, lambda replica_id: replica_id in behind, lambda name: takes_nodes, metrics
    )
    dispatch = Dispatch(cast(Partition, partition), metrics, gate)
    dispatch.dispatch(InboundRequest(caller, key, version, 1, frame, len(header), 0))
    refused = sum(metrics.ignored.values())
    assert (len(caller.reached), bool(caller.closed), refused) in ((1, False, 0), (0, True, 1))
    return bool(caller.reached)


def test_every_api_has_its_line_and_is_judged() -> None:
    assert SPEAKERS.keys() == APIS.keys()


@pytest.mark.parametrize(("key", "version"), BY_NODES)
def test_a_raft_request_counts_from_the_node_that_it_names(key: int, version: int) -> None:
    assert ask(Caller("User:quorumd-2"), request_of(key, 2, version), version)


@pytest.mark.parametrize(
    "principal", ["User:quorumd-3", "User:client", "User:quorumd-02", ANONYMOUS, None]
)
@pytest.mark.parametrize(("key", "version"), BY_NODES)
def test_a_raft_request_of_anybody_else_does_not(
    key: int, version: int, principal: str | None
) -> None:
    caller = Caller(principal)
    assert not ask(caller, request_of(key, 2, version), version)
    assert caller.closed.startswith(f"{APIS[key].name} in the name of node 2 ")


@pytest.mark.parametrize(("key", "version"), BY_NODES)
def test_node_0_is_a_node_as_others_are(key: int, version: int) -> None:
    message = request_of(key, 0, version)
    for sender in (0, 2):
        caller = Caller(f"User:quorumd-{sender}")
        assert ask(caller, message, version, client_id="raft-client-0") is (sender == 0)


@pytest.mark.parametrize(("key", "version"), BY_NODES)
def test_a_nodes_name_counts_for_nothing_on_a_listener_that_takes_no_node(
    key: int, version: int
) -> None:
    caller = Caller("User:quorumd-2")
    assert not ask(caller, request_of(key, 2, version), version, takes_nodes=False)
    assert "by quorumd-2 on listener SECURE, which takes no node" in caller.closed


@pytest.mark.parametrize("key", [52, 53, 54])
def test_of_several_that_a_request_names_all_have_to_be_the_sender(key: int) -> None:
    own, others = cast(Any, request_of(key, 2, 0)), cast(Any, request_of(key, 3, 0))
    both = type(own)(topics=(*own.topics, *others.topics))
    assert not ask(Caller("User:quorumd-2"), both, 0)


@pytest.mark.parametrize("version", range(17, APIS[1].max_version + 1))
def test_a_replica_without_id_has_to_be_a_node(version: int) -> None:
    message = replica_fetch(-1, version)
    assert ask(Caller("User:quorumd-7"), message, version)
    for other in ("User:client", ANONYMOUS, None):
        assert not ask(Caller(other), message, version, behind=[2])


@pytest.mark.parametrize(("offset", "max_bytes"), [(1, 1), (0, 2), (0, -1)])
def test_a_client_may_look_for_the_newest_snapshot_and_for_no_record(
    offset: int, max_bytes: int
) -> None:
    def fetch(offset: int, max_bytes: int) -> FetchRequest:
        partition = FetchRequestPartition(
            partition=0,
            fetch_offset=offset,
            last_fetched_epoch=0,
            partition_max_bytes=0,
            # It is a replica's in any case.
            replica_directory_id=UUID(int=7),
        )
        topic = FetchRequestTopic(topic_id=UUID(bytes=METADATA.id_bytes), partitions=(partition,))
        return FetchRequest(max_wait_ms=0, max_bytes=max_bytes, topics=(topic,))

    for principal in ("User:client", None):
        assert ask(Caller(principal), fetch(0, 1), 17)
        assert not ask(Caller(principal), fetch(offset, max_bytes), 17)
        in_a_nodes_name = FetchRequestReplicaState(replica_id=2)
        assert not ask(Caller(principal), replace(fetch(0, 1), replica_state=in_a_nodes_name), 17)


def test_a_client_may_copy_a_snapshot() -> None:
    for caller in (Caller("User:client"), Caller(None)):
        assert ask(caller, FetchSnapshotRequest(replica_id=-1), 1, client_id="view")


@pytest.mark.parametrize("version", [2, 3, 4])
def test_a_consumer_may_ask_where_an_epoch_ends(version: int) -> None:
    for caller in (Caller("User:client"), Caller(None)):
        message = OffsetForLeaderEpochRequest(replica_id=-1)
        assert ask(caller, message, version, client_id="consumer")


CHANGES = [
    AddRaftVoterRequest(voter_id=2, voter_directory_id=UUID(int=1)),
    RemoveRaftVoterRequest(voter_id=2, voter_directory_id=UUID(int=1)),
    AlterPartitionReassignmentsRequest(timeout_ms=1),
]


@pytest.mark.parametrize("message", CHANGES)
def test_a_change_that_a_node_asks_for_or_passes_on_is_that_nodes(message: Message) -> None:
    for principal, may in (("User:quorumd-2", True), ("User:quorumd-3", False), (None, False)):
        assert ask(Caller(principal), message, 0, client_id="raft-client-2") is may


@pytest.mark.parametrize("client_id", [OPERATOR, "", "raft-client-", "raft-client-99999999999"])
@pytest.mark.parametrize("message", CHANGES)
def test_an_operator_asks_any_node_for_a_change(message: Message, client_id: str) -> None:
    for principal in ("User:operator", None):
        assert ask(Caller(principal), message, 0, client_id=client_id)


def test_in_plaintext_a_node_counts_while_it_says_by_certificate_that_it_is_behind() -> None:
    for key, version in BY_NODES:
        assert ask(Caller(None), request_of(key, 2, version), version, behind=[2])
        assert ask(Caller(None), request_of(key, 0, version), version, behind=[0])
        assert not ask(Caller(None), request_of(key, 3, version), version, behind=[2])
        # By TLS its certificate counts, all the same.
        assert not ask(Caller("User:client"), request_of(key, 2, version), version, behind=[2])


def refuse(gate: RaftGate, caller: Caller, replica_id: int) -> None:
    request = InboundRequest(caller, 52, 2, 1, b"", 0, 0)
    assert not gate.admits_replica(request, replica_id)


def test_what_was_refused_in_the_last_minute_is_shown_with_who_may() -> None:
    now_s = 0.0
    gate = RaftGate(
        RIGHTS, lambda replica_id: False, lambda name: True, Metrics(), clock=lambda: now_s
    )
    assert gate.warnings() == []
    for caller in (Caller("User:quorumd-3"), Caller("User:quorumd-3"), Caller(None)):
        refuse(gate, caller, 2)
    now_s += 2
    refuse(gate, Caller("User:client"), -1)
    first, second, third = gate.warnings()
    assert first == (
        "refused 2 times, last 2 s ago: Vote in the name of node 2 by quorumd-3, who may not. By "
        "quorum.node.principals node 2 is User:quorumd-2"
    )
    assert second.startswith(
        "refused once, 2 s ago: Vote in the name of node 2 in plaintext, where nodes speak TLS"
    )
    assert third.startswith(
        "refused once, 0 s ago: Vote in the name of a node by client, who may not"
    )
    now_s += REMEMBERED_S - 1
    assert gate.warnings() == [third.replace(" 0 s", f" {REMEMBERED_S - 1:.0f} s")]
    refuse(gate, Caller("User:quorumd-3"), 2)
    assert len(gate.warnings()) == 2
    assert gate.warnings()[-1].startswith("refused once, 0 s ago: Vote in the name of node 2")


def test_a_stranger_with_many_names_leaves_no_more_than_a_few() -> None:
    gate = RaftGate(RIGHTS, lambda replica_id: False, lambda name: True, Metrics())
    for replica_id in range(1000):
        refuse(gate, Caller("User:client"), replica_id)
    assert len(gate.warnings()) == REMEMBERED_MAX < 20
    assert "node 999 " in gate.warnings()[-1]


def test_without_templates_super_users_speak_for_every_node_and_else_every_certificate() -> None:
    message = request_of(52, 2, 2)
    some = NodeRights(None, frozenset({"User:nodes"}))
    assert ask(Caller("User:nodes"), message, 2, rights=some)
    assert not ask(Caller("User:quorumd-2"), message, 2, rights=some)
    nobody = NodeRights(None, frozenset())
    assert nobody.is_open
    assert ask(Caller("User:anybody"), message, 2, rights=nobody)
    assert not ask(Caller(ANONYMOUS), message, 2, rights=nobody)
    assert not ask(Caller(None), message, 2, rights=nobody)


def test_super_users_are_no_nodes_where_templates_say_who_is() -> None:
    rights = NodeRights(NodePrincipals(("User:quorumd-{id}",)), frozenset({"User:admin"}))
    assert not ask(Caller("User:admin"), request_of(52, 2, 2), 2, rights=rights)
