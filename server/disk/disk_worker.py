"""The one thread that writes to a partition's directory; it runs `DiskLoop.run`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty
from typing import Final

from quorumd.server.disk.group_commit import (
    FULL_DISK_RETRY_S,
    IDLE_S,
    DiskLoop,
    Jobs,
    NoSpace,
    Pause,
    Step,
)
from quorumd.server.model.disk_jobs import DiskListener, Files

_BRIEF_WAIT: Final = Step.BRIEF_WAIT
_LONG_WAIT: Final = Step.LONG_WAIT


class DiskWorker(DiskLoop):
    """Runs jobs on a thread of its own; `call_on_loop` runs a callback on the event loop."""

    def __init__(
        self,
        files: Files,
        listener: DiskListener,
        call_on_loop: Callable[..., object],
        monotonic_s: Callable[[], float],
    ) -> None:
        super().__init__(files, listener, call_on_loop, monotonic_s)
        self._disk_thread = threading.Thread(target=self._run_all, name="disk", daemon=True)

    def start(self) -> None:
        self._disk_thread.start()

    def stop(self) -> None:
        """Finish what is queued, then end the thread. Blocks until it has ended."""
        self.end()
        self._disk_thread.join()

    def _run_all(self) -> None:
        steps = self.run()
        with suppress(StopIteration):
            pause = next(steps)
            while True:
                pause = steps.send(self._wait(pause))

    def _wait(self, pause: Pause) -> Jobs:
        if pause is _LONG_WAIT:
            return self.jobs.get()
        is_brief = pause is _BRIEF_WAIT
        if is_brief or type(pause) is NoSpace:
            try:
                return self.jobs.get(timeout=IDLE_S if is_brief else FULL_DISK_RETRY_S)
            except Empty:
                return []
        return None
