"""The log of a node as the test writes it, with claims in it: segments and snapshots as files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from quorumd.client.coordination.claim_record import ClaimRecord
from quorumd.client.coordination.keys import ClaimKind, Place
from quorumd.raft.types import SnapshotId
from quorumd.storage.layout import log_path, partition_directory, snapshot_path
from quorumd.wire.records import Record, build_batch, read_header
from tests.quorumd.snapshots import snapshot_bytes

CLAIM = "0123456789abcdef" * 2


def value(pid: int, *, claim: str = CLAIM, text: str = "") -> bytes:
    """The record of a claim."""
    return ClaimRecord(
        owner="me",
        host="here",
        pid=pid,
        comment="",
        since="2026-01-01T00:00:00Z",
        ttl_ms=10_000,
        claim=claim,
        client=claim,
        value=text,
    ).encoded()


def held(name: str, pid: int = 7, kind: ClaimKind = ClaimKind.LOCK, *, text: str = "") -> Record:
    """What acquires a name, or renews it."""
    return Record(key=Place(kind, name).key, value=value(pid, text=text), timestamp=1_000)


def given_back(name: str) -> Record:
    """What gives a lock back."""
    return Record(key=Place(ClaimKind.LOCK, name).key, value=None)


class ClaimsLog:
    """The directory of a node whose log the test writes."""

    def __init__(self, storage_dir: Path) -> None:
        self.storage_dir = storage_dir
        self.folder = partition_directory(storage_dir)
        self.folder.mkdir(parents=True)
        self.end_offset = 0
        self._segment = log_path(self.folder, 0)
        self._segment.touch()

    def append(self, *records: Record, codec: int = 0) -> int:
        """One batch; returns the new end of the log."""
        batch = build_batch(records, base_offset=self.end_offset, epoch=1, codec=codec)
        with self._segment.open("ab") as file:
            file.write(batch)
        self.end_offset = read_header(batch).next_offset
        return self.end_offset

    def roll(self) -> None:
        """Begins a segment."""
        self._segment = log_path(self.folder, self.end_offset)
        self._segment.touch()

    def delete_before(self) -> None:
        """All segments but the one that is written."""
        for path in self.folder.glob("*.log"):
            if path != self._segment:
                path.unlink()

    def take_snapshot(self, contents: Mapping[bytes, tuple[bytes, int]]) -> None:
        """Of everything so far."""
        path = snapshot_path(self.folder, SnapshotId(self.end_offset, 1))
        path.write_bytes(snapshot_bytes(contents))
