"""Requests that only read the view of the quorum: message in, message out, nothing is changed.

Brokers, for clients, are the voters and a leader outside their set; the controller is the raft leader. Knows
no socket and no log. Source: KIP-35, 511, 584 (ApiVersions), 516, 700, 919 (Metadata, DescribeCluster),
595, 836, 853 (DescribeQuorum), 98 (InitProducerId).
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator
from functools import cache
from typing import Final, NamedTuple

from quorumd.raft.types import Endpoint
from quorumd.server.model.partition_view import PartitionView
from quorumd.server.model.topic import METADATA
from quorumd.server.translate.common import endpoint_on, id_or_minus_one
from quorumd.wire.control_records import KRAFT_VERSION_MAX
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.api_versions import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    ApiVersionsResponseApiKey,
    ApiVersionsResponseFinalizedFeature,
    ApiVersionsResponseSupportedFeature,
)
from quorumd.wire.messages.describe_cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeClusterResponseBroker,
)
from quorumd.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsRequestResource,
    DescribeConfigsResponse,
    DescribeConfigsResponseResult,
)
from quorumd.wire.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    FindCoordinatorResponseCoordinator,
)
from quorumd.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from quorumd.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsResponsePartition,
    ListPartitionReassignmentsResponseTopic,
)
from quorumd.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from quorumd.wire.registry import (
    API_VERSIONS_KEY,
    APIS,
    CONTROLLER_KEYS,
    FIRST_OWN_KEY,
    PRODUCE_KEY,
)
from quorumd.wire.schema import ZERO_UUID, Message

OWN_SOFTWARE: Final = "quorumctl"
KRAFT_VERSION: Final = "kraft.version"
TOPIC_NAME_CHARACTERS_MAX: Final = 249
PRODUCER_ID_BITS: Final = 62

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]+")
# Bits by Kafka's AclOperation: READ 3, WRITE 4, DESCRIBE 8, CLUSTER_ACTION 9, DESCRIBE_CONFIGS 10,
# IDEMPOTENT_WRITE 12. What exists here, everybody may do.
_TOPIC_OPERATIONS: Final = 1 << 3 | 1 << 4 | 1 << 8 | 1 << 10
_CLUSTER_OPERATIONS: Final = 1 << 8 | 1 << 9 | 1 << 10 | 1 << 12
_NOT_ASKED: Final = -(1 << 31)

BROKERS, CONTROLLERS = 1, 2
TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4
GROUP, TRANSACTION, SHARE_GROUP = 0, 1, 2

_NO_GROUPS: Final = (
    "this log has no consumer groups: assign partition 0 of __cluster_metadata and keep the "
    "offsets yourself (without group.id or subscribe)"
)
_NO_TRANSACTIONS: Final = (
    "this log has no transactions: use an idempotent producer without transactional.id"
)


class BrokerNode(NamedTuple):
    """A node as clients of one listener see it."""

    id: int
    host: str
    port: int


def nodes_on(view: PartitionView, listener: str) -> tuple[BrokerNode, ...]:
    """Voters, and a leader outside their set, that have an endpoint on this listener; by id."""
    found: dict[int, BrokerNode] = {}
    for node_id, endpoints in _members(view):
        endpoint = endpoint_on(endpoints, listener)
        if endpoint is not None and node_id not in found:
            found[node_id] = BrokerNode(node_id, endpoint.host, endpoint.port)
    return tuple(found[node_id] for node_id in sorted(found))


def _members(view: PartitionView) -> Iterator[tuple[int, tuple[Endpoint, ...]]]:
    """Ids and endpoints; the leader first, because two voters may stand under its id."""
    if view.leader_id is not None:
        yield view.leader_id, view.leader_endpoints
    for voter in view.voters:
        yield voter.key.id, voter.endpoints


def _reachable_leader(view: PartitionView, nodes: tuple[BrokerNode, ...]) -> int:
    """The leader's id, or -1 if it is unknown or has no endpoint on the client's listener."""
    leader_id = view.leader_id
    known = leader_id is not None and any(node.id == leader_id for node in nodes)
    return id_or_minus_one(leader_id if known else None)


# -- ApiVersions


def api_versions(
    view: PartitionView, request: ApiVersionsRequest, version: int
) -> ApiVersionsResponse:
    """What this node speaks. From version 3 on, software must give a name and version that fit KIP-511."""
    if version >= 3 and not (
        _SOFTWARE.fullmatch(request.client_software_name)
        and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    finalized: tuple[ApiVersionsResponseFinalizedFeature, ...] = ()
    if view.kraft_version > 0:
        finalized = (
            ApiVersionsResponseFinalizedFeature(
                name=KRAFT_VERSION,
                max_version_level=view.kraft_version,
                min_version_level=view.kraft_version,
            ),
        )
    is_own = request.client_software_name == OWN_SOFTWARE
    is_beside_kafka = view.is_kafka_log and view.is_witness
    return ApiVersionsResponse(
        api_keys=_keys(is_own=is_own, is_beside_kafka=is_beside_kafka),
        # Clients below version 4 refuse a feature whose minimum is 0.
        supported_features=_features(view) if version >= 4 else (),
        finalized_features=finalized,
        finalized_features_epoch=view.kraft_version_offset,
    )


def api_versions_unsupported() -> ApiVersionsResponse:
    """The answer to an ApiVersions request of an unknown version, to be sent as version 0 (KIP-511)."""
    return ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=tuple(key for key in _ALL_KEYS if key.api_key == API_VERSIONS_KEY),
    )


def _features(view: PartitionView) -> tuple[ApiVersionsResponseSupportedFeature, ...]:
    """Without one, Kafka's leaders refuse to make a voter of a node that only observes them."""
    if not view.is_kafka_log:
        return _FEATURES
    return KAFKA_FEATURES if view.is_witness else ()


