"""quorumctl in a process of its own, with pipes or on a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

COMMAND = Path(sys.executable).with_name("quorumctl")


@contextmanager
def started(*arguments: str, stderr: int = subprocess.PIPE) -> Iterator[subprocess.Popen[bytes]]:
    """The running command; it is killed at the end. The terminal of whoever runs the tests is not its own."""
    process = subprocess.Popen(
        [str(COMMAND), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def on_a_terminal(*arguments: str) -> tuple[int, str]:
    """Exit code of the command, and what it wrote to a terminal of 100 columns."""
    terminal, other_end = pty.openpty()
    fcntl.ioctl(other_end, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    process = subprocess.Popen(
        [str(COMMAND), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=other_end,
        stderr=other_end,
        env={**os.environ, "TERM": "xterm-256color"},
    )
    os.close(other_end)
    shown = b""
    with suppress(OSError):
        while data := os.read(terminal, 65536):
            shown += data
    os.close(terminal)
    return process.wait(20), shown.decode()
