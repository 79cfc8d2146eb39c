"""The columns of the tables that are kept up to date, beside `records`, which has those of the log.

Times are those that the records carry. Every column may be null, as elsewhere in the pipeline.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from quorumd.pipeline.schemas import RECORDS, TIMESTAMP

_VOTER_KEYS = pa.list_(
    pa.field(
        "element", pa.struct([pa.field("id", pa.int32()), pa.field("storage_id", pa.string())])
    )
)
_ENDPOINTS = pa.list_(
    pa.field(
        "element",
        pa.struct(
            [
                pa.field("name", pa.string()),
                pa.field("host", pa.string()),
                pa.field("port", pa.int32()),
            ]
        ),
    )
)

LEADERSHIP = pa.schema(
    [
        pa.field("epoch", pa.int32()),
        pa.field("leader_id", pa.int32()),
        pa.field("storage_id", pa.string()),
        pa.field("from_offset", pa.int64()),
        pa.field("to_offset", pa.int64()),
        pa.field("from_time", TIMESTAMP),
        pa.field("to_time", TIMESTAMP),
        pa.field("granting_voters", _VOTER_KEYS),
        pa.field("voters", _VOTER_KEYS),
    ]
)
"""One row an epoch with a leader, by epoch.

`from_offset` is that of its LeaderChange record; `to_offset` (exclusive) and `to_time` are those of the
next one, null for the leader that the table ends with. Storage ids are null where the log has none.
"""

VOTER_SETS = pa.schema(
    [
        pa.field("offset", pa.int64()),
        pa.field("timestamp", TIMESTAMP),
        pa.field("epoch", pa.int32()),
        pa.field("change", pa.string()),
        pa.field("voter_id", pa.int32()),
        pa.field("storage_id", pa.string()),
        pa.field("endpoints", _ENDPOINTS),
    ]
)
"""One row a voter that was added (ADD), removed (REMOVE) or changed (UPDATE), by offset.

`endpoints` are those after the change, of a REMOVE the last ones. Where voters are configured and not
in the log (kraft.version 0), they are those of LeaderChange records, without endpoints.
"""

STATE = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", TIMESTAMP),
        pa.field("epoch", pa.int32()),
    ]
)
"""One row a key that has a value: its newest record. Records without a key count for nothing."""

KEY_HISTORY = pa.schema(
    [
        *STATE,
        pa.field("change", pa.string()),
        pa.field("previous_offset", pa.int64()),
    ]
)
"""One row a record with a key.

`change` is CREATE, UPDATE or DELETE (a null value); `previous_offset` is that of the value that it
replaces, null if there was none.
"""

DERIVED = pa.schema([pa.field("table", pa.string()), *KEY_HISTORY])
"""Rows of `state` and `key_history` on their way to the disk."""

TABLES: Final = {
    "records": RECORDS,
    "leadership": LEADERSHIP,
    "voter_sets": VOTER_SETS,
    "state": STATE,
    "key_history": KEY_HISTORY,
}
CHAIN_OF: Final = {
    "records": "log",
    "leadership": "log",
    "voter_sets": "log",
    "state": "state",
    "key_history": "state",
}
"""Chain of the manifests that name a table's files."""
APPENDED: Final = ("records", "key_history")
"""Tables to which every manifest adds files; of the others it names all."""
