"""Reading files without owning them, and golden files: bytes that must never change."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from quorumd.storage.directory import format_directory, open_directory
from quorumd.storage.errors import StorageError
from quorumd.storage.filesystem import RealFileSystem
from quorumd.storage.layout import log_path
from quorumd.storage.log import Log
from quorumd.storage.quorum_state import QuorumState
from quorumd.storage.reader import LogFile, TailKind, find_files
from quorumd.wire.records import iter_records
from tests.storage.helpers import DIRECTORY, append, batch, empty_disk, fill, open_log

SIZE = len(batch(0))
GOLDEN = Path(__file__).parent / "golden"


def test_a_live_log_is_read_without_touching_it() -> None:
    fs = empty_disk()
    log = open_log(fs, segment_bytes=SIZE * 4)
    fill(log, range(10))
    fs.log.clear()
    files = find_files(DIRECTORY.parent, fs)
    assert [file.base_offset for file in files] == [0, 4, 8]
    found = [found for file in files for found in file.batches()]
    assert [entry.header.base_offset for entry in found] == list(range(10))
    assert [entry.position for entry in found] == [i % 4 * SIZE for i in range(10)]
    assert all(entry.crc_is_valid and len(entry.data) == SIZE for entry in found)
    assert [record.offset for entry in found for record in iter_records(entry.data)] == list(
        range(10)
    )
    assert [file.tail and file.tail.kind for file in files] == [
        TailKind.NONE,
        TailKind.NONE,
        TailKind.ZEROS,
    ]
    assert fs.log == []
    assert fs.open_handles == 1


def test_what_is_written_during_a_walk_is_found_or_left_out_but_is_no_damage() -> None:
    fs = empty_disk()
    log = open_log(fs, segment_bytes=1 << 20)
    fill(log, range(3))
    (file,) = find_files(DIRECTORY.parent, fs)
    walk = file.batches()
    found = [next(walk)]
    fill(log, range(3, 6))
    found += walk
    assert [entry.header.base_offset for entry in found] == list(range(6))
    assert all(entry.crc_is_valid for entry in found)
    assert file.tail is not None
    assert file.tail.kind is TailKind.ZEROS


def test_a_write_that_is_half_done_during_a_walk_is_looked_at_again() -> None:
    fs = empty_disk()
    path = log_path(DIRECTORY, 0)
    fs.put(path, batch(0) + bytes(1000))
    file = LogFile(path, fs)
    walk = file.batches()
    found = [next(walk)]
    fs.pwritev(fs.open(path, writable=True), [batch(1)], SIZE)
    found += walk
    assert len(found) == 2
    assert file.tail is not None
    assert file.tail.kind is TailKind.ZEROS


@pytest.mark.parametrize(
    ("data", "kind", "count"),
    [
        (b"", TailKind.NONE, 0),
        (bytes(500), TailKind.ZEROS, 0),
        (batch(0) + bytes(5), TailKind.ZEROS, 1),
        (batch(0) + batch(1)[:40], TailKind.TORN, 1),
        (batch(0) + batch(1)[:70] + bytes(99), TailKind.TORN, 1),
        (b"hello, this is no log at all " * 9, TailKind.TORN, 0),
        (batch(0) + b"\x01" * SIZE + batch(2), TailKind.DAMAGE, 1),
    ],
)
def test_the_tail_says_why_the_batches_end(data: bytes, kind: TailKind, count: int) -> None:
    fs = empty_disk()
    path = log_path(DIRECTORY, 0)
    fs.put(path, data)
    file = LogFile(path, fs)
    found = list(file.batches())
    assert len([entry for entry in found if entry.crc_is_valid]) == count
    assert file.tail is not None
    assert (file.tail.kind is kind) or (kind is TailKind.TORN and not found[-1].crc_is_valid)


def test_a_batch_with_a_wrong_crc_is_shown_as_such_and_passed() -> None:
    fs = empty_disk()
    path = log_path(DIRECTORY, 0)
    fs.put(path, b"".join(batch(i) for i in range(4)))
    fs.flip(path, SIZE + 65)
    assert [entry.crc_is_valid for entry in LogFile(path, fs).batches()] == [
        True,
        False,
        True,
        True,
    ]


def test_snapshots_come_first_and_have_their_id() -> None:
    fs = empty_disk()
    for name in (
        "00000000000000000012-0000000003.checkpoint",
        "00000000000000000012.log",
        "00000000000000000012.index",
        "partition.metadata",
    ):
        fs.put(DIRECTORY / name, batch(0) if "checkpoint" in name else b"")
    files = find_files(DIRECTORY, fs)
    assert [(file.snapshot_id, file.base_offset) for file in files] == [((12, 3), None), (None, 12)]
    assert len(list(files[0].batches())) == 1


def test_what_is_not_there_is_said_so() -> None:
    fs = empty_disk()
    with pytest.raises(StorageError, match="no segments"):
        find_files(DIRECTORY, fs)
    with pytest.raises(StorageError, match="no such file"):
        find_files(DIRECTORY / "nowhere", fs)
    with pytest.raises(StorageError, match="no such file"):
        list(LogFile(DIRECTORY / "nowhere.log", fs).batches())


def test_batches_larger_than_the_window_are_read() -> None:
    fs = empty_disk()
    path = log_path(DIRECTORY, 0)
    data = [batch(0), batch(1, value_bytes=3 << 20), batch(2), batch(3, value_bytes=1 << 20)]
    fs.put(path, b"".join(data))
    assert [entry.data for entry in LogFile(path, fs).batches()] == data


def write_golden(root: Path) -> None:
    """A small directory with everything in it; the storage id and all times are fixed."""
    fs = RealFileSystem()
    uuid = UUID("3a2b1c0d-4e5f-4a6b-8c7d-9e8f7a6b5c4d")
    format_directory(fs, root, node_id=1, cluster_id="golden", storage_id=uuid, bootstrap=True)
    directory = open_directory(fs, root, node_id=1)
    directory.save_quorum_state(
        QuorumState(cluster_id="golden", leader_id=1, leader_uuid=uuid, leader_epoch=2)
    )
    log = Log.open(
        fs,
        directory.log_directory,
        segment_bytes=600,
        tail_cache_bytes=1000,
        index_interval_bytes=100,
    )
    for offset in range(0, 18, 2):
        data = batch(offset, count=2, epoch=1 + offset // 10)
        append(log, data, offset, offset + 2)
    log.close()
    directory.close()


FILES = [
    "meta.properties",
    "__cluster_metadata-0/00000000000000000000.index",
    "__cluster_metadata-0/00000000000000000000.log",
    "__cluster_metadata-0/00000000000000000000.timeindex",
    "__cluster_metadata-0/leader-epoch-checkpoint",
    "__cluster_metadata-0/quorum-state.json",
]


@pytest.mark.parametrize("name", FILES)
def test_the_bytes_on_disk_are_the_golden_ones(name: str, tmp_path: Path) -> None:
    # A difference here is a new format: it needs a way to read the old one, and a new golden file.
    write_golden(tmp_path / "data")
    golden = GOLDEN / name.replace("/", "-")
    assert (tmp_path / "data" / name).read_bytes() == golden.read_bytes()
