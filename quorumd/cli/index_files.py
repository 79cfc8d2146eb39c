"""`.index` and `.timeindex` files: entries, and whether they can be right.

A killed node leaves them full of zeros behind their entries (Kafka preallocates them); those are no
entries. Source: Apache Kafka 4.3, OffsetIndex and TimeIndex.
"""

from __future__ import annotations

from pathlib import Path
from struct import Struct
from typing import NamedTuple

_OFFSET_ENTRY = Struct(">ii")
_TIME_ENTRY = Struct(">qi")


class IndexFile(NamedTuple):
    """`entries` are (offset, position in bytes) or (timestamp in ms, offset); `kind` names them.

    `problem` says at which byte the file stops making sense, or is None.
    """

    kind: str
    entries: list[tuple[int, int]]
    size_bytes: int
    problem: str | None


def is_index(path: Path) -> bool:
    """True for names that an index has."""
    return path.suffix in (".index", ".timeindex")


def read_index(path: Path) -> IndexFile:
    """Reads one. Offsets are relative to the number in the file's name, if that is one."""
    data = path.read_bytes()
    base_offset = int(path.stem) if path.stem.isascii() and path.stem.isdigit() else 0
    entry = _OFFSET_ENTRY if path.suffix == ".index" else _TIME_ENTRY
    kind = "offset" if path.suffix == ".index" else "time"
    whole = len(data) - len(data) % entry.size
    pairs = [(first, second) for first, second in entry.iter_unpack(data[:whole])]
    while pairs and pairs[-1] == (0, 0):
        pairs.pop()
    problem = _disorder(pairs, entry.size)
    if problem is None and data[whole:].strip(b"\0"):
        problem = f"{len(data) - whole} bytes at byte {whole} are no whole entry of {entry.size}"
    if kind == "offset":
        found = [(base_offset + relative, position) for relative, position in pairs]
    else:
        found = [(timestamp, base_offset + relative) for timestamp, relative in pairs]
    return IndexFile(kind, found, len(data), problem)


def _disorder(pairs: list[tuple[int, int]], entry_bytes: int) -> str | None:
    for number in range(1, len(pairs)):
        if min(a - b for a, b in zip(pairs[number], pairs[number - 1], strict=True)) < 0:
            return f"the entry at byte {number * entry_bytes} is below the one before it"
    return None
