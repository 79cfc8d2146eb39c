"""Small file systems for tests of disks that are full or read-only; skipped where mounting is not allowed."""

from __future__ import annotations

import functools
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@functools.cache
def why_not() -> str:
    """Why nothing can be mounted here; empty if it can."""
    if os.geteuid() != 0:
        return "mounting needs root"
    with tempfile.TemporaryDirectory() as folder:
        command = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", folder]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            return "there is no mount command"
        if done.returncode:
            return f"mounting is not allowed: {done.stderr.strip()}"
        subprocess.run(["umount", folder], check=True)
    return ""


def mount_or_skip(*arguments: str) -> tuple[str, ...]:
    """The arguments for `mounted`; skips the test where nothing can be mounted."""
    if reason := why_not():
        pytest.skip(reason)
    return arguments


@contextmanager
def mounted(folder: Path, arguments: tuple[str, ...], *, read_only: bool = False) -> Iterator[None]:
    """Mount something over a folder for a while."""
    subprocess.run(["mount", *arguments, str(folder)], check=True, capture_output=True)
    try:
        if read_only:
            command = ["mount", "-o", "remount,bind,ro", str(folder)]
            subprocess.run(command, check=True, capture_output=True)
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True, capture_output=True)


def tmpfs_or_skip(size: str) -> tuple[str, ...]:
    """A file system in memory with this size, such as 12m."""
    return mount_or_skip("-t", "tmpfs", "-o", f"size={size}", "none")
