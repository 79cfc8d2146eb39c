"""The end of a run in which a property does not hold."""

from __future__ import annotations


class Violation(Exception):
    """A property is violated. `what` says how, with offsets and epochs."""

    def __init__(self, violated: str, what: str) -> None:
        super().__init__(f"{violated}: {what}")
        self.violated = violated
        self.what = what


class ProcessEnded(BaseException):
    """Control flow: a simulated process has just ended by itself, and does nothing more.

    Not an Exception: nothing of the daemon may catch it and go on.
    """
