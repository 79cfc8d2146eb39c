"""Appending records: batches, a few in flight, and the same batches again after a leader change.

An idempotent producer gets a producer id and numbers its records, so that the quorum recognises a
batch that it already has: whatever fails in between, each record is in the log once and in order.
Without it a retry may append twice. Knows no files and no terminal.
Source: KIP-98 (idempotent producer): a leader remembers the last five batches of a producer.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from quorumd.client.connection import ClientConnection, SentRequest
from quorumd.client.errors import (
    AppendFailed,
    ClientClosed,
    ConnectionFailed,
    NotSupported,
    QuorumUnavailable,
    RequestRefused,
    error_code,
    only_partition,
)
from quorumd.client.leader import LeaderFinder, RetriableError, check
from quorumd.client.timing import TRY_TIMEOUT_MS, Deadline, RetryBackoff
from quorumd.security.errors import CertificateProblem
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from quorumd.wire.messages.produce import (
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
    ProduceResponse,
)
from quorumd.wire.metadata_topic import PARTITION, TOPIC, TOPIC_ID
from quorumd.wire.records import BATCH_OVERHEAD, Record, build_batch

BATCH_BYTES_DEFAULT = 256 * 1024
WHOLE_BATCH = 1 << 30
"""Bytes: more than any node takes, so that a batch is never split."""
IN_FLIGHT_MAX = 5
"""As many batches as a leader remembers of a producer; it could not recognise older ones as duplicates."""
ACKS_ALL = -1

_GOAL = "append to the log"
_RECORD_OVERHEAD_BYTES = 24
_SEQUENCE_MASK = 0x7FFFFFFF
_TIMESTAMP_END = 1 << 63
"""Exclusive: it has 64 bits in a batch."""


@dataclass(slots=True)
class ProducerIdentity:
    """A producer id with its epoch, and the number of the next record: those before are acknowledged."""

    producer_id: int
    epoch: int
    next_sequence: int = 0


class _Batch:
    """Records that are sent and acknowledged together."""

    __slots__ = ("count", "data", "sent", "times_sent")

    def __init__(self, data: bytes, count: int) -> None:
        self.data = data
        self.count = count
        self.sent: SentRequest | None = None
        self.times_sent = 0
        """Number of times that it may have reached a leader without a response that tells."""


class Producer:
    """A stream of records to the log; `append` them, then `flush`. Not for several tasks at once.

    Made by `QuorumClient.producer`. `timeout_ms` bounds one batch with all its retries. `on_acknowledged`
    is called with the base offset and the record count of each batch, in order. `acknowledged_count`
    records are committed, the last of them at `last_offset` (-1: none yet). After a call that was cancelled
    the next `append` or `flush` goes on.
    """

    def __init__(
        self,
        finder: LeaderFinder,
        *,
        timeout_ms: int,
        idempotent: bool = True,
        codec: int = 0,
        batch_bytes: int = BATCH_BYTES_DEFAULT,
        on_acknowledged: Callable[[int, int], None] | None = None,
        identity: ProducerIdentity | None = None,
    ) -> None:
        self.identity = identity
        """By which a leader knows it, None until that is needed. For another producer once all of this one
        is acknowledged."""
        self.acknowledged_count = 0
        self.last_offset = -1
        self._finder = finder
        self._timeout_ms = timeout_ms
        self._is_idempotent = idempotent
        self._codec = codec
        self._batch_bytes = batch_bytes
        self._on_acknowledged = on_acknowledged
        self._was_sent_again = False
        self._gathered: list[Record] = []
        self._gathered_bytes = BATCH_OVERHEAD
        self._pending: deque[_Batch] = deque()

    async def append(self, record: Record) -> None:
        """Takes one record; sends when a batch is full, and waits while too many are in flight.

        A timestamp of 0 becomes now. Raises AppendFailed; TypeError or ValueError for a record that no batch
        can hold, which is left out.
        """
        size_bytes = _size_bytes(record)
        if self._gathered and self._gathered_bytes + size_bytes > self._batch_bytes:
            await self._seal()
        if not record.timestamp:
            record = record._replace(timestamp=int(time.time() * 1000))
        self._gathered.append(record)
        self._gathered_bytes += size_bytes

    async def flush(self) -> None:
        """Returns when every record is acknowledged. Raises AppendFailed."""
        if self._gathered:
            await self._seal()
        await self._drain(0)

    @property
    def unknown_count(self) -> int:
        """Records that were sent and are not acknowledged yet."""
        return sum(batch.count for batch in self._pending if batch.times_sent)

    async def _seal(self) -> None:
        if self._is_idempotent and self.identity is None:
            self.identity = await self._new_identity()
        identity = self.identity or ProducerIdentity(-1, -1, -1)
        records, self._gathered = self._gathered, []
        self._gathered_bytes = BATCH_OVERHEAD
        data = build_batch(
            records,
            codec=self._codec,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            base_sequence=identity.next_sequence,
        )
        identity.next_sequence = (identity.next_sequence + len(records)) & _SEQUENCE_MASK
        self._pending.append(_Batch(data, len(records)))
        if connection := self._finder.open_connection:
            self._send_pending(connection)
        await self._drain(IN_FLIGHT_MAX)

    async def _new_identity(self) -> ProducerIdentity:
        deadline = Deadline(self._timeout_ms)
        request = InitProducerIdRequest(transactional_id=None)

        async def ask(connection: ClientConnection) -> ProducerIdentity:
            response = await connection.request(
                request, InitProducerIdResponse, timeout_s=deadline.try_s()
            )
            check(_GOAL, response.error_code)
            return ProducerIdentity(response.producer_id, response.producer_epoch)

        try:
            return await self._finder.at_leader(_GOAL, deadline, ask)
        except (QuorumUnavailable, ClientClosed, RequestRefused, NotSupported) as error:
            raise self._failed(str(error)) from error

    @property
    def _in_flight_max(self) -> int:
        # The first batch goes alone: a leader that doesn't know the producer yet would take a later
        # one before it. Without sequence numbers only one at a time keeps the order.
        return IN_FLIGHT_MAX if self._is_idempotent and self.acknowledged_count else 1

    async def _drain(self, limit: int) -> None:
        """Returns when at most `limit` batches are not acknowledged."""
        deadline = Deadline(self._timeout_ms)
        backoff = RetryBackoff()
        while len(self._pending) > limit:
            try:
                connection = await self._finder.connection(_GOAL, deadline)
                try:
                    self._send_pending(connection)
                    await self._take_oldest(connection, deadline)
                    deadline = Deadline(self._timeout_ms)
                    backoff.reset()
                    continue
                except ConnectionFailed as error:
                    self._finder.find_again(connection.address, error)
                except RetriableError as error:
                    self._finder.retry_later(connection.address, error)
                self._send_again()
                await self._finder.pause(_GOAL, deadline, backoff)
            except (QuorumUnavailable, ClientClosed) as error:
                raise self._failed(str(error)) from error
            except CertificateProblem as problem:
                if not self.acknowledged_count and not self.unknown_count:
                    raise
                raise self._failed(str(problem)) from problem
            except (RequestRefused, NotSupported) as error:
                if self._pending and self._pending[0].times_sent == 1:
                    self._pending[0].times_sent = 0
                raise self._failed(str(error)) from error

    def _send_pending(self, connection: ClientConnection) -> None:
        version = connection.version_for(ProduceRequest)
        for index, batch in enumerate(self._pending):
            if index >= self._in_flight_max:
                return
            if batch.sent is None:
                request = produce_request(batch.data, timeout_ms=self._server_timeout_ms)
                try:
                    batch.sent = connection.send(request, version)
                except ConnectionFailed:
                    # `_take_oldest` reports it: sending ahead is only an optimisation.
                    return
                self._was_sent_again = self._was_sent_again or batch.times_sent > 0
                batch.times_sent += 1

    @property
    def _server_timeout_ms(self) -> int:
        # Without sequence numbers a second try could append twice: then one try gets all the time.
        return min(self._timeout_ms, TRY_TIMEOUT_MS) if self._is_idempotent else self._timeout_ms

    async def _take_oldest(self, connection: ClientConnection, deadline: Deadline) -> None:
        batch = self._pending[0]
        sent = batch.sent
        if sent is None:
            raise ConnectionFailed("the connection broke before the records were sent")
        limit_s = min(self._server_timeout_ms / 1000, deadline.remaining_s())
        # Not awaited itself: a caller that is cancelled here would cancel it for the next call, too.
        await asyncio.wait((sent.response,), timeout=limit_s)
        if not sent.response.done():
            raise connection.overdue(
                f"no acknowledgement within {self._server_timeout_ms / 1000:g} s", limit_s
            )
        frame = sent.response.result()
        response = connection.read(frame, sent, ProduceResponse)
        partition = only_partition(topic.partition_responses for topic in response.responses)
        error = error_code(partition.error_code)
        if error is ErrorCode.INVALID_RECORD and partition.record_errors:
            message = partition.record_errors[0].batch_index_error_message
        else:
            message = partition.error_message
        check(_GOAL, error, message=message, response=response, partition=partition)
        self._pending.popleft()
        self.acknowledged_count += batch.count
        self.last_offset = partition.base_offset + batch.count - 1
        if self._on_acknowledged is not None:
            self._on_acknowledged(partition.base_offset, batch.count)

    def _send_again(self) -> None:
        for batch in self._pending:
            batch.sent = None

    def _failed(self, reason: str) -> AppendFailed:
        return AppendFailed(
            reason,
            acknowledged_count=self.acknowledged_count,
            last_offset=self.last_offset,
            unknown_count=self.unknown_count,
            was_sent_again=self._was_sent_again,
        )


def produce_request(batch: bytes, *, timeout_ms: int) -> ProduceRequest:
    """A Produce request with one batch, acknowledged when it is committed."""
    partition = ProduceRequestPartition(index=PARTITION, records=batch)
    topic = ProduceRequestTopic(name=TOPIC, topic_id=TOPIC_ID, partition_data=(partition,))
    return ProduceRequest(
        transactional_id=None, acks=ACKS_ALL, timeout_ms=timeout_ms, topic_data=(topic,)
    )


def _size_bytes(record: Record) -> int:
    """About what the record takes in a batch; never less.

    Raises TypeError or ValueError for one that no batch can hold: it would take those gathered with it along.
    """
    if not isinstance(record, Record):
        kind = type(record).__name__
        raise TypeError(f"a record is of type {kind}: give quorumd.Record, several in a list")
    timestamp = record.timestamp
    if not isinstance(timestamp, int) or not -_TIMESTAMP_END <= timestamp < _TIMESTAMP_END:
        raise ValueError(f"the timestamp of a record is {timestamp!r}: give whole ms since 1970")
    size_bytes = _RECORD_OVERHEAD_BYTES + _length("key", record.key)
    size_bytes += _length("value", record.value)
    if not isinstance(record.headers, tuple | list):
        kind = type(record.headers).__name__
        raise TypeError(f"the headers of a record are of type {kind}: give pairs, ((name, bytes),)")
    for name, value in record.headers:
        encoded = name.encode() if isinstance(name, str) else name
        if encoded is None:
            raise TypeError("the name of a header is None: give text")
        size_bytes += 10 + _length("header name", encoded) + _length("header", value)
    return size_bytes


def _length(what: str, data: object) -> int:
    if data is None:
        return 0
    if isinstance(data, bytes | bytearray):
        return len(data)
    if isinstance(data, memoryview) and data.c_contiguous and data.nbytes == len(data):
        return data.nbytes
    advice = "bytes, such as text.encode()" if isinstance(data, str) else "bytes"
    raise TypeError(f"the {what} of a record is of type {type(data).__name__}: give {advice}")
