"""Records of a later Kafka in its metadata log that this version does not know, by name.

An observer keeps all bytes as they are. Source: KIP-631 (the frame of a metadata record).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final, NamedTuple

from quorumd.wire.batch_header import iter_headers
from quorumd.wire.control_records import KRAFT_VERSION_MAX, KRaftVersion, UnknownControl
from quorumd.wire.control_records import raw_control_records as control_records
from quorumd.wire.errors import CorruptBatch
from quorumd.wire.metadata_declarations import declarations
from quorumd.wire.records import iter_records
from quorumd.wire.varints import read_unsigned_varint

FRAME_VERSION = 1
_FEATURE_LEVEL: Final = b"\x01\x0c\x00"
"""First bytes of a FeatureLevelRecord: frame version, type 12, version 0."""


def unknown_records(data: bytes) -> Iterator[str]:
    """One name for each record, in whole batches, that is of an unknown type or version."""
    for at, header in iter_headers(data):
        batch = data[at : at + header.size_bytes]
        try:
            yield from _of_control(batch) if header.is_control else _of_metadata(batch)
        except CorruptBatch:
            yield "batch that is not understood"


class KafkaNews(NamedTuple):
    """Unknown records and levels of features in batches of a Kafka log: of interest to voters."""

    unknown: tuple[str, ...]
    """Different names, as `unknown_records` has them."""
    levels: tuple[tuple[str, int], ...]
    """As `finalized_levels` has them."""


def news_of(batches: Iterable[bytes]) -> KafkaNews:
    """Unknown records and finalized levels of a snapshot, batch by batch."""
    unknown: dict[str, None] = {}
    levels: dict[str, int] = {}
    for batch in batches:
        unknown.update(dict.fromkeys(unknown_records(batch)))
        levels.update(finalized_levels(batch))
    return KafkaNews(tuple(unknown), tuple(levels.items()))


def finalized_levels(data: bytes) -> Iterator[tuple[str, int]]:
    """The levels of features that the records of whole batches finalize; 0 turns a feature off."""
    if _FEATURE_LEVEL not in data:
        return
    for at, header in iter_headers(data):
        if header.is_control:
            continue
        try:
            for record in iter_records(data[at : at + header.size_bytes]):
                value = bytes(record.value or b"")
                if value.startswith(_FEATURE_LEVEL):
                    length, name_at = read_unsigned_varint(value, len(_FEATURE_LEVEL))
                    name_end = name_at + length - 1
                    level = int.from_bytes(value[name_end : name_end + 2], "big", signed=True)
                    yield value[name_at:name_end].decode(errors="replace"), level
        except (CorruptBatch, IndexError, ValueError):
            continue  # `unknown_records` names it


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
