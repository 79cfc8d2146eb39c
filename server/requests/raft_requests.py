"""Raft requests of other replicas: bytes to events, and the rules' replies back as responses.

Source: KIP-595, KIP-853. An invalid raft request gets error 42 at top level, as Kafka does, and
never reaches the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from quorumd.raft.effects import FetchReply, Reply, SendReply, SnapshotReply, VoterChangeReply
from quorumd.raft.errors import KafkaError
from quorumd.raft.events import (
    AddVoterRequested,
    Event,
    ReassignmentRequested,
    RemoveVoterRequested,
    TransferRequested,
)
from quorumd.raft.types import ReplicaKey, SnapshotId
from quorumd.server.model.logs import Logger, RateLimit
from quorumd.server.model.metrics import Metrics
from quorumd.server.model.runtime import Reader
from quorumd.server.model.topic import TopicPartition
from quorumd.server.net.inbound_request import InboundRequest
from quorumd.server.requests.client_reads import ClientReads
from quorumd.server.translate import elections, voter_changes
from quorumd.server.translate.common import InvalidRequestShape, endpoint_on
from quorumd.server.translate.fetch import (
    FETCH_MAX_BYTES,
    FetchResponseFrames,
    fetch_request_received,
    fetch_response,
)
from quorumd.server.translate.snapshot import (
    ChunkBytes,
    ChunkRange,
    snapshot_request_received,
    snapshot_response,
)
from quorumd.storage.errors import OffsetNotInLog, StorageError
from quorumd.storage.snapshot_store import PositionOutOfRange, SnapshotNotFound, SnapshotStore
from quorumd.wire.codec import decode
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.fast import FastFetch
from quorumd.wire.messages.alter_partition_reassignments import AlterPartitionReassignmentsRequest
from quorumd.wire.messages.fetch import FetchResponse
from quorumd.wire.messages.fetch_snapshot import FetchSnapshotRequest, FetchSnapshotResponse
from quorumd.wire.schema import Message

LOG: Final = Logger("raft")

KAFKA_SOFTWARE: Final = "apache-kafka-java"
NOTHING: Final = ChunkRange(0, 0)


class ServedSnapshots(Protocol):
    """Decides which snapshots others get."""

    def serve(self, snapshot: SnapshotId, replica: ReplicaKey | None, position: int) -> bool:
        """A replica, or a client if it is None, asks for the chunk at `position`: may it have it?"""

    def on_damage(self, snapshot: SnapshotId, problem: str) -> None:
        """A snapshot cannot be read."""


class RaftRequestHandler:
    """Takes raft requests for one partition. `handle` passes events to the rules."""

    def __init__(
        self,
        topic: TopicPartition,
        reader: Reader,
        store: SnapshotStore,
        snapshots: ServedSnapshots,
        metrics: Metrics,
        handle: Callable[[Event], None],
        request_timeout_ms: int,
        *,
        is_kafka_log: bool,
    ) -> None:
        self._topic = topic
        self._frames = FetchResponseFrames(topic)
        self._request_timeout_ms = request_timeout_ms
        self._is_kafka_log = is_kafka_log
        self._reader = reader
        self._client_reads = ClientReads()
        self._store = store
        self._snapshots = snapshots
        self._metrics = metrics
        self._handle = handle
        self._fetches: dict[int, tuple[InboundRequest, int]] = {}
        """Fetches without a reply of the rules, and how many bytes each may get."""
        self._asked: dict[int, tuple[InboundRequest, ChunkRange]] = {}
        """All other requests without a reply of the rules."""
        self._last_reply_to = 0
        self._foreign_lines = RateLimit(per_second=0.1, burst=3)
        self._change_lines = RateLimit(per_second=0.2, burst=20)

    # -- requests

    def election(self, request: InboundRequest) -> None:
        """Vote, BeginQuorumEpoch or EndQuorumEpoch."""
        key, version = request.api_key, request.api_version
        if self._is_of_foreign_kafka(request):
            self._refuse_kafka(request, elections.invalid_election_request(key))
            return
        reply_to = self._next_reply_to()
        try:
            event = elections.election_request_received(
                key, version, request.frame, request.body_at, self._topic, reply_to
            )
        except InvalidRequestShape:
            self._refuse(request, elections.invalid_election_request(key))
            return
        self._take(request, reply_to, event)

    def fetch(self, request: InboundRequest, asked: FastFetch) -> None:
        """A replica's fetch of one partition; consumers' go elsewhere."""
        if self._is_of_foreign_kafka(request):
            self._refuse_kafka(request, FetchResponse(error_code=ErrorCode.INVALID_REQUEST))
            return
        topic = self._topic
        known = topic.id_bytes if request.api_version >= 13 else topic.name_bytes
        if asked.topic != known or asked.partition != topic.index:
            self.refuse_fetch(request)
            return
        request.reserve(FETCH_MAX_BYTES)
        self._last_reply_to = reply_to = self._last_reply_to + 1
        self._fetches[reply_to] = request, asked.max_bytes
        self._handle(fetch_request_received(asked, reply_to))

    def fetch_snapshot(self, request: InboundRequest) -> None:
        """A chunk of a snapshot, for a replica or for a client that wants the state."""
        message = decode(FetchSnapshotRequest, request.api_version, request.frame, request.body_at)
        reply_to = self._next_reply_to()
        try:
            event, asked = snapshot_request_received(message, self._topic, reply_to)
        except InvalidRequestShape:
            self._refuse(request, FetchSnapshotResponse(error_code=ErrorCode.INVALID_REQUEST))
            return
        asked = asked._replace(max_bytes=_at_most(asked.max_bytes))
        request.reserve(asked.max_bytes)
        self._take(request, reply_to, event, asked)

    def change(self, request: InboundRequest) -> Callable[[], None]:
        """Read a request that changes a voter or the leader. Raises MalformedMessage.

        The returned function passes it to the rules; the response may take as long as the change.
        """
        reply_to = self._next_reply_to()
        event = voter_changes.change_request_received(
            request.api_key,
            request.api_version,
            request.frame,
            request.body_at,
            reply_to,
            self._request_timeout_ms,
        )
        self._log_change(request, event)
        return partial(self._take, request, reply_to, event)

    def reassign(self, request: InboundRequest) -> Callable[[], None]:
        """As `change`: the voters become others, one after the other, or that is ended."""
        version = request.api_version
        message = decode(
            AlterPartitionReassignmentsRequest, version, request.frame, request.body_at
        )
        misplaced = voter_changes.misplaced_reassignment(message, self._topic)
        if misplaced is not None:
            return partial(request.respond_message, misplaced)
        reply_to = self._next_reply_to()
        event = voter_changes.reassignment_request_received(message, reply_to)
        self._log_change(request, event)
        return partial(self._take, request, reply_to, event)

    def _log_change(self, request: InboundRequest, event: Event) -> None:
        """Logs who asks this node for a change. If the node forwards it, the leader logs the node."""
        what = _wanted(event)
        more = None if what is None else self._change_lines.take_fields()
        if more is not None:
            caller = request.connection
            LOG.info("change requested", what=what, by=caller.principal, peer=caller.peer, **more)

    def give_change_up(self, request: InboundRequest) -> None:
        """The leader that was asked for a change of the voters is gone: the client has to ask again."""
        reply = VoterChangeReply(
            epoch=-1,
            leader_id=None,
            leader_endpoints=(),
            error=KafkaError.NOT_LEADER_OR_FOLLOWER,
            message="the leader was lost before it responded; it may have made the change. Ask again",
        )
        request.respond_message(self._change_response(request, reply))

    def refuse_fetch(self, request: InboundRequest) -> None:
        """A replica's fetch that does not hold exactly this partition."""
        self._refuse(request, FetchResponse(error_code=ErrorCode.INVALID_REQUEST))

    def _is_of_foreign_kafka(self, request: InboundRequest) -> bool:
        return request.connection.client_software_name == KAFKA_SOFTWARE and not self._is_kafka_log

    def _refuse_kafka(self, request: InboundRequest, response: Message) -> None:
        """Such a process ends at a partition's error 42, or at a record of ours; not at one as a whole."""
        self._metrics.count_ignored("raft request of a Kafka replica")
        if self._foreign_lines.take() is not None:
            LOG.warning(
                "a Kafka replica must neither copy a quorumd log nor be voted for: it stops at the first "
                "record it does not know. Refused",
                peer=request.connection.peer,
            )
        request.respond_message(response)

    def _refuse(self, request: InboundRequest, response: Message) -> None:
        self._metrics.count_ignored("raft request for another topic or partition")
        request.respond_message(response)

    def _next_reply_to(self) -> int:
        """A number that connects a request with the reply of the rules."""
        self._last_reply_to += 1
        return self._last_reply_to

    def _take(
        self, request: InboundRequest, reply_to: int, event: Event, asked: ChunkRange = NOTHING
    ) -> None:
        """Keep the request until the rules reply, and let them decide."""
        self._asked[reply_to] = (request, asked)
        self._handle(event)

    # -- responses

    def send_reply(self, effect: SendReply) -> None:
        """Respond to the request under this number; a connection that is gone takes it too."""
        reply = effect.reply
        if isinstance(reply, FetchReply):
            request, max_bytes = self._fetches.pop(effect.reply_to)
            if self._is_kafka_log:
                _name_leader_for_kafka(request, reply)
            self._send_fetch_response(request, reply, max_bytes)
            return
        request, asked = self._asked.pop(effect.reply_to)
        if self._is_kafka_log:
            _name_leader_for_kafka(request, reply)
        if isinstance(reply, SnapshotReply):
            self._send_snapshot_response(request, reply, asked)
            return
        if isinstance(reply, VoterChangeReply):
            request.respond_message(self._change_response(request, reply))
            return
        key, version, listener = request.api_key, request.api_version, request.listener.name
        response = elections.election_response(key, reply, self._topic, version, listener)
        request.respond_message(response)

    def _change_response(self, request: InboundRequest, reply: VoterChangeReply) -> Message:
        return voter_changes.change_response(
            request.api_key, reply, self._topic, request.listener.name
        )

    def _send_fetch_response(
        self, request: InboundRequest, reply: FetchReply, max_bytes: int
    ) -> None:
        if reply.read_from is None:
            self._respond_fetch(request, reply, ())
            return
        max_bytes = _at_most(max_bytes)
        try:
            cached = self._reader.cached(reply.read_from, max_bytes, reply.read_to)
        except OffsetNotInLog as error:
            request.close(f"the log was truncated while a response waited for the disk: {error}")
            return
        if cached is not None:
            self._respond_fetch(request, reply, cached)
            return

        def done(outcome: bytes | BaseException) -> None:
            if isinstance(outcome, BaseException):
                request.close(f"the log could not be read for a replica: {outcome}")
            else:
                self._respond_fetch(request, reply, (outcome,))

        self._reader.read(reply.read_from, max_bytes, reply.read_to, done)

    def _respond_fetch(
        self,
        request: InboundRequest,
        reply: FetchReply,
        records: Sequence[bytes | memoryview],
    ) -> None:
        version, listener = request.api_version, request.listener.name
        goes_elsewhere = reply.diverging is not None or reply.snapshot is not None
        if reply.top_level_error is not None or goes_elsewhere:
            response = fetch_response(reply, self._topic, version, listener)
            request.respond_message(response)
            return
        request.respond(self._frames.of(reply, version, request.correlation_id, listener, records))

    def _send_snapshot_response(
        self, request: InboundRequest, reply: SnapshotReply, asked: ChunkRange
    ) -> None:
        if reply.snapshot is None:
            self._respond_snapshot(request, reply, None)
            return
        snapshot = reply.snapshot
        if not self._snapshots.serve(snapshot, asked.replica, asked.position):
            reply.error, reply.snapshot = KafkaError.SNAPSHOT_NOT_FOUND, None
            self._respond_snapshot(request, reply, None)
            return

        def read() -> ChunkBytes:
            data = self._store.read(snapshot, asked.position, asked.max_bytes)
            return ChunkBytes(self._store.size_bytes(snapshot), asked.position, data)

        def done(outcome: ChunkBytes | BaseException) -> None:
            if isinstance(outcome, SnapshotNotFound):
                self._snapshots.on_damage(snapshot, f"its file was deleted: {outcome}")
                reply.error, reply.snapshot = KafkaError.SNAPSHOT_NOT_FOUND, None
            elif isinstance(outcome, PositionOutOfRange):
                reply.error, reply.snapshot = KafkaError.POSITION_OUT_OF_RANGE, None
            elif isinstance(outcome, BaseException):
                if isinstance(outcome, StorageError):
                    self._snapshots.on_damage(snapshot, str(outcome))
                request.close(f"a snapshot could not be read: {outcome}")
                return
            chunk = outcome if isinstance(outcome, ChunkBytes) else None
            self._respond_snapshot(request, reply, chunk)

        if asked.replica is None:
            self._client_reads.add(request.connection, partial(self._reader.run, read), done)
        else:
            self._reader.run(read, done)

    def _respond_snapshot(
        self, request: InboundRequest, reply: SnapshotReply, chunk: ChunkBytes | None
    ) -> None:
        version, listener = request.api_version, request.listener.name
        response = snapshot_response(reply, self._topic, version, listener, chunk)
        request.respond_message(response)


def _wanted(event: Event) -> str | None:
    """The change that an operator, or a node that joins by itself, asks for; None for anything else."""
    match event:
        case AddVoterRequested(voter=voter):
            return f"add voter {voter.key}"
        case RemoveVoterRequested(key=key):
            return f"remove voter {key}"
        case TransferRequested(to=to):
            return f"hand leadership to {'any voter' if to is None else f'voter {to}'}"
        case ReassignmentRequested(target=target):
            if target is None:
                return "end the reassignment"
            return f"reassign the voters to {', '.join(map(str, target))}"
    return None


def _at_most(max_bytes: int) -> int:
    return max(0, min(max_bytes, FETCH_MAX_BYTES))


def _name_leader_for_kafka(request: InboundRequest, reply: Reply) -> None:
    """A Kafka node that is told of a leader, but not where, may not know it either, and ends."""
    if endpoint_on(reply.leader_endpoints, request.listener.name) is None:
        reply.leader_id = None
