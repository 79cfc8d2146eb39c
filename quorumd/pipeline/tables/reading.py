"""The tables as DataFrames, and the state as of an offset or a time."""

from __future__ import annotations

import os
import re
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from quorumd.pipeline.errors import PipelineError
from quorumd.pipeline.tables.manifests import data_files, newest
from quorumd.pipeline.tables.schemas import STATE, TABLES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PATTERN = re.compile(r"[\\*?\[\]{}]")

Folder = str | os.PathLike[str]


class NotInTables(PipelineError):
    """An offset or a time that the tables say nothing about."""

    exit_code = 2


def read_table(spark: SparkSession, folder: Folder, table: str) -> DataFrame:
    """One of `records`, `leadership`, `voter_sets`, `state`, `key_history`, as it is now.

    Reads what manifests name at this moment; call it again to see what has come since. Raises NoTables,
    DamagedTables.
    """
    return read_range(spark, Path(folder), table, 0, None)


def state_as_of(
    spark: SparkSession,
    folder: Folder,
    *,
    offset: int | None = None,
    time: datetime | None = None,
) -> DataFrame:
    """The state as it was when the record at `offset` (inclusive) was the log's last one.

    Or at `time`: before the first record in the log that is newer. Neither: now, everything that is in
    `records`. Columns are those of `state`. Raises NotInTables, NoTables, DamagedTables.
    """
    from pyspark.sql import functions as f

    folder = Path(folder)
    assert offset is None or time is None, "one of them says it all"
    wanted = _end_offset(spark, folder, offset, time)
    state = newest(folder, "state")
    start = 0
    parts = []
    if state is not None and state.end_offset <= wanted:
        start = state.end_offset
        parts.append(read_range(spark, folder, "state", 0, None))
    records = read_range(spark, folder, "records", start, wanted)
    parts.append(records.where("control_type is null and key is not null").select(STATE.names))
    rows = parts[0].unionByName(parts[1]) if len(parts) > 1 else parts[0]
    others = [name for name in STATE.names if name != "key"]
    newest_row = f.max_by(f.struct(*others), "offset").alias("row")
    found = rows.groupBy("key").agg(newest_row).select("key", "row.*")
    return found.where("value is not null").select(STATE.names)


def _end_offset(
    spark: SparkSession, folder: Path, offset: int | None, time: datetime | None
) -> int:
    """The offset (exclusive) up to which records count."""
    from pyspark.sql import functions as f

    records = read_range(spark, folder, "records", 0, None)
    log = newest(folder, "log")
    if log is None:
        raise NotInTables(f"{folder} holds no records yet")
    wanted = log.end_offset
    if offset is not None:
        wanted = offset + 1
    elif time is not None:
        newer = records.where(f.col("timestamp") > f.lit(time)).agg(f.min("offset")).first()
        assert newer is not None, "an aggregate has one row"
        wanted = log.end_offset if newer[0] is None else newer[0]
    if not max(log.complete_from, 1) <= wanted <= log.end_offset:
        raise NotInTables(
            f"the tables know the state as of offsets {max(log.complete_from - 1, 0)} to "
            f"{log.end_offset - 1}, not as of {wanted - 1}"
            + (": before, a snapshot had replaced the log" if log.complete_from else "")
        )
    return wanted


def read_range(
    spark: SparkSession, folder: Path, table: str, start: int, end: int | None
) -> DataFrame:
    """Rows of a table with start <= offset < end, out of those files that can have some."""
    from pyspark.sql.pandas.types import from_arrow_schema

    files = data_files(folder, table)
    if table == "records":
        files = [
            file
            for file in files
            if (file.last_offset or 0) >= start and (end is None or (file.first_offset or 0) < end)
        ]
    paths = [folder / file.path for file in files]
    schema = from_arrow_schema(TABLES[table])
    if not paths:
        return spark.createDataFrame([], schema)
    # Spark takes a path for a pattern.
    literal = [_PATTERN.sub(r"\\\g<0>", str(path.absolute())) for path in paths]
    found = spark.read.schema(schema).parquet(*[f"file://{path}" for path in literal])
    if start:
        found = found.where(found["offset"] >= start)
    return found if end is None else found.where(found["offset"] < end)
