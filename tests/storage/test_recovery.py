"""One test per kind of damage: cut and reported, rebuilt, or refused with file, place and remedy."""

from __future__ import annotations

from typing import Any

import pytest

from quorumd.storage.errors import DamagedLog, DiskFailed
from quorumd.storage.layout import (
    EPOCH_CHECKPOINT,
    index_path,
    log_path,
    snapshot_path,
    time_index_path,
)
from quorumd.storage.log import Log
from quorumd.wire.records import Record, build_batch
from tests.server.snapshot_logs import with_crc
from tests.storage.faulty_filesystem import FaultyFileSystem
from tests.storage.helpers import (
    DIRECTORY,
    START_MS,
    append,
    batch,
    contents,
    empty_disk,
    fill,
    last_end,
    open_log,
    put_snapshot,
)

SIZE = len(batch(0))
FIRST = log_path(DIRECTORY, 0)
SEGMENT_BYTES = SIZE * 5
LAST = log_path(DIRECTORY, 15)


@pytest.fixture
def fs() -> FaultyFileSystem:
    """Offsets 0 .. 18 in four segments of five batches; the last one holds 15 to 18 and zeros."""
    disk = empty_disk()
    log = reopen(disk)
    fill(log, range(12))
    fill(log, range(12, 19), epoch=4)
    return disk


def reopen(fs: FaultyFileSystem, **settings: Any) -> Log:
    settings = {"segment_bytes": SEGMENT_BYTES, "index_interval_bytes": 1, **settings}
    return open_log(fs, **settings)


def everything(end: int) -> bytes:
    return b"".join(batch(offset, epoch=1 if offset < 12 else 4) for offset in range(end))


def assert_refused(fs: FaultyFileSystem, what: str) -> DamagedLog:
    """Opening fails, names what is wrong, and changes nothing."""
    names = fs.listdir(DIRECTORY)
    before = {name: fs.contents(DIRECTORY / name) for name in names}
    with pytest.raises(DamagedLog, match=what) as caught:
        reopen(fs)
    assert {name: fs.contents(DIRECTORY / name) for name in fs.listdir(DIRECTORY)} == before
    assert fs.listdir(DIRECTORY) == names
    assert "Nothing was changed" in str(caught.value)
    assert str(caught.value.path) in str(caught.value)
    assert caught.value.exit_code == 3
    return caught.value


# --- the last segment


def test_zeros_behind_the_last_batch_are_kept_and_not_worth_a_word(fs: FaultyFileSystem) -> None:
    assert len(fs.contents(LAST)) == SEGMENT_BYTES
    log = reopen(fs)
    assert contents(log) == everything(19)
    assert log.recovery.messages() == []
    assert len(fs.contents(LAST)) == SEGMENT_BYTES


@pytest.mark.parametrize("kept", [1, 20, 60, 61, SIZE - 1])
def test_a_short_last_batch_at_the_end_of_the_file_is_cut(fs: FaultyFileSystem, kept: int) -> None:
    fs.put(LAST, fs.contents(LAST)[: 3 * SIZE + kept])
    log = reopen(fs)
    assert contents(log) == everything(18)
    assert not any(fs.contents(LAST)[3 * SIZE :])
    if kept > 8:  # less is nothing but zeros
        assert log.recovery.cut_position == 3 * SIZE
        (message,) = log.recovery.messages()
        assert f"{LAST}: cut off" in message
        assert "ends at offset 18" in message
    fill(log, range(18, 30), epoch=4)
    log.close()
    assert contents(reopen(fs)) == everything(30)


@pytest.mark.parametrize("kept", [10, 61, SIZE - 2])
def test_a_last_batch_that_is_half_written_into_zeros_is_cut(
    fs: FaultyFileSystem, kept: int
) -> None:
    data = fs.contents(LAST)
    begun = data[: 3 * SIZE + kept]
    fs.put(LAST, begun + bytes(len(data) - len(begun)))
    log = reopen(fs)
    assert contents(log) == everything(18)
    assert log.recovery.cut_bytes > 0
    assert not any(fs.contents(LAST)[3 * SIZE :])


def test_a_last_batch_with_a_wrong_crc_is_cut_unless_its_write_was_complete(
    fs: FaultyFileSystem,
) -> None:
    fs.flip(LAST, 4 * SIZE - 5)
    error = assert_refused(fs, "damage at the end: the CRC does not match .* sectors were written")
    assert (error.position, error.offset) == (3 * SIZE, 18)
    fs.put(LAST, fs.contents(LAST)[: 4 * SIZE])
    log = reopen(fs)
    assert contents(log) == everything(18)
    assert log.recovery.cut_bytes == SIZE - 1  # its last byte is a zero
    assert log.recovery.cut_path == LAST


