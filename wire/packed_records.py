"""The records of a compressed batch that a client sends: unpacked, and checked as those of any other batch.

A batch of two kilobytes can unpack to gigabytes, so it is unpacked as a stream, in steps of little work, of
which no more is held than HELD_BYTES_MAX and a chunk. What unpacks is what Kafka's own clients unpack.
Source: Apache Kafka 4.3, LogValidator. Stricter in one point: a batch whose records claim other offsets than
their places is refused, as it is if it is not compressed. Kafka's leader writes it anew.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Final, NamedTuple

from quorumd.wire.batch_header import BATCH_OVERHEAD, BatchHeader
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.errors import CorruptBatch, RefusedBatch, TooLargeBlock
from quorumd.wire.record_walk import check_records, invalid_record
from quorumd.wire.varints import encode_varint, read_varint, read_varlong

UNPACKED_BYTES_MAX: Final = (1, 1032, 22, 255, 32_768)
"""Number of bytes that a byte unpacks to at the most, by codec: none, gzip, snappy, lz4, zstd."""

PAYLOAD_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes that the records of one batch may unpack to."""

HELD_BYTES_MAX: Final = 8 * 1024 * 1024
"""Of a larger record the key and the value are unpacked, and left out."""

BLOCK_BYTES_MAX: Final = 4 * 1024 * 1024
"""A block of snappy is unpacked in one step. Kafka's clients make blocks of 32 KiB; librdkafka and others
make one of the whole batch, which has 1 MB there unless they are told otherwise."""

_PART_BYTES: Final = 64 * 1024
_VARINT_BYTES_MAX: Final = 10
_NULL: Final = encode_varint(-1)


class CheckedPart(NamedTuple):
    """`data` begins with the records that follow each other from index `first` to the one before `end`."""

    data: bytes
    first: int
    end: int


class PackedRecords:
    """The records of a compressed batch that passed `check_produced`, on their way through the check."""

    def __init__(
        self,
        header: BatchHeader,
        data: bytes,
        timestamp_deltas: range,
        keys: list[bytes | None] | None = None,
    ) -> None:
        self.keys = keys
        """Gets the key of each record that is checked, as long as `is_held`; None: they are not wanted."""
        self._count = header.record_count
        self._timestamp_deltas = timestamp_deltas
        self._stream = _Unpacked(header, data)

    @property
    def is_held(self) -> bool:
        """False if more was unpacked than HELD_BYTES_MAX: keys are missing then."""
        return self._stream.end <= HELD_BYTES_MAX

    def parts(self) -> Generator[CheckedPart | None, None, None]:
        """The records, in parts that are well-formed, and steps on the way to them.

        Raises RefusedBatch: as `check_records` does; INVALID_RECORD, too, for what does not unpack, and
        MESSAGE_TOO_LARGE for what unpacks to more than PAYLOAD_BYTES_MAX, or for headers of a record, or a
        block, that are too large to be held.
        """
        stream = self._stream
        index = 0
        try:
            while index < self._count:
                yield from stream.reach(stream.position + _PART_BYTES)
                first, data = index, bytes(stream.held)
                index, size = yield from self._check(data, index, self._count, is_cut=stream.is_cut)
                if index > first:
                    stream.drop(size)
                else:
                    data = yield from self._large_record(index)
                    index, _ = yield from self._check(data, index, index + 1)
                yield CheckedPart(data, first, index)
            yield from stream.reach(stream.position + 1)
        except RefusedBatch:
            raise
        except TooLargeBlock as error:
            raise _too_large(
                f"{error}; at most {BLOCK_BYTES_MAX} are taken here. Send smaller batches, or another"
                " compression."
            ) from None
        except CorruptBatch as error:
            raise _refused(f"The records do not unpack: {error}.") from None
        except IndexError:
            raise invalid_record("it runs past the end of the batch", index) from None
        except ValueError as error:
            raise invalid_record(f"it holds {error}", index) from None
        if stream.held:
            raise _refused(f"The batch holds more than its {self._count} records.")

    def _check(
        self, data: bytes, index: int, end: int, *, is_cut: bool = False
    ) -> Generator[None, None, tuple[int, int]]:
        keys = self.keys if self.is_held else None
        return (
            yield from check_records(
                data, 0, end, self._timestamp_deltas, keys, index, is_cut=is_cut
            )
        )

    def _large_record(self, index: int) -> Generator[None, None, bytes]:
        """The record that begins where the stream is; without key and value if it is too large to be held."""
        stream = self._stream
        start = stream.position
        size, body_at = read_varint(stream.held, 0)
        end = start + body_at + size
        if size < 0:
            raise invalid_record("its length does not fit the batch", index)
        if end - start <= HELD_BYTES_MAX:
            yield from stream.reach(end)
            return stream.take(end - start)
        _, at = read_varlong(stream.held, body_at + 1)
        _, at = read_varint(stream.held, at)
        body = bytes(stream.held[body_at:at]) + _NULL + _NULL
        at += start
        for field in ("key", "value"):
            yield from stream.skip(at)
            size, size_bytes = read_varint(stream.held, 0)
            if size < -1:
                raise invalid_record(f"its {field} length is negative", index)
            at += size_bytes + max(size, 0)
            if at > end:
                raise invalid_record("its length is not that of its fields", index)
        if end - at > HELD_BYTES_MAX:
            raise _too_large(
                f"Record {index}: headers of {end - at} bytes; compressed ones may have {HELD_BYTES_MAX}."
            )
        yield from stream.skip(at)
        yield from stream.reach(end)
        body += stream.take(end - at)
        return encode_varint(len(body)) + body


