"""The output formats of `dump-log`: lines for people, JSON objects for programs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from quorumd.cli.control_text import control_as_dict, control_lines
from quorumd.cli.dump_reader import DumpedBatch, FileSummary
from quorumd.cli.index_files import IndexFile
from quorumd.cli.tail import record_as_dict
from quorumd.cli.text import bytes_text, counted, printable, timestamp_text, to_json
from quorumd.storage.reader import FileTail, LogFile, TailKind
from quorumd.wire.records import BatchHeader

CODEC_NAMES = ("none", "gzip", "snappy", "lz4", "zstd", "codec 5", "codec 6", "codec 7")


class DumpFormat(Protocol):
    """An output format: called for each file, batch and index in order; `is_short` leaves batches out."""

    is_short: bool

    def file(self, file: LogFile) -> None: ...

    def batch(self, file: LogFile, batch: DumpedBatch) -> None: ...

    def end(self, file: LogFile, summary: FileSummary) -> None: ...

    def index(self, path: Path, index: IndexFile) -> None: ...


class TextDump:
    """Lines for people."""

    def __init__(self, write: Callable[[str], object], *, is_short: bool) -> None:
        self._write = write
        self.is_short = is_short

    def file(self, file: LogFile) -> None:
        self._write(f"{file.path}\n")
        if file.snapshot_id is not None:
            end_offset, epoch = file.snapshot_id
            self._write(f"  snapshot of everything below offset {end_offset}, epoch {epoch}\n")

    def batch(self, file: LogFile, batch: DumpedBatch) -> None:
        if self.is_short:
            return
        self._write(f"  {_batch_line(batch.found.position, batch.found.header)}\n")
        for offset, record, voters_before in batch.control:
            first, *more = control_lines(record, voters_before)
            self._write(f"    {offset}  {first}\n")
            for line in more:
                self._write(f"      {line}\n")
        for each in batch.records or ():
            cells = [str(each.offset), timestamp_text(each.timestamp)]
            cells += (f"key {printable(each.key)}", f"value {printable(each.value)}")
            cells += (f"{printable(name)}={printable(value)}" for name, value in each.headers)
            self._write(f"    {'  '.join(cells)}\n")
        for problem in batch.problems:
            self._write(f"    ! {problem}\n")

    def end(self, file: LogFile, summary: FileSummary) -> None:
        self._write(f"  {_summary_line(summary)}{_tail_text(file.tail)}\n")

    def index(self, path: Path, index: IndexFile) -> None:
        self._write(f"{path}\n")
        if not self.is_short:
            for first, second in index.entries:
                line = (
                    f"offset {first}  byte {second}"
                    if index.kind == "offset"
                    else f"time {timestamp_text(first)}  offset {second}"
                )
                self._write(f"  {line}\n")
        count = len(index.entries)
        entries = "1 entry" if count == 1 else f"{count:,} entries"
        self._write(f"  {entries}, {bytes_text(index.size_bytes)}\n")


def _batch_line(position: int, header: BatchHeader) -> str:
    cells = [
        f"offset {_offsets(header)}",
        f"epoch {header.epoch}",
        counted(header.record_count, "record"),
        f"{header.size_bytes} bytes at {position}",
        timestamp_text(header.max_timestamp),
    ]
    if header.is_control:
        cells.append("control")
    if header.is_transactional:
        cells.append("transactional")
    if header.codec:
        cells.append(CODEC_NAMES[header.codec])
    if header.producer_id >= 0:
        cells.append(
            f"producer {header.producer_id} epoch {header.producer_epoch} "
            f"sequence {header.base_sequence}"
        )
    return "  ".join(cells)


def _offsets(header: BatchHeader) -> str:
    if header.last_offset_delta <= 0:
        return str(header.base_offset)
    return f"{header.base_offset}-{header.last_offset}"


def _summary_line(summary: FileSummary) -> str:
    if not summary.batches:
        return "no batches"
    epochs = (
        f"epoch {summary.first_epoch}"
        if summary.first_epoch == summary.last_epoch
        else f"epochs {summary.first_epoch}-{summary.last_epoch}"
    )
    return (
        f"{counted(summary.batches, 'batch')}, {counted(summary.records, 'record')} and "
        f"{counted(summary.control_records, 'control record')}, "
        f"offsets {summary.first_offset}-{summary.next_offset - 1}, {epochs}, "
        f"{bytes_text(summary.end_position)}"
    )


def _tail_text(tail: FileTail | None) -> str:
    if tail is None or tail.kind is TailKind.NONE:
        return ""
    if tail.kind is TailKind.ZEROS:
        return f", then {bytes_text(tail.size_bytes)} of zeros written ahead"
    return f", then {bytes_text(tail.size_bytes)} that are no batch"


class JsonDump:
    """One object per line: a `batch` for each batch, then a `file` for each file."""

    def __init__(self, write: Callable[[str], object], *, is_short: bool) -> None:
        self._write = write
        self.is_short = is_short

    def _show(self, value: dict[str, Any]) -> None:
        self._write(to_json(value) + "\n")

    def file(self, file: LogFile) -> None:
        """Nothing before the batches: every object names its file."""

    def batch(self, file: LogFile, batch: DumpedBatch) -> None:
        if self.is_short:
            return
        header = batch.found.header
        described: dict[str, Any] = {
            "type": "batch",
            "file": str(file.path),
            "position": batch.found.position,
            "size_bytes": header.size_bytes,
            "base_offset": header.base_offset,
            "last_offset": header.last_offset,
            "epoch": header.epoch,
            "record_count": header.record_count,
            "base_timestamp": header.base_timestamp,
            "max_timestamp": header.max_timestamp,
            "codec": CODEC_NAMES[header.codec],
            "is_control": header.is_control,
            "is_transactional": header.is_transactional,
            "producer_id": header.producer_id,
            "producer_epoch": header.producer_epoch,
            "base_sequence": header.base_sequence,
            "crc": header.crc,
            "crc_is_valid": batch.found.crc_is_valid,
        }
        if batch.control:
            described["control_records"] = [
                {"offset": offset, **control_as_dict(record, before)}
                for offset, record, before in batch.control
            ]
        if batch.records is not None:
            described["records"] = [
                record_as_dict(record, epoch=header.epoch) for record in batch.records
            ]
        if batch.problems:
            described["problems"] = list(batch.problems)
        self._show(described)

    def end(self, file: LogFile, summary: FileSummary) -> None:
        tail = file.tail
        described: dict[str, Any] = {
            "type": "file",
            "file": str(file.path),
            "batches": summary.batches,
            "records": summary.records,
            "control_records": summary.control_records,
            "first_offset": summary.first_offset,
            "next_offset": summary.next_offset,
            "first_epoch": summary.first_epoch,
            "last_epoch": summary.last_epoch,
            "data_bytes": summary.end_position,
        }
        if file.snapshot_id is not None:
            end_offset, epoch = file.snapshot_id
            described["snapshot"] = {"end_offset": end_offset, "epoch": epoch}
        if tail is not None:
            described["tail"] = {
                "kind": tail.kind.value,
                "position": tail.position,
                "size_bytes": tail.size_bytes,
            }
        described["damage"] = summary.damage
        self._show(described)

    def index(self, path: Path, index: IndexFile) -> None:
        names = ("offset", "position") if index.kind == "offset" else ("timestamp", "offset")
        entries = [dict(zip(names, entry, strict=True)) for entry in index.entries]
        described: dict[str, Any] = {"type": f"{index.kind}_index", "file": str(path)}
        if not self.is_short:
            described["entries"] = entries
        described["entry_count"] = len(entries)
        described["damage"] = [] if index.problem is None else [index.problem]
        self._show(described)
