"""Shared parts of the translations of all raft messages: ids, error names, endpoints, leader hints.

The modules of this room are the only place that knows both a message and an event of the rules. The wire's
sentinels (-1, the zero uuid, null) stop here. Source: KIP-595, KIP-853.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol, TypeVar
from uuid import UUID

from quorumd.raft.effects import Reply
from quorumd.raft.events import LeaderHint, RequestFailed
from quorumd.raft.types import Endpoint
from quorumd.server.model.topic import TopicPartition
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.schema import ZERO_UUID


class InvalidRequestShape(ValueError):
    """A raft request or response that does not hold exactly one topic with exactly one partition."""


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


def check_topic(topic: TopicPartition, name: str, index: int) -> None:
    """Raises InvalidRequestShape unless it is the replicated partition that is named."""
    if name != topic.name or index != topic.index:
        raise InvalidRequestShape(f"{name}-{index} is not replicated here")


def error_code(name: str | None) -> ErrorCode:
    """Kafka's number of an error that the rules name."""
    return ErrorCode.NONE if name is None else ErrorCode[name]


def error_name(code: int) -> str | None:
    """The name of a Kafka error code, None for none; an unknown code is a server error."""
    if code == 0:
        return None
    try:
        return ErrorCode(code).name
    except ValueError:
        return "UNKNOWN_SERVER_ERROR"


def uuid_or_none(value: UUID) -> UUID | None:
    """None for the zero uuid, by which messages say that there is none."""
    return None if value == ZERO_UUID else value


def uuid_or_zero(value: UUID | None) -> UUID:
    """The zero uuid for None, as messages have it."""
    return ZERO_UUID if value is None else value


def id_or_none(value: int) -> int | None:
    """None for a negative id, by which messages say that there is none."""
    return None if value < 0 else value


def id_or_minus_one(value: int | None) -> int:
    """-1 for None, as messages have it."""
    return -1 if value is None else value


def endpoint_on(endpoints: Sequence[Endpoint], listener: str) -> Endpoint | None:
    """The endpoint of this listener; the only one there is, if it has another name."""
    for endpoint in endpoints:
        if endpoint.name == listener:
            return endpoint
    return endpoints[0] if len(endpoints) == 1 else None


@lru_cache(maxsize=64)
def leader_hint(
    leader_id: int, epoch: int, nodes: tuple[tuple[int, str, int], ...], listener: str
) -> LeaderHint:
    """Leader and epoch that a response names; endpoints of other nodes do not count."""
    endpoints = tuple(
        Endpoint(listener, host, port)
        for node_id, host, port in nodes
        if node_id == leader_id and host and port > 0
    )
    return LeaderHint(epoch=epoch, leader_id=id_or_none(leader_id), endpoints=endpoints)


def leader_nodes(reply: Reply, listener: str, is_known: bool = True) -> list[tuple[int, str, int]]:
    """Id, host and port of the leader on the listener that the request came in on.

    Empty if the leader or its endpoint is not known, or the version has no field for it (`is_known`).
    """
    if reply.leader_id is None or not is_known:
        return []
    endpoint = endpoint_on(reply.leader_endpoints, listener)
    return [] if endpoint is None else [(reply.leader_id, endpoint.host, endpoint.port)]


def request_failed(request_id: int, code: int, leader_id: int | None = None) -> RequestFailed:
    """The event of a response with a top-level error."""
    name = error_name(code) or "UNKNOWN_SERVER_ERROR"
    return RequestFailed(
        request_id=request_id, reason=f"refused: {name}", error=name, leader_id=leader_id
    )
