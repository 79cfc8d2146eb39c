"""What `make test` runs a second time, seen by a project whose tests fail as they are told to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.live

ROOT = Path(__file__).parents[2]

FAILS_ONCE = """
from pathlib import Path

def test_fails_once():
    before = Path(__file__).with_suffix(".before")
    existed = before.exists()
    before.touch()
    assert existed
"""
FAILS = """
def test_fails():
    assert False
"""
PASSES = """
def test_passes():
    pass
"""
CANNOT_BE_READ = "def test_("


def python_in(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`python -m ARGUMENTS` in the project's folder, with the modules of this tree."""
    return subprocess.run(
        (sys.executable, "-m", *arguments),
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def run_twice(project: Path, *sources: str) -> tuple[int, subprocess.CompletedProcess[str]]:
    """The exit code of a whole run of a project with these files of tests, and what followed it."""
    (project / "pytest.ini").touch()
    for number, source in enumerate(sources):
        (project / f"test_{number}.py").write_text(source)
    first = python_in(project, "pytest", "--cache-clear").returncode
    return first, python_in(project, "tests.support.second_run", str(first))


def test_who_passes_alone_is_named_and_stops_nobody(tmp_path: Path) -> None:
    first, second = run_twice(tmp_path, FAILS_ONCE, FAILS_ONCE, PASSES)
    assert (first, second.returncode) == (1, 0), second.stdout
    assert "2 passed" in second.stdout
    _, passed_alone = second.stdout.split("Passed alone.")
    assert "test_0.py::test_fails_once\n" in passed_alone
    assert "test_1.py::test_fails_once\n" in passed_alone


def test_who_fails_again_has_failed(tmp_path: Path) -> None:
    first, second = run_twice(tmp_path, FAILS_ONCE, FAILS, PASSES)
    assert (first, second.returncode) == (1, 1), second.stdout
    assert "1 failed, 1 passed" in second.stdout
    assert "Passed alone" not in second.stdout


def test_three_are_no_accident(tmp_path: Path) -> None:
    first, second = run_twice(tmp_path, FAILS_ONCE, FAILS_ONCE, FAILS_ONCE)
    assert (first, second.returncode, second.stdout) == (1, 1, "")


def test_a_run_that_did_not_come_to_its_end_stays_one(tmp_path: Path) -> None:
    first, second = run_twice(tmp_path, PASSES, CANNOT_BE_READ)
    assert (first, second.returncode, second.stdout) == (2, 2, "")


def test_what_failed_in_an_earlier_run_is_not_asked_again(tmp_path: Path) -> None:
    run_twice(tmp_path, FAILS_ONCE, FAILS_ONCE, FAILS_ONCE)
    first, second = run_twice(tmp_path, FAILS_ONCE, FAILS_ONCE, FAILS_ONCE, FAILS_ONCE)
    assert (first, second.returncode) == (1, 0), second.stdout
    assert "1 passed" in second.stdout
