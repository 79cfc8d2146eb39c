"""`python -m simulation --edges`: mutants of a small made-up module, and one of a rule that runs catch."""

from __future__ import annotations

import gc
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner

from simulation.edges.command import edges
from simulation.edges.forked import ChildFailed, ChildStopped, in_child
from simulation.edges.install import Functions
from simulation.edges.lines import recorded
from simulation.edges.modules import ModuleSource, modules_in_scope
from simulation.edges.mutants import compiled, mutants_of
from simulation.edges.report import (
    DOCUMENT,
    all_explained,
    edges_json,
    edges_text,
    is_explained,
)
from simulation.edges.results import Results
from simulation.edges.trials import Outcome, Trial

ROOT = Path(__file__).resolve().parents[2]

MADE_UP = """
LIMIT = 10


class Counter:
    def __init__(self):
        self.count = 0
        self.effects = []

    def add(self, number):
        assert number > 0
        if number < LIMIT and self.count >= 0:
            self.count += number
            self.persist()
            self.send(f"{number - 1}")

    def persist(self):
        self.effects.append("persist")

    def send(self, text):
        self.effects.append("send")


def smallest(numbers):
    return min(numbers)


def unused(number):
    return number + 1
"""
TESTS = """
from made_up import Counter, smallest

def test_add():
    counter = Counter()
    counter.add(9)
    counter.add(10)
    assert counter.count == 9
    assert counter.effects == ["persist", "send"]

def test_smallest():
    assert smallest([1, 2]) == 1
"""
TRIALS = """
import json, sys
from pathlib import Path
import made_up
from simulation.edges.modules import ModuleSource, modules_in_scope
from simulation.edges.mutants import mutants_of
from simulation.edges.trials import Trial, Trials

here = Path(made_up.__file__).parent
module = ModuleSource("made_up", made_up.__file__, Path(made_up.__file__).read_text(), str(here))
trials = [Trial(mutant, module) for mutant in mutants_of(module.name, module.source)]
quorum = modules_in_scope(["raft/quorum.py"])[0]
rule = ModuleSource(quorum.name, quorum.filename, quorum.source, str(here))
is_won = [each for each in mutants_of(rule.name, rule.source) if each.function == "is_won"]
trials += [Trial(mutant, rule) for mutant in is_won]
outcomes = {}

def on_outcome(trial, outcome):
    outcomes[trial.mutant.key] = [outcome.test, outcome.runs, outcome.differed, outcome.violated]

Trials(trials, [module, rule], range(3, 5), on_outcome, lambda phase: None, cache=here / "cache").run()
(here / "outcomes.json").write_text(json.dumps(outcomes))
"""


def keys(source: str) -> list[str]:
    return [mutant.key for mutant in mutants_of("m", source)]


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    path = tmp_path / "made_up.py"
    path.write_text(MADE_UP)
    module = ModuleType("made_up")
    exec(compile(MADE_UP, str(path), "exec", dont_inherit=True), vars(module))
    return module


def mutate(module: ModuleType, what: str) -> None:
    """Put one mutant of the made-up module into its functions."""
    filename = module.Counter.add.__code__.co_filename
    (mutant,) = [each for each in mutants_of("m", MADE_UP) if what in each.key]
    assert Functions({filename}).replace(compiled(MADE_UP, filename, mutant.number)) == 1


# -- which mutants there are


@pytest.mark.parametrize(
    ("statement", "mutants"),
    [
        ("return a >= b", ["a >= b -> a > b", "a >= b -> a == b"]),
        ("return a < b", ["a < b -> a <= b", "a < b -> a != b"]),
        ("return a is None", ["a is None -> a is not None"]),
        ("return a in b", ["a in b -> a not in b"]),
        ("return a and b", ["a and b -> a or b", "a and b -> b", "a and b -> a"]),
        ("return not a", ["not a -> a"]),
        ("return min(a, b)", ["min(a, b) -> max(a, b)"]),
        ("return a[0]", ["a[0] -> a[1]"]),
        ("return a + 1", ["a + 1 -> a - 1", "a + 1 -> a + 2", "a + 1 -> a + 0"]),
        (
            "return a or -1",
            ["a or -1 -> a and -1", "a or -1 -> -1", "a or -1 -> a", "a or -1 -> a or 0"],
        ),
        ("return a.f(b=True)", ["a.f(b=True) -> a.f(b=False)"]),
        ("return b if a() else a", ["a() -> not a()"]),
        ("a.b = b", ["a.b = b -> left out"]),
        ("raise a", ["raise a -> left out"]),
    ],
)
def test_each_edge_of_a_statement_has_its_mutants(statement: str, mutants: list[str]) -> None:
    assert keys(f"def f(a, b):\n    {statement}\n") == [f"m f: {each}" for each in mutants]


