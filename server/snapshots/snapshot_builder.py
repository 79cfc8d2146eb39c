"""Builds the snapshot of a log up to an offset, from the newest earlier snapshot and the segments.

A pure function of the log: the file is the same byte for byte on every replica, whatever snapshot it was
built from and however little memory there was. Reads files only, and works in steps of some ms with a
pause behind each, so that a process of its own can do other things and a simulator can let
something happen in between. docs/storage-format.md says what is in a snapshot.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from quorumd.raft.types import SnapshotId
from quorumd.server.model.producer_state import ProducerState
from quorumd.storage import layout
from quorumd.storage.batch_walk import reason_of
from quorumd.storage.errors import DamagedLog, DamagedSnapshot, StorageError
from quorumd.storage.filesystem import FileSystem
from quorumd.storage.log_range import LogRange
from quorumd.storage.snapshot_file import SnapshotReader, SnapshotWriter
from quorumd.storage.snapshot_store import SnapshotStore
from quorumd.storage.sorted_runs import Block
from quorumd.storage.spillable_map import ENTRY_BYTES, SpillableMap
from quorumd.wire.batch_header import BATCH_OVERHEAD, CODEC_MASK, CONTROL_BIT, BatchHeader
from quorumd.wire.control_records import ControlType, UnknownControl, raw_control_records
from quorumd.wire.errors import CorruptBatch
from quorumd.wire.keyed_records import take_records
from quorumd.wire.records import RECORD_BYTES_MAX
from quorumd.wire.snapshot_records import RecordPacker

DEFAULT_MEMORY_BYTES: Final = 64 << 20
STEP_RECORDS: Final = 2048
STEP_BYTES: Final = 64 << 10
LARGE_BATCH_BYTES: Final = 1 << 20

_STATE_TYPES: Final = (ControlType.KRAFT_VERSION, ControlType.KRAFT_VOTERS)
_LEAST_TIMESTAMP: Final = -(1 << 63)


class BuildProgress(NamedTuple):
    """Progress of a build, in bytes of files that are read; the total is an estimate."""

    done_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltSnapshot:
    """A whole and durable file, still under its part's name.

    `empty_batches` counts those of the log, behind the snapshot that was built on, whose contents are
    no records: every reader takes them for empty.
    """

    id: SnapshotId
    size_bytes: int
    records: int
    empty_batches: int


class SnapshotBuilder:
    """One build; `run` is called once. Only one may be at work in a directory at a time."""

    def __init__(
        self,
        fs: FileSystem,
        directory: Path,
        end_offset: int,
        *,
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
    ) -> None:
        """`end_offset` (exclusive) must be committed; `memory_bytes` is for keys and values."""
        self._fs = fs
        self._directory = directory
        self._end_offset = end_offset
        self._memory_bytes = memory_bytes
        self._table = SpillableMap(
            fs, partial(layout.run_path, directory, end_offset), memory_bytes
        )
        self._base: SnapshotReader | None = None
        self._unsound: list[DamagedSnapshot] = []
        """Snapshots that might have been built on."""
        self._log: LogRange | None = None
        self._writer: SnapshotWriter | None = None
        self._part: Path | None = None
        self._producers = ProducerState()
        self._producers.commit(end_offset)
        self._state: dict[int, UnknownControl] = {}
        self._epoch = -1
        self._greatest_timestamp = _LEAST_TIMESTAMP
        self._empty_batches = 0
        self._is_room_due = False

    def run(self) -> Generator[BuildProgress, None, BuiltSnapshot]:
        """Does the work, and returns what was built.

        Leaves a whole and durable file at `layout.part_path`, nothing else; to give it its name
        (`SnapshotStore.complete_part`) is the caller's. Raises UnsuitableOffset (no batch of the log
        ends at `end_offset`), DamagedLog, DamagedSnapshot (the one that was built on), DiskFull or
        another StorageError; then nothing is left. Closed before its end it leaves parts, which
        `discard` or the next start deletes.
        """
        try:
            yield from self._read()
            built = yield from self._write()
            self._table.delete()
            self._part = None
        except Exception:
            self.close()
            self.discard()
            raise
        finally:
            self.close()
        return built

    def close(self) -> None:
        """Lets go of all files; a second time is no harm."""
        self._table.close()
        for opened in (self._base, self._log, self._writer):
            if opened is not None:
                opened.close()

    def discard(self) -> None:
        """Deletes what an unfinished build has written; a file that can't be deleted stays."""
        part, self._part = self._part, None
        with suppress(StorageError, OSError):
            self._table.delete()
        with suppress(OSError):
            if part is not None:
                self._fs.unlink(part)

    # --- reading

    def _read(self) -> Iterator[BuildProgress]:
        """Everything below the end offset, except for the records of the snapshot built on."""
        start_offset = self._open_base()
        try:
            self._log = log = LogRange(
                self._fs, self._directory, start_offset, self._end_offset, self._epoch
            )
        except DamagedLog as error:
            if self._unsound:
                raise self._unsound[-1] from error
            raise
        for data, batches in log.chunks():
            for at, header in batches:
                _, size, self._epoch, _, attributes, _, _, timestamp, producer_id, *_, count = (
                    header
                )
                if timestamp > self._greatest_timestamp:
                    self._greatest_timestamp = timestamp
                if producer_id >= 0:
                    self._producers.note(header)
                if attributes & CONTROL_BIT:
                    self._take_control(header, data[at : at + size])
                elif attributes & CODEC_MASK or count > STEP_RECORDS or size > LARGE_BATCH_BYTES:
                    for _ in self._take_in_steps(header, data[at : at + size]):
                        yield self._progress()
                else:
                    self._take(header, data, at, at + size, count)
                if self._is_room_due:
                    for _ in self._make_room():
                        yield self._progress()
            yield self._progress()

    def _open_base(self) -> int:
        """Opens the newest earlier snapshot; returns where it ends, 0 if there is none."""
        store = SnapshotStore(self._fs, self._directory)
        found = [facts for facts in store.open() if 0 < facts.id.end_offset < self._end_offset]
        too_new = layout.snapshot_path(self._directory, SnapshotId(self._end_offset, 0))
        self._unsound = [damage for damage in store.damaged if damage.path < too_new]
        if not found:
            return 0
        newest = found[-1]
        path = layout.snapshot_path(self._directory, newest.id)
        self._base = SnapshotReader(self._fs, path, newest.id)
        self._epoch = newest.id.epoch
        self._greatest_timestamp = newest.last_contained_log_timestamp
        self._state = {raw.type: raw for raw in self._base.state}
        self._producers.load(newest.producers)
        return newest.id.end_offset

    def _take_control(self, header: BatchHeader, batch: bytes) -> None:
        try:
            found = raw_control_records(batch)
        except CorruptBatch as error:
            raise DamagedLog(
                f"a control batch can't be read: {reason_of(error)}",
                path=self._directory,
                offset=header.base_offset,
            ) from error
        for raw, _ in found:
            if raw.type in _STATE_TYPES:
                self._state[raw.type] = raw

    def _take(self, header: BatchHeader, data: bytes, at: int, end: int, count: int) -> None:
        """A batch that is not large and not compressed."""
        fresh: dict[bytes, bytes] = {}
        try:
            records, position, _ = take_records(
                header,
                data,
                at + BATCH_OVERHEAD,
                end,
                first=0,
                count=count,
                record_bytes_max=RECORD_BYTES_MAX,
                held=fresh,
            )
            if records != count or position != end:
                raise CorruptBatch("it is not as many records as it says")
        except CorruptBatch:
            self._empty_batches += 1
            return
        self._table.newest.update(fresh)
        self._is_room_due = self._table.added(count, end - at)

    def _take_in_steps(self, header: BatchHeader, batch: bytes) -> Iterator[None]:
        """Any batch: first to see that all of it can be read, and for a large one then once more."""
        fresh: dict[bytes, bytes] = {}
        records = size_bytes = 0
        is_large = False
        try:
            for step_records, step_bytes in _steps(header, batch, fresh):
                records += step_records
                size_bytes += step_bytes
                if size_bytes + records * ENTRY_BYTES > self._memory_bytes // 4:
                    is_large = True
                    fresh.clear()
                yield
        except CorruptBatch:
            self._empty_batches += 1
            return
        if not is_large:
            self._table.newest.update(fresh)
            self._is_room_due = self._table.added(records, size_bytes)
            return
        for step_records, step_bytes in _steps(header, batch, self._table.newest):
            if self._table.added(step_records, step_bytes):
                yield from self._make_room()
            yield

    def _make_room(self) -> Iterator[None]:
        self._is_room_due = False
        yield from self._table.make_room()

    # --- writing

    def _write(self) -> Generator[BuildProgress, None, BuiltSnapshot]:
        snapshot_id = SnapshotId(self._end_offset, self._epoch)
        self._part = part = layout.part_path(self._directory, snapshot_id)
        self._writer = writer = SnapshotWriter(
            self._fs,
            part,
            snapshot_id,
            self._greatest_timestamp,
            [self._state[kind] for kind in _STATE_TYPES if kind in self._state],
            self._producers.to_snapshot(),
        )
        packer = RecordPacker(self._greatest_timestamp, self._table.load)
        records = 0
        below = None if self._base is None else map(Block._make, self._base.records(check=False))
        for found in self._table.merged(below):
            at = 0
            while found is not None and at < len(found.keys):
                at = packer.add(found.keys, found.values, at, STEP_RECORDS)
                if packer.is_full:
                    records += packer.count
                    self._write_data(writer, packer, snapshot_id.epoch)
                yield self._progress()
            yield self._progress()
        if packer.count:
            records += packer.count
            self._write_data(writer, packer, snapshot_id.epoch)
        size_bytes = writer.finish()
        return BuiltSnapshot(
            id=snapshot_id,
            size_bytes=size_bytes,
            records=records,
            empty_batches=self._empty_batches,
        )

    @staticmethod
    def _write_data(writer: SnapshotWriter, packer: RecordPacker, epoch: int) -> None:
        count = packer.count
        writer.write_batch(packer.take(writer.next_offset, epoch), count)

    def _progress(self) -> BuildProgress:
        """Bytes read of the log and written of the snapshot, which may be as large as both."""
        log, base, writer = self._log, self._base, self._writer
        assert log is not None, "work has begun"
        base_bytes = base.size_bytes if base is not None else 0
        written_bytes = writer.size_bytes if writer is not None else 0
        total_bytes = 2 * log.size_bytes + base_bytes
        return BuildProgress(min(log.read_bytes + written_bytes, total_bytes), total_bytes)