def test_garbage_behind_the_last_batch_is_cut(fs: FaultyFileSystem) -> None:
    data = fs.contents(LAST)[: 4 * SIZE] + b"\x02garbage\xff" * 50
    fs.put(LAST, data)
    log = reopen(fs)
    assert contents(log) == everything(19)
    assert log.recovery.cut_bytes == 450


def test_a_first_batch_whose_sectors_arrived_without_the_one_before_is_cut(
    fs: FaultyFileSystem,
) -> None:
    # A sector ends inside the last header: the part behind it is there, the offset before it is not.
    disk = empty_disk()
    log = open_log(disk)
    filler = batch(0, value_bytes=512 - 8 - SIZE + 10 - 2)
    assert len(filler) == 504
    append(log, filler, 0, 1)
    append(log, batch(1), 1, 2)
    data = bytearray(disk.contents(FIRST))
    data[504:512] = bytes(8)
    disk.put(FIRST, bytes(data))
    again = open_log(disk)
    assert again.log_end_offset == 1
    assert again.recovery.cut_position == 504


@pytest.mark.parametrize("at", [0, 10, 16, 18, 40, 65])
def test_damage_before_the_last_batch_is_refused(fs: FaultyFileSystem, at: int) -> None:
    fs.flip(LAST, 2 * SIZE + at, 0x7F)
    error = assert_refused(fs, "valid batch follows|must follow")
    assert (error.path, error.position, error.offset) == (LAST, 2 * SIZE, 17)


def test_a_size_that_hides_the_batches_behind_it_is_refused(fs: FaultyFileSystem) -> None:
    fs.flip(LAST, SIZE + 10)  # 256 bytes more: past the end of the data
    assert assert_refused(fs, "valid batch follows").position == SIZE


def test_a_zeroed_batch_in_the_middle_is_refused(fs: FaultyFileSystem) -> None:
    data = bytearray(fs.contents(LAST))
    data[SIZE : 2 * SIZE] = bytes(SIZE)
    fs.put(LAST, bytes(data))
    assert assert_refused(fs, "valid batch follows").position == SIZE


def test_an_offset_that_does_not_increase_is_refused(fs: FaultyFileSystem) -> None:
    fs.put(LAST, fs.contents(LAST)[: 4 * SIZE] + batch(18, epoch=4))
    error = assert_refused(fs, "offset 18 where 19 must follow")
    assert (error.position, error.offset) == (4 * SIZE, 19)


def test_a_gap_inside_a_segment_is_refused(fs: FaultyFileSystem) -> None:
    fs.put(LAST, fs.contents(LAST)[: 4 * SIZE] + batch(20, epoch=4))
    assert_refused(fs, "offset 20 where 19 must follow")


def test_a_last_batch_that_ends_before_it_begins_is_refused(fs: FaultyFileSystem) -> None:
    data = batch(19, epoch=4)
    backwards = with_crc(data[:23] + (-1).to_bytes(4, "big", signed=True) + data[27:])
    fs.put(LAST, fs.contents(LAST)[: 4 * SIZE] + backwards)
    assert_refused(fs, "a batch whose last offset is -1 from its first")


def test_an_epoch_that_goes_backwards_is_refused(fs: FaultyFileSystem) -> None:
    fs.put(LAST, fs.contents(LAST)[: 4 * SIZE] + batch(19, epoch=3))
    assert_refused(fs, "epoch 3 after one of epoch 4")


def test_a_batch_without_an_epoch_is_refused(fs: FaultyFileSystem) -> None:
    fs.put(LAST, fs.contents(LAST)[: 4 * SIZE] + batch(19, epoch=-1))
    assert_refused(fs, "a batch of epoch -1: no leader has stamped it")


def test_a_log_that_begins_without_an_epoch_is_refused(fs: FaultyFileSystem) -> None:
    """The CRC does not cover the epoch."""
    fs.put(FIRST, batch(0, epoch=-1) + fs.contents(FIRST)[SIZE:])
    assert_refused(fs, "a batch of epoch -1: no leader has stamped it")


def test_a_last_segment_that_begins_without_an_epoch_is_refused() -> None:
    disk = empty_disk()
    fill(reopen(disk), range(3))
    disk.put(FIRST, batch(0, epoch=-1) + disk.contents(FIRST)[SIZE:])
    assert_refused(disk, "a batch of epoch -1: no leader has stamped it")


