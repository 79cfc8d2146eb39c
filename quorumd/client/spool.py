"""A snapshot download: spooled into a temporary file and checked, batch by batch, as it arrives.

Holds at most one batch in memory, whatever the snapshot's size. Knows nothing of where the bytes come
from. Source: KIP-630 (header first, footer last); the batches of a snapshot count their offsets from 0.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import IO

from quorumd.client.errors import QuorumError
from quorumd.raft.types import SnapshotId
from quorumd.wire.control_records import SnapshotFooter, SnapshotHeader, decode_control_batch
from quorumd.wire.errors import CorruptBatch
from quorumd.wire.records import (
    BATCH_OVERHEAD,
    BatchHeader,
    Record,
    crc_is_valid,
    iter_records,
    read_header,
)
from quorumd.wire.sequence_check import snapshot_problem
from quorumd.wire.snapshot_records import OFFSET_HEADER, SNAPSHOT_BATCH_BYTES_MAX

MEMORY_BYTES = 1 << 20
"""A snapshot up to this size stays in memory."""

_OFFSET_HEADER = OFFSET_HEADER.decode()


class SnapshotSpool:
    """The bytes of one snapshot so far, in a temporary file unless another one is given. Close it."""

    def __init__(self, snapshot_id: SnapshotId, file: IO[bytes] | None = None) -> None:
        self.id = snapshot_id
        self.last_contained_log_timestamp = -1
        self._is_temporary = file is None
        self._file = file or tempfile.SpooledTemporaryFile(MEMORY_BYTES)  # noqa: SIM115 (closed by close)
        self._position = 0
        self._size_bytes = -1
        self._unchecked = bytearray()
        self._next_offset = 0
        self._has_ended = False

    @property
    def position(self) -> int:
        """Number of bytes that have arrived: the position of the next chunk."""
        return self._position

    @property
    def size_bytes(self) -> int:
        """The size of the whole snapshot, -1 before the first chunk."""
        return self._size_bytes

    @property
    def is_complete(self) -> bool:
        return self._position == self._size_bytes

    def write(self, chunk: bytes | memoryview, size_bytes: int) -> None:
        """Takes the next chunk of a snapshot of `size_bytes`.

        Raises CorruptBatch if this cannot be the snapshot, and QuorumError if there is no room for it;
        OSError if a file was given and can't be written.
        """
        if self._size_bytes < 0:
            self._size_bytes = size_bytes
        if size_bytes != self._size_bytes:
            raise CorruptBatch(f"its size was {self._size_bytes} bytes and is {size_bytes} now")
        if self._position + len(chunk) > size_bytes:
            raise CorruptBatch(f"more than its {size_bytes} bytes")
        try:
            self._file.seek(self._position)
            self._file.write(chunk)
        except OSError as error:
            if not self._is_temporary:
                raise
            raise QuorumError(
                f"the snapshot {self.id} of {size_bytes:,} bytes can't be stored in "
                f"{tempfile.gettempdir()}: {error.strerror}. Make room there, or name another "
                "directory in the variable TMPDIR."
            ) from error
        self._position += len(chunk)
        self._check(chunk)
        if self.is_complete and (self._unchecked or not self._has_ended):
            raise CorruptBatch("it ends without a footer")

    def records(self) -> Iterator[Record]:
        """The records of a complete snapshot, with the offsets that they had in the log."""
        assert self.is_complete, "only a complete snapshot is read"
        position = 0
        while position < self._position:
            self._file.seek(position)
            batch = self._file.read(BATCH_OVERHEAD)
            header = read_header(batch)
            if not header.is_control:
                batch += self._file.read(header.size_bytes - BATCH_OVERHEAD)
                yield from map(as_in_log, self._records_of(batch))
            position += header.size_bytes

    def close(self) -> None:
        """Closes the file; a temporary one is gone then."""
        self._file.close()

    def _records_of(self, batch: bytes) -> Iterator[Record]:
        try:
            yield from iter_records(batch)
        except CorruptBatch as error:
            raise QuorumError(
                f"the snapshot {self.id} holds a batch that can't be read: {error}. Compare the nodes' "
                "snapshots with `quorumctl dump-log`."
            ) from None

    def _check(self, chunk: bytes | memoryview) -> None:
        held = self._unchecked
        held += chunk
        while len(held) >= BATCH_OVERHEAD:
            header = read_header(bytes(held[:BATCH_OVERHEAD]))
            if header.size_bytes > SNAPSHOT_BATCH_BYTES_MAX:
                raise CorruptBatch(f"a batch of {header.size_bytes} bytes")
            if len(held) < header.size_bytes:
                return
            self._check_batch(header, bytes(held[: header.size_bytes]))
            del held[: header.size_bytes]

    def _check_batch(self, header: BatchHeader, batch: bytes) -> None:
        if not crc_is_valid(batch, 0, header):
            raise CorruptBatch("the CRC does not match the contents")
        if self._has_ended:
            raise CorruptBatch("a batch behind the footer")
        problem = snapshot_problem(header, self._next_offset, self.id.epoch)
        if problem:
            raise CorruptBatch(problem)
        self._next_offset = header.next_offset
        if header.is_control:
            self._take_control(batch)
        elif header.base_offset == 0:
            raise CorruptBatch("it begins without a header")

    def _take_control(self, batch: bytes) -> None:
        for offset, record in decode_control_batch(batch):
            if (offset == 0) != isinstance(record, SnapshotHeader):
                raise CorruptBatch(f"its header is not the first record ({record})")
            if isinstance(record, SnapshotHeader):
                self.last_contained_log_timestamp = record.last_contained_log_timestamp
            self._has_ended = isinstance(record, SnapshotFooter)


def as_in_log(record: Record) -> Record:
    """A record of a snapshot, without the header that keeps its offset; -1 where another software left
    that out."""
    _, timestamp, key, value, headers = record
    if headers:
        name, digits = headers[-1]
        if name == _OFFSET_HEADER and digits and digits.isdigit() and len(digits) < 20:
            return Record(int(digits), timestamp, key, value, headers[:-1])
    return record._replace(offset=-1)
