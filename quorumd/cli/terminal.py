"""The terminal, where a command is a process group of its own: the kernel lets one group at a time use it."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Final

STOPPING: Final = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
"""Signals by which a terminal stops a group."""


class Terminal:
    """The terminal that controls this process, while `group` runs. Raises OSError where there is none.

    Who needs it and has not got it is stopped by the kernel, is given it here, and goes on: the command, or
    those who share our own group, such as a pager. We ourselves are not stopped: the lock would be lost.
    """

    def __init__(self, group: int) -> None:
        self._group = group
        self._own_group = os.getpgrp()
        self._file = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
        self._loop = asyncio.get_running_loop()
        self._handled = [n for n in STOPPING if signal.getsignal(n) is not signal.SIG_IGN]
        for number in self._handled:
            self._loop.add_signal_handler(number, self._on_stopped)
        # A process that blocks it may write in the background, and take the terminal; `listen` gets it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})

    @staticmethod
    def listen() -> None:
        """Another thread than that of the event loop has to call this, and to live as long."""
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTTOU})

    def give(self) -> bool:
        """To the command, if it is ours: has the command got it?"""
        return self._move(self._own_group, self._group)

    def close(self, *, is_interrupted: bool) -> None:
        """Takes it back from a command that has ended, by Ctrl-C perhaps."""
        is_sent = is_interrupted and self._holder() == self._group
        self._take()
        for number in self._handled:
            self._loop.remove_signal_handler(number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTTOU})
        os.close(self._file)
        if is_sent:
            # The terminal told the command's group alone. A script that we are part of has to end, too.
            os.killpg(self._own_group, signal.SIGINT)

    def _on_stopped(self) -> None:
        if self._take():
            os.killpg(self._own_group, signal.SIGCONT)

    def _take(self) -> bool:
        return self._move(self._group, self._own_group)

    def _move(self, source: int, target: int) -> bool:
        """False if others have it: a shell that has us in the background."""
        holder = self._holder()
        try:
            if holder == source:
                os.tcsetpgrp(self._file, target)
        except OSError:  # It was closed, or others have taken it meanwhile.
            return False
        return holder in (source, target)

    def _holder(self) -> int | None:
        try:
            return os.tcgetpgrp(self._file)
        except OSError:
            return None


def end_by_ctrl_c() -> None:
    """Ends this process by SIGINT, so that a shell ends its loop. Returns if no terminal can have sent it."""
    try:
        file = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
        is_ours = os.tcgetpgrp(file) == os.getpgrp()
    except OSError:
        return
    if is_ours:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
