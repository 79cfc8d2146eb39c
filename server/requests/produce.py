"""Produce: batches of one turn of the event loop become one append; answers wait for the high watermark.

Checks each batch as it arrives, lets the producer state sort out duplicates, and parks what was appended
until it is committed, its time is over, or leadership is lost. Source: Kafka's Produce; KIP-98 for
idempotence. Promise: acknowledged means never lost; exactly once for idempotent producers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol
from uuid import UUID

from quorumd.raft.effects import AppendClient
from quorumd.raft.errors import KafkaError, Refusal
from quorumd.server.model.metrics import Metrics
from quorumd.server.model.partition_view import PartitionView
from quorumd.server.model.producer_state import Duplicate, ProducerState, Refused
from quorumd.server.model.runtime import Runtime, TimerHandle
from quorumd.server.net.inbound_request import InboundRequest
from quorumd.server.net.turns import begun
from quorumd.server.requests.pending_produce import PartitionResult, PendingBatch, PendingProduce
from quorumd.server.translate.common import endpoint_on, error_code
from quorumd.storage.log import Chunk, ChunkSummary
from quorumd.wire.batch_header import stamp
from quorumd.wire.codec import decode
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.errors import RefusedBatch
from quorumd.wire.fast import FastProduce, encode_produce_response, parse_produce
from quorumd.wire.messages.produce import (
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
    ProduceResponse,
    ProduceResponseCurrentLeader,
    ProduceResponseNodeEndpoint,
    ProduceResponsePartition,
    ProduceResponseRecordError,
    ProduceResponseTopic,
)
from quorumd.wire.produced import check_produced

UNCOMMITTED_BYTES_MAX = 64 * 2**20
"""What clients may have appended beyond the high watermark before more is refused."""
SWEEP_S = 0.1
"""How often parked requests are looked through for those whose time is over."""
WAITING_BYTES = 1000
"""What a batch costs in memory besides its own bytes until it is committed."""


class AppendTarget(Protocol):
    """Takes what producers append to a partition."""

    @property
    def append_obstacle(self) -> Refusal | None:
        """Why nothing can be appended now; None if it can."""

    def append(self, token: int, record_count: int) -> None:
        """Have the batches under this token appended; `ProduceHandler.take_batches` hands them over."""


class ProduceHandler:
    """Answers Produce requests for one partition."""

    def __init__(
        self,
        view: PartitionView,
        target: AppendTarget,
        producers: ProducerState,
        metrics: Metrics,
        max_batch_bytes: int,
        runtime: Runtime,
        call_soon: Callable[[Callable[[], None]], object],
    ) -> None:
        self._view = view
        self._target = target
        self._topic_name = view.topic.name.encode()
        self._topic_id = view.topic.topic_id.bytes
        self._producers = producers
        self._metrics = metrics
        self._max_batch_bytes = max_batch_bytes
        self._runtime = runtime
        self._call_soon = call_soon
        self._turn: list[PendingBatch] = []
        self._turn_ms = 0
        self._last_turn_size = 0
        self._duplicates: list[PendingBatch] = []
        self._appending: dict[int, list[PendingBatch]] = {}
        self._token = 0
        self._parked: deque[PendingBatch] = deque()
        self._uncommitted_bytes = 0
        self._sweeper: TimerHandle | None = None

    # -- a request arrives

    def handle(self, request: InboundRequest) -> Iterator[None] | None:
        """Take a Produce request in; what is left of a long check is returned.

        Raises MalformedMessage if its bytes are none.
        """
        version = request.api_version
        fast = parse_produce(version, request.frame, request.body_at)
        if fast is None:
            return self._handle_any(request)
        deadline = request.received_ns / 1e9 + fast.timeout_ms / 1000
        pending = PendingProduce(request, fast.acks, deadline, fast)
        error = self._wrong_topic(version, fast.topic, fast.partition)
        if error is None and fast.acks not in (-1, 0, 1):
            error = ErrorCode.INVALID_REQUIRED_ACKS
        if error is not None:
            pending.results[0, 0] = PartitionResult(error)
            self._respond(pending)
            return None
        return self._take_batch(pending, (0, 0), fast.records)

    def _handle_any(self, request: InboundRequest) -> Iterator[None] | None:
        """The general form: any number of topics and partitions, each answered on its own."""
        version = request.api_version
        message = decode(ProduceRequest, version, request.frame, request.body_at)
        deadline = request.received_ns / 1e9 + message.timeout_ms / 1000
        pending = PendingProduce(request, message.acks, deadline, topics=message.topic_data)
        batches: list[tuple[tuple[int, int], ProduceRequestPartition]] = []
        for i, topic in enumerate(message.topic_data):
            for k, partition in enumerate(topic.partition_data):
                name = topic.topic_id.bytes if version >= 13 else topic.name.encode()
                error = self._wrong_topic(version, name, partition.index)
                if message.transactional_id is not None:
                    error = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
                elif error is None and message.acks not in (-1, 0, 1):
                    error = ErrorCode.INVALID_REQUIRED_ACKS
                if error is None:
                    batches.append(((i, k), partition))
                else:
                    pending.results[i, k] = PartitionResult(error)
        return begun(self._take_batches(pending, batches))

    def _take_batches(
        self,
        pending: PendingProduce,
        batches: Sequence[tuple[tuple[int, int], ProduceRequestPartition]],
    ) -> Iterator[None]:
        pending.unanswered = 1  # until every partition is checked
        for at, partition in batches:
            steps = self._take_batch(pending, at, partition.records)
            if steps is not None:
                yield from steps
            yield
        pending.unanswered -= 1
        if not pending.unanswered:
            self._respond(pending)

    def _wrong_topic(self, version: int, topic: bytes, index: int) -> ErrorCode | None:
        """`topic` is the name as UTF-8, or from version 13 the bytes of the id."""
        if version >= 13:
            if topic != self._topic_id:
                return ErrorCode.UNKNOWN_TOPIC_ID
        elif topic != self._topic_name:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return None if index == self._view.topic.index else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def _take_batch(
        self, pending: PendingProduce, at: tuple[int, int], records: bytes | memoryview | None
    ) -> Iterator[None] | None:
        """Check a batch, or begin to; what passes is appended at the end of its turn of the event loop."""
        pending.unanswered += 1
        if self._is_obstructed(pending, at):
            return None
        try:
            header, steps = check_produced(
                records,
                produce_version=pending.request.api_version,
                max_batch_bytes=self._max_batch_bytes,
                now_ms=self._runtime.wall_ms(),
            )
            left = begun(steps)
        except RefusedBatch as refused:
            self._refuse_batch(pending, at, refused)
            return None
        assert records is not None, "a batch that passed has bytes"
        data = records if len(records) == header.size_bytes else records[: header.size_bytes]
        batch = PendingBatch(pending, at, bytes(data), header)
        if left is not None:
            return self._check_on(batch, left)
        self._add_to_turn(batch)
        return None

    def _check_on(self, batch: PendingBatch, steps: Iterator[None]) -> Iterator[None]:
        try:
            yield from steps
        except RefusedBatch as refused:
            self._refuse_batch(batch.pending, batch.at, refused)
            return
        if not self._is_obstructed(batch.pending, batch.at):
            self._add_to_turn(batch)

    def _is_obstructed(self, pending: PendingProduce, at: tuple[int, int]) -> bool:
        """True if nothing can be appended now: that is its result then."""
        obstacle = self._target.append_obstacle
        if obstacle is None and self._uncommitted_bytes > UNCOMMITTED_BYTES_MAX:
            obstacle = Refusal(
                KafkaError.NOT_ENOUGH_REPLICAS,
                f"more than {UNCOMMITTED_BYTES_MAX} bytes wait for a majority of the voters",
            )
        if obstacle is None:
            return False
        self._finish(pending, at, PartitionResult(error_code(obstacle.error), obstacle.reason))
        return True

    def _refuse_batch(
        self, pending: PendingProduce, at: tuple[int, int], refused: RefusedBatch
    ) -> None:
        result = PartitionResult(refused.error, refused.message, refused.record_index)
        self._finish(pending, at, result)

    def _add_to_turn(self, batch: PendingBatch) -> None:
        self._turn.append(batch)
        if len(self._turn) == 1:
            if self._last_turn_size == 1 and not self._parked:
                self._append_turn()  # a lone client that waits for its answer: no other batch will come
            else:
                self._call_soon(self._end_turn)

    # -- the turn ends

    def _end_turn(self) -> None:
        """Append what came in since the last turn, unless leadership has ended since."""
        obstacle = self._target.append_obstacle
        if obstacle is None:
            self._append_turn()
            return
        turn, self._turn = self._turn, []
        self._last_turn_size = len(turn)
        result = PartitionResult(error_code(obstacle.error), obstacle.reason)
        for batch in turn:
            self._finish(batch.pending, batch.at, result)

    def _append_turn(self) -> None:
        """One append for the whole turn; nothing is in its way, as was just asked."""
        turn, self._turn = self._turn, []
        self._last_turn_size = len(turn)
        now = self._runtime.monotonic_s()
        offset = self._view.log_end_offset
        accepted: list[PendingBatch] = []
        for batch in turn:
            header = batch.header
            if header.producer_id >= 0 and not self._check_sequence(batch, offset):
                continue
            batch.base_offset = offset
            offset += header.record_count
            batch.end_offset = offset
            batch.since = now
            batch.appended_bytes = header.size_bytes + WAITING_BYTES
            self._uncommitted_bytes += batch.appended_bytes
            accepted.append(batch)
        if accepted:
            self._token += 1
            self._appending[self._token] = accepted
            self._parked.extend(accepted)
            self._arm_sweeper()
        if self._duplicates:
            duplicates, self._duplicates = self._duplicates, []
            for batch in duplicates:
                self._park_duplicate(batch)
        if accepted:
            self._target.append(self._token, offset - accepted[0].base_offset)

    def _check_sequence(self, batch: PendingBatch, offset: int) -> bool:
        """Idempotence. True if the batch is new and goes to `offset`; else it is answered or noted."""
        header = batch.header
        verdict = self._producers.check(
            header.producer_id, header.producer_epoch, header.base_sequence, header.record_count
        )
        if isinstance(verdict, Refused):
            result = PartitionResult(error_code(verdict.error), verdict.message)
            self._finish(batch.pending, batch.at, result)
            return False
        if isinstance(verdict, Duplicate):
            batch.base_offset = verdict.base_offset
            batch.end_offset = verdict.last_offset + 1
            batch.data = b""
            batch.since = self._runtime.monotonic_s()
            self._duplicates.append(batch)
            return False
        last_offset = offset + header.record_count - 1
        self._producers.append(
            header.producer_id, header.producer_epoch, header.base_sequence, offset, last_offset
        )
        return True

    def _park_duplicate(self, batch: PendingBatch) -> None:
        """A duplicate is answered when the original is committed, in the order of offsets."""
        if batch.end_offset <= self._view.committed_offset:
            self._complete(batch, self._view.log_start_offset)
            return
        at = len(self._parked)
        while at and self._parked[at - 1].end_offset > batch.end_offset:
            at -= 1
        self._parked.insert(at, batch)
        self._arm_sweeper()

    def take_batches(self, effect: AppendClient) -> Chunk:
        """The batches under this token, stamped with their offsets and epoch, as one chunk."""
        accepted = self._appending.pop(effect.token)
        first, epoch = accepted[0], effect.epoch
        assert first.base_offset == effect.base_offset, "the rules appended elsewhere"
        parts = []
        newest, newest_offset = first.header.max_timestamp, first.end_offset - 1
        for batch in accepted:
            parts.append(stamp(batch.data, batch.base_offset, epoch))
            batch.data = b""
            if batch.header.max_timestamp > newest:
                newest, newest_offset = batch.header.max_timestamp, batch.end_offset - 1
        self._metrics.observe_batches(map(len, parts))
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        end_offset = accepted[-1].end_offset
        return Chunk(
            data, first.base_offset, end_offset, ChunkSummary(epoch, newest, newest_offset)
        )

    # -- commits and time-outs

    def on_high_watermark(self, offset: int) -> None:
        """Answer everything below the high watermark, in the order of the log."""
        parked = self._parked
        if not parked or parked[0].end_offset > offset:
            return
        now, log_start_offset = self._runtime.monotonic_s(), self._view.log_start_offset
        since, count = parked[0].since, 0
        while parked and parked[0].end_offset <= offset:
            batch = parked.popleft()
            if batch.since != since:
                self._metrics.observe_commit(now - since, count)
                since, count = batch.since, 0
            count += 1
            self._uncommitted_bytes -= batch.appended_bytes
            if not batch.done:
                self._complete(batch, log_start_offset)
        self._metrics.observe_commit(now - since, count)

    def on_leadership_lost(self) -> None:
        """What is parked may or may not survive: the producer has to ask the new leader."""
        parked, self._parked = self._parked, deque()
        self._uncommitted_bytes = 0
        for batch in parked:
            if not batch.done:
                result = PartitionResult(
                    ErrorCode.NOT_LEADER_OR_FOLLOWER, "leadership was lost before the commit"
                )
                self._finish(batch.pending, batch.at, result)

    @property
    def parked_count(self) -> int:
        """Batches that wait for their commit."""
        return len(self._parked) + len(self._turn)

    def _complete(self, batch: PendingBatch, log_start_offset: int) -> None:
        batch.done = True
        pending = batch.pending
        fast = pending.fast
        if fast is not None and pending.acks:
            request = pending.request
            frame = encode_produce_response(
                request.api_version,
                request.correlation_id,
                fast.topic,
                fast.partition,
                0,
                batch.base_offset,
                log_start_offset,
            )
            request.respond((frame,))
            return
        self._finish(pending, batch.at, PartitionResult(base_offset=batch.base_offset))

    def _finish(
        self, pending: PendingProduce, at: tuple[int, int], result: PartitionResult
    ) -> None:
        pending.results[at] = result
        pending.unanswered -= 1
        if not pending.unanswered:
            self._respond(pending)

    def _arm_sweeper(self) -> None:
        if self._sweeper is None:
            at = self._runtime.monotonic_s() + SWEEP_S
            self._sweeper = self._runtime.call_at(at, self._sweep)

    def _sweep(self) -> None:
        """Answer requests whose time is over; their records stay appended and may still commit."""
        self._sweeper = None
        now = self._runtime.monotonic_s()
        has_idle_duplicates = False
        for batch in self._parked:
            if not batch.done and batch.pending.deadline <= now:
                batch.done = True
                result = PartitionResult(
                    ErrorCode.REQUEST_TIMED_OUT,
                    "appended, but not committed in time: no majority of the voters answers",
                )
                self._finish(batch.pending, batch.at, result)
                has_idle_duplicates = has_idle_duplicates or not batch.appended_bytes
        if has_idle_duplicates:
            self._parked = deque(
                batch for batch in self._parked if batch.appended_bytes or not batch.done
            )
        if self._parked:
            self._arm_sweeper()

    def close(self) -> None:
        """Stop looking at the clock."""
        if self._sweeper is not None:
            self._sweeper.cancel()

    # -- responses

    def _respond(self, pending: PendingProduce) -> None:
        """The answer in its general form; acks=0 has none, and errors close its connection."""
        request = pending.request
        errors = {result.error for result in pending.results.values()} - {ErrorCode.NONE}
        for error in errors:
            self._metrics.count_refused(error.name)
        if pending.acks == 0:
            if errors:
                names = ", ".join(sorted(error.name for error in errors))
                request.close(f"a batch without acknowledgement was refused: {names}")
            else:
                request.finish_without_response()
            return
        request.respond_message(self._response(pending))

    def _response(self, pending: PendingProduce) -> ProduceResponse:
        fast, version = pending.fast, pending.request.api_version
        if fast is not None:
            topics: tuple[ProduceRequestTopic, ...] = (_topic_of(fast, version),)
        else:
            topics = pending.topics
        responses = tuple(
            ProduceResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=tuple(
                    self._partition_response(version, partition.index, pending.results[i, k])
                    for k, partition in enumerate(topic.partition_data)
                ),
            )
            for i, topic in enumerate(topics)
        )
        return ProduceResponse(responses=responses, node_endpoints=self._leader_endpoints(pending))

    def _partition_response(
        self, version: int, index: int, result: PartitionResult
    ) -> ProduceResponsePartition:
        current = ProduceResponseCurrentLeader()
        if result.error is ErrorCode.NOT_LEADER_OR_FOLLOWER and version >= 10:
            leader_id = self._view.leader_id
            current = ProduceResponseCurrentLeader(
                leader_id=-1 if leader_id is None else leader_id,
                leader_epoch=self._view.leader_epoch,
            )
        record_errors: tuple[ProduceResponseRecordError, ...] = ()
        if result.record_index is not None:
            record_errors = (
                ProduceResponseRecordError(
                    batch_index=result.record_index, batch_index_error_message=result.message
                ),
            )
        ok = result.error is ErrorCode.NONE
        return ProduceResponsePartition(
            index=index,
            error_code=int(result.error),
            base_offset=result.base_offset,
            log_start_offset=self._view.log_start_offset if ok else -1,
            record_errors=record_errors,
            error_message=result.message,
            current_leader=current,
        )

    def _leader_endpoints(self, pending: PendingProduce) -> tuple[ProduceResponseNodeEndpoint, ...]:
        leader_id = self._view.leader_id
        asked_for = any(
            result.error is ErrorCode.NOT_LEADER_OR_FOLLOWER for result in pending.results.values()
        )
        if not asked_for or leader_id is None or pending.request.api_version < 10:
            return ()
        at = endpoint_on(self._view.leader_endpoints, pending.request.listener.name)
        if at is None:
            return ()
        return (ProduceResponseNodeEndpoint(node_id=leader_id, host=at.host, port=at.port),)


def _topic_of(fast: FastProduce, version: int) -> ProduceRequestTopic:
    """The one topic of a request in its general form, without its records."""
    partitions = (ProduceRequestPartition(index=fast.partition),)
    if version >= 13:
        return ProduceRequestTopic(topic_id=UUID(bytes=fast.topic), partition_data=partitions)
    return ProduceRequestTopic(name=fast.topic.decode(errors="replace"), partition_data=partitions)
