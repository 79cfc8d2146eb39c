"""Snapshot files: written, read and checked. What is in them is docs/storage-format.md's business.

A file is a control batch with SnapshotHeader, the kraft.version and the voters; control batches with the
producer states; data batches, sorted by key; a control batch with SnapshotFooter. It has offsets 0, 1,
2, ... of its own, one epoch, one time, and never changes once it has its name.
Source: KIP-630, KIP-853; Apache Kafka 4.3, RecordsSnapshotWriter.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from quorumd.raft.types import SnapshotId
from quorumd.storage.batch_walk import BatchCursor, reason_of
from quorumd.storage.errors import DamagedSnapshot, StorageError, from_os_error
from quorumd.storage.filesystem import Buffer, FileSystem, write_all
from quorumd.wire.control_records import (
    KRAFT_VERSION_MAX,
    ControlRecord,
    ControlType,
    KRaftVersion,
    KRaftVoters,
    ProducerStates,
    ProducerStatesProducer,
    RawControl,
    SnapshotFooter,
    SnapshotHeader,
    UnknownControl,
    encode_control_batch,
    raw_control_records,
)
from quorumd.wire.errors import CorruptBatch
from quorumd.wire.records import (
    BATCH_OVERHEAD,
    BatchHeader,
    Record,
    iter_records,
)
from quorumd.wire.sequence_check import snapshot_problem
from quorumd.wire.snapshot_records import (
    SNAPSHOT_BATCH_BYTES_MAX,
    SnapshotRecords,
    read_snapshot_records,
)

T = TypeVar("T")

PRODUCERS_PER_BATCH = 2000
SYNC_STEP_BYTES = 8 << 20
"""Written bytes are synced after as many, so that no sync is long and none of the log's waits for it."""

_FOOTER_BYTES = len(
    encode_control_batch([SnapshotFooter()], base_offset=0, epoch=0, timestamp_ms=0)
)
_STATE_TYPES = (ControlType.KRAFT_VERSION, ControlType.KRAFT_VOTERS)
_FORMER_TYPES = (ControlType.FORMER_KRAFT_VERSION, ControlType.FORMER_KRAFT_VOTERS)
"""Types of the records that a restore has masked; readers skip them."""
_NO_FILE = frozenset(
    {
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.ESPIPE,
        errno.ELOOP,
        errno.ENXIO,
        errno.EACCES,
        errno.EPERM,
    }
)
"""There is no file under the name, or none that may be read; the disk is not to blame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFacts:
    """Facts of a snapshot beside its records. `kraft_version` is 0 where the log never had one."""

    id: SnapshotId
    size_bytes: int
    last_contained_log_timestamp: int
    """The greatest timestamp (ms) below the end."""
    kraft_version: int
    voters: KRaftVoters | None
    producers: tuple[ProducerStatesProducer, ...]
    """Producers, the one first that wrote longest ago."""


class SnapshotWriter:
    """Writes one snapshot to `path`, from its first byte; `finish` or `close` ends it."""

    def __init__(
        self,
        fs: FileSystem,
        path: Path,
        snapshot_id: SnapshotId,
        last_contained_log_timestamp: int,
        state: Sequence[ControlRecord],
        producers: Sequence[ProducerStatesProducer],
    ) -> None:
        """`state` is the KRaftVersion and the KRaftVoters at the end, as far as the log has them.

        An older file is written over. Raises DiskFull or another StorageError, as all methods do.
        """
        self._fs = fs
        self._path = path
        self._epoch = snapshot_id.epoch
        self._timestamp = last_contained_log_timestamp
        self.next_offset = 0
        """Of the next batch in the file."""
        self.size_bytes = self._synced_bytes = 0
        try:
            self._handle = fs.open(path, writable=True, create=True)
        except OSError as error:
            raise from_os_error(error, path, "opening") from error
        try:
            fs.truncate(self._handle, 0)
        except OSError as error:
            self.close()
            raise from_os_error(error, path, "writing the snapshot") from error
        header = SnapshotHeader(
            last_contained_log_timestamp=last_contained_log_timestamp,
            end_offset=snapshot_id.end_offset,
        )
        self._write_control([header, *state])
        for at in range(0, len(producers), PRODUCERS_PER_BATCH):
            some = tuple(producers[at : at + PRODUCERS_PER_BATCH])
            self._write_control([ProducerStates(producers=some)])

    def _write_control(self, records: Sequence[ControlRecord]) -> None:
        batch = encode_control_batch(
            records, base_offset=self.next_offset, epoch=self._epoch, timestamp_ms=self._timestamp
        )
        self.write_batch([batch], len(records))

    def write_batch(self, buffers: Sequence[Buffer], record_count: int) -> None:
        """Appends a whole batch, in as many buffers as it is; it begins at `next_offset`."""
        try:
            write_all(self._fs, self._handle, buffers, self.size_bytes)
            self.size_bytes += sum(map(len, buffers))
            self.next_offset += record_count
            if self.size_bytes - self._synced_bytes >= SYNC_STEP_BYTES:
                self._fs.fdatasync(self._handle)
                self._synced_bytes = self.size_bytes
        except OSError as error:
            self.close()
            raise from_os_error(error, self._path, "writing the snapshot") from error

    def finish(self) -> int:
        """Writes the footer and makes the file durable under the name that it has; returns its size."""
        self._write_control([SnapshotFooter()])
        try:
            self._fs.fsync(self._handle)
        except OSError as error:
            raise from_os_error(error, self._path, "syncing the snapshot") from error
        finally:
            self.close()
        return self.size_bytes

    def close(self) -> None:
        """Lets go of the file, whatever state it is in; a second time is no harm."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            self._fs.close(handle)


