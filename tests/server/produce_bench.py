"""A Produce handler with a clock, an event loop and connections that a test turns by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from quorumd.raft.effects import AppendClient
from quorumd.raft.types import Endpoint
from quorumd.server.model.metrics import Metrics
from quorumd.server.model.producer_state import ProducerState
from quorumd.server.model.runtime import Runtime
from quorumd.server.model.topic import METADATA
from quorumd.server.net.connection_state import CloseReason
from quorumd.server.net.inbound_request import InboundRequest, Steps
from quorumd.server.requests.produce import ProduceHandler
from quorumd.wire.codec import decode, encode
from quorumd.wire.headers import decode_response_header
from quorumd.wire.messages.produce import (
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
    ProduceResponse,
    ProduceResponsePartition,
)
from tests.support.asking import TOPIC, InMemoryPartition, batch

PRODUCE = 0
NS = 1_000_000_000


class Alarm:
    def __init__(self, at: float, act: Callable[[], None]) -> None:
        self.at = at
        self.act = act
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Clock:
    """The part of a runtime that Produce uses."""

    def __init__(self) -> None:
        self.now = 0.0
        self.alarms: list[Alarm] = []

    def monotonic_s(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return 1_700_000_000_000

    def call_at(self, when: float, act: Callable[[], None]) -> Alarm:
        self.alarms.append(Alarm(when, act))
        return self.alarms[-1]

    def move_to(self, now: float) -> None:
        """Those alarms that are due by then go off, all at that time."""
        self.now = now
        due = [alarm for alarm in self.alarms if alarm.at <= now and not alarm.is_cancelled]
        self.alarms = [alarm for alarm in self.alarms if alarm not in due]
        for alarm in due:
            alarm.act()


class Connection:
    """What was sent, in order: (correlation id, answer), or why it was closed instead."""

    listener = Endpoint("PLAINTEXT", "127.0.0.1", 0)
    peer = "a test"
    client_software_name = client_software_version = ""
    in_flight_bytes = 0
    is_open = True

    def __init__(self) -> None:
        self.sent: list[tuple[int, Any]] = []

    def send(self, request: InboundRequest, buffers: Sequence[bytes | memoryview]) -> None:
        frame = b"".join(buffers)
        if not frame:
            self.sent.append((request.correlation_id, None))
            return
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        number, body_at = decode_response_header(PRODUCE, request.api_version, frame[4:])
        assert number == request.correlation_id
        answer = decode(ProduceResponse, request.api_version, frame[4:], body_at)
        self.sent.append((number, answer))

    def close_behind(self, request: InboundRequest, closed: CloseReason, reason: str) -> None:
        self.sent.append((request.correlation_id, reason))

    def close(self, closed: CloseReason, reason: str) -> None:
        raise AssertionError(reason)


class Leader(InMemoryPartition):
    """A partition that may take batches later than it was asked to append them, or commit at once."""

    is_late = False
    commits_at_once = False

    def append(self, token: int, record_count: int) -> None:
        if not self.is_late:
            super().append(token, record_count)
            if self.commits_at_once:
                self.commit(self.log_end_offset)
            return
        base = self.log_end_offset
        self.log_end_offset = base + record_count
        effect = AppendClient(write=1, base_offset=base, epoch=self.leader_epoch, token=token)
        self.late.append(effect)

    @property
    def late(self) -> list[AppendClient]:
        return self.__dict__.setdefault("_late", [])

    def take_late(self) -> None:
        assert self.produce is not None
        self.chunks += [self.produce.take_batches(effect) for effect in self.late]
        self.late.clear()


class ProduceBench:
    """`send` dispatches a request; `come_round` lets the event loop do so once, `end_turn` until nothing is
    left to do."""

    def __init__(self, **settings: Any) -> None:
        self.clock = Clock()
        self.metrics = Metrics()
        self.producers = ProducerState()
        self.partition = Leader(**settings)
        self.connection = Connection()
        self.soon: list[Callable[[], None]] = []
        self._correlation_id = 0
        self.handler = ProduceHandler(
            self.partition,
            self.partition,
            self.producers,
            self.metrics,
            1 << 20,
            cast(Runtime, self.clock),
            self.soon.append,
        )
        self.partition.produce = self.handler

    @property
    def commits(self) -> tuple[int, float]:
        """How many batches were measured from append to commit, and the seconds of them all."""
        return self.metrics.commit_seconds.count, self.metrics.commit_seconds.sum

    def begin(self, message: ProduceRequest, version: int = 9) -> Steps | None:
        """Dispatch it; returns what is left of it."""
        self._correlation_id += 1
        body = encode(message, version)
        received_ns = int(self.clock.now * NS)
        request = InboundRequest(
            cast(Any, self.connection),
            PRODUCE,
            version,
            self._correlation_id,
            body,
            0,
            received_ns,
        )
        return self.handler.handle(request)

    def send(self, message: ProduceRequest, version: int = 9) -> int:
        """Dispatch all of it; returns its number, from 1."""
        for _ in self.begin(message, version) or ():
            pass
        return self._correlation_id

    def come_round(self) -> None:
        soon, self.soon[:] = list(self.soon), []
        for act in soon:
            act()

    def end_turn(self) -> None:
        while self.soon:
            self.come_round()

    def append(self, message: ProduceRequest, version: int = 9) -> int:
        """Dispatch it, in a turn of its own."""
        number = self.send(message, version)
        self.end_turn()
        return number

    def answers(self) -> list[tuple[int, Any]]:
        """What was sent since the last call."""
        sent, self.connection.sent = self.connection.sent, []
        return sent

    def rows(self) -> list[tuple[int, int, int]]:
        """The same as (number, error code, base offset), one for each partition."""
        return [
            (number, row.error_code, row.base_offset)
            for number, answer in self.answers()
            for row in rows_of(answer)
        ]


def rows_of(answer: ProduceResponse) -> list[ProduceResponsePartition]:
    return [row for topic in answer.responses for row in topic.partition_responses]


def produce(
    *records: bytes | None,
    acks: int = -1,
    timeout_ms: int = 5_000,
    version: int = 9,
    index: int = 0,
    topic: str = TOPIC,
    transactional_id: str | None = None,
    is_general: bool = False,
) -> ProduceRequest:
    """These batches, each for the partition. One alone goes the fast way unless `is_general`."""
    rows = tuple(ProduceRequestPartition(index=index, records=data) for data in records)

    def named(rows: tuple[ProduceRequestPartition, ...]) -> ProduceRequestTopic:
        if version >= 13:
            return ProduceRequestTopic(topic_id=METADATA.topic_id, partition_data=rows)
        return ProduceRequestTopic(name=topic, partition_data=rows)

    topics = (named(rows), named(())) if is_general else (named(rows),)
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=topics,
    )


def of(producer_id: int, sequence: int, count: int = 1) -> bytes:
    """A batch of a producer in its epoch 0."""
    return batch(count, producer=(producer_id, 0, sequence))
