"""The entry point of the installed `quorumd-pipeline`."""

from __future__ import annotations

from quorumd.cli.entry import loading


def main() -> None:
    """Loads the command, and runs it. Ctrl-C meanwhile ends the process without a word."""
    with loading():
        from quorumd.pipeline.cli import main as run_command
    run_command()
