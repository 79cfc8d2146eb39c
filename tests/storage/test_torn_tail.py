"""What is behind the first bad place of a file, byte by byte: zeros, marks, sectors, batches that follow."""

from __future__ import annotations

from pathlib import Path

import pytest
from crc32c import crc32c

from quorumd.storage.batch_walk import BATCH_BYTES_MAX
from quorumd.storage.torn_tail import Tail, examine_tail, has_unwritten_sector
from quorumd.storage.write_marker import LEADING_ZEROS, MARKER_BYTES, build_marker
from quorumd.wire.batch_header import BATCH_OVERHEAD
from tests.storage.faulty_filesystem import FaultyFileSystem
from tests.storage.helpers import batch

SECTOR = 512
WINDOW = 4 << 10
LARGE_WINDOW = 4 << 20
PATH = Path("/file")
NEXT = 100
EPOCH = 3


def look(
    data: bytes,
    start: int = 0,
    *,
    next_offset: int = NEXT,
    epoch: int = EPOCH,
    closed: bool = False,
) -> Tail:
    fs = FaultyFileSystem({PATH: data})
    handle = fs.open(PATH)
    return examine_tail(fs, handle, start, len(data), next_offset, epoch=epoch, is_closed=closed)


def is_unwritten(data: bytes, start: int, end: int, next_offset: int = NEXT) -> bool:
    fs = FaultyFileSystem({PATH: data})
    return has_unwritten_sector(fs, fs.open(PATH), start, end, next_offset)


def valid(offset: int = NEXT + 1, *, epoch: int = EPOCH, size: int = 100) -> bytes:
    """A batch of so many bytes."""
    empty = len(batch(0, value_bytes=0))
    if size == BATCH_OVERHEAD:
        data = bytearray(batch(offset, epoch=epoch)[:BATCH_OVERHEAD])
        data[8:12] = (size - 12).to_bytes(4, "big")
        data[57:61] = bytes(4)
        data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
        return bytes(data)
    for over in range(8):  # lengths inside are of one to four bytes
        data_of_size = batch(offset, epoch=epoch, value_bytes=max(0, size - empty - over))
        if len(data_of_size) == size:
            return data_of_size
    raise AssertionError(f"no batch has {size} bytes")


# --- where data ends


@pytest.mark.parametrize("start", [0, 1, 700])
@pytest.mark.parametrize(
    "zeros", [0, 1, 511, WINDOW - 1, WINDOW, WINDOW + 1, 3 * WINDOW, 3 * WINDOW + 1, 9 << 20]
)
def test_zeros_at_the_end_are_no_data(start: int, zeros: int) -> None:
    before = b"\7" * start
    assert look(before + bytes(zeros), start) == Tail()
    for torn in (b"\1", b"\1\0\1", b"\0" * 600 + b"\1"):
        assert look(before + torn + bytes(zeros), start) == Tail(len(torn))


@pytest.mark.parametrize("start", [0, 5, 512, 505])
@pytest.mark.parametrize("zeros", [0, 3, 600])
def test_a_mark_at_the_end_is_no_data_either(start: int, zeros: int) -> None:
    before = b"\7" * start
    assert look(before + build_marker(0, start) + bytes(zeros), start) == Tail()
    # One byte too early is none, so it is a torn write.
    image = before + build_marker(0, start + 1) + bytes(zeros)
    assert look(image, start).torn_bytes == MARKER_BYTES
    # What is before the start belongs to the data that is sound.
    image = before + build_marker(0, start)
    assert look(image + b"\0", start + 1).torn_bytes == MARKER_BYTES - 1


def test_bytes_before_a_mark_are_torn_or_damaged_by_what_the_mark_says() -> None:
    start = 1024
    hole = b"\7" * start + b"\1" * 512 + bytes(512) + b"\1" * 10
    end = len(hole)
    for group_start, damage in (
        (0, ""),
        (start - 1, ""),
        (start, ""),
        (start + 1, f"everything below byte {start + 1} was synced"),
        (end, f"everything below byte {end} was synced"),
    ):
        found = look(hole + build_marker(group_start, end) + bytes(70), start)
        assert found == Tail(end - start, None, damage)
    whole = b"\7" * start + b"\1" * 1034
    found = look(whole + build_marker(start, len(whole)), start)
    assert found == Tail(1034, None, "all of its sectors were written")
    assert look(whole, start) == Tail(1034)


def test_in_a_closed_segment_no_reason_is_looked_for() -> None:
    bad, follows = b"\1" * 40, valid()
    assert look(bad + follows, closed=True) == Tail(len(bad + follows.rstrip(b"\0")), 40)
    assert look(bad, closed=True) == Tail(40)
    assert look(b"\7" * 8 + bad, 8, closed=True) == Tail(40)
    assert look(bad + follows).damage


# --- batches that follow


