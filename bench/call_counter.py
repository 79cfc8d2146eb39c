"""Runs a node and counts its Python calls: `call_counter.py FOLDER TREE MODULE ARGUMENT...`.

Runs MODULE of the source tree TREE as a program. On SIGUSR2 it writes what every thread has executed so far
to `FOLDER/<process id>.json`: `{"<file>:<function>": [calls, instructions]}`. Instructions of the bytecode
are counted only with COUNT_INSTRUCTIONS=1 in the environment, for that makes a node fifty times slower.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

COUNT_INSTRUCTIONS = "COUNT_INSTRUCTIONS"

_counted: dict[CodeType, list[int]] = {}
_with_instructions = bool(os.environ.get(COUNT_INSTRUCTIONS))


def _on_call(frame: FrameType, event: str, _: Any) -> Any:
    code = frame.f_code
    try:
        _counted[code][0] += 1
    except KeyError:
        _counted[code] = [1, 0]
    if not _with_instructions:
        return None
    frame.f_trace_lines = False
    frame.f_trace_opcodes = True
    return _on_instruction


def _on_instruction(frame: FrameType, event: str, _: Any) -> Any:
    if event == "opcode":
        _counted[frame.f_code][1] += 1
    return _on_instruction


def _write(folder: Path, tree: Path) -> None:
    sys.settrace(None)
    counts: dict[str, list[int]] = {}
    for code, (calls, instructions) in list(_counted.items()):
        file = Path(code.co_filename)
        shown = file.relative_to(tree) if file.is_relative_to(tree) else Path(file.name)
        known = counts.setdefault(f"{shown}:{code.co_qualname}", [0, 0])
        known[0] += calls
        known[1] += instructions
    part = folder / f"{os.getpid()}.part"
    part.write_text(json.dumps(counts))
    part.rename(part.with_suffix(".json"))
    sys.settrace(_on_call)


def main() -> None:
    folder, tree, module = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    sys.argv = [module, *sys.argv[4:]]
    sys.path[0] = str(tree)
    signal.signal(signal.SIGUSR2, lambda *_: _write(folder, tree))
    threading.settrace(_on_call)
    sys.settrace(_on_call)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
