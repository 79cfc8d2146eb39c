"""Ranges spread over processes of this machine: what the audit does without Spark."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

from quorumd.pipeline.audit.run import Done, Work, do_work, in_this_process

SMALL_BYTES = 128 << 20
"""Less is done before other processes have started."""


class OverProcesses:
    """A Spread over `cores` processes, which are there until the end of `with`."""

    def __init__(self, cores: int, *, small_bytes: int = SMALL_BYTES) -> None:
        self._cores = cores
        self._small_bytes = small_bytes
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> OverProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def __call__(self, works: Sequence[Work]) -> Iterable[tuple[int, Done]]:
        size = sum(work.size_bytes for work in works)
        if self._cores == 1 or size < self._small_bytes:
            return in_this_process(works)
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self._cores, mp_context=context)
        return self._spread(self._pool, works)

    @staticmethod
    def _spread(pool: ProcessPoolExecutor, works: Sequence[Work]) -> Iterator[tuple[int, Done]]:
        numbers = {pool.submit(do_work, work): number for number, work in enumerate(works)}
        for future in as_completed(numbers):
            yield numbers[future], future.result()