@pytest.mark.parametrize(
    "at",
    [
        1,
        2,
        61,
        *range(WINDOW - 63, WINDOW - 58),
        WINDOW - 1,
        *range(WINDOW, WINDOW + 4),
        *range(3 * WINDOW - 125, 3 * WINDOW - 118),
        3 * WINDOW,
        70_000,
    ],
)
@pytest.mark.parametrize("size", [BATCH_OVERHEAD, 75, 100, 5_000])
def test_a_batch_that_follows_is_found_wherever_it_begins(at: int, size: int) -> None:
    follows = valid(size=size)
    for rest in (b"", bytes(3), bytes(5_000)):
        found = look(b"\1" * at + follows + rest)
        assert (found.valid_after, found.damage) == (at, "all of its sectors were written")
        assert found.torn_bytes == at + len(follows.rstrip(b"\0"))


@pytest.mark.parametrize(
    ("offset", "epoch", "counts"),
    [
        (NEXT - 1, EPOCH, False),
        (NEXT, EPOCH, False),
        (NEXT + 1, EPOCH, True),
        (NEXT + 1, EPOCH + 1, True),
        (NEXT + 1, EPOCH - 1, False),
        (NEXT + 70_000, EPOCH, True),
        (0, EPOCH, False),
    ],
)
def test_a_batch_that_follows_counts_if_it_could_be_of_this_log(
    offset: int, epoch: int, *, counts: bool
) -> None:
    found = look(b"\1" * 30 + valid(offset, epoch=epoch))
    assert found.valid_after == (30 if counts else None)
    # The next one does, whatever is before it.
    found = look(b"\1" * 30 + valid(offset, epoch=epoch) + valid(NEXT + 90_000))
    assert found.valid_after == (30 if counts else 130)


@pytest.mark.parametrize(
    ("next_offset", "offset"),
    [
        (0, 1),
        ((1 << 32) - 2, (1 << 32) - 1),
        ((1 << 32) - 2, 1 << 32),
        (1 << 32, (1 << 32) + 1),
        ((3 << 32) + 5, (3 << 32) + 6),
        ((3 << 32) + 5, 4 << 32),
        ((4 << 32) - 2, (4 << 32) + 7),
        ((5 << 33) + 1, (5 << 33) + 2),
    ],
)
def test_a_batch_that_follows_is_found_at_any_offset(next_offset: int, offset: int) -> None:
    found = look(b"\1" * 30 + valid(offset), next_offset=next_offset)
    assert found.valid_after == 30


def test_what_only_looks_like_a_batch_does_not_follow() -> None:
    bad = bytearray(valid())
    bad[-3] ^= 1
    small = bytearray(valid())
    small[8:12] = (5).to_bytes(4, "big")  # a size below that of a header
    far = bytearray(valid())
    far[8:12] = (1 << 20).to_bytes(4, "big")  # a size beyond the end of the file
    for looks_like in (bad, small, far):
        assert look(b"\1" * 30 + looks_like) == Tail(30 + len(looks_like.rstrip(b"\0")))
        assert look(b"\1" * 30 + looks_like + valid()).valid_after == 130


@pytest.mark.parametrize("excess", [0, 1])
def test_a_batch_that_no_reader_takes_does_not_follow(excess: int) -> None:
    data = bytearray(valid() + bytes(BATCH_BYTES_MAX + excess - 100))
    data[8:12] = (len(data) - 12).to_bytes(4, "big")
    data[17:21] = crc32c(memoryview(data)[21:]).to_bytes(4, "big")
    found = look(b"\1" * 30 + data)
    assert found.valid_after == (None if excess else 30)


# --- a file that was cut to its data


def holed(last: bytes) -> bytes:
    """A hole of a sector, then a batch, and this as the last one."""
    return b"\1" * SECTOR + bytes(SECTOR) + b"\1" * 20 + valid() + last


ENDS_A_SECTOR = SECTOR - len(holed(b"")) % SECTOR
"""The least size of the last batch with which the file ends where a sector ends."""
SIZES = [
    BATCH_OVERHEAD,
    100,
    ENDS_A_SECTOR,
    3 * WINDOW + ENDS_A_SECTOR,
    WINDOW - 1,
    *range(WINDOW, WINDOW + 4),
    *range(WINDOW + 58, WINDOW + 64),
    *range(3 * WINDOW - 63, 3 * WINDOW - 58),
    3 * WINDOW + 1,
    50_000,
]


@pytest.mark.parametrize("size", SIZES)
def test_a_hole_in_a_file_that_ends_where_a_batch_ends_is_damage(size: int) -> None:
    data = holed(valid(NEXT + 2, size=size))
    where = 2 * SECTOR + 20
    found = look(data)
    if len(data) % SECTOR == 0:
        # It may end there because its lengthening was lost.
        assert (found.valid_after, found.damage) == (where, "")
    else:
        assert found.valid_after == where
        assert found.damage == "everything was synced before the file was cut to its data"
    for longer in (data + b"\0", data + b"\1", data + bytes(SECTOR)):
        found = look(longer)
        assert (found.valid_after, found.damage) == (where, "")


