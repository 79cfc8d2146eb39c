"""Messages to events and effects to messages: FetchSnapshot. Pure functions; see `translate`.

Source: KIP-630, KIP-853.
"""

from __future__ import annotations

from typing import NamedTuple

from quorumd.raft.effects import FetchSnapshot, SnapshotReply
from quorumd.raft.events import (
    FetchSnapshotRequestReceived,
    FetchSnapshotResponseReceived,
    RequestFailed,
    SnapshotChunk,
)
from quorumd.raft.types import ReplicaKey, SnapshotId
from quorumd.server.model.topic import TopicPartition
from quorumd.server.translate.common import (
    check_topic,
    error_code,
    error_name,
    id_or_minus_one,
    leader_hint,
    leader_nodes,
    only_topic,
    request_failed,
    uuid_or_none,
    uuid_or_zero,
)
from quorumd.wire.codec import decode
from quorumd.wire.messages.fetch_snapshot import (
    FetchSnapshotRequest,
    FetchSnapshotRequestPartition,
    FetchSnapshotRequestSnapshotId,
    FetchSnapshotRequestTopic,
    FetchSnapshotResponse,
    FetchSnapshotResponseLeader,
    FetchSnapshotResponseNodeEndpoint,
    FetchSnapshotResponsePartition,
    FetchSnapshotResponseSnapshotId,
    FetchSnapshotResponseTopic,
)

NODE_ENDPOINTS_SINCE = 1


class ChunkRange(NamedTuple):
    """The part of a snapshot that is asked for, in bytes, and by which replica, if it is one."""

    position: int
    max_bytes: int
    replica: ReplicaKey | None = None


def snapshot_request_received(
    message: FetchSnapshotRequest, topic: TopicPartition, reply_to: int
) -> tuple[FetchSnapshotRequestReceived, ChunkRange]:
    """Raises InvalidRequestShape unless exactly this partition is asked for."""
    asked = only_topic(message.topics)
    partition = asked.partitions[0]
    check_topic(topic, asked.name, partition.partition)
    replica = None
    if message.replica_id >= 0:
        replica = ReplicaKey(message.replica_id, uuid_or_none(partition.replica_directory_id))
    event = FetchSnapshotRequestReceived(
        reply_to=reply_to,
        cluster_id=message.cluster_id,
        replica=replica,
        epoch=partition.current_leader_epoch,
        snapshot=SnapshotId(partition.snapshot_id.end_offset, partition.snapshot_id.epoch),
    )
    return event, ChunkRange(partition.position, message.max_bytes, replica)


class ChunkBytes(NamedTuple):
    """Bytes of a snapshot of `size_bytes` from `position` on."""

    size_bytes: int
    position: int
    data: bytes


def snapshot_response(
    reply: SnapshotReply,
    topic: TopicPartition,
    version: int,
    listener: str,
    chunk: ChunkBytes | None,
) -> FetchSnapshotResponse:
    """With a chunk if there is no error."""
    nodes = tuple(
        FetchSnapshotResponseNodeEndpoint(node_id=node_id, host=host, port=port)
        for node_id, host, port in leader_nodes(reply, listener, version >= NODE_ENDPOINTS_SINCE)
    )
    if reply.top_level_error is not None:
        return FetchSnapshotResponse(
            error_code=error_code(reply.top_level_error), node_endpoints=nodes
        )
    snapshot, found = reply.snapshot or SnapshotId(0, 0), chunk or ChunkBytes(0, 0, b"")
    partition = FetchSnapshotResponsePartition(
        index=topic.index,
        error_code=error_code(reply.error),
        snapshot_id=FetchSnapshotResponseSnapshotId(
            end_offset=snapshot.end_offset, epoch=snapshot.epoch
        ),
        current_leader=FetchSnapshotResponseLeader(
            leader_id=id_or_minus_one(reply.leader_id), leader_epoch=reply.epoch
        ),
        size=found.size_bytes,
        position=found.position,
        unaligned_records=found.data,
    )
    topic_response = FetchSnapshotResponseTopic(name=topic.name, partitions=(partition,))
    return FetchSnapshotResponse(topics=(topic_response,), node_endpoints=nodes)


def snapshot_request(
    request: FetchSnapshot, topic: TopicPartition, cluster_id: str | None, local: ReplicaKey
) -> FetchSnapshotRequest:
    """The request for the next chunk of the leader's snapshot."""
    partition = FetchSnapshotRequestPartition(
        partition=topic.index,
        current_leader_epoch=request.epoch,
        snapshot_id=FetchSnapshotRequestSnapshotId(
            end_offset=request.snapshot.end_offset, epoch=request.snapshot.epoch
        ),
        position=request.position,
        replica_directory_id=uuid_or_zero(local.uuid),
    )
    return FetchSnapshotRequest(
        cluster_id=cluster_id,
        replica_id=local.id,
        max_bytes=request.max_bytes,
        topics=(FetchSnapshotRequestTopic(name=topic.name, partitions=(partition,)),),
    )


def snapshot_response_received(
    version: int, frame: bytes, at: int, topic: TopicPartition, request_id: int, listener: str
) -> tuple[FetchSnapshotResponseReceived | RequestFailed, bytes]:
    """A peer's FetchSnapshot response as an event, and the bytes of its chunk.

    Raises MalformedMessage, and InvalidRequestShape unless it is about exactly this partition.
    """
    message = decode(FetchSnapshotResponse, version, frame, at)
    if message.error_code:
        return request_failed(request_id, message.error_code), b""
    about = only_topic(message.topics)
    found = about.partitions[0]
    check_topic(topic, about.name, found.index)
    nodes = tuple((node.node_id, node.host, node.port) for node in message.node_endpoints)
    leader, error = found.current_leader, error_name(found.error_code)
    chunk = None
    if error is None:
        chunk = SnapshotChunk(
            snapshot=SnapshotId(found.snapshot_id.end_offset, found.snapshot_id.epoch),
            position=found.position,
            size_bytes=found.size,
            chunk_bytes=len(found.unaligned_records),
            token=request_id,
        )
    event = FetchSnapshotResponseReceived(
        request_id=request_id,
        error=error,
        hint=leader_hint(leader.leader_id, leader.leader_epoch, nodes, listener),
        chunk=chunk,
    )
    return event, found.unaligned_records
