"""The figures of the report, read from the tables. No Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from quorumd.pipeline.errors import PipelineError
from quorumd.pipeline.schemas import RECORDS
from quorumd.pipeline.tables.manifests import (
    Arrival,
    DamagedTables,
    DataFile,
    Manifest,
    NoTables,
    check_folder,
    data_files,
    newest,
    read_chain,
    table_files,
)
from quorumd.pipeline.tables.parquet import read_rows

FactRow = dict[str, Any]

BUCKETS_MAX: Final = 160
_BUCKETS_S: Final = (1, 2, 5, 10, 30, 60, 300, 600, 1800, 3600, 6 * 3600, 86_400)
_TIME_S_MAX: Final = 221_845_392_000
"""The year 9000: Python's calendar ends with 9999, and plots need room."""
_FINDINGS_COLUMNS: Final = ("severity", "kind", "offset", "replicas", "what")


class BadFindings(PipelineError):
    """A file of findings that is none."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class AppendRate:
    """Records by time: buckets of `width_s` seconds, each with its start (s) and its count."""

    width_s: int
    starts_s: Sequence[int]
    counts: Sequence[int]


@dataclass(frozen=True, slots=True)
class ReportFacts:
    """`last` is the newest manifest of the log; times of the rows are as in the tables.

    `rate` counts records with a time before the year 9000. `findings` is None without an audit. `keys` is
    the number of keys with a value, as of `state_end` (exclusive). `records` counts those of control
    batches, too; `files` are those of `records`.
    """

    folder: Path
    last: Manifest
    records: int
    arrivals: Sequence[Arrival]
    files: Sequence[DataFile]
    leadership: Sequence[FactRow]
    voter_sets: Sequence[FactRow]
    rate: AppendRate
    control_records: int
    first_s: float
    last_s: float
    keys: int
    state_end: int
    changes: Counter[str]
    findings: Sequence[FactRow] | None


def read_facts(folder: Path, findings: Path | None = None) -> ReportFacts:
    """Reads the tables, and the findings of an audit if there are any.

    Raises NoTables, DamagedTables, BadFindings.
    """
    try:
        return _facts(folder, findings)
    except pa.ArrowException as error:
        raise DamagedTables(f"a file of the tables in {folder} can't be read: {error}") from None


def _facts(folder: Path, findings: Path | None) -> ReportFacts:
    check_folder(folder)
    manifests = read_chain(folder, "log")
    if not manifests:
        raise NoTables(f"{folder} holds no records yet: let quorumd-pipeline run or batch go first")
    seconds, control = _by_second(folder)
    state = newest(folder, "state")
    rate = _bucketed(seconds)
    times = sorted(seconds) or [manifests[-1].written_ms // 1000]
    return ReportFacts(
        folder=folder,
        last=manifests[-1],
        records=sum(manifest.rows for manifest in manifests),
        arrivals=[
            each for manifest in manifests for each in manifest.arrivals if each.newest_ms > 0
        ],
        files=data_files(folder, "records"),
        leadership=read_rows(folder, "leadership"),
        voter_sets=read_rows(folder, "voter_sets"),
        rate=rate,
        control_records=control,
        first_s=times[0],
        last_s=times[-1],
        keys=sum(file.rows for file in data_files(folder, "state")),
        state_end=state.end_offset if state is not None else 0,
        changes=_changes(folder),
        findings=_findings(findings),
    )


def _by_second(folder: Path) -> tuple[Counter[int], int]:
    """Records by the second of their time, and the number of control records."""
    files = table_files(folder, "records")
    found: Counter[int] = Counter()
    control = 0
    for batch in ds.dataset(files, schema=RECORDS).to_batches(
        columns=["timestamp", "control_type"]
    ):
        micros = batch.column("timestamp").cast(pa.int64()).drop_null().to_numpy()
        # A record without a time has -1 ms.
        is_time = (micros > 0) & (micros < _TIME_S_MAX * 1_000_000)
        seconds, counts = np.unique(micros[is_time] // 1_000_000, return_counts=True)
        found.update(dict(zip(seconds.tolist(), counts.tolist(), strict=True)))
        control += len(batch) - batch.column("control_type").null_count
    return found, control


def _bucketed(seconds: Counter[int]) -> AppendRate:
    if not seconds:
        return AppendRate(1, [], [])
    first, last = min(seconds), max(seconds)
    fitting = (width for width in _BUCKETS_S if (last - first) / width < BUCKETS_MAX)
    width = next(fitting, -(-(last - first) // BUCKETS_MAX))
    start = first - first % width
    counts = [0] * ((last - start) // width + 1)
    for second, count in seconds.items():
        counts[(second - start) // width] += count
    return AppendRate(width, [start + width * i for i in range(len(counts))], counts)


def _changes(folder: Path) -> Counter[str]:
    """Numbers of records that created, updated and deleted a key."""
    found: Counter[str] = Counter()
    for path in table_files(folder, "key_history"):
        for each in pc.value_counts(pq.read_table(path, columns=["change"])["change"]).to_pylist():
            found[each["values"]] += each["counts"]
    return found


def _findings(path: Path | None) -> list[FactRow] | None:
    """The rows of a file, or of the file in a folder, that `audit --findings` has written."""
    if path is None:
        return None
    file = path / "findings.parquet" if path.is_dir() else path
    try:
        rows: list[FactRow] = pq.read_table(file, columns=list(_FINDINGS_COLUMNS)).to_pylist()
    except FileNotFoundError:
        raise BadFindings(
            f"{file} is not there: quorumd-pipeline audit DIR... --findings {path} makes it"
        ) from None
    except (pa.ArrowException, OSError) as error:
        raise BadFindings(f"{file} holds no findings of an audit: {error}") from None
    return rows