@pytest.mark.parametrize("sectors", [5, 9])
def test_a_file_that_ends_with_a_sector_may_have_lost_its_lengthening(sectors: int) -> None:
    size = sectors * SECTOR - len(holed(b""))
    data = holed(valid(NEXT + 2, size=size))
    assert len(data) == sectors * SECTOR
    assert look(data).damage == ""
    data = holed(valid(NEXT + 2, size=size + 1))
    assert look(data).damage == "everything was synced before the file was cut to its data"


def test_the_only_batch_that_follows_may_be_the_last_of_the_file() -> None:
    data = b"\1" * SECTOR + bytes(SECTOR) + b"\1" * 20 + valid()
    assert look(data).damage == "everything was synced before the file was cut to its data"


# --- sectors


BOUNDS = (
    *((0, 1), (0, 512), (0, 513), (100, 101), (100, 512), (100, 600), (511, 512)),
    *((0, 5 * SECTOR), (300, 3 * SECTOR + 1), (512, 513)),
)


@pytest.mark.parametrize(("start", "end"), BOUNDS)
def test_a_sector_is_unwritten_if_all_of_it_from_the_start_on_is_zeros(
    start: int, end: int
) -> None:
    full = b"\7" * (8 * SECTOR)
    assert not is_unwritten(full, start, end)
    first, last = start // SECTOR, (end - 1) // SECTOR
    for sector in range(8):
        data = bytearray(full)
        data[sector * SECTOR : (sector + 1) * SECTOR] = bytes(SECTOR)
        if sector == first and start % SECTOR == SECTOR - 1:
            continue  # a single zero, with which an offset begins anyway
        assert is_unwritten(bytes(data), start, end) == (first <= sector <= last)
        # One byte of it is enough to tell that it was written.
        data[(sector + 1) * SECTOR - 1] = 1
        assert not is_unwritten(bytes(data), start, end)


@pytest.mark.parametrize(
    ("left", "next_offset", "says_something"),
    [
        (1, 100, False),
        (7, 100, False),
        (8, 100, True),
        (9, 100, True),
        (8, 256, True),
        (7, 256, True),
        (6, 256, False),
        (8, 0, False),
        (9, 0, True),
        (4, 1 << 32, True),
        (3, 1 << 32, False),
    ],
)
def test_zeros_with_which_an_offset_begins_do_not_tell_a_lost_sector(
    left: int, next_offset: int, *, says_something: bool
) -> None:
    start = SECTOR - left
    data = b"\7" * start + bytes(left) + b"\7" * SECTOR
    assert is_unwritten(data, start, start + 1, next_offset) == says_something
    assert is_unwritten(data, start, SECTOR + 9, next_offset) == says_something


@pytest.mark.parametrize("start", [0, 100, SECTOR - MARKER_BYTES, SECTOR - 20])
def test_the_mark_of_the_write_before_counts_as_zeros(start: int) -> None:
    mark = build_marker(3, start)
    data = bytearray(b"\7" * start + mark + bytes(2 * SECTOR))
    data[SECTOR : 2 * SECTOR] = b"\7" * SECTOR
    data[start + LEADING_ZEROS : start + MARKER_BYTES] = mark[LEADING_ZEROS:]
    assert is_unwritten(bytes(data), start, start + 1)
    for at in (start + LEADING_ZEROS - 1, start + MARKER_BYTES):
        if at < SECTOR:
            written = bytearray(data)
            written[at] = 1
            assert not is_unwritten(bytes(written), start, start + 1)


@pytest.mark.parametrize("hole", [LARGE_WINDOW // SECTOR + each for each in (-2, -1, 0, 1, 2)])
@pytest.mark.parametrize("start", [0, 200])
def test_a_lost_sector_is_found_behind_the_first_window(start: int, hole: int) -> None:
    full = bytearray(b"\7" * (LARGE_WINDOW + 6 * SECTOR))
    assert not is_unwritten(bytes(full), start, len(full))
    full[hole * SECTOR : (hole + 1) * SECTOR] = bytes(SECTOR)
    assert is_unwritten(bytes(full), start, len(full))
    assert not is_unwritten(bytes(full), start, hole * SECTOR)


# --- words


def test_all_that_is_wrong_is_said() -> None:
    assert Tail(5).describe("bad") == "bad"
    assert Tail(5, None, "worse").describe("bad") == "bad; worse"
    assert Tail(5, 7).describe("bad") == "bad, and a valid batch follows at byte 7"
    assert Tail(5, 0, "worse").describe("bad") == "bad, and a valid batch follows at byte 0; worse"
