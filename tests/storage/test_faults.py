"""Disks that are full, fail, or write less than they were given."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from quorumd.raft.types import SnapshotId
from quorumd.storage.errors import (
    EXIT_DAMAGED,
    DamagedLog,
    DiskFailed,
    DiskFull,
    Misplaced,
    ReadOnlyDirectory,
)
from quorumd.storage.filesystem import IOV_MAX, RealFileSystem, write_all
from quorumd.storage.layout import log_path, snapshot_path
from quorumd.storage.log import Chunk, Log
from quorumd.storage.recovery import recover
from quorumd.storage.snapshot_store import SnapshotStore
from quorumd.wire.batch_header import BATCH_OVERHEAD
from simulation.machines.disk import SimDisk
from tests.storage.faulty_filesystem import FaultyFileSystem, Survival
from tests.storage.helpers import (
    DIRECTORY,
    START_MS,
    append,
    batch,
    contents,
    empty_disk,
    fill,
    open_log,
)


@pytest.fixture
def fs() -> FaultyFileSystem:
    return empty_disk()


def used_bytes(fs: FaultyFileSystem) -> int:
    return sum(len(file.data) for file in fs._live.values())


CALLS: dict[str, Callable[[Log], object]] = {
    "append": lambda log: log.append(batch(4), 4, 5),
    "write": lambda log: log.write(batch(4), 4, 5),
    "sync": lambda log: log.sync(),
    "truncate": lambda log: log.truncate(0),
    "truncate_cache": lambda log: log.truncate_cache(0),
    "read": lambda log: log.read(0, 1, 1),
    "prepare": lambda log: log.prepare(),
}


@pytest.mark.parametrize("error_number", [errno.EIO, errno.ENOSPC])
def test_after_a_failed_fsync_the_log_refuses_everything(
    fs: FaultyFileSystem, error_number: int
) -> None:
    log = open_log(fs)
    fill(log, range(3))
    log.append(batch(3), 3, 4)
    log.write(batch(3), 3, 4)
    fs.errors["fdatasync"] = error_number
    with pytest.raises(DiskFailed, match="making data durable failed"):
        log.sync()
    fs.errors.clear()
    fs.log.clear()
    for call in CALLS.values():
        with pytest.raises(DiskFailed, match="refused after an earlier failure"):
            call(log)
    log.close()
    assert fs.log == []
    assert fs.open_handles == 0


def test_a_failed_write_is_final_too(fs: FaultyFileSystem) -> None:
    log = open_log(fs)
    fill(log, range(3))
    log.append(batch(3), 3, 4)
    fs.errors["pwritev"] = errno.EIO
    with pytest.raises(DiskFailed):
        log.write(batch(3), 3, 4)
    fs.errors.clear()
    with pytest.raises(DiskFailed, match="refused"):
        log.write(batch(3), 3, 4)


@pytest.mark.parametrize("spare_bytes", range(0, 1500, 97))
def test_a_full_disk_refuses_a_write_as_a_whole_and_takes_it_later(
    fs: FaultyFileSystem, spare_bytes: int
) -> None:
    log = open_log(fs, segment_bytes=400, index_interval_bytes=50)
    fill(log, range(7))
    before = contents(log)
    epochs = log.epochs
    chunks = [
        Chunk(b"".join(batch(i, epoch=2) for i in range(start, start + 5)), start, start + 5)
        for start in (7, 12)
    ]
    for chunk in chunks:
        log.append(chunk.data, chunk.base_offset, chunk.end_offset)
    fs.capacity_bytes = used_bytes(fs) + spare_bytes
    for _ in range(2):
        refusal = ""
        try:
            log.write_many(chunks)
        except DiskFull as error:
            refusal = str(error)
        if refusal:
            assert "Free space" in refusal
            assert log.written_end_offset == 7
            assert contents(log) == before
            assert log.epochs == epochs
            assert log.read_cached(7, 1 << 20, 17) == [chunk.data for chunk in chunks]
            after = fs.crash(Survival.KEEP, Random(0))
            assert contents(open_log(after, segment_bytes=400)) == before
        else:
            break
    else:
        fs.capacity_bytes = None
        log.write_many(chunks)
    fs.capacity_bytes = None
    log.sync()
    expected = before + b"".join(chunk.data for chunk in chunks)
    assert contents(log) == expected
    fill(log, [17], epoch=2)
    log.close()
    again = open_log(fs, segment_bytes=400)
    assert contents(again)[: len(expected)] == expected
    assert again.recovery.messages() == []


def test_appends_refused_for_space_can_be_taken_back(fs: FaultyFileSystem) -> None:
    log = open_log(fs, segment_bytes=400)
    fill(log, range(7))
    log.append(batch(7, value_bytes=2000), 7, 8)
    fs.capacity_bytes = used_bytes(fs)
    with pytest.raises(DiskFull):
        log.write(batch(7, value_bytes=2000), 7, 8)
    assert log.truncate_cache(3) == 3
    assert log.truncate(3) == 3
    assert contents(log) == b"".join(batch(i) for i in range(3))
    fs.capacity_bytes = None
    fill(log, range(3, 9), epoch=2)
    log.close()
    assert open_log(fs, segment_bytes=400).log_end_offset == 9


def test_a_full_disk_does_not_stop_a_clean_stop(fs: FaultyFileSystem) -> None:
    log = open_log(fs, segment_bytes=1 << 20, index_interval_bytes=1)
    fill(log, range(7))
    fs.capacity_bytes = 0
    log.close()
    fs.capacity_bytes = None
    assert open_log(fs).log_end_offset == 7


def test_short_writes_are_continued(fs: FaultyFileSystem) -> None:
    fs.write_bytes_max = 100
    log = open_log(fs, segment_bytes=2000)
    chunks = [Chunk(batch(i) + batch(i + 1), i, i + 2) for i in range(0, 40, 2)]
    for chunk in chunks:
        log.append(chunk.data, chunk.base_offset, chunk.end_offset)
    log.write_many(chunks)
    log.sync()
    expected = b"".join(chunk.data for chunk in chunks)
    assert contents(log) == expected
    log.close()
    assert contents(open_log(fs, segment_bytes=2000)) == expected


@pytest.mark.parametrize("count", [IOV_MAX, IOV_MAX + 1, IOV_MAX * 2 + 1])
def test_more_buffers_than_one_call_takes_are_written(
    fs: FaultyFileSystem, tmp_path_factory: pytest.TempPathFactory, count: int
) -> None:
    path = tmp_path_factory.mktemp("many") / "file"
    real = RealFileSystem()
    handle = real.open(path, writable=True, create=True)
    parts = [b"%d," % i for i in range(count)]
    write_all(real, handle, parts, 0)
    assert path.read_bytes() == b"".join(parts)
    real.close(handle)


@pytest.mark.parametrize("error_number", [errno.EROFS, errno.EACCES])
def test_a_read_only_directory_is_named_as_such(fs: FaultyFileSystem, error_number: int) -> None:
    log = open_log(fs)
    append(log, batch(0), 0, 1)
    log.close()
    fs.errors["open for writing"] = error_number
    with pytest.raises(ReadOnlyDirectory, match="mount options"):
        open_log(fs)


@pytest.mark.parametrize(
    ("error_number", "remedy"),
    [
        (errno.EMFILE, "Raise the limit of open files (ulimit -Hn, LimitNOFILE), then start again"),
        (errno.ENFILE, "Raise the limit of open files of the whole system"),
        (errno.ENOMEM, "Leave this process more memory"),
        (errno.EFBIG, "Raise the limit of the size of files (ulimit -f, LimitFSIZE)"),
        (errno.ENAMETOOLONG, "Choose a shorter path, then start again"),
        (errno.EIO, "Check the disk and the kernel log, then start again"),
    ],
)
def test_a_limit_of_the_process_is_not_blamed_on_the_disk(
    fs: FaultyFileSystem, error_number: int, remedy: str
) -> None:
    log = open_log(fs)
    fs.errors["pwritev"] = error_number
    with pytest.raises(DiskFailed, match=re.escape(remedy)):
        append(log, batch(0), 0, 1)


def test_a_read_error_while_a_truncation_looks_for_its_batch_is_a_failed_disk(
    fs: FaultyFileSystem,
) -> None:
    log = open_log(fs, tail_cache_bytes=0)
    fill(log, range(6))
    fs.errors["pread"] = errno.EIO
    with pytest.raises(DiskFailed, match="reading"):
        log.truncate_cache(3)


@pytest.mark.parametrize("snapshots", [(), (SnapshotId(8, 1),)])
def test_a_read_error_at_any_call_of_a_start_is_a_failed_disk_that_names_the_file(
    snapshots: tuple[SnapshotId, ...],
) -> None:
    disk = SimDisk(Random(0))
    for path in (DIRECTORY.parent, DIRECTORY):
        disk.mkdir(path)
    fill(open_log(disk, segment_bytes=300), range(9))
    reads_left, failed = 0, Path()

    def fail_late(call: str, path: Path | None) -> None:
        nonlocal reads_left, failed
        if call == "pread":
            assert path is not None
            reads_left, failed = reads_left - 1, path
            if reads_left < 0:
                raise OSError(errno.EIO, "the disk is broken")

    named = []
    for reads in range(1000):
        disk.crash()
        reads_left, disk.on_call = reads, fail_late
        try:
            open_log(disk, segment_bytes=300, snapshots=snapshots)
        except DiskFailed as error:
            named.append((error.path, failed))
            continue
        break
    assert reads > 5
    assert all(path == failed for path, failed in named)
    assert {path.suffix for path, _ in named} >= {".log", ".index", ".timeindex"}


def test_a_control_batch_that_cannot_be_read_again_is_damage(fs: FaultyFileSystem) -> None:
    log = open_log(fs)
    append(log, batch(0, is_control=True), 0, 1)
    fill(log, range(1, 4))
    again = fs.crash(Survival.KEEP, Random(0))
    opened = open_log(again)
    assert len(list(opened.control_batches())) == 1
    again.flip(log_path(DIRECTORY, 0), 7)  # its offset, which no CRC covers
    with pytest.raises(DamagedLog, match="offset 0"):
        list(opened.control_batches())


@pytest.mark.long
@pytest.mark.parametrize("index_interval_bytes", [1, 1 << 20])
@pytest.mark.parametrize("offset", [4, 10])
def test_a_truncation_never_cuts_more_because_a_bit_of_a_header_is_wrong(
    index_interval_bytes: int, offset: int
) -> None:
    size = len(batch(0, count=4))
    places = [at * size + byte for at in range(5) for byte in range(BATCH_OVERHEAD)]
    refused = 0
    for place in places:
        for mask in (1, 16, 128):
            fs = empty_disk()
            log = open_log(fs, tail_cache_bytes=0, index_interval_bytes=index_interval_bytes)
            for base_offset in range(0, 20, 4):
                append(log, batch(base_offset, count=4), base_offset, base_offset + 4)
            before = contents(log)
            fs.flip(log_path(DIRECTORY, 0), place, mask)
            try:
                assert log.truncate_cache(offset) == offset - offset % 4
                assert log.truncate(offset) == offset - offset % 4
            except DamagedLog:
                refused += 1
                assert len(fs.contents(log_path(DIRECTORY, 0))) >= len(before)
    assert refused


def test_a_segment_that_holds_the_batches_of_another_is_damage() -> None:
    fs = empty_disk()
    size = len(batch(0, count=4))
    log = open_log(fs, tail_cache_bytes=0, segment_bytes=size)
    for base_offset in range(0, 20, 4):
        append(log, batch(base_offset, count=4), base_offset, base_offset + 4)
    fs.put(log_path(DIRECTORY, 8), fs.contents(log_path(DIRECTORY, 0)))
    with pytest.raises(DamagedLog, match="offset"):
        log.truncate_cache(8)


def test_a_lookup_by_time_does_not_believe_the_batches_of_another_place() -> None:
    fs = empty_disk()
    log = open_log(fs, tail_cache_bytes=0, index_interval_bytes=1 << 20)
    for offset, timestamp in enumerate([100, 50, 200, 10, 10]):
        append(log, batch(offset, timestamp=START_MS + timestamp), offset, offset + 1)
    size = len(batch(0))
    path = log_path(DIRECTORY, 0)
    data = fs.contents(path)
    fs.put(path, data[: 2 * size] + data[4 * size :] + data[3 * size :])
    with pytest.raises(DamagedLog, match="offset"):
        log.offset_of_max_timestamp(3)


@pytest.mark.long
@pytest.mark.parametrize("index_interval_bytes", [1, 1 << 20])
def test_a_header_with_a_wrong_bit_is_never_served(index_interval_bytes: int) -> None:
    fs = empty_disk()
    log = open_log(fs, tail_cache_bytes=0, index_interval_bytes=index_interval_bytes)
    for base_offset, epoch in zip(range(0, 20, 4), (1, 1, 3, 3, 7), strict=True):
        data = batch(base_offset, count=4, epoch=epoch)
        append(log, data, base_offset, base_offset + 4)
    expected = {offset: log.read(offset, 1 << 20, 20) for offset in range(20)}
    refused = 0
    for place in range(5 * len(data)):
        if place % len(data) >= BATCH_OVERHEAD:
            continue
        for bit in range(8):
            fs.flip(log_path(DIRECTORY, 0), place, 1 << bit)
            for offset in (0, 5, 10, 19):
                try:
                    found = log.read(offset, 1 << 20, 20)
                    assert found
                    assert expected[offset].startswith(found)
                except DamagedLog:
                    refused += 1
            fs.flip(log_path(DIRECTORY, 0), place, 1 << bit)
    assert refused


def link_to_nothing(path: Path) -> None:
    """As where the disk of what it names is not mounted."""
    path.symlink_to(path.parent / "volume" / path.name)


@pytest.mark.parametrize(
    "put", [os.mkdir, os.mkfifo, lambda path: os.symlink(path, path), link_to_nothing]
)
@pytest.mark.parametrize("others", [[], ["00000000000000000005.log"]])
def test_what_is_no_file_where_a_segment_belongs_is_named(
    tmp_path: Path, others: list[str], put: Callable[[Path], None]
) -> None:
    """The last segment is opened otherwise than closed ones; who opens a pipe waits for its other end."""
    put(log_path(tmp_path, 0))
    for name in others:
        (tmp_path / name).touch()
    with pytest.raises(Misplaced) as caught:
        recover(RealFileSystem(), tmp_path, index_interval_bytes=4096)
    assert caught.value.path == log_path(tmp_path, 0)
    assert caught.value.exit_code == EXIT_DAMAGED


def test_a_pipe_in_place_of_a_snapshot_is_an_unusable_snapshot(tmp_path: Path) -> None:
    os.mkfifo(snapshot_path(tmp_path, SnapshotId(5, 1)))
    snapshots = SnapshotStore(RealFileSystem(), tmp_path)
    assert snapshots.open() == []
    assert "Not a regular file" in str(snapshots.damaged[0])
