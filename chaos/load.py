"""Clients under test: `python -m chaos.load write|read LIBRARY NAME SERVERS FILE`, until standard input ends.

A writer appends numbered records at a steady pace and notes what becomes of each. A reader follows the log,
begins again now and then, and asks where the log ends.
"""

from __future__ import annotations

import asyncio
import os
import random
import select
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from chaos.history import (
    ACKNOWLEDGED,
    END,
    FAILED,
    INVOKED,
    READ,
    SESSION,
    TROUBLE,
    HistoryFile,
)
from quorumd.wire.metadata_topic import TOPIC

PAUSE_S = 0.02
IN_FLIGHT_MAX = 200
DELIVERY_MS = 30_000
SESSION_S = 15.0
READ_MAX = 500
Done = Callable[[int | Exception], None]
Records = list[tuple[int, bytes]]


class Writer(Protocol):
    def send(self, value: bytes, done: Done) -> None:
        """`done` gets the offset or the error, from any thread."""


class Reader(Protocol):
    def seek(self, offset: int) -> None:
        """Go on from there. If nodes have deleted that meanwhile no record comes; none is left out."""

    def read(self) -> Records:
        """Records that have come within a moment: offsets and values."""

    def ends(self) -> tuple[int, int]:
        """The first offset of the log and the offset of the next record."""


class Librdkafka:
    """confluent-kafka. An idempotent producer that has failed for good is replaced."""

    def __init__(self, servers: str) -> None:
        import confluent_kafka

        self._kafka = confluent_kafka
        self._servers = servers
        self._producer = self._new()
        threading.Thread(target=self._poll, daemon=True).start()
        self._consumer: Any = None

    def _new(self) -> Any:
        return self._kafka.Producer(
            {
                "bootstrap.servers": self._servers,
                "enable.idempotence": True,
                "delivery.timeout.ms": DELIVERY_MS,
                "linger.ms": 2,
                "log_level": 0,
            }
        )

    def _poll(self) -> None:
        while True:
            self._producer.poll(0.05)

    def send(self, value: bytes, done: Done) -> None:
        def delivered(error: Any, message: Any) -> None:
            done(message.offset() if error is None else self._kafka.KafkaException(error))

        try:
            self._producer.produce(TOPIC, value, partition=0, on_delivery=delivered)
        except self._kafka.KafkaException as error:
            if error.args[0].fatal():
                self._producer = self._new()
            raise

    def seek(self, offset: int) -> None:
        if self._consumer is not None:
            self._consumer.close()
        self._consumer = self._kafka.Consumer(
            {
                "bootstrap.servers": self._servers,
                "group.id": "unused",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "log_level": 0,
            }
        )
        self._consumer.assign([self._kafka.TopicPartition(TOPIC, 0, offset)])

    def read(self) -> Records:
        messages = self._consumer.consume(READ_MAX, 0.2)
        return [(m.offset(), m.value()) for m in messages if m.error() is None]

    def ends(self) -> tuple[int, int]:
        partition = self._kafka.TopicPartition(TOPIC, 0)
        low, high = self._consumer.get_watermark_offsets(partition, timeout=5)
        return low, high


class KafkaPython:
    """kafka-python."""

    def __init__(self, servers: str) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            import kafka

        self._kafka = kafka
        self._servers = servers
        self._producer: Any = None
        self._consumer: Any = None
        self._partition = kafka.TopicPartition(TOPIC, 0)

    def send(self, value: bytes, done: Done) -> None:
        if self._producer is None:
            self._producer = self._kafka.KafkaProducer(
                bootstrap_servers=self._servers,
                acks="all",
                enable_idempotence=True,
                delivery_timeout_ms=DELIVERY_MS,
                max_block_ms=10_000,
            )
        future = self._producer.send(TOPIC, value, partition=0)
        future.add_callback(lambda metadata: done(metadata.offset))
        future.add_errback(done)

    def seek(self, offset: int) -> None:
        if self._consumer is None:
            self._consumer = self._kafka.KafkaConsumer(
                bootstrap_servers=self._servers, group_id=None, auto_offset_reset="none"
            )
            self._consumer.assign([self._partition])
        self._consumer.seek(self._partition, offset)

    def read(self) -> Records:
        batches = self._consumer.poll(200, max_records=READ_MAX).values()
        return [(record.offset, record.value) for batch in batches for record in batch]

    def ends(self) -> tuple[int, int]:
        low = self._consumer.beginning_offsets([self._partition])[self._partition]
        return low, self._consumer.end_offsets([self._partition])[self._partition]


