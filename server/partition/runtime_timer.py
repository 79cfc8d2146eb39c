"""The driver's timer on a runtime."""

from __future__ import annotations

from collections.abc import Callable

from quorumd.server.model.runtime import Runtime, TimerHandle


class RuntimeTimer:
    """One timer of the runtime: setting it again replaces the earlier one."""

    def __init__(self, runtime: Runtime, callback: Callable[[], None]) -> None:
        self._runtime = runtime
        self._callback = callback
        self._handle: TimerHandle | None = None

    def set(self, deadline_ms: int) -> None:
        self.cancel()
        self._handle = self._runtime.call_at(deadline_ms / 1000, self._callback)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
