"""Raft requests of other replicas: bytes to events, the rules' answers back to whoever asked.

Source: KIP-595, KIP-853. What is no valid raft request is answered 42 at top level, as Kafka does, and
never reaches the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from raft.effects import Answered, FetchAnswer
from raft.events import Event
from server import translate, translate_fetch
from server.host import Reader
from server.logs import Logger, RateLimit
from server.metrics import Metrics
from server.translate import TopicPartition, WrongShape, only_topic
from server.transport import InboundRequest
from storage.errors import OffsetOutOfRange
from wire.codec import decode
from wire.error_codes import ErrorCode
from wire.errors import MalformedMessage
from wire.fast import FastFetch
from wire.messages.begin_quorum_epoch import BeginQuorumEpochRequest, BeginQuorumEpochResponse
from wire.messages.end_quorum_epoch import EndQuorumEpochRequest, EndQuorumEpochResponse
from wire.messages.fetch import FetchResponse
from wire.messages.vote import VoteRequest, VoteResponse
from wire.schema import Message

LOG = Logger("raft")

KAFKA_SOFTWARE = "apache-kafka-java"
FETCH_MAX_BYTES = translate_fetch.FETCH_MAX_BYTES


class Inbound:
    """Takes raft requests for one partition. `handle` passes events to the rules."""

    def __init__(
        self,
        topic: TopicPartition,
        reader: Reader,
        metrics: Metrics,
        handle: Callable[[Event], None],
    ) -> None:
        self._topic = topic
        self._topic_name = topic.name.encode()
        self._topic_id = topic.topic_id.bytes
        self._reader = reader
        self._metrics = metrics
        self._handle = handle
        self._asked: dict[int, tuple[InboundRequest, int]] = {}
        self._last_reply_to = 0
        self._foreign_lines = RateLimit(per_second=0.1, burst=3)

    def _ask(self, request: InboundRequest, max_bytes: int = 0) -> int:
        """Remember who asked; the number comes back with the answer."""
        self._last_reply_to += 1
        self._asked[self._last_reply_to] = (request, max_bytes)
        return self._last_reply_to

    # -- requests

    def vote(self, request: InboundRequest) -> None:
        message = decode(VoteRequest, request.api_version, request.frame, request.body_at)
        try:
            name = only_topic(message.topics)
            self._check_topic(name.topic_name, name.partitions[0].partition_index)
            event = translate.vote_requested(message, self._last_reply_to + 1)
        except WrongShape:
            self._refuse(request, VoteResponse(error_code=ErrorCode.INVALID_REQUEST))
            return
        self._ask(request)
        self._handle(event)

    def begin_quorum_epoch(self, request: InboundRequest) -> None:
        version = request.api_version
        message = decode(BeginQuorumEpochRequest, version, request.frame, request.body_at)
        try:
            name = only_topic(message.topics)
            self._check_topic(name.topic_name, name.partitions[0].partition_index)
            event = translate.epoch_begun(message, self._last_reply_to + 1)
        except WrongShape:
            self._refuse(request, BeginQuorumEpochResponse(error_code=ErrorCode.INVALID_REQUEST))
            return
        self._ask(request)
        self._handle(event)

    def end_quorum_epoch(self, request: InboundRequest) -> None:
        version = request.api_version
        message = decode(EndQuorumEpochRequest, version, request.frame, request.body_at)
        try:
            name = only_topic(message.topics)
            self._check_topic(name.topic_name, name.partitions[0].partition_index)
            event = translate.epoch_ended(message, version, self._last_reply_to + 1)
        except WrongShape:
            self._refuse(request, EndQuorumEpochResponse(error_code=ErrorCode.INVALID_REQUEST))
            return
        self._ask(request)
        self._handle(event)

    def fetch(self, request: InboundRequest, asked: FastFetch) -> None:
        """A replica's fetch of one partition; consumers' go elsewhere."""
        if self._refuse_kafka(request):
            return
        known = self._topic_id if request.api_version >= 13 else self._topic_name
        if asked.topic != known or asked.partition != self._topic.index:
            self.refuse_fetch(request)
            return
        reply_to = self._ask(request, max(0, min(asked.max_bytes, FETCH_MAX_BYTES)))
        self._handle(translate_fetch.fetch_received(asked, reply_to))

    def refuse_fetch(self, request: InboundRequest) -> None:
        """A replica's fetch that does not hold exactly this partition."""
        self._refuse(request, FetchResponse(error_code=ErrorCode.INVALID_REQUEST))

    def _refuse_kafka(self, request: InboundRequest) -> bool:
        connection = request.connection
        if connection.client_software_name != KAFKA_SOFTWARE:
            return False
        self._metrics.count_ignored("fetch of a Kafka replica")
        if self._foreign_lines.take() is not None:
            LOG.warning(
                "a Kafka replica must not copy a quorumd log: it stops at the first record it "
                "does not know. Refused",
                peer=connection.peer,
            )
        request.respond_message(FetchResponse(error_code=ErrorCode.INVALID_REQUEST))
        return True

    def _check_topic(self, name: str, index: int) -> None:
        if name != self._topic.name or index != self._topic.index:
            raise WrongShape(f"{name}-{index} is not replicated here")

    def _refuse(self, request: InboundRequest, response: Message) -> None:
        self._metrics.count_ignored("raft request for another topic or partition")
        request.respond_message(response)

    # -- answers

    def send_answer(self, reply_to: int, answer: Answered) -> None:
        """Answer the request under this number; a connection that is gone takes it too."""
        request, max_bytes = self._asked.pop(reply_to)
        if isinstance(answer, FetchAnswer):
            self._send_fetch_answer(request, answer, max_bytes)
            return
        version, listener = request.api_version, request.listener.name
        response = translate.raft_response(request.api_key, answer, self._topic, version, listener)
        self._respond(request, response)

    def _send_fetch_answer(
        self, request: InboundRequest, answer: FetchAnswer, max_bytes: int
    ) -> None:
        if answer.read_from is None:
            self._respond_fetch(request, answer, ())
            return
        try:
            cached = self._reader.cached(answer.read_from, max_bytes, answer.read_to)
        except OffsetOutOfRange as error:
            request.close(f"the log was truncated while an answer waited for the disk: {error}")
            return
        if cached is not None:
            self._respond_fetch(request, answer, cached)
            return

        def done(outcome: bytes | BaseException) -> None:
            if isinstance(outcome, BaseException):
                request.close(f"the log could not be read for a replica: {outcome}")
            else:
                self._respond_fetch(request, answer, (outcome,))

        self._reader.read(answer.read_from, max_bytes, answer.read_to, done)

    def _respond_fetch(
        self,
        request: InboundRequest,
        answer: FetchAnswer,
        records: Sequence[bytes | memoryview],
    ) -> None:
        version, listener = request.api_version, request.listener.name
        if answer.top_level_error is not None or answer.diverging is not None:
            response = translate_fetch.fetch_response(answer, self._topic, version, listener)
            self._respond(request, response)
            return
        request.respond(
            translate_fetch.fetch_frame(
                answer, self._topic, version, request.correlation_id, listener, records
            )
        )

    def _respond(self, request: InboundRequest, response: Message) -> None:
        try:
            request.respond_message(response)
        except MalformedMessage as error:
            request.close(f"the answer does not fit version {request.api_version}: {error}")
