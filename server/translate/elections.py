"""Messages to events and effects to messages: Vote, BeginQuorumEpoch, EndQuorumEpoch.

Pure functions. Source: KIP-595, KIP-853, KIP-996.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar, cast
from uuid import UUID

from quorumd.raft.effects import BeginQuorumEpoch, EndQuorumEpoch, Reply, Vote, VoteReply
from quorumd.raft.events import (
    BeginQuorumEpochRequestReceived,
    BeginQuorumEpochResponseReceived,
    EndQuorumEpochRequestReceived,
    EndQuorumEpochResponseReceived,
    RequestFailed,
    VoteRequestReceived,
    VoteResponseReceived,
)
from quorumd.raft.types import Endpoint, OffsetAndEpoch, ReplicaKey
from quorumd.server.model.topic import TopicPartition
from quorumd.server.translate.common import (
    check_topic,
    error_code,
    error_name,
    id_or_minus_one,
    id_or_none,
    leader_hint,
    leader_nodes,
    only_topic,
    request_failed,
    uuid_or_none,
    uuid_or_zero,
)
from quorumd.wire.codec import decode
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.begin_quorum_epoch import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochRequestLeaderEndpoint,
    BeginQuorumEpochRequestPartition,
    BeginQuorumEpochRequestTopic,
    BeginQuorumEpochResponse,
    BeginQuorumEpochResponseNodeEndpoint,
    BeginQuorumEpochResponsePartition,
    BeginQuorumEpochResponseTopic,
)
from quorumd.wire.messages.end_quorum_epoch import (
    EndQuorumEpochRequest,
    EndQuorumEpochRequestLeaderEndpoint,
    EndQuorumEpochRequestPartition,
    EndQuorumEpochRequestPreferredCandidate,
    EndQuorumEpochRequestTopic,
    EndQuorumEpochResponse,
    EndQuorumEpochResponseNodeEndpoint,
    EndQuorumEpochResponsePartition,
    EndQuorumEpochResponseTopic,
)
from quorumd.wire.messages.vote import (
    VoteRequest,
    VoteRequestPartition,
    VoteRequestTopic,
    VoteResponse,
    VoteResponseNodeEndpoint,
    VoteResponsePartition,
    VoteResponseTopic,
)
from quorumd.wire.schema import Message, Struct

VOTE, BEGIN_QUORUM_EPOCH, END_QUORUM_EPOCH = 52, 53, 54

_RESPONSES: dict[
    int, type[VoteResponse] | type[BeginQuorumEpochResponse] | type[EndQuorumEpochResponse]
] = {
    VOTE: VoteResponse,
    BEGIN_QUORUM_EPOCH: BeginQuorumEpochResponse,
    END_QUORUM_EPOCH: EndQuorumEpochResponse,
}


# -- requests of peers


class _Partition(Protocol):
    @property
    def partition_index(self) -> int: ...


P = TypeVar("P", bound=_Partition)
P_co = TypeVar("P_co", bound=_Partition, covariant=True)


class _Topic(Protocol[P_co]):
    @property
    def topic_name(self) -> str: ...
    @property
    def partitions(self) -> Sequence[P_co]: ...


def _only_partition(topics: Sequence[_Topic[P]], topic: TopicPartition) -> P:
    """The one partition of a message. Raises InvalidRequestShape unless it is `topic`."""
    named = only_topic(topics)
    partition = named.partitions[0]
    check_topic(topic, named.topic_name, partition.partition_index)
    return partition


def _meant_for(voter_id: int, uuid: UUID) -> ReplicaKey | None:
    return None if voter_id < 0 else ReplicaKey(voter_id, uuid_or_none(uuid))


def election_request_received(
    api_key: int, version: int, frame: bytes, at: int, topic: TopicPartition, reply_to: int
) -> VoteRequestReceived | BeginQuorumEpochRequestReceived | EndQuorumEpochRequestReceived:
    """The event of a peer's Vote, BeginQuorumEpoch or EndQuorumEpoch.

    Raises MalformedMessage, and InvalidRequestShape unless exactly this partition is meant.
    """
    if api_key == VOTE:
        return _vote_request_received(decode(VoteRequest, version, frame, at), topic, reply_to)
    if api_key == BEGIN_QUORUM_EPOCH:
        begin = decode(BeginQuorumEpochRequest, version, frame, at)
        return _begin_request_received(begin, topic, reply_to)
    assert api_key == END_QUORUM_EPOCH, "the other requests belong to no election"
    end = decode(EndQuorumEpochRequest, version, frame, at)
    return _end_request_received(end, version, topic, reply_to)


def _endpoints(
    named: Sequence[BeginQuorumEpochRequestLeaderEndpoint | EndQuorumEpochRequestLeaderEndpoint],
) -> tuple[Endpoint, ...]:
    """The leader's endpoints; one without host or port is none."""
    return tuple(Endpoint(at.name.upper(), at.host, at.port) for at in named if at.host and at.port)


