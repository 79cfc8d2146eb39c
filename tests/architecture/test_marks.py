"""What the marks promise: a test without one of them starts nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.forked import ForkedNode

PROGRAM = Path(sys.executable).with_name("quorumd")


@pytest.mark.parametrize(
    ("program", "marks"),
    [
        ("quorumd", "live"),
        ("quorumctl", "live"),
        ("java", "java or spark"),
        ("chromium", "browser"),
        ("git", "live, or long"),
        ("python3.11", "live, or long"),
        ("sh", "live, or long"),
    ],
)
def test_a_test_without_its_mark_starts_no_program(program: str, marks: str) -> None:
    with pytest.raises(AssertionError, match=f"who starts {program} is marked {marks}"):
        subprocess.run([program, "--help"], check=False)


def test_a_test_without_its_mark_starts_no_node(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="who starts node is marked live"):
        ForkedNode(tmp_path / "node.yaml", tmp_path / "node.log")


@pytest.mark.live
def test_a_test_with_its_mark_does() -> None:
    assert subprocess.run([PROGRAM, "--help"], check=False, capture_output=True).returncode == 0
