"""A snapshot build in a subprocess, as the node sees it: started, watched, cancelled."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from quorumd.raft.types import SnapshotId
from quorumd.server.model.snapshot_builds import BuildFailed, BuildResult
from quorumd.server.model.unhandled import unawaited
from quorumd.storage.errors import DamagedLog, DamagedSnapshot
from quorumd.storage.layout import parse_snapshot_name

CLEANUP_S = 2.0
"""Time that a process may take to delete the files that it has written."""


def build_failure(message: str, error_name: str, path: Path) -> BuildFailed:
    """The failure of a build by this error, about this file: a complete snapshot, the log, or another."""
    return BuildFailed(
        message,
        parse_snapshot_name(path.name) if error_name == DamagedSnapshot.__name__ else None,
        is_log_damaged=error_name == DamagedLog.__name__,
    )


class BuildSubprocess:
    """Runs `python -P -m quorumd.server.snapshots.build_command`, which reports in JSON lines. A `Build`."""

    def __init__(
        self,
        directory: Path,
        end_offset: int,
        progress: Callable[[float], None],
        done: Callable[[BuildResult | BuildFailed], None],
    ) -> None:
        self._progress = progress
        self._done = done
        self._task = unawaited(
            asyncio.get_running_loop().create_task(self._run(directory, end_offset))
        )

    def cancel(self, ended: Callable[[], None]) -> None:
        self._task.add_done_callback(lambda _: ended())
        self._task.cancel()

    async def _run(self, directory: Path, end_offset: int) -> None:
        outcome: BuildResult | BuildFailed
        try:
            outcome = await self._build(directory, end_offset)
        except OSError as error:
            outcome = BuildFailed(f"the process that builds snapshots could not be run: {error}")
        except (ValueError, KeyError) as error:
            outcome = BuildFailed(f"the process that builds snapshots reports nonsense: {error!r}")
        self._done(outcome)

    async def _build(self, directory: Path, end_offset: int) -> BuildResult | BuildFailed:
        process = await asyncio.create_subprocess_exec(
            # -P: nothing that lies in the daemon's working directory is imported.
            *(sys.executable, "-P", "-m", "quorumd.server.snapshots.build_command"),
            *("--directory", str(directory), "--end-offset", str(end_offset)),
            # The build ends when its standard input does: with this process, however that ends.
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
            await _end(process)
            raise
        if "error" in last:
            return build_failure(last["error"], last["kind"], Path(last["path"]))
        if code or "epoch" not in last:
            how = f"ended with {code}" if code >= 0 else f"was killed by signal {-code}"
            return BuildFailed(f"the process that builds snapshots {how}. {words[-500:]}".strip())
        snapshot = SnapshotId(last["end_offset"], last["epoch"])
        return BuildResult(snapshot, last["empty_batches"])


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ends the process, which deletes what it has written; it is not waited for for long."""
    assert process.stdin is not None
    process.stdin.close()
    # Not asyncio.timeout: its task is being cancelled, which hides the time-out in Python 3.11.2.
    ended = asyncio.ensure_future(process.wait())
    await asyncio.wait({ended}, timeout=CLEANUP_S)
    if not ended.done():
        with suppress(ProcessLookupError):
            process.kill()
    await ended
