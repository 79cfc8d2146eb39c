"""Messages to events and effects to messages: Vote, BeginQuorumEpoch, EndQuorumEpoch.

Pure functions, and the only place beside `translate_fetch` that knows both a message and an event. The
wire's sentinels (-1, the zero uuid, null) stop here. Source: KIP-595, KIP-853, KIP-996.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol, TypeVar, cast
from uuid import UUID

from quorumd.raft.effects import BeginQuorumEpoch, EndQuorumEpoch, Reply, Vote, VoteReply
from quorumd.raft.events import (
    BeginQuorumEpochRequestReceived,
    BeginQuorumEpochResponseReceived,
    EndQuorumEpochRequestReceived,
    EndQuorumEpochResponseReceived,
    LeaderHint,
    RequestFailed,
    VoteRequestReceived,
    VoteResponseReceived,
)
from quorumd.raft.types import Endpoint, OffsetAndEpoch, ReplicaKey
from quorumd.server.model.topic import TopicPartition
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

ZERO_UUID = UUID(int=0)


class InvalidRequestShape(ValueError):
    """A raft request or answer that does not hold exactly one topic with exactly one partition."""


# -- shared pieces


class _HasPartitions(Protocol):
    @property
    def partitions(self) -> Sequence[object]: ...


T = TypeVar("T", bound=_HasPartitions)


def only_topic(topics: Sequence[T]) -> T:
    """The one topic of a raft message; raises InvalidRequestShape unless it has one partition."""
    if len(topics) != 1 or len(topics[0].partitions) != 1:
        raise InvalidRequestShape(
            "a raft request holds exactly one topic with exactly one partition"
        )
    return topics[0]


def error_code(name: str | None) -> int:
    """Kafka's number of an error that the rules name; 0 for none."""
    return 0 if name is None else int(ErrorCode[name])


def error_name(code: int) -> str | None:
    """The name of a Kafka error code, None for none; a code that nobody knows is a server error."""
    if code == 0:
        return None
    try:
        return ErrorCode(code).name
    except ValueError:
        return "UNKNOWN_SERVER_ERROR"


def uuid_or_none(value: UUID) -> UUID | None:
    return None if value == ZERO_UUID else value


def uuid_or_zero(value: UUID | None) -> UUID:
    return ZERO_UUID if value is None else value


def id_or_none(value: int) -> int | None:
    return None if value < 0 else value


def id_or_minus_one(value: int | None) -> int:
    return -1 if value is None else value


def endpoint_on(endpoints: Sequence[Endpoint], listener: str) -> Endpoint | None:
    """The endpoint of this listener; the only one there is, if it has another name."""
    for endpoint in endpoints:
        if endpoint.name == listener:
            return endpoint
    return endpoints[0] if len(endpoints) == 1 else None


def _meant_for(voter_id: int, uuid: UUID) -> ReplicaKey | None:
    return None if voter_id < 0 else ReplicaKey(voter_id, uuid_or_none(uuid))


@lru_cache(maxsize=64)
def leader_hint(
    leader_id: int, epoch: int, nodes: tuple[tuple[int, str, int], ...], listener: str
) -> LeaderHint:
    """What an answer says of epoch and leader; endpoints of other nodes are of no use."""
    endpoints = tuple(
        Endpoint(listener, host, port)
        for node_id, host, port in nodes
        if node_id == leader_id and host and port > 0
    )
    return LeaderHint(epoch=epoch, leader_id=id_or_none(leader_id), endpoints=endpoints)


# -- requests of peers


def vote_requested(message: VoteRequest, reply_to: int) -> VoteRequestReceived:
    """Raises InvalidRequestShape."""
    asked = only_topic(message.topics).partitions[0]
    return VoteRequestReceived(
        reply_to=reply_to,
        cluster_id=message.cluster_id,
        voter=_meant_for(message.voter_id, asked.voter_directory_id),
        candidate=ReplicaKey(asked.replica_id, uuid_or_none(asked.replica_directory_id)),
        epoch=asked.replica_epoch,
        last=OffsetAndEpoch(asked.last_offset, asked.last_offset_epoch),
        pre_vote=asked.pre_vote,
    )


def epoch_begun(message: BeginQuorumEpochRequest, reply_to: int) -> BeginQuorumEpochRequestReceived:
    """Raises InvalidRequestShape."""
    begun = only_topic(message.topics).partitions[0]
    return BeginQuorumEpochRequestReceived(
        reply_to=reply_to,
        cluster_id=message.cluster_id,
        voter=_meant_for(message.voter_id, begun.voter_directory_id),
        leader_id=begun.leader_id,
        epoch=begun.leader_epoch,
        endpoints=tuple(
            Endpoint(at.name.upper(), at.host, at.port)
            for at in message.leader_endpoints
            if at.host and at.port
        ),
    )


def epoch_ended(
    message: EndQuorumEpochRequest, version: int, reply_to: int
) -> EndQuorumEpochRequestReceived:
    """Raises InvalidRequestShape."""
    ended = only_topic(message.topics).partitions[0]
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
        endpoints=tuple(
            Endpoint(at.name.upper(), at.host, at.port)
            for at in message.leader_endpoints
            if at.host and at.port
        ),
    )