def test_a_log_that_ends_below_a_committed_offset_is_refused(fs: FaultyFileSystem) -> None:
    fs.put(LAST, fs.contents(LAST)[: 3 * SIZE + 5])
    with pytest.raises(DamagedLog, match="everything below 19 was committed"):
        reopen(fs, committed_offset=19)
    assert len(fs.contents(LAST)) == 3 * SIZE + 5
    assert reopen(fs, committed_offset=18).log_end_offset == 18


def test_a_missing_last_segment_is_refused_if_it_was_committed(fs: FaultyFileSystem) -> None:
    fs.remove(LAST)
    with pytest.raises(DamagedLog, match="the log ends at offset 15"):
        reopen(fs, committed_offset=16)


def test_an_empty_last_segment_is_a_roll_that_was_interrupted(fs: FaultyFileSystem) -> None:
    fs.put(LAST, b"")
    log = reopen(fs)
    assert contents(log) == everything(15)
    fill(log, range(15, 19), epoch=4)
    assert contents(log) == everything(19)


# --- closed segments


@pytest.mark.parametrize("at", [3, 9, 11, 15, 16])
def test_a_damaged_header_in_a_closed_segment_is_refused(fs: FaultyFileSystem, at: int) -> None:
    path = log_path(DIRECTORY, 5)
    fs.flip(path, 2 * SIZE + at, 0x40)
    error = assert_refused(fs, "byte")
    assert error.path in (path, log_path(DIRECTORY, 10))
    if error.path == path:
        assert error.position in (2 * SIZE, 3 * SIZE)


def test_a_short_closed_segment_is_refused(fs: FaultyFileSystem) -> None:
    path = log_path(DIRECTORY, 5)
    fs.put(path, fs.contents(path)[:-1])
    error = assert_refused(fs, "not a sequence of whole batches: the last batch is short")
    assert (error.path, error.position, error.offset) == (path, 4 * SIZE, 9)


def test_bytes_behind_a_closed_segment_are_refused(fs: FaultyFileSystem) -> None:
    path = log_path(DIRECTORY, 5)
    fs.put(path, fs.contents(path) + bytes(100))
    assert assert_refused(fs, "not a sequence of whole batches").position == 5 * SIZE


def test_a_missing_segment_in_the_middle_is_refused(fs: FaultyFileSystem) -> None:
    fs.remove(log_path(DIRECTORY, 5))
    error = assert_refused(fs, "a gap between segments: .* begins at offset 10, .* ends at 5")
    assert error.path == log_path(DIRECTORY, 10)


def test_a_closed_segment_that_lacks_whole_batches_is_refused(fs: FaultyFileSystem) -> None:
    path = log_path(DIRECTORY, 5)
    fs.put(path, fs.contents(path)[:-SIZE])
    assert_refused(fs, "a gap between segments")


def test_a_doubled_segment_is_refused(fs: FaultyFileSystem) -> None:
    fs.put(log_path(DIRECTORY, 7), fs.contents(log_path(DIRECTORY, 5))[2 * SIZE :])
    error = assert_refused(fs, "an overlap between segments: .* begins at offset 7, .* ends at 10")
    assert error.offset == 7


def test_a_segment_under_a_wrong_name_is_refused(fs: FaultyFileSystem) -> None:
    data = fs.contents(log_path(DIRECTORY, 10))
    fs.put(log_path(DIRECTORY, 5), data)
    assert_refused(fs, "offset 10 where 5 must follow")


def test_an_empty_segment_that_was_put_behind_a_gap_is_named(fs: FaultyFileSystem) -> None:
    stray = log_path(DIRECTORY, 99999)
    fs.put(stray, b"")
    error = assert_refused(fs, "an empty segment behind a gap: it begins at offset 99999, .* at 19")
    assert error.path == stray
    assert "move it away" in str(error)


def test_damage_before_an_empty_segment_is_told_as_damage(fs: FaultyFileSystem) -> None:
    fs.put(log_path(DIRECTORY, 99999), b"")
    fs.put(LAST, fs.contents(LAST)[:SIZE] + b"\1" * SIZE)
    assert assert_refused(fs, "not a sequence of whole batches").path == LAST


