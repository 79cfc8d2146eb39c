"""Ctrl-C while a command is loaded: the interrupt comes with the import of its first library."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import importlib, os, signal, sys

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            os.kill(os.getpid(), signal.SIGINT)

if sys.argv.pop() == "ignored":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.meta_path.insert(0, Interrupts())
importlib.import_module(sys.argv.pop()).main()
"""


def started(entry: str, how: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", PROGRAM, "--version", entry, how]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("entry", ["quorumd.cli.entry", "quorumd.pipeline.entry"])
def test_it_ends_as_any_other_program_without_a_word(entry: str) -> None:
    done = started(entry, "taken")
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_where_a_shell_has_it_ignored_the_command_runs() -> None:
    done = started("quorumd.cli.entry", "ignored")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("quorumctl, version")
