"""Several batches per sync: what is lost of the last group is cut, what is lost of others is refused.

The files here are put together sector by sector from what they were before and after each write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product

import pytest

from quorumd.storage.errors import DamagedLog
from quorumd.storage.layout import log_path
from quorumd.storage.log import Chunk, Log
from quorumd.storage.reader import LogFile, TailKind
from quorumd.storage.write_marker import MARKER_BYTES, build_marker
from quorumd.wire.records import iter_headers
from tests.storage.faulty_filesystem import SECTOR_BYTES, FaultyFileSystem
from tests.storage.helpers import DIRECTORY, batch, contents, empty_disk, open_log

FIRST = log_path(DIRECTORY, 0)
SEGMENT_BYTES = 1 << 16
OVERHEAD = len(batch(200, value_bytes=100)) - 100


def reopen(fs: FaultyFileSystem, segment_bytes: int = SEGMENT_BYTES) -> Log:
    return open_log(fs, segment_bytes=segment_bytes)


def write(log: Log, value_sizes: Sequence[int], *, epoch: int = 1) -> None:
    """One write with a batch for each size, not synced."""
    start = log.log_end_offset
    chunks = [
        Chunk(batch(start + i, value_bytes=size, epoch=epoch), start + i, start + i + 1)
        for i, size in enumerate(value_sizes)
    ]
    for chunk in chunks:
        log.append(chunk.data, chunk.base_offset, chunk.end_offset)
    log.write_many(chunks)


def write_group(log: Log, value_sizes: Sequence[int], *, epoch: int = 1) -> None:
    write(log, value_sizes, epoch=epoch)
    log.sync()


def data_of(fs: FaultyFileSystem) -> bytes:
    """The batches of the first segment."""
    data = fs.contents(FIRST)
    return data[: sum(header.size_bytes for _, header in iter_headers(valid_part(data)))]


def valid_part(data: bytes) -> bytes:
    end = 0
    while data[end + 16 : end + 17] == b"\x02":
        end += 12 + int.from_bytes(data[end + 8 : end + 12], "big")
    return data[:end]


def mixtures(versions: Sequence[bytes], start: int, end: int) -> Iterator[bytes]:
    """Every file whose sectors with bytes `start` .. `end` are each of any version."""
    places = range(start - start % SECTOR_BYTES, end, SECTOR_BYTES)
    for chosen in product(range(len(versions)), repeat=len(places)):
        data = bytearray(versions[-1])
        for place, version in zip(places, chosen, strict=True):
            sector = versions[version][place : place + SECTOR_BYTES]
            data[place : place + SECTOR_BYTES] = sector.ljust(SECTOR_BYTES, b"\0")
        yield bytes(data)


def assert_cut(fs: FaultyFileSystem, image: bytes, must: bytes, may: bytes) -> str:
    """The file opens with all of `must` and no more than `may`; returns what was said."""
    fs.put(FIRST, image)
    log = reopen(fs)
    found = contents(log)
    assert found.startswith(must)
    assert may.startswith(found)
    assert not any(fs.contents(FIRST)[len(found) + MARKER_BYTES :])
    return "".join(log.recovery.messages())


def assert_refused(fs: FaultyFileSystem, image: bytes) -> str:
    fs.put(FIRST, image)
    with pytest.raises(DamagedLog) as caught:
        reopen(fs)
    assert fs.contents(FIRST) == image
    return str(caught.value)


# Where in a sector the last group begins: at its start and end, inside the offset, the size, the
# magic, the mark, and anywhere.
PLACES = [0, 1, 200, 512 - 61, 512 - 41, 512 - 40, 512 - 20, *range(512 - 18, 512)]


def disk_with_groups(place: int) -> tuple[FaultyFileSystem, Log]:
    """Offsets 0 .. 300 in one group, then two that end `place` bytes behind the start of a sector."""
    fs = empty_disk()
    log = reopen(fs)
    start = log.log_end_offset
    log.append(batch(0, count=300), start, start + 300)
    log.write(batch(0, count=300), start, start + 300)
    log.sync()
    write_group(log, [150, 20])
    used = len(data_of(fs)) + 2 * OVERHEAD
    write_group(log, [100, 200 + (place - used - 300) % SECTOR_BYTES])
    assert len(data_of(fs)) % SECTOR_BYTES == place
    return fs, log


@pytest.mark.long
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("is_reopened", [False, True])
def test_of_one_write_any_sectors_may_be_lost(place: int, is_reopened: bool) -> None:
    fs, log = disk_with_groups(place)
    if is_reopened:
        log = reopen(fs)
    before, must = fs.contents(FIRST), data_of(fs)
    write(log, [30, 400, 10, 700, 20, 300, 90])
    after, may = fs.contents(FIRST), data_of(fs)
    said = [
        assert_cut(fs, image, must, may)
        for image in mixtures([before, after], len(must), len(may) + MARKER_BYTES)
    ]
    assert sum("a valid batch follows" in text for text in said) > len(said) // 4
    assert said[0] == said[-1] == ""


@pytest.mark.long
@pytest.mark.parametrize("place", PLACES[::3])
def test_of_two_writes_any_sectors_may_be_lost(place: int) -> None:
    fs, log = disk_with_groups(place)
    versions, must = [fs.contents(FIRST)], data_of(fs)
    write(log, [30, 400, 10])
    versions.append(fs.contents(FIRST))
    write(log, [90, 500, 20, 60], epoch=2)
    versions.append(fs.contents(FIRST))
    may = data_of(fs)
    for image in mixtures(versions, len(must), len(may) + MARKER_BYTES):
        assert_cut(fs, image, must, may)


def prepared_by_cutting(fs: FaultyFileSystem) -> Log:
    log = reopen(fs)
    write_group(log, [300] * 5)
    log.truncate(3)
    return log


def prepared_by_a_clean_stop(fs: FaultyFileSystem) -> Log:
    log = reopen(fs)
    write_group(log, [300] * 3)
    log.close()
    return reopen(fs)


def prepared_by_nothing(fs: FaultyFileSystem) -> Log:
    return reopen(fs)


@pytest.mark.parametrize(
    "prepare", [prepared_by_cutting, prepared_by_a_clean_stop, prepared_by_nothing]
)
def test_the_first_write_to_a_file_without_zeros_may_be_lost_in_part(
    prepare: Callable[[FaultyFileSystem], Log],
) -> None:
    fs = empty_disk()
    log = prepare(fs)
    before = must = fs.contents(FIRST)
    write(log, [30, 400, 10, 700, 20, 300])
    after, may = fs.contents(FIRST), data_of(fs)
    end = len(may) + MARKER_BYTES
    for image in mixtures([before, after], len(must), end):
        assert_cut(fs, image, must, may)
        # The file may have become longer in part.
        for size in range(end - end % SECTOR_BYTES, len(must), -SECTOR_BYTES):
            assert_cut(fs, image[:size], must, may)


def test_a_file_that_got_longer_as_far_as_a_batch_reaches_is_cut() -> None:
    fs = empty_disk()
    log = reopen(fs)
    write(log, [512 - OVERHEAD] * 4)
    image = bytearray(fs.contents(FIRST)[:1536])
    assert len(valid_part(image)) == 1536
    image[512:1024] = bytes(512)
    assert "a valid batch follows" in assert_cut(fs, bytes(image), image[:512], image[:512])


# --- damage


def disk_with_three_groups() -> tuple[FaultyFileSystem, list[int]]:
    """Ends of groups of some batches each, none of which ends with a sector."""
    fs = empty_disk()
    log = reopen(fs)
    ends = []
    for sizes in ([50, 300, 70], [200, 40, 333], [60, 600, 30, 80]):
        write_group(log, sizes)
        ends.append(len(data_of(fs)))
    return fs, ends


@pytest.mark.long
@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_a_flip_never_makes_the_log_shorter(mask: int) -> None:
    fs, ends = disk_with_three_groups()
    good = fs.contents(FIRST)
    refused = 0
    for at in range(ends[-1]):
        fs.put(FIRST, good)
        fs.flip(FIRST, at, mask)
        try:
            # An epoch is not covered by the CRC; what is else, only if it doesn't matter.
            assert reopen(fs).log_end_offset == 10, f"byte {at}"
        except DamagedLog:
            refused += 1
    assert refused >= ends[-1] - 10 * 4


@pytest.mark.parametrize("place", range(504, 512))
def test_a_sector_that_ends_in_the_zeros_of_an_offset_does_not_pass_for_lost(place: int) -> None:
    fs, log = disk_with_groups(place)
    start = len(data_of(fs))
    write_group(log, [100, 100])
    good = fs.contents(FIRST)
    for at in range(start + 17, start + 150, 7):
        fs.put(FIRST, good)
        fs.flip(FIRST, at)
        assert "sectors were written" in assert_refused(fs, fs.contents(FIRST))


def test_a_flip_in_the_mark_costs_nothing() -> None:
    fs, ends = disk_with_three_groups()
    good = fs.contents(FIRST)
    for at in range(ends[-1], ends[-1] + MARKER_BYTES):
        fs.put(FIRST, good)
        fs.flip(FIRST, at)
        assert contents(reopen(fs)) == good[: ends[-1]]


def test_a_flip_is_refused_also_beside_an_unfinished_write() -> None:
    fs, ends = disk_with_three_groups()
    good = fs.contents(FIRST)
    must = ends[1]
    fs.put(FIRST, good[:must] + bytes(len(good) - must))
    write(reopen(fs), [60, 600, 30, 80])
    after = bytearray(fs.contents(FIRST))
    lost = (ends[1] // SECTOR_BYTES + 1) * SECTOR_BYTES
    after[lost : lost + SECTOR_BYTES] = bytes(SECTOR_BYTES)
    for at in range(ends[0] + 17, ends[0] + 230, 5):
        image = after[:]
        image[at] ^= 1
        for end in (len(image), data_end(image) - 1):
            shown = image[:end] + bytes(len(image) - end)
            assert "a valid batch follows" in assert_refused(fs, bytes(shown))


def data_end(data: bytes | bytearray) -> int:
    return len(data.rstrip(b"\0"))


def test_a_lost_sector_of_an_earlier_group_is_refused() -> None:
    fs, ends = disk_with_three_groups()
    good = fs.contents(FIRST)
    for at in range(0, ends[1], SECTOR_BYTES):
        image = bytearray(good)
        image[at : at + SECTOR_BYTES] = bytes(SECTOR_BYTES)
        text = assert_refused(fs, bytes(image))
        assert f"everything below byte {ends[1]} was synced" in text


def test_an_old_sector_in_place_of_a_synced_one_is_refused() -> None:
    """As a disk leaves it that lost a write: the old mark is there, and a later group says more."""
    fs = empty_disk()
    log = reopen(fs)
    write_group(log, [50, 200])
    old, end = fs.contents(FIRST), len(data_of(fs))
    write_group(log, [800, 900])
    write_group(log, [70])
    image = bytearray(fs.contents(FIRST))
    image[end:SECTOR_BYTES] = old[end:SECTOR_BYTES]
    assert build_marker(0, end) in image
    assert len(valid_part(image)) == end
    assert "was synced" in assert_refused(fs, bytes(image))


def test_a_lost_sector_of_the_last_group_looks_like_an_unfinished_write() -> None:
    # The limit: only an offset that is known to be committed tells the difference.
    fs, ends = disk_with_three_groups()
    image = bytearray(fs.contents(FIRST))
    at = (ends[1] // SECTOR_BYTES + 1) * SECTOR_BYTES
    image[at : at + SECTOR_BYTES] = bytes(SECTOR_BYTES)
    fs.put(FIRST, bytes(image))
    with pytest.raises(DamagedLog, match="was committed"):
        open_log(fs, committed_offset=10)
    assert "a valid batch follows" in assert_cut(fs, bytes(image), image[: ends[1]], image)


@pytest.mark.parametrize("is_stopped", [True, False])
def test_a_lost_sector_in_a_file_that_was_cut_is_refused(is_stopped: bool) -> None:
    fs = empty_disk()
    log = reopen(fs)
    write_group(log, [300, 100, 500, 900, 70, 80])
    if is_stopped:
        log.close()
    else:
        log.truncate(5)
    good = fs.contents(FIRST)
    assert len(good) % SECTOR_BYTES
    for at in range(0, len(good) - SECTOR_BYTES, SECTOR_BYTES):
        image = bytearray(good)
        image[at : at + SECTOR_BYTES] = bytes(SECTOR_BYTES)
        assert "cut to its data" in assert_refused(fs, bytes(image))


# --- the mark itself


def test_a_mark_from_elsewhere_counts_for_nothing() -> None:
    fs, ends = disk_with_three_groups()
    image = bytearray(fs.contents(FIRST))
    image[ends[-1] : ends[-1] + MARKER_BYTES] = build_marker(ends[1], ends[-1] - 1)
    text = assert_cut(fs, bytes(image), image[: ends[-1]], image[: ends[-1]])
    assert "cut off 41 bytes of an unfinished write" in text


def test_every_write_ends_with_a_mark_that_names_the_last_sync() -> None:
    fs = empty_disk()
    log = reopen(fs)
    write_group(log, [10, 20])
    synced = len(data_of(fs))
    for _ in range(3):
        write(log, [30])
        end = len(data_of(fs))
        assert fs.contents(FIRST)[end:].rstrip(b"\0") == build_marker(synced, end)
    log.sync()
    write(log, [30])
    assert build_marker(end, len(data_of(fs))) in fs.contents(FIRST)
    log.truncate(1)
    write(log, [30])
    cut_to = len(batch(0, value_bytes=10))
    assert fs.contents(FIRST).count(b"GEND") == 1
    # Readers of batches, Kafka's too, see a size of 0; the smallest batch covers all of it.
    assert fs.contents(FIRST)[len(data_of(fs)) :].startswith(bytes(17))
    assert MARKER_BYTES < 61
    assert build_marker(cut_to, len(data_of(fs))) in fs.contents(FIRST)


def test_a_mark_fits_behind_a_full_segment_and_is_gone_once_it_is_closed() -> None:
    size = OVERHEAD + 100
    fs = empty_disk()
    log = reopen(fs, size * 3)
    write_group(log, [100] * 3)
    assert len(fs.contents(FIRST)) == size * 3 + MARKER_BYTES
    assert contents(reopen(fs, size * 3)) == data_of(fs)
    write_group(log, [100] * 2)
    assert fs.contents(FIRST) == data_of(fs)
    assert len(data_of(fs)) == size * 3
    log.close()
    assert len(fs.contents(log_path(DIRECTORY, 3))) == size * 2


def test_a_mark_is_always_written_over_zeros() -> None:
    size = OVERHEAD + 100
    fs = empty_disk()
    log = reopen(fs, size * 2 + MARKER_BYTES - 1)
    write_group(log, [100])
    fs.log.clear()
    write_group(log, [100])
    assert fs.log == ["pwritev", "pwritev", "fdatasync"]
    assert len(fs.contents(FIRST)) == size * 2 + MARKER_BYTES


def test_a_mark_is_nothing_to_a_reader() -> None:
    fs, ends = disk_with_three_groups()
    good = fs.contents(FIRST)
    sizes = [len(good), ends[-1] + MARKER_BYTES]
    for size in sizes:
        fs.put(FIRST, good[:size])
        file = LogFile(FIRST, fs)
        assert len(list(file.batches())) == 10
        assert file.tail is not None
        assert (file.tail.kind, file.tail.position) == (TailKind.ZEROS, ends[-1])


def test_a_reader_tells_an_unfinished_write_from_damage() -> None:
    fs, ends = disk_with_three_groups()
    good = fs.contents(FIRST)
    for begin, kind in (((ends[1] // 512 + 1) * 512, TailKind.TORN), (512, TailKind.DAMAGE)):
        image = bytearray(good)
        image[begin : begin + 512] = bytes(512)
        fs.put(FIRST, bytes(image))
        file = LogFile(FIRST, fs)
        list(file.batches())
        assert file.tail is not None
        assert file.tail.kind is kind
        assert "a valid batch follows" in file.tail.reason
