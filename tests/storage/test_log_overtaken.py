"""Readers that a deletion or a reset overtakes."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from quorumd.storage.errors import DiskFailed, OffsetNotInLog
from quorumd.storage.filesystem import RealFileSystem
from quorumd.storage.log import Log
from tests.storage.helpers import START_MS, append, batch, empty_disk, fill, open_log, reset

SEGMENT_BYTES = len(batch(0)) * 5


class Interrupted(RealFileSystem):
    """Does something once, just before or after a file is opened."""

    def __init__(self) -> None:
        self.before: Callable[[], object] | None = None
        self.after: Callable[[], object] | None = None

    def open(self, path: Path, *, writable: bool = False, create: bool = False) -> int:
        before, self.before = self.before, None
        if before is not None:
            before()
        handle = super().open(path, writable=writable, create=create)
        after, self.after = self.after, None
        if after is not None:
            after()
        return handle


@pytest.fixture
def interrupted(tmp_path: Path) -> tuple[Interrupted, Log]:
    fs = Interrupted()
    log = open_log(fs, tmp_path, segment_bytes=SEGMENT_BYTES, tail_cache_bytes=0)
    fill(log, range(19))
    return fs, log


CHANGES: dict[str, Callable[[Log], object]] = {
    "delete": lambda log: log.delete_before(10),
    "reset": lambda log: reset(log, 30),
    "reset to a segment": lambda log: reset(log, 10),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_reader_whose_file_is_gone_is_told_that_it_is_too_late(
    interrupted: tuple[Interrupted, Log], change: Callable[[Log], object]
) -> None:
    fs, log = interrupted
    fs.before = lambda: change(log)
    with pytest.raises(OffsetNotInLog):
        log.read(3, 1000, 19)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_reader_that_has_its_file_goes_on(
    interrupted: tuple[Interrupted, Log], change: Callable[[Log], object]
) -> None:
    fs, log = interrupted
    fs.after = lambda: change(log)
    try:
        assert log.read(3, 1, 19) == batch(3)
    except OffsetNotInLog:
        # A file that is emptied and not deleted is gone too.
        assert change is not CHANGES["delete"]
        assert log.log_start_offset > 3


def test_a_scan_that_is_overtaken_ends_with_an_offset_that_is_gone(
    interrupted: tuple[Interrupted, Log],
) -> None:
    _, log = interrupted
    headers = log.scan_headers()
    assert next(headers).base_offset == 0
    log.delete_before(10)
    assert [next(headers).base_offset for _ in range(4)] == [1, 2, 3, 4]
    with pytest.raises(OffsetNotInLog) as caught:
        next(headers)
    assert (caught.value.offset, caught.value.log_start_offset) == (5, 10)
    assert [header.base_offset for header in log.scan_headers(7)] == list(range(10, 19))


def test_a_lookup_by_time_looks_again_where_it_is_overtaken(
    interrupted: tuple[Interrupted, Log],
) -> None:
    fs, log = interrupted
    fs.before = lambda: log.delete_before(5)
    assert log.offset_for_timestamp(START_MS + 3, 19) == (5, START_MS + 5, 1)
    fs.before = lambda: log.delete_before(10)
    assert log.offset_of_max_timestamp(9) is None
    fs.before = lambda: log.reset_cache(30)
    assert log.offset_for_timestamp(START_MS + 3, 19) is None


def test_a_lookup_by_time_leaves_out_what_is_about_to_be_deleted(tmp_path: Path) -> None:
    log = open_log(RealFileSystem(), tmp_path, segment_bytes=SEGMENT_BYTES)
    for offset in range(12):
        append(log, batch(offset, timestamp=START_MS + 100 - offset), offset, offset + 1)
    assert log.offset_for_timestamp(START_MS, 12, start=5) == (5, START_MS + 95, 1)
    assert log.offset_of_max_timestamp(12, start=10) == (10, START_MS + 90, 1)
    assert log.offset_for_timestamp(START_MS, 5, start=5) is None
    assert log.offset_of_max_timestamp(5, start=5) is None


def test_a_read_error_in_a_lookup_by_time_is_a_failed_disk() -> None:
    fs = empty_disk()
    log = open_log(fs, segment_bytes=SEGMENT_BYTES)
    fill(log, range(12))
    fs.errors["pread"] = errno.EIO
    with pytest.raises(DiskFailed, match="reading"):
        log.offset_for_timestamp(START_MS, 12)
