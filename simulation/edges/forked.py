"""Does something in a copy of this process, which is thrown away afterwards: warm, and with no trace left."""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import time
import traceback
from collections.abc import Callable
from typing import Any

MEMORY_BYTES = 2 << 30
"""Bytes that a child may use beyond those of this process: a mutant may append for ever."""


class ChildStopped(Exception):
    """The child took too long, or died."""


class ChildFailed(Exception):
    """The child raised what it must not; the message is its traceback."""


def in_child(act: Callable[[], Any], cpu_s: float, wall_s: float) -> Any:
    """Result of `act`, called in a child process, as JSON knows it. Raises ChildStopped, ChildFailed."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _be_child(act, writing, cpu_s)
    os.close(writing)
    try:
        text = _read(reading, wall_s)
    finally:
        os.close(reading)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    if not text:
        raise ChildStopped
    result = json.loads(text)
    if "raised" in result:
        raise ChildFailed(result["raised"])
    return result["value"]


def _be_child(act: Callable[[], Any], writing: int, cpu_s: float) -> None:
    code = 1
    try:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nowhere, number)
        _limit(cpu_s)
        try:
            result = {"value": act()}
        except Exception:
            result = {"raised": traceback.format_exc()}
        data = json.dumps(result).encode()
        while data:
            data = data[os.write(writing, data) :]
        code = 0
    finally:
        os._exit(code)


def _limit(cpu_s: float) -> None:
    seconds = int(cpu_s) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with open("/proc/self/statm") as file:
        used_bytes = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used_bytes + MEMORY_BYTES,) * 2)


def _read(reading: int, wall_s: float) -> bytes:
    """All that comes, nothing if that takes too long."""
    end_s = time.monotonic() + wall_s
    parts: list[bytes] = []
    while True:
        ready, _, _ = select.select([reading], [], [], max(0.0, end_s - time.monotonic()))
        if not ready:
            return b""
        part = os.read(reading, 1 << 16)
        if not part:
            return b"".join(parts)
        parts.append(part)
