"""The entry point of the installed `quorumctl`."""

from __future__ import annotations

import signal
from typing import NoReturn


def main() -> NoReturn:
    """Loads the command, and runs it. Ctrl-C meanwhile ends the process without a word, as it ends others."""
    # A shell that runs it in the background has it ignore Ctrl-C, which stays so.
    takes_interrupts = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if takes_interrupts:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from quorumd.cli.main import main as run_command

    if takes_interrupts:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run_command()
