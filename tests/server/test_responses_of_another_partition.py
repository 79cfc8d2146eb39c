"""A peer's response counts for the partition that was asked for, and for no other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from quorumd.raft.effects import Reply, VoteReply
from quorumd.raft.errors import KafkaError
from quorumd.raft.types import ReplicaKey
from quorumd.server.model.topic import METADATA
from quorumd.server.translate.common import InvalidRequestShape, error_name, leader_hint
from quorumd.server.translate.elections import (
    election_request_received,
    election_response,
    election_response_received,
)
from quorumd.server.translate.fetch import fetch_response_received
from quorumd.server.translate.snapshot import snapshot_response_received
from quorumd.wire.codec import encode
from quorumd.wire.messages.begin_quorum_epoch import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochRequestLeaderEndpoint,
    BeginQuorumEpochRequestPartition,
    BeginQuorumEpochRequestTopic,
)
from quorumd.wire.registry import APIS
from quorumd.wire.schema import Message

FETCH, VOTE, BEGIN, END, FETCH_SNAPSHOT = 1, 52, 53, 54, 59
VERSIONS = tuple(
    (key, version)
    for key, first in ((FETCH, 12), (VOTE, 0), (BEGIN, 0), (END, 0), (FETCH_SNAPSHOT, 0))
    for version in range(first, APIS[key].max_version + 1)
)


def response_about(key: int, name: str, topic_id: UUID, index: int) -> Message:
    """The least that a response to this request says of a partition."""
    cls: Any = APIS[key].response
    array = "responses" if key == FETCH else "topics"
    topic_type = next(each.of for each in cls.wire_spec.fields if each.name == array)
    fields = {each.name: each.of for each in topic_type.wire_spec.fields}
    values: dict[str, Any] = {"partition_index": index}
    named: dict[str, Any] = {"topic_name": name}
    if key == FETCH:
        values["aborted_transactions"] = ()
        named = {"topic": name, "topic_id": topic_id}
    elif key == FETCH_SNAPSHOT:
        values, named = {"index": index}, {"name": name}
    topic = topic_type(**named, partitions=(fields["partitions"](**values),))
    made: Message = cls(**{array: (topic,)})
    return made


def received(key: int, version: int, body: bytes) -> object:
    if key == FETCH:
        return fetch_response_received(version, body, 0, METADATA, 7, "CONTROLLER")
    if key == FETCH_SNAPSHOT:
        return snapshot_response_received(version, body, 0, METADATA, 7, "CONTROLLER")
    return election_response_received(key, version, body, 0, METADATA, 7, "CONTROLLER")


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_a_response_about_another_partition_is_none(key: int, version: int) -> None:
    def body(name: str, topic_id: UUID, index: int) -> bytes:
        return encode(response_about(key, name, topic_id, index), version)

    assert received(key, version, body(METADATA.name, METADATA.topic_id, 0)) is not None
    for other in (("another", UUID(int=5), 0), (METADATA.name, METADATA.topic_id, 1)):
        with pytest.raises(InvalidRequestShape):
            received(key, version, body(*other))


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (0, None),
        (-1, "UNKNOWN_SERVER_ERROR"),
        (6, "NOT_LEADER_OR_FOLLOWER"),
        (32000, "UNKNOWN_SERVER_ERROR"),
    ],
)
def test_an_error_that_is_not_known_is_one(code: int, name: str | None) -> None:
    assert error_name(code) == name


@pytest.mark.parametrize(
    ("host", "port", "count"), [("two", 9093, 1), ("two", 0, 0), ("two", -1, 0), ("", 9093, 0)]
)
def test_where_nobody_can_be_reached_there_is_no_leader(host: str, port: int, count: int) -> None:
    """Neither in a response nor in a leader's announcement of itself."""
    hint = leader_hint(2, 3, ((2, host, port), (3, "three", 9093)), "CONTROLLER")
    assert (hint.leader_id, len(hint.endpoints)) == (2, count)
    if port < 0:
        return
    at = BeginQuorumEpochRequestLeaderEndpoint(name="CONTROLLER", host=host, port=port)
    partition = BeginQuorumEpochRequestPartition(leader_id=2, leader_epoch=3)
    topic = BeginQuorumEpochRequestTopic(topic_name=METADATA.name, partitions=(partition,))
    request = BeginQuorumEpochRequest(topics=(topic,), leader_endpoints=(at,))
    event = election_request_received(BEGIN, 1, encode(request, 1), 0, METADATA, 1)
    assert len(event.endpoints) == count  # type: ignore[union-attr]  # it is no vote


@pytest.mark.parametrize(("voter_id", "is_named"), [(-1, False), (0, True), (7, True)])
def test_a_request_may_be_meant_for_any_voter(voter_id: int, is_named: bool) -> None:
    """The least id that a voter may have is 0."""
    partition = BeginQuorumEpochRequestPartition(leader_id=2, voter_directory_id=UUID(int=9))
    topic = BeginQuorumEpochRequestTopic(topic_name=METADATA.name, partitions=(partition,))
    request = BeginQuorumEpochRequest(voter_id=voter_id, topics=(topic,))
    event = election_request_received(BEGIN, 1, encode(request, 1), 0, METADATA, 1)
    meant_for = ReplicaKey(voter_id, UUID(int=9)) if is_named else None
    assert event.voter == meant_for  # type: ignore[union-attr]  # it is no end


@pytest.mark.parametrize("key", [VOTE, BEGIN, END])
@pytest.mark.parametrize("is_refused", [False, True])
def test_a_response_to_a_request_that_is_refused_as_a_whole_is_about_no_partition(
    key: int, is_refused: bool
) -> None:
    error = KafkaError.INCONSISTENT_CLUSTER_ID if is_refused else None
    kind = VoteReply if key == VOTE else Reply
    reply = kind(epoch=3, leader_id=None, leader_endpoints=(), top_level_error=error)
    response: Any = election_response(key, reply, METADATA, 1, "CONTROLLER")
    assert response.error_code == (104 if is_refused else 0)
    assert len(response.topics) == (not is_refused)


@pytest.mark.parametrize(("topics", "partitions"), [(0, 0), (1, 0), (1, 2), (2, 1)])
@pytest.mark.parametrize("key", [VOTE, BEGIN, END, FETCH_SNAPSHOT])
def test_a_response_is_about_exactly_one_partition(key: int, topics: int, partitions: int) -> None:
    (topic,) = response_about(key, METADATA.name, METADATA.topic_id, 0).topics  # type: ignore[attr-defined]  # each of these has some
    named = replace(topic, partitions=topic.partitions * partitions)
    body = encode(APIS[key].response(topics=(named,) * topics), 1)
    with pytest.raises(InvalidRequestShape):
        received(key, 1, body)
