"""Instructions per record are compared at the same groups of records; a cell that is worse is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.instruction_counter import perf_count
from bench.instruction_curve import draw
from bench.instruction_figures import (
    FIGURES,
    GROUPS,
    Figure,
    RoleFigure,
    at_usual_groups,
    cost,
    keep,
    last,
    read,
    table,
    worse_cells,
)


def figure(
    commit: str = "0000001",
    *,
    record: float = 80,
    turn: float = 700,
    crowding: float = 1,
    form: str = "pure",
) -> Figure:
    """Leader and follower cost the same; `crowding` 2: twice as many records in a group as usual."""
    cells = {}
    for clients, usual in GROUPS.items():
        group = usual * crowding if clients > 1 else usual
        cells[clients] = dict.fromkeys(
            ("leader", "follower"), RoleFigure(record + turn / group, group)
        )
    return Figure(commit, form, "valgrind", "3.11.7", cells)


def test_the_fit_finds_what_a_record_and_a_turn_cost() -> None:
    for crowding in (1, 0.6, 2):
        assert cost(figure(crowding=crowding).cells, "leader") == pytest.approx((80, 700))


def test_neither_a_record_nor_a_turn_costs_less_than_nothing() -> None:
    falling = {
        1: {"leader": RoleFigure(10, 1)},
        64: {"leader": RoleFigure(100, 30)},
    }
    assert cost(falling, "leader").turn == 0
    steep = {
        1: {"leader": RoleFigure(1000, 1)},
        64: {"leader": RoleFigure(10, 30)},
    }
    assert cost(steep, "leader").record == 0


def test_one_size_of_groups_is_refused() -> None:
    same = {clients: {"leader": RoleFigure(100, 10)} for clients in (1, 16)}
    with pytest.raises(SystemExit, match="groups of different sizes"):
        cost(same, "leader")


def test_cells_are_compared_as_if_their_groups_had_been_the_usual_ones() -> None:
    usual = at_usual_groups(figure().cells, "follower")
    assert at_usual_groups(figure(crowding=0.5).cells, "follower") == pytest.approx(usual)
    assert worse_cells(figure("0000002", crowding=0.5), figure()) == []


@pytest.mark.parametrize(
    ("record", "turn", "cells"),
    [
        (80, 700, []),
        (83, 700, []),
        (90, 700, [(16, 143.6), (64, 99.4), (256, 86.4)]),
        (80, 800, [(1, 780.0), (16, 143.6)]),
        (40, 800, [(1, 780.0)]),
        (20, 20, []),
    ],
)
def test_a_cell_that_is_more_than_5_percent_worse_is_named(
    record: float, turn: float, cells: list[tuple[int, float]]
) -> None:
    found = worse_cells(figure("0000002", record=record, turn=turn), figure())
    expected = [
        (f"{role}, {clients} clients: ", f"against {old:.1f} of 0000001")
        for role in ("leader", "follower")
        for clients, old in cells
    ]
    assert len(found) == len(expected), found
    for line, (begin, end) in zip(found, expected, strict=True):
        assert line.startswith(begin)
        assert line.endswith(end)


def test_figures_are_kept_in_order_and_those_of_a_commit_replaced(tmp_path: Path) -> None:
    file = tmp_path / "figures.jsonl"
    first, second, compiled = figure("a"), figure("b", record=70), figure("a", form="compiled")
    for each in (first, second, compiled):
        keep(each, file)
    assert read(file) == [first, second, compiled]
    better = figure("a", record=60)
    keep(better, file)
    assert read(file) == [better, second, compiled]
    assert last(read(file), figure("c")) == second
    assert last(read(file), figure("b")) == better
    assert last(read(file), figure("a", form="compiled")) is None


def test_what_perf_counts_is_read_and_what_it_cannot_count_is_an_error() -> None:
    assert perf_count("123456;;instructions:u;2000;100.00;;\n") == 123456
    with pytest.raises(SystemExit, match="counted nothing"):
        perf_count("<not supported>;;instructions:u;0;100.00;;\n")


@pytest.mark.long
def test_the_kept_figures_can_be_read_shown_and_drawn(tmp_path: Path) -> None:
    figures = read()
    assert figures
    assert FIGURES.read_text().count("\n") == len(figures)
    for each in figures:
        assert each.commit in table(each)
    draw(figures, tmp_path / "curve.svg")
    assert figures[0].commit in (tmp_path / "curve.svg").read_text()
