"""The kept figures of `bench.run_instructions`: one line of JSON for each commit and form.

A cell holds thousand instructions per record of the leader and of a follower (the mean of both), and how many
records they synced at a time. Groups differ from run to run, and a turn costs far more than a record; so
cells are compared at the same group sizes, by what a record and a turn cost: a line fitted to the cells.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

FIGURES = Path(__file__).with_name("figures") / "instructions.jsonl"
CLIENTS = (1, 16, 64, 256)
ROLES = ("leader", "follower")
GROUPS = {1: 1.0, 16: 11.0, 64: 36.0, 256: 110.0}
"""Records per sync at full speed on two cores, by number of clients."""
WORSE = 0.05


class RoleFigure(NamedTuple):
    """The instructions of one role in one cell."""

    per_record: float
    """Thousand instructions."""
    group: float
    """Records per sync of a node of this role."""


Cells = Mapping[int, Mapping[str, RoleFigure]]


class Figure(NamedTuple):
    """The instructions of one commit."""

    commit: str
    form: str
    """`pure` or `compiled`."""
    counter: str
    python: str
    cells: Cells

    @property
    def kind(self) -> tuple[str, str, str]:
        """Only figures of one kind are compared."""
        return self.form, self.counter, self.python


class Cost(NamedTuple):
    """Thousand instructions, by the line that was fitted to a role's cells."""

    record: float
    turn: float


def cost(cells: Cells, role: str) -> Cost:
    """`per_record = record + turn / group`, with the least relative error over the cells.

    Neither is less than 0.
    """
    a = b = c = d = e = 0.0
    for roles in cells.values():
        found = roles[role]
        x, y = 1 / found.per_record, 1 / found.group / found.per_record
        a, b, c, d, e = a + x * x, b + x * y, c + y * y, d + x, e + y
    determinant = a * c - b * b
    if determinant < 1e-9 * a * c:
        raise SystemExit("a fit needs cells with groups of different sizes")
    record, turn = (d * c - b * e) / determinant, (a * e - b * d) / determinant
    if turn < 0:
        return Cost(d / a, 0.0)
    return Cost(record, turn) if record >= 0 else Cost(0.0, e / c)


def at_usual_groups(cells: Cells, role: str) -> dict[int, float]:
    """Thousand instructions per record of each cell, had its groups been those of `GROUPS`."""
    turn = cost(cells, role).turn
    return {
        clients: roles[role].per_record + turn * (1 / GROUPS[clients] - 1 / roles[role].group)
        for clients, roles in cells.items()
    }


def worse_cells(now: Figure, before: Figure) -> list[str]:
    """A line for each cell that has become more than 5 % worse."""
    lines = []
    for role in ROLES:
        old = at_usual_groups(before.cells, role)
        for clients, new in at_usual_groups(now.cells, role).items():
            if clients in old and new > old[clients] * (1 + WORSE):
                lines.append(
                    f"{role}, {clients} clients: {new:.1f} thousand instructions per record,"
                    f" {new / old[clients] - 1:+.1%} against {old[clients]:.1f} of {before.commit}"
                )
    return lines


def read(path: Path = FIGURES) -> list[Figure]:
    """All kept figures, oldest first."""
    return [_parse(line) for line in path.read_text().splitlines() if line]


def last(figures: Sequence[Figure], now: Figure) -> Figure | None:
    """The latest figure of another commit that can be compared with this one."""
    same = [each for each in figures if each.kind == now.kind and each.commit != now.commit]
    return same[-1] if same else None


def keep(figure: Figure, path: Path = FIGURES) -> None:
    """Adds it; one of the same commit and kind is replaced where it stands."""
    figures = read(path) if path.exists() else []
    named = [(each.commit, each.kind) for each in figures]
    if (figure.commit, figure.kind) in named:
        figures[named.index((figure.commit, figure.kind))] = figure
    else:
        figures.append(figure)
    path.write_text("".join(_line(each) + "\n" for each in figures))


def table(figure: Figure) -> str:
    """Cells as measured, at the usual groups, and the fitted costs."""
    lines = [
        f"{figure.commit} ({figure.form}, {figure.counter}, Python {figure.python}):"
        " thousand instructions in user space per record",
        f"{'clients':>8}" + "".join(f"{role:>10}   group   usual" for role in ROLES),
    ]
    usual = {role: at_usual_groups(figure.cells, role) for role in ROLES}
    for clients, roles in sorted(figure.cells.items()):
        columns = (
            f"{roles[role].per_record:10.1f}{roles[role].group:8.1f}{usual[role][clients]:8.1f}"
            for role in ROLES
        )
        lines.append(f"{clients:8}" + "".join(columns))
    for role in ROLES:
        fitted = cost(figure.cells, role)
        lines.append(f"{role}: {fitted.record:.1f} per record, {fitted.turn:.1f} per turn")
    return "\n".join(lines)


def _parse(line: str) -> Figure:
    found = json.loads(line)
    cells = {
        int(clients): {role: RoleFigure(*numbers) for role, numbers in roles.items()}
        for clients, roles in found.pop("cells").items()
    }
    return Figure(**found, cells=cells)


def _line(figure: Figure) -> str:
    return json.dumps(figure._asdict())
