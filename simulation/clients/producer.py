"""Producers, idempotent and plain, with one batch under way each.

An idempotent one repeats its batch until it is acknowledged; a plain one goes on to the next after any
error, not knowing what became of the last.
"""

from __future__ import annotations

from random import Random

from quorumd.wire.batch_header import read_header
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.produce import (
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
    ProduceResponse,
)
from quorumd.wire.metadata_topic import TOPIC
from quorumd.wire.records import Record, build_batch
from simulation.clients.client import Client
from simulation.cluster import Cluster
from simulation.history.appends import Append
from simulation.history.replica import Identity
from simulation.scheduler import MS
from simulation.violation import Violation

PRODUCE, PRODUCE_VERSION = 0, 12
FIRST_TIMESTAMP_MS = 1_699_999_000_000
"""Timestamps count up from here: one for each batch, so that no two batches are equal."""
RECORDS_MAX = 5
"""In a batch."""
IMPOSSIBLE_REFUSALS = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TIMESTAMP,
    }
)
"""What an idempotent producer that does everything right must never hear."""


class Producer(Client):
    def __init__(self, cluster: Cluster, name: str, random: Random, number: int) -> None:
        super().__init__(cluster, name, random)
        self.is_idempotent = number % 2 == 0
        self.producer_id = 1_000 + number if self.is_idempotent else -1
        self.sequence = 0
        self._batch = b""
        self._append: Append | None = None

    def start(self) -> None:
        self._next()

    def _next(self) -> None:
        self._append = None
        if self.is_stopping:
            return
        pause_us = self.env.settings.pause_between_appends_us
        self.later(self.random.randrange(2 * pause_us), self._begin)

    def _begin(self) -> None:
        if self.is_stopping:
            return
        env, random = self.env, self.random
        timestamp = FIRST_TIMESTAMP_MS + len(env.facts.appends) + 1
        count = random.choice([1, 1, 1, 2, RECORDS_MAX])
        records = [Record(i, timestamp, *self._key_and_value(), ()) for i in range(count)]
        self._batch = build_batch(
            records,
            producer_id=self.producer_id,
            producer_epoch=0 if self.is_idempotent else -1,
            base_sequence=self.sequence if self.is_idempotent else -1,
        )
        header = read_header(self._batch)
        identity = Identity(
            header.crc, header.base_timestamp, header.producer_id, header.base_sequence
        )
        self._append = Append(self.name, identity, count, self.is_idempotent, env.scheduler.now_us)
        env.facts.appends.append(self._append)
        env.facts.records[identity] = records
        self._send()

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

    def _send(self) -> None:
        partition = ProduceRequestPartition(index=0, records=self._batch)
        message = ProduceRequest(
            acks=-1,
            timeout_ms=self.random.choice([100, 1000]),
            topic_data=(ProduceRequestTopic(name=TOPIC, partition_data=(partition,)),),
        )
        self.ask(
            PRODUCE,
            PRODUCE_VERSION,
            message,
            self._on_answer,
            self._on_failure,
            is_repeatable=self.is_idempotent,
        )

    def _on_answer(self, frame: bytes) -> None:
        answer = self.decode_answer(ProduceResponse, PRODUCE, PRODUCE_VERSION, frame)
        found = answer.responses[0].partition_responses[0]
        assert self._append is not None, "an answer answers an append"
        if found.error_code == ErrorCode.NONE:
            self._append.acknowledged_us = self.env.scheduler.now_us
            self._append.offset = found.base_offset
            self.env.observer.on_acknowledged(self._append)
            self.sequence += self._append.record_count
            self._next()
            return
        error = ErrorCode(found.error_code)
        self.on_refused(self._append, error, found.error_message)
        self.change_target(found.current_leader.leader_id)
        self._again()

    def on_refused(self, append: Append, error: ErrorCode, message: str | None) -> None:
        """A leader that is deposed and does not know it yet may speak of sequences that it has missed."""
        leader = self.cluster.leader_machine()
        is_current = leader is not None and leader.host == self.target
        if append.is_idempotent and is_current and error in IMPOSSIBLE_REFUSALS:
            raise Violation(
                "an idempotent producer is not refused",
                f"{append.client}, batch {append.identity}: {error.name}, {message}",
            )

    def _on_failure(self) -> None:
        self.change_target()
        self._again()

    def _again(self) -> None:
        if self.is_idempotent:
            self.later(self.random.randrange(5 * MS, 60 * MS), self._send)
        else:
            self._next()
