"""Producers, idempotent and plain, with several batches under way on one connection.

An idempotent one repeats its batches, in order and one at a time, until they are acknowledged, as Kafka's
does; a plain one goes on to the next after any error, not knowing what became of those before. At times an
idempotent one begins a new epoch, and may give up what was under way; then a zombie still writes in its old
epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

from quorumd.wire.batch_header import read_header
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.produce import (
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
    ProduceResponse,
    ProduceResponsePartition,
)
from quorumd.wire.metadata_topic import TOPIC
from quorumd.wire.records import Record, build_batch
from simulation.clients.client import Client
from simulation.clients.pipeline import Pipeline
from simulation.cluster import Cluster
from simulation.history.appends import Append
from simulation.history.replica import identity_of
from simulation.history.served import Served
from simulation.scheduler import MS
from simulation.violation import Violation

PRODUCE, PRODUCE_VERSION = 0, 12
FIRST_TIMESTAMP_MS = 1_699_999_000_000
"""Timestamps count up from here: one for each batch, so that no two batches are equal."""
RECORDS_MAX = 5
"""In a batch."""
NEW_EPOCH_RATE = 0.05
"""Part of its batches before which an idempotent producer begins a new epoch."""
IMPOSSIBLE_REFUSALS = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TIMESTAMP,
    }
)
"""Errors that an idempotent producer that does everything right must never get."""


@dataclass(slots=True)
class Batch:
    """A batch that is not acknowledged yet."""

    append: Append
    data: bytes
    is_sent: bool = False


class Producer(Client):
    """See the module's docstring."""

    def __init__(self, cluster: Cluster, name: str, random: Random, number: int) -> None:
        super().__init__(cluster, name, random)
        self.is_idempotent = number % 2 == 0
        self.producer_id = 1_000 + number if self.is_idempotent else -1
        self.producer_epoch = 0 if self.is_idempotent else -1
        self.sequence = 0 if self.is_idempotent else -1
        """Sequence number of the next record."""
        self._waiting: list[Batch] = []
        """In the order of their sequences."""
        self._zombie: Batch | None = None
        """A batch of the epoch before, to be sent when one of this epoch is acknowledged."""
        self._pipeline: Pipeline | None = None
        self._is_repeating = False
        """Just one batch is under way, until all are acknowledged that were when something failed."""
        self._is_due = False
        """More batches are about to be made."""
        self._is_known = False
        """A batch has been acknowledged. Before, the second of two may be taken for the first: whom a
        quorum does not know may begin at any sequence, as with Kafka."""

    def start(self) -> None:
        self._next()

    def _next(self) -> None:
        if not self._is_due:
            self._is_due = True
            pause_us = self.env.settings.pause_between_appends_us
            self.later(self.random.randrange(2 * pause_us), self._begin)

    def _begin(self) -> None:
        self._is_due = False
        if self.is_stopping:
            return
        if self.is_idempotent and self.sequence and self.random.random() < NEW_EPOCH_RATE:
            self._begin_epoch()
        limit = self.env.settings.in_flight_max
        if self.is_idempotent and not self._is_known:
            limit = 1
        room = limit - len(self._waiting)
        for _ in range(self.random.randint(1, room) if room > 0 else 0):
            self._waiting.append(self._make())
        self._send()

    def _begin_epoch(self) -> None:
        """As after an error that ends it: what is under way is given up. Source: KIP-360."""
        if self._waiting and self.random.random() < 0.5:
            return
        for batch in self._waiting:
            batch.append.is_given_up = True
        self._waiting.clear()
        if self._zombie is None:
            self._zombie = self._make()
            self._zombie.append.is_given_up = True
        if self._pipeline is not None:
            self._pipeline.close()
        self._pipeline, self._is_repeating = None, False
        self.producer_epoch += 1
        self.sequence = 0

    def _make(self) -> Batch:
        env, random = self.env, self.random
        timestamp = FIRST_TIMESTAMP_MS + len(env.facts.appends) + 1
        count = random.choice([1, 1, 1, 2, RECORDS_MAX])
        records = [Record(i, timestamp, *self._key_and_value(), ()) for i in range(count)]
        data = build_batch(
            records,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=self.sequence,
        )
        if self.is_idempotent:
            self.sequence += count
        identity = identity_of(read_header(data))
        append = Append(self.name, identity, count, self.is_idempotent, env.scheduler.now_us)
        env.facts.appends.append(append)
        env.facts.records[identity] = records
        return Batch(append, data)

    def _key_and_value(self) -> tuple[bytes | None, bytes | None]:
        random = self.random
        size = random.randint(0, self.env.settings.values_bytes_max // RECORDS_MAX)
        value = random.randbytes(size)
        match random.randrange(10):
            case 0:
                return None, value
            case 1 | 2:
                return b"key%d" % random.randrange(20), None
            case _:
                return b"key%d" % random.randrange(20), value

    # -- sending

    def _send(self) -> None:
        """All that is not under way; just the first batch, if it is a repetition."""
        if self._pipeline is None:
            pipeline = Pipeline(
                self.cluster, self.name, self.target, lambda: self._on_broken(pipeline)
            )
            self._pipeline = pipeline
        for batch in self._waiting[:1] if self._is_repeating else self._waiting:
            if not batch.is_sent:
                batch.is_sent = True
                self._send_on(self._pipeline, batch, partial(self._on_response, self._pipeline))
        in_flight = sum(batch.is_sent for batch in self._waiting)
        if in_flight > 1:
            self.env.coverage.count("batches in flight", "client", str(in_flight))

    def _send_on(
        self, pipeline: Pipeline, batch: Batch, on_response: Callable[[Batch, bytes, Served], None]
    ) -> None:
        partition = ProduceRequestPartition(index=0, records=batch.data)
        message = ProduceRequest(
            acks=-1,
            timeout_ms=self.random.choice([100, 1000]),
            topic_data=(ProduceRequestTopic(name=TOPIC, partition_data=(partition,)),),
        )
        pipeline.send(
            PRODUCE,
            PRODUCE_VERSION,
            message,
            partial(on_response, batch),
            is_repeatable=self.is_idempotent,
        )

    def _send_zombie(self) -> None:
        """Sends a batch of an old epoch, from another process, on another connection."""
        batch, self._zombie = self._zombie, None
        if batch is None:
            return
        batch.append.invoked_us = self.env.scheduler.now_us
        batch.append.is_fenced = True
        self.env.coverage.count("fenced producer", "client", "Produce")
        pipeline = Pipeline(self.cluster, f"{self.name}z", self.target, lambda: None)
        self._send_on(pipeline, batch, self._on_zombie_response)

    # -- responses

    def _on_response(self, pipeline: Pipeline, batch: Batch, frame: bytes, served: Served) -> None:
        if pipeline is not self._pipeline:
            return
        error, found = self._decoded(frame)
        if error is ErrorCode.NONE:
            self._acknowledge(batch, found.base_offset, served)
            return
        if batch is self._waiting[0]:
            self.on_refused(batch.append, error, found.error_message)
        self.change_target(found.current_leader.leader_id)
        self._fail(pipeline)

    @staticmethod
    def _decoded(frame: bytes) -> tuple[ErrorCode, ProduceResponsePartition]:
        response = Client.decode_response(ProduceResponse, PRODUCE, PRODUCE_VERSION, frame)
        found = response.responses[0].partition_responses[0]
        return ErrorCode(found.error_code), found

    def _acknowledge(self, batch: Batch, offset: int, served: Served) -> None:
        append = batch.append
        append.acknowledged_us = self.env.scheduler.now_us
        append.offset = offset
        self._is_known = True
        self.env.observer.on_acknowledged(append, served)
        self._waiting.remove(batch)
        self._is_repeating = self._is_repeating and bool(self._waiting)
        self._send_zombie()
        self._send()
        self._next()

    def _on_zombie_response(self, batch: Batch, frame: bytes, served: Served) -> None:
        error, _ = self._decoded(frame)
        self.env.coverage.count("fenced producer", served.left.role, error.name)
        if error is ErrorCode.NONE:
            raise Violation(
                "a fenced producer appends nothing",
                f"{self.name}: the batch {batch.append.identity} is acknowledged by"
                f" {served.left.key}, and an epoch later than its own has been",
            )

    def on_refused(self, append: Append, error: ErrorCode, message: str | None) -> None:
        """A leader that is deposed and does not know it yet may speak of sequences that it has missed."""
        leader = self.cluster.leader_machine()
        is_current = leader is not None and leader.host == self.target
        if append.is_idempotent and is_current and error in IMPOSSIBLE_REFUSALS:
            raise Violation(
                "an idempotent producer is not refused",
                f"{append.client}, batch {append.identity}: {error.name}, {message}",
            )

    def _on_broken(self, pipeline: Pipeline) -> None:
        if pipeline is self._pipeline:
            self.change_target()
        self._fail(pipeline)

    def _fail(self, pipeline: Pipeline) -> None:
        """Something was lost or refused: what is under way is not known any more."""
        if pipeline is not self._pipeline:
            return
        pipeline.close()
        self._pipeline = None
        if not self.is_idempotent:
            self._waiting.clear()
            self._next()
            return
        self._is_repeating = True
        for batch in self._waiting:
            batch.is_sent = False
        self.later(self.random.randrange(5 * MS, 60 * MS), self._send)
