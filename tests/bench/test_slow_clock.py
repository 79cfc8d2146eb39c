"""Under the slow clock a program waits longer than it believes, from the moment on that it is switched on."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from bench.common import compiled

PROGRAM = """
import asyncio, json, struct, sys, threading, time
import uvloop

async def sleep(seconds):
    wall, own = time.time(), time.monotonic()
    await asyncio.sleep(seconds)
    return time.time() - wall, time.monotonic() - own

def wait():
    wall, own = time.time(), time.monotonic()
    threading.Event().wait(0.02)
    return time.time() - wall, time.monotonic() - own

async def main():
    before = await sleep(0.2)  # long beside the moment between two looks at the clocks
    with open(sys.argv[1], "r+b") as file:
        file.write(struct.pack("=q", time.monotonic_ns()))
    processor = time.process_time()
    waits = [before, await sleep(0.02), wait()]
    print(json.dumps([*waits, time.process_time() - processor]))

uvloop.run(main())
"""


@pytest.mark.live
@pytest.mark.skipif(
    shutil.which("cc") is None and shutil.which("gcc") is None, reason="no C compiler"
)
def test_timers_and_threads_wait_longer_and_do_not_spin(tmp_path: Path) -> None:
    clock = tmp_path / "clock"
    clock.write_bytes(struct.pack("=qq", 0, 20))
    library = compiled("slow_clock.c", "slow_clock.so", "-shared", "-fPIC")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(clock)],
        env={**os.environ, "LD_PRELOAD": str(library), "SLOW_CLOCK": str(clock)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    (before_wall, before), (timer_wall, timer), (thread_wall, thread), processor = json.loads(
        done.stdout
    )
    assert before_wall == pytest.approx(before, rel=0.2)
    for wall_s, own_s in ((timer_wall, timer), (thread_wall, thread)):
        assert own_s >= 0.02
        assert wall_s == pytest.approx(20 * own_s, rel=0.2)
    assert processor < 0.1
