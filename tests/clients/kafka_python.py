"""kafka-python as a Client."""

from __future__ import annotations

import time
import warnings

from tests.clients.interface import (
    CLIENT_BYTES_MAX,
    EARLIEST,
    LATEST,
    READ_S,
    Consumed,
    Consumer,
    Outcomes,
    Producer,
    Settings,
    Start,
    Timestamp,
)
from tests.support.live_cluster import TOPIC

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its own files in an old way
    import kafka
    from kafka.admin import KafkaAdminClient
    from kafka.errors import KafkaError as KafkaPythonError

__all__ = ["KafkaAdminClient", "KafkaPython", "KafkaPythonError"]


class KafkaPythonProducer:
    """kafka.KafkaProducer."""

    def __init__(
        self, servers: str, more: Settings, *, idempotent: bool, codec: str | None
    ) -> None:
        self._outcomes = Outcomes()
        self._producer = kafka.KafkaProducer(
            bootstrap_servers=servers,
            acks="all",
            enable_idempotence=idempotent,
            compression_type=codec,
            max_request_size=CLIENT_BYTES_MAX,
            **more,
        )

    def send(
        self,
        value: bytes,
        *,
        key: bytes | None = None,
        timestamp_ms: int | None = None,
        headers: tuple[tuple[str, bytes], ...] = (),
    ) -> None:
        index, note = self._outcomes.next_index(), self._outcomes.note
        future = self._producer.send(
            TOPIC, value, key=key, partition=0, timestamp_ms=timestamp_ms, headers=list(headers)
        )
        future.add_callback(lambda metadata: note(index, metadata.offset))
        future.add_errback(lambda error: note(index, error))

    def finish(self) -> list[int | Exception]:
        try:
            return self._outcomes.all()
        finally:
            self._producer.close(timeout=5)


class KafkaPythonConsumer:
    """kafka.KafkaConsumer."""

    def __init__(self, servers: str, more: Settings, start: Start) -> None:
        self._consumer = kafka.KafkaConsumer(bootstrap_servers=servers, group_id=None, **more)
        partition = kafka.TopicPartition(TOPIC, 0)
        self._consumer.assign([partition])
        if start == EARLIEST:
            self._consumer.seek_to_beginning(partition)
        elif start == LATEST:
            self._consumer.seek_to_end(partition)
        elif isinstance(start, Timestamp):
            found = self._consumer.offsets_for_times({partition: start.ms})[partition]
            self._consumer.seek(partition, found.offset)
        else:
            self._consumer.seek(partition, start)
        self._consumer.position(partition)

    def read(self, count: int) -> list[Consumed]:
        found: list[Consumed] = []
        deadline = time.monotonic() + READ_S
        while len(found) < count and time.monotonic() < deadline:
            for batch in self._consumer.poll(200, max_records=count - len(found)).values():
                found += [
                    Consumed(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in batch
                ]
        return found

    def close(self) -> None:
        self._consumer.close()


class KafkaPython:
    """kafka-python."""

    def __init__(self, more: Settings | None = None) -> None:
        """`more` are settings of the library, in its own words."""
        self._more = more or {}

    def producer(
        self, servers: str, *, idempotent: bool = False, codec: str | None = None
    ) -> Producer:
        return KafkaPythonProducer(servers, self._more, idempotent=idempotent, codec=codec)

    def consumer(self, servers: str, start: Start) -> Consumer:
        return KafkaPythonConsumer(servers, self._more, start)

    def join_group(self, servers: str) -> None:
        consumer = kafka.KafkaConsumer(TOPIC, bootstrap_servers=servers, group_id="readers")
        try:
            consumer.poll(READ_S * 1000)
        finally:
            consumer.close(autocommit=False)

    def begin_transactions(self, servers: str) -> None:
        producer = kafka.KafkaProducer(bootstrap_servers=servers, transactional_id="writer")
        try:
            producer.init_transactions()
        finally:
            producer.close(timeout=1)
