"""The plots of the report, as SVG to stand in a page; text stays text."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from quorumd.pipeline.report.facts import AppendRate, ReportFacts

COLOURS: Final = (
    "#2d5bd0",
    "#d9702b",
    "#17774a",
    "#8e44ad",
    "#b08900",
    "#0e7c86",
    "#b3261e",
    "#5b6472",
)
"""Of the replicas, by their rank among the ids."""
_LINE, _QUIET, _TEXT = "#dce1e8", "#566170", "#18202b"
_ACCENT = COLOURS[0]
_WIDTH = 10.4
_LANE = 0.42
_MARGIN: Final = 1 / 86_400
"""The least one beside the data, in days: one second."""
_DELAYS_S: Final = (0.1, 1, 10, 60, 600, 3600, 6 * 3600, 86_400, 10 * 86_400, 100 * 86_400)
_STYLE: Final[dict[Any, Any]] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": _TEXT,
    "axes.edgecolor": _LINE,
    "axes.labelcolor": _QUIET,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": _LINE,
    "grid.linewidth": 0.7,
    "xtick.color": _QUIET,
    "ytick.color": _QUIET,
    "xtick.labelcolor": _QUIET,
    "ytick.labelcolor": _QUIET,
}


def colour_of(replica: int, replicas: Sequence[int]) -> str:
    """The same in every plot and in the page."""
    return COLOURS[sorted(replicas).index(replica) % len(COLOURS)]


def replica_ids(facts: ReportFacts) -> list[int]:
    """All that ever led or voted."""
    leaders = {row["leader_id"] for row in facts.leadership}
    return sorted(leaders | {row["voter_id"] for row in facts.voter_sets})


def timeline(facts: ReportFacts) -> str:
    """A lane for each replica: when it was a voter, and when it led."""
    ids = replica_ids(facts)
    with mpl.rc_context(_STYLE):
        figure, axes = _plot(0.6 + _LANE * len(ids))
        for at, replica in enumerate(ids):
            for begin, end in _voting(facts, replica):
                axes.barh(at, end - begin, left=begin, height=0.62, color="#e9edf3", zorder=1)
        for row in facts.leadership:
            begin = _moment(row["from_time"])
            end = _moment(row["to_time"]) if row["to_time"] else _end(facts)
            lane = ids.index(row["leader_id"])
            colour = colour_of(row["leader_id"], ids)
            # One that led for a moment is to be seen, too.
            axes.plot(
                [begin, begin], [lane - 0.31, lane + 0.31], color=colour, linewidth=1.4, zorder=3
            )
            axes.barh(lane, max(0.0, end - begin), left=begin, height=0.62, color=colour, zorder=2)
        axes.set_yticks(range(len(ids)), [f"replica {each}" for each in ids])
        axes.set_ylim(len(ids) - 0.45, -0.55)
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0, labelcolor=_TEXT)
        axes.spines["left"].set_visible(False)
        _time_axis(axes, facts)
        return _svg(figure, "timeline", "Which replica led when, and which ones were voters")


def epochs(facts: ReportFacts) -> str:
    """The epoch over time: each step is an election that was won."""
    ids = replica_ids(facts)
    with mpl.rc_context(_STYLE):
        figure, axes = _plot(1.9)
        times = [_moment(row["from_time"]) for row in facts.leadership]
        numbers = [row["epoch"] for row in facts.leadership]
        axes.step(
            [*times, _end(facts)], [*numbers, numbers[-1]], where="post", color=_QUIET, linewidth=1
        )
        colours = [colour_of(row["leader_id"], ids) for row in facts.leadership]
        axes.scatter(times, numbers, c=colours, s=22, zorder=3)
        axes.set_ylabel("epoch")
        axes.set_ylim(min(numbers) - 0.6, max(numbers) + 0.6)
        axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=5, min_n_ticks=1))
        _time_axis(axes, facts)
        return _svg(figure, "epochs", "The epoch over time")


def append_rate(facts: ReportFacts) -> str:
    """Records a second, by the time that they carry."""
    rate: AppendRate = facts.rate
    with mpl.rc_context(_STYLE):
        figure, axes = _plot(2.3)
        edges = [_day(start) for start in rate.starts_s]
        edges.append(_day(rate.starts_s[-1] + rate.width_s))
        heights = np.array(rate.counts) / rate.width_s
        axes.stairs(heights, edges, fill=True, color=_ACCENT, alpha=0.25)
        axes.stairs(heights, edges, color=_ACCENT, linewidth=1.2)
        axes.set_ylabel("records/s")
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))
        _time_axis(axes, facts)
        return _svg(figure, "rate", "Records a second over time")


def delay(facts: ReportFacts) -> str:
    """From the time that a batch's last record carries until it was in the tables."""
    with mpl.rc_context(_STYLE):
        figure, axes = _plot(2.1)
        times = [_day(each.written_ms / 1000) for each in facts.arrivals]
        delays = [max(0.05, (each.written_ms - each.newest_ms) / 1000) for each in facts.arrivals]
        axes.plot(times, delays, color=_ACCENT, linewidth=1, alpha=0.5)
        axes.scatter(times, delays, color=_ACCENT, s=14, zorder=3)
        axes.set_yscale("log")
        axes.set_ylabel("delay")
        # From a tick to a tick, so that there are two of them at least.
        low = max((each for each in _DELAYS_S if each <= min(delays)), default=min(delays))
        high = min((each for each in _DELAYS_S if each > max(delays)), default=max(delays) * 2)
        ticks = [each for each in _DELAYS_S if low <= each <= high]
        axes.yaxis.set_major_locator(FixedLocator(ticks))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _span(value)))
        axes.set_ylim(low * 0.8, high * 1.2)
        margin = max((times[-1] - times[0]) * 0.01, _MARGIN)
        axes.set_xlim(times[0] - margin, times[-1] + margin)
        _dates(axes)
        return _svg(figure, "delay", "How long records took into the tables")


