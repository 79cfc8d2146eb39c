"""DescribeQuorum: the leader's answer, and the refusal of every other node."""

from __future__ import annotations

from uuid import UUID

import pytest

from quorumd.raft.types import ReplicaKey, Voter, VoterSet
from quorumd.server.model.partition_view import PendingChange, ReplicaStatus
from quorumd.server.requests.describe_quorum import describe_quorum, for_any_client
from quorumd.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartition,
    DescribeQuorumRequestTopic,
    DescribeQuorumResponse,
    DescribeQuorumResponsePendingChange,
)
from tests.support.cluster import FixedView, decoded_again, endpoints, voter

TOPIC = "__cluster_metadata"
ROWS = tuple(
    ReplicaStatus(ReplicaKey(n, UUID(int=1000 + n)), 100 + n, 5000 + n, 6000 + n) for n in (1, 2, 3)
)
OBSERVER = ReplicaStatus(ReplicaKey(8, None), 40)


def asks(topic: str = TOPIC, *partitions: int) -> DescribeQuorumRequest:
    asked = tuple(DescribeQuorumRequestPartition(partition_index=p) for p in partitions or (0,))
    return DescribeQuorumRequest(
        topics=(DescribeQuorumRequestTopic(topic_name=topic, partitions=asked),)
    )


@pytest.mark.parametrize("version", range(3))
def test_the_leader_describes_voters_observers_and_nodes(version: int) -> None:
    view = FixedView(
        voter_rows=ROWS, observer_rows=(OBSERVER,), announced=(Voter(OBSERVER.key, endpoints(8)),)
    )
    answer = decoded_again(describe_quorum(view, asks(), version, "CLIENT"), version)
    (partition,) = answer.topics[0].partitions
    assert (answer.error_code, partition.error_code) == (0, 0)
    assert (partition.leader_id, partition.leader_epoch, partition.high_watermark) == (2, 7, 110)
    times = version >= 1
    uuids = version >= 2
    assert [
        (
            r.replica_id,
            r.replica_directory_id.int,
            r.log_end_offset,
            r.last_fetch_timestamp,
            r.last_caught_up_timestamp,
        )
        for r in (*partition.current_voters, *partition.observers)
    ] == [
        (
            n,
            uuid if uuids else 0,
            end,
            fetched if times else -1,
            caught_up if times else -1,
        )
        for n, uuid, end, fetched, caught_up in (
            (1, 1001, 101, 5001, 6001),
            (2, 1002, 102, 5002, 6002),
            (3, 1003, 103, 5003, 6003),
            (8, 0, 40, -1, -1),
        )
    ]
    shown = [
        (node.node_id, [(at.name, at.host, at.port) for at in node.listeners])
        for node in answer.nodes
    ]
    expected = [(n, [tuple(at) for at in endpoints(n)]) for n in (1, 2, 3, 8)]
    assert shown == (expected if uuids else [])


def test_for_kafkas_clients_an_id_has_one_node_the_one_that_votes() -> None:
    """A new disk under an id stands beside the old one, at another address, until it votes."""
    twins = tuple(Voter(ReplicaKey(1, UUID(int=n)), endpoints(80 + n)) for n in (1, 2000))
    view = FixedView(voter_rows=ROWS, announced=twins)
    own = decoded_again(describe_quorum(view, asks(), 2, "CLIENT", is_own=True), 2)
    assert [node.node_id for node in own.nodes] == [1, 1, 1, 2, 3]
    shown = decoded_again(for_any_client(own), 2)
    plain = decoded_again(describe_quorum(view, asks(), 2, "CLIENT"), 2)
    assert shown.nodes == plain.nodes
    assert [(node.node_id, node.listeners[0].host) for node in shown.nodes] == [
        (n, endpoints(n)[0].host) for n in (1, 2, 3)
    ]


@pytest.mark.parametrize("version", range(3))
def test_own_software_is_told_by_storage_id_what_is_waited_for(version: int) -> None:
    key = ReplicaKey(9, UUID(int=9))
    view = FixedView(pending=(PendingChange("add", key, 12_000, "replica 9 is behind"),))
    own = decoded_again(describe_quorum(view, asks(), version, "CLIENT", is_own=True), version)
    assert own.topics[0].partitions[0].pending_changes == (
        DescribeQuorumResponsePendingChange(
            kind="add",
            replica_id=9,
            replica_directory_id=UUID(int=9),
            waiting_ms=12_000,
            waits_for="replica 9 is behind",
        ),
    )
    others = decoded_again(describe_quorum(view, asks(), version, "CLIENT"), version)
    assert others.topics[0].partitions[0].pending_changes is None


