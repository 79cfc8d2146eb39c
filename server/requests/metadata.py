"""Metadata and DescribeCluster: the nodes as clients see them, the controller, and the one topic.

Brokers, for clients, are the voters and a leader outside their set; the controller is the raft leader.
Source: KIP-516, KIP-700, KIP-919.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from quorumd.raft.types import Endpoint
from quorumd.server.model.partition_view import PartitionView
from quorumd.server.model.topic import METADATA
from quorumd.server.translate.common import endpoint_on, id_or_minus_one
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.describe_cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeClusterResponseBroker,
)
from quorumd.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from quorumd.wire.schema import ZERO_UUID

TOPIC_NAME_CHARACTERS_MAX: Final = 249
BROKERS, CONTROLLERS = 1, 2

_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]+")
# Bits by Kafka's AclOperation: READ 3, WRITE 4, DESCRIBE 8, CLUSTER_ACTION 9, DESCRIBE_CONFIGS 10,
# IDEMPOTENT_WRITE 12. There are no ACLs: every client may do whatever exists here.
_TOPIC_OPERATIONS: Final = 1 << 3 | 1 << 4 | 1 << 8 | 1 << 10
_CLUSTER_OPERATIONS: Final = 1 << 8 | 1 << 9 | 1 << 10 | 1 << 12
_NOT_REQUESTED: Final = -(1 << 31)


def metadata(
    view: PartitionView, request: MetadataRequest, version: int, listener: str
) -> MetadataResponse:
    """Nodes, and the one topic; `listener` is the name of the one that the request came in on."""
    nodes = nodes_on(view, listener)
    wants_all = request.topics is None or (version == 0 and not request.topics)
    own = MetadataRequestTopic(name=METADATA.name)
    topics = (own,) if wants_all else request.topics or ()
    operations = (
        _TOPIC_OPERATIONS if request.include_topic_authorized_operations else _NOT_REQUESTED
    )
    return MetadataResponse(
        brokers=tuple(
            MetadataResponseBroker(node_id=node.id, host=node.host, port=node.port)
            for node in nodes
        ),
        cluster_id=view.cluster_id,
        controller_id=_reachable_leader(view, nodes),
        # Each topic once, as a broker responds, however often it is named.
        topics=tuple(
            _topic(view, nodes, topic, version, operations)
            for topic in {(topic.name, topic.topic_id): topic for topic in topics}.values()
        ),
        cluster_authorized_operations=(
            _CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else _NOT_REQUESTED
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
            _CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else _NOT_REQUESTED
        ),
    )


# -- nodes


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
