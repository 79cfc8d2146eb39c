"""librdkafka, by confluent-kafka, as a Client."""

from __future__ import annotations

import threading
import time
from typing import Any

import confluent_kafka

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


class LibrdkafkaProducer:
    """confluent_kafka.Producer; a thread of its own asks for what was delivered."""

    def __init__(
        self, servers: str, more: Settings, *, idempotent: bool, codec: str | None
    ) -> None:
        self._outcomes = Outcomes()
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": servers,
                "enable.idempotence": idempotent,
                "compression.type": codec or "none",
                "message.max.bytes": CLIENT_BYTES_MAX,
                "linger.ms": 1,
                **more,
            }
        )
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()

    def _poll(self) -> None:
        while not self._is_over.is_set():
            self._producer.poll(0.05)

    def send(
        self,
        value: bytes,
        *,
        key: bytes | None = None,
        timestamp_ms: int | None = None,
        headers: tuple[tuple[str, bytes], ...] = (),
    ) -> None:
        index = self._outcomes.next_index()

        def delivered(error: Any, message: confluent_kafka.Message) -> None:
            failed = None if error is None else confluent_kafka.KafkaException(error)
            self._outcomes.note(index, failed or message.offset())

        self._producer.produce(
            TOPIC,
            value,
            key=key,
            partition=0,
            timestamp=timestamp_ms or 0,
            headers=list(headers),
            on_delivery=delivered,
        )

    def finish(self) -> list[int | Exception]:
        try:
            return self._outcomes.all()
        finally:
            self._is_over.set()
            self._thread.join()


class LibrdkafkaConsumer:
    """confluent_kafka.Consumer, by assign()."""

    def __init__(self, servers: str, more: Settings, start: Start) -> None:
        self.group_errors = 0
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "compulsory, but not used",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                **more,
            }
        )
        named = {EARLIEST: confluent_kafka.OFFSET_BEGINNING, LATEST: confluent_kafka.OFFSET_END}
        if isinstance(start, Timestamp):
            asked = confluent_kafka.TopicPartition(TOPIC, 0, start.ms)
            (partition,) = self._consumer.offsets_for_times([asked], READ_S)
        else:
            offset = named[start] if isinstance(start, str) else start
            partition = confluent_kafka.TopicPartition(TOPIC, 0, offset)
        self._consumer.assign([partition])
        if start == LATEST:
            self._wait_for_the_end()

    def _wait_for_the_end(self) -> None:
        deadline = time.monotonic() + READ_S
        while time.monotonic() < deadline:
            message = self._consumer.poll(0.2)
            if message is not None and self._is_at_end(message.error()):
                return
        raise AssertionError("the end was not reached in time")

    def read(self, count: int) -> list[Consumed]:
        found: list[Consumed] = []
        deadline = time.monotonic() + READ_S
        while len(found) < count and time.monotonic() < deadline:
            for message in self._consumer.consume(count - len(found), 0.2):
                if error := message.error():
                    self._is_at_end(error)
                    continue
                found.append(
                    Consumed(
                        message.offset(),
                        message.timestamp()[1],
                        message.key(),
                        message.value(),
                        tuple(message.headers() or ()),
                    )
                )
        return found

    def _is_at_end(self, error: confluent_kafka.KafkaError | None) -> bool:
        """False for the one event that says there are no groups: what is assigned is read on."""
        if error is None:
            return False
        if error.code() == confluent_kafka.KafkaError.GROUP_AUTHORIZATION_FAILED:
            self.group_errors += 1
            if self.group_errors == 1:
                return False
        if error.code() != confluent_kafka.KafkaError._PARTITION_EOF:
            raise confluent_kafka.KafkaException(error)
        return True

    def close(self) -> None:
        self._consumer.close()


class Librdkafka:
    """confluent-kafka, which is librdkafka."""

    def __init__(self, more: Settings | None = None) -> None:
        """`more` are settings of the library, in its own words."""
        self._more = more or {}

    def producer(
        self, servers: str, *, idempotent: bool = False, codec: str | None = None
    ) -> Producer:
        return LibrdkafkaProducer(servers, self._more, idempotent=idempotent, codec=codec)

    def consumer(self, servers: str, start: Start) -> Consumer:
        return LibrdkafkaConsumer(servers, self._more, start)

    def join_group(self, servers: str) -> None:
        consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": "readers"})
        try:
            consumer.subscribe([TOPIC])
            message = consumer.poll(READ_S)
            if message is not None and message.error():
                raise confluent_kafka.KafkaException(message.error())
        finally:
            consumer.close()

    def begin_transactions(self, servers: str) -> None:
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": servers, "transactional.id": "writer"}
        )
        producer.init_transactions(READ_S)
