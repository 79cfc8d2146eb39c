"""Every Python call of every thread is counted, by function; instructions if that was asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench import call_counter
from bench.run_calls import by_module

PROGRAM = """
import signal, sys, threading

def once():
    return sys.argv[1]

def many():
    for _ in range(3):
        once()

many()
thread = threading.Thread(target=many)
thread.start()
thread.join()
print(once(), flush=True)
signal.raise_signal(signal.SIGUSR2)
"""


@pytest.mark.live
@pytest.mark.parametrize("instructions", ["", "1"])
def test_calls_of_all_threads_are_counted_by_function(tmp_path: Path, instructions: str) -> None:
    tree, folder = tmp_path / "tree", tmp_path / "counts"
    tree.mkdir()
    folder.mkdir()
    (tree / "program.py").write_text(PROGRAM)
    command = [
        sys.executable,
        call_counter.__file__,
        str(folder),
        str(tree),
        "program",
        "an argument",
    ]
    done = subprocess.run(
        command,
        env={**os.environ, call_counter.COUNT_INSTRUCTIONS: instructions},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("an argument\n", "")
    (written,) = folder.iterdir()
    counts = json.loads(written.read_text())
    assert counts["program.py:once"][0] == 7
    assert counts["program.py:many"][0] == 2
    assert bool(counts["program.py:once"][1]) == bool(instructions)
    assert not any(function.endswith("is_relative_to") for function in counts), "it counts itself"


def test_calls_are_summed_by_file() -> None:
    counts = {
        "quorumd/raft/core.py:a": (1, 0),
        "quorumd/raft/core.py:b": (2, 9),
        "uuid.py:c": (4, 0),
    }
    assert by_module(counts) == {"raft/core.py": 3, "uuid.py": 4}