def _vote_request_received(
    message: VoteRequest, topic: TopicPartition, reply_to: int
) -> VoteRequestReceived:
    asked = _only_partition(message.topics, topic)
    return VoteRequestReceived(
        reply_to=reply_to,
        cluster_id=message.cluster_id,
        voter=_meant_for(message.voter_id, asked.voter_directory_id),
        candidate=ReplicaKey(asked.replica_id, uuid_or_none(asked.replica_directory_id)),
        epoch=asked.replica_epoch,
        last=OffsetAndEpoch(asked.last_offset, asked.last_offset_epoch),
        pre_vote=asked.pre_vote,
    )


def _begin_request_received(
    message: BeginQuorumEpochRequest, topic: TopicPartition, reply_to: int
) -> BeginQuorumEpochRequestReceived:
    begun = _only_partition(message.topics, topic)
    return BeginQuorumEpochRequestReceived(
        reply_to=reply_to,
        cluster_id=message.cluster_id,
        voter=_meant_for(message.voter_id, begun.voter_directory_id),
        leader_id=begun.leader_id,
        epoch=begun.leader_epoch,
        endpoints=_endpoints(message.leader_endpoints),
    )


def _end_request_received(
    message: EndQuorumEpochRequest, version: int, topic: TopicPartition, reply_to: int
) -> EndQuorumEpochRequestReceived:
    ended = _only_partition(message.topics, topic)
    if version == 0:
        successors = tuple(ReplicaKey(replica_id) for replica_id in ended.preferred_successors)
    else:
        successors = tuple(
            ReplicaKey(key.candidate_id, uuid_or_none(key.candidate_directory_id))
            for key in ended.preferred_candidates
        )
    return EndQuorumEpochRequestReceived(
        reply_to=reply_to,
        cluster_id=message.cluster_id,
        leader_id=id_or_none(ended.leader_id),
        epoch=ended.leader_epoch,
        successors=successors,
        endpoints=_endpoints(message.leader_endpoints),
    )


# -- responses to peers


class _Makers(NamedTuple):
    """Constructors of the parts of a raft response."""

    response: Callable[..., Message]
    topic: Callable[..., Struct]
    partition: Callable[..., Struct]
    node: Callable[..., Struct]


_MAKERS = {
    VOTE: _Makers(VoteResponse, VoteResponseTopic, VoteResponsePartition, VoteResponseNodeEndpoint),
    BEGIN_QUORUM_EPOCH: _Makers(
        BeginQuorumEpochResponse,
        BeginQuorumEpochResponseTopic,
        BeginQuorumEpochResponsePartition,
        BeginQuorumEpochResponseNodeEndpoint,
    ),
    END_QUORUM_EPOCH: _Makers(
        EndQuorumEpochResponse,
        EndQuorumEpochResponseTopic,
        EndQuorumEpochResponsePartition,
        EndQuorumEpochResponseNodeEndpoint,
    ),
}


def invalid_election_request(api_key: int) -> Message:
    """The response to a request that `election_request_received` does not take."""
    return _MAKERS[api_key].response(error_code=ErrorCode.INVALID_REQUEST)


def election_response(
    api_key: int, reply: Reply, topic: TopicPartition, version: int, listener: str
) -> Message:
    """The response to Vote, BeginQuorumEpoch or EndQuorumEpoch: they differ in VoteGranted alone."""
    make = _MAKERS[api_key]
    granted = {"vote_granted": reply.granted} if isinstance(reply, VoteReply) else {}
    partition = make.partition(**_plain_fields(reply, topic), **granted)
    topic_response = make.topic(topic_name=topic.name, partitions=(partition,))
    return make.response(
        error_code=error_code(reply.top_level_error),
        topics=() if reply.top_level_error else (topic_response,),
        node_endpoints=tuple(
            make.node(node_id=node_id, host=host, port=port)
            for node_id, host, port in leader_nodes(reply, listener, is_known=version > 0)
        ),
    )


def _plain_fields(reply: Reply, topic: TopicPartition) -> dict[str, int]:
    """Fields of the partition of every raft response."""
    return {
        "partition_index": topic.index,
        "error_code": error_code(reply.error),
        "leader_id": id_or_minus_one(reply.leader_id),
        "leader_epoch": reply.epoch,
    }