def test_a_change_of_no_replica_names_none() -> None:
    """As a reassignment, which is of several."""
    view = FixedView(pending=(PendingChange("reassign", None, -1, "replica 5 does not fetch"),))
    own = decoded_again(describe_quorum(view, asks(), 2, "CLIENT", is_own=True), 2)
    (change,) = own.topics[0].partitions[0].pending_changes or ()
    assert (change.replica_id, change.replica_directory_id.int, change.waiting_ms) == (-1, 0, -1)


@pytest.mark.parametrize("version", range(3))
def test_own_software_is_told_the_committed_voters_while_they_are_others(version: int) -> None:
    def told(view: FixedView) -> list[int] | None:
        own = decoded_again(describe_quorum(view, asks(), version, "CLIENT", is_own=True), version)
        found = own.topics[0].partitions[0].committed_voters
        return None if found is None else [each.replica_directory_id.int for each in found]

    assert told(FixedView()) is None
    assert told(FixedView(committed=VoterSet.of([voter(1), voter(2)]))) == [1001, 1002]


def test_a_leader_under_this_nodes_id_is_the_other_disk() -> None:
    """This node votes, too, on a new disk, and knows of itself that it does not lead."""
    voters = VoterSet.of([voter(1), voter(2), voter(2, 2000), voter(3)])
    led_at = endpoints(7)
    view = FixedView(is_leader=False, voters=voters, leader_endpoints=led_at)
    own = decoded_again(describe_quorum(view, asks(), 2, "CLIENT", is_own=True), 2)
    hosts = {node.directory_id.int: node.listeners[0].host for node in own.nodes}
    assert (hosts[1002], hosts[2000]) == (endpoints(2)[0].host, led_at[0].host)


@pytest.mark.parametrize("version", range(3))
def test_own_software_alone_is_told_the_target_of_a_reassignment(version: int) -> None:
    view = FixedView(target_voters=(1, 2, 4))
    for is_own, target in ((True, (1, 2, 4)), (False, None)):
        answer = describe_quorum(view, asks(), version, "CLIENT", is_own=is_own)
        assert answer.topics[0].partitions[0].target_voters == target


def test_a_leader_that_does_not_say_where_it_is_reached_is_where_the_voters_say() -> None:
    view = FixedView(is_leader=False, leader_id=1, leader_endpoints=())
    own = decoded_again(describe_quorum(view, asks(), 2, "CLIENT", is_own=True), 2)
    assert [node.node_id for node in own.nodes if node.listeners] == [1, 2, 3]


@pytest.mark.parametrize("version", range(3))
def test_another_node_names_the_leader_with_its_refusal(version: int) -> None:
    view = FixedView(is_leader=False, leader_id=3, leader_endpoints=endpoints(3))
    answer = decoded_again(describe_quorum(view, asks(), version, "CLIENT"), version)
    (partition,) = answer.topics[0].partitions
    assert (answer.error_code, partition.error_code) == (0, 6)
    assert (partition.leader_id, partition.leader_epoch, partition.high_watermark) == (3, 7, 110)
    assert partition.current_voters == ()
    if version >= 2:
        assert partition.error_message == "node 2 does not lead: ask node 3 at node3.example:9092"
        assert [node.node_id for node in answer.nodes] == [1, 2, 3]


def test_a_node_that_knows_no_leader_says_so() -> None:
    view = FixedView(is_leader=False, leader_id=None, leader_endpoints=())
    (partition,) = describe_quorum(view, asks(), 2, "CLIENT").topics[0].partitions
    assert (partition.error_code, partition.leader_id) == (6, -1)
    assert partition.error_message == "no leader is known in epoch 7; ask again soon"


@pytest.mark.parametrize("version", range(3))
@pytest.mark.parametrize(
    "request_",
    [
        asks("other", 0),
        asks(TOPIC, 1),
        asks(TOPIC, 0, 0),
        asks(TOPIC, 0, 1),
        DescribeQuorumRequest(topics=(*asks().topics, *asks().topics)),
        DescribeQuorumRequest(topics=(DescribeQuorumRequestTopic(topic_name=TOPIC),)),
    ],
)
def test_other_partitions_are_echoed_as_unknown(
    request_: DescribeQuorumRequest, version: int
) -> None:
    answer = decoded_again(describe_quorum(FixedView(), request_, version, "CLIENT"), version)
    assert answer.error_code == 0
    assert [
        (topic.topic_name, [(p.partition_index, p.error_code) for p in topic.partitions])
        for topic in answer.topics
    ] == [
        (topic.topic_name, [(p.partition_index, 3) for p in topic.partitions])
        for topic in request_.topics
    ]


def test_to_ask_for_nothing_is_no_error() -> None:
    answer = describe_quorum(FixedView(), DescribeQuorumRequest(), 2, "CLIENT")
    assert isinstance(answer, DescribeQuorumResponse)
    assert (answer.error_code, answer.topics, answer.nodes) == (0, (), ())
