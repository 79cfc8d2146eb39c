"""Holders of names and waiting clients, for the page: from a process that reads this node's files.

The process runs only while the page is shown, with low priority: a log of any length may have to be read,
and the event loop has other things to do.
"""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

FRESH_S: Final = 1.0
"""So long a response serves all who ask."""
WAIT_S: Final = 0.3
"""So long a request waits; what comes later is for the next one."""
IDLE_S: Final = 20.0
"""So long after the last request the process ends."""
LINE_BYTES_MAX: Final = 16 << 20
_PROGRAM: Final = "quorumd.cli.claims_reader"

Claims = Mapping[str, object]


class ClaimsReport:
    """Responses of `quorumd.cli.claims_reader`, which describes them."""

    def __init__(self, storage_dir: Path, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._storage_dir = storage_dir
        self._clock_s = clock_s
        self._process: Process | None = None
        self._killed: Process | None = None
        """The last one that was ended: it may not have done so yet."""
        self._is_closed = False
        self._asking: asyncio.Task[Claims] | None = None
        self._known: Claims = {}
        self._known_at_s = -FRESH_S
        self._timer: asyncio.TimerHandle | None = None
        """None: nobody looks."""

    async def newest(self, end_offset: int) -> Claims:
        """Claims in the log below `end_offset`; {} before the first response, else "problem" says in
        words why nothing is."""
        if self._is_closed:
            return {}
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(IDLE_S, self._end)
        if self._asking is None and self._clock_s() >= self._known_at_s + FRESH_S:
            self._asking = asyncio.create_task(self._ask(end_offset))
        if self._asking is not None:
            await asyncio.wait([self._asking], timeout=WAIT_S)
            if self._asking is not None and self._asking.done():
                self._known, self._asking = self._asking.result(), None
                self._known_at_s = self._clock_s()
        return self._known

    async def close(self) -> None:
        """Ends the process, and returns when it has ended. No other one is started."""
        self._is_closed = True
        self._end()
        # Not cancelled: a process that is just being started would be left behind.
        if self._asking is not None:
            await self._asking
        if self._killed is not None:
            await self._killed.wait()

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._known = None, {}
        self._kill()

    def _kill(self) -> None:
        if self._process is not None:
            self._killed, self._process = self._process, None
            with suppress(ProcessLookupError):
                self._killed.kill()

    async def _ask(self, end_offset: int) -> Claims:
        try:
            if self._process is None:
                self._process = await self._start()
                if self._timer is None:
                    self._kill()
                    return {}
            to_process, from_process = self._process.stdin, self._process.stdout
            assert to_process is not None
            assert from_process is not None
            to_process.write(b"%d\n" % end_offset)
            await to_process.drain()
            response: Claims = json.loads(await from_process.readuntil(b"\n"))
        except (OSError, EOFError, RuntimeError, ValueError, asyncio.LimitOverrunError) as error:
            # RuntimeError: uvloop's, for a pipe whose other end is gone.
            self._kill()
            why = "it ended" if isinstance(error, EOFError) else repr(error)
            words = (sys.executable, "-P", "-m", _PROGRAM, str(self._storage_dir))
            command = f"echo 0 | {shlex.join(words)}"
            return {"problem": f"the process that reads them has failed ({why}). Try: {command}"}
        return response

    async def _start(self) -> Process:
        return await asyncio.create_subprocess_exec(
            # -P: nothing that lies in the daemon's working directory is imported.
            *(sys.executable, "-P", "-m", _PROGRAM, str(self._storage_dir)),
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            limit=LINE_BYTES_MAX,
        )
