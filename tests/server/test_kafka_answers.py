"""What a witness puts on the wire for a Kafka node: nothing that ends the receiver's process.

The rules decide what is said (tests/raft/test_kafka_fatal.py); here it is bytes, version by version.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from quorumd.raft.effects import (
    BeginQuorumEpoch,
    EndQuorumEpoch,
    FetchReply,
    FetchSnapshot,
    Reply,
    SendReply,
    SnapshotReply,
    UpdateVoter,
    Vote,
    VoterChangeReply,
    VoteReply,
)
from quorumd.raft.errors import KafkaError
from quorumd.raft.events import Event
from quorumd.raft.types import Endpoint, OffsetAndEpoch, ReplicaKey, SnapshotId
from quorumd.server.model.metrics import Metrics
from quorumd.server.model.runtime import Reader
from quorumd.server.model.topic import METADATA
from quorumd.server.net.inbound_request import InboundRequest, RequestConnection
from quorumd.server.requests.raft_requests import RaftRequestHandler, ServedSnapshots
from quorumd.server.requests.refusal import refusal
from quorumd.server.translate import elections, voter_changes
from quorumd.server.translate.snapshot import snapshot_request
from quorumd.storage.snapshot_store import SnapshotStore
from quorumd.wire.codec import decode, encode
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.fast import parse_fetch_request
from quorumd.wire.headers import decode_response_header
from quorumd.wire.messages.begin_quorum_epoch import BeginQuorumEpochRequest
from quorumd.wire.messages.end_quorum_epoch import EndQuorumEpochRequest
from quorumd.wire.messages.fetch import FetchRequest, FetchRequestPartition, FetchRequestTopic
from quorumd.wire.messages.fetch_snapshot import FetchSnapshotRequest
from quorumd.wire.messages.update_raft_voter import UpdateRaftVoterRequest
from quorumd.wire.messages.vote import VoteRequest
from quorumd.wire.registry import APIS
from quorumd.wire.schema import Message
from tests.support.cluster import decoded_again

FETCH, VOTE, BEGIN, END, FETCH_SNAPSHOT, UPDATE = 1, 52, 53, 54, 59, 82
RAFT = {
    FETCH: (12, 18),
    VOTE: (0, 2),
    BEGIN: (0, 1),
    END: (0, 1),
    FETCH_SNAPSHOT: (0, 1),
    UPDATE: (0, 0),
}
"""What Kafka nodes ask of each other, and from which to which version."""
VERSIONS = [(key, version) for key, (low, high) in RAFT.items() for version in range(low, high + 1)]
NAMES_ENDPOINTS_SINCE = {FETCH: 17, VOTE: 1, BEGIN: 1, END: 1, FETCH_SNAPSHOT: 1, UPDATE: 0}
LOCAL, PEER = ReplicaKey(90), ReplicaKey(2)
KAFKAS = (Endpoint("CONTROLLER", "kafka2", 9093),)
TWO = (*KAFKAS, Endpoint("CONTROLLER_SSL", "kafka2", 9094))


class Connection:
    """Keeps what is sent to a Kafka node, on this listener of the witness."""

    client_software_name, client_software_version = "apache-kafka-java", "4.3.1"
    peer, is_open, in_flight_bytes = "kafka", True, 0

    def __init__(self, listener: str) -> None:
        self.listener = Endpoint(listener, "witness", 9093)
        self.sent = b""

    def send(self, request: InboundRequest, buffers: list[bytes]) -> None:
        self.sent += b"".join(buffers)


def answered(key: int, version: int, reply: Reply, listener: str = "CONTROLLER") -> Message:
    """What a Kafka node reads where the rules of a witness reply so to its request."""
    events: list[Event] = []
    handler = RaftRequestHandler(
        METADATA,
        cast(Reader, None),
        cast(SnapshotStore, None),
        cast(ServedSnapshots, None),
        Metrics(),
        events.append,
        2000,
        is_kafka_log=True,
    )
    connection = Connection(listener)
    body = encode(asked(key, version), version)
    request = InboundRequest(cast(RequestConnection, connection), key, version, 7, body, 0, 0)
    if key == FETCH:
        parsed = parse_fetch_request(version, body, 0)
        assert parsed is not None
        handler.fetch(request, parsed)
    else:
        handlers: dict[int, Callable[[InboundRequest], object]] = {
            FETCH_SNAPSHOT: handler.fetch_snapshot,
            UPDATE: lambda request: handler.change(request)(),
        }
        handlers.get(key, handler.election)(request)
    (event,) = events
    handler.send_reply(SendReply(cast(Any, event).reply_to, reply, 0))
    frame = connection.sent[4:]
    _, at = decode_response_header(key, version, frame)
    return decode(APIS[key].response, version, frame, at)


def asked(key: int, version: int) -> Message:
    """A request as Kafka nodes send it, and as this node does: the same declarations make both."""
    if key == FETCH:
        partition = FetchRequestPartition(
            current_leader_epoch=3, last_fetched_epoch=2, fetch_offset=3, partition_max_bytes=0
        )
        topic = FetchRequestTopic(
            topic=METADATA.name if version < 13 else "",
            topic_id=METADATA.topic_id,
            partitions=(partition,),
        )
        return FetchRequest(topics=(topic,))
    return our_request(key)


def our_request(key: int) -> Message:
    """What a witness sends to a Kafka node."""
    end = OffsetAndEpoch(3, 2)
    if key == VOTE:
        vote = Vote(epoch=4, last=end, pre_vote=False)
        return elections.vote_request(vote, METADATA, "cluster", LOCAL, PEER)
    if key == BEGIN:
        begin = BeginQuorumEpoch(epoch=4)
        return elections.begin_request(begin, METADATA, "cluster", LOCAL, PEER, KAFKAS)
    if key == END:
        ended = EndQuorumEpoch(epoch=4, leader_id=LOCAL.id, successors=(PEER,))
        return elections.end_request(ended, METADATA, "cluster", KAFKAS)
    if key == FETCH_SNAPSHOT:
        piece = FetchSnapshot(epoch=3, snapshot=SnapshotId(3, 2), position=0, max_bytes=10)
        return snapshot_request(piece, METADATA, "cluster", LOCAL)
    assert key == UPDATE
    update = UpdateVoter(epoch=3, endpoints=KAFKAS)
    return voter_changes.change_request(update, "cluster", LOCAL)[1]


def reply_to(
    key: int, error: KafkaError | None, leader: int | None, at: tuple[Endpoint, ...]
) -> Reply:
    kinds: dict[int, Callable[..., Reply]] = {
        FETCH: FetchReply,
        VOTE: VoteReply,
        FETCH_SNAPSHOT: SnapshotReply,
        UPDATE: VoterChangeReply,
    }
    kind = kinds.get(key, Reply)
    return kind(epoch=4, leader_id=leader, leader_endpoints=at, error=error)


def named_leader(answer: Any, key: int) -> int:
    if key == UPDATE:
        return int(answer.current_leader.leader_id)
    (topic,) = answer.responses if key == FETCH else answer.topics
    (partition,) = topic.partitions
    return int(
        (partition.current_leader if key in (FETCH, FETCH_SNAPSHOT) else partition).leader_id
    )


@pytest.mark.parametrize(("key", "version"), VERSIONS)
@pytest.mark.parametrize("at", [KAFKAS, TWO, ()])
@pytest.mark.parametrize("listener", ["CONTROLLER", "CONTROLLER_SSL", "OTHER"])
def test_who_is_named_as_leader_is_named_with_an_address(
    key: int, version: int, at: tuple[Endpoint, ...], listener: str
) -> None:
    """A Kafka node that is to follow a leader without an address ends."""
    error = KafkaError.NOT_LEADER_OR_FOLLOWER
    answer: Any = answered(key, version, reply_to(key, error, PEER.id, at), listener)
    assert answer.error_code == 0 or key == UPDATE
    leader = named_leader(answer, key)
    if key == UPDATE:
        nodes = [(answer.current_leader.host, answer.current_leader.port)] if leader >= 0 else []
    else:
        nodes = [(node.host, node.port) for node in answer.node_endpoints]
    is_known = bool(at) and (listener != "OTHER" or at == KAFKAS)
    assert leader == (PEER.id if is_known else -1)
    has_field = version >= NAMES_ENDPOINTS_SINCE[key]
    assert len(nodes) == (is_known and has_field)
    assert all(host == "kafka2" and port > 0 for host, port in nodes)


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_an_answer_of_a_former_epoch_is_fenced_and_names_nobody(key: int, version: int) -> None:
    answer: Any = answered(key, version, reply_to(key, KafkaError.FENCED_LEADER_EPOCH, None, ()))
    assert named_leader(answer, key) == -1
    if key == FETCH:
        (partition,) = answer.responses[0].partitions
        # A high watermark below one that was said before ends the receiver, and so does a diverging epoch.
        assert (partition.high_watermark, partition.diverging_epoch.epoch) == (-1, -1)
        assert partition.snapshot_id.end_offset == -1
    if key == FETCH_SNAPSHOT:
        (partition,) = answer.topics[0].partitions
        assert partition.unaligned_records == b"", "null would not be encodable for the receiver"


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_what_is_beyond_its_limits_is_refused_as_a_whole_or_not_answered(
    key: int, version: int
) -> None:
    """42 in a partition ends a Kafka node, and so it does as the only error of UpdateRaftVoter."""
    response: Any = refusal(key, version, "too much")
    if key == UPDATE:
        assert response is None
        return
    response = decoded_again(response, version)
    assert response.error_code == ErrorCode.INVALID_REQUEST
    assert (response.responses if key == FETCH else response.topics) == ()


@pytest.mark.parametrize(("key", "version"), [each for each in VERSIONS if each[0] != FETCH])
def test_a_request_of_a_witness_names_one_partition_and_what_the_receiver_relies_on(
    key: int, version: int
) -> None:
    """A FetchSnapshot without topics ends a Kafka leader; so does a BeginQuorumEpoch without endpoints."""
    sent: Any = decode(APIS[key].request, version, encode(our_request(key), version), 0)
    if isinstance(sent, UpdateRaftVoterRequest):
        assert [(at.name, at.host, at.port) for at in sent.listeners] == [
            ("CONTROLLER", "kafka2", 9093)
        ]
        return
    (topic,) = sent.topics
    (partition,) = topic.partitions
    name = topic.name if isinstance(sent, FetchSnapshotRequest) else topic.topic_name
    assert name == METADATA.name
    if isinstance(sent, FetchSnapshotRequest):
        assert (partition.position, partition.snapshot_id.end_offset) == (0, 3)
        assert sent.replica_id == LOCAL.id
    elif isinstance(sent, VoteRequest):
        assert (partition.last_offset, partition.last_offset_epoch) == (3, 2)
        assert partition.last_offset_epoch < partition.replica_epoch
    elif version > 0:
        assert isinstance(sent, BeginQuorumEpochRequest | EndQuorumEpochRequest)
        assert [(at.host, at.port) for at in sent.leader_endpoints] == [("kafka2", 9093)]
