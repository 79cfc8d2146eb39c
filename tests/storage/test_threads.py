"""Readers on other threads while the log is written, rolled, truncated, deleted from and reset."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from random import Random

import pytest

from quorumd.storage.errors import OffsetNotInLog
from quorumd.storage.filesystem import RealFileSystem
from quorumd.storage.log import Log
from quorumd.wire.records import scan
from tests.storage.helpers import START_MS, append, batch, contents, open_log, put_snapshot

pytestmark = pytest.mark.sim


def test_readers_see_whole_valid_batches_while_the_log_changes(tmp_path: Path) -> None:
    log = open_log(RealFileSystem(), tmp_path, segment_bytes=1500, index_interval_bytes=200)
    failures: list[BaseException] = []
    batches_read = [0, 0]
    is_done = threading.Event()

    def read_all(reader: int) -> None:
        offset = 0
        try:
            while not is_done.is_set():
                try:
                    data = log.read(offset, 700, log.written_end_offset)
                except OffsetNotInLog:
                    offset = 0
                    continue
                found = scan(data)
                if not found:
                    offset = 0
                    continue
                assert found[0][1].base_offset <= offset < found[0][1].next_offset
                assert found[-1][0] + found[-1][1].size_bytes == len(data)
                offset = found[-1][1].next_offset
                batches_read[reader] += len(found)
        except BaseException as error:  # whatever it is, the test shows it
            failures.append(error)

    readers = [threading.Thread(target=read_all, args=(i,)) for i in range(2)]
    for reader in readers:
        reader.start()
    try:
        for epoch in range(1, 40):
            start = log.log_end_offset
            for offset in range(start, start + 30, 3):
                append(log, batch(offset, count=3, epoch=epoch), offset, offset + 3)
            target = (log.log_end_offset * 7 // 10) // 3 * 3
            log.truncate_cache(target)
            log.truncate(target)
    finally:
        is_done.set()
        for reader in readers:
            reader.join()
    assert failures == []
    assert min(batches_read) > 0


class Unsynced(RealFileSystem):
    """No test with threads loses power."""

    def fdatasync(self, handle: int) -> None: ...

    def fsync(self, handle: int) -> None: ...

    def fsync_directory(self, path: Path) -> None: ...


class Readers:
    """Threads that repeat something until they are stopped; whatever goes wrong is kept."""

    def __init__(self, *actions: Callable[[], object]) -> None:
        self.failures: list[BaseException] = []
        self.counts = [0] * len(actions)
        self._is_done = threading.Event()
        self._threads = [
            threading.Thread(target=self._repeat, args=(number, action))
            for number, action in enumerate(actions)
        ]

    def __enter__(self) -> Readers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_done.set()
        for thread in self._threads:
            thread.join()

    def _repeat(self, number: int, action: Callable[[], object]) -> None:
        try:
            while not self._is_done.is_set():
                action()
                self.counts[number] += 1
        except BaseException as error:  # whatever it is, the test shows it
            self.failures.append(error)


@pytest.fixture
def quick_switches() -> Iterator[None]:
    """Threads that never wait would keep the others waiting for 5 ms each time."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0002)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("quick_switches")
