"""Conditional appends by Kafka's clients, with bare headers: records that are one batch, and wait for it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import confluent_kafka

from quorumd.wire.error_codes import ErrorCode
from tests.clients.kafka_python import kafka
from tests.support.live_cluster import TOPIC

ANSWER_S = 60.0
LINGER_MS = 10_000
"""Nothing is sent before a flush."""
SINCE = "quorumd.if-unchanged-since"
NAMED = "quorumd.key"
REFUSED = -1
UNKNOWN = -2

Pair = tuple[bytes, bytes]

# Each refused connection is an error there, and a kept log line keeps its traceback and the socket in it.
logging.getLogger("kafka").setLevel(logging.CRITICAL)


class Write(Protocol):
    """Writes one batch: keys and values, the offset of the condition, further keys that must be unchanged.

    Returns the last record's offset, REFUSED or UNKNOWN.
    """

    def __call__(self, pairs: Sequence[Pair], since: int, named: Iterable[bytes] = ()) -> int: ...


class Library(Protocol):
    """A client of a quorum, ready to write."""

    def __call__(self, servers: str) -> AbstractContextManager[Write]: ...


@contextmanager
def by_kafka_python(servers: str) -> Iterator[Write]:
    # An idempotent producer of kafka-python is of no use after its first refusal, which it takes for fatal.
    # One that does not repeat anything needs no sequence numbers: what is not answered is not known.
    producer = kafka.KafkaProducer(
        bootstrap_servers=servers,
        acks="all",
        enable_idempotence=False,
        retries=0,
        linger_ms=LINGER_MS,
        compression_type="gzip",
    )

    def write(pairs: Sequence[Pair], since: int, named: Iterable[bytes] = ()) -> int:
        try:
            for key, value, headers in _with_headers(pairs, since, named):
                future = producer.send(TOPIC, value, key=key, partition=0, headers=headers)
            producer.flush(ANSWER_S)
            return int(future.get(ANSWER_S).offset)
        except kafka.errors.KafkaError as error:
            return REFUSED if getattr(error, "errno", None) == ErrorCode.INVALID_RECORD else UNKNOWN

    try:
        yield write
    finally:
        producer.close(timeout=5)


@contextmanager
def by_librdkafka(servers: str) -> Iterator[Write]:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": LINGER_MS}
    )

    def write(pairs: Sequence[Pair], since: int, named: Iterable[bytes] = ()) -> int:
        outcomes: list[int] = []

        def delivered(error: Any, message: confluent_kafka.Message) -> None:
            if error is None:
                outcomes.append(message.offset())
            else:
                is_refused = error.code() == ErrorCode.INVALID_RECORD
                outcomes.append(REFUSED if is_refused else UNKNOWN)

        for key, value, headers in _with_headers(pairs, since, named):
            producer.produce(
                TOPIC, value, key=key, partition=0, headers=headers, on_delivery=delivered
            )
        producer.flush(ANSWER_S)
        if len(outcomes) < len(pairs):
            return UNKNOWN
        return max(outcomes) if min(outcomes) >= 0 else min(outcomes)

    yield write


def _with_headers(
    pairs: Sequence[Pair], since: int, named: Iterable[bytes]
) -> Iterator[tuple[bytes, bytes, list[tuple[str, bytes]]]]:
    headers = [(SINCE, b"%d" % since), *((NAMED, key) for key in named)]
    for key, value in pairs:
        yield key, value, headers
        headers = []
