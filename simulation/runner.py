"""Runs seeds and keeps what came of them: one here, or many on all cores.

A run fails if it raises anything at all, or if it takes too much processor time.
"""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing.process import BaseProcess
from types import FrameType

from simulation.coverage import Coverage
from simulation.options import Options
from simulation.plan import Planned
from simulation.settings import Settings
from simulation.violation import Violation
from simulation.world import World

TIMEOUT_S_DEFAULT = 120.0
ENDS = "the run ends"
"""The property that a run violates by taking too long."""
NO_EXCEPTION = "nothing raises"
"""The property that a run violates with an exception that is no Violation."""
TRACEBACK_LINES = 8
STACK_ENTRIES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Work to do with every seed."""

    options: Options = field(default_factory=Options)
    plant: str | None = None
    """The bug of simulation.planted that is put into the code meanwhile."""
    timeout_s: float = TIMEOUT_S_DEFAULT

    def bug(self) -> AbstractContextManager[object]:
        """The planted bug of the runs, if there is one."""
        if self.plant is None:
            return nullcontext()
        from simulation.planted import PLANTED

        return PLANTED[self.plant].applied()


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A property that did not hold in a run; `what` says how."""

    seed: int
    violated: str
    what: str


@dataclass(slots=True, kw_only=True)
class Run:
    """One run, failed or not. `digest` and the counts are those until the failure, if there is one."""

    seed: int
    failure: Failure | None = None
    wall_s: float = 0.0
    digest: str = ""
    disk_digests: tuple[str, ...] = ()
    """Of the disks of all machines, in their order."""
    steps: int = 0
    simulated_us: int = 0
    committed_records: int = 0
    acknowledged: int = 0
    settings: Settings | None = None
    begun: tuple[Planned, ...] = ()
    """The faults of the schedule that had begun by then."""
    coverage: Coverage = field(default_factory=Coverage)
    last_events: list[tuple[str, list[str]]] = field(default_factory=list)


@dataclass(slots=True)
class Tally:
    """Results of many runs."""

    runs: int = 0
    steps: int = 0
    simulated_us: int = 0
    coverage: Coverage = field(default_factory=Coverage)
    failures: list[Failure] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Add the sums of other runs."""
        self.runs += other.runs
        self.steps += other.steps
        self.simulated_us += other.simulated_us
        self.coverage.add(other.coverage)
        self.failures += other.failures

    def add_run(self, run: Run) -> None:
        """Add a run."""
        self.runs += 1
        self.steps += run.steps
        self.simulated_us += run.simulated_us
        self.coverage.add(run.coverage)
        if run.failure is not None:
            self.failures.append(run.failure)


class WorkerLost(Exception):
    """A process that ran seeds is gone; the message says which seeds it had."""


# -- one run


def run_one(seed: int, task: Task) -> Run:
    """Run a seed in this process, on its main thread. Raises nothing but KeyboardInterrupt."""
    run = Run(seed=seed)
    world: World | None = None
    error: BaseException | None = None
    begin_s = time.perf_counter()
    with _silence(), _no_collector(), task.bug(), _signals(task.timeout_s) as signals:
        try:
            world = World(seed, task.options)
            world.run()
        except BaseException as raised:  # nothing at all may come out of a run
            error = raised
        signals.disarm()
    if signals.is_interrupted:
        raise KeyboardInterrupt
    run.wall_s = time.perf_counter() - begin_s
    if world is not None:
        _take_from(world, run)
    if signals.is_late:
        run.failure = Failure(seed=seed, violated=ENDS, what=signals.where)
    elif error is not None:
        run.failure = _failure(seed, error)
    return run


def _failure(seed: int, error: BaseException) -> Failure:
    if isinstance(error, Violation):
        return Failure(seed=seed, violated=error.violated, what=error.what)
    lines = "".join(traceback.format_exception(error)).rstrip().splitlines()
    return Failure(seed=seed, violated=NO_EXCEPTION, what="\n".join(lines[-TRACEBACK_LINES:]))


def _take_from(world: World, run: Run) -> None:
    env = world.env
    run.digest = env.trace.digest
    run.disk_digests = tuple(machine.disk.digest() for machine in world.cluster.machines)
    run.steps = env.scheduler.steps
    run.simulated_us = env.scheduler.now_us
    run.committed_records = env.facts.committed_end_offset
    run.acknowledged = sum(append.offset is not None for append in env.facts.appends)
    run.settings = world.settings
    run.coverage = env.coverage
    run.begun = tuple(world.begun)
    run.last_events = list(env.trace.last_events())


class _Stopped(BaseException):
    """Raised where a run is when it shall end; no Exception, so that little goes on after it."""


class _Signals:
    """The end of a run from outside. It is noted here, for the daemon's code turns what is raised in
    its midst into a failure of its own.
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.is_interrupted = False
        self.is_late = False
        self.where = ""

    def on_interrupt(self, _signal: int, _frame: FrameType | None) -> None:
        self.is_interrupted = True
        raise _Stopped

    def on_alarm(self, _signal: int, frame: FrameType | None) -> None:
        if not self.is_late:
            stack = "".join(traceback.format_stack(frame)[-STACK_ENTRIES:]).rstrip()
            self.where = (
                f"it has not after {self.timeout_s:g} s of work; this is where it was:\n{stack}"
            )
        self.is_late = True
        raise _Stopped

    def disarm(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)


