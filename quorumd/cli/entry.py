"""The entry point of the installed `quorumctl`, and how a command is loaded."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def loading() -> Iterator[None]:
    """Around the imports of a command: Ctrl-C ends the process without a word, as it ends others."""
    # A shell that runs it in the background has it ignore Ctrl-C, which stays so.
    takes_interrupts = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if takes_interrupts:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    yield
    if takes_interrupts:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def main() -> None:
    """Loads the command, and runs it."""
    with loading():
        from quorumd.cli.main import main as run_command
    run_command()
