"""A protocol peer for client tests: several nodes on real sockets that share one log in memory.

No consensus: the test says who leads, which nodes are up, and which answers get lost. The leader
deduplicates producers as a real one does. Every node answers with real bytes, made by wire/.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import Any, cast
from uuid import UUID

from quorumd.client.client import QuorumClient
from quorumd.client.connector import Unwatched
from quorumd.config.tls import TlsConfig
from quorumd.security.credentials import Credentials
from quorumd.security.errors import CertificateProblem
from quorumd.security.handshakes import Handshakes
from quorumd.security.tls_stream import TlsStream, secured
from quorumd.server.model.conditions import ConditionJudge
from quorumd.wire.codec import decode, encode
from quorumd.wire.conditions import KeyedBatch, read_keyed
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.errors import MalformedMessage
from quorumd.wire.framing import FrameBuffer
from quorumd.wire.headers import decode_request_header, encode_response_header
from quorumd.wire.messages.api_versions import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    ApiVersionsResponseApiKey,
)
from quorumd.wire.messages.describe_cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeClusterResponseBroker,
)
from quorumd.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeQuorumResponseListener,
    DescribeQuorumResponseNode,
    DescribeQuorumResponsePartition,
    DescribeQuorumResponseReplica,
    DescribeQuorumResponseTopic,
)
from quorumd.wire.messages.fetch import (
    FetchRequest,
    FetchResponse,
    FetchResponseCurrentLeader,
    FetchResponseNodeEndpoint,
    FetchResponsePartition,
    FetchResponseSnapshotId,
    FetchResponseTopic,
)
from quorumd.wire.messages.fetch_snapshot import (
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    FetchSnapshotResponseLeader,
    FetchSnapshotResponsePartition,
    FetchSnapshotResponseSnapshotId,
    FetchSnapshotResponseTopic,
)
from quorumd.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from quorumd.wire.messages.list_offsets import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsResponsePartition,
    ListOffsetsResponseTopic,
)
from quorumd.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from quorumd.wire.messages.produce import (
    ProduceRequest,
    ProduceResponse,
    ProduceResponseCurrentLeader,
    ProduceResponseNodeEndpoint,
    ProduceResponsePartition,
    ProduceResponseTopic,
)
from quorumd.wire.records import BatchHeader, Record, iter_records, read_header, stamp
from quorumd.wire.registry import API_VERSIONS_KEY, APIS
from quorumd.wire.schema import Message
from tests.support.accepting import stop_accepting

CLUSTER_ID = "fake-cluster"
TOPIC = "__cluster_metadata"
TOPIC_ID = UUID(int=1)

OFFERED = (0, 1, 2, 3, 18, 22, 55, 59, 60)


def keyed(batch: bytes) -> KeyedBatch | None:
    """Keys and condition of a batch."""
    steps = read_keyed(read_header(batch), batch, [])
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


@dataclass(slots=True)
class FakeQuorum:
    """Nodes 1..n. `leader_id` and `epoch` are what all nodes say; tests change them at will.

    `before_answer` may look at each request and its answer: it returns the answer to send, another
    one, or None to close the connection instead. `handlers` answer requests that are not known here, or
    otherwise than here; they get the id of the node that is asked.
    """

    size: int = 3
    offered: tuple[int, ...] = OFFERED
    versions: dict[int, tuple[int, int]] = field(default_factory=dict)
    leader_id: int = 1
    epoch: int = 1
    cluster_id: str = CLUSTER_ID
    log: list[bytes] = field(default_factory=list)
    end_offset: int = 0
    log_start_offset: int = 0
    snapshots: dict[tuple[int, int], bytes] = field(default_factory=dict)
    piece_bytes: int = 1 << 20
    nodes: dict[int, FakeNode] = field(default_factory=dict)
    requests: list[tuple[int, Message]] = field(default_factory=list)
    software: list[str] = field(default_factory=list)
    before_answer: Callable[[int, Message, Message], Message | None] | None = None
    handlers: dict[type[Message], Callable[[int, Any], Awaitable[Message]]] = field(
        default_factory=dict
    )
    tls: dict[int, TlsConfig] = field(default_factory=dict)  # others speak plaintext
    refuse_produce: list[ErrorCode] = field(default_factory=list)
    latest_ms: float = inf  # batches with later timestamps are refused
    sequences: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)
    judge: ConditionJudge = field(default_factory=lambda: ConditionJudge(1 << 20))
    appended: asyncio.Event = field(default_factory=asyncio.Event)
    _next_producer_id: int = 1000

    async def __aenter__(self) -> FakeQuorum:
        for node_id in range(1, self.size + 1):
            self.nodes[node_id] = FakeNode(self, node_id)
            await self.nodes[node_id].start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for node in self.nodes.values():
            await node.stop()

    @property
    def addresses(self) -> str:
        return ",".join(f"127.0.0.1:{node.port}" for node in self.nodes.values())

    def elect(self, leader_id: int) -> None:
        """All nodes name this leader from now on, in a new epoch."""
        self.leader_id = leader_id
        self.epoch += 1
        self.judge.close()
        self.appended.set()
        self.appended = asyncio.Event()

    def records(self) -> Iterator[Record]:
        """All records of the log, in order."""
        for batch in self.log:
            if not read_header(batch).is_control:
                yield from iter_records(batch)

    def append(self, batch: bytes) -> int:
        """Puts a batch at the end of the log; returns its base offset."""
        base_offset = self.end_offset
        self.log.append(stamp(batch, base_offset, self.epoch))
        self.end_offset = read_header(self.log[-1]).next_offset
        if self.judge.window is not None:
            self.judge.note(keyed(batch), base_offset, self.end_offset)
        self.appended.set()
        self.appended = asyncio.Event()
        return base_offset

    def new_producer_id(self) -> int:
        self._next_producer_id += 1
        return self._next_producer_id

    def produce(self, batch: bytes) -> tuple[ErrorCode, int, str]:
        """What a leader does with a batch: (error, base offset, what it says)."""
        found = keyed(batch)
        if found is not None and found.condition is not None:
            duplicate = self._duplicate_at(read_header(batch))
            refused = self.judge.judge(found, self.end_offset, 0.0, None)
            if duplicate is None and refused is not None:
                return ErrorCode.INVALID_RECORD, -1, refused.message
        error, offset = self._produce(batch)
        return error, offset, f"fake {error.name}" if error else ""

    def _duplicate_at(self, header: BatchHeader) -> int | None:
        known = self.sequences.get(header.producer_id, [])
        return next((offset for first, _, offset in known if first == header.base_sequence), None)

    def _produce(self, batch: bytes) -> tuple[ErrorCode, int]:
        header = read_header(batch)
        if header.max_timestamp > self.latest_ms:
            return ErrorCode.INVALID_TIMESTAMP, -1
        if header.producer_id < 0:
            return ErrorCode.NONE, self.append(batch)
        known = self.sequences.setdefault(header.producer_id, [])
        last_sequence = (header.base_sequence + header.record_count - 1) & 0x7FFFFFFF
        for first, last, offset in known:
            if (first, last) == (header.base_sequence, last_sequence):
                return ErrorCode.NONE, offset
        if known and header.base_sequence != (known[-1][1] + 1) & 0x7FFFFFFF:
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        offset = self.append(batch)
        known.append((header.base_sequence, last_sequence, offset))
        del known[:-5]
        return ErrorCode.NONE, offset


class FakeNode:
    """One listener of the fake quorum."""

    def __init__(self, quorum: FakeQuorum, node_id: int) -> None:
        self.quorum = quorum
        self.node_id = node_id
        self.port = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._handshakes = Handshakes()
        self._tls_streams: list[TlsStream] = []
        """Those whose handshake goes on have no writer yet."""

    async def start(self) -> None:
        """Listens, after a stop on the same port."""
        self._handshakes = Handshakes()
        self._server = await asyncio.get_running_loop().create_server(
            self._protocol(), "127.0.0.1", self.port, reuse_address=True
        )
        self.port = self._server.sockets[0].getsockname()[1]

    def _protocol(self) -> Callable[[], asyncio.BaseProtocol]:
        def streams() -> asyncio.StreamReaderProtocol:
            return asyncio.StreamReaderProtocol(asyncio.StreamReader(), self._accepted)

        tls = self.quorum.tls.get(self.node_id)
        if tls is None:
            return streams
        side = Credentials(tls, is_server=True)
        make = secured(cast(Any, streams), side, self._handshakes, Unwatched())

        def remembered() -> TlsStream:
            stream = make()
            self._tls_streams.append(stream)
            return stream

        return cast(Any, remembered)

    async def until_idle(self) -> None:
        """Returns when no client has a connection."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def stop(self) -> None:
        """Closes the listener and resets all connections, as a killed process does."""
        if self._server is not None:
            await stop_accepting(self._server)
            self._server = None
        for stream in self._tls_streams:
            stream.abort()
        self._tls_streams.clear()
        for writer in self._writers:
            writer.transport.abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._handshakes.close()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            with suppress(
                ConnectionError, CertificateProblem, MalformedMessage, asyncio.CancelledError
            ):
                await self._serve(reader, writer)
        finally:
            self._tasks.discard(task)
            self._writers.discard(writer)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = FrameBuffer(1 << 27)
        while data := await reader.read(1 << 16):
            frames.feed(data)
            for frame in frames.frames():
                answer = await self._answer(frame)
                if answer is None:
                    return
                writer.write(len(answer).to_bytes(4, "big") + answer)

    async def _answer(self, frame: bytes) -> bytes | None:
        quorum = self.quorum
        header, at = decode_request_header(frame)
        spec = APIS[header.api_key]
        response_header = encode_response_header(
            header.api_key, header.api_version, header.correlation_id
        )
        first, last = quorum.versions.get(header.api_key, (spec.min_version, spec.max_version))
        if not first <= header.api_version <= last:
            if header.api_key != API_VERSIONS_KEY:
                return None
            refusal = ApiVersionsResponse(
                error_code=ErrorCode.UNSUPPORTED_VERSION,
                api_keys=(
                    ApiVersionsResponseApiKey(
                        api_key=API_VERSIONS_KEY, min_version=first, max_version=last
                    ),
                ),
            )
            return response_header + encode(refusal, 0)
        request = decode(spec.request, header.api_version, frame, at)
        quorum.requests.append((self.node_id, request))
        response: Message | None = await self._handle(request, header.api_version)
        if quorum.before_answer is not None and response is not None:
            response = quorum.before_answer(self.node_id, request, response)
        if response is None:
            return None
        return response_header + encode(response, header.api_version)

    async def _handle(self, request: Message, version: int) -> Message:
        handler = self.quorum.handlers.get(type(request))
        if handler is not None:
            return await handler(self.node_id, request)
        match request:
            case ApiVersionsRequest():
                self.quorum.software.append(request.client_software_name)
                return self._api_versions()
            case MetadataRequest():
                return self._metadata()
            case DescribeClusterRequest():
                return self._describe_cluster(request)
            case DescribeQuorumRequest():
                return self._describe_quorum(version)
            case InitProducerIdRequest():
                return InitProducerIdResponse(producer_id=self.quorum.new_producer_id())
            case ListOffsetsRequest():
                return self._list_offsets(request)
            case ProduceRequest():
                return self._produce(request)
            case FetchRequest():
                if request.topics[0].partitions[0].last_fetched_epoch >= 0:
                    return self._fetch_of_replica(request)
                return await self._fetch(request)
            case FetchSnapshotRequest():
                return self._fetch_snapshot(request)
        raise AssertionError(f"the fake has no answer to {request}")

    @property
    def _is_leader(self) -> bool:
        return self.node_id == self.quorum.leader_id

    def _api_versions(self) -> ApiVersionsResponse:
        keys = []
        for key in self.quorum.offered:
            spec = APIS[key]
            first, last = self.quorum.versions.get(key, (spec.min_version, spec.max_version))
            keys.append(ApiVersionsResponseApiKey(api_key=key, min_version=first, max_version=last))
        return ApiVersionsResponse(api_keys=tuple(keys))

    def _metadata(self) -> MetadataResponse:
        leader_id = self.quorum.leader_id
        partition = MetadataResponsePartition(
            error_code=ErrorCode.NONE if leader_id > 0 else ErrorCode.LEADER_NOT_AVAILABLE,
            leader_id=leader_id,
            leader_epoch=self.quorum.epoch,
        )
        return MetadataResponse(
            cluster_id=self.quorum.cluster_id,
            brokers=tuple(
                MetadataResponseBroker(node_id=node.node_id, host="127.0.0.1", port=node.port)
                for node in self.quorum.nodes.values()
            ),
            controller_id=leader_id,
            topics=(MetadataResponseTopic(name=TOPIC, topic_id=TOPIC_ID, partitions=(partition,)),),
        )

    def _describe_cluster(self, request: DescribeClusterRequest) -> DescribeClusterResponse:
        return DescribeClusterResponse(
            endpoint_type=request.endpoint_type,
            cluster_id=self.quorum.cluster_id,
            controller_id=self.quorum.leader_id,
            brokers=tuple(
                DescribeClusterResponseBroker(
                    broker_id=node.node_id, host="127.0.0.1", port=node.port
                )
                for node in self.quorum.nodes.values()
            ),
        )

    def _describe_quorum(self, version: int) -> DescribeQuorumResponse:
        if not self._is_leader:
            partition = DescribeQuorumResponsePartition(
                error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER, error_message="not the leader"
            )
            topic = DescribeQuorumResponseTopic(topic_name=TOPIC, partitions=(partition,))
            return DescribeQuorumResponse(topics=(topic,))
        end, now_ms = self.quorum.end_offset, int(time.time() * 1000)
        replicas = tuple(
            DescribeQuorumResponseReplica(
                replica_id=node_id,
                replica_directory_id=UUID(int=(1 << 64) + node_id if version >= 2 else 0),
                log_end_offset=end if node_id == self.quorum.leader_id else max(0, end - node_id),
                last_fetch_timestamp=now_ms,
                last_caught_up_timestamp=(
                    now_ms if node_id == self.quorum.leader_id else now_ms - 10 * node_id
                ),
            )
            for node_id in (*self.quorum.nodes, 9)
        )
        partition = DescribeQuorumResponsePartition(
            leader_id=self.quorum.leader_id,
            leader_epoch=self.quorum.epoch,
            high_watermark=end,
            current_voters=replicas[:-1],
            observers=replicas[-1:],
        )
        return DescribeQuorumResponse(
            topics=(DescribeQuorumResponseTopic(topic_name=TOPIC, partitions=(partition,)),),
            nodes=tuple(
                DescribeQuorumResponseNode(
                    node_id=node.node_id,
                    listeners=(
                        DescribeQuorumResponseListener(
                            name="PLAINTEXT", host="127.0.0.1", port=node.port
                        ),
                    ),
                )
                for node in self.quorum.nodes.values()
                if version >= 2
            ),
        )

    def _list_offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        timestamp = request.topics[0].partitions[0].timestamp
        offset = self.quorum.log_start_offset if timestamp == -2 else self.quorum.end_offset
        error = ErrorCode.NONE if self._is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER
        partition = ListOffsetsResponsePartition(error_code=error, offset=offset)
        return ListOffsetsResponse(
            topics=(ListOffsetsResponseTopic(name=TOPIC, partitions=(partition,)),)
        )

    def _produce(self, request: ProduceRequest) -> ProduceResponse:
        data = bytes(request.topic_data[0].partition_data[0].records or b"")
        leader = ProduceResponseCurrentLeader()
        error, offset, text = ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, "fake NOT_LEADER_OR_FOLLOWER"
        if not self._is_leader:
            leader = ProduceResponseCurrentLeader(
                leader_id=self.quorum.leader_id, leader_epoch=self.quorum.epoch
            )
        elif self.quorum.refuse_produce:
            error = self.quorum.refuse_produce.pop(0)
            text = f"fake {error.name}"
        else:
            error, offset, text = self.quorum.produce(data)
        partition = ProduceResponsePartition(
            error_code=error,
            base_offset=offset,
            error_message=text or None,
            current_leader=leader,
        )
        topic = ProduceResponseTopic(
            name=TOPIC, topic_id=TOPIC_ID, partition_responses=(partition,)
        )
        return ProduceResponse(
            responses=(topic,),
            node_endpoints=tuple(
                ProduceResponseNodeEndpoint(
                    node_id=leader.leader_id,
                    host="127.0.0.1",
                    port=self.quorum.nodes[leader.leader_id].port,
                )
                for _ in range(leader.leader_id > 0)
            ),
        )

    async def _fetch(self, request: FetchRequest) -> FetchResponse:
        offset = request.topics[0].partitions[0].fetch_offset
        quorum = self.quorum
        deadline = time.monotonic() + request.max_wait_ms / 1000
        while self._is_leader and offset == quorum.end_offset and time.monotonic() < deadline:
            with suppress(TimeoutError):
                async with asyncio.timeout(deadline - time.monotonic()):
                    await quorum.appended.wait()
        error = ErrorCode.NONE
        leader = FetchResponseCurrentLeader()
        if not self._is_leader:
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
            leader = FetchResponseCurrentLeader(
                leader_id=quorum.leader_id, leader_epoch=quorum.epoch
            )
        elif not quorum.log_start_offset <= offset <= quorum.end_offset:
            error = ErrorCode.OFFSET_OUT_OF_RANGE
        records = b"" if error else _slice(quorum.log, offset, request.max_bytes)
        partition = FetchResponsePartition(
            error_code=error,
            high_watermark=quorum.end_offset,
            log_start_offset=quorum.log_start_offset,
            current_leader=leader,
            records=records,
        )
        topic = FetchResponseTopic(topic=TOPIC, topic_id=TOPIC_ID, partitions=(partition,))
        return FetchResponse(
            responses=(topic,),
            node_endpoints=tuple(
                FetchResponseNodeEndpoint(
                    node_id=leader.leader_id,
                    host="127.0.0.1",
                    port=quorum.nodes[leader.leader_id].port,
                )
                for _ in range(leader.leader_id > 0)
            ),
        )

    def _epoch_error(self, epoch: int) -> ErrorCode:
        if epoch < self.quorum.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if epoch > self.quorum.epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        return ErrorCode.NONE if self._is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def _fetch_of_replica(self, request: FetchRequest) -> FetchResponse:
        """Of one with an empty log: the newest snapshot, or all records, committed or not."""
        asked = request.topics[0].partitions[0]
        quorum = self.quorum
        error = self._epoch_error(asked.current_leader_epoch)
        newest = max(quorum.snapshots, default=None)
        snapshot_id, records = FetchResponseSnapshotId(), b""
        if newest is not None and not error:
            snapshot_id = FetchResponseSnapshotId(end_offset=newest[0], epoch=newest[1])
        elif not error:
            records = b"".join(quorum.log[:1])
        partition = FetchResponsePartition(
            error_code=error,
            high_watermark=quorum.end_offset,
            log_start_offset=quorum.log_start_offset,
            current_leader=FetchResponseCurrentLeader(
                leader_id=quorum.leader_id, leader_epoch=quorum.epoch
            ),
            snapshot_id=snapshot_id,
            records=records,
        )
        topic = FetchResponseTopic(topic=TOPIC, topic_id=TOPIC_ID, partitions=(partition,))
        return FetchResponse(responses=(topic,))

    def _fetch_snapshot(self, request: FetchSnapshotRequest) -> FetchSnapshotResponse:
        asked = request.topics[0].partitions[0]
        quorum = self.quorum
        wanted = (asked.snapshot_id.end_offset, asked.snapshot_id.epoch)
        data = quorum.snapshots.get(wanted, b"")
        error = self._epoch_error(asked.current_leader_epoch)
        if not error and not data:
            error = ErrorCode.SNAPSHOT_NOT_FOUND
        elif not error and asked.position >= len(data):
            error = ErrorCode.POSITION_OUT_OF_RANGE
        end = asked.position + min(request.max_bytes, quorum.piece_bytes)
        partition = FetchSnapshotResponsePartition(
            error_code=error,
            snapshot_id=FetchSnapshotResponseSnapshotId(end_offset=wanted[0], epoch=wanted[1]),
            current_leader=FetchSnapshotResponseLeader(
                leader_id=max(0, quorum.leader_id), leader_epoch=quorum.epoch
            ),
            size=0 if error else len(data),
            position=asked.position,
            unaligned_records=b"" if error else data[asked.position : end],
        )
        topic = FetchSnapshotResponseTopic(name=TOPIC, partitions=(partition,))
        return FetchSnapshotResponse(topics=(topic,))


def _slice(log: list[bytes], offset: int, max_bytes: int) -> bytes:
    """Batches from the one that holds `offset`; cut at `max_bytes`, but the first one is whole."""
    wanted = log[bisect_right(log, offset, key=lambda batch: read_header(batch).next_offset) :]
    if not wanted:
        return b""
    return b"".join(wanted)[: max(max_bytes, len(wanted[0]))]


def with_quorum(story: Callable[[FakeQuorum, QuorumClient], Awaitable[None]]) -> None:
    """Runs it with a client of a fake quorum."""

    async def run() -> None:
        async with (
            FakeQuorum() as quorum,
            QuorumClient(quorum.addresses, timeout_ms=5000) as client,
        ):
            await story(quorum, client)

    asyncio.run(run())


def numbered(count: int, first: int = 0) -> list[Record]:
    return [Record(value=b"%d" % number) for number in range(first, first + count)]
