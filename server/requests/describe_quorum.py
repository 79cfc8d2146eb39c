"""DescribeQuorum: leader, voters, observers, and the log end of each.

Only the leader knows the progress of the others. Another node responds with an error and the leader's
address, so that a client needs no second request to find it. Source: KIP-595, 836, 853.
"""

from __future__ import annotations

from dataclasses import replace

from quorumd.raft.types import Endpoint, ReplicaKey
from quorumd.server.model.partition_view import (
    PartitionView,
    PendingChange,
    ReplicaStatus,
    SnapshotWork,
)
from quorumd.server.model.topic import METADATA
from quorumd.server.translate.common import endpoint_on, id_or_minus_one, uuid_or_zero
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeQuorumResponseCommittedVoter,
    DescribeQuorumResponseListener,
    DescribeQuorumResponseNode,
    DescribeQuorumResponsePartition,
    DescribeQuorumResponsePendingChange,
    DescribeQuorumResponseReplica,
    DescribeQuorumResponseSnapshotBuild,
    DescribeQuorumResponseSnapshotCopy,
    DescribeQuorumResponseTopic,
)


def describe_quorum(
    view: PartitionView,
    request: DescribeQuorumRequest,
    version: int,
    listener: str,
    is_own: bool = False,
    work: SnapshotWork | None = None,
) -> DescribeQuorumResponse:
    """Errors are per partition, as with Kafka; `listener` is the one that the request came in on.

    Software of this project (`is_own`) gets fields that Kafka does not have: changes under way,
    endpoints by storage id, and `work`.
    """
    if not request.topics:
        return DescribeQuorumResponse(error_message=_message(version, ""))
    if not _asks_for_metadata(request):
        return _unknown(request, version)
    nodes: tuple[DescribeQuorumResponseNode, ...] = ()
    if version >= 2:
        nodes = tuple(
            DescribeQuorumResponseNode(
                node_id=key.id,
                directory_id=uuid_or_zero(key.uuid if is_own else None),
                listeners=tuple(
                    DescribeQuorumResponseListener(name=at.name, host=at.host, port=at.port)
                    for at in endpoints
                ),
            )
            for key, endpoints in _nodes(view, by_key=is_own)
        )
    if view.is_leader:
        partition = _described(view, version, is_own, work if is_own else None)
    else:
        partition = _hint(view, version, listener)
    topic = DescribeQuorumResponseTopic(topic_name=METADATA.name, partitions=(partition,))
    return DescribeQuorumResponse(error_message=_message(version, ""), topics=(topic,), nodes=nodes)


def for_any_client(response: DescribeQuorumResponse) -> DescribeQuorumResponse:
    """A leader's response to another node, as it responds to Kafka's clients: each id has one node, and the
    tags of this project's own are gone.

    Of several replicas of one id it is the one that votes.
    """
    partitions = (each for topic in response.topics for each in topic.partitions)
    voters = {
        (voter.replica_id, voter.replica_directory_id)
        for partition in partitions
        for voter in partition.current_voters
    }
    ordered = sorted(response.nodes, key=lambda it: (it.node_id, it.directory_id) in voters)
    found = {node.node_id: replace(node, directory_id=uuid_or_zero(None)) for node in ordered}
    topics = tuple(
        replace(topic, partitions=tuple(map(_without_own_tags, topic.partitions)))
        for topic in response.topics
    )
    return replace(response, topics=topics, nodes=tuple(found[each] for each in sorted(found)))


def _without_own_tags(
    partition: DescribeQuorumResponsePartition,
) -> DescribeQuorumResponsePartition:
    return replace(
        partition,
        committed_voters=None,
        target_voters=None,
        pending_changes=None,
        snapshot_copies=None,
        snapshot_build=DescribeQuorumResponseSnapshotBuild(),
    )


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


def _described(
    view: PartitionView, version: int, is_own: bool, work: SnapshotWork | None
) -> DescribeQuorumResponsePartition:
    committed, pending = view.committed_voters, view.pending_changes()
    return DescribeQuorumResponsePartition(
        partition_index=METADATA.index,
        error_message=_message(version, ""),
        leader_id=id_or_minus_one(view.leader_id),
        leader_epoch=view.leader_epoch,
        high_watermark=view.high_watermark,
        current_voters=tuple(_replica(status, version) for status in view.voter_statuses()),
        observers=tuple(_replica(status, version) for status in view.observer_statuses()),
        committed_voters=tuple(
            DescribeQuorumResponseCommittedVoter(
                replica_id=key.id, replica_directory_id=uuid_or_zero(key.uuid)
            )
            for key in committed.keys
        )
        if is_own and committed.keys != view.voters.keys
        else None,
        target_voters=view.target_voters if is_own else None,
        pending_changes=tuple(map(_pending, pending)) if is_own and pending else None,
        snapshot_copies=_copies(work) if work is not None and work.copies else None,
        snapshot_build=DescribeQuorumResponseSnapshotBuild()
        if work is None or work.build_end_offset < 0
        else DescribeQuorumResponseSnapshotBuild(
            end_offset=work.build_end_offset, permille=int(work.build_ratio * 1000)
        ),
    )


def _copies(work: SnapshotWork) -> tuple[DescribeQuorumResponseSnapshotCopy, ...]:
    return tuple(
        DescribeQuorumResponseSnapshotCopy(
            replica_id=key.id,
            replica_directory_id=uuid_or_zero(key.uuid),
            end_offset=copy.snapshot.end_offset,
            epoch=copy.snapshot.epoch,
            position=copy.position,
            size_bytes=copy.size_bytes,
        )
        for key, copy in sorted(work.copies.items(), key=lambda each: each[0].sort_key())
    )


def _pending(change: PendingChange) -> DescribeQuorumResponsePendingChange:
    key = change.key
    return DescribeQuorumResponsePendingChange(
        kind=change.kind,
        replica_id=-1 if key is None else key.id,
        replica_directory_id=uuid_or_zero(None if key is None else key.uuid),
        waiting_ms=change.waiting_ms,
        waits_for=change.waits_for,
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


def _hint(view: PartitionView, version: int, listener: str) -> DescribeQuorumResponsePartition:
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


def _nodes(view: PartitionView, by_key: bool) -> list[tuple[ReplicaKey, tuple[Endpoint, ...]]]:
    """Endpoints of observers that announced some, of voters, and of the leader, who knows itself best.

    Unless they are wanted `by_key`, each id stands there once: Kafka's clients know no storage id here.
    """
    found: dict[ReplicaKey | int, tuple[ReplicaKey, tuple[Endpoint, ...]]] = {}
    for replica in (*view.observer_endpoints(), *view.voters):
        key = replica.key
        found[key if by_key else key.id] = key, replica.endpoints
    if view.leader_id is not None and view.leader_endpoints:
        others = [key for key in view.voters.keys if key != view.local]
        led_by = [key for key in others if key.id == view.leader_id]
        leader = view.local if view.is_leader else (led_by or [ReplicaKey(view.leader_id)])[0]
        found[leader if by_key else leader.id] = leader, view.leader_endpoints
    return sorted(found.values(), key=lambda row: row[0].sort_key())
