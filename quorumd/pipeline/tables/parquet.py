"""Parquet files as any engine can read them: no Spark, no absolute paths, whole or not there."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from quorumd.pipeline.tables.manifests import DataFile, table_files
from quorumd.pipeline.tables.schemas import TABLES

_ROW_GROUP_ROWS: Final = 256 << 10
_ROW_GROUP_BYTES: Final = 64 << 20
_FEW_VALUES: Final = {
    "topic", "partition", "timestampType", "epoch", "control_type", "replica_id", "storage_id", "change",
}  # fmt: skip


class TableWriter:
    """One file of a table, made with the first row. It has another name until it is whole."""

    def __init__(self, folder: Path, table: str) -> None:
        self._folder = folder
        self._table = table
        self._schema = TABLES[table]
        self._name = f"{uuid.uuid4().hex}.parquet"
        self._part = folder / table / f"_{self._name}"
        self._writer: pq.ParquetWriter | None = None
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._waiting_rows = self._waiting_bytes = 0
        self._first: int | None = None
        self._last: int | None = None

    def write(self, rows: pa.RecordBatch) -> None:
        """Adds rows, whose columns have the table's names and order. Raises OSError."""
        if not rows.num_rows:
            return
        rows = pa.Table.from_batches([rows]).cast(self._schema).to_batches()[0]
        self._waiting.append(rows)
        self._waiting_rows += rows.num_rows
        self._waiting_bytes += rows.nbytes
        if "offset" in self._schema.names:
            found = pc.min_max(rows.column("offset")).as_py()
            self._first = min(found["min"], found["min"] if self._first is None else self._first)
            self._last = max(found["max"], found["max"] if self._last is None else self._last)
        if self._waiting_rows >= _ROW_GROUP_ROWS or self._waiting_bytes >= _ROW_GROUP_BYTES:
            self._flush()

    def close(self) -> list[DataFile]:
        """The file, durable; none if there were no rows. Raises OSError."""
        self._flush()
        if self._writer is None:
            return []
        self._writer.close()
        handle = os.open(self._part, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
            size = os.fstat(handle).st_size
        finally:
            os.close(handle)
        self._part.rename(self._part.with_name(self._name))
        return [DataFile(f"{self._table}/{self._name}", self._rows, size, self._first, self._last)]

    def _flush(self) -> None:
        if not self._waiting:
            return
        if self._writer is None:
            few = sorted(_FEW_VALUES.intersection(self._schema.names))
            self._writer = pq.ParquetWriter(
                self._part, self._schema, compression="zstd", use_dictionary=few
            )
        self._writer.write_table(
            pa.Table.from_batches(self._waiting), row_group_size=_ROW_GROUP_ROWS
        )
        self._rows += self._waiting_rows
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0


def write_rows(folder: Path, table: str, rows: Iterable[dict[str, Any]]) -> tuple[DataFile, ...]:
    """A small table as a file. Raises OSError."""
    writer = TableWriter(folder, table)
    for batch in pa.Table.from_pylist(list(rows), TABLES[table]).to_batches():
        writer.write(batch)
    return tuple(writer.close())


def read_rows(folder: Path, table: str) -> list[dict[str, Any]]:
    """The rows of a small table as it is now. Raises DamagedTables, OSError."""
    found: list[dict[str, Any]] = []
    for path in table_files(folder, table):
        found += pq.read_table(path, schema=TABLES[table]).to_pylist()
    return found
