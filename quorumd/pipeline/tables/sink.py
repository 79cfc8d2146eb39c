"""The data source `quorumd_tables`, a sink: it writes the rows of a query to the tables.

Tasks write Parquet files that are not visible yet and report them; the commit makes them visible. A task that
runs twice leaves a file that no manifest names. Options: folder, token; of the log originSecret, which is the
data source's options as JSON; for derived tables end.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from quorumd.pipeline.tables.commit import TaskOutput, commit_log, commit_state
from quorumd.pipeline.tables.manifests import DataFile
from quorumd.pipeline.tables.origin import control_rows
from quorumd.pipeline.tables.output import unusable
from quorumd.pipeline.tables.parquet import TableWriter
from quorumd.pipeline.tables.schemas import KEY_HISTORY, STATE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

NAME = "quorumd_tables"
ORIGIN = "originSecret"
"""An option with this word in its name is hidden in Spark's plans and logs: passwords may be in it."""


def register_sink(spark: SparkSession) -> None:
    """Makes the sink known to a session."""
    spark.dataSource.register(TablesSink)


class TablesSink(DataSource):
    """format("quorumd_tables")."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """The writer of the log, or with the option `end` of the derived tables."""
        folder, token = Path(self.options["folder"]), self.options["token"]
        if "end" in self.options:
            return _StateWriter(folder, token, int(self.options["end"]))
        return _LogWriter(folder, token, json.loads(self.options[ORIGIN]))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802 (Spark's name)
        """The writer of the log."""
        origin = json.loads(self.options[ORIGIN])
        return _LogStreamWriter(Path(self.options["folder"]), self.options["token"], origin)


@dataclass(slots=True)
class _LogMessage(WriterCommitMessage):
    written: TaskOutput


@dataclass(slots=True)
class _StateMessage(WriterCommitMessage):
    files: list[tuple[str, DataFile]]


class _LogFiles:
    """The common part of the writers of a batch and of a stream."""

    def __init__(self, folder: Path, token: str, origin: dict[str, str]) -> None:
        self._folder = folder
        self._token = token
        self._origin = origin

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with _writing(self._folder):
            return _LogMessage(write_log(self._folder, iterator))

    def _commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        with _writing(self._folder):
            commit_log(self._folder, self._token, _written(messages), self._origin)


class _LogWriter(_LogFiles, DataSourceArrowWriter):
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._commit(messages)


class _LogStreamWriter(_LogFiles, DataSourceStreamArrowWriter):
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 (Spark's name)
        self._commit(messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 (Spark's name)
        """Nothing: files without a manifest don't count, and the next run deletes them."""


class _StateWriter(DataSourceArrowWriter):
    def __init__(self, folder: Path, token: str, end_offset: int) -> None:
        self._folder = folder
        self._token = token
        self._end_offset = end_offset

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with _writing(self._folder):
            return _StateMessage(write_derived(self._folder, iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        files = [
            file for each in messages if isinstance(each, _StateMessage) for file in each.files
        ]
        with _writing(self._folder):
            commit_state(self._folder, self._token, self._end_offset, files)


def write_log(folder: Path, batches: Iterator[pa.RecordBatch]) -> TaskOutput:
    """The files of `records` out of rows of the log, with the facts that the commit needs."""
    written = TaskOutput()
    writer = TableWriter(folder, "records")
    for rows in batches:
        if not rows.num_rows:
            continue
        is_empty = rows.column("topic").is_null()
        records = rows.filter(pc.invert(is_empty))
        writer.write(records)
        written.control += control_rows(records)
        written.empty_offsets += _offsets_of(rows.filter(is_empty))
        _look_at_ends(rows, written)
    written.files = writer.close()
    return written


def _offsets_of(empty: pa.RecordBatch) -> int:
    """Number of offsets that the rows of batches without records stand for."""
    counts = pc.subtract(empty.column("offset"), empty.column("batch_base_offset"))
    return int(pc.sum(counts, min_count=0).as_py()) + len(empty)


def _look_at_ends(rows: pa.RecordBatch, written: TaskOutput) -> None:
    """Takes the first and the last offset of these rows into account."""
    offsets = rows.column("offset")
    firsts = pc.if_else(rows.column("topic").is_null(), rows.column("batch_base_offset"), offsets)
    begin, last = pc.min(firsts).as_py(), pc.max(offsets).as_py()
    if written.last_offset < 0 or begin < written.first_offset:
        written.first_offset = begin
    if last < written.last_offset:
        return
    is_last = pc.equal(offsets, last)
    crcs = rows.column("crc").filter(is_last).to_pylist()
    written.last_crcs = (*(written.last_crcs if last == written.last_offset else ()), *crcs)
    # Null is a time that no timestamp can hold.
    newest = pc.max(rows.column("timestamp").filter(is_last).cast(pa.int64())).as_py()
    if newest is not None:
        written.newest_ms = newest // 1000
    written.last_offset = last


def write_derived(folder: Path, batches: Iterator[pa.RecordBatch]) -> list[tuple[str, DataFile]]:
    """The files of `state` and `key_history`, out of rows that say to which they belong."""
    columns = {"state": STATE.names, "key_history": KEY_HISTORY.names}
    writers = {table: TableWriter(folder, table) for table in columns}
    for rows in batches:
        for table, writer in writers.items():
            chosen = rows.filter(pc.equal(rows.column("table"), table))
            writer.write(chosen.select(columns[table]))
    return [(table, file) for table, writer in writers.items() for file in writer.close()]


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """A full disk and the like in a sentence: it has a long way to the user."""
    try:
        yield
    except OSError as error:
        raise unusable(folder, error) from None


def _written(messages: Sequence[WriterCommitMessage | None]) -> list[TaskOutput]:
    return [each.written for each in messages if isinstance(each, _LogMessage)]
