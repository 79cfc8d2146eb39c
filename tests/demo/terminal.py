"""A program on a terminal of its own: what it shows is read, keys are pressed."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from pathlib import Path
from types import TracebackType

ROWS, COLUMNS = 40, 80
DEADLINE_S = 40.0
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


class Terminal:
    """Use as a context manager: at its end the program is gone."""

    def __init__(self, command: list[str], directory: Path) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        environ = {**os.environ, "TERM": "xterm-256color"}
        for name in ("COLUMNS", "LINES", "NO_COLOR"):
            environ.pop(name, None)
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=directory,
            env=environ,
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(slave)
        self._shown = ""
        self._from = 0

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self._wait()
        os.close(self._master)

    def press(self, keys: str) -> None:
        """Only what is shown from now on counts for `expect`."""
        self._from = len(self._shown)
        os.write(self._master, keys.encode())

    def expect(self, pattern: str) -> re.Match[str]:
        """The first match in what is shown since the last key; fails after a while."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            if match := re.search(pattern, self._shown[self._from :]):
                return match
            if not self._read(deadline):
                shown = self._shown[self._from :]
                raise AssertionError(f"{pattern!r} was not shown; shown was:\n{shown[-4000:]}")

    def exit_code(self) -> int:
        """Of the program, which has to end soon."""
        code = self._wait()
        while self._read(time.monotonic() + 0.2):
            pass
        return code

    @property
    def shown(self) -> str:
        return self._shown

    def _wait(self) -> int:
        # It is read on: a program whose output nobody takes could not end.
        deadline = time.monotonic() + DEADLINE_S
        while (code := self.process.poll()) is None:
            assert time.monotonic() < deadline, "the program does not end"
            self._read(time.monotonic() + 0.05)
        return code

    def _read(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return False
        try:
            data = os.read(self._master, 1 << 16)
        except OSError:  # the other side is closed
            return False
        self._shown += ESCAPES.sub("", data.decode("utf-8", "replace"))
        return bool(data)


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
