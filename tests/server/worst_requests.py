"""Requests that are legal and as large as they can be, made from the declarations of all APIs.

A new API, field or version is covered without a line here: every array of every request is filled, alone
and inside each other, once with names that nobody knows and once with those of the one partition.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from struct import Struct as Struct_
from typing import Any, NamedTuple
from uuid import UUID

import lz4.frame
import snappy
import zstandard
from crc32c import crc32c

from quorumd.server.model.topic import METADATA
from quorumd.wire.codec import encode
from quorumd.wire.compression import pack
from quorumd.wire.messages.produce import (
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
)
from quorumd.wire.registry import APIS
from quorumd.wire.schema import FieldSpec, Kind, Message, Struct

UNKNOWN_TAG = b"\x63\0"
STRING_BYTES = 32_000


class WorstRequest(NamedTuple):
    """The body of a request that holds `elements` array elements or tags, or one more."""

    name: str
    api_key: int
    version: int
    body: bytes


def worst_requests(elements_of: Callable[[int], int]) -> Iterator[WorstRequest]:
    """All of them; `elements_of` says how many elements those of an api key hold, 0 for none at all."""
    for spec in APIS.values():
        elements = elements_of(spec.key)
        if not elements:
            continue
        for version in range(spec.min_version, spec.max_version + 1):
            for name, body in _bodies(spec.request, version, elements):
                yield WorstRequest(f"{spec.name}-{version}-{name}", spec.key, version, body)


def _bodies(cls: type[Message], version: int, elements: int) -> Iterator[tuple[str, bytes]]:
    for path in _arrays(cls, version):
        for known in (False, True):
            for depth in range(len(path)):
                # The outer arrays hold one element each, or all hold as many as make up the number.
                counts = [1] * len(path)
                counts[depth] = max(1, elements - len(path) + 1)
                if depth < len(path) - 1:
                    counts[depth] = max(1, elements // (len(path) - depth))
                message = _filled(cls, version, path, counts, known=known)
                label = ".".join(path) + ("-known" if known else "") + f"-{depth}"
                yield label, encode(message, version)
    if version in cls.wire_spec.flexible:
        body = encode(_filled(cls, version, (), [], known=True), version)
        # No tag of ours is set, so that the last byte is the number of tags.
        yield "tags", body[:-1] + _varint(elements) + UNKNOWN_TAG * elements
    long = _filled(cls, version, (), [], known=False, text="~" * STRING_BYTES)
    # Bytes that are no UTF-8 are the slowest to read.
    yield "long", encode(long, version).replace(b"~" * STRING_BYTES, b"\xff" * STRING_BYTES)


def _arrays(cls: type[Struct], version: int) -> Iterator[tuple[str, ...]]:
    """The path of every array that a message can hold."""
    for field in cls.wire_spec.fields:
        if version not in field.versions:
            continue
        below = [] if isinstance(field.of, Kind) else list(_arrays(field.of, version))
        if field.is_array:
            yield (field.name,)
            yield from ((field.name, *path) for path in below)


def _filled(
    cls: type[Any],
    version: int,
    path: tuple[str, ...],
    counts: list[int],
    *,
    known: bool,
    text: str = "",
    number: int = 0,
) -> Any:
    """With the arrays of `path` filled. `number` makes this one differ from its neighbours."""
    values: dict[str, Any] = {}
    for field in cls.wire_spec.fields:
        if version not in field.versions:
            continue
        if path and field.name == path[0]:
            of = field.of
            values[field.name] = tuple(
                _plain(field, known=known, text=text, number=i)
                if isinstance(of, Kind)
                else _filled(of, version, path[1:], counts[1:], known=known, text=text, number=i)
                for i in range(counts[0])
            )
        elif not field.is_array and isinstance(field.of, Kind) and field.tag is None:
            values[field.name] = _plain(field, known=known, text=text, number=number)
    return cls(**values)


def _plain(field: FieldSpec, *, known: bool, text: str, number: int) -> Any:
    """A value for a field or an element that is no struct."""
    is_name = "name" in field.name or field.name == "topic"
    if field.of is Kind.STRING:
        if is_name and not text:
            return METADATA.name if known else f"t{number}"
        if field.nullable.last >= 0 and not text:
            return field.default if not field.is_array else text
        return text
    if field.of is Kind.UUID:
        if "topic" not in field.name:
            return UUID(int=0)
        return METADATA.topic_id if known else UUID(int=number + 2)
    if field.of is Kind.BYTES:
        return b""
    if field.of is Kind.BOOL:
        return True
    if field.name in ("index", "partition", "partition_index"):
        return 0 if known else number
    if field.is_array:
        return number
    return field.default


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))


BATCH_BYTES = (1 << 20) - 100
UNPACKED_BYTES = 60 << 20
_HEADER = Struct_(">qiibIhiqqqhii")


def worst_batches() -> Iterator[tuple[str, bytes]]:
    """Batches of a megabyte whose check is the most work, each valid but the last."""
    # Neighbours of different lengths, so that no two records can be checked together.
    for name, values in (
        ("equal", (b"",)),
        ("alternating", (b"", b"x")),
        ("in pairs", (b"", b"", b"x", b"x")),
        ("in fours", (b"",) * 4 + (b"x",) * 4),
    ):
        records, size = [], 0
        while size < BATCH_BYTES - 20:
            records.append(_record(len(records), values[len(records) % len(values)]))
            size += len(records[-1])
        yield name, _batch(b"".join(records), len(records))
    headers = BATCH_BYTES // 2 - 20
    yield "headers", _batch(_record(0, b"", headers=headers), 1)
    yield "one value", _batch(_record(0, bytes(BATCH_BYTES - 100)), 1)
    yield "a record too many", _batch(b"".join(records), len(records) - 1)


def worst_compressed() -> Iterator[tuple[str, bytes]]:
    """Batches of a megabyte at the most that unpack to very much, or to nothing again and again."""
    body = b"\0\0\0\1" + _varint(2 * UNPACKED_BYTES)
    # A value, and a header behind it.
    start = _varint(2 * (len(body) + UNPACKED_BYTES + 4)) + body
    zeros = start + bytes(UNPACKED_BYTES) + b"\2\2h\1"
    yield "gzip", _compressed(1, gzip.compress(zeros))
    more = UNPACKED_BYTES + (8 << 20)
    body = b"\0\0\0\1" + _varint(2 * more)
    too_much = _varint(2 * (len(body) + more + 1)) + body + bytes(more + 1)
    yield "gzip of too much", _compressed(1, gzip.compress(too_much))
    yield "gzip of nothing", _compressed(1, gzip.compress(b"") * (BATCH_BYTES // 20))
    yield "snappy", _compressed(2, pack(2, zeros[: 20 * BATCH_BYTES]))
    count = BATCH_BYTES // 7
    records = b"".join(_record(index, b"") for index in range(count))
    yield "snappy block of many records", _batch(bytes(snappy.compress(records)), count, 2)
    yield "one snappy block", _compressed(2, bytes(snappy.compress(zeros[: 20 * BATCH_BYTES])))
    yield "lz4", _compressed(3, pack(3, zeros))
    large = lz4.frame.compress(zeros, block_size=lz4.frame.BLOCKSIZE_MAX4MB, block_linked=False)
    yield "large lz4 blocks", _compressed(3, large)
    nothing = lz4.frame.compress(b"", store_size=False)[:7] + b"\1\0\0\0\0" * (BATCH_BYTES // 5)
    yield "lz4 of nothing", _compressed(3, nothing)
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=27)
    packed = zstandard.ZstdCompressor(compression_params=parameters).compress(zeros)
    yield "zstd", _compressed(4, packed)
    yield "zstd blocks of nothing", _compressed(4, packed[:6] + bytes(BATCH_BYTES - 100))
    yield "zstd of nothing", _compressed(4, zstandard.compress(b"") * (BATCH_BYTES // 13))


def _compressed(codec: int, payload: bytes) -> bytes:
    return _batch(payload, 1, codec)


def _record(index: int, value: bytes, *, headers: int = 0) -> bytes:
    head = b"\0\0" + _varint(2 * index) + b"\1" + _varint(2 * len(value))
    body = head + value + _varint(2 * headers) + b"\0\1" * headers
    return _varint(2 * len(body)) + body


def _batch(records: bytes, count: int, codec: int = 0) -> bytes:
    head = (0, 49 + len(records), 0, 2, 0, codec, count - 1, 0, 0, -1, -1, -1, count)
    whole = bytearray(_HEADER.pack(*head) + records)
    whole[17:21] = crc32c(memoryview(whole)[21:]).to_bytes(4, "big")
    return bytes(whole)


def produce(version: int, batches: list[bytes]) -> WorstRequest:
    """A request with these batches for the one partition."""
    message = ProduceRequest(
        acks=-1,
        timeout_ms=60_000,
        topic_data=(
            ProduceRequestTopic(
                name=METADATA.name if version < 13 else "",
                topic_id=METADATA.topic_id if version >= 13 else UUID(int=0),
                partition_data=tuple(ProduceRequestPartition(records=each) for each in batches),
            ),
        ),
    )
    return WorstRequest(f"Produce-{version}", 0, version, encode(message, version))
