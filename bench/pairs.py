"""Two builds of quorumd against each other: many short samples in turn, and the ratio of each pair.

What else the machine does changes from minute to minute by more than most changes of the code do. Two samples
that follow each other meet nearly the same machine, so their ratio says more than two medians do.
"""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from bench.builds import Build
from bench.common import Quorum, generate, leader_of, running_quorum

PAUSED_FOR_LONG = {"quorum.fetch.timeout.ms": 3_600_000, "quorum.request.timeout.ms": 3_600_000}
"""A paused quorum does not elect when it goes on."""
RUNS_MAX = 5
RESUME_S = 0.5
QUIET_CORES = 0.2
"""Above this, other programs decide."""


T = TypeVar("T")


class Spread(NamedTuple):
    """Median and quartiles."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        return cls(*statistics.quantiles(values, n=4, method="inclusive"))


class Pair(NamedTuple):
    """One sample of each build, one right after the other."""

    now: Mapping[str, Any]
    before: Mapping[str, Any]

    @property
    def ratio(self) -> float:
        """Records a second of now, divided by those of before."""
        return float(self.now["records_per_s"]) / float(self.before["records_per_s"])

    @property
    def other_cores(self) -> float:
        """Processors that other programs used, at the worse of the two samples."""
        return max(float(each["cores_other"]) + float(each["cores_stolen"]) for each in self)


@contextmanager
def two_quorums(builds: Sequence[Build], folder: Path | None) -> Iterator[list[Quorum]]:
    """A quorum of each build; all are paused."""
    with ExitStack() as stack:
        quorums = [
            stack.enter_context(
                running_quorum(folder, PAUSED_FOR_LONG, command=each.command, environ=each.environ)
            )
            for each in builds
        ]
        for quorum in quorums:
            leader_of(quorum)
            stack.enter_context(paused(quorum))
        yield quorums


class Processes(Protocol):
    """Nodes that run."""

    @property
    def pids(self) -> list[int]:
        """Their process ids."""


@contextmanager
def paused(nodes: Processes) -> Iterator[None]:
    """Stops the nodes but in samples."""
    _signal(nodes, signal.SIGSTOP)
    try:
        yield
    finally:
        _signal(nodes, signal.SIGCONT)


@contextmanager
def awake(nodes: Processes) -> Iterator[None]:
    """For one sample; timers that ran out meanwhile have fired."""
    _signal(nodes, signal.SIGCONT)
    time.sleep(RESUME_S)
    try:
        yield
    finally:
        _signal(nodes, signal.SIGSTOP)


def sample(quorum: Quorum, **options: object) -> dict[str, Any]:
    """One run of the load generator; the quorum is paused before and after it.

    A run in which nothing was acknowledged, on a machine that is busy with others, says nothing: it is made
    again. Raises RuntimeError if that is so time after time.
    """
    for _ in range(RUNS_MAX):
        with awake(quorum):
            port = quorum.ports[leader_of(quorum)]
            made = generate(quorum, [port], **{**options, **quorum.load_options})
        if made["records_per_s"] > 0:
            return made
    raise RuntimeError(
        f"no record was acknowledged in {RUNS_MAX} runs: make them longer, --seconds"
    )


def measure_pairs(quorums: Sequence[Quorum], count: int, **options: object) -> Iterator[Pair]:
    """Samples of two quorums in pairs; the one that is first changes from pair to pair."""
    now, before = quorums
    for number in range(count):
        if number % 2 == 0:
            first = sample(now, **options)
            yield Pair(first, sample(before, **options))
        else:
            first = sample(before, **options)
            yield Pair(sample(now, **options), first)


def in_turn(items: Sequence[T], number: int) -> list[T]:
    """All of them in their order; who is first changes from round to round."""
    at = number % len(items)
    return [*items[at:], *items[:at]]


def verdict(pairs: Sequence[Pair]) -> str:
    """The median of the ratios with its quartiles, and whether they say anything."""
    ratios = Spread.of([pair.ratio for pair in pairs])
    other = statistics.median(pair.other_cores for pair in pairs)
    if ratios.low > 1:
        word = "faster"
    elif ratios.high < 1:
        word = "slower"
    else:
        word = "no difference seen"
    noisy = ", on a machine that is not quiet" if other > QUIET_CORES else ""
    return (
        f"x {ratios.median:.3f} ({ratios.low:.3f} to {ratios.high:.3f}, {len(pairs)} pairs):"
        f" {word}{noisy}"
    )


def _signal(nodes: Processes, number: signal.Signals) -> None:
    for pid in nodes.pids:
        os.kill(pid, number)
