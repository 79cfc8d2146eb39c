"""The batch reader: the log as it is when the query is planned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from quorumd.pipeline.source.columns import chosen_columns, shown
from quorumd.pipeline.source.offset_range import batch_span
from quorumd.pipeline.source.options import Options
from quorumd.pipeline.source.views import viewing

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class QuorumdReader(DataSourceReader):
    """Made on the driver and sent to the executors: holds nothing but what is asked for."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._columns = chosen_columns(options.table, schema)

    def partitions(self) -> list[InputPartition]:
        """One task a piece. Raises BadOption, DataLost, LogUnreachable."""
        with viewing(self._options) as view:
            spans = [
                (extent, batch_span(self._options, extent, view.looking_up(extent)))
                for extent in view.extents()
            ]
            return [InputPartition(piece) for piece in view.pieces(spans)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a piece; of none if Spark asks for an empty log."""
        if partition.value is None:
            return iter(())
        return shown(partition.value.read(self._options), self._options, self._columns)
