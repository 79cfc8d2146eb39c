"""Contenders append if unchanged: few keys, which producers write, too, and each other's.

An idempotent one repeats a batch until it is acknowledged or refused, and begins a new epoch after a refusal,
as Kafka's clients do. A plain one goes on after any error; at times it sends two batches in one request.
Some of what they write has no condition, but is compressed: its keys count as well.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from random import Random
from typing import Final

from quorumd.wire.batch_header import read_header
from quorumd.wire.conditions import IF_UNCHANGED_SINCE, NAMED_KEY
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
from simulation.checkers.conditions import NAME, check_refusal
from simulation.clients.client import Client
from simulation.clients.producer import FIRST_TIMESTAMP_MS, PRODUCE, PRODUCE_VERSION
from simulation.cluster import Cluster
from simulation.history.appends import Append, Refusal, Wanted
from simulation.history.replica import identity_of
from simulation.scheduler import MS
from simulation.violation import Violation

GZIP: Final = 1
_CONFLICT: Final = re.compile(
    r"(Record|Named key) (\d+) conflicts: its key was written at offset (\d+),"
)
_READ_AGAIN: Final = re.compile(r"Read again from offset (\d+): ")


@dataclass(slots=True)
class _Attempt:
    append: Append
    data: bytes
    keys: list[bytes]
    """Of its records."""
    named: list[bytes]


class Contender(Client):
    """See the module's docstring."""

    def __init__(self, cluster: Cluster, name: str, random: Random, number: int) -> None:
        super().__init__(cluster, name, random)
        self.is_idempotent = number % 2 == 0
        self.producer_id = 2_000 + number if self.is_idempotent else -1
        self.producer_epoch = 0 if self.is_idempotent else -1
        self.sequence = 0 if self.is_idempotent else -1
        self._read_from: int | None = None
        """The offset of the last refusal: to read again from there."""
        self._attempts: list[_Attempt] = []

    def start(self) -> None:
        """Begin with the first attempt, after a pause."""
        self._next()

    def _next(self) -> None:
        pause_us = self.env.settings.pause_between_appends_us
        self.later(self.random.randrange(2 * pause_us), self._begin)

    def _begin(self) -> None:
        if self.is_stopping:
            return
        self._attempts = [self._make()]
        if not self.is_idempotent and self.random.random() < 0.4:
            self._attempts.append(self._make())
        self._send()

    # -- batches

    def _make(self) -> _Attempt:
        env, random = self.env, self.random
        timestamp = FIRST_TIMESTAMP_MS + len(env.facts.appends) + 1
        keys = [self._key() for _ in range(random.choice([1, 1, 2]))]
        named = [self._key() for _ in range(random.choice([0, 0, 1]))]
        since = None if random.random() < 0.2 else self._since()
        headers: tuple[tuple[str, bytes], ...] = ()
        if since is not None:
            headers = ((IF_UNCHANGED_SINCE, b"%d" % since), *((NAMED_KEY, key) for key in named))
        values = [random.choice([None, b"%d" % timestamp, b"%d" % timestamp]) for _ in keys]
        records = [
            Record(i, timestamp, key, value, () if i else headers)
            for i, (key, value) in enumerate(zip(keys, values, strict=True))
        ]
        data = build_batch(
            records,
            codec=GZIP if since is None or random.random() < 0.2 else 0,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=self.sequence,
        )
        identity = identity_of(read_header(data))
        append = Append(self.name, identity, len(records), self.is_idempotent, env.scheduler.now_us)
        if since is not None:
            append.wanted = Wanted(since, (*keys, *named))
        env.facts.appends.append(append)
        env.facts.records[identity] = records
        return _Attempt(append, data, keys, named)

    def _key(self) -> bytes:
        """One that only contenders write, or one of the producers'."""
        random = self.random
        return (
            b"both%d" % random.randrange(3)
            if random.random() < 0.7
            else b"key%d" % random.randrange(20)
        )

    def _since(self) -> int:
        """Up to where a reader may have read by now."""
        read_from, self._read_from = self._read_from, None
        if read_from is not None:
            return read_from
        end_offset = self.env.facts.committed_end_offset
        return max(end_offset - self.random.choice([0, 0, 0, 1, 2, 5, 20, 60]), 0)

    # -- requests

    def _send(self) -> None:
        rows = tuple(ProduceRequestPartition(index=0, records=each.data) for each in self._attempts)
        message = ProduceRequest(
            acks=-1,
            timeout_ms=self.random.choice([100, 1000]),
            topic_data=(ProduceRequestTopic(name=TOPIC, partition_data=rows),),
        )
        self.ask(
            PRODUCE,
            PRODUCE_VERSION,
            message,
            self._on_response,
            self._on_failure,
            is_repeatable=self.is_idempotent,
        )

    def _on_response(self, frame: bytes) -> None:
        response = self.decode_response(ProduceResponse, PRODUCE, PRODUCE_VERSION, frame)
        rows = response.responses[0].partition_responses
        is_final = True
        for attempt, row in zip(self._attempts, rows, strict=True):
            is_final = self._take(attempt, row) and is_final
        if is_final or not self.is_idempotent:
            self._next()
        else:
            self.later(self.random.randrange(5 * MS, 60 * MS), self._send)

    def _take(self, attempt: _Attempt, row: ProduceResponsePartition) -> bool:
        """True if it is known what became of it."""
        env, append, error = self.env, attempt.append, ErrorCode(row.error_code)
        if error is ErrorCode.NONE:
            assert self.served is not None, "a response was given by a node"
            append.acknowledged_us, append.offset = env.scheduler.now_us, row.base_offset
            env.observer.on_acknowledged(append, self.served)
            if append.wanted is not None:
                env.coverage.count("condition", "client", "met")
            if self.is_idempotent:
                self.sequence += append.record_count
            return True
        if error is ErrorCode.INVALID_RECORD:
            self._take_refusal(attempt, row)
            return True
        self.change_target(row.current_leader.leader_id)
        return False

    def _take_refusal(self, attempt: _Attempt, row: ProduceResponsePartition) -> None:
        env, append = self.env, attempt.append
        text = row.error_message or ""
        conflict, again = _CONFLICT.match(text), _READ_AGAIN.match(text)
        if append.wanted is None or (conflict is None and again is None):
            raise Violation(NAME, f"{self.name}, {append} is refused: {text}")
        if conflict is not None:
            where, index, offset = conflict.groups()
            key = (attempt.keys if where == "Record" else attempt.named)[int(index)]
            append.refusal = Refusal(env.scheduler.now_us, key, int(offset))
            env.coverage.count("condition", "client", "conflict")
        elif again is not None:
            self._read_from = int(again[1])
            append.refusal = Refusal(env.scheduler.now_us, None, self._read_from)
            env.coverage.count("condition", "client", "read again")
        check_refusal(env.facts, append)
        if self.is_idempotent:
            self.producer_epoch, self.sequence = self.producer_epoch + 1, 0

    def _on_failure(self) -> None:
        self.change_target()
        if self.is_idempotent:
            self.later(self.random.randrange(5 * MS, 60 * MS), self._send)
        else:
            self._next()
