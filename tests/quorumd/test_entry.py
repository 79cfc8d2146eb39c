"""Ctrl-C while `quorumctl` is loaded: the interrupt comes with the import of its first library."""

from __future__ import annotations

import signal
import subprocess
import sys

PROGRAM = """
import os, signal, sys

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            os.kill(os.getpid(), signal.SIGINT)

if sys.argv.pop() == "ignored":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.meta_path.insert(0, Interrupts())
from quorumd.cli.entry import main
main()
"""


def started(how: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", PROGRAM, "--version", how]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)


def test_it_ends_as_any_other_program_without_a_word() -> None:
    done = started("taken")
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_where_a_shell_has_it_ignored_the_command_runs() -> None:
    done = started("ignored")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("quorumctl, version")
