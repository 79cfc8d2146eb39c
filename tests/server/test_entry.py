"""Ctrl-C while `quorumd` is loaded, or runs: the interrupt comes with the import of a module."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, signal, sys

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == interrupting:
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, getattr(signal, sys.argv.pop()))
interrupting = sys.argv.pop()
sys.meta_path.insert(0, Interrupts())
from quorumd.server.entry import main
main()
"""


@pytest.mark.live
@pytest.mark.parametrize(
    ("handler", "code", "out"),
    [("default_int_handler", 130, ""), ("SIG_IGN", 0, "quorumd, version ")],
)
def test_it_ends_without_a_word_unless_a_shell_has_ctrl_c_ignored(
    handler: str, code: int, out: str
) -> None:
    words = [sys.executable, "-c", PROGRAM, "--version", "click", handler]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout[: len("quorumd, version ")], done.stderr) == (
        code,
        out,
        "",
    )


@pytest.mark.live
@pytest.mark.parametrize("command", [["restore", "backup"], ["demo"], ["random-uuid"]])
def test_a_command_that_is_interrupted_has_not_failed(command: list[str], tmp_path: Path) -> None:
    modules = {
        "restore": "quorumd.server.admin.restore",
        "demo": "quorumd.server.demo",
        "random-uuid": "quorumd.storage.meta_properties",
    }
    words = [sys.executable, "-c", PROGRAM, *command, modules[command[0]], "default_int_handler"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