def test_a_missing_first_segment_is_refused_unless_a_snapshot_covers_it(
    fs: FaultyFileSystem,
) -> None:
    fs.remove(FIRST)
    assert_refused(fs, "begins at offset 5 and no snapshot holds what was before")
    short = put_snapshot(fs, 4, 1)
    assert_refused(fs, "begins at offset 5 and no snapshot")
    with pytest.raises(DamagedLog, match="begins at offset 5 and no snapshot"):
        reopen(fs, snapshots=[short])
    covering = put_snapshot(fs, 5, 1)
    assert_refused(fs, "00005-0000000001.checkpoint, which holds what .* was not found sound")
    fs.remove(snapshot_path(DIRECTORY, covering))
    later = put_snapshot(fs, 9, 1)
    assert_refused(fs, "00009-0000000001.checkpoint, which holds what .* was not found sound")
    fs.remove(snapshot_path(DIRECTORY, later))
    covering = put_snapshot(fs, 5, 1)
    log = reopen(fs, snapshots=[short, covering])
    assert log.log_start_offset == 5
    assert log.epochs == [(1, 5), (4, 12)]


def test_a_log_without_any_segment_is_refused(fs: FaultyFileSystem) -> None:
    for offset in (0, 5, 10, 15):
        fs.remove(log_path(DIRECTORY, offset))
    assert_refused(fs, "there is no segment, but leader-epoch-checkpoint names epoch 4")


def test_contents_of_closed_segments_are_not_read_at_start(fs: FaultyFileSystem) -> None:
    fs.flip(FIRST, SIZE + 65)
    log = reopen(fs)
    assert log.read(0, 1, 19) == batch(0)
    with pytest.raises(DamagedLog, match="CRC") as caught:
        log.read(1, 1, 19)
    assert (caught.value.path, caught.value.position, caught.value.offset) == (FIRST, SIZE, 1)


def test_with_an_observer_every_crc_is_checked(fs: FaultyFileSystem) -> None:
    seen: list[int] = []
    settings = {"segment_bytes": SEGMENT_BYTES, "tail_cache_bytes": 0}
    Log.open(fs, DIRECTORY, **settings, observe=lambda header: seen.append(header.base_offset))
    assert seen == list(range(19))
    fs.flip(FIRST, SIZE + 65)
    with pytest.raises(DamagedLog, match="CRC"):
        Log.open(fs, DIRECTORY, **settings, observe=lambda _: None)


# --- what follows from the log


@pytest.mark.parametrize("path", [index_path(DIRECTORY, 5), time_index_path(DIRECTORY, 5)])
@pytest.mark.parametrize("damage", ["missing", "flipped", "short", "zeros", "empty", "swapped"])
def test_a_damaged_index_is_rebuilt(fs: FaultyFileSystem, path: object, damage: str) -> None:
    assert path in (index_path(DIRECTORY, 5), time_index_path(DIRECTORY, 5))
    good = fs.contents(path)
    assert len(good) >= 24
    bad = {
        "flipped": bytes([*good[:5], good[5] ^ 1, *good[6:]]),
        "short": good[:-1],
        "zeros": good + bytes(24),
        "empty": b"",
        "swapped": good[12:24] + good[:12] + good[24:],
    }
    if damage == "missing":
        fs.remove(path)
    else:
        fs.put(path, bad[damage])
    log = reopen(fs)
    assert log.recovery.rebuilt_indexes == (path,)
    assert fs.contents(path) == good
    assert contents(log) == everything(19)
    assert reopen(fs).recovery.rebuilt_indexes == ()


def test_a_rebuilt_time_index_ends_with_the_greatest_timestamp_too() -> None:
    """Where an index entry of its own is due for no batch of the segment."""
    disk, sparse = empty_disk(), {"index_interval_bytes": 1 << 20}
    fill(reopen(disk, **sparse), range(12))
    path = time_index_path(DIRECTORY, 5)
    good = disk.contents(path)
    assert len(good) == 12
    disk.remove(path)
    assert reopen(disk, **sparse).recovery.rebuilt_indexes == (path,)
    assert disk.contents(path) == good


def test_a_sparser_index_is_not_damage(fs: FaultyFileSystem) -> None:
    path = index_path(DIRECTORY, 5)
    fs.put(path, fs.contents(path)[:8])
    log = reopen(fs)
    assert log.recovery.rebuilt_indexes == ()
    assert contents(log) == everything(19)


def test_an_empty_index_is_rebuilt_though_one_entry_is_due_for_all_of_the_segment() -> None:
    disk, sparse = empty_disk(), {"index_interval_bytes": 2 * len(batch(0))}
    fill(reopen(disk, **sparse), range(12))
    path = index_path(DIRECTORY, 5)
    good = disk.contents(path)
    assert len(good) == 8
    disk.put(path, b"")
    assert reopen(disk, **sparse).recovery.rebuilt_indexes == (path,)
    assert disk.contents(path) == good