class SnapshotReader:
    """Reads one snapshot from the start to the end; all of it is checked on the way.

    Opened, it has read everything before the first data batch. Methods raise DamagedSnapshot, or
    another StorageError if reading fails.
    """

    def __init__(self, fs: FileSystem, path: Path, snapshot_id: SnapshotId) -> None:
        self._fs = fs
        self._path = path
        self._id = snapshot_id
        self._position = 0
        self._next_offset = 0
        self.state: list[UnknownControl] = []
        """The KRaftVersion and KRaftVoters records, their values as they are."""
        self._producers: list[ProducerStatesProducer] = []
        self._kraft_version = 0
        self._voters: KRaftVoters | None = None
        self.is_kafkas = False
        """Kafka has written it: its header has no field for the end offset."""
        self._handle = -1
        try:
            self._handle = fs.open(path)
            self.size_bytes = fs.size(self._handle)
            # A batch at a time: of most snapshots only the beginning and the end are read.
            self._cursor = BatchCursor(
                fs,
                self._handle,
                self.size_bytes,
                batch_bytes_max=SNAPSHOT_BATCH_BYTES_MAX,
                window_bytes=BATCH_OVERHEAD,
            )
            self._read_before_data()
        except OSError as error:
            self.close()
            raise _not_readable(error, path) from error
        except BaseException:
            self.close()
            raise

    @property
    def position(self) -> int:
        """Number of bytes that were read and found good."""
        return self._position

    def close(self) -> None:
        """Lets go of the file; a second time is no harm."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            self._fs.close(handle)

    def facts(self) -> SnapshotFacts:
        """Facts that are known before the first data batch."""
        return SnapshotFacts(
            id=self._id,
            size_bytes=self.size_bytes,
            last_contained_log_timestamp=self.last_contained_log_timestamp,
            kraft_version=self._kraft_version,
            voters=self._voters,
            producers=tuple(self._producers),
        )

    def records(self, *, check: bool) -> Iterator[SnapshotRecords]:
        """The records of each data batch, in order; at the end the footer was seen.

        Without `check` it is taken for granted that values and headers are as they should be.
        """
        last_key: bytes | None = None

        def read(header: BatchHeader, data: bytes) -> SnapshotRecords:
            nonlocal last_key
            found = read_snapshot_records(header, data, check=check)
            if last_key is not None and found.keys[0] <= last_key:
                raise CorruptBatch("the keys do not ascend")
            last_key = found.keys[-1]
            return found

        return self._data(read)

    def kafka_records(self) -> Iterator[list[Record]]:
        """The records of each data batch of a snapshot of Kafka's, which have neither keys nor headers,
        checked in their form; at the end the footer was seen."""
        return self._data(lambda header, data: list(iter_records(data)))

    def _data(self, read: Callable[[BatchHeader, bytes], T]) -> Iterator[T]:
        while not self._is_at_footer():
            header, data = self._next_batch()
            if header.is_control:
                raise self._damaged("a control batch among or behind the records is no footer")
            try:
                found = read(header, data)
            except CorruptBatch as error:
                raise self._damaged(reason_of(error)) from error
            self._move(header)
            yield found
        self._read_footer()

    def check_footer(self) -> None:
        """Checks the end of the file alone: it has to be a footer."""
        self._position = max(self._position, self.size_bytes - _FOOTER_BYTES)
        self._read_footer(is_alone=True)

    # --- parts of the file

    def _read_before_data(self) -> None:
        header, data = self._next_batch()
        records = self._control_records(header, data)
        first = records[0].record if records else None
        if not isinstance(first, SnapshotHeader):
            raise self._damaged("a snapshot begins with its header, and this does not")
        if first.end_offset not in (-1, self._id.end_offset):
            raise DamagedSnapshot(
                f"the name says offset {self._id.end_offset}, but this is the snapshot that ends at"
                f" {first.end_offset}",
                path=self._path,
                position=0,
                remedy="Give the file its right name, or move it away: nothing was changed",
            )
        self.is_kafkas = _is_of_kafka(records)
        self.last_contained_log_timestamp = first.last_contained_log_timestamp
        self._take_control(records[1:])
        self._move(header)
        while not self._is_at_footer():
            header, data = self._next_batch()
            if not header.is_control:
                return
            self._take_control(self._control_records(header, data))
            self._move(header)

    def _take_control(self, records: Sequence[RawControl]) -> None:
        for raw, record in records:
            if raw.type in _STATE_TYPES:
                if any(known.type == raw.type for known in self.state):
                    raise self._damaged(f"a second {type(record).__name__} record")
                self.state.append(raw)
                if isinstance(record, KRaftVersion):
                    self._kraft_version = record.kraft_version
                elif isinstance(record, KRaftVoters):
                    self._voters = record
            elif isinstance(record, ProducerStates):
                self._producers += record.producers
            elif not isinstance(record, UnknownControl):
                raise self._damaged(f"a {type(record).__name__} record where none belongs")

    def _is_at_footer(self) -> bool:
        return self._position >= self.size_bytes - _FOOTER_BYTES

    def _read_footer(self, *, is_alone: bool = False) -> None:
        if self._position + _FOOTER_BYTES != self.size_bytes:
            raise self._damaged("the snapshot ends without its footer")
        header, data = self._next_batch(is_alone=is_alone)
        records = self._control_records(header, data) if header.is_control else []
        if [type(each.record) for each in records] != [SnapshotFooter]:
            raise self._damaged("the snapshot ends without its footer")
        self._move(header)

    def _control_records(self, header: BatchHeader, data: bytes) -> list[RawControl]:
        if not header.is_control:
            raise self._damaged("a snapshot begins with its header, and this does not")
        try:
            found = raw_control_records(data)
        except CorruptBatch as error:
            raise self._damaged(reason_of(error)) from error
        if self.is_kafkas or _is_of_kafka(found):
            return found  # It is kept as it is: no snapshot is built from one of Kafka's.
        for _, record in found:
            # An unknown record must not be left out: the next snapshot is built from this one.
            if isinstance(record, UnknownControl):
                if record.type not in _FORMER_TYPES:
                    raise self._of_later_version(f"control records of type {record.type}")
            elif record.version:
                raise self._of_later_version(f"version {record.version} of {type(record).__name__}")
            elif isinstance(record, KRaftVersion) and record.kraft_version > KRAFT_VERSION_MAX:
                raise self._of_later_version(f"kraft.version {record.kraft_version}")
        return found

    # --- batches

    def _next_batch(self, *, is_alone: bool = False) -> tuple[BatchHeader, bytes]:
        """The batch at the position, checked; `_move` goes on behind it.

        One that `is_alone` may have any offset, because nothing is known of what is before it.
        """
        try:
            header, data, is_valid = self._cursor.read(self._position)
        except CorruptBatch as error:
            raise self._damaged(reason_of(error)) from error
        except OSError as error:
            raise _not_readable(error, self._path) from error
        if not is_valid:
            raise self._damaged("the CRC does not match the contents")
        expected = header.base_offset if is_alone else self._next_offset
        problem = snapshot_problem(header, expected, self._id.epoch)
        if problem:
            raise self._damaged(problem)
        return header, data

    def _move(self, header: BatchHeader) -> None:
        self._position += header.size_bytes
        self._next_offset = header.next_offset

    def _damaged(self, what: str) -> DamagedSnapshot:
        return DamagedSnapshot(
            f"not a whole snapshot: {what}", path=self._path, position=self._position
        )

    def _of_later_version(self, what: str) -> DamagedSnapshot:
        return DamagedSnapshot(
            f"a later version has written this snapshot: it has {what}, which this one does not know",
            path=self._path,
            position=self._position,
            remedy="Upgrade this node: nothing was changed",
        )


def _is_of_kafka(records: Sequence[RawControl]) -> bool:
    """The header that begins a snapshot of Kafka's has no field for the end offset."""
    first = records[0].record if records else None
    return isinstance(first, SnapshotHeader) and not first.version and first.end_offset < 0


