"""Building a snapshot: what its caller sees of it, and a process of its own that costs no event loop."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from storage.snapshot_file import SnapshotId


class BuildResult(NamedTuple):
    """A snapshot that is all in its unfinished file, and synced; `empty_batches` did not unpack."""

    id: SnapshotId
    empty_batches: int


class BuildFailed(Exception):
    """No snapshot was built; the message says why."""


class Build(Protocol):
    """A snapshot that is being built."""

    def cancel(self) -> None:
        """Give it up; nobody is told any more."""


class Builder(Protocol):
    """Begins to build the snapshot of a partition's directory that ends at an offset.

    `progress` gets how much is done, 0 to 1; `done` is called once, later.
    """

    def __call__(
        self,
        directory: Path,
        end_offset: int,
        progress: Callable[[float], None],
        done: Callable[[BuildResult | BuildFailed], None],
    ) -> Build: ...


class BuildProcess:
    """Runs `python -m server.build_snapshot`, which says how far it is in JSON lines. A `Builder`."""

    def __init__(
        self,
        directory: Path,
        end_offset: int,
        progress: Callable[[float], None],
        done: Callable[[BuildResult | BuildFailed], None],
    ) -> None:
        self._progress = progress
        self._done = done
        self._task = asyncio.get_running_loop().create_task(self._run(directory, end_offset))

    def cancel(self) -> None:
        self._task.cancel()

    async def _run(self, directory: Path, end_offset: int) -> None:
        outcome: BuildResult | BuildFailed
        try:
            outcome = await self._build(directory, end_offset)
        except OSError as error:
            outcome = BuildFailed(f"the process that builds snapshots could not be run: {error}")
        self._done(outcome)

    async def _build(self, directory: Path, end_offset: int) -> BuildResult | BuildFailed:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "server.build_snapshot",
            *("--directory", str(directory), "--end-offset", str(end_offset)),
            # It ends when its standard input does: with this process, however that ends.
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            errors = asyncio.create_task(process.stderr.read())
            last: dict[str, Any] = {}
            async for line in process.stdout:
                last = json.loads(line)
                if last.get("total"):
                    self._progress(last["done"] / last["total"])
            words = (await errors).decode(errors="replace").strip()
            code = await process.wait()
        except BaseException:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            raise
        if "error" in last:
            return BuildFailed(str(last["error"]))
        if code or "epoch" not in last:
            return BuildFailed(
                f"the process that builds snapshots ended with {code}: {words[-500:]}"
            )
        snapshot = SnapshotId(last["end_offset"], last["epoch"])
        return BuildResult(snapshot, last["empty_batches"])
