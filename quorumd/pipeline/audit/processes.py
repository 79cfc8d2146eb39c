"""Runs audit tasks in processes of this machine: the audit without Spark."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

from quorumd.pipeline.audit.run import AuditTask, TaskResult, in_this_process, run_task

SMALL_BYTES = 128 << 20
"""Less is done before other processes have started."""


class ProcessRunner:
    """A TaskRunner over `cores` processes, which are there until the end of `with`."""

    def __init__(self, cores: int, *, small_bytes: int = SMALL_BYTES) -> None:
        self._cores = cores
        self._small_bytes = small_bytes
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> ProcessRunner:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def __call__(self, tasks: Sequence[AuditTask]) -> Iterable[tuple[int, TaskResult]]:
        size = sum(task.size_bytes for task in tasks)
        if self._cores == 1 or size < self._small_bytes:
            return in_this_process(tasks)
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self._cores, mp_context=context)
        return self._submit(self._pool, tasks)

    @staticmethod
    def _submit(
        pool: ProcessPoolExecutor, tasks: Sequence[AuditTask]
    ) -> Iterator[tuple[int, TaskResult]]:
        numbers = {pool.submit(run_task, task): number for number, task in enumerate(tasks)}
        for future in as_completed(numbers):
            yield numbers[future], future.result()
