"""Control records: their types for every reader, and their contents as JSON.

The JSON has the fields as quorumd.wire.control_records names them, uuids in Kafka's text form; tagged
fields of quorumd's own are null where they are absent. An unknown type has its value in hex.
"""

from __future__ import annotations

import json
from struct import Struct
from typing import Final, NamedTuple

import numpy as np

from quorumd.cli.text import fields_as_json
from quorumd.pipeline.parse.arrays import Bools, Int64s
from quorumd.pipeline.parse.fields import ByteSpans
from quorumd.pipeline.parse.headers import damaged
from quorumd.pipeline.parse.origin import ChunkOrigin
from quorumd.pipeline.parse.rows import ParsedRecords
from quorumd.wire.control_records import (
    ControlType,
    UnknownControl,
    decode_control_record,
)
from quorumd.wire.errors import MalformedMessage

_KEY = Struct(">hh")
_TYPE_AT = 2

TYPE_NAMES: Final[dict[int, str]] = {
    ControlType.ABORT: "Abort",
    ControlType.COMMIT: "Commit",
    ControlType.LEADER_CHANGE: "LeaderChange",
    ControlType.SNAPSHOT_HEADER: "SnapshotHeader",
    ControlType.SNAPSHOT_FOOTER: "SnapshotFooter",
    ControlType.KRAFT_VERSION: "KRaftVersion",
    ControlType.KRAFT_VOTERS: "KRaftVoters",
    ControlType.PRODUCER_STATES: "ProducerStates",
    ControlType.FORMER_KRAFT_VERSION: "FormerKRaftVersion",
    ControlType.FORMER_KRAFT_VOTERS: "FormerKRaftVoters",
}
"""Others are called `Unknown`. `Former...` is what a restore has struck out."""

_STANDS_FOR: Final[dict[int, int]] = {
    ControlType.FORMER_KRAFT_VERSION: ControlType.KRAFT_VERSION,
    ControlType.FORMER_KRAFT_VOTERS: ControlType.KRAFT_VOTERS,
}


class ControlJson(NamedTuple):
    """`version` is the one in the value, None for a type that is not known."""

    type: int
    type_name: str
    version: int | None
    json: str


def control_types(records: ParsedRecords, origin: ChunkOrigin) -> tuple[Int64s, Bools]:
    """The type of each control record, and which records are none. Raises DamagedBatch."""
    is_data = ~records.batches.is_control[records.batch]
    types = np.zeros(len(records), np.int64)
    keys = records.fields.keys
    rows = np.flatnonzero(~is_data)
    short = rows[keys.ends[rows] - keys.starts[rows] < _KEY.size]
    if len(short):
        at = int(records.batch[short[0]])
        what = f"the key of a control record has fewer than {_KEY.size} bytes"
        raise damaged(records.batches, at, what, origin)
    data = np.frombuffer(records.buffer, np.uint8)
    places = keys.starts[rows] + _TYPE_AT
    high, low = data[places].view(np.int8).astype(np.int64), data[places + 1].astype(np.int64)
    types[rows] = high * 256 + low
    return types, is_data


def control_rows(records: ParsedRecords, origin: ChunkOrigin) -> list[ControlJson]:
    """Control records decoded. Raises DamagedBatch for one that is not what its type says."""
    fields = records.fields
    rows = []
    for row in range(len(records)):
        key = _bytes_at(records.buffer, fields.keys, row)
        value = _bytes_at(records.buffer, fields.values, row)
        try:
            rows.append(_decode(key, value))
        except MalformedMessage as error:
            at = int(records.batch[row])
            what = f"a control record can't be read: {error}"
            raise damaged(records.batches, at, what, origin) from error
    return rows


def _bytes_at(buffer: memoryview, spans: ByteSpans, row: int) -> bytes | None:
    if spans.is_null[row]:
        return None
    return bytes(buffer[spans.starts[row] : spans.ends[row]])


def _decode(key: bytes | None, value: bytes | None) -> ControlJson:
    if key is None or len(key) < _KEY.size:
        raise MalformedMessage(f"its key has fewer than {_KEY.size} bytes")
    version, number = _KEY.unpack_from(key)
    record = decode_control_record(_KEY.pack(version, _STANDS_FOR.get(number, number)), value)
    name = TYPE_NAMES.get(number, "Unknown")
    if isinstance(record, UnknownControl):
        raw = None if value is None else value.hex()
        return ControlJson(number, name, None, json.dumps({"value_hex": raw}))
    described = json.dumps(fields_as_json(record), ensure_ascii=False)
    return ControlJson(number, name, record.version, described)
