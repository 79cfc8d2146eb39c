"""Counts the instructions that nodes execute in user space, whatever else the machine does meanwhile.

`perf` where the kernel offers hardware counters, else `valgrind`, which makes a node some 30 times slower;
so its clock is slowed down, too. Figures of the two are not compared: the C library chooses other
instructions in valgrind.
"""

from __future__ import annotations

import re
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from bench.common import compiled

_TIMEOUT_S = 120
_TOTALS = re.compile(r"^totals: (\d+)$", re.MULTILINE)
_EVENT = "instructions:u"
_SLOWER = 200
"""Times; more than valgrind slows a node down on a busy machine. See slow_clock.c."""


class InstructionCounter(Protocol):
    """Counters of several processes, by process id."""

    name: str
    slower: int
    """Factor by which the nodes' clocks run slower while they are counted."""
    environ: Mapping[str, str]
    """Variables that the nodes need in their environment."""

    def command(self, index: int) -> list[str]:
        """Words to put before the command line of node `index`."""

    def begin(self, pids: Sequence[int]) -> None:
        """Counts from here; what was executed before is forgotten."""

    def take(self, pids: Sequence[int]) -> dict[int, int]:
        """Instructions of each process since `begin` or the last `take`; counting goes on."""

    def end(self) -> None:
        """Ends what was started for counting."""


class Perf:
    """Hardware counters; nodes run at full speed."""

    name = "perf"
    slower = 1
    environ: Mapping[str, str] = MappingProxyType({})

    def __init__(self) -> None:
        self._running: dict[int, subprocess.Popen[str]] = {}

    def command(self, index: int) -> list[str]:
        return []

    def begin(self, pids: Sequence[int]) -> None:
        self.end()
        for pid in pids:
            self._running[pid] = subprocess.Popen(
                ["perf", "stat", "-x", ";", "-e", _EVENT, "-p", str(pid)],
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )

    def take(self, pids: Sequence[int]) -> dict[int, int]:
        for process in self._running.values():
            process.send_signal(signal.SIGINT)
        outputs = {pid: each.communicate()[1] for pid, each in self._running.items()}
        self._running.clear()
        self.begin(pids)
        return {pid: perf_count(text) for pid, text in outputs.items()}

    def end(self) -> None:
        for process in self._running.values():
            process.send_signal(signal.SIGINT)
            process.communicate()
        self._running.clear()


class Valgrind:
    """Callgrind counts each instruction of a program that it interprets; off until `begin`."""

    name = "valgrind"
    slower = _SLOWER

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._nodes: list[int] = []
        self._clock = folder / "clock"
        self._clock.write_bytes(struct.pack("=qq", 0, _SLOWER))
        library = compiled("slow_clock.c", "slow_clock.so", "-shared", "-fPIC")
        self.environ: Mapping[str, str] = {
            "LD_PRELOAD": str(library),
            "SLOW_CLOCK": str(self._clock),
        }

    def command(self, index: int) -> list[str]:
        out = self._folder / f"callgrind-{index}"
        return [
            "valgrind",
            "--tool=callgrind",
            "--quiet",
            "--instr-atstart=no",
            f"--callgrind-out-file={out}",
        ]

    def begin(self, pids: Sequence[int]) -> None:
        self._nodes = list(pids)
        for pid in pids:
            self._tell(pid, "instrumentation on")
        self._set_clock(time.monotonic_ns())
        self.take(pids)

    def take(self, pids: Sequence[int]) -> dict[int, int]:
        counts = {}
        for pid in pids:
            prefix = f"callgrind-{self._nodes.index(pid)}"
            self._tell(pid, "dump")  # it sets the counters to zero, too
            (written,) = self._folder.glob(f"{prefix}.*")
            found = _TOTALS.search(written.read_text())
            if found is None:
                raise SystemExit(f"callgrind has not written what it counted: {written}")
            counts[pid] = int(found[1])
            written.unlink()
        return counts

    def end(self) -> None:
        self._set_clock(0)
        self._nodes.clear()

    def _set_clock(self, slow_since_ns: int) -> None:
        with self._clock.open("r+b") as file:
            file.write(struct.pack("=q", slow_since_ns))

    def _tell(self, pid: int, what: str) -> None:
        done = subprocess.run(
            ["vgdb", f"--pid={pid}", *what.split()],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"vgdb {what}: {done.stdout}{done.stderr}")


def perf_count(text: str) -> int:
    """The count in what `perf stat -x ';'` prints; an error where it was not counted."""
    for line in text.splitlines():
        count, _, rest = line.partition(";")
        if _EVENT in rest and count.isdigit():
            return int(count)
    raise SystemExit(f"perf has counted nothing: {text.strip()}")


def counter(folder: Path, name: str | None = None) -> InstructionCounter:
    """The counter of that name, else the best that this machine has; `folder` is for its files."""
    if name == "perf" or (name is None and _perf_works()):
        return Perf()
    if shutil.which("valgrind") and shutil.which("vgdb"):
        return Valgrind(folder)
    raise SystemExit("nothing counts instructions here: install valgrind")


def _perf_works() -> bool:
    if shutil.which("perf"):
        tried = subprocess.run(
            ["perf", "stat", "-x", ";", "-e", _EVENT, "true"],
            capture_output=True,
            text=True,
            check=False,
        )
        return f";{_EVENT}" in tried.stderr and "<not" not in tried.stderr
    return False
