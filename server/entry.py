"""The entry point of the installed `quorumd`."""

from __future__ import annotations


def main() -> None:
    """Loads the command, and runs it. Ctrl-C meanwhile ends it without a word."""
    try:
        from quorumd.server.main import main as run_command
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    run_command()