class Aiokafka:
    """aiokafka, on an event loop in a thread of its own."""

    def __init__(self, servers: str) -> None:
        import aiokafka
        from aiokafka.structs import TopicPartition

        self._kafka = aiokafka
        self._servers = servers
        self._partition = TopicPartition(TOPIC, 0)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._producer: Any = None
        self._consumer: Any = None

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(DELIVERY_MS / 1000)

    def send(self, value: bytes, done: Done) -> None:
        async def send() -> None:
            if self._producer is None:
                producer = self._kafka.AIOKafkaProducer(
                    bootstrap_servers=self._servers,
                    acks="all",
                    enable_idempotence=True,
                    request_timeout_ms=DELIVERY_MS,
                )
                try:
                    await producer.start()
                except BaseException:
                    await producer.stop()
                    raise
                self._producer = producer
            future = await self._producer.send(TOPIC, value, partition=0)
            future.add_done_callback(lambda it: done(it.exception() or it.result().offset))

        self._run(send())

    def seek(self, offset: int) -> None:
        async def seek() -> None:
            if self._consumer is None:
                consumer = self._kafka.AIOKafkaConsumer(
                    bootstrap_servers=self._servers, group_id=None, auto_offset_reset="none"
                )
                consumer.assign([self._partition])
                try:
                    await consumer.start()
                except BaseException:
                    await consumer.stop()
                    raise
                self._consumer = consumer
            self._consumer.seek(self._partition, offset)

        self._run(seek())

    def read(self) -> Records:
        batches = self._run(self._consumer.getmany(timeout_ms=200, max_records=READ_MAX))
        return [(record.offset, record.value) for batch in batches.values() for record in batch]

    def ends(self) -> tuple[int, int]:
        low = self._run(self._consumer.beginning_offsets([self._partition]))[self._partition]
        return low, self._run(self._consumer.end_offsets([self._partition]))[self._partition]


LIBRARIES: dict[str, Callable[[str], Any]] = {
    "librdkafka": Librdkafka,
    "kafka-python": KafkaPython,
    "aiokafka": Aiokafka,
}


def write(client: Writer, name: str, history: HistoryFile) -> None:
    """Append until standard input ends, then wait for what is under way."""
    in_flight: set[int] = set()
    number = 0

    def done_of(number: int) -> Done:
        def done(outcome: int | Exception) -> None:
            if isinstance(outcome, Exception):
                history.write(FAILED, number, f"{type(outcome).__name__}: {outcome}"[:200])
            else:
                history.write(ACKNOWLEDGED, number, outcome)
            in_flight.discard(number)

        return done

    while not _is_over(PAUSE_S):
        if len(in_flight) >= IN_FLIGHT_MAX:
            continue
        in_flight.add(number)
        history.write(INVOKED, number)
        done = done_of(number)
        try:
            client.send(f"{name}/{number}".encode(), done)
        except Exception as error:
            # Some libraries raise what others hand over later: it may have been sent all the same.
            done(error)
        number += 1
    deadline = time.monotonic() + DELIVERY_MS / 1000 + 5
    while in_flight and time.monotonic() < deadline:
        time.sleep(0.1)


def read(client: Reader, name: str, history: HistoryFile) -> None:
    """Follow the log until standard input ends, from another place every few seconds."""
    draw = random.Random(name)
    known_end = 0
    position = 0
    session_ends = 0.0
    while not _is_over(0.0):
        try:
            if time.monotonic() > session_ends:
                begun = time.monotonic_ns()
                if known_end:
                    low, high = client.ends()
                    history.write(END, begun, low, high)
                    position = draw.choice([low, draw.randint(low, high), high])
                client.seek(position)
                history.write(SESSION, position)
                session_ends = time.monotonic() + SESSION_S
            records = client.read()
        except Exception as error:
            history.write(TROUBLE, f"{type(error).__name__}: {error}"[:200])
            session_ends = 0.0
            time.sleep(0.5)
            continue
        if records:
            known_end = max(known_end, records[-1][0] + 1)
            history.write(
                READ, [(offset, value.decode(errors="replace")) for offset, value in records]
            )


def _is_over(seconds: float) -> bool:
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    return bool(ready)


def main() -> None:
    what, library, name, servers, path = sys.argv[1:]
    client = LIBRARIES[library](servers)
    history = HistoryFile(Path(path))
    (write if what == "write" else read)(client, name, history)
    # Threads of the libraries may wait for nodes that are gone.
    os._exit(0)


if __name__ == "__main__":
    main()
