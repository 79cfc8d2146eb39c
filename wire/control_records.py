"""Control records: what a log says about itself - leaders, the voter set, snapshots.

Knows the bytes of keys, values and batches; ids and uuids stay as they are on the wire. Kafka writes
version 0 of every value and reads it as such, whatever its version field says; so does this module.
Tags 10000 and up of KRaftVoters are this project's own, and Kafka's readers skip them; so are the types
from 1001 on: 1001 is in snapshots only, the others stand where a restore has masked out 5 and 6.
Source: KIP-595 (LeaderChange), KIP-630 (snapshots), KIP-853 (KRaftVersion, KRaftVoters).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from struct import Struct as Fixed
from typing import Final, NamedTuple
from uuid import UUID

from crc32c import crc32c

from quorumd.wire.batch_header import BATCH_OVERHEAD, CODEC_MASK, CRC_FROM, read_header
from quorumd.wire.codec import decode, encode
from quorumd.wire.errors import CorruptBatch, MalformedMessage
from quorumd.wire.records import Record, build_batch, iter_records
from quorumd.wire.schema import (
    INT16,
    INT32,
    INT64,
    STRING,
    UINT16,
    UUID_,
    Message,
    Struct,
    array,
    field,
)
from quorumd.wire.varints import read_varint, read_varlong

KRAFT_VERSION_MAX: Final = 1
"""The highest kraft.version that this software knows."""

_KEY = Fixed(">hh")
_TYPE = Fixed(">h")
_CRC = Fixed(">I")
_VALUE_VERSION = 0


class ControlType(IntEnum):
    """The types that keys carry."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6
    PRODUCER_STATES = 1001
    FORMER_KRAFT_VERSION = 1005
    FORMER_KRAFT_VOTERS = 1006


class LeaderChangeVoter(Struct):
    """A voter by id; Kafka writes version 0, which has no uuids."""

    voter_id: int = field(INT32)
    voter_directory_id: UUID = field(UUID_, versions="1+")


class LeaderChange(Message, versions="0-1", flexible="0+"):
    """The first record of an epoch: its leader, all voters, and those that voted for it."""

    version: int = field(INT16)
    leader_id: int = field(INT32)
    voters: tuple[LeaderChangeVoter, ...] = array(LeaderChangeVoter)
    granting_voters: tuple[LeaderChangeVoter, ...] = array(LeaderChangeVoter)


class SnapshotHeader(Message, versions="0", flexible="0+"):
    """The first record of a snapshot; the time (ms) is that of the last record it stands for.

    `end_offset` (exclusive) is that of the snapshot's name, -1 if unknown.
    """

    version: int = field(INT16)
    last_contained_log_timestamp: int = field(INT64)
    end_offset: int = field(INT64, default=-1, tag=10000)


class SnapshotFooter(Message, versions="0", flexible="0+"):
    """The last record of a snapshot."""

    version: int = field(INT16)


class KRaftVersion(Message, versions="0", flexible="0+"):
    """The kraft.version from here on."""

    version: int = field(INT16)
    kraft_version: int = field(INT16)


class KRaftVoterEndpoint(Struct):
    """One listener of a voter."""

    name: str = field(STRING)
    host: str = field(STRING)
    port: int = field(UINT16)


class KRaftVersionFeature(Struct):
    """The kraft.version range that a voter supports."""

    min_supported_version: int = field(INT16)
    max_supported_version: int = field(INT16)


class KRaftVoter(Struct):
    """A member of the voter set, with all its listeners."""

    voter_id: int = field(INT32)
    voter_directory_id: UUID = field(UUID_)
    endpoints: tuple[KRaftVoterEndpoint, ...] = array(KRaftVoterEndpoint)
    kraft_version_feature: KRaftVersionFeature = field(KRaftVersionFeature)


class KRaftVoters(Message, versions="0", flexible="0+"):
    """The whole voter set from here on.

    `cluster_id` and `target_voters` (ids that a reassignment is on its way to) are None if absent.
    """

    version: int = field(INT16)
    voters: tuple[KRaftVoter, ...] = array(KRaftVoter)
    cluster_id: str | None = field(STRING, nullable="0+", default=None, tag=10000)
    target_voters: tuple[int, ...] | None = array(INT32, nullable="0+", default=None, tag=10001)


class ProducerStatesBatch(Struct):
    """A batch that would be a duplicate if it came again; all four are inclusive."""

    first_sequence: int = field(INT32)
    last_sequence: int = field(INT32)
    base_offset: int = field(INT64)
    last_offset: int = field(INT64)


class ProducerStatesProducer(Struct):
    """One producer id: its epoch, and its last batches, the newest last."""

    producer_id: int = field(INT64)
    epoch: int = field(INT16)
    batches: tuple[ProducerStatesBatch, ...] = array(ProducerStatesBatch)


class ProducerStates(Message, versions="0", flexible="0+"):
    """The state of idempotent producers, in the order of their last writes, the oldest first.

    A snapshot with many producers has several of these records, one continuing the other.
    """

    version: int = field(INT16)
    producers: tuple[ProducerStatesProducer, ...] = array(ProducerStatesProducer)


class UnknownControl(NamedTuple):
    """A control record of a type or version that has no class here, with its value as it is."""

    type: int
    raw: bytes | None