# -- requests to peers


def vote_request(
    request: Vote, topic: TopicPartition, cluster_id: str | None, local: ReplicaKey, to: ReplicaKey
) -> VoteRequest:
    """The Vote request, or pre-vote, of this replica to a voter."""
    partition = VoteRequestPartition(
        partition_index=topic.index,
        replica_epoch=request.epoch,
        replica_id=local.id,
        replica_directory_id=uuid_or_zero(local.uuid),
        voter_directory_id=uuid_or_zero(to.uuid),
        last_offset_epoch=request.last.epoch,
        last_offset=request.last.offset,
        pre_vote=request.pre_vote,
    )
    return VoteRequest(
        cluster_id=cluster_id,
        voter_id=to.id,
        topics=(VoteRequestTopic(topic_name=topic.name, partitions=(partition,)),),
    )


def begin_request(
    request: BeginQuorumEpoch,
    topic: TopicPartition,
    cluster_id: str | None,
    local: ReplicaKey,
    to: ReplicaKey,
    endpoints: Sequence[Endpoint],
) -> BeginQuorumEpochRequest:
    """The request by which a leader announces its epoch to a voter; `endpoints` are the leader's."""
    partition = BeginQuorumEpochRequestPartition(
        partition_index=topic.index,
        voter_directory_id=uuid_or_zero(to.uuid),
        leader_id=local.id,
        leader_epoch=request.epoch,
    )
    return BeginQuorumEpochRequest(
        cluster_id=cluster_id,
        voter_id=to.id,
        topics=(BeginQuorumEpochRequestTopic(topic_name=topic.name, partitions=(partition,)),),
        leader_endpoints=tuple(
            BeginQuorumEpochRequestLeaderEndpoint(name=at.name, host=at.host, port=at.port)
            for at in endpoints
        ),
    )


def end_request(
    request: EndQuorumEpoch,
    topic: TopicPartition,
    cluster_id: str | None,
    endpoints: Sequence[Endpoint],
) -> EndQuorumEpochRequest:
    """The request by which a leader that resigns names its preferred successors.

    `endpoints` are the leader's: a Kafka node that does not know this leader ends without them.
    """
    partition = EndQuorumEpochRequestPartition(
        partition_index=topic.index,
        leader_id=id_or_minus_one(request.leader_id),
        leader_epoch=request.epoch,
        preferred_successors=tuple(key.id for key in request.successors),
        preferred_candidates=tuple(
            EndQuorumEpochRequestPreferredCandidate(
                candidate_id=key.id, candidate_directory_id=uuid_or_zero(key.uuid)
            )
            for key in request.successors
        ),
    )
    return EndQuorumEpochRequest(
        cluster_id=cluster_id,
        topics=(EndQuorumEpochRequestTopic(topic_name=topic.name, partitions=(partition,)),),
        leader_endpoints=tuple(
            EndQuorumEpochRequestLeaderEndpoint(name=at.name, host=at.host, port=at.port)
            for at in endpoints
            if request.leader_id is not None
        ),
    )


# -- responses of peers


class _PartitionResponse(Protocol):
    """The partition of every raft response."""

    @property
    def partition_index(self) -> int: ...
    @property
    def error_code(self) -> int: ...
    @property
    def leader_id(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...


def election_response_received(
    api_key: int,
    version: int,
    frame: bytes,
    at: int,
    topic: TopicPartition,
    request_id: int,
    listener: str,
) -> (
    VoteResponseReceived
    | BeginQuorumEpochResponseReceived
    | EndQuorumEpochResponseReceived
    | RequestFailed
):
    """A peer's response to Vote, BeginQuorumEpoch or EndQuorumEpoch.

    Raises MalformedMessage, and InvalidRequestShape unless it is about exactly this partition.
    """
    message = decode(_RESPONSES[api_key], version, frame, at)
    if message.error_code:
        return request_failed(request_id, message.error_code)
    response = _only_partition(cast(Sequence[_Topic[_PartitionResponse]], message.topics), topic)
    nodes = tuple((node.node_id, node.host, node.port) for node in message.node_endpoints)
    error = error_name(response.error_code)
    hint = leader_hint(response.leader_id, response.leader_epoch, nodes, listener)
    if isinstance(response, VoteResponsePartition):
        return VoteResponseReceived(
            request_id=request_id, error=error, hint=hint, granted=response.vote_granted
        )
    if isinstance(message, BeginQuorumEpochResponse):
        return BeginQuorumEpochResponseReceived(request_id=request_id, error=error, hint=hint)
    return EndQuorumEpochResponseReceived(request_id=request_id, error=error, hint=hint)
