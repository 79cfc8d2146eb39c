"""The newest value of each key, in memory up to a limit and in sorted runs on disk beyond it.

Work goes on in steps of some ms, with a pause behind each. Runs are merged as soon as there are
`FAN_IN` of one level, so that few files are open and little is in memory at the end, however small the
limit is. Deletions are values like others here: what is below this table is not known.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator
from itertools import accumulate, islice
from operator import add
from pathlib import Path

from quorumd.storage.filesystem import FileSystem
from quorumd.storage.sorted_runs import BLOCK_BYTES, Block, Newest, Run, merge, run_of, sorted_parts

FAN_IN = 64
ENTRY_BYTES = 200
"""Bytes of memory that an entry costs besides its key and its value."""

_COUNTED_AT_ONCE = 4096


class SpillableMap:
    """See the module. `newest` may be written to directly; `added` must be called then.

    Values are empty or longer than a reference (quorumd.storage.sorted_runs). Methods raise StorageError.
    """

    def __init__(
        self, fs: FileSystem, path_of_run: Callable[[int], Path], memory_bytes: int
    ) -> None:
        """`memory_bytes` is what keys and values may take, and what they cost besides."""
        self._fs = fs
        self._path_of_run = path_of_run
        self._memory_bytes = memory_bytes
        self.newest: dict[bytes, bytes] = {}
        self._added = self._at_most_bytes = 0
        self._runs: list[Run] = []
        self._next_number = 0

    @property
    def size_bytes(self) -> int:
        """Bytes of the runs on disk."""
        return sum(run.size_bytes for run in self._runs)

    def added(self, count: int, size_bytes: int) -> bool:
        """So many entries were written to `newest`, no larger than that; True if room has to be made."""
        self._added += count
        self._at_most_bytes += size_bytes + count * ENTRY_BYTES
        return self._at_most_bytes > self._memory_bytes

    def make_room(self) -> Iterator[None]:
        """Writes what is in memory to a run, unless most of what was added has replaced something."""
        newest = self.newest
        if len(newest) < self._added // 4 * 3:
            entries = iter(newest.items())
            self._at_most_bytes = len(newest) * ENTRY_BYTES
            while some := list(islice(entries, _COUNTED_AT_ONCE)):
                self._at_most_bytes += sum(len(key) + len(value) for key, value in some)
                yield
            self._added = len(newest)
            if self._at_most_bytes < self._memory_bytes // 4 * 3:
                return
        run = self._new_run(0)
        blocks = yield from self._blocks_in_memory()
        for block in blocks:
            run.write(block, self.load)
            yield
        newest.clear()
        self._added = self._at_most_bytes = 0
        while len(self._runs) >= FAN_IN and self._runs[-FAN_IN].level == self._runs[-1].level:
            yield from self._merge_newest_runs()

    def _merge_newest_runs(self) -> Iterator[None]:
        merging = self._runs[-FAN_IN:]
        run = self._new_run(merging[0].level + 1)
        for keys, newest in merge([each.blocks() for each in merging]):
            for block in _blocks_of(keys, list(map(newest.__getitem__, keys))):
                run.write(block, self.load)
                yield
        for each in merging:
            each.delete()
            self._runs.remove(each)

    def _new_run(self, level: int) -> Run:
        number = self._next_number
        self._next_number += 1
        run = Run(self._fs, self._path_of_run(number), number, level)
        self._runs.append(run)
        return run

    def merged(self, below: Iterator[Block] | None) -> Iterator[Newest | None]:
        """Everything, in order of the keys, and None for a pause; `below` is older than all of it.

        Takes out of memory what it gives.
        """
        blocks = yield from self._blocks_in_memory()
        sources = [run.blocks() for run in self._runs]
        if below is not None:
            sources.insert(0, below)
        yield from merge([*sources, blocks])

    def _blocks_in_memory(self) -> Generator[None, None, Iterator[Block]]:
        newest = self.newest
        parts = yield from sorted_parts(list(newest))

        parts.reverse()

        def blocks() -> Iterator[Block]:
            while parts:
                keys = parts.pop()
                yield from _blocks_of(keys, list(map(newest.pop, keys)))

        return blocks()

    def load(self, reference: bytes) -> bytes:
        """The value that a reference stands for."""
        number = run_of(reference)
        return next(run for run in self._runs if run.number == number).load(reference)

    def close(self) -> None:
        """Lets go of all files; a second time is no harm."""
        for run in self._runs:
            run.close()

    def delete(self) -> None:
        """Removes all files; a second time is no harm."""
        while self._runs:
            self._runs.pop().delete()


def _blocks_of(keys: list[bytes], values: list[bytes]) -> Iterator[Block]:
    """The same in blocks of about the size that they should have."""
    ends = list(accumulate(map(add, map(len, keys), map(len, values))))
    begin = done_bytes = 0
    while begin < len(keys):
        end = bisect_left(ends, done_bytes + BLOCK_BYTES, begin) + 1
        yield Block(keys[begin:end], values[begin:end])
        begin, done_bytes = end, ends[min(end, len(ends)) - 1]
