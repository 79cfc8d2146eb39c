"""The dashboard drawn from Prometheus' answers, as near to Grafana as it takes to judge it by eye.

Grafana itself cannot be had everywhere. What is drawn follows the model: grid, units, mappings, thresholds,
legends. What a panel asks for and this cannot draw fails.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

ROW_PX = 34
PALETTE = ("#73bf69", "#f2cc0c", "#5794f2", "#ff780a", "#f2495c", "#8f3bb8", "#37872d", "#c4162a")
COLORS = {
    "green": "#73bf69",
    "yellow": "#fade2a",
    "orange": "#ff9830",
    "red": "#f2495c",
    "blue": "#5794f2",
    "purple": "#b877d9",
    "text": "#ccccdc",
    "transparent": "#ccccdc",
}
_STYLE = """
body { margin: 0; padding: 8px; background: #111217; color: #ccccdc; font: 12px/1.3 sans-serif; }
main { display: grid; grid-template-columns: repeat(24, 1fr); gap: 6px; }
section { background: #181b1f; border: 1px solid #2c3235; overflow: hidden; display: flex;
  flex-direction: column; min-width: 0; }
h2 { font-size: 12px; margin: 4px 8px; font-weight: 600; }
.row { background: none; border: 0; font-size: 14px; }
.big { flex: 1; display: flex; gap: 12px; align-items: center; justify-content: center; font-size: 30px; }
.big small { display: block; font-size: 11px; }
svg { flex: 1; width: 100%; min-height: 0; }
table { width: calc(100% - 16px); margin: 2px 8px; border-collapse: collapse; font-size: 11px; }
td, th { text-align: left; white-space: nowrap; } .n { text-align: right; }
.bar { margin: 4px 8px; } .bar i { display: block; height: 14px; }
"""


class Series(NamedTuple):
    """One curve: its name, its labels, and its points as (time in s, value); nan is a gap."""

    name: str
    labels: Mapping[str, str]
    points: list[tuple[float, float]]

    @property
    def last(self) -> float:
        return next((v for _, v in reversed(self.points) if math.isfinite(v)), math.nan)


class Span(NamedTuple):
    """What is shown, in s."""

    start: float
    end: float


def draw(panels: Iterable[tuple[dict[str, Any], list[Series]]], span: Span) -> str:
    """A page in HTML with every panel at its place."""
    parts = []
    for panel, series in panels:
        at = panel["gridPos"]
        place = (
            f"grid-column: {at['x'] + 1} / span {at['w']}; "
            f"grid-row: {at['y'] + 1} / span {at['h']}; height: {at['h'] * (ROW_PX + 6) - 6}px"
        )
        title = html.escape(panel["title"])
        if panel["type"] == "row":
            parts.append(f'<section class="row" style="{place}"><h2>▾ {title}</h2></section>')
            continue
        body = _DRAWN[panel["type"]](panel, series, span)
        parts.append(f'<section style="{place}"><h2>{title}</h2>{body}</section>')
    return (
        f"<!doctype html><meta charset=utf-8><style>{_STYLE}</style><main>{''.join(parts)}</main>"
    )


# -- values


def shown(value: float, defaults: Mapping[str, Any]) -> tuple[str, str]:
    """Text and colour of a value, as mappings, unit and thresholds say."""
    if math.isnan(value):
        return str(defaults.get("noValue", "No data")), COLORS["text"]
    color = "text"
    for step in defaults["thresholds"]["steps"]:
        if step["value"] is None or value >= step["value"]:
            color = step["color"]
    for mapping in defaults["mappings"]:
        if (found := mapping["options"].get(f"{value:g}")) is not None:
            return found["text"], COLORS[found["color"]]
    return _with_unit(value, defaults.get("unit", "none")), COLORS[color]


def _with_unit(value: float, unit: str) -> str:
    if unit == "none":
        return f"{value:.15g}"
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    if unit in ("s", "ms"):
        return _time(value if unit == "s" else value / 1000)
    suffix = {"short": "", "ops": " ops/s", "cps": " c/s", "reqps": " req/s"}.get(unit)
    if suffix is not None:
        return _scaled(value, 1000, ("", "K", "M", "G")) + suffix
    suffix = {"bytes": "", "Bps": "/s"}[unit]
    return _scaled(value, 1024, (" B", " KiB", " MiB", " GiB", " TiB")) + suffix


def _scaled(value: float, base: int, units: tuple[str, ...]) -> str:
    at = 0
    while abs(value) >= base and at < len(units) - 1:
        value, at = value / base, at + 1
    return f"{value:.3g}{units[at]}"


def _time(seconds: float) -> str:
    for limit, unit, name in (
        (1e-3, 1e-6, "µs"),
        (1, 1e-3, "ms"),
        (120, 1, "s"),
        (7200, 60, "min"),
        (172_800, 3600, "h"),
    ):
        if seconds < limit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds / 86_400:.3g} d"


# -- panels


def _stat(panel: dict[str, Any], series: list[Series], span: Span) -> str:
    del span
    defaults, options = panel["fieldConfig"]["defaults"], panel["options"]
    parts = []
    for one in series or [Series("", {}, [])]:
        text, color = shown(one.last, defaults)
        is_filled = options["colorMode"] == "background"
        style = f"background: {color}; color: #111" if is_filled else f"color: {color}"
        name = one.name if options["textMode"] == "value_and_name" else ""
        label = f"<small>{html.escape(name)}</small>" if name else ""
        parts.append(
            f'<div class="big" style="{style}"><span>{label}{html.escape(text)}</span></div>'
        )
    return f'<div style="flex: 1; display: flex">{"".join(parts)}</div>'


def _bargauge(panel: dict[str, Any], series: list[Series], span: Span) -> str:
    del span
    defaults = panel["fieldConfig"]["defaults"]
    parts = []
    for one in series:
        text, color = shown(one.last, defaults)
        part = (one.last - defaults["min"]) / (defaults["max"] - defaults["min"])
        parts.append(
            f'<div class="bar">{html.escape(one.name)} <b>{text}</b>'
            f'<i style="width: {part * 100:.1f}%; background: {color}"></i></div>'
        )
    return "".join(parts)


def _timeline(panel: dict[str, Any], series: list[Series], span: Span) -> str:
    """A bar for each series, cut where the value changes."""
    defaults = panel["fieldConfig"]["defaults"]
    parts = []
    for row, one in enumerate(series):
        y = (row + 0.1) * 200 / len(series)
        height = 0.8 * 200 / len(series)
        parts.append(
            f'<text x="2" y="{y + height / 2}" fill="#ccc" font-size="11">{one.name}</text>'
        )
        for start, end, value in _runs(one.points):
            text, color = shown(value, defaults)
            if not any(f"{value:g}" in each["options"] for each in defaults["mappings"]):
                color = PALETTE[int(value) % len(PALETTE)]
            left, right = (130 + _part(at, span) * 870 for at in (start, end))
            parts.append(
                f'<rect x="{left:.1f}" y="{y:.1f}" width="{max(right - left, 1):.1f}" '
                f'height="{height:.1f}" fill="{color}"/>'
            )
            if right - left > 7 * len(text):
                at = f'x="{left + 4:.1f}" y="{y + height / 2 + 4:.1f}"'
                parts.append(f'<text {at} font-size="11">{html.escape(text)}</text>')
    return f'<svg viewBox="0 0 1000 200" preserveAspectRatio="none">{"".join(parts)}</svg>'


def _runs(points: list[tuple[float, float]]) -> list[tuple[float, float, float]]:
    """(start, end, value) of what stays the same; nothing where there is a gap."""
    runs: list[tuple[float, float, float]] = []
    before = (math.nan, math.nan)
    for at, value in points:
        if math.isfinite(value):
            if runs and value == before[1]:
                runs[-1] = (runs[-1][0], at, value)
            else:
                if runs and math.isfinite(before[1]):
                    runs[-1] = (runs[-1][0], at, runs[-1][2])
                runs.append((at, at, value))
        before = (at, value)
    return runs


def _table(panel: dict[str, Any], series: list[Series], span: Span) -> str:
    del span
    (change,) = (each["options"] for each in panel["transformations"])
    columns = sorted(change["indexByName"], key=change["indexByName"].get)
    head = "".join(f"<th>{change['renameByName'].get(name, name)}</th>" for name in columns)
    rows = []
    for one in series:
        cells = [one.labels.get(name, f"{one.last:.1f} s") for name in columns]
        rows.append("".join(f"<td>{html.escape(cell)}</td>" for cell in cells))
    body = "".join(f"<tr>{row}</tr>" for row in sorted(rows))
    return f"<table><tr>{head}</tr>{body}</table>"


def _curves(panel: dict[str, Any], series: list[Series], span: Span) -> str:
    defaults = panel["fieldConfig"]["defaults"]
    custom = defaults["custom"]
    values = [v for one in series for _, v in one.points if math.isfinite(v)]
    if not values:
        return '<div class="big">No data</div>'
    lines = [step["value"] for step in defaults["thresholds"]["steps"] if step["value"] is not None]
    lines = lines if custom["thresholdsStyle"]["mode"] == "dashed" else []
    is_log = custom["scaleDistribution"]["type"] == "log"
    scale, ticks = _scale(values, defaults, is_log)
    parts = []
    for tick in ticks:
        y = scale(tick)
        parts.append(f'<line x1="70" x2="1000" y1="{y:.1f}" y2="{y:.1f}" stroke="#2c3235"/>')
        text = html.escape(shown(tick, defaults)[0])
        parts.append(f'<text x="2" y="{y + 4:.1f}" fill="#aaa" font-size="12">{text}</text>')
    parts += [
        f'<line x1="70" x2="1000" y1="{scale(line):.1f}" y2="{scale(line):.1f}" stroke="#f2495c" '
        'stroke-dasharray="8 6"/>'
        for line in lines
        if 0 <= scale(line) <= 200
    ]
    legend = []
    for number, one in enumerate(series):
        color = PALETTE[number % len(PALETTE)]
        is_step = custom["lineInterpolation"] == "stepAfter"
        parts += [
            f'<path d="{path}" fill="none" stroke="{color}" stroke-width="1.5"/>'
            for path in _paths(one.points, span, scale, is_step)
        ]
        top = max((v for _, v in one.points if math.isfinite(v)), default=math.nan)
        cells = "".join(f'<td class="n">{shown(v, defaults)[0]}</td>' for v in (one.last, top))
        name = html.escape(one.name)
        legend.append(f'<tr><td style="color: {color}">▬ {name}</td>{cells}</tr>')
    return (
        f'<svg viewBox="0 -8 1000 216" preserveAspectRatio="none">{"".join(parts)}</svg>'
        f'<table><tr><th></th><th class="n">last</th><th class="n">max</th></tr>{"".join(legend)}</table>'
    )


def _scale(
    values: list[float], defaults: Mapping[str, Any], is_log: bool
) -> tuple[Callable[[float], float], list[float]]:
    """The height (0 top, 200 bottom) of a value, and which values get a line."""
    if is_log:
        low = math.floor(math.log10(max(min(values), 1e-9)))
        high = max(low + 1, math.ceil(math.log10(max(*values, 1e-9))))

        def of_log(value: float) -> float:
            return 200 - (math.log10(max(value, 1e-9)) - low) / (high - low) * 200

        return of_log, [10.0**power for power in range(low, high + 1)]
    bottom = float(defaults.get("min", min(0.0, *values)))
    top = float(defaults.get("max", max(*values, bottom + 1e-9) * 1.05))

    def of_linear(value: float) -> float:
        return 200 - (value - bottom) / (top - bottom) * 200

    return of_linear, [bottom + (top - bottom) * quarter / 4 for quarter in range(5)]


def _paths(
    points: list[tuple[float, float]], span: Span, scale: Callable[[float], float], is_step: bool
) -> list[str]:
    """A path for each stretch without a gap."""
    paths: list[str] = []
    is_open = False
    for at, value in points:
        if not math.isfinite(value):
            is_open = False
            continue
        x, y = 70 + _part(at, span) * 930, scale(value)
        if not is_open:
            paths.append(f"M{x:.1f} {y:.1f}h1")
        elif is_step:
            paths[-1] += f"H{x:.1f}V{y:.1f}"
        else:
            paths[-1] += f"L{x:.1f} {y:.1f}"
        is_open = True
    return paths


def _part(at: float, span: Span) -> float:
    return (at - span.start) / (span.end - span.start)


_DRAWN: dict[str, Callable[[dict[str, Any], list[Series], Span], str]] = {
    "stat": _stat,
    "bargauge": _bargauge,
    "state-timeline": _timeline,
    "table": _table,
    "timeseries": _curves,
}
