"""The history of a client: its calls and their outcomes, a JSON line each; times are monotonic ns.

A record's value is the name of its writer and its number: "librdkafka-0/17". What a killed writer had not
written down has never been answered to anybody.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

INVOKED, ACKNOWLEDGED, FAILED, SESSION, READ, END, TROUBLE = "IAFSRET"


class HistoryFile:
    """Lines in the order in which things happened."""

    def __init__(self, path: Path) -> None:
        self._file: TextIO = path.open("a", buffering=1)

    def write(self, kind: str, *rest: object) -> None:
        self._file.write(json.dumps([kind, time.monotonic_ns(), *rest]) + "\n")


def lines_of(path: Path) -> Iterator[list[Any]]:
    """Without a last line that was cut short."""
    with path.open() as file:
        for line in file:
            if line.endswith("\n"):
                yield json.loads(line)
