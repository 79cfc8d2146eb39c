"""Produce: batches that come one after the other become one append; responses wait for the high watermark.

Each batch is checked as it arrives, the producer state finds duplicates, and the append is parked
(`parked_appends`) until it is committed, its timeout is over, or leadership is lost. Promise: acknowledged
means never lost; exactly once for idempotent producers. Source: Kafka's Produce; KIP-98 for idempotence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

from quorumd.raft.effects import AppendClient
from quorumd.raft.errors import KafkaError, Refusal
from quorumd.server.model.conditions import WINDOW_BYTES, ConditionJudge
from quorumd.server.model.metrics import Metrics
from quorumd.server.model.partition_view import PartitionView
from quorumd.server.model.producer_state import Duplicate, ProducerState, Refused
from quorumd.server.model.runtime import Runtime, TimerHandle
from quorumd.server.net.inbound_request import InboundRequest, Steps
from quorumd.server.net.turns import begun
from quorumd.server.requests.conditional_append import refused_append
from quorumd.server.requests.parked_appends import ParkedAppends
from quorumd.server.requests.pending_produce import (
    PartitionResult,
    PendingAppend,
    PendingBatch,
    PendingProduce,
)
from quorumd.server.requests.produce_response import ProduceResponder
from quorumd.server.requests.unpacking import Unpackings
from quorumd.server.translate.common import error_code
from quorumd.storage.log import Chunk, ChunkSummary
from quorumd.wire.batch_header import LOG_OVERHEAD, STAMP, packed_stamp
from quorumd.wire.codec import decode
from quorumd.wire.conditions import MARK, KeyedBatch, Keys
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.errors import RefusedBatch
from quorumd.wire.fast import ProduceHead, parse_produce
from quorumd.wire.messages.produce import ProduceRequest
from quorumd.wire.produced import check_produced, timestamp_deltas

GATHERED_MAX: Final = 32
"""A turn of so many batches waits for no others: to check more takes as long as followers take to sync."""
GATHERED_S: Final = 0.001
"""So long after the first of them came the batches of a turn wait for no others."""
UNCOMMITTED_BYTES_MAX = 64 * 2**20
"""Bytes that clients may have appended beyond the high watermark before more is refused."""
WAITING_BYTES: Final = 1000
"""Bytes that a batch costs in memory besides its own until it is committed."""


class AppendTarget(Protocol):
    """The partition, as producers append to it."""

    @property
    def append_refusal(self) -> Refusal | None:
        """The reason why nothing can be appended now; None if it can."""

    def append(self, token: int, record_count: int) -> None:
        """Have the batches under this token appended; `ProduceHandler.take_batches` hands them over."""

    def end_process(self, error: BaseException) -> None:
        """End the process because of an error that left state half changed."""


class ProduceHandler:
    """Responds to Produce requests for one partition."""

    def __init__(
        self,
        view: PartitionView,
        target: AppendTarget,
        producers: ProducerState,
        metrics: Metrics,
        max_batch_bytes: int,
        runtime: Runtime,
        call_soon: Callable[[Callable[[], None]], object],
        condition_window_bytes: int = WINDOW_BYTES,
        resigns_within_s: float = 3.0,
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
        self._judge = ConditionJudge(condition_window_bytes, resigns_within_s)
        self._window_timer: TimerHandle | None = None
        self._unpackings = Unpackings()
        self._known_head: ProduceHead | None = None
        """The last head that named this partition."""
        self._turn: list[PendingBatch] = []
        self._turn_ms: int
        """When its first batch came in, by the wall clock."""
        self._gathered = 0
        """Number of batches of this turn that have waited for others."""
        self._last_turn_size = 0
        self._duplicates: list[PendingAppend] = []
        """Duplicates and refused batches: both wait until a record before them is committed."""
        self._appending: dict[int, Chunk] = {}
        self._token = 0
        self._responder = ProduceResponder(view, metrics)
        self.parked = ParkedAppends(view, metrics, runtime, self._responder)
        """Appends that are not committed yet: `on_high_watermark` is to be called there."""

    # -- a request arrives

    def handle(self, request: InboundRequest) -> Steps | None:
        """Take a Produce request; the rest of a long check is returned.

        Raises MalformedMessage.
        """
        version = request.api_version
        found = parse_produce(version, request.frame, request.body_at)
        if found is None:
            return self._handle_any(request)
        head, records = found
        batch = PendingBatch(request, head, records)
        if head is not self._known_head:
            error = self._wrong_head(version, head)
            if error is not None:
                self._responder.finish(batch, PartitionResult(error))
                return None
            self._known_head = head
        return self._take_batch(batch)

    def _handle_any(self, request: InboundRequest) -> Steps | None:
        """The general form: any number of topics and partitions, each with a result of its own."""
        version = request.api_version
        message = decode(ProduceRequest, version, request.frame, request.body_at)
        acks, timeout_ms = message.acks, message.timeout_ms
        pending = PendingProduce(request, acks, message.topic_data)
        batches: list[tuple[PendingBatch, bytes | memoryview | None]] = []
        for i, topic in enumerate(message.topic_data):
            for k, partition in enumerate(topic.partition_data):
                name = topic.topic_id.bytes if version >= 13 else topic.name.encode()
                head = ProduceHead(acks, timeout_ms, name, partition.index)
                error = self._wrong_head(version, head)
                if message.transactional_id is not None:
                    error = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
                if error is None:
                    batch = PendingBatch(request, head, b"", pending, (i, k))
                    batches.append((batch, partition.records))
                else:
                    pending.results[i, k] = PartitionResult(error)
        return begun(self._take_batches(pending, batches))

    def _take_batches(
        self,
        pending: PendingProduce,
        batches: Sequence[tuple[PendingBatch, bytes | memoryview | None]],
    ) -> Steps:
        pending.partitions_left = 1 + len(batches)  # one more, until every partition is checked
        for batch, records in batches:
            batch.data = b"" if records is None else bytes(records)
            steps = self._take_batch(batch)
            if steps is not None:
                yield from steps
            yield None
        pending.partitions_left -= 1
        if not pending.partitions_left:
            self._responder.respond(pending.request, pending.acks, pending.topics, pending.results)

    def _wrong_head(self, version: int, head: ProduceHead) -> ErrorCode | None:
        """The reason why a request of this version is not for this partition, or cannot be served."""
        if version >= 13:
            if head.topic != self._topic_id:
                return ErrorCode.UNKNOWN_TOPIC_ID
        elif head.topic != self._topic_name:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if head.partition != self._view.topic.index:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return None if head.acks in (-1, 0, 1) else ErrorCode.INVALID_REQUIRED_ACKS

    def _take_batch(self, batch: PendingBatch) -> Steps | None:
        """Check a batch, or begin to; a good one is appended at the end of its turn."""
        if not self._turn:  # for later batches of a turn the refusal is found at its end
            if self._is_refused(batch):
                return None
            self._turn_ms = self._runtime.wall_ms()
        data, left = batch.data, None
        keys: Keys | None = None if self._judge.window is None else []
        try:
            (size, attributes, max_timestamp, producer_id, record_count), steps = check_produced(
                data, batch.request.api_version, self._max_batch_bytes, self._turn_ms, keys=keys
            )
            if steps is not None:
                left = begun(steps)
        except RefusedBatch as refused:
            self._refuse_batch(batch, refused)
            return None
        batch.size_bytes, batch.max_timestamp = size, max_timestamp
        batch.producer_id, batch.record_count = producer_id, record_count
        if size != len(data):
            batch.data = data[:size]
        if left is not None:
            return self._check_on(batch, left, keys)
        if attributes or (steps is not None and MARK in batch.data):
            return begun(self._check_on(batch, iter(()), keys))
        if keys is not None:
            batch.keyed = KeyedBatch(keys, None)
        self._add_to_turn(batch)
        return None

    def _check_on(self, batch: PendingBatch, steps: Iterator[None], keys: Keys | None) -> Steps:
        """The rest of the check, which adds to `keys`; keys and condition included."""
        header = batch.header
        deltas = timestamp_deltas(header.base_timestamp, self._turn_ms)
        try:
            yield from steps
            keys = None if self._judge.window is None else keys or []
            batch.keyed = yield from self._unpackings.read_keyed(header, batch.data, keys, deltas)
            if batch.is_conditional and not batch.head.acks:
                raise RefusedBatch(
                    ErrorCode.INVALID_RECORD,
                    "Record 0: a condition needs a response. Send it with acks=all.",
                    0,
                )
        except RefusedBatch as refused:
            self._refuse_batch(batch, refused)
            return
        if not self._is_refused(batch):
            self._add_to_turn(batch)

    def _is_refused(self, batch: PendingBatch) -> bool:
        """True if nothing can be appended now; the batch has that result then."""
        refusal = self._target.append_refusal
        if refusal is None and self.parked.uncommitted_bytes > UNCOMMITTED_BYTES_MAX:
            refusal = Refusal(
                KafkaError.NOT_ENOUGH_REPLICAS,
                f"more than {UNCOMMITTED_BYTES_MAX} bytes wait for a majority of the voters",
            )
        if refusal is not None:
            self._responder.finish(
                batch, PartitionResult(error_code(refusal.error), refusal.reason)
            )
        return refusal is not None

    def _refuse_batch(self, batch: PendingBatch, refused: RefusedBatch) -> None:
        result = PartitionResult(refused.error, refused.message, refused.record_index)
        self._responder.finish(batch, result)

    def _add_to_turn(self, batch: PendingBatch) -> None:
        self._turn.append(batch)
        if len(self._turn) == 1:
            if self._last_turn_size == 1 and not self.parked.appends:
                # A lone client that waits for its response: no other batch will come.
                try:
                    self._append_turn()
                except BaseException as error:
                    # The caller closes the connection, and goes on.
                    self._target.end_process(error)
                    raise
            else:
                self._call_soon(self._end_turn)

    # -- the turn ends

    def _end_turn(self) -> None:
        """Append what has come once no more does, unless leadership has ended meanwhile.

        Clients that got their responses together send their next requests one after the other. Whose request
        is appended a moment later waits until followers have synced the others'.
        """
        turn = self._turn
        refusal = self._target.append_refusal
        if refusal is not None:
            result = PartitionResult(error_code(refusal.error), refusal.reason)
            for batch in self._take_turn():
                self._responder.finish(batch, result)
        elif (
            self._gathered < len(turn) < GATHERED_MAX
            and self._runtime.monotonic_s() < turn[0].request.received_ns / 1e9 + GATHERED_S
        ):
            self._gathered = len(turn)
            self._call_soon(self._end_turn)
        else:
            self._append_turn()

    def _take_turn(self) -> list[PendingBatch]:
        turn, self._turn = self._turn, []
        self._gathered = 0
        self._last_turn_size = len(turn)
        return turn

    def _append_turn(self) -> None:
        """One append for the whole turn; the caller has just found no refusal.

        The batches are stamped with the offsets that the rules are about to give them: `take_batches`
        compares.
        """
        turn = self._take_turn()
        epoch, base_offset = self._view.leader_epoch, self._view.log_end_offset
        judge = self._judge
        accepted: list[PendingBatch] = []
        parts: list[bytes] = []
        sizes: list[int] = []
        offset = base_offset
        newest_ms, newest_offset = -1, -1
        for batch in turn:
            size, max_timestamp = batch.size_bytes, batch.max_timestamp
            keyed = batch.keyed
            if keyed is not None and keyed.condition is not None:
                refused = refused_append(batch, judge, self._producers, offset, self._runtime)
                if refused is not None:
                    self._duplicates.append(refused)
                    continue
            if batch.producer_id >= 0 and not self._check_sequence(batch, offset):
                continue
            batch.base_offset = offset
            # Offset, length and epoch are anew; the CRC covers none of them.
            parts.append(packed_stamp(offset, size - LOG_OVERHEAD, epoch))
            parts.append(batch.data[STAMP.size :])
            batch.let_go()
            offset += batch.record_count
            if max_timestamp > newest_ms or not sizes:
                newest_ms, newest_offset = max_timestamp, offset - 1
            if judge.window is not None:
                judge.note(keyed, batch.base_offset, offset)
            sizes.append(size)
            accepted.append(batch)
        if accepted:
            held_bytes = sum(sizes) + WAITING_BYTES * len(sizes)
            now = self._runtime.monotonic_s()
            self.parked.park(PendingAppend(accepted, now, offset, held_bytes))
            self._metrics.observe_batches(sizes)
            self._token += 1
            summary = ChunkSummary(epoch, newest_ms, newest_offset)
            chunk = Chunk(b"".join(parts), base_offset, offset, summary)
            self._appending[self._token] = chunk
        if judge.window is not None and self._window_timer is None:
            self._arm_window_timer()
        if self._duplicates:
            duplicates, self._duplicates = self._duplicates, []
            for duplicate in duplicates:
                self.parked.park_duplicate(duplicate)
        if accepted:
            self._target.append(self._token, offset - base_offset)

    def _check_sequence(self, batch: PendingBatch, offset: int) -> bool:
        """Idempotence. True if the batch is new and goes to `offset`; else it is refused or a duplicate."""
        header = batch.header
        verdict = self._producers.check(
            header.producer_id, header.producer_epoch, header.base_sequence, header.record_count
        )
        if isinstance(verdict, Refused):
            self._responder.finish(
                batch, PartitionResult(error_code(verdict.error), verdict.message)
            )
            return False
        if isinstance(verdict, Duplicate):
            self._metrics.duplicate_batches += 1
            batch.base_offset = verdict.base_offset
            batch.let_go()
            now, end_offset = self._runtime.monotonic_s(), verdict.last_offset + 1
            self._duplicates.append(PendingAppend([batch], now, end_offset, 0))
            return False
        last_offset = offset + header.record_count - 1
        self._producers.append(
            header.producer_id, header.producer_epoch, header.base_sequence, offset, last_offset
        )
        return True

    def take_batches(self, effect: AppendClient) -> Chunk:
        """The batches under this token, stamped with their offsets and epoch, as one chunk."""
        chunk = self._appending.pop(effect.token)
        summary = chunk.summary
        assert chunk.base_offset == effect.base_offset, "the rules appended elsewhere"
        assert summary is not None, "it is known of what was just stamped"
        assert summary.epoch == effect.epoch, "the rules appended in another epoch"
        return chunk

    # -- commits and the loss of leadership

    def on_leadership_lost(self) -> None:
        """Parked batches may or may not survive: the producer has to send them to the new leader."""
        self._judge.close()
        self.parked.refuse_all(
            PartitionResult(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, "leadership was lost before the commit"
            )
        )

    def _arm_window_timer(self) -> None:
        at = self._judge.idle_s
        self._window_timer = self._runtime.call_at(at, self._close_idle_window)

    def _close_idle_window(self) -> None:
        """A window takes memory: it goes also where nothing is appended any more."""
        self._window_timer = None
        self._judge.close_if_idle(self._runtime.monotonic_s())
        if self._judge.window is not None:
            self._arm_window_timer()

    @property
    def parked_count(self) -> int:
        """Batches that wait for their commit, or for the end of their turn."""
        return self.parked.batch_count + len(self._turn)

    def close(self) -> None:
        """Cancel the timers."""
        self.parked.close()
        if self._window_timer is not None:
            self._window_timer.cancel()
