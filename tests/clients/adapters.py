"""Three Kafka clients for Python that others wrote, behind one interface: a test's claim is made once.

A producer remembers what became of each record; a consumer has found its position when it is opened.
"""

from __future__ import annotations

import asyncio
import threading
import time
import warnings
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol, TypeVar

import aiokafka
import confluent_kafka
from aiokafka.structs import TopicPartition as AioTopicPartition

from tests.support.live_cluster import TOPIC

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its own files in an old way
    import kafka
    import kafka.admin

CLIENT_BYTES_MAX = 4 << 20
"""The clients' own limit of a message, above the server's."""
WINDOW = 200
READ_S = 30.0

T = TypeVar("T")


class Consumed(NamedTuple):
    """A record as a consumer got it."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class Timestamp(NamedTuple):
    """Begin at the first record that is not older."""

    ms: int


EARLIEST, LATEST = "earliest", "latest"
Start = str | int | Timestamp


class Producer(Protocol):
    """Sends without waiting for answers, but never has more than WINDOW records under way."""

    def send(
        self,
        value: bytes,
        *,
        key: bytes | None = None,
        timestamp_ms: int | None = None,
        headers: tuple[tuple[str, bytes], ...] = (),
    ) -> None: ...

    def finish(self) -> list[int | Exception]:
        """What became of each record: its offset, or what the client raised. Closes the producer."""


class Consumer(Protocol):
    """Reads partition 0, without a group."""

    def read(self, count: int) -> list[Consumed]:
        """The next so many records; fewer if they don't come in time."""

    def close(self) -> None: ...


class Client(Protocol):
    """One client library."""

    def producer(
        self, servers: str, *, idempotent: bool = False, codec: str | None = None
    ) -> Producer: ...

    def consumer(self, servers: str, start: Start) -> Consumer: ...

    def join_group(self, servers: str) -> None:
        """Subscribe as a member of a group, and read; raises what the client raises."""

    def begin_transactions(self, servers: str) -> None:
        """As a transactional producer; raises what the client raises."""


class Outcomes:
    """What became of records, noted by whatever thread learns it."""

    def __init__(self) -> None:
        self._by_index: dict[int, int | Exception] = {}
        self._sent = 0
        self._changed = threading.Condition()

    def next_index(self) -> int:
        """An index for the next record, as soon as few enough are under way."""
        with self._changed:
            room = self._changed.wait_for(
                lambda: self._sent - len(self._by_index) < WINDOW, timeout=READ_S
            )
            assert room, f"{WINDOW} records without an answer for {READ_S} s"
            self._sent += 1
            return self._sent - 1

    def note(self, index: int, outcome: int | Exception) -> None:
        with self._changed:
            self._by_index[index] = outcome
            self._changed.notify_all()

    def all(self) -> list[int | Exception]:
        """Every outcome in the order of sending, waited for."""
        with self._changed:
            complete = self._changed.wait_for(
                lambda: len(self._by_index) == self._sent, timeout=READ_S
            )
            assert complete, f"{self._sent - len(self._by_index)} records were never answered"
            return [self._by_index[index] for index in range(self._sent)]


# -- kafka-python


class KafkaPythonProducer:
    """kafka.KafkaProducer."""

    def __init__(self, servers: str, *, idempotent: bool, codec: str | None) -> None:
        self._outcomes = Outcomes()
        self._producer = kafka.KafkaProducer(
            bootstrap_servers=servers,
            acks="all",
            enable_idempotence=idempotent,
            compression_type=codec,
            max_request_size=CLIENT_BYTES_MAX,
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

    def __init__(self, servers: str, start: Start) -> None:
        self._consumer = kafka.KafkaConsumer(bootstrap_servers=servers, group_id=None)
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

    def producer(
        self, servers: str, *, idempotent: bool = False, codec: str | None = None
    ) -> Producer:
        return KafkaPythonProducer(servers, idempotent=idempotent, codec=codec)

    def consumer(self, servers: str, start: Start) -> Consumer:
        return KafkaPythonConsumer(servers, start)

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


# -- aiokafka


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.submit(work).result(2 * READ_S)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class AiokafkaProducer:
    """aiokafka.AIOKafkaProducer."""

    def __init__(self, servers: str, *, idempotent: bool, codec: str | None) -> None:
        self._outcomes = Outcomes()
        self._thread = LoopThread()
        self._producer = self._thread.run(self._open(servers, idempotent, codec))

    async def _open(
        self, servers: str, idempotent: bool, codec: str | None
    ) -> aiokafka.AIOKafkaProducer:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=servers,
            acks="all",
            enable_idempotence=idempotent,
            compression_type=codec,
            max_request_size=CLIENT_BYTES_MAX,
        )
        await producer.start()
        return producer

    def send(
        self,
        value: bytes,
        *,
        key: bytes | None = None,
        timestamp_ms: int | None = None,
        headers: tuple[tuple[str, bytes], ...] = (),
    ) -> None:
        index = self._outcomes.next_index()

        async def send() -> None:
            try:
                sent = await self._producer.send(
                    TOPIC,
                    value,
                    key=key,
                    partition=0,
                    timestamp_ms=timestamp_ms,
                    headers=list(headers),
                )
            except Exception as error:
                self._outcomes.note(index, error)
                return
            sent.add_done_callback(self._done(index))

        self._thread.submit(send())

    def _done(self, index: int) -> Any:
        def done(future: asyncio.Future[Any]) -> None:
            error = future.exception()
            outcome = error if isinstance(error, Exception) else future.result().offset
            self._outcomes.note(index, outcome)

        return done

    def finish(self) -> list[int | Exception]:
        try:
            return self._outcomes.all()
        finally:
            self._thread.run(self._producer.stop())
            self._thread.close()


