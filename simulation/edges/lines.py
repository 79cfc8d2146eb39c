"""Lines of some files that each test and each seed executes, so that a mutant is tried only by
those that come past it."""

from __future__ import annotations

import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

Lines = dict[str, set[int]]
"""By file name."""


@contextmanager
def recorded(filenames: set[str]) -> Iterator[Lines]:
    """The lines that are executed inside the block, in threads that begin there, too."""
    lines: Lines = defaultdict(set)
    unseen: dict[CodeType, set[int]] = {}

    def on_call(frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        code = frame.f_code
        if code.co_filename not in filenames:
            return None
        left = unseen.get(code)
        if left is None:
            left = unseen[code] = {line for _, _, line in code.co_lines() if line is not None}
            lines[code.co_filename].add(code.co_firstlineno)
            left.discard(code.co_firstlineno)
        if not left:
            return None
        return on_line

    def on_line(frame: FrameType, event: str, argument: Any) -> Callable[..., Any]:
        line = frame.f_lineno
        left = unseen[frame.f_code]
        if line in left:
            left.discard(line)
            lines[frame.f_code.co_filename].add(line)
        return on_line

    before = sys.gettrace()
    threading.settrace(on_call)
    sys.settrace(on_call)
    try:
        yield lines
    finally:
        sys.settrace(before)
        threading.settrace(None)