# -- answers to peers


class _Makers(NamedTuple):
    """What a raft response is made of."""

    response: Callable[..., Message]
    topic: Callable[..., Struct]
    partition: Callable[..., Struct]
    node: Callable[..., Struct]


_MAKERS = {
    52: _Makers(VoteResponse, VoteResponseTopic, VoteResponsePartition, VoteResponseNodeEndpoint),
    53: _Makers(
        BeginQuorumEpochResponse,
        BeginQuorumEpochResponseTopic,
        BeginQuorumEpochResponsePartition,
        BeginQuorumEpochResponseNodeEndpoint,
    ),
    54: _Makers(
        EndQuorumEpochResponse,
        EndQuorumEpochResponseTopic,
        EndQuorumEpochResponsePartition,
        EndQuorumEpochResponseNodeEndpoint,
    ),
}


def raft_response(
    api_key: int, answer: Reply, topic: TopicPartition, version: int, listener: str
) -> Message:
    """The answer to Vote, BeginQuorumEpoch or EndQuorumEpoch: they differ in VoteGranted alone."""
    make = _MAKERS[api_key]
    granted = {"vote_granted": answer.granted} if isinstance(answer, VoteReply) else {}
    partition = make.partition(**_plain_fields(answer, topic), **granted)
    answered = make.topic(topic_name=topic.name, partitions=(partition,))
    return make.response(
        error_code=error_code(answer.top_level_error),
        topics=() if answer.top_level_error else (answered,),
        node_endpoints=tuple(
            make.node(node_id=node_id, host=host, port=port)
            for node_id, host, port in leader_nodes(answer, listener, is_known=version > 0)
        ),
    )


def _plain_fields(answer: Reply, topic: TopicPartition) -> dict[str, int]:
    """What the partition of every raft answer holds."""
    return {
        "partition_index": topic.index,
        "error_code": error_code(answer.error),
        "leader_id": id_or_minus_one(answer.leader_id),
        "leader_epoch": answer.epoch,
    }


def leader_nodes(answer: Reply, listener: str, is_known: bool = True) -> list[tuple[int, str, int]]:
    """Id, host and port of the leader on the listener that the request came in on.

    Empty if the leader or its endpoint is not known, or the version has no field for it (`is_known`).
    """
    if answer.leader_id is None or not is_known:
        return []
    endpoint = endpoint_on(answer.leader_endpoints, listener)
    return [] if endpoint is None else [(answer.leader_id, endpoint.host, endpoint.port)]


# -- requests to peers


def vote_message(
    request: Vote, topic: TopicPartition, cluster_id: str | None, local: ReplicaKey, to: ReplicaKey
) -> VoteRequest:
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


def begin_message(
    request: BeginQuorumEpoch,
    topic: TopicPartition,
    cluster_id: str | None,
    local: ReplicaKey,
    to: ReplicaKey,
    endpoints: Sequence[Endpoint],
) -> BeginQuorumEpochRequest:
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


def end_message(
    request: EndQuorumEpoch, topic: TopicPartition, cluster_id: str | None
) -> EndQuorumEpochRequest:
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
    )


# -- answers of peers


def refused(request_id: int, code: int, leader_id: int | None = None) -> RequestFailed:
    """The event of an answer with a top-level error."""
    name = error_name(code) or "UNKNOWN_SERVER_ERROR"
    return RequestFailed(
        request_id=request_id, reason=f"refused: {name}", error=name, leader_id=leader_id
    )


class _PlainAnswer(Protocol):
    """What the partition of every raft answer holds."""

    @property
    def error_code(self) -> int: ...
    @property
    def leader_id(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...


def raft_answered(
    message: VoteResponse | BeginQuorumEpochResponse | EndQuorumEpochResponse,
    request_id: int,
    listener: str,
) -> (
    VoteResponseReceived
    | BeginQuorumEpochResponseReceived
    | EndQuorumEpochResponseReceived
    | RequestFailed
):
    """What a peer answered to Vote, BeginQuorumEpoch or EndQuorumEpoch. Raises InvalidRequestShape."""
    if message.error_code:
        return refused(request_id, message.error_code)
    answer = cast(_PlainAnswer, only_topic(message.topics).partitions[0])
    nodes = tuple((node.node_id, node.host, node.port) for node in message.node_endpoints)
    error = error_name(answer.error_code)
    hint = leader_hint(answer.leader_id, answer.leader_epoch, nodes, listener)
    if isinstance(answer, VoteResponsePartition):
        return VoteResponseReceived(
            request_id=request_id, error=error, hint=hint, granted=answer.vote_granted
        )
    if isinstance(message, BeginQuorumEpochResponse):
        return BeginQuorumEpochResponseReceived(request_id=request_id, error=error, hint=hint)
    return EndQuorumEpochResponseReceived(request_id=request_id, error=error, hint=hint)