@pytest.mark.parametrize(
    "statement",
    [
        "assert a > b",
        "log.info(a > b)",
        "return f'{a > b} {a + 1}'",
        "raise Wrong(a + 1)",
        "require(a, 'text')",
        "c: int = a",
    ],
)
def test_texts_log_lines_and_assertions_have_none(statement: str) -> None:
    found = keys(f"def f(a: 1 + 1, b=2 + 2) -> 3:\n    {statement}\n")
    assert [key for key in found if "left out" not in key] == []
    assert (found == []) is not statement.startswith("raise")


def test_statements_that_act_trade_their_places() -> None:
    source = "def f(core):\n    core.voted = 1\n    core.persist()\n    core.a.append(2)\n    core.send()\n"
    assert [key for key in keys(source) if "other way" in key] == [
        "m f: core.voted = 1; core.persist() -> the other way round"
    ]


def test_mutants_that_read_alike_are_counted_and_all_of_them_compile() -> None:
    source = "def f(a):\n    if a > 1:\n        return a > 1\n    return [b for b in a if b]\n"
    found = mutants_of("m", source)
    assert [each.key for each in found if "a >= 1" in each.key] == [
        "m f: a > 1 -> a >= 1",
        "m f: a > 1 -> a >= 1 #2",
    ]
    codes = {compiled(source, "m.py", each.number).co_consts[0].co_code for each in found}
    assert compiled(source, "m.py", None) == compile(source, "m.py", "exec", dont_inherit=True)
    assert len(codes) > 3


@pytest.mark.sim
def test_every_mutant_of_the_rules_compiles_and_has_a_name_of_its_own() -> None:
    for module in modules_in_scope(["raft/quorum.py", "high_watermark", "raft/voter_changes"]):
        found = mutants_of(module.name, module.source)
        assert len({mutant.key for mutant in found}) == len(found)
        for mutant in found:
            compiled(module.source, module.filename, mutant.number)


@pytest.mark.long
def test_every_mutant_that_the_document_names_exists() -> None:
    (listed,) = re.findall(r"^```text$(.*?)^```$", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE)
    named = [line for line in listed.splitlines() if line and not line.startswith(" ")]
    keys = {
        mutant.key
        for module in modules_in_scope()
        for mutant in mutants_of(module.name, module.source)
    }
    assert len(named) > 100
    assert [key for key in named if key not in keys] == []
    assert len(set(named)) == len(named)


# -- putting one in


def test_a_mutant_is_in_every_function_that_is_referred_to(made_up: ModuleType) -> None:
    add = made_up.Counter().add
    mutate(made_up, "number < LIMIT -> number <= LIMIT")
    add(10)
    assert add.__self__.count == 10


def test_a_mutant_is_in_functions_that_are_frozen_too(made_up: ModuleType) -> None:
    """As they are in a test run once all is collected: the garbage collector does not tell of them."""
    gc.freeze()
    counter = made_up.Counter()
    mutate(made_up, "number < LIMIT -> number <= LIMIT")
    counter.add(10)
    assert counter.count == 10


def test_a_nested_function_is_replaced_with_its_outer_one(tmp_path: Path) -> None:
    source = "def outer(a):\n    return lambda b: a < b\n"
    names: dict[str, Any] = {}
    exec(compile(source, "nested.py", "exec", dont_inherit=True), names)
    mutant = mutants_of("m", source)[0]
    assert Functions({"nested.py"}).replace(compiled(source, "nested.py", mutant.number)) == 1
    assert names["outer"](1)(1)


def test_the_lines_of_what_was_executed_are_recorded(made_up: ModuleType) -> None:
    filename = made_up.Counter.add.__code__.co_filename
    with recorded({filename}) as lines:
        made_up.Counter().add(10)
    found = [MADE_UP.splitlines()[line - 1].strip() for line in sorted(lines[filename])]
    assert "if number < LIMIT and self.count >= 0:" in found
    assert "self.count += number" not in found
    assert "return min(numbers)" not in found


# -- children


def test_a_child_changes_nothing_here_and_says_what_came_of_it() -> None:
    changed: list[int] = []
    assert in_child(lambda: [changed.append(1), len(changed)], 5, 60) == [None, 1]
    assert changed == []


@pytest.mark.long
def test_a_child_that_does_not_end_is_stopped() -> None:
    def spin() -> None:
        while True:
            pass

    with pytest.raises(ChildStopped):
        in_child(spin, 0.1, 60)