class _Unpacked:
    """Contents of a batch as a stream: `held` is what stands at `position`. In steps of a chunk."""

    def __init__(self, header: BatchHeader, data: bytes) -> None:
        # Imported here because the codecs cost memory and start time, and most batches have none.
        from quorumd.wire.compression import unpack_in_steps

        self.position = 0
        self.held = bytearray()
        self.is_cut = True
        """False once it is known that nothing follows what is held."""
        self._chunks: Iterator[bytes] = unpack_in_steps(
            header.codec, memoryview(data)[BATCH_OVERHEAD:], block_bytes_max=BLOCK_BYTES_MAX
        )

    @property
    def end(self) -> int:
        """End position of what was unpacked (exclusive)."""
        return self.position + len(self.held)

    def take(self, size: int) -> bytes:
        """The next bytes, which are not held any more. Raises IndexError if there are not so many."""
        if size > len(self.held):
            raise IndexError
        taken = bytes(memoryview(self.held)[:size])
        self.drop(size)
        return taken

    def reach(self, end: int) -> Generator[None, None, None]:
        """Unpack up to `end`, or as much as there is."""
        while self.end < end and self.is_cut:
            chunk = next(self._chunks, None)
            if chunk is None:
                self.is_cut = False
                return
            self.held += chunk
            if self.end > PAYLOAD_BYTES_MAX:
                raise _too_large(
                    f"The records unpack to more than {PAYLOAD_BYTES_MAX} bytes. Send smaller batches."
                )
            yield

    def skip(self, position: int) -> Generator[None, None, None]:
        """Go on at `position`, where a varint begins, without keeping anything before."""
        while self.position < position:
            self.drop(min(position - self.position, len(self.held)))
            if self.position < position:
                yield from self.reach(self.position + 1)
                if not self.held:
                    raise IndexError
        yield from self.reach(position + _VARINT_BYTES_MAX)

    def drop(self, size: int) -> None:
        """The next bytes are not needed any more."""
        # Cutting the front of a bytearray moves its start and copies nothing.
        del self.held[:size]
        self.position += size


def _too_large(message: str) -> RefusedBatch:
    return RefusedBatch(ErrorCode.MESSAGE_TOO_LARGE, message)


def _refused(message: str) -> RefusedBatch:
    return RefusedBatch(ErrorCode.INVALID_RECORD, message)
