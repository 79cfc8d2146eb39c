"""Symbolic links whose target is gone, as where a disk is not mounted: never taken for what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from quorumd.storage.directory import format_directory, open_directory
from quorumd.storage.errors import EXIT_DAMAGED, Misplaced
from quorumd.storage.filesystem import RealFileSystem
from quorumd.storage.layout import log_path
from tests.storage.helpers import batch, open_log
from tests.storage.verifying import verified

FS = RealFileSystem()
WHAT = "a link to what is not there"


def start(storage_dir: Path) -> None:
    directory = open_directory(FS, storage_dir, node_id=1)
    directory.begin()
    open_log(FS, directory.log_directory).close()
    directory.close()


def link(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(path.parent / "volume" / path.name)


@pytest.mark.parametrize(
    "name",
    [
        "__cluster_metadata-0/quorum-state.json",
        "__cluster_metadata-0/leader-epoch-checkpoint",
        "__cluster_metadata-0",
        ".lock",
        ".reserve",
    ],
)
def test_a_start_names_it_as_damage_and_blames_no_disk(tmp_path: Path, name: str) -> None:
    format_directory(FS, tmp_path, node_id=1)
    path = tmp_path / name
    if path.is_dir():
        path.rmdir()
    link(path)
    with pytest.raises(Misplaced) as caught:
        start(tmp_path)
    assert caught.value.path == path
    assert caught.value.exit_code == EXIT_DAMAGED


@pytest.mark.parametrize("base_offset", [0, 1, 2])
def test_a_verification_names_a_segment_and_what_is_wrong_beside_it(
    tmp_path: Path, base_offset: int
) -> None:
    for each in range(3):
        log_path(tmp_path, each).write_bytes(batch(each))
    linked, other = log_path(tmp_path, base_offset), log_path(tmp_path, (base_offset + 1) % 3)
    link(linked)
    other.write_bytes(batch(7))
    found = verified(tmp_path).findings
    assert {each.path for each in found} == {linked, other}
    assert WHAT in str(found)


@pytest.mark.parametrize("name", ["meta.properties", "__cluster_metadata-0/quorum-state.json"])
def test_a_verification_names_a_small_file(tmp_path: Path, name: str) -> None:
    format_directory(FS, tmp_path, node_id=1)
    start(tmp_path)
    link(tmp_path / name)
    (text,) = verified(tmp_path).texts
    assert str(tmp_path / name) in text
    assert WHAT in text
