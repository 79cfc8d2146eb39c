"""What the cache of the newest bytes lets go of, and when."""

from __future__ import annotations

import pytest

from quorumd.storage.tail_cache import TailCache
from tests.storage.helpers import batch, empty_disk, fill, open_log


def test_what_is_written_to_its_last_byte_goes_and_what_is_not_stays() -> None:
    cache = TailCache(1)
    for offset, written_end_offset, start_offset in ((0, 0, 0), (1, 0, 0), (2, 2, 2), (3, 2, 2)):
        cache.append(offset, offset + 1, batch(offset), written_end_offset)
        assert cache.start_offset == start_offset


def test_what_was_let_go_of_or_truncated_takes_no_memory() -> None:
    cache, one = TailCache(1 << 20), TailCache(1 << 20)
    one.append(0, 1, batch(0), 0)
    for offset in range(10):
        cache.append(offset, offset + 1, batch(offset), 0)
    assert cache.size_bytes == 10 * one.size_bytes
    cache.truncate(4)
    assert cache.size_bytes == 4 * one.size_bytes
    cache.truncate(0)
    assert cache.size_bytes == 0
    small = TailCache(3 * one.size_bytes)
    for offset in range(10):
        small.append(offset, offset + 1, batch(offset), offset)
    assert (small.size_bytes, small.start_offset) == (3 * one.size_bytes, 7)


@pytest.mark.parametrize("is_reset", [False, True])
def test_behind_a_truncation_and_a_reset_the_log_lets_go_of_what_is_written_again(
    is_reset: bool,
) -> None:
    log = open_log(empty_disk(), tail_cache_bytes=1000)
    fill(log, range(10))
    if is_reset:
        log.reset_cache(20)
        log.reset(20)
    else:
        log.truncate_cache(5)
        log.truncate(5)
    begin = log.log_end_offset
    fill(log, range(begin, begin + 100))
    assert log.read_cached(begin, 1 << 20, begin + 100) is None
    assert log.read_cached(begin + 99, 1 << 20, begin + 100)
