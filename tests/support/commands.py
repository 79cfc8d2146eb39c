"""`quorumd` and `quorumctl` run in this process: one of their own takes half a second to load them.

For commands that end by themselves. Not from two threads at once: what is printed is caught.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from typing import NamedTuple

from quorumd.cli.main import run
from quorumd.server.main import cli
from tests.support.canary import check


class Done(NamedTuple):
    """A command's exit code and what it printed."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        """All that it printed."""
        return self.out + self.err


def quorumctl(*arguments: object) -> Done:
    """`quorumctl` with these arguments."""
    return _captured(lambda: run([*map(str, arguments)]))


def quorumd(*arguments: object) -> Done:
    """`quorumd` with these arguments; not for `start`, which does not end."""

    def run_it() -> int:
        try:
            cli.main([*map(str, arguments)], prog_name="quorumd")
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else 0
        raise AssertionError("click ends what it runs")

    return _captured(run_it)


def _captured(act: Callable[[], int]) -> Done:
    with _text() as out, _text() as err:
        with redirect_stdout(out), redirect_stderr(err):
            code = act()
        out.seek(0)
        err.seek(0)
        done = Done(code, out.read(), err.read())
    check(done.text, "what a command printed")
    return done


def _text() -> io.TextIOWrapper:
    """With a `buffer`, as the standard streams have."""
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
