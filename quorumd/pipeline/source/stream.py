"""The streaming reader: range after range of the log, each exactly as long as Spark decides.

An offset of the stream is {"offset": N}: everything below N has been read. The first one may also name
the snapshots that the stream begins with, because a newer snapshot would be other rows:
{"offset": 0, "state": {label: [end offset, epoch, log start]}}.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from quorumd.pipeline.errors import BadOption, DataLost
from quorumd.pipeline.source.columns import chosen_columns, shown
from quorumd.pipeline.source.offset_range import (
    LESS_STRICT,
    LogBounds,
    OffsetRange,
    SnapshotRange,
    deleted_offset,
    is_strict,
    offset_range,
    start_offset,
)
from quorumd.pipeline.source.options import LATEST, Options, Position
from quorumd.pipeline.source.views import SourceView, open_view
from quorumd.raft.types import SnapshotId

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

Offset = dict[str, Any]


class QuorumdStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """On the driver for as long as the query runs; a copy of it goes to each task."""

    def __init__(self, options: Options, schema: StructType) -> None:
        if options.ending is not None:
            raise BadOption(
                "endingOffsets and endingTimestamp are for batch reads: a stream goes on"
            )
        self._options = options
        self._columns = chosen_columns(options.table, schema)
        self._target: int | None = None
        self._last_end: int | None = None
        self._view: SourceView | None = None

    def initialOffset(self) -> Offset:  # noqa: N802 (Spark's name)
        """Offset at which a new query begins. Raises BadOption, DataLost, LogUnreachable."""
        view = self._opened()
        logs = view.bounds()
        starting = self._options.starting or Position(LATEST)
        shortest = min(logs, key=lambda bounds: bounds.end)
        start = start_offset(self._options, starting, logs, view.offset_lookup(shortest))
        state: dict[str, list[int]] = {}
        for bounds in logs:
            strict = is_strict(self._options, bounds, start)
            begin = offset_range(bounds, start, bounds.end, strict=strict)
            if begin.snapshot_range is not None:
                state[bounds.label] = [*begin.snapshot_range.snapshot, begin.snapshot_range.end]
        return {"offset": start, "state": state} if state else {"offset": start}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 (Spark's name)
        """End of the next range (exclusive), as far as the limit allows. Raises DataLost, LogUnreachable."""
        end = self._end(reaching=start["offset"])
        if end < start["offset"]:
            if self._options.fail_on_data_loss:
                raise DataLost(
                    f"everything below offset {start['offset']} was read, but the log ends at {end}. Has the "
                    f"quorum been formatted anew? Begin with a new checkpoint. {LESS_STRICT}"
                )
            return start
        if self._target is not None:
            end = min(end, self._target)
        if isinstance(limit, ReadMaxRows):
            # The contents of a snapshot are read at once: its rows are not counted by offsets.
            states = [below for _, _, below in start.get("state", {}).values()]
            end = min(end, max([start["offset"], *states]) + limit.max_rows)
        return {"offset": end} if end > start["offset"] else start

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 (Spark's name)
        """maxOffsetsPerTrigger."""
        most = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 (Spark's name)
        """From now on what is committed at this moment is the end."""
        self._target = self._end()

    def reportLatestOffset(self) -> Offset:  # noqa: N802 (Spark's name)
        """The end of the log, whatever the limits: the query's progress shows the lag with it."""
        return {"offset": self._end() if self._last_end is None else self._last_end}

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """One task a split of [start, end). Raises DataLost, LogUnreachable."""
        if start["offset"] >= end["offset"]:
            return []
        view = self._opened()
        logs = view.bounds(reaching=end["offset"])
        ranges = [(bounds, self._range(bounds, start, end["offset"])) for bounds in logs]
        return [InputPartition(split) for split in view.splits(ranges)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a split."""
        if partition.value is None:
            return iter(())
        return shown(partition.value.read(self._options), self._options, self._columns)

    def stop(self) -> None:
        """Closes connections."""
        if self._view is not None:
            self._view.close()
            self._view = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_view": None}

    def _range(self, bounds: LogBounds, start: Offset, end: int) -> OffsetRange:
        """Range to read of one log; the same as last time if it is asked for again."""
        strict = self._options.fail_on_data_loss
        if end > bounds.end and strict:
            raise DataLost(f"offsets below {end} were there before, but {bounds}. {LESS_STRICT}")
        pinned = start.get("state", {}).get(bounds.label)
        if pinned is None:
            return offset_range(bounds, start["offset"], end, strict=strict)
        end_offset, epoch, below = pinned
        if bounds.start > below:
            if strict:
                raise deleted_offset(below, bounds)
            return offset_range(bounds, start["offset"], end, strict=False)
        return OffsetRange(
            SnapshotRange(SnapshotId(end_offset, epoch), start["offset"], below, True), below, end
        )

    def _end(self, reaching: int | None = None) -> int:
        self._last_end = self._opened().end(reaching)
        return self._last_end

    def _opened(self) -> SourceView:
        if self._view is None:
            self._view = open_view(self._options)
        return self._view
