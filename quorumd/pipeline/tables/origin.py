"""The log that tables are made of: how it is named, and whether it is the one that they were begun with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from quorumd.pipeline.errors import BadOption, DataLost
from quorumd.pipeline.source.offset_range import LogBounds, OffsetRange, SnapshotRange
from quorumd.pipeline.source.options import (
    CONTROL_RECORDS,
    KAFKA_PREFIX,
    LOG_RECORDS,
    Options,
    parse_options,
)
from quorumd.pipeline.source.views import SourceView, viewing
from quorumd.pipeline.tables.history import ControlRow
from quorumd.pipeline.tables.manifests import Manifest
from quorumd.wire.control_records import ControlType

_ANEW = "Name another folder in --output to begin anew"


@dataclass(frozen=True, slots=True)
class LogOrigin:
    """A live quorum (host:port,...) or the directory of one replica; `timeout_ms` without a response."""

    servers: str | None
    path: str | None
    replica: int | None = None
    timeout_ms: int | None = None
    security: Mapping[str, str] = field(default_factory=dict)
    """Security of the connections to a live quorum, with the keys of Kafka's clients."""

    def options(self) -> dict[str, str]:
        """As the data source takes them."""
        given = {
            "bootstrap.servers": self.servers,
            "paths": None if self.path is None else json.dumps([self.path]),
            "replica": self.replica,
            "timeoutMs": self.timeout_ms,
            "table": LOG_RECORDS,
        }
        found = {name: str(value) for name, value in given.items() if value is not None}
        return found | {f"{KAFKA_PREFIX}{name}": text for name, text in self.security.items()}

    def options_from(self, end_offset: int) -> dict[str, str]:
        """To read on where the tables end; from the beginning, with a snapshot, if they are empty."""
        return {**self.options(), "startingOffsets": str(end_offset) if end_offset else "earliest"}


def check_origin(origin: LogOrigin, last: Manifest | None) -> int:
    """Check that the log can be read, and continues what the tables hold. Returns its end (exclusive).

    Raises BadOption, LogUnreachable, StorageError; DataLost if it is another log or was cut.
    """
    options = parse_options(origin.options())
    with viewing(options) as view:
        logs = view.bounds()
        if len(logs) > 1:
            where = ", ".join(bounds.label for bounds in logs)
            raise BadOption(
                f"{origin.path} holds {len(logs)} replicas ({where}), and tables are made of one: choose "
                "it with --replica, or name its directory"
            )
        (bounds,) = logs
        if last is not None:
            _check_continues(options, view, bounds, last)
        return bounds.end


class LogBeginning(NamedTuple):
    """From which offset on every record was in the log, and the voter set that its snapshot holds."""

    complete_from: int
    control: list[ControlRow]


def beginning(given: Mapping[str, str]) -> LogBeginning:
    """Beginning of a log now, which is no less than it was when the log was read before.

    Takes options of the data source. Raises LogUnreachable, DataLost, StorageError, DamagedBatch.
    """
    options = replace(parse_options(given), table=CONTROL_RECORDS)
    with viewing(options) as view:
        (bounds,) = view.bounds()
        if not bounds.start or bounds.snapshot is None:
            return LogBeginning(bounds.start, [])
        end = bounds.snapshot.end_offset
        offsets = OffsetRange(SnapshotRange(bounds.snapshot, 0, end, True), 0, 0)
        rows = [
            # The batches of a snapshot are not those that were in the log.
            row._replace(batch_base_offset=row.offset)
            for split in view.splits([(bounds, offsets)])
            for batch in split.read(options)
            for row in control_rows(batch)
            if row.control_type == ControlType.KRAFT_VOTERS
        ]
        return LogBeginning(end, rows)


def first_batch_offsets(origin: LogOrigin) -> int:
    """So many offsets the first batch must have to reach the end of a snapshot that the log begins with."""
    with viewing(parse_options(origin.options())) as view:
        (bounds,) = view.bounds()
        return max(0, bounds.snapshot.end_offset - bounds.start) if bounds.snapshot else 0


def control_rows(rows: pa.RecordBatch) -> list[ControlRow]:
    """The control records among rows of `records`."""
    types = rows.column("control_type")
    if types.null_count == len(types):
        return []
    names = ["offset", "timestamp", "epoch", "batch_base_offset", "control_type", "key", "value"]
    chosen = rows.filter(pc.is_valid(types)).select(names)
    return [ControlRow(*row.values()) for row in chosen.to_pylist()]


def _check_continues(options: Options, view: SourceView, bounds: LogBounds, last: Manifest) -> None:
    end = last.end_offset
    if bounds.end < end:
        raise DataLost(
            f"the tables hold offsets below {end}, but {bounds}. Is it the same quorum, and has the log "
            f"not been formatted or cut? {_ANEW}"
        )
    if bounds.start > end:
        raise DataLost(
            f"the tables end at offset {end}, but {bounds}: what was in between has been deleted, and the "
            f"snapshot holds only what is left of it. {_ANEW}"
        )
    if bounds.start < end:
        offsets = OffsetRange(None, end - 1, end)
        rows = [
            row
            for split in view.splits([(bounds, offsets)])
            for batch in split.read(options)
            for row in batch.select(["crc"]).to_pylist()
        ]
        if not any(row["crc"] in last.last_crcs for row in rows):
            raise DataLost(
                f"offset {end - 1} is in the tables, but another record has it in this log. It is another "
                f"quorum's, or was read before it was committed and then replaced. {_ANEW}"
            )
