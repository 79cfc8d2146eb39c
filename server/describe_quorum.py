"""DescribeQuorum: who leads, who votes, who observes, and how far everybody is.

Only the leader can say how far the others are. Another node answers with an error, and with what it knows
of the leader, so that a client needs no second question to find it. Source: KIP-595, 836, 853.
"""

from __future__ import annotations

from raft.types import Endpoint
from server.cluster_view import ClusterView, ReplicaStatus
from server.translate import METADATA, endpoint_on, id_or_minus_one, uuid_or_zero
from wire.error_codes import ErrorCode
from wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeQuorumResponseListener,
    DescribeQuorumResponseNode,
    DescribeQuorumResponsePartition,
    DescribeQuorumResponseReplica,
    DescribeQuorumResponseTopic,
)


def describe_quorum(
    view: ClusterView, request: DescribeQuorumRequest, version: int, listener: str
) -> DescribeQuorumResponse:
    """Errors are per partition, as with Kafka; `listener` is the one that the request came in on."""
    if not request.topics:
        return DescribeQuorumResponse(error_message=_message(version, ""))
    if not _asks_for_metadata(request):
        return _unknown(request, version)
    nodes: tuple[DescribeQuorumResponseNode, ...] = ()
    if version >= 2:
        nodes = tuple(
            DescribeQuorumResponseNode(
                node_id=node_id,
                listeners=tuple(
                    DescribeQuorumResponseListener(name=at.name, host=at.host, port=at.port)
                    for at in endpoints
                ),
            )
            for node_id, endpoints in sorted(_nodes(view).items())
        )
    partition = _described(view, version) if view.is_leader else _hint(view, version, listener)
    topic = DescribeQuorumResponseTopic(topic_name=METADATA.name, partitions=(partition,))
    return DescribeQuorumResponse(error_message=_message(version, ""), topics=(topic,), nodes=nodes)


def _asks_for_metadata(request: DescribeQuorumRequest) -> bool:
    if len(request.topics) != 1 or request.topics[0].topic_name != METADATA.name:
        return False
    partitions = request.topics[0].partitions
    return len(partitions) == 1 and partitions[0].partition_index == METADATA.index


def _message(version: int, text: str) -> str | None:
    return text if version >= 2 else None


def _unknown(request: DescribeQuorumRequest, version: int) -> DescribeQuorumResponse:
    text = f"exactly one partition can be described: {METADATA.name}, partition {METADATA.index}"
    return DescribeQuorumResponse(
        error_message=_message(version, ""),
        topics=tuple(
            DescribeQuorumResponseTopic(
                topic_name=topic.topic_name,
                partitions=tuple(
                    DescribeQuorumResponsePartition(
                        partition_index=partition.partition_index,
                        error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                        error_message=_message(version, text),
                    )
                    for partition in topic.partitions
                ),
            )
            for topic in request.topics
        ),
    )


def _described(view: ClusterView, version: int) -> DescribeQuorumResponsePartition:
    return DescribeQuorumResponsePartition(
        partition_index=METADATA.index,
        error_message=_message(version, ""),
        leader_id=id_or_minus_one(view.leader_id),
        leader_epoch=view.leader_epoch,
        high_watermark=view.high_watermark,
        current_voters=tuple(_replica(status, version) for status in view.voter_statuses()),
        observers=tuple(_replica(status, version) for status in view.observer_statuses()),
    )


def _replica(status: ReplicaStatus, version: int) -> DescribeQuorumResponseReplica:
    return DescribeQuorumResponseReplica(
        replica_id=status.key.id,
        # The field is not ignorable: below version 2 it must stay at its default.
        replica_directory_id=uuid_or_zero(status.key.uuid if version >= 2 else None),
        log_end_offset=status.log_end_offset,
        last_fetch_timestamp=status.last_fetch_ms,
        last_caught_up_timestamp=status.last_caught_up_ms,
    )


def _hint(view: ClusterView, version: int, listener: str) -> DescribeQuorumResponsePartition:
    leader_id = view.leader_id
    if leader_id is None:
        text = f"no leader is known in epoch {view.leader_epoch}; ask again soon"
    else:
        at = endpoint_on(view.leader_endpoints, listener)
        where = "" if at is None else f" at {at.host}:{at.port}"
        text = f"node {view.local.id} does not lead: ask node {leader_id}{where}"
    return DescribeQuorumResponsePartition(
        partition_index=METADATA.index,
        error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER,
        error_message=_message(version, text),
        leader_id=id_or_minus_one(leader_id),
        leader_epoch=view.leader_epoch,
        high_watermark=view.high_watermark,
    )


def _nodes(view: ClusterView) -> dict[int, tuple[Endpoint, ...]]:
    """Endpoints by id: observers that announced some, voters, and the leader, who knows itself best."""
    nodes = dict(view.observer_endpoints())
    for voter in view.voters:
        nodes[voter.key.id] = voter.endpoints
    if view.leader_id is not None and view.leader_endpoints:
        nodes[view.leader_id] = view.leader_endpoints
    return nodes
