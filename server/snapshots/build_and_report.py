"""The inside of the build subprocess: its command line, the build, its reports to the parent in JSON."""

from __future__ import annotations

import argparse
import gc
import json
import os
import select
import signal
import time
from contextlib import suppress
from pathlib import Path

from quorumd.server.snapshots.snapshot_builder import (
    DEFAULT_MEMORY_BYTES,
    BuiltSnapshot,
    SnapshotBuilder,
)
from quorumd.storage.errors import DiskFull, StorageError, from_os_error
from quorumd.storage.filesystem import FileSystem, RealFileSystem

EXIT_ABANDONED = 1
REPORT_S = 0.2
LOCK_RETRY_S = 0.05
LEFT_BYTES = 8 << 20
"""Bytes that a build leaves free on the disk: the log is written in steps of half of them."""


def main() -> int:
    """Builds what the command line says; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m quorumd.server.snapshots.build_command")
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--end-offset", type=int, required=True)
    parser.add_argument("--memory-bytes", type=int, default=DEFAULT_MEMORY_BYTES)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # There are no cycles to look for among so many objects.
    gc.disable()
    fs = RealFileSystem()
    builder = SnapshotBuilder(
        fs,
        arguments.directory.absolute(),
        arguments.end_offset,
        memory_bytes=arguments.memory_bytes,
    )
    try:
        has_turn = _has_turn(fs, arguments.directory)
        built = _build(builder, arguments.directory) if has_turn else None
        if built is not None:
            _print(
                end_offset=built.id.end_offset,
                epoch=built.id.epoch,
                size_bytes=built.size_bytes,
                records=built.records,
                empty_batches=built.empty_batches,
            )
            return 0
    except StorageError as error:
        builder.close()
        builder.discard()
        _print(error=str(error), kind=type(error).__name__, path=str(error.path))
        return error.exit_code
    except (KeyboardInterrupt, BrokenPipeError):
        pass
    builder.close()
    builder.discard()
    return EXIT_ABANDONED


def _has_turn(fs: FileSystem, directory: Path) -> bool:
    """Waits until no other process builds in a directory; False if the parent has given this one up.

    One whose node was killed may need a moment to notice it, and uses the same names.
    """
    # Where directories can't be locked, as on NFS, the build goes on; if there is none, it says so.
    with suppress(OSError):
        # Stays open, and with it the lock, until this process has cleaned up and ends.
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        while not fs.try_lock(handle):
            if _is_input_at_end():
                return False
            time.sleep(LOCK_RETRY_S)
    return True


def _build(builder: SnapshotBuilder, directory: Path) -> BuiltSnapshot | None:
    """None if the parent has given it up. Raises StorageError."""
    steps = builder.run()
    report_at = time.monotonic()
    while True:
        try:
            progress = next(steps)
        except StopIteration as done:
            built: BuiltSnapshot = done.value
            return built
        if _is_input_at_end():
            return None
        _check_space(directory)
        if time.monotonic() >= report_at:
            report_at = time.monotonic() + REPORT_S
            _print(done=progress.done_bytes, total=progress.total_bytes)


def _check_space(directory: Path) -> None:
    """A snapshot can wait. A log that can't be written makes a leader resign."""
    try:
        found = os.statvfs(directory)
    except OSError as error:
        raise from_os_error(error, directory, "asking for the free space") from error
    left_bytes = found.f_bavail * found.f_frsize
    if left_bytes < LEFT_BYTES:
        raise DiskFull(
            f"{left_bytes:,} bytes are left on this disk, and a build leaves {LEFT_BYTES:,} to the log",
            path=directory,
            remedy="Free space on this disk; nothing was lost",
        )


def _print(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def _is_input_at_end() -> bool:
    """True once the parent has closed its end of standard input, or died."""
    while select.select([0], [], [], 0)[0]:
        if not os.read(0, 4096):
            return True
    return False
