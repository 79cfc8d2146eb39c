"""Damage for the audit's tests: what a disk, a bug or a person can do to the files of a replica."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from crc32c import crc32c

from quorumd.storage.layout import INDEX_SUFFIX, LOG_SUFFIX, PARTITION_DIRECTORY, TIME_INDEX_SUFFIX
from quorumd.storage.reader import LogFile
from quorumd.wire.batch_header import BatchHeader
from quorumd.wire.control_records import SnapshotFooter, SnapshotHeader, encode_control_batch
from quorumd.wire.records import Record, build_batch


@dataclass(frozen=True, slots=True)
class Place:
    """A batch in a segment."""

    path: Path
    position: int
    header: BatchHeader

    @property
    def end(self) -> int:
        return self.position + self.header.size_bytes


def copy_of(storage_dirs: list[Path], folder: Path) -> list[Path]:
    """The directories, to be damaged."""
    return [Path(shutil.copytree(each, folder / each.name)) for each in storage_dirs]


def segments(storage_dir: Path) -> list[Path]:
    """Oldest first."""
    return sorted((storage_dir / PARTITION_DIRECTORY).glob(f"*{LOG_SUFFIX}"))


def snapshots(storage_dir: Path) -> list[Path]:
    """Oldest first."""
    return sorted((storage_dir / PARTITION_DIRECTORY).glob("*.checkpoint"))


def batches(path: Path) -> list[Place]:
    """Those of a file."""
    return [Place(path, found.position, found.header) for found in LogFile(path).batches()]


def place(storage_dir: Path, segment: int, batch: int) -> Place:
    """The batch with this number of the segment with this number, either of which may be negative."""
    return batches(segments(storage_dir)[segment])[batch]


def write(path: Path, position: int, raw: bytes) -> None:
    data = bytearray(path.read_bytes())
    data[position : position + len(raw)] = raw
    path.write_bytes(data)


def change_epoch(at: Place, epoch: int) -> None:
    """No CRC covers it."""
    write(at.path, at.position + 12, epoch.to_bytes(4, "big"))


def change_offset(at: Place, offset: int) -> None:
    """No CRC covers it."""
    write(at.path, at.position, offset.to_bytes(8, "big"))


def flip_byte(at: Place, back: int = 10) -> None:
    """One bit of the batch's last bytes."""
    position = at.end - back
    write(at.path, position, bytes([at.path.read_bytes()[position] ^ 1]))


def change_value(at: Place, old: bytes = b"xxxx", new: bytes = b"xyxx") -> None:
    """The last such bytes of a batch, with the CRC that goes with them."""
    data = at.path.read_bytes()
    batch = data[at.position : at.end]
    where = batch.rindex(old)
    batch = batch[:where] + new + batch[where + len(old) :]
    batch = batch[:17] + crc32c(batch[21:]).to_bytes(4, "big") + batch[21:]
    write(at.path, at.position, batch)


def remove(at: Place) -> None:
    """The batch is gone, and what was behind it has moved up. Indexes go, as a repair would have it."""
    data = at.path.read_bytes()
    at.path.write_bytes(data[: at.position] + data[at.end :])
    forget_indexes(at.path)


def repeat(at: Place) -> None:
    """The batch is there twice."""
    data = at.path.read_bytes()
    at.path.write_bytes(data[: at.end] + data[at.position :])
    forget_indexes(at.path)


def forget_indexes(segment: Path) -> None:
    for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        segment.with_suffix(suffix).unlink(missing_ok=True)


def cut(at: Place, kept_bytes: int) -> None:
    """The file ends in the middle of a batch."""
    with at.path.open("r+b") as file:
        file.truncate(at.position + kept_bytes)


def as_kafka_writes_it(snapshot: Path, value: bytes, time_ms: int) -> None:
    """A record without a key, and with the time at which this controller wrote its snapshot."""
    epoch = int(snapshot.stem.rpartition("-")[2])
    header = SnapshotHeader(version=0, last_contained_log_timestamp=1_700_000_000_000)
    records = [Record(timestamp=time_ms, value=value)]
    snapshot.write_bytes(
        encode_control_batch([header], base_offset=0, epoch=epoch, timestamp_ms=time_ms)
        + build_batch(records, base_offset=1, epoch=epoch)
        + encode_control_batch(
            [SnapshotFooter(version=0)], base_offset=2, epoch=epoch, timestamp_ms=time_ms
        )
    )