def read_facts(fs: FileSystem, path: Path, snapshot_id: SnapshotId) -> SnapshotFacts:
    """The facts of a complete snapshot, without its records. Reads little: its beginning and its end.

    Raises DamagedSnapshot if either is not as it should be; StorageError if it can't be read.
    """
    reader = SnapshotReader(fs, path, snapshot_id)
    try:
        reader.check_footer()
        return reader.facts()
    finally:
        reader.close()


def check_cluster(facts: SnapshotFacts, cluster_id: str | None, path: Path) -> None:
    """Raises DamagedSnapshot if a snapshot names another cluster than the directory that it is in."""
    named = None if facts.voters is None else facts.voters.cluster_id
    if named is not None and cluster_id is not None and named != cluster_id:
        raise DamagedSnapshot(
            f"a snapshot of cluster {named} in a directory of cluster {cluster_id}",
            path=path,
            position=0,
            remedy="Correct cluster.id in meta.properties, or, if that is right, move the file away: nothing"
            " was changed",
        )


def verify_snapshot(fs: FileSystem, path: Path, snapshot_id: SnapshotId) -> SnapshotFacts:
    """Reads all of a snapshot.

    Everything is checked: that batches are whole, their CRCs, offsets and epoch, that records are
    well formed and keys ascend (Kafka's have none), header first, footer last, and nothing behind it.
    Raises DamagedSnapshot; StorageError if it can't be read.
    """
    steps = verifying(fs, path, snapshot_id)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            facts: SnapshotFacts = done.value
            return facts


def verifying(
    fs: FileSystem, path: Path, snapshot_id: SnapshotId
) -> Generator[int, None, SnapshotFacts]:
    """The same in steps of a batch each; every one gives how many bytes were found good."""
    reader = SnapshotReader(fs, path, snapshot_id)
    try:
        batches = reader.kafka_records() if reader.is_kafkas else reader.records(check=True)
        for _ in batches:
            yield reader.position
        return reader.facts()
    finally:
        reader.close()


def _not_readable(error: OSError, path: Path) -> StorageError:
    if error.errno in _NO_FILE:
        return DamagedSnapshot(
            f"no snapshot can be read here: {error.strerror or error}",
            path=path,
            position=0,
            remedy="Put the file back, readable for the user that quorumd runs as, or move away what"
            " is there: nothing was changed",
        )
    return from_os_error(error, path, "reading the snapshot")