def _steps(
    header: BatchHeader, batch: bytes, into: dict[bytes, bytes]
) -> Iterator[tuple[int, int]]:
    """Reads a batch piece by piece; yields how many records and bytes each step has read.

    Raises CorruptBatch for what quorumd.wire.records.iter_records refuses.
    """
    left = header.record_count
    if left < 0:
        raise CorruptBatch(f"a record count of {left}")
    parts: list[bytes] = []
    held_bytes = wanted_bytes = 0
    for chunk in _unpacked(header, batch):
        if not left:
            raise CorruptBatch("more than the records that the header counts")
        parts.append(chunk)
        held_bytes += len(chunk)
        if held_bytes < wanted_bytes:
            continue
        data = b"".join(parts)
        records, position, lacking_bytes = take_records(
            header,
            data,
            0,
            held_bytes,
            first=header.record_count - left,
            count=left,
            record_bytes_max=RECORD_BYTES_MAX,
            held=into,
        )
        left -= records
        held_bytes -= position
        wanted_bytes = held_bytes + lacking_bytes
        parts = [data[position:]]
        yield records, position
    if left or held_bytes:
        raise CorruptBatch("it is not as many records as it says")


def _unpacked(header: BatchHeader, batch: bytes) -> Iterator[bytes]:
    if header.attributes & CODEC_MASK:
        from quorumd.wire.compression import unpack

        return unpack(header.codec, memoryview(batch)[BATCH_OVERHEAD:])
    starts = range(BATCH_OVERHEAD, len(batch), STEP_BYTES)
    return (batch[start : start + STEP_BYTES] for start in starts)
