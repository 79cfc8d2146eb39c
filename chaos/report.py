"""The report of a chaos run, as Markdown: what was done, what clients had of it, and what was found."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from chaos.verdict import Verdict

FINDINGS_SHOWN = 50


@dataclass(slots=True)
class Story:
    """Events of a run: seconds since its begin, by the clock of the run, and a line."""

    lines: list[tuple[float, str]] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)


def render(
    story: Story, verdict: Verdict, *, title: str, begin_ns: int, log_files: list[Path]
) -> str:
    """All of it; findings first."""
    findings = [*story.findings, *verdict.violations]
    parts = [f"# {title}\n"]
    if findings:
        shown = "".join(f"- {finding}\n" for finding in findings[:FINDINGS_SHOWN])
        more = len(findings) - FINDINGS_SHOWN
        parts.append(
            f"**{len(findings):,} findings**\n\n{shown}"
            + (f"- and {more:,} more\n" if more > 0 else "")
        )
    else:
        parts.append(f"**Nothing found.** {verdict.records:,} records are committed.\n")
    if verdict.unchecked:
        parts.append(
            f"{verdict.unchecked:,} acknowledged records are not checked: the nodes had deleted them, behind "
            "a snapshot, before any reader came by.\n"
        )
    parts.append("## Faults and operations\n\n| | times |\n|---|---|")
    parts[-1] += "".join(f"\n| {name} | {count} |" for name, count in sorted(story.faults.items()))
    parts.append(
        "\n## Clients\n\n| client | appended | acknowledged | failed | read | errors |\n"
        "|---|---|---|---|---|---|"
    )
    for name, counts in sorted(verdict.clients.items()):
        errors = ", ".join(f"{kind} {count}" for kind, count in sorted(counts.errors.items()))
        parts[-1] += (
            f"\n| {name} | {counts.invoked:,} | {counts.acknowledged:,} | {counts.failed:,} "
            f"| {counts.read:,} | {errors or '-'} |"
        )
    parts.append(
        "\n## The longest times without an acknowledgement\n\n| from | seconds |\n|---|---|"
    )
    for length_ns, at_ns in verdict.gaps:
        parts[-1] += f"\n| {_clock((at_ns - begin_ns) / 1e9)} | {length_ns / 1e9:.1f} |"
    parts.append("\n## What happened\n")
    parts.append("\n".join(f"    {_clock(at_s)}  {line}" for at_s, line in story.lines))
    parts.append("\nLogs: " + ", ".join(map(str, log_files)))
    return "\n".join(parts) + "\n"


def _clock(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
