"""Readers on other threads while the log is written, rolled and truncated."""

from __future__ import annotations

import threading
from pathlib import Path

from storage.errors import OffsetOutOfRange
from storage.filesystem import RealFileSystem
from tests.storage.helpers import append, batch, open_log
from wire.records import scan


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
                except OffsetOutOfRange:
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