@contextmanager
def _signals(timeout_s: float) -> Iterator[_Signals]:
    """While it lasts, SIGINT and the end of the time end a run."""
    signals = _Signals(timeout_s)
    old_alarm = signal.signal(signal.SIGPROF, signals.on_alarm)
    old_interrupt = signal.getsignal(signal.SIGINT)
    if old_interrupt is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signals.on_interrupt)
    # Time of the processor: a busy machine is no reason. Again every second, in case that some code
    # swallows it.
    old_timer = signal.setitimer(signal.ITIMER_PROF, timeout_s, 1.0)
    try:
        yield signals
    finally:
        signals.disarm()
        signal.signal(signal.SIGINT, old_interrupt)
        signal.signal(signal.SIGPROF, old_alarm)
        signal.setitimer(signal.ITIMER_PROF, *old_timer)


@contextmanager
def _no_collector() -> Iterator[None]:
    """The garbage collector would take a sixth of the time, and a run is short."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def _silence() -> Iterator[None]:
    """The daemon's log lines go nowhere: what matters is in the trace."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


# -- many runs


def run_many(
    seeds: range, task: Task, jobs: int, tally: Tally, show: Callable[[], None] = lambda: None
) -> None:
    """Run all seeds in `jobs` processes, adding to `tally` as they come; `show` is called after each.

    Whatever ends it, Ctrl-C included, ends the processes at once. Raises WorkerLost.
    """
    others = set(multiprocessing.active_children())
    # Forked, so that what is patched here is patched there.
    context = multiprocessing.get_context("fork")
    executor = ProcessPoolExecutor(jobs, context, _begin_worker)
    try:
        _start_workers(executor)
        _run_all(executor, seeds, task, jobs, tally, show)
    except BaseException:
        for worker in set(multiprocessing.active_children()) - others:
            worker.kill()
        raise
    finally:
        executor.shutdown(cancel_futures=True)


def _start_workers(executor: ProcessPoolExecutor) -> None:
    """Ctrl-C waits meanwhile: what a signal raises in the midst of a fork is swallowed."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        executor.submit(os.getpid)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _run_all(
    executor: ProcessPoolExecutor,
    seeds: range,
    task: Task,
    jobs: int,
    tally: Tally,
    show: Callable[[], None],
) -> None:
    left = iter(seeds)
    running: dict[Future[Tally], int] = {}
    while True:
        # More than can run, so that none waits for the next.
        for seed in islice(left, 2 * jobs - len(running)):
            running[executor.submit(_run_to_tally, seed, task)] = seed
        if not running:
            return
        done, _ = wait(running, return_when=FIRST_COMPLETED)
        for future in done:
            if (error := future.exception()) is not None:
                lost = ", ".join(map(str, running.values()))
                raise WorkerLost(f"{error} (one of these seeds: {lost})")
            del running[future]
            tally.add(future.result())
        show()


def _run_to_tally(seed: int, task: Task) -> Tally:
    tally = Tally()
    tally.add_run(run_one(seed, task))
    return tally


def _begin_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: BaseProcess) -> None:
    """However the parent ends, its workers do not go on without it."""
    parent.join()
    os._exit(1)
