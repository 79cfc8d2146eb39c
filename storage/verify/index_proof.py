"""The index files of a closed segment, held against its batches as they go by."""

from __future__ import annotations

from pathlib import Path

from quorumd.storage import layout
from quorumd.storage.filesystem import FileSystem, read_file
from quorumd.storage.index import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES, OffsetIndex, TimeIndex
from quorumd.storage.verify.report import Finding

REMEDY = (
    "No record is in doubt. Stop the node, delete this file, and start the node: it makes the index anew"
    " from the log. Check the disk"
)


class IndexProof:
    """Feed it every batch of the segment, then ask for its findings.

    Entries ascend, and each has to name a batch: so they are passed by in order.
    """

    def __init__(self, fs: FileSystem, directory: Path, base_offset: int) -> None:
        """Raises OSError."""
        self._path = layout.index_path(directory, base_offset)
        self._time_path = layout.time_index_path(directory, base_offset)
        self.missing: list[Path] = []
        self._findings: list[Finding] = []
        self._entries: list[tuple[int, int]] = []
        self._times: list[tuple[int, int]] = []
        self._next = self._next_time = 0
        self._greatest = (-1, -1)
        try:
            data = read_file(fs, self._path)
            self._entries = OffsetIndex.from_bytes(base_offset, data).entries()
        except FileNotFoundError:
            self.missing.append(self._path)
        except ValueError as error:
            self._findings.append(Finding(path=self._path, what=str(error), remedy=REMEDY))
        try:
            data = read_file(fs, self._time_path)
            self._times = TimeIndex.from_bytes(base_offset, data).entries()
            self._has_times = True
        except FileNotFoundError:
            self.missing.append(self._time_path)
            self._has_times = False
        except ValueError as error:
            self._findings.append(Finding(path=self._time_path, what=str(error), remedy=REMEDY))
            self._has_times = False

    def add(self, position: int, last_offset: int, max_timestamp: int) -> None:
        """Takes the next batch."""
        entries = self._entries
        if self._next < len(entries) and entries[self._next] == (last_offset, position):
            self._next += 1
        if max_timestamp > self._greatest[0]:
            self._greatest = max_timestamp, last_offset
            times = self._times
            if self._next_time < len(times) and times[self._next_time] == self._greatest:
                self._next_time += 1

    def findings(self) -> list[Finding]:
        """Faults of the index files, now that all batches were seen."""
        found = list(self._findings)
        if self._next < len(self._entries):
            offset, at = self._entries[self._next]
            found.append(
                Finding(
                    path=self._path,
                    what=f"an entry says that a batch which ends with offset {offset} begins at byte {at}"
                    " of the log, and none does",
                    position=self._next * OFFSET_ENTRY_BYTES,
                    offset=offset,
                    remedy=REMEDY,
                )
            )
        if not self._has_times:
            return found
        if self._next_time < len(self._times):
            timestamp, offset = self._times[self._next_time]
            found.append(
                Finding(
                    path=self._time_path,
                    what=f"an entry says that offset {offset} raised the greatest timestamp to"
                    f" {timestamp}, and it did not",
                    position=self._next_time * TIME_ENTRY_BYTES,
                    offset=offset,
                    remedy=REMEDY,
                )
            )
        elif (self._times[-1] if self._times else (-1, -1)) != self._greatest:
            timestamp, offset = self._greatest
            found.append(
                Finding(
                    path=self._time_path,
                    what=f"the last entry is not the greatest timestamp, {timestamp} at offset {offset}",
                    position=max(0, len(self._times) - 1) * TIME_ENTRY_BYTES,
                    offset=offset,
                    remedy=REMEDY,
                )
            )
        return found
