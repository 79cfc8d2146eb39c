"""`quorumd-pipeline` where quorumd was installed without its extra `spark`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TABLES = ["-b", "localhost:1", "--output", "tables"]
ARGUMENTS = {
    "run": TABLES,
    "batch": TABLES,
    "audit": ["a", "b"],
    "metadata": ["a"],
    "state": ["a"],
    "report": ["a"],
}
WITHOUT = """\
import sys
sys.modules.update(dict.fromkeys(("numpy", "pyarrow", "pyspark")))
from quorumd.pipeline.cli import main
main()
"""


@pytest.mark.live
@pytest.mark.parametrize("command", sorted(ARGUMENTS))
def test_a_command_says_what_to_install(command: str, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, command, *ARGUMENTS[command]],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: this needs more packages (")
    assert line.endswith("): pip install 'quorumd[spark]'")
