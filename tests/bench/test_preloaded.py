"""Syncs that take longer, and instructions that are counted, of a real process."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.common import compiled
from bench.instruction_counter import Valgrind

needs_compiler = pytest.mark.skipif(
    shutil.which("cc") is None and shutil.which("gcc") is None, reason="no C compiler"
)

SYNCING = """
import os, sys, time
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
for _ in sys.stdin:
    begun = time.monotonic()
    os.fdatasync(file)
    print(time.monotonic() - begun, flush=True)
"""

COUNTING = """
import sys
for line in sys.stdin:
    for _ in range(int(line)):
        pass
    print("done", flush=True)
"""


@pytest.mark.live
@needs_compiler
def test_a_sync_takes_longer_by_what_the_file_says(tmp_path: Path) -> None:
    library = compiled("slow_sync.c", "slow_sync.so", "-shared", "-fPIC")
    environ = {**os.environ, "LD_PRELOAD": str(library), "SLOW_SYNC": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", SYNCING, str(tmp_path / "synced")],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def sync() -> float:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            return float(process.stdout.readline())

        usual = min(sync() for _ in range(5))
        (tmp_path / str(process.pid)).write_bytes(struct.pack("=q", 300_000_000))
        assert sync() > 0.3 > usual
        (tmp_path / str(process.pid)).write_bytes(struct.pack("=q", 0))
        assert min(sync() for _ in range(5)) < 0.3
        process.stdin.close()


@pytest.mark.long
@needs_compiler
@pytest.mark.skipif(
    shutil.which("valgrind") is None or shutil.which("vgdb") is None, reason="no valgrind"
)
def test_valgrind_counts_what_is_executed_between_two_questions(tmp_path: Path) -> None:
    counter = Valgrind(tmp_path)
    with subprocess.Popen(
        [*counter.command(0), sys.executable, "-c", COUNTING],
        env={**os.environ, **counter.environ},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def count(rounds: int) -> int:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{rounds}\n")
            process.stdin.flush()
            assert process.stdout.readline() == "done\n"
            return counter.take([process.pid])[process.pid]

        process.stdin.write("1\n")
        process.stdin.flush()
        assert process.stdout.readline() == "done\n"
        counter.begin([process.pid])
        count(1000)
        few, many = count(10_000), count(60_000)
        # By Python and how it was built: 517 a round for a 3.13 that is not optimised.
        assert 50_000 * 5 < many - few < 50_000 * 1000
        time.sleep(0.2)
        assert counter.take([process.pid])[process.pid] < few
        counter.end()
        process.stdin.close()
