"""Metadata and DescribeCluster in every version: nodes, controller, the one topic."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from quorumd.raft.types import Endpoint, ReplicaKey, Voter, VoterSet
from quorumd.server.requests.metadata import describe_cluster, is_topic_name, metadata
from quorumd.wire.codec import encode
from quorumd.wire.messages.describe_cluster import DescribeClusterRequest
from quorumd.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tests.support.cluster import FixedView, decoded_again, endpoints, voter

TOPIC = "__cluster_metadata"


def by_name(*names: str) -> MetadataRequest:
    return MetadataRequest(topics=tuple(MetadataRequestTopic(name=name) for name in names))


def by_id(topic_id: int, name: str | None = None) -> MetadataRequest:
    return MetadataRequest(topics=(MetadataRequestTopic(topic_id=UUID(int=topic_id), name=name),))


@pytest.mark.parametrize("version", range(14))
def test_metadata_names_nodes_leader_and_topic_in_every_version(version: int) -> None:
    answer = decoded_again(metadata(FixedView(), by_name(TOPIC), version, "CLIENT"), version)
    assert [(b.node_id, b.host, b.port) for b in answer.brokers] == [
        (n, f"node{n}.example", 9092) for n in (1, 2, 3)
    ]
    (topic,) = answer.topics
    (partition,) = topic.partitions
    assert (topic.error_code, topic.name, topic.is_internal) == (0, TOPIC, False)
    assert (partition.error_code, partition.partition_index, partition.leader_id) == (0, 0, 2)
    assert (partition.replica_nodes, partition.isr_nodes) == ((1, 2, 3), (2, 3))
    assert answer.controller_id == (2 if version >= 1 else -1)
    assert answer.cluster_id == ("cluster-of-tests" if version >= 2 else None)
    assert partition.leader_epoch == (7 if version >= 7 else -1)
    assert topic.topic_id == UUID(int=1 if version >= 10 else 0)


def test_metadata_gives_the_endpoints_of_the_listener_that_was_asked() -> None:
    answer = metadata(FixedView(), by_name(), 13, "CONTROLLER")
    assert [(b.host, b.port) for b in answer.brokers] == [
        (f"node{n}.internal", 9093) for n in (1, 2, 3)
    ]


def test_of_two_disks_under_the_leaders_id_the_one_that_leads_is_named() -> None:
    """The other one votes until it is removed, and stands at another address in the log."""
    voters = VoterSet.of([voter(1), voter(2), Voter(ReplicaKey(2, UUID(int=2000)), endpoints(9))])
    for led_at in (2, 9):
        view = FixedView(voters=voters, leader_endpoints=endpoints(led_at))
        answer = metadata(view, by_name(), 13, "CLIENT")
        hosts = [(each.node_id, each.host) for each in answer.brokers]
        assert hosts == [(1, "node1.example"), (2, f"node{led_at}.example")]


def test_a_topic_that_is_named_often_is_described_once() -> None:
    request_ = by_name(*[TOPIC] * 100, *["other"] * 100)
    answer = decoded_again(metadata(FixedView(), request_, 12, "CLIENT"), 12)
    assert [topic.name for topic in answer.topics] == [TOPIC, "other"]


def test_all_topics_are_an_empty_list_in_version_0_and_null_later() -> None:
    def topics(request: MetadataRequest, version: int) -> list[str | None]:
        answer = decoded_again(metadata(FixedView(), request, version, "CLIENT"), version)
        return [topic.name for topic in answer.topics]

    assert topics(by_name(), 0) == [TOPIC]
    for version in range(1, 14):
        assert topics(by_name(), version) == []
        assert topics(MetadataRequest(topics=None), version) == [TOPIC]


@pytest.mark.parametrize(
    ("name", "error"),
    [(TOPIC, 0), ("other", 3), ("", 17), (".", 17), ("a b", 17), ("x" * 249, 3), ("x" * 250, 17)],
)
@pytest.mark.parametrize("version", [0, 1, 9, 13])
def test_another_topic_is_unknown_or_no_name_at_all(name: str, error: int, version: int) -> None:
    answer = decoded_again(metadata(FixedView(), by_name(name), version, "CLIENT"), version)
    assert [(topic.error_code, topic.name) for topic in answer.topics] == [(error, name)]


@pytest.mark.parametrize(
    ("version", "request_", "error", "name", "topic_id"),
    [
        (12, by_id(1), 0, TOPIC, 1),
        (13, by_id(1), 0, TOPIC, 1),
        (13, by_id(1, "other"), 0, TOPIC, 1),
        (13, by_id(5), 100, None, 5),
        (12, by_id(5, TOPIC), 100, None, 5),
        (10, by_id(1), 42, "", 1),
        (11, by_id(1, TOPIC), 42, TOPIC, 1),
        (12, by_id(0), -1, "", 0),
    ],
)
def test_topics_are_found_by_id_from_version_12_on(
    version: int, request_: MetadataRequest, error: int, name: str | None, topic_id: int
) -> None:
    (topic,) = decoded_again(metadata(FixedView(), request_, version, "CLIENT"), version).topics
    assert (topic.error_code, topic.name, topic.topic_id.int) == (error, name, topic_id)


def test_without_a_leader_the_partition_says_so_and_nodes_are_still_named() -> None:
    view = FixedView(leader_id=None, leader_endpoints=(), is_leader=False, in_sync=())
    answer = metadata(view, by_name(TOPIC), 13, "CLIENT")
    partition = answer.topics[0].partitions[0]
    assert (partition.error_code, partition.leader_id, partition.leader_epoch) == (5, -1, 7)
    assert (answer.controller_id, len(answer.brokers)) == (-1, 3)


def test_the_id_0_leads_like_any_other() -> None:
    view = FixedView(
        local=voter(0).key,
        leader_id=0,
        leader_endpoints=endpoints(0),
        voters=VoterSet.of([voter(0), voter(1)]),
    )
    answer = decoded_again(metadata(view, by_name(TOPIC), 13, "CLIENT"), 13)
    (partition,) = answer.topics[0].partitions
    assert (answer.controller_id, partition.error_code, partition.leader_id) == (0, 0, 0)
    assert describe_cluster(view, DescribeClusterRequest(), "CLIENT").controller_id == 0


def test_a_leader_without_endpoint_on_the_listener_is_no_leader_there() -> None:
    only_inside = (Endpoint("CONTROLLER", "h", 1), Endpoint("REPLICATION", "h", 2))
    voters = VoterSet.of([voter(1), Voter(ReplicaKey(2, UUID(int=1002)), only_inside)])
    view = FixedView(voters=voters, leader_endpoints=only_inside)
    answer = metadata(view, by_name(TOPIC), 13, "CLIENT")
    assert [broker.node_id for broker in answer.brokers] == [1]
    assert (answer.controller_id, answer.topics[0].partitions[0].error_code) == (-1, 5)


def test_a_leader_outside_the_voter_set_is_a_broker_too() -> None:
    view = FixedView(leader_id=9, leader_endpoints=endpoints(9))
    answer = metadata(view, by_name(TOPIC), 13, "CLIENT")
    assert [broker.node_id for broker in answer.brokers] == [1, 2, 3, 9]
    assert answer.topics[0].partitions[0].replica_nodes == (1, 2, 3)
    assert answer.controller_id == 9


def test_two_voters_under_one_id_are_one_broker_at_the_leaders_address() -> None:
    old = Voter(ReplicaKey(3, UUID(int=1)), (Endpoint("CLIENT", "old.example", 1),))
    voters = VoterSet.of([voter(1), voter(2), voter(3), old])
    view = FixedView(voters=voters, leader_id=3, leader_endpoints=endpoints(3))
    answer = metadata(view, by_name(TOPIC), 13, "CLIENT")
    assert [(b.node_id, b.host) for b in answer.brokers] == [
        (n, f"node{n}.example") for n in (1, 2, 3)
    ]
    assert answer.topics[0].partitions[0].replica_nodes == (1, 2, 3)


def test_operations_are_told_to_those_who_ask() -> None:
    asked = replace(by_name(TOPIC), include_topic_authorized_operations=True)
    asked = replace(asked, include_cluster_authorized_operations=True)
    answer = decoded_again(metadata(FixedView(), asked, 9, "CLIENT"), 9)
    assert answer.topics[0].topic_authorized_operations == 0b101_0001_1000
    assert answer.cluster_authorized_operations > 0
    silent = decoded_again(metadata(FixedView(), by_name(TOPIC), 9, "CLIENT"), 9)
    assert silent.topics[0].topic_authorized_operations == -(1 << 31)
    assert silent.cluster_authorized_operations == -(1 << 31)


def test_topic_names_are_kafkas() -> None:
    assert is_topic_name("a.B-c_9")
    assert not any(is_topic_name(name) for name in ("", ".", "..", "a/b", "é", "a\n", "x" * 250))


def test_metadata_survives_its_own_decoder_for_a_node_that_knows_nothing() -> None:
    view = FixedView(
        cluster_id=None,
        leader_id=None,
        leader_endpoints=(),
        is_leader=False,
        voters=VoterSet(),
        in_sync=(),
        high_watermark=-1,
    )
    for version in range(14):
        answer = decoded_again(metadata(view, by_name(TOPIC), version, "CLIENT"), version)
        assert isinstance(answer, MetadataResponse)
        assert answer.brokers == ()
        assert answer.topics[0].partitions[0].error_code == 5


# -- DescribeCluster


@pytest.mark.parametrize("version", range(3))
@pytest.mark.parametrize("endpoint_type", [1, 2])
def test_describe_cluster_lists_voters_as_brokers_and_as_controllers(
    version: int, endpoint_type: int
) -> None:
    request = DescribeClusterRequest(endpoint_type=endpoint_type)
    answer = decoded_again(describe_cluster(FixedView(), request, "CLIENT"), max(version, 1))
    assert (answer.error_code, answer.endpoint_type) == (0, endpoint_type)
    assert (answer.cluster_id, answer.controller_id) == ("cluster-of-tests", 2)
    assert [(b.broker_id, b.host, b.port, b.is_fenced) for b in answer.brokers] == [
        (n, f"node{n}.example", 9092, False) for n in (1, 2, 3)
    ]
    assert encode(describe_cluster(FixedView(), DescribeClusterRequest(), "CLIENT"), version)


def test_describe_cluster_before_there_is_a_cluster_id_or_a_leader() -> None:
    view = FixedView(cluster_id=None, leader_id=None, leader_endpoints=())
    answer = decoded_again(describe_cluster(view, DescribeClusterRequest(), "CLIENT"), 2)
    assert (answer.cluster_id, answer.controller_id, len(answer.brokers)) == ("", -1, 3)


def test_another_endpoint_type_is_refused() -> None:
    answer = describe_cluster(FixedView(), DescribeClusterRequest(endpoint_type=3), "CLIENT")
    assert (answer.error_code, answer.brokers) == (115, ())
    assert "1 (brokers)" in (answer.error_message or "")
