"""Kafka's metadata records as JSON: what a real controller's `__cluster_metadata-0` holds. No Spark.

name, version, text = metadata_json(value)      one record's value
rows = metadata_rows(records)                   rows of the table `records` to METADATA
"""

from __future__ import annotations

import json
from typing import NamedTuple

import pyarrow as pa

from quorumd.pipeline.metadata.redact import REDACTED, redacted
from quorumd.pipeline.schemas import METADATA
from quorumd.wire.metadata_records import NotMetadata, decode_metadata

__all__ = ["REDACTED", "MetadataJson", "NotMetadata", "metadata_json", "metadata_rows"]


class MetadataJson(NamedTuple):
    """Kafka's name of the record type, the version of its schema, and its fields."""

    name: str
    version: int
    json: str


def metadata_json(value: bytes, *, show_secrets: bool = False) -> MetadataJson:
    """Decodes the value of a record of Kafka's metadata log. Raises NotMetadata.

    The JSON is that of Kafka's own tools (`kafka-dump-log --cluster-metadata-decoder`), with secrets
    redacted unless `show_secrets`. A record type or version that is not known has its size, and with
    `show_secrets` its value in hex.
    """
    record = decode_metadata(value)
    fields = record.fields
    if fields is None:
        fields = {"size_bytes": len(value)}
        if show_secrets:
            fields["value_hex"] = value.hex()
    elif not show_secrets:
        fields = redacted(record.name, fields)
    text = json.dumps(fields, ensure_ascii=False)
    return MetadataJson(record.name, record.version, text)


def metadata_rows(records: pa.RecordBatch, *, show_secrets: bool = False) -> pa.RecordBatch:
    """METADATA of rows of the table `records`; control records are left out."""
    records = records.filter(records["control_type"].is_null())
    decoded = [_decoded(value, show_secrets) for value in records["value"].to_pylist()]
    same = ("offset", "timestamp", "epoch", "replica_id", "storage_id")
    columns = {name: records[name] for name in same}
    for name in ("name", "version", "json"):
        column = METADATA.field("type_name" if name == "name" else name)
        values = [None if each is None else getattr(each, name) for each in decoded]
        columns[column.name] = pa.array(values, column.type)
    return pa.RecordBatch.from_arrays([columns[name] for name in METADATA.names], schema=METADATA)


def _decoded(value: bytes | None, show_secrets: bool) -> MetadataJson | None:
    if value is None:
        return None
    try:
        return metadata_json(value, show_secrets=show_secrets)
    except NotMetadata:
        return None