@pytest.mark.parametrize(
    "text",
    [
        None,
        b"",
        b"0\n0\n",
        b"nonsense",
        b"0\n1\n1 0\n",
        b"0\n3\n1 0\n4 12\n9 19\n",
        b"1\n0\n",
        b"\xff",
    ],
)
def test_an_epoch_checkpoint_that_disagrees_with_the_log_is_rebuilt(
    fs: FaultyFileSystem, text: bytes | None
) -> None:
    path = DIRECTORY / EPOCH_CHECKPOINT
    good = fs.contents(path)
    assert good == b"0\n2\n1 0\n4 12\n"
    if text is None:
        fs.remove(path)
    else:
        fs.put(path, text)
    log = reopen(fs)
    assert log.recovery.rebuilt_epochs
    assert log.epochs == [(1, 0), (4, 12)]
    assert fs.contents(path) == good


def test_leftovers_are_deleted_and_strange_files_left_alone(fs: FaultyFileSystem) -> None:
    ours = [
        "leader-epoch-checkpoint.tmp",
        "quorum-state.json.tmp",
        "partition.metadata.tmp",
        f"{index_path(DIRECTORY, 0).name}.tmp",
        index_path(DIRECTORY, 3).name,
        "00000000000000000005-0000000001.checkpoint.part",
    ]
    strange = [
        "notes.txt",
        "123.log",
        "00000000000000000000.log.bak",
        "photo.tmp",
        # Records that somebody has put aside.
        "00000000000000000009.log.tmp",
        "00000000000000000005-0000000001.checkpoint.tmp",
    ]
    kafkas = ["00000000000000000005.snapshot", "partition.metadata"]
    for name in (*ours, *strange, *kafkas):
        fs.put(DIRECTORY / name, b"x")
    log = reopen(fs)
    assert sorted(log.recovery.removed_files) == sorted(ours)
    assert sorted(log.recovery.foreign_files) == sorted(strange)
    names = set(fs.listdir(DIRECTORY))
    assert not names & set(ours)
    assert {*strange, *kafkas} <= names
    assert len(log.recovery.messages()) == 2


# --- durability of what is found


def test_what_a_killed_process_left_in_the_page_cache_is_synced_before_it_counts(
    fs: FaultyFileSystem,
) -> None:
    disk = empty_disk()
    log = reopen(disk)
    fill(log, range(3))
    log.append(batch(3), 3, 4)
    log.write(batch(3), 3, 4)
    disk.log.clear()
    again = reopen(disk)
    assert again.log_end_offset == 4
    assert "fsync" in disk.log
    assert disk.log[-1] == "fsync_directory"


def test_a_disk_that_cannot_be_read_is_not_called_damaged(fs: FaultyFileSystem) -> None:
    fs.errors["pread"] = 5
    with pytest.raises(DiskFailed, match="told to fail"):
        reopen(fs)


def test_a_log_can_be_opened_again_and_again(fs: FaultyFileSystem) -> None:
    for _ in range(3):
        log = reopen(fs)
        assert last_end(contents(log)) == 19
        log.close()
        assert contents(reopen(fs)) == everything(19)


def test_batches_larger_than_the_reading_window_are_found() -> None:
    disk = empty_disk()
    log = open_log(disk, segment_bytes=8 << 20)
    append(log, batch(0), 0, 1)
    append(log, batch(1, value_bytes=3 << 20), 1, 2)
    append(log, batch(2) + batch(3, value_bytes=3 << 20), 2, 4)
    append(log, batch(4, value_bytes=3 << 20) + batch(5), 4, 6)
    for _ in range(2):
        assert [h.base_offset for h in log.scan_headers()] == list(range(6))
        assert log.read(3, 1, 6) == batch(3, value_bytes=3 << 20)
        log = open_log(disk, segment_bytes=8 << 20)
        assert log.recovery.messages() == []
        assert log.log_end_offset == 6


def test_a_whole_batch_out_of_sequence_is_damage_though_it_has_a_sector_of_zeros() -> None:
    """Only the sector in which it begins says where it belongs."""
    fs = empty_disk()
    log = open_log(fs)
    append(log, batch(0), 0, 1)
    log.close()
    path = log_path(DIRECTORY, 0)
    data = fs.contents(path)
    value = Record(0, START_MS, None, bytes(3 * 512))
    later = build_batch([value], base_offset=7, epoch=1)
    fs.put(path, data[:SIZE] + later)
    with pytest.raises(DamagedLog):
        open_log(fs)
