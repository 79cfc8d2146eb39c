"""How much work Python does in a call: a number that another load of the machine does not change."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

STEPS_PER_MS = 20_000
"""Steps of a millisecond, while nothing counts them: 30 ns each were measured on a machine of 2023."""


def steps(action: Callable[[], object]) -> int:
    """Lines of Python that `action` runs, and functions in C that it calls.

    Bytes that one call copies or checks are not seen: who allows many has to count them.
    """
    count = 0

    def on_line(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += 1
        return on_line

    def on_call(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        if event == "c_call":
            count += 1

    before = sys.gettrace(), sys.getprofile()
    sys.settrace(on_line)
    sys.setprofile(on_call)
    try:
        action()
    finally:
        sys.settrace(before[0])
        sys.setprofile(before[1])
    return count
