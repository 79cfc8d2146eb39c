"""Raft requests between a connection, the rules and the disk: what is read for them, and reads that fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from quorumd.raft.effects import (
    FetchReply,
    FetchSnapshot,
    SendReply,
    SnapshotReply,
    VoterChangeReply,
)
from quorumd.raft.errors import KafkaError
from quorumd.raft.types import Endpoint, ReplicaKey, SnapshotId
from quorumd.server.model.metrics import Metrics
from quorumd.server.model.runtime import Reader
from quorumd.server.model.topic import METADATA
from quorumd.server.net.connection_state import CloseReason
from quorumd.server.net.inbound_request import InboundRequest, RequestConnection
from quorumd.server.requests.raft_requests import RaftRequestHandler, ServedSnapshots
from quorumd.server.translate.fetch import FETCH_MAX_BYTES, FetchResponseFrames
from quorumd.server.translate.snapshot import snapshot_request
from quorumd.storage.errors import OffsetNotInLog
from quorumd.storage.snapshot_store import PositionOutOfRange, SnapshotNotFound, SnapshotStore
from quorumd.wire.codec import decode, encode
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.fast import FastFetch
from quorumd.wire.headers import decode_response_header
from quorumd.wire.messages.add_raft_voter import AddRaftVoterRequest
from quorumd.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsRequestPartition,
    AlterPartitionReassignmentsRequestTopic,
    AlterPartitionReassignmentsResponse,
)
from quorumd.wire.messages.fetch import FetchResponse
from quorumd.wire.messages.fetch_snapshot import (
    FetchSnapshotRequest,
    FetchSnapshotRequestPartition,
    FetchSnapshotRequestSnapshotId,
    FetchSnapshotRequestTopic,
    FetchSnapshotResponse,
)
from quorumd.wire.messages.remove_raft_voter import RemoveRaftVoterRequest
from quorumd.wire.messages.transfer_leader import TransferLeaderRequest
from quorumd.wire.messages.update_raft_voter import UpdateRaftVoterRequest
from quorumd.wire.registry import APIS
from quorumd.wire.schema import Message

FETCH_VERSION = 17
SNAPSHOT = SnapshotId(20, 1)
ASKED = FastFetch(
    cluster_id=None,
    replica_id=2,
    max_wait_ms=500,
    min_bytes=0,
    max_bytes=FETCH_MAX_BYTES,
    isolation_level=0,
    session_id=0,
    session_epoch=-1,
    topic=METADATA.id_bytes,
    partition=METADATA.index,
    current_leader_epoch=3,
    fetch_offset=2,
    last_fetched_epoch=3,
    log_start_offset=0,
    partition_max_bytes=0,
    replica_directory_id=UUID(int=2),
    high_watermark=0,
)


class Connection:
    """What was sent, or why it was closed."""

    listener = Endpoint("CONTROLLER", "127.0.0.1", 0)
    peer = "a test"
    principal = "User:alice"
    client_software_name = "quorumd"
    in_flight_bytes = 0
    is_open = True

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.closed: list[str] = []

    def send(self, request: InboundRequest, buffers: Sequence[bytes | memoryview]) -> None:
        frame = b"".join(buffers)[4:]
        key, version = request.api_key, request.api_version
        _, body_at = decode_response_header(key, version, frame)
        self.sent.append(decode(APIS[key].response, version, frame, body_at))

    def close_behind(self, request: InboundRequest, closed: CloseReason, reason: str) -> None:
        self.closed.append(reason)


@dataclass
class Bench:
    """A handler, rules that reply `reply` to everything, and a log of which nothing is cached."""

    reply: Any
    store: Any = None
    cached_error: Exception | None = None
    reads: list[tuple[int, int, int, Callable[[Any], None]]] = field(default_factory=list)
    connection: Connection = field(default_factory=Connection)
    reserved_bytes: int = 0
    """When the rules were asked."""
    served: list[tuple[Any, ...]] = field(default_factory=list)
    damaged: list[SnapshotId] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.handler = RaftRequestHandler(
            METADATA,
            cast(Reader, self),
            cast(SnapshotStore, self.store),
            cast(ServedSnapshots, self),
            Metrics(),
            self._handle,
            1000,
            is_kafka_log=False,
        )

    def _handle(self, event: Any) -> None:
        self.reserved_bytes = self.connection.in_flight_bytes
        self.handler.send_reply(SendReply(event.reply_to, self.reply, 0))

    def request(self, key: int, version: int, body: bytes) -> InboundRequest:
        connection = cast(RequestConnection, self.connection)
        return InboundRequest(connection, key, version, 1, body, 0, 0)

    # -- as a Reader

    def cached(self, offset: int, max_bytes: int, end_offset: int) -> None:
        if self.cached_error is not None:
            raise self.cached_error

    def read(
        self, offset: int, max_bytes: int, end_offset: int, done: Callable[[Any], None]
    ) -> None:
        self.reads.append((offset, max_bytes, end_offset, done))

    def run(self, action: Callable[[], Any], done: Callable[[Any], None]) -> None:
        try:
            outcome = action()
        except Exception as error:
            outcome = error
        done(outcome)

    # -- as the served snapshots

    def serve(self, *asked: Any) -> bool:
        self.served.append(asked)
        return True

    def on_damage(self, snapshot: SnapshotId, problem: str) -> None:
        self.damaged.append(snapshot)


def fetched(**more: Any) -> FetchReply:
    return FetchReply(
        epoch=3, leader_id=1, leader_endpoints=(), high_watermark=4, log_start_offset=0, **more
    )


def ask_for_records(bench: Bench, asked: FastFetch = ASKED) -> None:
    bench.handler.fetch(bench.request(1, FETCH_VERSION, b""), asked)


def test_a_replica_gets_what_is_read_from_disk_up_to_where_the_rules_say() -> None:
    bench = Bench(fetched(read_from=2, read_to=5))
    ask_for_records(bench)
    assert bench.reserved_bytes == FETCH_MAX_BYTES, "what is read waits for earlier responses"
    ((offset, max_bytes, end_offset, done),) = bench.reads
    assert (offset, max_bytes, end_offset) == (2, FETCH_MAX_BYTES, 5)
    done(b"records")
    (response,) = bench.connection.sent
    assert isinstance(response, FetchResponse)
    assert bytes(response.responses[0].partitions[0].records or b"") == b"records"


@pytest.mark.parametrize(
    ("asked", "read"), [(2**31 - 1, FETCH_MAX_BYTES), (1000, 1000), (0, 0), (-1, 0)]
)
def test_no_more_is_read_at_once_than_any_replica_may_have(asked: int, read: int) -> None:
    bench = Bench(fetched(read_from=2, read_to=5))
    ask_for_records(bench, ASKED._replace(max_bytes=asked))
    assert [max_bytes for _, max_bytes, _, _ in bench.reads] == [read]


@pytest.mark.parametrize("other", [{"partition": 1}, {"topic": UUID(int=2).bytes}])
def test_a_fetch_of_another_partition_never_reaches_the_rules(other: dict[str, Any]) -> None:
    bench = Bench(fetched(read_from=2, read_to=5))
    ask_for_records(bench, ASKED._replace(**other))
    (response,) = bench.connection.sent
    assert response.error_code == ErrorCode.INVALID_REQUEST
    assert (bench.reads, bench.reserved_bytes) == ([], 0)


def test_a_read_for_a_replica_that_fails_ends_its_connection() -> None:
    """An empty response would say that there is nothing new: it would not search for another leader."""
    bench = Bench(fetched(read_from=2, read_to=5))
    ask_for_records(bench)
    bench.reads[0][-1](OSError("Input/output error"))
    (reason,) = bench.connection.closed
    assert reason.endswith("Input/output error")
    assert not bench.connection.sent


def test_a_log_that_was_truncated_before_the_reply_left_ends_the_connection() -> None:
    bench = Bench(fetched(read_from=9, read_to=12), cached_error=OffsetNotInLog(9, 0, 7))
    ask_for_records(bench)
    assert "truncated while a response waited" in bench.connection.closed[0]
    assert not bench.connection.sent


def test_a_replica_whose_log_is_too_old_is_sent_to_the_snapshot() -> None:
    bench = Bench(fetched(snapshot=SNAPSHOT))
    ask_for_records(bench)
    (response,) = bench.connection.sent
    named = response.responses[0].partitions[0].snapshot_id
    assert (named.end_offset, named.epoch) == SNAPSHOT


def test_each_response_names_the_leader_of_that_moment() -> None:
    """Most of a response is that of the one before it, as long as nothing of it has changed."""
    frames, listener = FetchResponseFrames(METADATA), "CONTROLLER"
    at = {
        port: (Endpoint("CONTROLLER", "one", port), Endpoint("OTHER", "one", 1))
        for port in (9093, 9094)
    }

    def named(epoch: int, leader_id: int | None, port: int, listener: str) -> tuple[Any, ...]:
        reply = FetchReply(
            epoch=epoch,
            leader_id=leader_id,
            leader_endpoints=at[port],
            high_watermark=4,
            log_start_offset=0,
        )
        frame = b"".join(frames.of(reply, FETCH_VERSION, 1, listener, ()))[4:]
        _, body_at = decode_response_header(1, FETCH_VERSION, frame)
        response = decode(FetchResponse, FETCH_VERSION, frame, body_at)
        leader = response.responses[0].partitions[0].current_leader
        ports = [(node.node_id, node.port) for node in response.node_endpoints]
        return leader.leader_epoch, leader.leader_id, ports

    assert named(3, 1, 9093, listener) == (3, 1, [(1, 9093)])
    assert named(4, 1, 9093, listener) == (4, 1, [(1, 9093)])
    assert named(4, 2, 9093, listener) == (4, 2, [(2, 9093)])
    assert named(4, 2, 9094, listener) == (4, 2, [(2, 9094)])
    assert named(4, 2, 9094, "OTHER") == (4, 2, [(2, 1)])
    assert named(4, None, 9094, "OTHER") == (4, -1, [])


def snapshot_reply() -> SnapshotReply:
    return SnapshotReply(epoch=3, leader_id=1, leader_endpoints=(), snapshot=SNAPSHOT)


def ask_for_snapshot(bench: Bench, max_bytes: int = 1000, replica_id: int = -1) -> None:
    partition = FetchSnapshotRequestPartition(
        partition=0,
        current_leader_epoch=3,
        snapshot_id=FetchSnapshotRequestSnapshotId(
            end_offset=SNAPSHOT.end_offset, epoch=SNAPSHOT.epoch
        ),
        position=7,
        replica_directory_id=UUID(int=9),
    )
    topic = FetchSnapshotRequestTopic(name=METADATA.name, partitions=(partition,))
    message = FetchSnapshotRequest(replica_id=replica_id, max_bytes=max_bytes, topics=(topic,))
    bench.handler.fetch_snapshot(bench.request(59, 1, encode(message, 1)))


@pytest.mark.parametrize(
    ("error", "code", "is_damage"),
    [
        (PositionOutOfRange(7, 5), ErrorCode.POSITION_OUT_OF_RANGE, False),
        (SnapshotNotFound(SNAPSHOT), ErrorCode.SNAPSHOT_NOT_FOUND, True),
    ],
)
def test_what_a_snapshot_does_not_have_is_told_with_its_error(
    error: Exception, code: ErrorCode, is_damage: bool
) -> None:
    class Store:
        def read(self, snapshot: SnapshotId, position: int, max_bytes: int) -> bytes:
            raise error

    bench = Bench(snapshot_reply(), Store())
    ask_for_snapshot(bench)
    (response,) = bench.connection.sent
    row = response.topics[0].partitions[0]
    assert (row.error_code, bytes(row.unaligned_records)) == (code, b"")
    assert [position for *_, position in bench.served] == [7]
    assert bench.damaged == [SNAPSHOT] * is_damage


def test_no_request_is_kept_that_has_its_reply() -> None:
    bench = Bench(fetched(snapshot=SNAPSHOT))
    ask_for_records(bench)
    bench.reply = snapshot_reply()
    bench.reply.snapshot = None
    ask_for_snapshot(bench)
    assert len(bench.connection.sent) == 2
    assert (bench.handler._fetches, bench.handler._asked) == ({}, {})


@pytest.mark.parametrize(
    ("asked", "read"), [(2**31 - 1, FETCH_MAX_BYTES), (1000, 1000), (0, 0), (-1, 0)]
)
def test_of_a_snapshot_no_more_is_read_at_once_than_of_the_log(asked: int, read: int) -> None:
    reads: list[tuple[int, int]] = []

    class Store:
        def read(self, snapshot: SnapshotId, position: int, max_bytes: int) -> bytes:
            reads.append((position, max_bytes))
            return b"a piece"

        def size_bytes(self, snapshot: SnapshotId) -> int:
            return 100

    bench = Bench(snapshot_reply(), Store())
    ask_for_snapshot(bench, asked)
    assert reads == [(7, read)]
    assert bench.reserved_bytes == read
    (response,) = bench.connection.sent
    assert isinstance(response, FetchSnapshotResponse)
    chunk = response.topics[0].partitions[0]
    assert (chunk.size, chunk.position, bytes(chunk.unaligned_records)) == (100, 7, b"a piece")


def test_who_asks_for_a_snapshot_says_which_replica_it_is() -> None:
    piece = FetchSnapshot(epoch=3, snapshot=SNAPSHOT, position=7, max_bytes=10)
    asked = snapshot_request(piece, METADATA, "cluster", ReplicaKey(2, UUID(int=9)))
    (partition,) = asked.topics[0].partitions
    assert (asked.replica_id, partition.replica_directory_id) == (2, UUID(int=9))


@pytest.mark.parametrize(("replica_id", "replica"), [(-1, None), (0, ReplicaKey(0, UUID(int=9)))])
def test_who_copies_a_snapshot_is_a_client_or_any_replica(
    replica_id: int, replica: ReplicaKey | None
) -> None:
    """The least id that a node may have is 0."""
    bench = Bench(snapshot_reply(), SimpleNamespace(read=lambda *_: b"", size_bytes=lambda _: 0))
    ask_for_snapshot(bench, replica_id=replica_id)
    assert bench.served == [(SNAPSHOT, replica, 7)]


def reassignment(
    *target: int, cancels: bool = False, partition_index: int = METADATA.index
) -> Message:
    partition = AlterPartitionReassignmentsRequestPartition(
        partition_index=partition_index, replicas=None if cancels else target
    )
    topic = AlterPartitionReassignmentsRequestTopic(name=METADATA.name, partitions=(partition,))
    return AlterPartitionReassignmentsRequest(timeout_ms=1, topics=(topic,))


def test_voters_of_another_partition_are_not_changed() -> None:
    bench = Bench(None)
    message = reassignment(1, 2, partition_index=1)
    bench.handler.reassign(bench.request(45, 0, encode(message, 0)))()
    (response,) = bench.connection.sent
    assert isinstance(response, AlterPartitionReassignmentsResponse)
    (row,) = response.responses[0].partitions
    assert row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("is_first", [True, False])
def test_a_topic_without_partitions_beside_the_one_partition_changes_nothing(
    *, is_first: bool
) -> None:
    bench = Bench(UNKNOWN)
    empty = AlterPartitionReassignmentsRequestTopic(name=METADATA.name)
    message = reassignment(4, 5)
    assert isinstance(message, AlterPartitionReassignmentsRequest)
    topics = (empty, *message.topics) if is_first else (*message.topics, empty)
    body = encode(replace(message, topics=topics), 0)
    bench.handler.reassign(bench.request(45, 0, body))()
    (response,) = bench.connection.sent
    assert isinstance(response, AlterPartitionReassignmentsResponse)
    (row,) = response.responses[0].partitions
    assert row.error_code == ErrorCode.VOTER_NOT_FOUND


DIRECTORY = UUID(int=7)
UNKNOWN = VoterChangeReply(
    epoch=3, leader_id=1, leader_endpoints=(), error=KafkaError.VOTER_NOT_FOUND
)


@pytest.mark.parametrize(
    ("message", "what"),
    [
        (AddRaftVoterRequest(voter_id=4, voter_directory_id=DIRECTORY), "add voter (4, "),
        (RemoveRaftVoterRequest(voter_id=4, voter_directory_id=DIRECTORY), "remove voter (4, "),
        (TransferLeaderRequest(to_id=2), "hand leadership to voter 2"),
        (TransferLeaderRequest(), "hand leadership to any voter"),
        (reassignment(4, 5, 6), "reassign the voters to 4, 5, 6"),
        (reassignment(cancels=True), "end the reassignment"),
    ],
)
def test_a_change_is_logged_with_who_requested_it(
    message: Message, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(UNKNOWN)
    key = message.wire_spec.api_key
    assert key is not None
    request = bench.request(key, 0, encode(message, 0))
    with caplog.at_level("INFO"):
        take = bench.handler.reassign if key == 45 else bench.handler.change
        take(request)()
    (line,) = caplog.records
    assert line.getMessage() == "change requested"
    fields = line.__dict__["quorumd_fields"]
    assert fields.pop("what").startswith(what)
    assert fields == {"by": "User:alice", "peer": "a test"}


def test_a_voter_that_says_where_it_is_reached_changes_nothing_that_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench(UNKNOWN)
    with caplog.at_level("INFO"):
        bench.handler.change(bench.request(82, 0, encode(UpdateRaftVoterRequest(voter_id=4), 0)))()
    assert not caplog.records


def test_changes_that_are_requested_again_and_again_fill_no_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench(UNKNOWN)
    with caplog.at_level("INFO"):
        for _ in range(200):
            body = encode(RemoveRaftVoterRequest(voter_id=4), 0)
            bench.handler.change(bench.request(81, 0, body))()
    assert len(bench.connection.sent) == 200
    assert len(caplog.records) <= 21
