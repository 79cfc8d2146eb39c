"""A command that runs as a process group of its own: signals reach it, its end is seen, it can be ended.

The group is what `quorumctl lock` has to end when the lock is lost: a shell, say, with what it started.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from quorumd.cli.program import say
from quorumd.cli.terminal import STOPPING, Terminal
from quorumd.cli.text import printable

_LAUNCHER: Final = Path(__file__).with_name("launcher.py")
_POLL_S: Final = 0.05
_KILLED_WITHIN_S: Final = 1.0

ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Passed on to the whole group: what a shell has started would outlive it otherwise."""
OTHERS: Final = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH)
"""Passed on to the command alone: other processes of its group may not expect them, and would die."""


class NotExecutable(OSError):
    """The file of a command is missing, or is none that can be executed."""


class HeldCommand:
    """A command that is made ready now, and begins with `start`. In `with`: one that did not start is let go.

    It is a process already while it waits (see launcher.py), because to make one takes longer than all the
    rest that lies between its turn and its begin. It dies with this process, also by SIGKILL. Where this
    process is in the foreground of a terminal the command has that when it needs it, and from its begin if
    nobody else is there: Ctrl-C reaches it, and Ctrl-Z does not stop it.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.name = words[0]
        self._loop = asyncio.get_running_loop()
        self._executed: asyncio.Future[int] = self._loop.create_future()
        """The number of the error that kept it from it, 0 if there was none."""
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._has_begun = False
        self._terminal: Terminal | None = None
        # Found out now: to look at all processes takes its time.
        self._is_alone = set(_running_in(os.getpgrp())) == {os.getpid()}
        self._end: int | None = None
        """A descriptor that is readable once it has ended."""
        go, self._go = os.pipe()
        self._report, report = os.pipe()
        os.set_inheritable(go, True)
        os.set_inheritable(report, True)
        # Our parent may have it ignored, and then no process learns how a command has ended.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        launcher = [
            sys.executable,
            "-I",
            "-S",
            str(_LAUNCHER),
            *map(str, (os.getpid(), go, report)),
        ]
        try:
            # The command inherits our inherited descriptors: those that we opened are closed for it.
            self._process = subprocess.Popen([*launcher, *words], process_group=0, close_fds=False)
        except BaseException:
            os.close(self._go)
            os.close(self._report)
            raise
        finally:
            os.close(go)
            os.close(report)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._loop.remove_reader(self._report)
        os.close(self._go)
        os.close(self._report)
        if self._end is not None:
            self._loop.remove_reader(self._end)
            os.close(self._end)
        if not self._has_begun:
            self._process.kill()
            self._process.wait()

    def start(self, variable: str, value: str) -> None:
        """Begins, with one more variable in the environment; `wait` tells if it cannot be executed."""
        with suppress(OSError):
            self._terminal = Terminal(self._process.pid)
            if self._is_alone:
                self._terminal.give()
        with suppress(BrokenPipeError):  # It was killed: its exit code says so.
            os.write(self._go, f"{variable}={value}".encode())
        # To execute a file takes as long as its file system does: the loop has to go on meanwhile.
        self._loop.add_reader(self._report, self._on_report)
        self._has_begun = True
        self._end = self._end_descriptor()
        if self._end is None:
            threading.Thread(target=self._watch, name="command", daemon=True).start()
        else:
            self._loop.add_reader(self._end, self._on_end)

    def send(self, number: signal.Signals) -> None:
        """Passes a signal on. Nothing happens if the command has ended."""
        if self._ended.done():
            return
        try:
            if number in ENDING:
                os.killpg(self._process.pid, number)
                os.killpg(self._process.pid, signal.SIGCONT)
            else:
                os.kill(self._process.pid, number)
        except PermissionError:
            say(f"{number.name} does not reach {self._described}, which runs as another user")

    async def wait(self) -> int:
        """Its exit code; 128 + n if signal n has ended it. Raises NotExecutable."""
        failed = await asyncio.shield(self._executed)
        await asyncio.shield(self._ended)
        # Not reaped before: until then no other process can have its number.
        code = self._process.wait()
        if self._terminal is not None:
            self._terminal.close(is_interrupted=code == -signal.SIGINT)
            self._terminal = None
        if failed:
            raise NotExecutable(failed, os.strerror(failed))
        return code if code >= 0 else 128 - code

    async def end(self, grace_s: float) -> int:
        """SIGTERM to the group, and SIGKILL to what is left of it after `grace_s` seconds; the exit code.

        Where another user runs it, or the kernel does not let it end, it is waited for.
        """
        self._signal_group(signal.SIGTERM)
        self._signal_group(signal.SIGCONT)
        if not await self._group_ends(grace_s):
            self._signal_group(signal.SIGKILL)
            if not await self._group_ends(_KILLED_WITHIN_S):
                say(f"{self._described}, still runs: end it, or its process group, by hand")
        return await self.wait()

    @property
    def _described(self) -> str:
        return f"{printable(self.name)}, pid {self._process.pid}"

    async def _group_ends(self, within_s: float) -> bool:
        deadline_s = self._loop.time() + within_s
        # Polled, since nothing signals that the last process of a group has ended.
        while any(_running_in(self._process.pid)):
            left_s = deadline_s - self._loop.time()
            if left_s <= 0:
                return False
            await asyncio.sleep(min(_POLL_S, left_s))
        return True

    def _on_report(self) -> None:
        self._loop.remove_reader(self._report)
        self._executed.set_result(int(os.read(self._report, 16) or b"0"))

    def _end_descriptor(self) -> int | None:
        """None if a thread has to watch: for the terminal's sake, or because the kernel is older than 5.3."""
        try:
            return None if self._terminal is not None else os.pidfd_open(self._process.pid)
        except OSError:
            return None

    def _on_end(self) -> None:
        assert self._end is not None
        self._loop.remove_reader(self._end)
        self._ended.set_result(None)

    def _watch(self) -> None:
        if self._terminal is None:
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        else:
            self._watch_on(self._terminal)
        try:
            self._loop.call_soon_threadsafe(self._ended.set_result, None)
        except RuntimeError:
            return  # The loop was closed: this process is about to end.

    def _watch_on(self, terminal: Terminal) -> None:
        terminal.listen()
        states = os.WEXITED | os.WSTOPPED | os.WNOWAIT
        while found := os.waitid(os.P_PID, self._process.pid, states):
            if found.si_code != os.CLD_STOPPED:
                return
            if found.si_status in STOPPING and terminal.give():
                # No shell could continue it: that would continue us, and we do not stop.
                self._signal_group(signal.SIGCONT)
            else:
                # Polled, since nothing signals that a shell has put us into the foreground.
                time.sleep(_POLL_S)

    def _signal_group(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            with suppress(PermissionError):
                os.killpg(self._process.pid, number)


class SignalRelay:
    """Signals of this process: they end the current task before there is a `command`, then go to it.

    In `with`, from that task. What was ignored when this process began, by nohup for example, stays ignored.
    """

    def __init__(self) -> None:
        self.command: HeldCommand | None = None
        self.ended_by: signal.Signals | None = None
        """The first signal that asked for the end."""
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._handled: list[signal.Signals] = []

    def __enter__(self) -> Self:
        for number in (*ENDING, *OTHERS):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._loop.add_signal_handler(number, self._on_signal, number)
                self._handled.append(number)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number in self._handled:
            self._loop.remove_signal_handler(number)

    def _on_signal(self, number: signal.Signals) -> None:
        is_first = self.ended_by is None
        if number in ENDING and is_first:
            self.ended_by = number
        if self.command is not None:
            self.command.send(number)
        elif number in ENDING and is_first and self._task is not None:
            self._task.cancel()


def _running_in(group: int) -> Iterator[int]:
    """The processes of a group."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its_group = path.read_text(errors="replace").rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            continue  # It has ended meanwhile.
        if int(its_group) == group and state not in "ZX":
            yield int(path.parent.name)
