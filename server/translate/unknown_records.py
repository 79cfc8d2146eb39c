"""What a later Kafka writes into its metadata log that this version does not know, by name.

An observer keeps all bytes as they are. Source: KIP-631 (the frame of a metadata record).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from quorumd.wire.batch_header import iter_headers
from quorumd.wire.control_records import KRAFT_VERSION_MAX, KRaftVersion, UnknownControl
from quorumd.wire.control_records import raw_control_records as control_records
from quorumd.wire.errors import CorruptBatch
from quorumd.wire.metadata_declarations import declarations
from quorumd.wire.records import iter_records
from quorumd.wire.varints import read_unsigned_varint

FRAME_VERSION = 1


def unknown_records(data: bytes) -> Iterator[str]:
    """One name for each record, in whole batches, that is of an unknown type or version."""
    for at, header in iter_headers(data):
        batch = data[at : at + header.size_bytes]
        try:
            yield from _of_control(batch) if header.is_control else _of_metadata(batch)
        except CorruptBatch:
            yield "batch that is not understood"


def _of_control(batch: bytes) -> Iterator[str]:
    for raw, record in control_records(batch):
        if isinstance(record, UnknownControl):
            yield f"control record: type {raw.type}"
        elif record.version:
            yield f"control record: {type(record).__name__}, version {record.version}"
        elif isinstance(record, KRaftVersion) and record.kraft_version > KRAFT_VERSION_MAX:
            yield f"control record: kraft.version {record.kraft_version}"


def _of_metadata(batch: bytes) -> Iterator[str]:
    for record in iter_records(batch):
        name = _unknown(bytes((record.value or b"")[:8]))
        if name is not None:
            yield name


@lru_cache(maxsize=1024)
def _unknown(beginning: bytes) -> str | None:
    """By the first bytes of a record's value: frame version, type and version of the type."""
    try:
        frame, at = read_unsigned_varint(beginning, 0)
        number, at = read_unsigned_varint(beginning, at)
        version, _ = read_unsigned_varint(beginning, at)
    except (IndexError, ValueError):
        return "record that is no metadata record"
    if frame != FRAME_VERSION:
        return f"record: frame version {frame}"
    known = declarations().get(number)
    if known is None:
        return f"record: type {number}"
    return None if version in known.versions else f"record: {known.name}, version {version}"
