"""leader-epoch-checkpoint: where each epoch of the log begins, in Kafka's text format.

Line 1 is the version `0`, line 2 the number of entries, then one line `<epoch> <start offset>` each,
both ascending. The file follows from the log: at start it is rebuilt if it disagrees.
Source: Apache Kafka 4.3, LeaderEpochCheckpointFile.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from quorumd.storage.filesystem import FileSystem, read_file, replace_file
from quorumd.storage.layout import EPOCH_CHECKPOINT


class EpochStart(NamedTuple):
    """An epoch and the offset of its first record."""

    epoch: int
    start_offset: int


def epoch_at(entries: Sequence[EpochStart], offset: int) -> int:
    """The epoch of the record at `offset`, -1 if it is before the first entry."""
    at = bisect_right(entries, offset, key=_start_offset_of)
    return entries[at - 1].epoch if at else -1


def epochs_from(entries: Sequence[EpochStart], start_offset: int) -> list[EpochStart]:
    """The entries that are left when the log starts at `start_offset`.

    Of those at or below it only the last, with the log start as its own. Source: Apache Kafka 4.3,
    LeaderEpochFileCache.truncateFromStart.
    """
    at = bisect_right(entries, start_offset, key=_start_offset_of)
    if at == 0:
        return list(entries)
    return [EpochStart(entries[at - 1].epoch, start_offset), *entries[at:]]


def _start_offset_of(entry: EpochStart) -> int:
    return entry.start_offset


def render_epochs(entries: Sequence[EpochStart]) -> bytes:
    """The bytes of the file."""
    lines = ["0", str(len(entries))]
    lines += [f"{epoch} {start_offset}" for epoch, start_offset in entries]
    return ("\n".join(lines) + "\n").encode()


def parse_epochs(data: bytes) -> list[EpochStart]:
    """The entries; an empty file has none. Raises ValueError."""
    lines = data.decode("ascii").split("\n")
    if lines and lines[-1] == "":
        lines.pop()
    if not lines:
        return []
    if len(lines) < 2 or lines[0] != "0" or lines[1] != str(len(lines) - 2):
        raise ValueError("the first two lines are not a version 0 and the number of lines")
    entries: list[EpochStart] = []
    for line in lines[2:]:
        epoch, start_offset = line.split(" ")
        entry = EpochStart(int(epoch), int(start_offset))
        if entries and (entry.epoch <= entries[-1].epoch or entry[1] <= entries[-1][1]):
            raise ValueError(f"{line!r} does not ascend")
        entries.append(entry)
    return entries


def load_epochs(fs: FileSystem, directory: Path) -> list[EpochStart] | None:
    """The entries, or None if the file is missing or unreadable. Raises OSError otherwise."""
    try:
        return parse_epochs(read_file(fs, directory / EPOCH_CHECKPOINT))
    except (FileNotFoundError, ValueError):
        return None


def save_epochs(fs: FileSystem, directory: Path, entries: Sequence[EpochStart]) -> None:
    """Replaces the file atomically and durably. Raises as `replace_file` does."""
    replace_file(fs, directory / EPOCH_CHECKPOINT, render_epochs(entries))
