"""The batch reader: the log as it is when the query is planned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from quorumd.pipeline.source.columns import chosen_columns, shown
from quorumd.pipeline.source.offset_range import batch_range
from quorumd.pipeline.source.options import Options
from quorumd.pipeline.source.views import viewing

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class QuorumdReader(DataSourceReader):
    """Made on the driver and sent to the executors: holds only options and columns."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._columns = chosen_columns(options.table, schema)

    def partitions(self) -> list[InputPartition]:
        """One task a split. Raises BadOption, DataLost, LogUnreachable."""
        with viewing(self._options) as view:
            ranges = [
                (bounds, batch_range(self._options, bounds, view.offset_lookup(bounds)))
                for bounds in view.bounds()
            ]
            return [InputPartition(split) for split in view.splits(ranges)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a split; of none if Spark asks for an empty log."""
        if partition.value is None:
            return iter(())
        return shown(partition.value.read(self._options), self._options, self._columns)
