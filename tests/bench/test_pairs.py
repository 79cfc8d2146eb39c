"""Two builds are judged by the ratios of their pairs, not by medians of different minutes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench.builds import build
from bench.common import ROOT
from bench.pairs import Pair, Spread, verdict


def pairs(*rates: tuple[float, float], other: float = 0.0) -> list[Pair]:
    return [
        Pair(
            *(
                {"records_per_s": rate, "cores_other": other, "cores_stolen": 0.0}
                for rate in (now, before)
            )
        )
        for now, before in rates
    ]


def test_a_slow_minute_that_both_had_changes_nothing() -> None:
    found = verdict(pairs((110, 100), (11, 10), (220, 200), (33, 30), (1.1, 1)))
    assert found == "x 1.100 (1.100 to 1.100, 5 pairs): faster"


@pytest.mark.parametrize(
    ("rates", "word"),
    [
        (((9, 10), (8, 10), (12, 10), (9, 10)), "slower"),
        (((9, 10), (11, 10), (12, 10), (8, 10)), "no difference seen"),
        (((9, 10),), "slower"),
    ],
)
def test_quartiles_on_both_sides_of_one_say_nothing(
    rates: tuple[tuple[float, float], ...], word: str
) -> None:
    assert verdict(pairs(*rates)).endswith(word)


def test_a_machine_that_others_use_is_named() -> None:
    assert verdict(pairs((11, 10), (11, 10), other=0.3)).endswith(
        "faster, on a machine that is not quiet"
    )


def test_quartiles() -> None:
    assert Spread.of([3, 1, 2, 5, 4]) == (2, 3, 4)


@pytest.mark.long
def test_what_a_python_has_installed_is_named_by_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "quorumd.py").write_text("raise ImportError('of PYTHONPATH')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with build(sys.executable) as installed, build() as own:
        assert installed.name.partition("-")[0] == own.name.partition("-")[0]
        assert installed.command[0] == sys.executable
        assert not installed.environ["PYTHONPATH"]


@pytest.mark.live
def test_a_build_is_this_tree_or_another_folder_and_nothing_else_is() -> None:
    with build() as own, build(str(ROOT)) as same:
        assert own.command == same.command
        assert own.environ == same.environ
        assert own.form in {"pure", "compiled"}
    with pytest.raises(SystemExit, match="git rev-parse"), build("no-such-commit"):
        pass