class AiokafkaConsumer:
    """aiokafka.AIOKafkaConsumer."""

    def __init__(self, servers: str, start: Start) -> None:
        self._thread = LoopThread()
        self._consumer = self._thread.run(self._open(servers, start))

    async def _open(self, servers: str, start: Start) -> aiokafka.AIOKafkaConsumer:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=servers, group_id=None)
        partition = AioTopicPartition(TOPIC, 0)
        consumer.assign([partition])
        await consumer.start()
        if start == EARLIEST:
            await consumer.seek_to_beginning(partition)
        elif start == LATEST:
            await consumer.seek_to_end(partition)
        elif isinstance(start, Timestamp):
            found = await consumer.offsets_for_times({partition: start.ms})
            consumer.seek(partition, found[partition].offset)
        else:
            consumer.seek(partition, start)
        await consumer.position(partition)
        return consumer

    def read(self, count: int) -> list[Consumed]:
        return self._thread.run(self._read(count))

    async def _read(self, count: int) -> list[Consumed]:
        found: list[Consumed] = []
        deadline = time.monotonic() + READ_S
        while len(found) < count and time.monotonic() < deadline:
            wanted = count - len(found)
            for batch in (
                await self._consumer.getmany(timeout_ms=200, max_records=wanted)
            ).values():
                found += [
                    Consumed(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in batch
                ]
        return found

    def close(self) -> None:
        self._thread.run(self._consumer.stop())
        self._thread.close()


class Aiokafka:
    """aiokafka."""

    def producer(
        self, servers: str, *, idempotent: bool = False, codec: str | None = None
    ) -> Producer:
        return AiokafkaProducer(servers, idempotent=idempotent, codec=codec)

    def consumer(self, servers: str, start: Start) -> Consumer:
        return AiokafkaConsumer(servers, start)

    def join_group(self, servers: str) -> None:
        async def join() -> None:
            consumer = aiokafka.AIOKafkaConsumer(
                TOPIC, bootstrap_servers=servers, group_id="readers"
            )
            try:
                await consumer.start()
                await asyncio.wait_for(consumer.getone(), READ_S)
            finally:
                await consumer.stop()

        asyncio.run(join())

    def begin_transactions(self, servers: str) -> None:
        async def begin() -> None:
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=servers, transactional_id="writer"
            )
            try:
                await asyncio.wait_for(producer.start(), READ_S)
            finally:
                await producer.stop()

        asyncio.run(begin())


# -- librdkafka


class LibrdkafkaProducer:
    """confluent_kafka.Producer; a thread of its own asks for what was delivered."""

    def __init__(self, servers: str, *, idempotent: bool, codec: str | None) -> None:
        self._outcomes = Outcomes()
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": servers,
                "enable.idempotence": idempotent,
                "compression.type": codec or "none",
                "message.max.bytes": CLIENT_BYTES_MAX,
                "linger.ms": 1,
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

    def __init__(self, servers: str, start: Start) -> None:
        self.group_errors = 0
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "compulsory, but not used",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
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

    def producer(
        self, servers: str, *, idempotent: bool = False, codec: str | None = None
    ) -> Producer:
        return LibrdkafkaProducer(servers, idempotent=idempotent, codec=codec)

    def consumer(self, servers: str, start: Start) -> Consumer:
        return LibrdkafkaConsumer(servers, start)

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


CLIENTS: dict[str, Client] = {
    "kafka-python": KafkaPython(),
    "aiokafka": Aiokafka(),
    "librdkafka": Librdkafka(),
}
