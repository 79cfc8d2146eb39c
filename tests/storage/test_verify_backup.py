"""A backup is sound only if every byte of it is what it was."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorumd.storage.backup_manifest import BackupManifest, load_manifest, render_manifest
from quorumd.storage.layout import BACKUP_MANIFEST, log_path
from quorumd.storage.verify import backup
from quorumd.storage.verify.paths import PathKind, find_subject
from tests.storage.backups import put_backup
from tests.storage.faulty_filesystem import FaultyFileSystem
from tests.storage.verified_node import batches_of
from tests.storage.verifying import verified

BACKUP = Path("/backup")


def a_backup(
    seed: int = 1, first: int = 15, snapshot_after: int | None = 20
) -> tuple[FaultyFileSystem, BackupManifest]:
    fs = FaultyFileSystem()
    fs.mkdir(BACKUP)
    manifest = put_backup(fs, BACKUP, batches_of(seed), first=first, snapshot_after=snapshot_after)
    return fs, manifest


@pytest.mark.parametrize(
    ("first", "snapshot_after"), [(0, None), (0, 10), (15, 20), (20, 20), (41, 41)]
)
def test_a_sound_backup_is_sound(first: int, snapshot_after: int | None) -> None:
    fs, manifest = a_backup(first=first, snapshot_after=snapshot_after)
    done = verified(BACKUP, fs)
    assert (done.texts, done.notes) == ([], [])
    assert find_subject(BACKUP, fs).kind is PathKind.BACKUP
    assert done.read_bytes == 2 * manifest.size_bytes == find_subject(BACKUP, fs).size_bytes
    for file in manifest.files:
        assert verified(BACKUP / file.name, fs).texts == []


@pytest.mark.sim
@settings(max_examples=150)
@given(data=st.data())
def test_any_bit_that_flips_is_found(data: st.DataObject) -> None:
    fs, manifest = a_backup(data.draw(st.integers(0, 10)))
    path = BACKUP / data.draw(st.sampled_from([file.name for file in manifest.files]))
    fs.flip(path, data.draw(st.integers(0, len(fs.contents(path)) - 1)))
    done = verified(BACKUP, fs)
    assert f"{path}: byte 0: its sha256 is " in done.texts[0]
    assert "Use another backup" in done.findings[0].remedy


def test_a_damaged_manifest_is_named_and_the_log_is_read_all_the_same() -> None:
    fs, manifest = a_backup()
    text = fs.contents(BACKUP / BACKUP_MANIFEST).replace(b'"epoch": ', b'"epoch": 1')
    fs.put(BACKUP / BACKUP_MANIFEST, text)
    done = verified(BACKUP, fs)
    assert [finding.path for finding in done.findings] == [BACKUP / BACKUP_MANIFEST]
    assert "its own sha256" in done.texts[0]
    assert done.facts.end_offset == manifest.end_offset


def test_a_missing_file_is_named() -> None:
    fs, manifest = a_backup()
    path = BACKUP / manifest.segments[-1].name
    fs.remove(path)
    done = verified(BACKUP, fs)
    assert done.texts == [f"{path}: it is missing; backup.json names it"]


def test_a_cut_file_is_named() -> None:
    fs, manifest = a_backup()
    path = BACKUP / manifest.segments[-1].name
    data = fs.contents(path)
    fs.put(path, data[:-9])
    done = verified(BACKUP, fs)
    assert f"byte {len(data) - 9}: it has {len(data) - 9} bytes" in done.texts[0]
    # In a backup nothing is unfinished.
    assert any("are left" in text or "header of 61" in text for text in done.texts)


def test_a_cut_segment_is_no_unfinished_one_though_it_is_verified_by_itself() -> None:
    fs, manifest = a_backup()
    path = BACKUP / manifest.segments[-1].name
    fs.put(path, fs.contents(path)[:-9])
    done = verified(path, fs)
    assert (len(done.findings), done.facts.unfinished_bytes) == (1, 0)


def test_a_file_that_is_read_in_steps_counts_each_byte_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backup, "_STEP_BYTES", 1000)
    fs, manifest = a_backup()
    done = verified(BACKUP, fs)
    assert (done.texts, done.read_bytes) == ([], 2 * manifest.size_bytes)


def test_a_snapshot_that_the_manifest_does_not_name_is_one_too_many() -> None:
    fs, manifest = a_backup(first=0, snapshot_after=10)
    fs.put(BACKUP / BACKUP_MANIFEST, render_manifest(replace(manifest, files=manifest.segments)))
    [text] = verified(BACKUP, fs).texts
    assert "there are segments or snapshots beside it that it does not name" in text


def test_a_foreign_segment_is_named() -> None:
    fs, manifest = a_backup()
    path = log_path(BACKUP, manifest.end_offset)
    fs.put(path, fs.contents(BACKUP / manifest.segments[-1].name))
    assert verified(BACKUP, fs).findings


@pytest.mark.parametrize("change", [{"end_offset": 1}, {"start_offset": 1}, {"epoch": 0}], ids=str)
def test_a_manifest_that_speaks_of_another_log_is_named(change: dict[str, int]) -> None:
    fs, _ = a_backup()
    other = replace(load_manifest(fs, BACKUP), **change)
    fs.put(BACKUP / BACKUP_MANIFEST, render_manifest(other))
    done = verified(BACKUP, fs)
    assert [finding.path for finding in done.findings] == [BACKUP / BACKUP_MANIFEST]
    assert "it says that the log has offsets" in done.texts[0]


def test_a_backup_that_begins_above_0_without_its_snapshot_is_damaged() -> None:
    fs, manifest = a_backup()
    assert manifest.snapshot is not None
    other = replace(manifest, files=manifest.segments)
    fs.put(BACKUP / BACKUP_MANIFEST, render_manifest(other))
    fs.remove(BACKUP / manifest.snapshot.name)
    assert "no snapshot holds what was before" in str(verified(BACKUP, fs).texts)


def test_a_log_that_ends_before_its_snapshot_is_damaged() -> None:
    fs, manifest = a_backup(first=0, snapshot_after=41)
    other = replace(manifest, files=manifest.files[:3], end_offset=10**9)
    fs.put(BACKUP / BACKUP_MANIFEST, render_manifest(other))
    for file in manifest.files[3:]:
        fs.remove(BACKUP / file.name)
    assert "the log ends before this snapshot does" in str(verified(BACKUP, fs).texts)


def test_a_manifest_of_another_version_says_so() -> None:
    fs, _ = a_backup()
    fields = json.loads(fs.contents(BACKUP / BACKUP_MANIFEST))
    fs.put(BACKUP / BACKUP_MANIFEST, json.dumps(fields | {"version": 2}).encode())
    assert "version is 2; this quorumd reads 1" in verified(BACKUP, fs).texts[0]
