"""The columns of the tables of the data source: names, types and order, once.

Every field may be null, as in Spark's Kafka source, because Spark compares whole Arrow schemas and
declares nullable columns. The first columns of RECORDS are those of that source.
"""

from __future__ import annotations

import pyarrow as pa

TIMESTAMP = pa.timestamp("us", tz="UTC")
HEADERS = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)

RECORDS = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", TIMESTAMP),
        pa.field("timestampType", pa.int32()),
        pa.field("headers", HEADERS),
        pa.field("epoch", pa.int32()),
        pa.field("batch_base_offset", pa.int64()),
        pa.field("control_type", pa.int32()),
        pa.field("crc", pa.int64()),
        pa.field("replica_id", pa.int32()),
        pa.field("storage_id", pa.string()),
    ]
)
"""One row a record, those of control batches included.

`timestampType` is 0 (create time) or 1 (log append time), as in Spark's Kafka source; `headers` is
null for a record without headers; `control_type` is null for a data record; `crc` is the CRC-32C
of the record's batch, unsigned.
"""

BATCHES = pa.schema(
    [
        pa.field("base_offset", pa.int64()),
        pa.field("last_offset", pa.int64()),
        pa.field("epoch", pa.int32()),
        pa.field("crc", pa.int64()),
        pa.field("crc_ok", pa.bool_()),
        pa.field("size_bytes", pa.int32()),
        pa.field("records", pa.int32()),
        pa.field("codec", pa.string()),
        pa.field("is_control", pa.bool_()),
        pa.field("max_timestamp", TIMESTAMP),
        pa.field("producer_id", pa.int64()),
        pa.field("producer_epoch", pa.int32()),
        pa.field("base_sequence", pa.int32()),
        pa.field("replica_id", pa.int32()),
        pa.field("storage_id", pa.string()),
        pa.field("file", pa.string()),
        pa.field("position", pa.int64()),
    ]
)
"""One row a batch. `last_offset` is inclusive; `position` is the batch's first byte in `file`."""

CONTROL = pa.schema(
    [
        pa.field("offset", pa.int64()),
        pa.field("timestamp", TIMESTAMP),
        pa.field("epoch", pa.int32()),
        pa.field("type", pa.int32()),
        pa.field("type_name", pa.string()),
        pa.field("version", pa.int32()),
        pa.field("json", pa.string()),
        pa.field("replica_id", pa.int32()),
        pa.field("storage_id", pa.string()),
    ]
)
"""One row a control record; `json` is the record decoded by quorumd.wire.control_records."""

METADATA = pa.schema(
    [
        pa.field("offset", pa.int64()),
        pa.field("timestamp", TIMESTAMP),
        pa.field("epoch", pa.int32()),
        pa.field("type_name", pa.string()),
        pa.field("version", pa.int32()),
        pa.field("json", pa.string()),
        pa.field("replica_id", pa.int32()),
        pa.field("storage_id", pa.string()),
    ]
)
"""One row a data record, its value decoded as one of Kafka's metadata records, without secrets.

Type, version and JSON are null for a value that is no metadata record.
"""

TABLES = {"records": RECORDS, "batches": BATCHES, "control": CONTROL, "metadata": METADATA}
