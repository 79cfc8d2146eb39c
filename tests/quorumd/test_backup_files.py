"""The files of a backup: durable before they get their name, and none left where they do not get it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from quorumd.cli.backup_files import BackupFiles, BackupRefused
from quorumd.client.errors import QuorumError
from quorumd.raft.types import SnapshotId
from quorumd.wire.records import Record, build_batch
from tests.quorumd.snapshots import snapshot_bytes


def write_all(files: BackupFiles) -> None:
    """A snapshot, and two batches in a segment each."""
    data = snapshot_bytes({b"k": (b"v", 0)}, epoch=1)
    spool = files.new_spool(SnapshotId(1, 1))
    spool.write(data, len(data))
    spool.close()
    files.begin_log()
    for offset in range(2):
        files.append(memoryview(build_batch([Record(value=b"x")], base_offset=offset)), offset)
    files.finish(
        cluster_id="c", start_offset=0, end_offset=2, epoch=1, begun_at="then", ended_at="now"
    )


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quorumd.cli.backup_files.SEGMENT_BYTES", 1)


@pytest.mark.usefixtures("small_segments")
def test_everything_is_on_disk_before_it_has_its_name_and_then_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "backup"
    steps: list[tuple[str, int]] = []
    fsync, rename = os.fsync, os.rename

    def noted_fsync(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        steps.append((path.name, -1 if path.is_dir() else path.stat().st_size))
        fsync(descriptor)

    def noted_rename(source: Any, goal: Any) -> None:
        steps.append(("rename", -1))
        rename(source, goal)

    monkeypatch.setattr("os.fsync", noted_fsync)
    monkeypatch.setattr("os.rename", noted_rename)
    with BackupFiles(target) as files:
        write_all(files)
    *written, folder, renamed, parent = steps
    assert dict(written) == {path.name: path.stat().st_size for path in target.iterdir()}
    assert len(written) == 4
    assert [folder[0], renamed[0], parent[0]] == [".backup.part", "rename", tmp_path.name]


def test_nothing_is_left_where_it_could_not_get_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(source: Any, goal: Any) -> None:
        raise OSError(30, "Read-only file system")

    open_before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patched:
        patched.setattr("os.rename", fail)
        with pytest.raises(QuorumError, match="Read-only"), BackupFiles(tmp_path / "b") as files:
            write_all(files)
    assert list(tmp_path.iterdir()) == []
    with BackupFiles(tmp_path / "b"), pytest.raises(BackupRefused), BackupFiles(tmp_path / "b"):
        pass
    assert len(os.listdir("/proc/self/fd")) == open_before


def test_nothing_is_left_where_its_name_may_not_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync

    def fail_for_parent(descriptor: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}") == str(tmp_path):
            raise OSError(5, "Input/output error")
        fsync(descriptor)

    monkeypatch.setattr("os.fsync", fail_for_parent)
    with (
        pytest.raises(QuorumError, match="Nothing of it is left"),
        BackupFiles(tmp_path / "b") as files,
    ):
        write_all(files)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_was_renamed_before_it_was_locked_is_not_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the backup that held the lock, which has finished."""
    flock, part = fcntl.flock, tmp_path / ".backup.part"
    renamed = tmp_path / "other"

    def rename_before(descriptor: int, operation: int) -> None:
        if not renamed.exists():
            os.rename(part, renamed)
        flock(descriptor, operation)

    monkeypatch.setattr("fcntl.flock", rename_before)
    with BackupFiles(tmp_path / "backup") as files:
        write_all(files)
    assert list(renamed.iterdir()) == []
    assert len(list((tmp_path / "backup").iterdir())) == 3


def test_what_is_no_directory_is_in_the_way(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BackupRefused, match="in the way"):
        BackupFiles(tmp_path / "pipe")
