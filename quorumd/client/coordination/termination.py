"""SIGTERM while something is held or waited for: it is given back, and then the process ends of SIGTERM.

Only where SIGTERM has its default action, which would end the process at once: a handler of the program's
own, set before or after, is left as it is. The main thread takes signals: what is held in a loop of another
thread is given back if the main thread has called `arm` before. A forked child has nothing of its parent's.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Coroutine
from types import FrameType
from typing import Any, Final, Protocol

END_WITHIN_S: Final = 5.0
"""After SIGTERM the process ends by then, whatever its tasks make of their cancellation."""


class Releasable(Protocol):
    """A claim that can be given back."""

    def release(self) -> Coroutine[Any, Any, bool]: ...


class Termination:
    """The claims that this process has to give back, each with its task. There is one: TERMINATION."""

    def __init__(self) -> None:
        self._guarded: dict[
            Releasable, tuple[asyncio.AbstractEventLoop, asyncio.Task[Any] | None]
        ] = {}
        self._is_ending = False
        self._releases: set[asyncio.Task[bool]] = set()
        self._pid = os.getpid()
        os.register_at_fork(after_in_child=self._forget)

    def arm(self) -> None:
        """From now on SIGTERM gives back what is guarded. Without effect in any thread but the main one."""
        if _is_main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._on_sigterm)

    def guard(self, held: Releasable) -> None:
        """To be given back at SIGTERM: the task that calls this is cancelled then, if it has not ended."""
        self.arm()
        self._guarded[held] = (asyncio.get_running_loop(), asyncio.current_task())

    def unguard(self, held: Releasable) -> None:
        """Forgets a lock that was given back."""
        if self._guarded.pop(held, None) is None or self._guarded:
            return
        if self._is_ending:
            _end()
        elif _is_main_thread() and signal.getsignal(signal.SIGTERM) == self._on_sigterm:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _forget(self) -> None:
        """Forgets a parent's locks in its child: the parent gives them back, in its own loops."""
        self._pid = os.getpid()
        self._guarded.clear()
        self._is_ending = False
        if signal.getsignal(signal.SIGTERM) == self._on_sigterm:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        if self._pid != os.getpid():
            # The signal has come before the end of the fork.
            self._forget()
        self._is_ending = True
        # The next one ends the process at once.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for held, (loop, task) in list(self._guarded.items()):
            try:
                loop.call_soon_threadsafe(self._give_back, held, loop, task)
            except RuntimeError:
                # The loop is closed: what was held there is left to its ttl.
                self._guarded.pop(held, None)
        if not self._guarded:
            _end()
        # By a thread: loops may stand still, or end before they have done it.
        deadline = threading.Timer(END_WITHIN_S, _end)
        deadline.daemon = True
        deadline.start()

    def _give_back(
        self,
        held: Releasable,
        loop: asyncio.AbstractEventLoop,
        task: asyncio.Task[Any] | None,
    ) -> None:
        if task is not None and not task.done():
            task.cancel()
        else:
            self._releases.add(loop.create_task(held.release()))


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _end() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


TERMINATION: Final = Termination()
