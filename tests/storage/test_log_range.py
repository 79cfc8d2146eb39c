"""The batches between two offsets, from segment files alone: all of them, or a clear error."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from quorumd.storage import log_range
from quorumd.storage.errors import DamagedLog, DiskFailed, UnsuitableOffset
from quorumd.storage.layout import index_path, log_path
from quorumd.storage.log_range import LogRange
from quorumd.wire.records import stamp
from tests.storage.faulty_filesystem import FaultyFileSystem
from tests.storage.helpers import DIRECTORY, append, batch, empty_disk, open_log

COUNT = 60
SIZES = (1, 3)


def disk(
    *, segment_bytes: int = 1500, count: int = COUNT, close: bool = False
) -> tuple[FaultyFileSystem, dict[int, bytes]]:
    """A log of batches with 1 and 3 records, and the bytes of each by its first offset."""
    fs = empty_disk()
    log = open_log(fs, segment_bytes=segment_bytes, index_interval_bytes=200)
    batches = {}
    offset = 0
    for number in range(count):
        size = SIZES[number % 2]
        data = batch(offset, count=size, epoch=1 + number // 25, value_bytes=30)
        append(log, data, offset, offset + size)
        batches[offset] = data
        offset += size
    if close:
        log.close()
    return fs, batches


def read(fs: FaultyFileSystem, start: int, end: int, epoch: int = 0) -> list[bytes]:
    found = []
    log = LogRange(fs, DIRECTORY, start, end, epoch)
    for data, headers in log.chunks():
        found += [data[at : at + header.size_bytes] for at, header in headers]
    assert log.read_bytes == log.size_bytes
    assert fs.open_handles in (0, 1)
    return found


def segments(fs: FaultyFileSystem) -> list[int]:
    return [int(name[:20]) for name in fs.listdir(DIRECTORY) if name.endswith(".log")]


@pytest.mark.long
@pytest.mark.parametrize("window_bytes", [100, 1000, 1 << 20])
@pytest.mark.parametrize("close", [False, True])
def test_any_range_is_read_exactly(
    monkeypatch: pytest.MonkeyPatch, window_bytes: int, close: bool
) -> None:
    monkeypatch.setattr(log_range, "CHUNK_BYTES", window_bytes)
    monkeypatch.setattr(log_range, "SEEK_WINDOW_BYTES", window_bytes)
    fs, batches = disk(close=close)
    assert len(segments(fs)) > 4
    offsets = sorted(batches)
    for start in offsets:
        for end in offsets:
            if start < end:
                expected = [batches[each] for each in offsets if start <= each < end]
                assert read(fs, start, end) == expected
    assert read(fs, 0, 120) == list(batches.values())


def test_segments_below_the_range_are_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    fs, _ = disk()
    bases = segments(fs)
    opened: list[Path] = []
    reads: list[int] = []
    fs_open, pread = fs.open, fs.pread

    def note_open(path: Path, *, writable: bool = False, create: bool = False) -> int:
        opened.append(path)
        return fs_open(path, writable=writable, create=create)

    monkeypatch.setattr(fs, "open", note_open)
    monkeypatch.setattr(
        fs, "pread", lambda handle, size, at: reads.append(size) or pread(handle, size, at)
    )
    read(fs, bases[3], bases[4])
    assert set(opened) == {log_path(DIRECTORY, bases[3])}


def test_the_index_saves_the_way_to_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_range, "SEEK_WINDOW_BYTES", 200)
    fs, batches = disk(segment_bytes=4000)
    base, after = segments(fs)[:2]
    start = max(offset for offset in batches if offset < after - 3)
    pread = fs.pread
    places: list[int] = []
    monkeypatch.setattr(
        fs, "pread", lambda handle, size, at: places.append(at) or pread(handle, size, at)
    )
    assert read(fs, start, after)
    assert all(at > 3000 or at == 0 for at in places)
    assert places.count(0) == 1, "only the index is read from its start"
    fs.remove(index_path(DIRECTORY, base))
    places.clear()
    assert read(fs, start, after)
    assert len(places) > 10


@pytest.mark.parametrize("content", [b"\0\0\0\1\0\0\0\7", b"\0\0\0\1\0\1\0\0", b"123", b""])
def test_an_index_that_leads_nowhere_costs_time_only(content: bytes) -> None:
    fs, batches = disk(segment_bytes=4000)
    _, after = segments(fs)[:2]
    fs.put(index_path(DIRECTORY, 0), content)
    start = max(offset for offset in batches if offset < after)
    assert read(fs, start, after) == [batches[start]]


def test_there_are_pauses_on_a_long_way_to_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_range, "_SEEK_BATCHES", 5)
    fs, _ = disk(segment_bytes=1 << 20)
    pieces = list(LogRange(fs, DIRECTORY, 100, 120, 0).chunks())
    assert len([piece for piece in pieces if not piece.batches]) >= 9


def test_a_batch_larger_than_a_window_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_range, "CHUNK_BYTES", 300)
    fs = empty_disk()
    log = open_log(fs, segment_bytes=1 << 20)
    data = [batch(0), batch(1, value_bytes=5000), batch(2)]
    for offset, each in enumerate(data):
        append(log, each, offset, offset + 1)
    assert read(fs, 0, 3) == data


# What no range can be


@pytest.mark.parametrize("close", [False, True])
@pytest.mark.parametrize("start", [0, 119, 120])
def test_a_log_that_ends_before_is_said_to(start: int, close: bool) -> None:
    fs, _ = disk(close=close)
    if start == 119:
        start = 117
    with pytest.raises(UnsuitableOffset, match="the log ends at offset 120"):
        read(fs, start, 121)
    assert fs.open_handles == (0 if close else 1)


def test_an_end_inside_a_batch_is_refused() -> None:
    fs, _ = disk()
    with pytest.raises(UnsuitableOffset, match=r"offset 3 is inside the batch 1 \.\. 3"):
        read(fs, 0, 3)


def test_an_end_below_the_log_is_refused() -> None:
    fs, _ = disk()
    second = segments(fs)[1]
    fs.remove(log_path(DIRECTORY, 0))
    with pytest.raises(UnsuitableOffset, match=f"the log begins at offset {second}"):
        read(fs, 0, second)
    with pytest.raises(UnsuitableOffset, match="the log begins at offset 0"):
        read(empty_disk(), 0, 1)


# Damage


def test_a_missing_beginning_is_damage() -> None:
    fs, _ = disk()
    second = segments(fs)[1]
    fs.remove(log_path(DIRECTORY, 0))
    with pytest.raises(DamagedLog, match=f"begins at offset {second} and no snapshot") as caught:
        read(fs, 0, 120)
    assert caught.value.exit_code == 3


def test_a_missing_segment_is_damage() -> None:
    fs, _ = disk()
    bases = segments(fs)
    fs.remove(log_path(DIRECTORY, bases[2]))
    with pytest.raises(DamagedLog, match=f"the one before ends at {bases[2]}") as caught:
        read(fs, 0, 120)
    assert caught.value.path == log_path(DIRECTORY, bases[3])


def test_any_changed_byte_is_damage() -> None:
    fs, batches = disk(count=5)
    path = log_path(DIRECTORY, 0)
    for at in range(sum(len(data) for offset, data in batches.items() if offset < 8)):
        fs.flip(path, at)
        with pytest.raises(DamagedLog) as caught:
            read(fs, 0, 9, epoch=1)
        assert caught.value.position is not None
        # No CRC covers the epoch: one that is too high is noticed by the batch behind it.
        assert caught.value.position <= at or "of epoch 1 after" in str(caught.value)
        assert caught.value.path == path
        fs.flip(path, at)
    assert len(read(fs, 0, 9)) == 5


def test_damage_behind_the_range_does_not_matter() -> None:
    fs, batches = disk(segment_bytes=1 << 20)
    path = log_path(DIRECTORY, 0)
    position = sum(len(data) for offset, data in batches.items() if offset < 60)
    fs.flip(path, position + 70)
    assert len(read(fs, 0, 60)) == 30
    with pytest.raises(DamagedLog, match="CRC") as caught:
        read(fs, 0, 61)
    assert (caught.value.position, caught.value.offset) == (position, 60)


def test_a_closed_segment_with_something_behind_its_batches_is_damaged() -> None:
    fs, _ = disk()
    first, second = segments(fs)[:2]
    path = log_path(DIRECTORY, first)
    whole = fs.contents(path)
    for rest in (b"\0" * 5, b"\0" * 100, b"x" * 100):
        fs.put(path, whole + rest)
        with pytest.raises(DamagedLog):
            read(fs, 0, second + 1)
        assert read(fs, 0, second)


def test_an_offset_where_no_batch_begins_is_damage() -> None:
    fs, _ = disk()
    with pytest.raises(DamagedLog, match="no batch begins at offset 2"):
        read(fs, 2, 8)


def test_an_epoch_that_goes_back_is_damage() -> None:
    fs, _ = disk()
    with pytest.raises(DamagedLog, match="epoch 1 after one of epoch 2"):
        read(fs, 0, 8, epoch=2)


def test_a_first_batch_without_an_epoch_is_damage() -> None:
    fs, batches = disk()
    path = log_path(DIRECTORY, 0)
    fs.put(path, stamp(batches[0], 0, -1) + fs.contents(path)[len(batches[0]) :])
    with pytest.raises(DamagedLog, match="epoch -1: no leader has stamped it"):
        read(fs, 0, 8, epoch=-1)


def test_a_segment_that_cannot_be_read_is_no_damage() -> None:
    fs, _ = disk()
    fs.errors["pread"] = errno.EIO
    with pytest.raises(DiskFailed, match="reading failed"):
        read(fs, 0, 8)
    fs.errors = {"open": errno.EIO}
    with pytest.raises(DiskFailed, match="reading failed"):
        read(fs, 0, 8)
