"""The report as one HTML page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final

from quorumd.cli.text import bytes_text, counted, duration_text
from quorumd.pipeline.report import plots
from quorumd.pipeline.report.facts import FactRow, ReportFacts
from quorumd.pipeline.tables.history import voters_after
from quorumd.raft.types import Endpoint

ROWS_SHOWN: Final = 20
_STYLE = """
:root { color-scheme: light; --line: #dce1e8; --text: #18202b; --quiet: #566170; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1120px; padding: 22px 20px 40px; background: #f3f5f8; color: var(--text);
  font: 15px/1.45 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
  font-variant-numeric: tabular-nums; }
h1 { font-size: 26px; line-height: 1.2; margin: 0; font-weight: 680; }
h2 { font-size: 15px; font-weight: 650; margin: 0 0 2px; }
p { margin: 0; } .quiet { color: var(--quiet); font-size: 13.5px; }
main { display: grid; gap: 14px; margin-top: 16px; }
section { background: #fff; border: 1px solid var(--line); border-radius: 10px; padding: 14px 16px;
  min-width: 0; }
section > svg { width: 100%; height: auto; display: block; margin-top: 6px; }
svg text { font-family: system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 14px; margin: 0; }
dt { color: var(--quiet); font-size: 13px; } dd { margin: 0; font-size: 20px; font-weight: 640; }
dd small { display: block; font-size: 12.5px; font-weight: 400; color: var(--quiet); }
.scroll { overflow-x: auto; margin-top: 8px; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; }
th { text-align: left; font-weight: 600; color: var(--quiet); white-space: nowrap; }
th, td { padding: 5px 14px 5px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
tr:last-child td { border-bottom: 0; } td.n, th.n { text-align: right; padding-right: 24px; }
.dot { display: inline-block; width: 10px; height: 10px; border-radius: 3px; margin-right: 6px; }
.mark { display: inline-block; border-radius: 5px; padding: 0 7px; font-weight: 600; font-size: 12.5px; }
.good { color: #17774a; background: #e0f3e9; } .bad { color: #b3261e; background: #fce4e2; }
.note { color: #8a5600; background: #fdf0d5; } .plain { color: #2d5bd0; background: #e4ebfb; }
code { font-size: 12.5px; }
"""
_MARKS: Final = {"ADD": "good", "REMOVE": "bad", "UPDATE": "plain"}


def page(facts: ReportFacts, made_at: datetime) -> str:
    """The whole page; needs nothing that is not in it."""
    sections = [
        _tiles(facts),
        _audit(facts.findings),
        _leaders(facts),
        _rate(facts),
        _delay(facts),
        _elections(facts),
        _members(facts),
    ]
    first, last = _time(facts.first_s), _time(facts.last_s)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(facts.folder.name)}: report</title><style>{_STYLE}</style></head><body>\n"
        f"<h1>The replicated log in {escape(facts.folder.name)}</h1>"
        f'<p class="quiet">records from {first} to {last} · made {made_at:%Y-%m-%d %H:%M:%S} · all times '
        f"in UTC</p>\n<main>{''.join(sections)}</main></body></html>\n"
    )


def _tiles(facts: ReportFacts) -> str:
    last = facts.last
    leader = facts.leadership[-1] if facts.leadership else None
    voters = sorted(voter for voter, _ in voters_after(facts.voter_sets))
    begin = facts.files[0].first_offset
    tiles = [
        ("Records", f"{facts.records:,}", f"{facts.control_records:,} of them control records"),
        ("Offsets", f"{begin:,} – {last.end_offset - 1:,}", _completeness(last.complete_from)),
        ("Keys", f"{facts.keys:,}" if facts.state_end else "–", _changes(facts)),
        (
            "Leader at the end",
            f"replica {leader['leader_id']}" if leader else "none seen",
            f"epoch {leader['epoch']}, since offset {leader['from_offset']:,}" if leader else "",
        ),
        ("Voters at the end", str(len(voters)), ", ".join(map(str, voters))),
        (
            "On disk",
            bytes_text(sum(file.size_bytes for file in facts.files)),
            f"{counted(len(facts.files), 'file')}, up to date {_time(last.written_ms / 1000)}",
        ),
    ]
    items = "".join(
        f"<div><dt>{name}</dt><dd>{escape(text)}<small>{escape(small)}</small></dd></div>"
        for name, text, small in tiles
    )
    return f"<section><dl>{items}</dl></section>\n"


def _leaders(facts: ReportFacts) -> str:
    if not facts.leadership:
        return _section("Leaders", "There is no LeaderChange record in the log.", "")
    count = len(facts.leadership)
    text = f"{count:,} epoch{'s' if count > 1 else ''} with a leader. Coloured: it led. Grey: it was a voter."
    return _section("Leaders and voters", text, plots.timeline(facts)) + _section(
        "Epochs", "Each dot is an election won, in its leader's colour.", plots.epochs(facts)
    )


def _elections(facts: ReportFacts) -> str:
    ids = plots.replica_ids(facts)
    rows = [
        [
            f"{row['epoch']}",
            _dot(plots.colour_of(row["leader_id"], ids)) + f"replica {row['leader_id']}",
            f"{row['from_offset']:,}",
            f"{row['to_offset']:,}" if row["to_offset"] is not None else "",
            _time(row["from_time"].timestamp()),
            _lasted(row),
            ", ".join(str(each["id"]) for each in row["granting_voters"] or ()),
        ]
        for row in facts.leadership[: -ROWS_SHOWN - 1 : -1]
    ]
    if not rows:
        return ""
    head = ["epoch#", "leader", "from offset#", "to offset#", "since", "for", "votes of"]
    return _section("Elections", _shown(rows, facts.leadership), _table(head, rows))


def _rate(facts: ReportFacts) -> str:
    if not facts.rate.counts:
        return ""
    peak = max(facts.rate.counts) / facts.rate.width_s
    text = (
        f"By the time that records carry, in steps of {_step(facts.rate.width_s)}; "
        f"at most {peak:,.1f} records/s."
    )
    return _section("Append rate", text, plots.append_rate(facts))


def _delay(facts: ReportFacts) -> str:
    if not facts.arrivals:
        return ""
    last = max(0, facts.arrivals[-1].written_ms - facts.arrivals[-1].newest_ms) / 1000
    text = (
        "For each batch: from the time of its last record until it was in the tables; the last took "
        f"{duration_text(last)}."
    )
    return _section("Lag of the tables", text, plots.delay(facts))


def _members(facts: ReportFacts) -> str:
    rows = [
        [
            f'<span class="mark {_MARKS[row["change"]]}">{row["change"]}</span>',
            f"replica {row['voter_id']}",
            f"<code>{escape(row['storage_id'] or '')}</code>",
            f"{row['offset']:,}",
            _time(row["timestamp"].timestamp()),
            escape(", ".join(_endpoint(each) for each in row["endpoints"] or ())),
        ]
        for row in facts.voter_sets[: -ROWS_SHOWN - 1 : -1]
    ]
    if not rows:
        return _section("Membership", "There is no voter set in the log.", "")
    head = ["change", "voter", "storage id", "offset#", "time", "endpoints"]
    text = f"Changes of the voter set. {_shown(rows, facts.voter_sets)}"
    return _section("Membership", text, _table(head, rows))


def _audit(findings: Sequence[FactRow] | None) -> str:
    if findings is None:
        text = (
            "Not known: make findings with quorumd-pipeline audit --findings, and name them here."
        )
        return _section("Audit", text, "")
    bad = [row for row in findings if row["severity"] != "note"]
    if bad:
        mark = f'<span class="mark bad">{counted(len(bad), "finding")}</span> '
    else:
        mark = '<span class="mark good">sound</span> '
    notes = len(findings) - len(bad)
    text = mark + (
        f"and {counted(notes, 'note')}, such as lag" if notes else "nothing else to note"
    )
    rows = [
        [
            f'<span class="mark {"note" if row["severity"] == "note" else "bad"}">'
            f"{escape(row['kind'])}</span>",
            f"{row['offset']:,}",
            escape(", ".join(row["replicas"] or ())),
            escape(row["what"]),
        ]
        for row in findings[:ROWS_SHOWN]
    ]
    table = _table(["kind", "offset#", "replicas", "what"], rows) if rows else ""
    return f"<section><h2>Audit</h2><p>{text}</p>{table}</section>\n"


def _shown(rows: Sequence[object], of: Sequence[object]) -> str:
    return "Newest first." if len(rows) == len(of) else f"The last {len(rows)}, newest first."


def _section(title: str, text: str, body: str) -> str:
    return f'<section><h2>{title}</h2><p class="quiet">{text}</p>{body}</section>\n'


def _table(head: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells are HTML; a column whose name ends in # is one of numbers."""
    names = list(head)
    kinds = [' class="n"' if name.endswith("#") else "" for name in names]
    top = "".join(
        f"<th{kind}>{name.rstrip('#')}</th>" for name, kind in zip(names, kinds, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(f"<td{kind}>{cell}</td>" for cell, kind in zip(row, kinds, strict=True))
        + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _completeness(complete_from: int) -> str:
    return (
        f"a snapshot up to {complete_from:,}" if complete_from else "from the beginning of the log"
    )


def _changes(facts: ReportFacts) -> str:
    if not facts.state_end:
        return "the table state was not made yet"
    found = facts.changes
    return f"created {found['CREATE']:,}, updated {found['UPDATE']:,}, deleted {found['DELETE']:,}"


def _lasted(row: FactRow) -> str:
    if row["to_time"] is None:
        return "still"
    return duration_text(max(0.0, (row["to_time"] - row["from_time"]).total_seconds()))


def _endpoint(each: FactRow) -> str:
    return str(Endpoint(each["name"], each["host"], each["port"]))


def _dot(colour: str) -> str:
    return f'<span class="dot" style="background: {colour}"></span>'


def _step(seconds: int) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds % size == 0:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def _time(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}"
