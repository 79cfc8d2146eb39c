"""aiokafka as a Client, on an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

import aiokafka
from aiokafka.structs import TopicPartition

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

T = TypeVar("T")


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

    def __init__(
        self, servers: str, more: Settings, *, idempotent: bool, codec: str | None
    ) -> None:
        self._outcomes = Outcomes()
        self._thread = LoopThread()
        # Sends that wait for metadata go on in any order: one at a time keeps the caller's.
        self._sending = asyncio.Lock()
        self._producer = self._thread.run(self._open(servers, more, idempotent, codec))

    async def _open(
        self, servers: str, more: Settings, idempotent: bool, codec: str | None
    ) -> aiokafka.AIOKafkaProducer:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=servers,
            acks="all",
            enable_idempotence=idempotent,
            compression_type=codec,
            max_request_size=CLIENT_BYTES_MAX,
            **more,
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
                async with self._sending:
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

    def __init__(self, servers: str, more: Settings, start: Start) -> None:
        self._thread = LoopThread()
        self._consumer = self._thread.run(self._open(servers, more, start))

    async def _open(self, servers: str, more: Settings, start: Start) -> aiokafka.AIOKafkaConsumer:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=servers, group_id=None, **more)
        partition = TopicPartition(TOPIC, 0)
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

    def __init__(self, more: Settings | None = None) -> None:
        """`more` are settings of the library, in its own words."""
        self._more = more or {}

    def producer(
        self, servers: str, *, idempotent: bool = False, codec: str | None = None
    ) -> Producer:
        return AiokafkaProducer(servers, self._more, idempotent=idempotent, codec=codec)

    def consumer(self, servers: str, start: Start) -> Consumer:
        return AiokafkaConsumer(servers, self._more, start)

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
