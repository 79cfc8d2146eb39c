"""Messages to events and back: AddRaftVoter, RemoveRaftVoter, UpdateRaftVoter, reassignments, TransferLeader.

Pure functions, as in `translate`. Source: KIP-853, KIP-856, KIP-455, KIP-642.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from quorumd.raft.effects import AddVoter, RemoveVoter, UpdateVoter, VoterChangeReply
from quorumd.raft.events import (
    AddVoterRequested,
    Event,
    ReassignmentRequested,
    RemoveVoterRequested,
    TransferRequested,
    UpdateVoterRequested,
    VoterChangeResponseReceived,
)
from quorumd.raft.types import Endpoint, ReplicaKey, Voter
from quorumd.server.model.topic import TopicPartition
from quorumd.server.translate.common import (
    error_code,
    error_name,
    id_or_minus_one,
    id_or_none,
    leader_hint,
    leader_nodes,
    uuid_or_none,
    uuid_or_zero,
)
from quorumd.wire.codec import decode
from quorumd.wire.control_records import KRAFT_VERSION_MAX
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.add_raft_voter import (
    AddRaftVoterRequest,
    AddRaftVoterRequestListener,
    AddRaftVoterResponse,
)
from quorumd.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    AlterPartitionReassignmentsResponsePartition,
    AlterPartitionReassignmentsResponseTopic,
)
from quorumd.wire.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from quorumd.wire.messages.transfer_leader import TransferLeaderRequest, TransferLeaderResponse
from quorumd.wire.messages.update_raft_voter import (
    UpdateRaftVoterRequest,
    UpdateRaftVoterRequestKRaftVersionFeature,
    UpdateRaftVoterRequestListener,
    UpdateRaftVoterResponse,
    UpdateRaftVoterResponseCurrentLeader,
)
from quorumd.wire.schema import Message

ALTER_REASSIGNMENTS, ADD_VOTER, REMOVE_VOTER, UPDATE_VOTER, TRANSFER = 45, 80, 81, 82, 20001
CHANGE_TIMEOUT_MAX_MS = 3_600_000
JOIN_TIMEOUT_MS = 2_000
"""Time that the leader waits until a replica that joins by itself has caught up."""


# -- requests


def _endpoints(
    listeners: Iterable[AddRaftVoterRequestListener | UpdateRaftVoterRequestListener],
) -> tuple[Endpoint, ...]:
    return tuple(Endpoint(at.name.upper(), at.host, at.port) for at in listeners)


def _waits_ms(asked_ms: int) -> int:
    """Time in ms that a change waits for its turn and for what it needs: it holds a place of the queue."""
    return min(max(0, asked_ms), CHANGE_TIMEOUT_MAX_MS)


def _add_requested(message: AddRaftVoterRequest, reply_to: int) -> AddVoterRequested:
    return AddVoterRequested(
        reply_to=reply_to,
        cluster_id=message.cluster_id,
        voter=Voter(
            ReplicaKey(message.voter_id, uuid_or_none(message.voter_directory_id)),
            _endpoints(message.listeners),
        ),
        timeout_ms=_waits_ms(message.timeout_ms),
        ack_when_committed=message.ack_when_committed,
    )


def _remove_requested(
    message: RemoveRaftVoterRequest, reply_to: int, default_timeout_ms: int
) -> RemoveVoterRequested:
    timeout_ms = message.timeout_ms if message.timeout_ms >= 0 else default_timeout_ms
    return RemoveVoterRequested(
        reply_to=reply_to,
        cluster_id=message.cluster_id,
        key=ReplicaKey(message.voter_id, uuid_or_none(message.voter_directory_id)),
        timeout_ms=_waits_ms(timeout_ms),
        force=message.force,
    )


def _update_requested(message: UpdateRaftVoterRequest, reply_to: int) -> UpdateVoterRequested:
    versions = message.kraft_version_feature
    return UpdateVoterRequested(
        reply_to=reply_to,
        cluster_id=message.cluster_id,
        epoch=message.current_leader_epoch,
        voter=Voter(
            ReplicaKey(message.voter_id, uuid_or_none(message.voter_directory_id)),
            _endpoints(message.listeners),
            versions.min_supported_version,
            versions.max_supported_version,
        ),
    )


def _transfer_requested(message: TransferLeaderRequest, reply_to: int) -> TransferRequested:
    to_id = id_or_none(message.to_id)
    return TransferRequested(
        reply_to=reply_to,
        cluster_id=message.cluster_id,
        to=None if to_id is None else ReplicaKey(to_id, uuid_or_none(message.to_directory_id)),
        timeout_ms=_waits_ms(message.timeout_ms),
    )


def reassignment_request_received(
    message: AlterPartitionReassignmentsRequest, reply_to: int
) -> ReassignmentRequested:
    """Of one partition, perhaps beside topics without any; see `misplaced_reassignment`."""
    (wanted,) = (part.replicas for topic in message.topics for part in topic.partitions)
    return ReassignmentRequested(
        reply_to=reply_to,
        target=None if wanted is None else tuple(sorted(wanted)),
        timeout_ms=_waits_ms(message.timeout_ms),
    )


def change_request_received(
    api_key: int, version: int, frame: bytes, at: int, reply_to: int, default_timeout_ms: int
) -> Event:
    """Event of a request that changes a voter or the leader. Raises MalformedMessage."""
    if api_key == ADD_VOTER:
        return _add_requested(decode(AddRaftVoterRequest, version, frame, at), reply_to)
    if api_key == REMOVE_VOTER:
        message = decode(RemoveRaftVoterRequest, version, frame, at)
        return _remove_requested(message, reply_to, default_timeout_ms)
    if api_key == UPDATE_VOTER:
        return _update_requested(decode(UpdateRaftVoterRequest, version, frame, at), reply_to)
    assert api_key == TRANSFER, "the other requests do not change who votes or leads"
    return _transfer_requested(decode(TransferLeaderRequest, version, frame, at), reply_to)


def misplaced_reassignment(
    message: AlterPartitionReassignmentsRequest, topic: TopicPartition
) -> Message | None:
    """The response to a request that names anything but the one partition; None if it names just that."""
    named = [(at.name, part) for at in message.topics for part in at.partitions]
    known = (topic.name, topic.index)
    if len(named) == 1 and (named[0][0], named[0][1].partition_index) == known:
        return None
    text = (
        f"only partition {topic.index} of {topic.name} can be reassigned, in a request of its own"
    )
    return AlterPartitionReassignmentsResponse(
        responses=tuple(
            AlterPartitionReassignmentsResponseTopic(
                name=at.name,
                partitions=tuple(
                    AlterPartitionReassignmentsResponsePartition(
                        partition_index=part.partition_index,
                        error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                        error_message=text,
                    )
                    for part in at.partitions
                ),
            )
            for at in message.topics
        )
    )


# -- responses


def change_response(
    api_key: int, reply: VoterChangeReply, topic: TopicPartition, listener: str
) -> Message:
    """The response to any of these requests; a node that does not lead names the leader."""
    code = error_code(reply.error)
    if api_key == UPDATE_VOTER:
        nodes = leader_nodes(reply, listener)
        _, host, port = nodes[0] if nodes else (-1, "", 0)
        return UpdateRaftVoterResponse(
            error_code=code,
            current_leader=UpdateRaftVoterResponseCurrentLeader(
                leader_id=id_or_minus_one(reply.leader_id),
                leader_epoch=reply.epoch,
                host=host,
                port=port,
            ),
        )
    if api_key == ALTER_REASSIGNMENTS:
        partition = AlterPartitionReassignmentsResponsePartition(
            partition_index=topic.index, error_code=code, error_message=reply.message
        )
        return AlterPartitionReassignmentsResponse(
            responses=(
                AlterPartitionReassignmentsResponseTopic(name=topic.name, partitions=(partition,)),
            )
        )
    make: Callable[..., Message] = {
        ADD_VOTER: AddRaftVoterResponse,
        REMOVE_VOTER: RemoveRaftVoterResponse,
        TRANSFER: TransferLeaderResponse,
    }[api_key]
    return make(
        error_code=code,
        error_message=reply.message,
        leader_id=id_or_minus_one(reply.leader_id),
        leader_epoch=reply.epoch,
    )


# -- what this replica asks its leader


def change_request(
    request: UpdateVoter | AddVoter | RemoveVoter, cluster_id: str | None, local: ReplicaKey
) -> tuple[int, Message]:
    """Api key and message."""
    own = uuid_or_zero(local.uuid)
    if isinstance(request, UpdateVoter):
        return UPDATE_VOTER, UpdateRaftVoterRequest(
            cluster_id=cluster_id,
            current_leader_epoch=request.epoch,
            voter_id=local.id,
            voter_directory_id=own,
            listeners=tuple(
                UpdateRaftVoterRequestListener(name=at.name, host=at.host, port=at.port)
                for at in request.endpoints
            ),
            kraft_version_feature=UpdateRaftVoterRequestKRaftVersionFeature(
                min_supported_version=0, max_supported_version=KRAFT_VERSION_MAX
            ),
        )
    if isinstance(request, AddVoter):
        return ADD_VOTER, AddRaftVoterRequest(
            cluster_id=cluster_id,
            timeout_ms=JOIN_TIMEOUT_MS,
            voter_id=local.id,
            voter_directory_id=own,
            listeners=tuple(
                AddRaftVoterRequestListener(name=at.name, host=at.host, port=at.port)
                for at in request.endpoints
            ),
            ack_when_committed=False,
        )
    return REMOVE_VOTER, RemoveRaftVoterRequest(
        cluster_id=cluster_id,
        voter_id=request.key.id,
        voter_directory_id=uuid_or_zero(request.key.uuid),
    )


def change_response_received(
    api_key: int, version: int, frame: bytes, at: int, request_id: int, listener: str
) -> VoterChangeResponseReceived:
    """The leader's response as an event. Raises MalformedMessage."""
    if api_key == UPDATE_VOTER:
        update = decode(UpdateRaftVoterResponse, version, frame, at)
        leader = update.current_leader
        nodes = ((leader.leader_id, leader.host, leader.port),)
        return VoterChangeResponseReceived(
            request_id=request_id,
            error=error_name(update.error_code),
            hint=leader_hint(leader.leader_id, leader.leader_epoch, nodes, listener),
        )
    message: AddRaftVoterResponse | RemoveRaftVoterResponse
    if api_key == ADD_VOTER:
        message = decode(AddRaftVoterResponse, version, frame, at)
    else:
        message = decode(RemoveRaftVoterResponse, version, frame, at)
    return VoterChangeResponseReceived(
        request_id=request_id,
        error=error_name(message.error_code),
        message=message.error_message,
    )
