"""The tests that docs/testing.md shows pass, and its programs are typed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from quorumd.testing import AsyncLocalQuorum, LocalQuorum
from tests.docs.test_commands import blocks_of, is_python
from tests.testing.test_pytest_plugin import ROOT, run_pytest

DOCUMENT = ROOT / "docs/testing.md"


def test_the_worker_of_the_document_survives_the_loss_of_its_leader(tmp_path: Path) -> None:
    blocks = ["\n".join(lines) for lines in blocks_of(DOCUMENT)]
    (example,) = (block for block in blocks if "def test" in block)
    (tmp_path / "test_worker.py").write_text(example)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    said = run_pytest(tmp_path)
    assert "1 passed" in said, said


def test_its_programs_are_typed(tmp_path: Path) -> None:
    programs = [block for block in blocks_of(DOCUMENT) if is_python(block)]
    assert len(programs) == 4
    paths = [tmp_path / f"program_{number}.py" for number in range(4)]
    for path, program in zip(paths, programs, strict=True):
        path.write_text("\n".join([*program, ""]))
    options = ["--strict", "--config-file=", "--ignore-missing-imports", "--follow-imports=silent"]
    command = [sys.executable, "-m", "mypy", *options, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_everything_that_can_be_done_is_in_the_document() -> None:
    text = DOCUMENT.read_text()
    public = {name for name in vars(LocalQuorum) if not name.startswith("_")}
    assert {name for name in public if f"`{name}" not in text and f".{name}" not in text} == set()
    without_waiting = {"server", "running", "folder"}
    twin = {name for name in vars(AsyncLocalQuorum) if not name.startswith("_")}
    assert public - twin == without_waiting, "these are asked of `local`"
    assert twin <= public
