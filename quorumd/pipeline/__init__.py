"""The replicated log in Spark: a data source, tables, an audit and a report.

    from quorumd.pipeline import register

    register(spark)
    spark.read.format("quorumd").option("bootstrap.servers", "localhost:9093").load()

Importing it needs no Spark; the parts that read files and records need none either.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from os import PathLike

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["read_table", "register", "state_as_of", "table_files"]


def register(spark: SparkSession) -> None:
    """Makes format("quorumd") known to a session, if Spark has not found it by itself."""
    from pyspark_quorumd import DefaultSource

    spark.dataSource.register(DefaultSource)


def read_table(spark: SparkSession, folder: str | PathLike[str], table: str) -> DataFrame:
    """A table of those that quorumd-pipeline keeps in a folder: see quorumd.pipeline.tables."""
    from quorumd.pipeline import tables

    return tables.read_table(spark, folder, table)


def state_as_of(
    spark: SparkSession,
    folder: str | PathLike[str],
    *,
    offset: int | None = None,
    time: datetime | None = None,
) -> DataFrame:
    """Keys and values as of an offset (inclusive) or a time: see quorumd.pipeline.tables."""
    from quorumd.pipeline import tables

    return tables.state_as_of(spark, folder, offset=offset, time=time)


def table_files(folder: str | PathLike[str], table: str) -> list[str]:
    """The Parquet files that are the table now, for engines other than Spark."""
    from quorumd.pipeline import tables

    return tables.table_files(folder, table)
