"""backup.json: what is written is read back, and nothing that was changed is believed."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumd.storage.backup_manifest import (
    BackupFile,
    BackupManifest,
    load_manifest,
    parse_manifest,
    render_manifest,
)
from quorumd.storage.errors import DamagedFile, StorageError
from quorumd.storage.filesystem import RealFileSystem

SUM = "ab" * 32
SNAPSHOT = BackupFile(name=f"{7:020d}-{3:010d}.checkpoint", size_bytes=10, sha256=SUM)
SEGMENTS = tuple(
    BackupFile(name=f"{base:020d}.log", size_bytes=base, sha256=SUM) for base in (5, 900)
)
MANIFEST = BackupManifest(
    cluster_id="clüster",
    start_offset=5,
    end_offset=1000,
    epoch=4,
    begun_at="2026-11-20T20:39:51.749Z",
    ended_at="2026-11-20T20:40:00.000Z",
    files=(SNAPSHOT, *SEGMENTS),
)


def test_what_is_written_is_read_back() -> None:
    data = render_manifest(MANIFEST)
    assert parse_manifest(data) == MANIFEST
    assert (MANIFEST.snapshot, MANIFEST.segments) == (SNAPSHOT, SEGMENTS)
    assert MANIFEST.size_bytes == 915
    bare = replace(MANIFEST, files=SEGMENTS)
    assert parse_manifest(render_manifest(bare)).snapshot is None


def test_the_snapshot_comes_first_and_the_segments_in_order_however_they_are_listed() -> None:
    listed = replace(MANIFEST, files=MANIFEST.files[::-1])
    assert parse_manifest(render_manifest(listed)).files == MANIFEST.files


def test_a_file_is_no_backup(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    with pytest.raises(StorageError, match=r"this is no backup: there is no backup\.json"):
        load_manifest(RealFileSystem(), path)


@given(at=st.integers(0, len(render_manifest(MANIFEST)) - 2), mask=st.integers(1, 255))
def test_a_byte_that_changed_is_noticed(at: int, mask: int) -> None:
    data = bytearray(render_manifest(MANIFEST))
    data[at] ^= mask
    with suppress(ValueError):
        assert parse_manifest(bytes(data)) == MANIFEST, "only white space may change unnoticed"


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"files": [{"name": "../../etc/passwd", "size_bytes": 1, "sha256": SUM}]},
        {"files": [{"name": f"{0:020d}.index", "size_bytes": 1, "sha256": SUM}]},
        {"files": [{"name": f"{0:020d}.log", "size_bytes": 1, "sha256": "short"}]},
        {"files": [{"name": f"{0:020d}.log", "size_bytes": 1, "sha256": SUM}] * 2},
        {"files": [7]},
        {
            "files": [
                {"name": f"{end:020d}-{3:010d}.checkpoint", "size_bytes": 1, "sha256": SUM}
                for end in (7, 8)
            ]
        },
        {"end_offset": -1},
        {"end_offset": True},
        {"end_offset": 1 << 63},
        {"cluster_id": None},
    ],
    ids=str,
)
def test_impossible_values_are_refused_even_with_a_right_sum(change: dict[str, object]) -> None:
    from quorumd.storage import backup_manifest

    fields = json.loads(render_manifest(MANIFEST))
    del fields["sha256"]
    fields |= change
    data = backup_manifest._render({**fields, "sha256": backup_manifest._digest(fields)})
    with pytest.raises(ValueError, match=r"."):
        parse_manifest(data)


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"[]", b"{}", b"\xff\xfe", b"[" * 100_000),
        render_manifest(MANIFEST).rpartition(b',\n  "sha256"')[0] + b"}",
    ],
    ids=["empty", "a list", "nothing in it", "no text", "too deep", "no sum"],
)
def test_what_is_no_manifest_is_damage(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "backup.json").write_bytes(data)
    with pytest.raises(DamagedFile, match="unreadable"):
        load_manifest(RealFileSystem(), tmp_path)


def test_a_directory_without_one_is_no_backup(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(StorageError, match="this is no backup") as caught:
            load_manifest(RealFileSystem(), path)
        assert caught.value.exit_code == 1
