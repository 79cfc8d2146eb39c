"""What bench/README.md tells to run: there are such programs and options, and they run as written."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bench.common import ROOT
from tests.docs.test_commands import blocks_of

README = ROOT / "bench/README.md"
COMMANDS = [line for block in blocks_of(README) for line in block]
NOT_HERE = {
    "python -m bench.run_instructions": "takes minutes; tests/bench/test_instructions.py",
    ".cache/bench/loadgen ": "needs a node on that port; tests/bench/test_loadgen.py",
}
"""Beginnings of lines that are not run, and why."""
RUN = [line for line in COMMANDS if not line.startswith(tuple(NOT_HERE))]


def run(command: str, folder: Path) -> str:
    words = command.split()
    assert words[:2] == ["python", "-m"], command
    done = subprocess.run(
        [sys.executable, *words[1:]],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}"
    return done.stdout


@pytest.mark.live
@pytest.mark.parametrize(
    "module", sorted(set(re.findall(r"python -m (bench\.\w+)", README.read_text())))
)
def test_programs_and_options_exist(module: str, tmp_path: Path) -> None:
    known = run(f"python -m {module} --help", tmp_path)
    for command in COMMANDS:
        if f"{module} " in f"{command} ":
            for option in re.findall(r"--[\w-]+", command):
                assert option in known, command


@pytest.mark.live
@pytest.mark.timeout(600)
@pytest.mark.skipif(
    shutil.which("cc") is None and shutil.which("gcc") is None, reason="no C compiler"
)
@pytest.mark.parametrize("command", RUN)
def test_commands_run_as_they_are_written(command: str, tmp_path: Path) -> None:
    assert RUN
    if "--against HEAD" in command and not (ROOT / ".git").exists():
        pytest.skip("this is a copy of a checkout, without its history")
    run(command, tmp_path)
