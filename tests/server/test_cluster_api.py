"""What a node answers of its quorum: messages in, messages out, in every version."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar
from uuid import UUID

import pytest

from quorumd.raft.types import Endpoint, ReplicaKey, Voter, VoterSet
from quorumd.server.model.partition_view import ReplicaStatus
from quorumd.server.requests.cluster import (
    api_versions,
    api_versions_unsupported,
    describe_cluster,
    describe_configs,
    find_coordinator,
    init_producer_id,
    is_topic_name,
    list_partition_reassignments,
    metadata,
    random_producer_id,
)
from quorumd.server.requests.describe_quorum import describe_quorum
from quorumd.wire.codec import decode, encode
from quorumd.wire.messages.api_versions import ApiVersionsRequest
from quorumd.wire.messages.describe_cluster import DescribeClusterRequest
from quorumd.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsRequestResource,
)
from quorumd.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartition,
    DescribeQuorumRequestTopic,
    DescribeQuorumResponse,
)
from quorumd.wire.messages.find_coordinator import FindCoordinatorRequest
from quorumd.wire.messages.init_producer_id import InitProducerIdRequest
from quorumd.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequestTopic,
)
from quorumd.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from quorumd.wire.registry import APIS, CONTROLLER_KEYS, FIRST_OWN_KEY
from quorumd.wire.schema import Message
from tests.support.cluster import FixedView, endpoints, voter

M = TypeVar("M", bound=Message)

TOPIC = "__cluster_metadata"
SOFTWARE = ApiVersionsRequest(client_software_name="a-client", client_software_version="1.0")


def sent(message: M, version: int) -> M:
    """The message as its reader has it: what the version has no field for is gone."""
    return decode(type(message), version, encode(message, version))


def by_name(*names: str) -> MetadataRequest:
    return MetadataRequest(topics=tuple(MetadataRequestTopic(name=name) for name in names))


def by_id(topic_id: int, name: str | None = None) -> MetadataRequest:
    return MetadataRequest(topics=(MetadataRequestTopic(topic_id=UUID(int=topic_id), name=name),))


def asks(topic: str = TOPIC, *partitions: int) -> DescribeQuorumRequest:
    asked = tuple(DescribeQuorumRequestPartition(partition_index=p) for p in partitions or (0,))
    return DescribeQuorumRequest(
        topics=(DescribeQuorumRequestTopic(topic_name=topic, partitions=asked),)
    )


# -- ApiVersions


@pytest.mark.parametrize("version", range(5))
def test_api_versions_lists_exactly_what_is_spoken(version: int) -> None:
    answer = sent(api_versions(FixedView(), SOFTWARE, version), version)
    assert answer.error_code == 0
    listed = {key.api_key: (key.min_version, key.max_version) for key in answer.api_keys}
    spoken = {key: (spec.min_version, spec.max_version) for key, spec in APIS.items()}
    # Produce from 0, as librdkafka below 2.12 expects of a broker.
    ours = {key: spoken.pop(key) for key in list(spoken) if key >= FIRST_OWN_KEY}
    beside_kafka = FixedView(is_kafka_log=True, is_witness=True)
    answer = sent(api_versions(beside_kafka, SOFTWARE, version), version)
    assert {key.api_key for key in answer.api_keys} == set(spoken)
    for key in CONTROLLER_KEYS:
        del spoken[key]
    assert listed == spoken | {0: (0, 13)}
    if version >= 3:
        own = replace(SOFTWARE, client_software_name="quorumctl")
        answer = sent(api_versions(FixedView(), own, version), version)
        assert set(ours) < {key.api_key for key in answer.api_keys}


def test_a_feature_with_minimum_0_is_shown_from_version_4_on() -> None:
    for version, expected in ((3, []), (4, [("kraft.version", 0, 1)])):
        answer = sent(api_versions(FixedView(), SOFTWARE, version), version)
        shown = [(f.name, f.min_version, f.max_version) for f in answer.supported_features]
        assert shown == expected
        finalized = [
            (f.name, f.min_version_level, f.max_version_level) for f in answer.finalized_features
        ]
        assert (finalized, answer.finalized_features_epoch) == ([("kraft.version", 1, 1)], 3)


def test_a_feature_at_level_0_is_not_finalized() -> None:
    view = FixedView(kraft_version=0, kraft_version_offset=-1)
    answer = sent(api_versions(view, SOFTWARE, 4), 4)
    assert (answer.finalized_features, answer.finalized_features_epoch) == ((), -1)


@pytest.mark.parametrize(
    ("name", "software_version", "error"),
    [
        ("apache-kafka-java", "4.3.1", 0),
        ("a", "1", 0),
        ("", "1.0", 42),
        ("a-client", "", 42),
        ("-client", "1.0", 42),
        ("client.", "1.0", 42),
        ("a client", "1.0", 42),
        ("client\n", "1.0", 42),
        ("clïent", "1.0", 42),
    ],
)
def test_software_must_be_named_as_kip_511_asks(
    name: str, software_version: str, error: int
) -> None:
    request = ApiVersionsRequest(
        client_software_name=name, client_software_version=software_version
    )
    answer = sent(api_versions(FixedView(), request, 3), 3)
    assert (answer.error_code, bool(answer.api_keys)) == (error, not error)
    assert api_versions(FixedView(), ApiVersionsRequest(), 2).error_code == 0


def test_an_unknown_version_of_api_versions_is_told_the_known_ones() -> None:
    assert encode(api_versions_unsupported(), 0).hex() == "002300000001001200000004"


# -- Metadata


@pytest.mark.parametrize("version", range(14))
def test_metadata_names_nodes_leader_and_topic_in_every_version(version: int) -> None:
    answer = sent(metadata(FixedView(), by_name(TOPIC), version, "CLIENT"), version)
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


def test_a_topic_that_is_named_often_is_described_once() -> None:
    request_ = by_name(*[TOPIC] * 100, *["other"] * 100)
    answer = sent(metadata(FixedView(), request_, 12, "CLIENT"), 12)
    assert [topic.name for topic in answer.topics] == [TOPIC, "other"]


def test_all_topics_are_an_empty_list_in_version_0_and_null_later() -> None:
    def topics(request: MetadataRequest, version: int) -> list[str | None]:
        answer = sent(metadata(FixedView(), request, version, "CLIENT"), version)
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
    answer = sent(metadata(FixedView(), by_name(name), version, "CLIENT"), version)
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
    (topic,) = sent(metadata(FixedView(), request_, version, "CLIENT"), version).topics
    assert (topic.error_code, topic.name, topic.topic_id.int) == (error, name, topic_id)


def test_without_a_leader_the_partition_says_so_and_nodes_are_still_named() -> None:
    view = FixedView(leader_id=None, leader_endpoints=(), is_leader=False, in_sync=())
    answer = metadata(view, by_name(TOPIC), 13, "CLIENT")
    partition = answer.topics[0].partitions[0]
    assert (partition.error_code, partition.leader_id, partition.leader_epoch) == (5, -1, 7)
    assert (answer.controller_id, len(answer.brokers)) == (-1, 3)


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
    answer = sent(metadata(FixedView(), asked, 9, "CLIENT"), 9)
    assert answer.topics[0].topic_authorized_operations == 0b101_0001_1000
    assert answer.cluster_authorized_operations > 0
    silent = sent(metadata(FixedView(), by_name(TOPIC), 9, "CLIENT"), 9)
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
        answer = sent(metadata(view, by_name(TOPIC), version, "CLIENT"), version)
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
    answer = sent(describe_cluster(FixedView(), request, "CLIENT"), max(version, 1))
    assert (answer.error_code, answer.endpoint_type) == (0, endpoint_type)
    assert (answer.cluster_id, answer.controller_id) == ("cluster-of-tests", 2)
    assert [(b.broker_id, b.host, b.port, b.is_fenced) for b in answer.brokers] == [
        (n, f"node{n}.example", 9092, False) for n in (1, 2, 3)
    ]
    assert encode(describe_cluster(FixedView(), DescribeClusterRequest(), "CLIENT"), version)


def test_describe_cluster_before_there_is_a_cluster_id_or_a_leader() -> None:
    view = FixedView(cluster_id=None, leader_id=None, leader_endpoints=())
    answer = sent(describe_cluster(view, DescribeClusterRequest(), "CLIENT"), 2)
    assert (answer.cluster_id, answer.controller_id, len(answer.brokers)) == ("", -1, 3)


def test_another_endpoint_type_is_refused() -> None:
    answer = describe_cluster(FixedView(), DescribeClusterRequest(endpoint_type=3), "CLIENT")
    assert (answer.error_code, answer.brokers) == (115, ())
    assert "1 (brokers)" in (answer.error_message or "")


# -- DescribeConfigs, FindCoordinator, ListPartitionReassignments


@pytest.mark.parametrize("version", range(1, 5))
def test_known_resources_have_no_configuration_and_others_an_error(version: int) -> None:
    asked = [(2, TOPIC), (2, "other"), (4, "3"), (4, ""), (4, "8"), (4, "x"), (8, "1"), (-5, "")]
    request = DescribeConfigsRequest(
        resources=tuple(
            DescribeConfigsRequestResource(resource_type=kind, resource_name=name)
            for kind, name in asked
        )
    )
    answer = sent(describe_configs(FixedView(), request), version)
    assert [(r.resource_type, r.resource_name) for r in answer.results] == asked
    assert [r.error_code for r in answer.results] == [0, 3, 0, 0, 42, 42, 42, 42]
    assert all(r.configs == () for r in answer.results)
    assert all(bool(r.error_message) == bool(r.error_code) for r in answer.results)


@pytest.mark.parametrize("version", range(7))
@pytest.mark.parametrize(("key_type", "error"), [(0, 30), (1, 53), (2, 30), (3, 42), (-1, 42)])
def test_there_is_no_coordinator_and_the_error_is_not_retried(
    version: int, key_type: int, error: int
) -> None:
    keys = ("g1", "g2") if version >= 4 else ()
    request = FindCoordinatorRequest(key="g0", key_type=key_type, coordinator_keys=keys)
    answer = sent(find_coordinator(request, version), version)
    if version < 4:
        found = [(answer.error_code, answer.error_message, answer.node_id, answer.port)]
    else:
        assert [c.key for c in answer.coordinators] == ["g1", "g2"]
        found = [(c.error_code, c.error_message, c.node_id, c.port) for c in answer.coordinators]
    for code, text, node_id, port in found:
        assert (code, node_id, port) == (error, -1, -1)
        assert bool(text) == (version >= 1)


def test_no_reassignment_is_under_way() -> None:
    asked = ListPartitionReassignmentsRequest()
    answer = sent(list_partition_reassignments(FixedView(), asked), 0)
    assert (answer.error_code, answer.error_message, answer.topics) == (0, None, ())


def test_a_reassignment_that_is_under_way_is_listed_if_it_is_asked_for() -> None:
    view = FixedView(target_voters=(2, 4))
    every = ListPartitionReassignmentsRequest()
    (topic,) = sent(list_partition_reassignments(view, every), 0).topics
    (partition,) = topic.partitions
    assert (topic.name, partition.partition_index) == ("__cluster_metadata", 0)
    assert partition.replicas == (1, 2, 3)
    assert (partition.adding_replicas, partition.removing_replicas) == ((4,), (1, 3))
    other = ListPartitionReassignmentsRequestTopic(name="other", partition_indexes=(0,))
    asked = ListPartitionReassignmentsRequest(topics=(other,))
    assert sent(list_partition_reassignments(view, asked), 0).topics == ()


# -- InitProducerId


@pytest.mark.parametrize("version", range(6))
def test_a_producer_gets_a_fresh_id_with_epoch_0(version: int) -> None:
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=-1)
    answer = sent(init_producer_id(request, lambda: (1 << 62) - 1), version)
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (0, (1 << 62) - 1, 0)


@pytest.mark.parametrize(
    ("transactional_id", "producer_id", "epoch", "error"),
    [(None, 7, 3, 0), (None, 7, -1, 42), (None, -1, 3, 42), ("", -1, -1, 42), ("t", -1, -1, 53)],
)
def test_init_producer_id_refuses_transactions_and_half_an_identity(
    transactional_id: str | None, producer_id: int, epoch: int, error: int
) -> None:
    request = InitProducerIdRequest(
        transactional_id=transactional_id, producer_id=producer_id, producer_epoch=epoch
    )
    answer = sent(init_producer_id(request, lambda: 99), 5)
    expected = (error, -1, -1) if error else (0, 99, 0)
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == expected


def test_random_producer_ids_are_not_negative_and_have_62_bits() -> None:
    assert all(0 <= random_producer_id() < 1 << 62 for _ in range(200))


# -- DescribeQuorum

ROWS = tuple(
    ReplicaStatus(ReplicaKey(n, UUID(int=1000 + n)), 100 + n, 5000 + n, 6000 + n) for n in (1, 2, 3)
)
OBSERVER = ReplicaStatus(ReplicaKey(8, None), 40)


@pytest.mark.parametrize("version", range(3))
def test_the_leader_describes_voters_observers_and_nodes(version: int) -> None:
    view = FixedView(
        voter_rows=ROWS, observer_rows=(OBSERVER,), announced=(Voter(OBSERVER.key, endpoints(8)),)
    )
    answer = sent(describe_quorum(view, asks(), version, "CLIENT"), version)
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


@pytest.mark.parametrize("version", range(3))
def test_another_node_names_the_leader_with_its_refusal(version: int) -> None:
    view = FixedView(is_leader=False, leader_id=3, leader_endpoints=endpoints(3))
    answer = sent(describe_quorum(view, asks(), version, "CLIENT"), version)
    (partition,) = answer.topics[0].partitions
    assert (answer.error_code, partition.error_code) == (0, 6)
    assert (partition.leader_id, partition.leader_epoch) == (3, 7)
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
    answer = sent(describe_quorum(FixedView(), request_, version, "CLIENT"), version)
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
