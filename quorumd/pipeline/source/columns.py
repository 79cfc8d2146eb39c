"""The columns of a table as Spark sees them, and the rows that readers give out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from quorumd.pipeline.errors import BadOption
from quorumd.pipeline.metadata import metadata_rows
from quorumd.pipeline.schemas import RECORDS, TABLES
from quorumd.pipeline.source.options import LOG_RECORDS

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from quorumd.pipeline.source.options import Options

_SCHEMAS = {**TABLES, LOG_RECORDS: RECORDS}
_HEADERS = RECORDS.get_field_index("headers")
_CONTROL_TYPE = RECORDS.get_field_index("control_type")


def spark_schema(table: str) -> StructType:
    """The columns of a table."""
    from pyspark.sql.pandas.types import from_arrow_schema

    schema = from_arrow_schema(_SCHEMAS[table])
    assert all(field.nullable for field in schema), "Spark compares nullability, too"
    return schema


def chosen_columns(table: str, asked: StructType) -> tuple[str, ...]:
    """The names of the columns that are read: all, or those of a schema that the user gave.

    Raises BadOption if the table has no such column or another type for it.
    """
    known = {field.name: field.dataType for field in spark_schema(table)}
    for field in asked:
        if field.name not in known:
            raise BadOption(
                f"the table {table} has no column {field.name}; it has {', '.join(known)}"
            )
        if field.dataType != known[field.name]:
            raise BadOption(
                f"the column {field.name} of the table {table} has the type "
                f"{known[field.name].simpleString()}, not {field.dataType.simpleString()}"
            )
    return tuple(asked.fieldNames())


def shown(
    rows: Iterator[pa.RecordBatch], options: Options, columns: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """The rows and columns that the options leave."""
    names = tuple(_SCHEMAS[options.table].names)
    for batch in rows:
        if options.table == "records":
            if not options.include_headers:
                nulls = pa.nulls(batch.num_rows, RECORDS.field(_HEADERS).type)
                batch = batch.set_column(_HEADERS, RECORDS.field(_HEADERS), nulls)
            if not options.include_control and batch.column(_CONTROL_TYPE).null_count < len(batch):
                batch = batch.filter(batch.column(_CONTROL_TYPE).is_null())
        elif options.table == "metadata":
            batch = metadata_rows(batch)
        if columns != names:
            batch = batch.select(list(columns))
        if batch.num_rows:
            yield batch
