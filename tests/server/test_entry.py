"""Ctrl-C while `quorumd` is loaded: the interrupt comes with the import of its first library."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import os, signal, sys

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, getattr(signal, sys.argv.pop()))
sys.meta_path.insert(0, Interrupts())
from quorumd.server.entry import main
main()
"""


@pytest.mark.parametrize(
    ("handler", "code", "out"),
    [("default_int_handler", 130, ""), ("SIG_IGN", 0, "quorumd, version ")],
)
def test_it_ends_without_a_word_unless_a_shell_has_ctrl_c_ignored(
    handler: str, code: int, out: str
) -> None:
    words = [sys.executable, "-c", PROGRAM, "--version", handler]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout[: len("quorumd, version ")], done.stderr) == (
        code,
        out,
        "",
    )