ControlRecord = (
    LeaderChange
    | SnapshotHeader
    | SnapshotFooter
    | KRaftVersion
    | KRaftVoters
    | ProducerStates
    | UnknownControl
)

_CLASSES: Final[dict[int, type[Message]]] = {
    ControlType.LEADER_CHANGE: LeaderChange,
    ControlType.SNAPSHOT_HEADER: SnapshotHeader,
    ControlType.SNAPSHOT_FOOTER: SnapshotFooter,
    ControlType.KRAFT_VERSION: KRaftVersion,
    ControlType.KRAFT_VOTERS: KRaftVoters,
    ControlType.PRODUCER_STATES: ProducerStates,
}
_TYPES: Final = {cls: number for number, cls in _CLASSES.items()}
_FORMER: Final[dict[int, int]] = {
    ControlType.KRAFT_VERSION: ControlType.FORMER_KRAFT_VERSION,
    ControlType.KRAFT_VOTERS: ControlType.FORMER_KRAFT_VOTERS,
}


def encode_control_record(record: ControlRecord) -> tuple[bytes, bytes | None]:
    """Key and value. Raises MalformedMessage if a member doesn't fit its type."""
    if isinstance(record, UnknownControl):
        return _KEY.pack(0, record.type), record.raw
    return _KEY.pack(0, _TYPES[type(record)]), encode(record, _VALUE_VERSION)


def decode_control_record(key: bytes | None, value: bytes | None) -> ControlRecord:
    """The record behind key and value. Raises MalformedMessage if either is not what it should be."""
    if key is None or len(key) < _KEY.size:
        raise MalformedMessage(f"a control record's key has 4 bytes, not {key!r}")
    version, number = _KEY.unpack_from(key)
    if version < 0:
        raise MalformedMessage(f"a control record's key has the version {version}")
    cls = _CLASSES.get(number)
    if cls is None:
        return UnknownControl(number, value)
    if value is None:
        raise MalformedMessage(f"a {cls.__name__} record has no value")
    try:
        record = decode(cls, _VALUE_VERSION, value)
    except MalformedMessage:
        is_later = (
            len(value) >= 2 and int.from_bytes(value[:2], "big", signed=True) > _VALUE_VERSION
        )
        if not is_later or cls is not LeaderChange:
            # The others decide on voters and on the contents of a snapshot: none must be passed over.
            raise
        return UnknownControl(number, value)  # Of a later version, whose form is another one.
    assert isinstance(record, ControlRecord)
    return record


def encode_control_batch(
    records: Sequence[ControlRecord], *, base_offset: int, epoch: int, timestamp_ms: int
) -> bytes:
    """One control batch with these records at consecutive offsets, all of them at `timestamp_ms`."""
    pairs = [encode_control_record(record) for record in records]
    return build_batch(
        [Record(timestamp=timestamp_ms, key=key, value=value) for key, value in pairs],
        base_offset=base_offset,
        epoch=epoch,
        base_timestamp=timestamp_ms,
        is_control=True,
    )


class RawControl(NamedTuple):
    """A control record as the bytes that it has, and as what they mean."""

    raw: UnknownControl
    record: ControlRecord


def raw_control_records(batch: bytes | memoryview) -> list[RawControl]:
    """The records of the control batch at the start of `batch`, to be copied as they are.

    Raises CorruptBatch as `decode_control_batch` does.
    """
    found = []
    try:
        for _, _, key, value, _ in iter_records(batch):
            record = decode_control_record(key, value)
            assert key is not None, "it was decoded"
            found.append(RawControl(UnknownControl(_KEY.unpack_from(key)[1], value), record))
    except MalformedMessage as error:
        raise CorruptBatch(str(error)) from error
    return found


def decode_control_batch(batch: bytes | memoryview) -> list[tuple[int, ControlRecord]]:
    """(offset, record) of each record in the batch at the start of `batch`.

    Raises CorruptBatch if it is no control batch or a record in it is malformed.
    """
    if not read_header(batch).is_control:
        raise CorruptBatch("it is not a control batch")
    try:
        return [
            (record.offset, decode_control_record(record.key, record.value))
            for record in iter_records(batch)
        ]
    except MalformedMessage as error:
        raise CorruptBatch(str(error)) from error


def mask_voters(batch: bytes) -> bytes:
    """A control batch with its KRaftVersion and KRaftVoters records masked: readers skip their new types.

    All but the types and the CRC stays as it is. Raises CorruptBatch if it is no control batch or can't
    be read.
    """
    header = read_header(batch)
    if not header.is_control or header.attributes & CODEC_MASK:
        raise CorruptBatch("it is not an uncompressed control batch")
    masked = bytearray(batch)
    at = BATCH_OVERHEAD
    for raw, _ in raw_control_records(batch):
        size, at = read_varint(batch, at)
        end = at + size
        _, at = read_varlong(batch, at + 1)
        _, at = read_varint(batch, at)
        _, key_at = read_varint(batch, at)
        _TYPE.pack_into(masked, key_at + _TYPE.size, _FORMER.get(raw.type, raw.type))
        at = end
    _CRC.pack_into(masked, CRC_FROM - _CRC.size, crc32c(memoryview(masked)[CRC_FROM:]))
    return bytes(masked)