def test_what_a_child_raises_is_raised_here() -> None:
    with pytest.raises(ChildFailed, match="ZeroDivisionError"):
        in_child(lambda: 1 / 0, 5, 60)


# -- results


def test_what_was_caught_stays_so_and_a_survivor_is_tried_again_after_a_change(
    tmp_path: Path,
) -> None:
    (tmp_path / "test_it.py").write_text("")
    module = ModuleSource("m", "m.py", "def f(a):\n    return a > 1\n", str(tmp_path))
    caught, survives, *_ = [Trial(each, module) for each in mutants_of("m", module.source)]
    results = Results(tmp_path / "results.jsonl", [module], range(3))
    results.add(caught, Outcome(test="test_it"))
    results.add(survives, Outcome(runs=3, differed=1))

    again = Results(tmp_path / "results.jsonl", [module], range(3))
    assert again.of(caught) == Outcome(test="test_it")
    assert again.of(survives) == Outcome(runs=3, differed=1)
    assert again.of(caught, reached=True) is None

    (tmp_path / "test_it.py").write_text("# another test")
    again = Results(tmp_path / "results.jsonl", [module], range(3))
    assert again.of(caught) == Outcome(test="test_it")
    assert again.of(survives) is None
    assert again.with_runs(survives).simulated == Outcome(runs=3, differed=1)

    other_runs = Results(tmp_path / "results.jsonl", [module], range(4))
    assert other_runs.with_runs(survives).simulated is None
    changed = ModuleSource("m", "m.py", module.source + "\n", str(tmp_path))
    assert again.of(Trial(caught.mutant, changed)) is None


def test_the_report_counts_and_tells_survivors_without_a_reason() -> None:
    source = "def f(a):\n    return a > 1 and a\n"
    module = ModuleSource("m", "m.py", source, "")
    trials = [Trial(each, module) for each in mutants_of("m", source)]
    outcomes = [Outcome(test="t"), Outcome(seed=3, differed=1, runs=1), Outcome(runs=4, differed=2)]
    tried = list(zip(trials, outcomes, strict=False))
    text = edges_text(tried, 2)
    assert re.search(r"^m +3 +2 +1 +1 +1 +66.7%$", text, re.MULTILINE)
    assert "2 were not tried" in text
    assert f"     2  {trials[2].mutant.key}  (2 of 4 runs differ)" in text
    assert not all_explained(tried)
    assert all_explained(tried[:2])
    assert edges_json(tried, 2)["mutants"][1]["seed"] == 3
    assert is_explained(trials[2], f"words\n{trials[2].mutant.key}\n    its reason\n")
    assert not is_explained(trials[2], f"words\n{trials[2].mutant.key} #2\n")


@pytest.mark.pure
@pytest.mark.sim
def test_mutants_are_caught_by_tests_and_by_runs_or_survive(tmp_path: Path) -> None:
    (tmp_path / "made_up.py").write_text(MADE_UP)
    (tmp_path / "test_made_up.py").write_text(TESTS)
    subprocess.run(
        [sys.executable, "-c", TRIALS],
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}", "HOME": str(tmp_path)},
        cwd=ROOT,
        check=True,
        timeout=100,
    )
    outcomes = json.loads((tmp_path / "outcomes.json").read_text())
    add, smallest = "test_made_up.py::test_add", "test_made_up.py::test_smallest"
    caught = {
        "number < LIMIT -> number <= LIMIT": add,
        "self.persist() -> left out": add,
        "self.persist(); self.send": add,
        "min(numbers) -> max(numbers)": smallest,
    }
    for what, test in caught.items():
        (outcome,) = [outcome for key, outcome in outcomes.items() if what in key]
        assert outcome == [test, None, 0, ""], what
    survivors = [key for key, outcome in outcomes.items() if outcome[0] is None and not outcome[3]]
    assert "made_up unused: number + 1 -> number - 1" in survivors
    assert outcomes["made_up unused: number + 1 -> number - 1"] == [None, 0, 0, ""]
    assert any("self.count >= 0" in key for key in survivors)
    test, runs, differed, violated = outcomes[
        "raft/quorum.py is_won: granted >= majority(voters) -> granted > majority(voters)"
    ]
    assert (test, runs > 0, differed > 0, bool(violated)) == (None, True, True, True)


def test_the_command_refuses_what_it_does_not_know() -> None:
    for words, told in (
        (["--only", "nothing"], "no module with rules is called 'nothing'"),
        (["--shard", "5/4"], "give a number and a count"),
        (["--seeds", "x"], "give A..B"),
    ):
        result = CliRunner().invoke(edges, words)
        assert result.exit_code == 2
        assert told in result.output
