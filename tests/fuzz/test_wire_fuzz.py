"""A short run of the coverage-guided fuzzer, where atheris is installed."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

FUZZER = Path(__file__).with_name("fuzz_wire.py")


@pytest.mark.long
@pytest.mark.skipif(find_spec("atheris") is None, reason="atheris is not installed")
def test_a_short_fuzzing_run_finds_nothing(tmp_path):
    run = subprocess.run(
        [sys.executable, str(FUZZER), "-runs=20000", "-max_len=300", "-seed=1"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert " cov: " in run.stderr, "nothing is instrumented: inputs are not guided by coverage"
