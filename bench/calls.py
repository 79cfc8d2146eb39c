"""Notes of `trace_calls.c`: reads, sends, writes and syncs of a process, and their times."""

from __future__ import annotations

import os
import re
import struct
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from bench.common import compiled

_HEAD = struct.Struct("=q24x")
_NOTE = struct.Struct("=qqiiq")
NOTES_MAX = 1 << 20


class What(IntEnum):
    """Kind of system call."""

    READ = 1
    SEND = 2
    WRITE_FILE = 3
    SYNC = 4


class Call(NamedTuple):
    """One system call; times are ns on CLOCK_MONOTONIC, which processes of one host share."""

    begin_ns: int
    end_ns: int
    what: What
    descriptor: int
    result: int


class Calls:
    """The calls of one process, by their beginning."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls = sorted(call for call in calls if call.result >= 0)
        self._begins = [call.begin_ns for call in self._calls]

    def first(
        self,
        what: What,
        after_ns: int,
        before_ns: int,
        descriptors: Collection[int] | None = None,
    ) -> Call | None:
        """The first one that begins not before `after_ns`, and ends before `before_ns`.

        A read that has read nothing is none.
        """
        for at in range(bisect_left(self._begins, after_ns), len(self._calls)):
            call = self._calls[at]
            if call.begin_ns >= before_ns:
                return None
            fits = descriptors is None or call.descriptor in descriptors
            if fits and call.what is what and call.end_ns < before_ns:
                if what is What.READ and not call.result:
                    continue
                return call
        return None


def tracing(folder: Path) -> Mapping[str, str]:
    """Variables that nodes need in their environment to note their calls in `folder`."""
    library = compiled("trace_calls.c", "trace_calls.so", "-shared", "-fPIC")
    return {"LD_PRELOAD": str(library), "TRACE_CALLS": str(folder)}


def read_calls(folder: Path, pid: int) -> Calls:
    """Calls that the process has noted so far."""
    with (folder / str(pid)).open("rb") as file:
        (used,) = _HEAD.unpack(file.read(_HEAD.size))
        data = file.read(min(used, NOTES_MAX) * _NOTE.size)
    return Calls([Call(b, e, What(w), d, r) for b, e, w, d, r in _NOTE.iter_unpack(data) if w])


def connections_of(pid: int) -> dict[int, tuple[int, int]]:
    """Local and remote port of each descriptor that is a TCP connection over IPv4."""
    ports = {}
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        local, remote = (int(address.partition(":")[2], 16) for address in fields[1:3])
        ports[fields[9]] = local, remote
    found = {}
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            match = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(link))
        except OSError:
            continue  # closed meanwhile
        if match and match[1] in ports:
            found[int(link.name)] = ports[match[1]]
    return found