@cache
def _keys(*, is_own: bool, is_beside_kafka: bool) -> tuple[ApiVersionsResponseApiKey, ...]:
    """Brokers ask a witness that leads for a moment as their controller: only an answer sends them on."""
    return tuple(
        key
        for key in _ALL_KEYS
        if (is_own or key.api_key < FIRST_OWN_KEY)
        and (is_beside_kafka or key.api_key not in CONTROLLER_KEYS)
    )


def not_controller(api_key: int) -> Message:
    """The answer to a request to Kafka's active controller: its sender looks for another one."""
    response: Callable[..., Message] = APIS[api_key].response
    return response(error_code=ErrorCode.NOT_CONTROLLER)


# Produce is listed from 0, as a broker does: librdkafka below 2.12 turns features off otherwise.
_ALL_KEYS: Final = tuple(
    ApiVersionsResponseApiKey(
        api_key=key,
        min_version=0 if key == PRODUCE_KEY else APIS[key].min_version,
        max_version=APIS[key].max_version,
    )
    for key in sorted(APIS)
)
_FEATURES: Final = (
    ApiVersionsResponseSupportedFeature(
        name=KRAFT_VERSION, min_version=0, max_version=KRAFT_VERSION_MAX
    ),
)
KAFKA_FEATURES: Final = tuple(
    ApiVersionsResponseSupportedFeature(name=name, min_version=lowest, max_version=highest)
    for name, lowest, highest in (
        ("eligible.leader.replicas.version", 0, 1),
        ("group.version", 0, 1),
        (KRAFT_VERSION, 0, KRAFT_VERSION_MAX),
        ("metadata.version", 7, 30),
        ("share.version", 0, 1),
        ("streams.version", 0, 1),
        ("transaction.version", 0, 2),
    )
)
"""Those of Kafka 4.3: a controller that lacks one keeps the others from raising it."""


# -- Metadata


