"""A backup: its files are those of its manifest, and they are a sound log that begins and ends as it says."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from quorumd.storage import layout
from quorumd.storage.backup_manifest import BackupFile, BackupManifest, load_manifest
from quorumd.storage.errors import DamagedFile, from_os_error
from quorumd.storage.filesystem import FileSystem
from quorumd.storage.verify.log import LogFacts, verify_log
from quorumd.storage.verify.report import Finding, VerifyReport, finding_of

REMEDY = "Use another backup, and check the disk that this one is on; nothing was changed"
_STEP_BYTES = 1 << 20


def verify_backup(fs: FileSystem, backup: Path, report: VerifyReport) -> LogFacts:
    """Raises StorageError if this is no backup, or something can't be read."""
    inner = replace(
        report,
        on_finding=lambda finding: report.on_finding(replace(finding, remedy=REMEDY)),
        findings=0,
    )
    try:
        facts = _verify(fs, backup, inner)
    finally:
        report.findings += inner.findings
    return facts


def _verify(fs: FileSystem, backup: Path, report: VerifyReport) -> LogFacts:
    try:
        manifest = load_manifest(fs, backup)
    except DamagedFile as error:
        report.add(finding_of(error))
        return verify_log(fs, backup, report, is_backup=True)
    for file in manifest.files:
        _check_file(fs, backup, file, report)
    facts = verify_log(fs, backup, report, is_backup=True)
    if not report.findings:
        _check_manifest(backup, manifest, facts, report)
    return facts


def _check_file(fs: FileSystem, backup: Path, file: BackupFile, report: VerifyReport) -> None:
    path = backup / file.name
    try:
        size_bytes, digest = _digest_of(fs, path, report)
    except FileNotFoundError:
        what = f"it is missing; {layout.BACKUP_MANIFEST} names it"
        report.add(Finding(path=path, what=what))
        return
    except OSError as error:
        raise from_os_error(error, path, "reading") from error
    if size_bytes != file.size_bytes:
        what = f"it has {size_bytes} bytes; {layout.BACKUP_MANIFEST} says {file.size_bytes}"
        position = min(size_bytes, file.size_bytes)
        report.add(Finding(path=path, what=what, position=position))
    elif digest != file.sha256:
        what = f"its sha256 is {digest}; {layout.BACKUP_MANIFEST} says {file.sha256}"
        report.add(Finding(path=path, what=what, position=0))


def _digest_of(fs: FileSystem, path: Path, report: VerifyReport) -> tuple[int, str]:
    digest = hashlib.sha256()
    position = 0
    handle = fs.open(path)
    try:
        while data := fs.pread(handle, _STEP_BYTES, position):
            digest.update(data)
            position += len(data)
            report.on_bytes(len(data))
    finally:
        fs.close(handle)
    return position, digest.hexdigest()


def _check_manifest(
    backup: Path, manifest: BackupManifest, facts: LogFacts, report: VerifyReport
) -> None:
    """Checks the log against the manifest, and that nothing else lies there."""
    path = backup / layout.BACKUP_MANIFEST
    start_offset, end_offset, epoch = facts.start_offset, facts.end_offset, facts.last_epoch
    newest = facts.snapshots[-1].id if facts.snapshots else None
    if not facts.segments and newest is not None:
        start_offset = end_offset = newest.end_offset
        epoch = newest.epoch
    found = (start_offset, end_offset, epoch)
    said = (manifest.start_offset, manifest.end_offset, manifest.epoch)
    if found != said:
        what = "it says that the log has offsets {} to {} (exclusive), the last of epoch {}".format(
            *said
        )
        has = "the files have {} to {}, epoch {}".format(*found)
        report.add(Finding(path=path, what=f"{what}; {has}", position=0, offset=end_offset))
    if len(facts.snapshots) + facts.segments != len(manifest.files):
        what = "there are segments or snapshots beside it that it does not name"
        report.add(Finding(path=path, what=what, position=0))