def test_readers_are_right_or_too_late_while_a_log_is_deleted_from_and_reset(
    tmp_path: Path,
) -> None:
    fs = RealFileSystem()
    log = open_log(fs, tmp_path, segment_bytes=900, index_interval_bytes=200, tail_cache_bytes=2000)
    jobs: SimpleQueue[Callable[[], object] | None] = SimpleQueue()

    def work() -> None:
        while (job := jobs.get()) is not None:
            job()

    def read(random: Random) -> None:
        start = log.log_start_offset
        offset = random.randint(max(0, start - 5), log.written_end_offset + 2)
        try:
            data = log.read(offset, 500, 1 << 60)
        except OffsetNotInLog as error:
            if error.log_start_offset <= offset <= error.log_end_offset:
                raise AssertionError("refused without a reason") from error
            return
        found = scan(data)
        expected = [batch(offset + i, epoch=header.epoch) for i, (_, header) in enumerate(found)]
        assert data == b"".join(expected)

    def scan_all() -> None:
        expected = -1
        try:
            for header in log.scan_headers():
                assert expected in (-1, header.base_offset)
                expected = header.next_offset
        except OffsetNotInLog:
            return

    def look_up(random: Random) -> None:
        wanted = random.randint(log.log_start_offset, log.written_end_offset)
        found = log.offset_for_timestamp(START_MS + wanted, 1 << 60)
        assert found is None or found.offset >= wanted
        log.offset_of_max_timestamp(wanted)
        for segment in log.closed_segments():
            assert segment.base_offset < segment.end_offset
            assert segment.max_timestamp == START_MS + segment.end_offset - 1

    disk = threading.Thread(target=work)
    disk.start()

    def scan_or_look_up(random: Random) -> None:
        if random.random() < 0.1:
            scan_all()
        else:
            look_up(random)

    readers = Readers(partial(read, Random(1)), partial(scan_or_look_up, Random(2)))
    random = Random(3)
    try:
        with readers:
            for epoch in range(1, 80):
                change_log(log, random, epoch, jobs.put)
                if epoch % 3 == 0:
                    done = threading.Event()
                    jobs.put(done.set)
                    assert done.wait(60)
    finally:
        jobs.put(None)
        disk.join()
    assert readers.failures == []
    assert min(readers.counts) > 0
    assert log.log_start_offset > 0
    snapshot = put_snapshot(fs, log.log_start_offset, 1, tmp_path)
    again = open_log(fs, tmp_path, segment_bytes=900, snapshots=[snapshot])
    assert (again.log_start_offset, again.epochs) == (log.log_start_offset, log.epochs)
    assert contents(again) == contents(log)


def test_an_index_that_readers_look_at_changes_under_their_lock_only(tmp_path: Path) -> None:
    """With the lock held as by a reader: a roll adds the last time entry when it gets the lock."""
    log = open_log(RealFileSystem(), tmp_path, segment_bytes=300, index_interval_bytes=200)
    while not log.closed_segments():
        append(log, batch(log.log_end_offset), log.log_end_offset, log.log_end_offset + 1)
    table = log._table
    index = table.active.index
    assert index is not None
    entries, offset = len(index.times), log.log_end_offset
    log.append(batch(offset, value_bytes=300), offset, offset + 1)
    disk = threading.Thread(
        target=log.write, args=(batch(offset, value_bytes=300), offset, offset + 1)
    )
    with table.lock:
        disk.start()
        disk.join(0.3)
        assert disk.is_alive()
        assert len(index.times) == entries
    disk.join()
    assert len(index.times) > entries
    assert len(log.closed_segments()) == 2


def change_log(
    log: Log, random: Random, epoch: int, submit: Callable[[Callable[[], object]], None]
) -> None:
    """The event loop's side: appends and one change of another kind, carried out on the disk later."""
    for _ in range(25):
        offset = log.log_end_offset
        data = batch(offset, epoch=epoch)
        log.append(data, offset, offset + 1)
        submit(lambda data=data, offset=offset: log.write(data, offset, offset + 1))
        cached = log.read_cached(offset, 1, offset + 1)
        assert cached == [data]
    start, end = log.log_start_offset, log.log_end_offset
    match random.randrange(4):
        case 0:
            target = log.truncate_cache(end - random.randint(0, 20))
            submit(lambda: log.truncate(target))
        case 1:
            offset = end + random.randint(-10, 30)
            log.reset_cache(offset)
            assert (log.log_start_offset, log.log_end_offset) == (offset, offset)
            submit(lambda: log.reset(offset))
        case _:
            offset = random.randint(start, end - 20)
            submit(lambda: log.delete_before(offset))