def metadata(
    view: PartitionView, request: MetadataRequest, version: int, listener: str
) -> MetadataResponse:
    """Nodes, and the one topic; `listener` is the name of the one that the request came in on."""
    nodes = nodes_on(view, listener)
    wants_all = request.topics is None or (version == 0 and not request.topics)
    own = MetadataRequestTopic(name=METADATA.name)
    topics = (own,) if wants_all else request.topics or ()
    operations = _TOPIC_OPERATIONS if request.include_topic_authorized_operations else _NOT_ASKED
    return MetadataResponse(
        brokers=tuple(
            MetadataResponseBroker(node_id=node.id, host=node.host, port=node.port)
            for node in nodes
        ),
        cluster_id=view.cluster_id,
        controller_id=_reachable_leader(view, nodes),
        # Each topic once, as a broker answers, however often it is named.
        topics=tuple(
            _topic(view, nodes, topic, version, operations)
            for topic in {(topic.name, topic.topic_id): topic for topic in topics}.values()
        ),
        cluster_authorized_operations=(
            _CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else _NOT_ASKED
        ),
    )


def _topic(
    view: PartitionView,
    nodes: tuple[BrokerNode, ...],
    asked: MetadataRequestTopic,
    version: int,
    operations: int,
) -> MetadataResponseTopic:
    error = _topic_error(asked, version)
    if error is not ErrorCode.NONE:
        # A name may be null from version 12 on.
        name = None if asked.topic_id != ZERO_UUID and version >= 12 else asked.name or ""
        return MetadataResponseTopic(
            error_code=error, name=name, topic_id=asked.topic_id, partitions=()
        )
    leader_id = _reachable_leader(view, nodes)
    partition = MetadataResponsePartition(
        error_code=ErrorCode.NONE if leader_id >= 0 else ErrorCode.LEADER_NOT_AVAILABLE,
        partition_index=METADATA.index,
        leader_id=leader_id,
        leader_epoch=view.leader_epoch,
        replica_nodes=view.voters.ids,
        isr_nodes=view.in_sync_ids(),
    )
    return MetadataResponseTopic(
        name=METADATA.name,
        topic_id=METADATA.topic_id,
        partitions=(partition,),
        topic_authorized_operations=operations,
    )


def _topic_error(asked: MetadataRequestTopic, version: int) -> ErrorCode:
    if asked.topic_id != ZERO_UUID:
        if version < 12:
            return ErrorCode.INVALID_REQUEST
        known = asked.topic_id == METADATA.topic_id
        return ErrorCode.NONE if known else ErrorCode.UNKNOWN_TOPIC_ID
    if asked.name is None:
        return ErrorCode.UNKNOWN_SERVER_ERROR
    if asked.name == METADATA.name:
        return ErrorCode.NONE
    if not is_topic_name(asked.name):
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def is_topic_name(name: str) -> bool:
    """True if Kafka would let a topic have this name."""
    return (
        len(name) <= TOPIC_NAME_CHARACTERS_MAX
        and name not in (".", "..")
        and _TOPIC_NAME.fullmatch(name) is not None
    )


# -- DescribeCluster


def describe_cluster(
    view: PartitionView, request: DescribeClusterRequest, listener: str
) -> DescribeClusterResponse:
    """The same nodes as brokers (type 1) and as controllers (type 2)."""
    if request.endpoint_type not in (BROKERS, CONTROLLERS):
        return DescribeClusterResponse(
            error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message=f"endpoint type {request.endpoint_type} is unknown: ask for 1 (brokers) "
            "or 2 (controllers)",
            endpoint_type=request.endpoint_type,
        )
    nodes = nodes_on(view, listener)
    return DescribeClusterResponse(
        endpoint_type=request.endpoint_type,
        cluster_id=view.cluster_id or "",
        controller_id=_reachable_leader(view, nodes),
        brokers=tuple(
            DescribeClusterResponseBroker(broker_id=node.id, host=node.host, port=node.port)
            for node in nodes
        ),
        cluster_authorized_operations=(
            _CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else _NOT_ASKED
        ),
    )


