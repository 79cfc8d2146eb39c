"""The last five minutes of a node, a second each, so that a page that was just opened shows the past."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Final, NamedTuple

from quorumd.server.model.sampled_stats import Histogram
from quorumd.server.page.source import PageSource

SAMPLES_MAX: Final = 300


class Sample(NamedTuple):
    """One second, about. Times are ms, None where nothing was measured.

    `at_s` is of a clock that never goes back. A leader is one that responds. `commits_per_s` are records
    that this node came to know as committed. Commits are timed by the leader alone; syncs are those of
    this node's log.
    """

    number: int
    at_s: float
    epoch: int
    leader_id: int | None
    commits_per_s: float | None
    commit_ms: float | None
    commit_p99_ms: float | None
    sync_ms: float | None


class FigureHistory:
    """Call `take` once a second. Holds SAMPLES_MAX samples."""

    def __init__(self, source: PageSource) -> None:
        self._source = source
        self._samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)
        self._commits = _Interval(source.metrics.commit_seconds)
        self._syncs = _Interval(source.metrics.fsync_seconds)
        self._count = 0
        self._last_high_watermark = -1

    def take(self, now_s: float) -> None:
        """Add what happened since the last call."""
        view = self._source.view
        high_watermark, before = view.high_watermark, self._last_high_watermark
        rate = None
        if self._samples and before >= 0 and high_watermark >= 0:
            elapsed_s = max(now_s - self._samples[-1].at_s, 0.001)
            rate = round(max(0, high_watermark - before) / elapsed_s, 1)
        self._last_high_watermark = high_watermark
        commit_ms, commit_p99_ms = self._commits.take()
        self._count += 1
        self._samples.append(
            Sample(
                number=self._count,
                at_s=round(now_s, 3),
                epoch=view.leader_epoch,
                leader_id=self._source.leader_id(),
                commits_per_s=rate,
                commit_ms=commit_ms,
                commit_p99_ms=commit_p99_ms,
                sync_ms=self._syncs.take()[0],
            )
        )

    def newest(self, count: int = SAMPLES_MAX) -> list[Sample]:
        """At most so many, ascending."""
        return list(islice(self._samples, max(0, len(self._samples) - count), None))

    def epochs_begun(self) -> int:
        """By how much the epoch rose since the first leader in the time that is remembered."""
        led = next((each for each in self._samples if each.leader_id is not None), None)
        return 0 if led is None else self._samples[-1].epoch - led.epoch


class _Interval:
    """Values that a histogram has taken since the last reading."""

    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram
        self._sum = histogram.sum
        self._totals = [total for _, total in histogram.buckets()]

    def take(self) -> tuple[float | None, float | None]:
        """Average and 99th percentile in ms; None, None without a value."""
        histogram, sum_before, totals_before = self._histogram, self._sum, self._totals
        self._sum = histogram.sum
        self._totals = [total for _, total in histogram.buckets()]
        totals = [now - before for now, before in zip(self._totals, totals_before, strict=True)]
        count = totals[-1]
        if not count:
            return None, None
        average = (self._sum - sum_before) / count
        p99 = _quantile(0.99, histogram.bounds, totals)
        return round(average * 1000, 3), round(p99 * 1000, 3)


def _quantile(share: float, bounds: tuple[float, ...], totals: list[float]) -> float:
    """As Prometheus does: between a bucket's bounds values are taken to be spread evenly."""
    wanted = share * totals[-1]
    lower, below = 0.0, 0.0
    for bound, total in zip(bounds, totals, strict=False):
        if total >= wanted:
            return lower + (bound - lower) * (wanted - below) / (total - below)
        lower, below = bound, total
    return lower