def _voting(facts: ReportFacts, replica: int) -> list[tuple[float, float]]:
    """Spans in which it was a voter, in days, as matplotlib has them."""
    spans: list[tuple[float, float]] = []
    since: float | None = None
    for row in facts.voter_sets:
        if row["voter_id"] != replica:
            continue
        moment = _moment(row["timestamp"])
        if row["change"] == "REMOVE" and since is not None:
            spans.append((since, moment))
            since = None
        elif row["change"] != "REMOVE" and since is None:
            since = moment
    return spans if since is None else [*spans, (since, _end(facts))]


def _plot(height: float) -> tuple[Figure, Axes]:
    """All with the same margins (inches), so that equal times stand below each other."""
    figure = Figure(figsize=(_WIDTH, height))
    left, right, top, bottom = 0.85, 0.12, 0.1, 0.42
    axes = figure.add_axes(
        (
            left / _WIDTH,
            bottom / height,
            1 - (left + right) / _WIDTH,
            1 - (top + bottom) / height,
        )
    )
    return figure, axes


def _time_axis(axes: Axes, facts: ReportFacts) -> None:
    """The same span in all plots that are about the log."""
    begin, end = _day(facts.first_s), _end(facts)
    margin = max((end - begin) * 0.01, _MARGIN)
    axes.set_xlim(begin - margin, end + margin)
    _dates(axes)


def _dates(axes: Axes) -> None:
    locator = AutoDateLocator(minticks=3, maxticks=9)  # type: ignore[no-untyped-call]  # matplotlib gives no types here
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]  # matplotlib gives no types here
    axes.get_xaxis().get_offset_text().set_color(_QUIET)


def _moment(time: datetime) -> float:
    return float(date2num(time))  # type: ignore[no-untyped-call]  # matplotlib gives no types here


def _day(seconds: float) -> float:
    return float(date2num(datetime.fromtimestamp(seconds, UTC)))  # type: ignore[no-untyped-call]  # matplotlib gives no types here


def _end(facts: ReportFacts) -> float:
    return _day(facts.last_s + 1)


def _span(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"


def _svg(figure: Figure, name: str, title: str) -> str:
    """Without the XML header, sized by the page; ids of several plots must not meet."""
    text = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": name}):
        figure.savefig(
            text, format="svg", transparent=True, metadata={"Date": None, "Creator": None}
        )
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    opened: Any = re.match(r"<svg[^>]*>", svg)
    box = re.search(r'viewBox="[^"]*"', opened[0])
    assert box is not None, "matplotlib writes one"
    head = (
        f'<svg xmlns:xlink="http://www.w3.org/1999/xlink" {box[0]} role="img" aria-label="{title}">'
    )
    body = re.sub(r"<metadata>.*?</metadata>", "", svg[opened.end() :], flags=re.DOTALL)
    # The page has its own font; matplotlib names its own in every text.
    body = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", body)
    # Ids are numbers per figure: they must differ within a page.
    body = re.sub(r'\bid="', f'id="{name}-', body)
    body = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", body)
    return head + body
