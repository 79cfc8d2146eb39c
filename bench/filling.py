"""Many records in a node's log, quickly: one batch is made, and sent again and again under other keys."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from crc32c import crc32c

from quorumd.wire.batch_header import CRC_FROM
from quorumd.wire.codec import decode, encode
from quorumd.wire.headers import decode_response_header, encode_request_header
from quorumd.wire.messages.api_versions import ApiVersionsRequest
from quorumd.wire.messages.produce import (
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
    ProduceResponse,
)
from quorumd.wire.metadata_topic import TOPIC
from quorumd.wire.records import Record, build_batch
from quorumd.wire.schema import Message

API_VERSIONS, PRODUCE, PRODUCE_VERSION = 18, 0, 9
BATCH_BYTES = 900_000
TIMEOUT_S = 60.0

_MARK = b"\xff\x00\xfe\x01\xff\x00\xfe\x02"
_RECORD_OVERHEAD = 16
_IN_FLIGHT_MAX = 32


class Client:
    """One blocking connection to a node. Use it in `with`."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._ping = framed(API_VERSIONS, 0, ApiVersionsRequest())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close()

    def ping(self) -> None:
        """A request that costs next to nothing, and its answer."""
        self._socket.sendall(self._ping)
        self._answer()

    def append(self, batches: Iterable[bytes]) -> None:
        """Append batches, and wait until all are committed."""
        in_flight = 0
        for batch in batches:
            if in_flight == _IN_FLIGHT_MAX:
                self._check_appended()
                in_flight -= 1
            self._send_batch(batch)
            in_flight += 1
        for _ in range(in_flight):
            self._check_appended()

    def _send_batch(self, batch: bytes) -> None:
        self._socket.sendall(_produce(batch))

    def _check_appended(self) -> None:
        answer = self._answer()
        _, at = decode_response_header(PRODUCE, PRODUCE_VERSION, answer)
        found = decode(ProduceResponse, PRODUCE_VERSION, answer, at).responses[0]
        error = found.partition_responses[0]
        if error.error_code:
            raise SystemExit(f"the node refused a batch: {error.error_code} {error.error_message}")

    def _answer(self) -> bytes:
        return self._read(int.from_bytes(self._read(4), "big"))

    def _read(self, size: int) -> bytes:
        parts = []
        while size:
            part = self._socket.recv(size)
            if not part:
                raise SystemExit("the node closed the connection")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


def produce_frame(value_bytes: int) -> bytes:
    """A Produce request of one record, with its length in front."""
    return _produce(build_batch([Record(key=b"key", value=bytes(value_bytes))]))


def _produce(batch: bytes) -> bytes:
    partition = ProduceRequestPartition(index=0, records=batch)
    topic = ProduceRequestTopic(name=TOPIC, partition_data=(partition,))
    request = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=(topic,))
    return framed(PRODUCE, PRODUCE_VERSION, request)


def framed(key: int, version: int, message: Message) -> bytes:
    """A request with its length in front."""
    content = encode_request_header(key, version, 1, "bench") + encode(message, version)
    return len(content).to_bytes(4, "big") + content


def fill(port: int, records: int, *, keys: int, value_bytes: int, batch_records: int = 0) -> int:
    """Appends about so many records of about so many keys; returns how many there are.

    Batches have `batch_records`; 0 is as many as fit.
    """
    most = BATCH_BYTES // (value_bytes + len(_MARK) + 5 + _RECORD_OVERHEAD)
    per_batch = min(batch_records or most, most)
    template = _template(per_batch, value_bytes)
    generations = max(1, round(keys / per_batch))
    count = max(1, round(records / per_batch))
    with Client(port) as client:
        client.append(_under_other_keys(template, number % generations) for number in range(count))
    return count * per_batch


def _template(records: int, value_bytes: int) -> bytes:
    """A batch whose keys begin with a mark."""
    draw = random.Random(0).randbytes
    batch = build_batch(
        [Record(key=_MARK + b"%05d" % at, value=draw(value_bytes)) for at in range(records)]
    )
    if batch.count(_MARK) != records:
        raise SystemExit("a value looks like the mark: choose another number of bytes")
    return batch


def _under_other_keys(template: bytes, number: int) -> bytes:
    batch = bytearray(template.replace(_MARK, b"%08d" % number))
    batch[CRC_FROM - 4 : CRC_FROM] = crc32c(memoryview(batch)[CRC_FROM:]).to_bytes(4, "big")
    return bytes(batch)
