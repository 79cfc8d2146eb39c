"""Runs a verification and keeps what it says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from quorumd.raft.types import SnapshotId
from quorumd.storage.filesystem import FileSystem
from quorumd.storage.layout import part_path
from quorumd.storage.snapshot_file import SnapshotWriter
from quorumd.storage.snapshot_store import SnapshotStore
from quorumd.storage.verify.log import LogFacts
from quorumd.storage.verify.paths import find_subject, verify
from quorumd.storage.verify.report import Finding, VerifyReport
from tests.storage.helpers import DIRECTORY, START_MS


@dataclass
class Verified:
    """What was found."""

    facts: LogFacts
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    read_bytes: int = 0

    @property
    def texts(self) -> list[str]:
        return [str(finding) for finding in self.findings]


def verified(
    path: Path = DIRECTORY,
    fs: FileSystem | None = None,
    pause: Callable[[], object] = lambda: None,
) -> Verified:
    """Verifies what lies there. No finding is without a remedy."""
    done = Verified(LogFacts())

    def count(step_bytes: int) -> None:
        assert step_bytes >= 0
        done.read_bytes += step_bytes

    report = VerifyReport(done.findings.append, done.notes.append, count, pause)
    done.facts = verify(find_subject(path, fs), report, fs)
    assert report.findings == len(done.findings)
    assert all(finding.remedy for finding in done.findings)
    return done


def put_real_snapshot(
    fs: FileSystem, end_offset: int, epoch: int, directory: Path = DIRECTORY
) -> tuple[int, int]:
    """A snapshot without a key, whole, under its name; returns its id."""
    store = SnapshotStore(fs, directory)
    snapshot_id = SnapshotId(end_offset, epoch)
    part = part_path(directory, snapshot_id)
    SnapshotWriter(fs, part, snapshot_id, START_MS, (), ()).finish()
    store.complete_part(snapshot_id)
    return snapshot_id