# -- the rest


def describe_configs(
    view: PartitionView, request: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    """Known resources have no configuration that could be read or changed over the network."""
    return DescribeConfigsResponse(
        results=tuple(_configs_of(view, resource) for resource in request.resources)
    )


def _configs_of(
    view: PartitionView, asked: DescribeConfigsRequestResource
) -> DescribeConfigsResponseResult:
    error, message = ErrorCode.NONE, None
    if asked.resource_type == TOPIC_RESOURCE:
        if asked.resource_name != METADATA.name:
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            message = f"the only topic is {METADATA.name}"
    elif asked.resource_type == BROKER_RESOURCE:
        ids = {*view.voters.ids, view.local.id}
        if asked.resource_name and asked.resource_name not in map(str, ids):
            error = ErrorCode.INVALID_REQUEST
            message = f"no node has that id; there are {', '.join(map(str, sorted(ids)))}"
    else:
        error = ErrorCode.INVALID_REQUEST
        message = "only topics (type 2) and nodes (type 4) can be described"
    return DescribeConfigsResponseResult(
        error_code=error,
        error_message=message,
        resource_type=asked.resource_type,
        resource_name=asked.resource_name,
    )


def find_coordinator(request: FindCoordinatorRequest, version: int) -> FindCoordinatorResponse:
    """There is none. The errors are ones that clients raise at once, where others are retried for ever."""
    error, message = ErrorCode.GROUP_AUTHORIZATION_FAILED, _NO_GROUPS
    if request.key_type == TRANSACTION:
        error, message = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, _NO_TRANSACTIONS
    elif request.key_type not in (GROUP, SHARE_GROUP):
        error, message = ErrorCode.INVALID_REQUEST, f"key type {request.key_type} is unknown"
    if version < 4:
        return FindCoordinatorResponse(
            error_code=error, error_message=message, node_id=-1, host="", port=-1
        )
    return FindCoordinatorResponse(
        coordinators=tuple(
            FindCoordinatorResponseCoordinator(
                key=key, node_id=-1, host="", port=-1, error_code=error, error_message=message
            )
            for key in request.coordinator_keys
        )
    )


def list_partition_reassignments(
    view: PartitionView, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """The one that is under way, if it was asked for (KIP-642)."""
    target = view.target_voters
    is_asked = request.topics is None or any(
        topic.name == METADATA.name and METADATA.index in topic.partition_indexes
        for topic in request.topics
    )
    if target is None or not is_asked:
        return ListPartitionReassignmentsResponse(error_message=None)
    present = view.voters.ids
    partition = ListPartitionReassignmentsResponsePartition(
        partition_index=METADATA.index,
        replicas=present,
        adding_replicas=tuple(voter for voter in target if voter not in present),
        removing_replicas=tuple(voter for voter in present if voter not in target),
    )
    topic = ListPartitionReassignmentsResponseTopic(name=METADATA.name, partitions=(partition,))
    return ListPartitionReassignmentsResponse(error_message=None, topics=(topic,))


def random_producer_id() -> int:
    """0 to 2^62 - 1: two nodes may draw without asking each other."""
    return secrets.randbits(PRODUCER_ID_BITS)


def init_producer_id(
    request: InitProducerIdRequest, draw: Callable[[], int] = random_producer_id
) -> InitProducerIdResponse:
    """A fresh id with epoch 0, also for a producer that names its old one."""
    if request.transactional_id is not None:
        return InitProducerIdResponse(
            error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            if request.transactional_id
            else ErrorCode.INVALID_REQUEST,
            producer_epoch=-1,
        )
    if (request.producer_id == -1) != (request.producer_epoch == -1):
        return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST, producer_epoch=-1)
    return InitProducerIdResponse(producer_id=draw(), producer_epoch=0)
