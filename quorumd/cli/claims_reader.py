"""Holders of names and clients that wait, read from a node's files beside the node, for its page.

    python -P -m quorumd.cli.claims_reader STORAGE_DIR

A line on standard input asks: the offset up to which the log is committed (exclusive). The response is a line
of JSON: that offset as "end_offset", "offset" up to which it is read by now, "names" by kind, "left_off" by
kind: how many names more there are; or "problem". Long logs are read a second at a time. Ends when its
standard input does.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from quorumd.client.coordination.keys import COMMENT_CHARACTERS_MAX, PREFIX, ClaimKind, place_of
from quorumd.client.coordination.listing import ClaimedName, claimed_names
from quorumd.client.spool import as_in_log
from quorumd.client.view import KeyValueEntry
from quorumd.storage.batch_walk import BatchCursor
from quorumd.storage.errors import StorageError
from quorumd.storage.filesystem import RealFileSystem
from quorumd.storage.reader import LogFile, find_files
from quorumd.wire.errors import CorruptBatch
from quorumd.wire.records import BatchHeader, Record, iter_records

NAMES_MAX: Final = 200
"""Of each kind, in a response."""
CHARACTERS_MAX: Final = 200
READ_S: Final = 1.0
MEMORY_BYTES_MAX: Final = 1 << 30
NICENESS: Final = 10


class NotReadable(Exception):
    """The files say something else than a log; the message says what."""


class ClaimsReader:
    """The claims in the log of a directory below `offset`, which only grows."""

    def __init__(self, directory: Path) -> None:
        self.offset = 0
        self.entries: dict[bytes, KeyValueEntry] = {}
        self._directory = directory
        self._fs = RealFileSystem()
        self._segment = -1
        """The base offset of the segment that was read last."""
        self._position = 0
        """In it: the batch at `offset`, or one before that."""

    def advance(self, end_offset: int, seconds: float = READ_S) -> None:
        """Reads what is committed, up to `end_offset`, for about so long.

        What is deleted meanwhile, or not written yet, is read the next time. Raises NotReadable.
        """
        deadline_s = time.monotonic() + seconds
        while self.offset < end_offset and time.monotonic() < deadline_s:
            before = self.offset, self._segment
            try:
                self._read_files(end_offset, deadline_s)
            except (StorageError, OSError) as error:
                raise NotReadable(str(error)) from error
            if (self.offset, self._segment) == before:
                return

    def _read_files(self, end_offset: int, deadline_s: float) -> None:
        files = find_files(self._directory)
        segments = {each.base_offset: each.path for each in files if each.base_offset is not None}
        base = max((base for base in segments if base <= self.offset), default=None)
        if base is None:
            self._read_snapshot(files, end_offset)
            return
        if base != self._segment:
            self._segment, self._position = base, 0
        handle = self._fs.open(segments[base])
        try:
            cursor = BatchCursor(self._fs, handle, self._fs.size(handle))
            while self.offset < end_offset and time.monotonic() < deadline_s:
                header, data, is_valid = cursor.read(self._position)
                if not is_valid or header.next_offset > end_offset:
                    return
                if header.next_offset > self.offset:
                    _apply(self.entries, _claims_of(header, data))
                    self.offset = header.next_offset
                self._position += header.size_bytes
        except CorruptBatch:
            return  # The end of the segment, or of what is written of it.
        finally:
            self._fs.close(handle)

    def _read_snapshot(self, files: list[LogFile], end_offset: int) -> None:
        """Puts the newest snapshot, if it goes further, in the place of what was read."""
        snapshots = [
            each
            for each in files
            if each.snapshot_id and self.offset < each.snapshot_id.end_offset <= end_offset
        ]
        if not snapshots:
            return
        newest = snapshots[-1]
        assert newest.snapshot_id is not None, "chosen so"
        entries: dict[bytes, KeyValueEntry] = {}
        for batch in newest.batches():
            if not batch.crc_is_valid:
                raise NotReadable(f"{newest.path} is damaged")
            _apply(entries, map(as_in_log, _claims_of(batch.header, batch.data)))
        self.entries, self.offset = entries, newest.snapshot_id.end_offset


def _apply(entries: dict[bytes, KeyValueEntry], records: Iterable[Record]) -> None:
    for record in records:
        assert record.key is not None, "claims have keys"
        if record.value is None:
            entries.pop(record.key, None)
        else:
            entries[record.key] = KeyValueEntry(record.value, record.offset, record.timestamp)


def _claims_of(header: BatchHeader, batch: bytes) -> list[Record]:
    """Of a batch; none, as for every reader of the log, if nobody can unpack it."""
    if header.is_control or (not header.codec and PREFIX not in batch):
        return []
    try:
        return [
            record
            for record in iter_records(batch)
            if record.key is not None and place_of(record.key) is not None
        ]
    except CorruptBatch:
        return []


def response_of(reader: ClaimsReader, end_offset: int) -> dict[str, Any]:
    """The claims that are known by now, fit for JSON."""
    entries = sorted(reader.entries.items())
    found = {kind.value: claimed_names(entries, kind) for kind in ClaimKind}
    return {
        "end_offset": end_offset,
        "offset": reader.offset,
        "names": {
            kind: [_as_dict(each) for each in names[:NAMES_MAX]] for kind, names in found.items()
        },
        "left_off": {kind: max(0, len(names) - NAMES_MAX) for kind, names in found.items()},
    }


def _as_dict(found: ClaimedName) -> dict[str, Any]:
    holder = None
    if found.holder is not None:
        holder = {key: _cut(key, value) for key, value in found.holder._asdict().items()}
    return {"name": _cut("name", found.name), "holder": holder, "waiting": len(found.waiters)}


def _cut(key: str, value: object) -> object:
    """A text that some client has written may be of any length, and a line of JSON may not."""
    most = COMMENT_CHARACTERS_MAX if key == "comment" else CHARACTERS_MAX
    return value[:most] if isinstance(value, str) else value


def main() -> None:
    """Command line."""
    # Ctrl-C is for the node, which ends this process by closing its input.
    os.setpgid(0, 0)
    # So is SIGHUP, which `systemctl kill` sends to all processes: a node reads certificates again.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    reader = ClaimsReader(Path(sys.argv[1]))
    for line in sys.stdin:
        end_offset = int(line)
        try:
            reader.advance(end_offset)
            response = response_of(reader, end_offset)
        except NotReadable as error:
            response = {"problem": str(error)}
        print(json.dumps(response), flush=True)


if __name__ == "__main__":
    main()
