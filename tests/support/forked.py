"""Nodes forked from a process that has loaded all of `quorumd`, which takes a second otherwise.

From `quorumd`'s entry point on they are what the command starts.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.support.loaded_node", __name__])


class ForkedNode:
    """A running `quorumd start`; has what is used of subprocess.Popen."""

    def __init__(
        self, config: Path, output: Path, constants: Mapping[str, object] | None = None
    ) -> None:
        """`constants` of modules, by their dotted names, have these values in it."""
        arguments = (str(config), str(output), dict(os.environ), dict(constants or {}))
        sys.audit("subprocess.Popen", "node", arguments, None, None)
        self._process = _context.Process(target=_run, args=arguments, daemon=True)
        self._process.start()
        assert self._process.pid is not None, "it was started"
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """As `poll`."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """The exit code, negative for a signal, None while it runs."""
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        """The exit code. Raises subprocess.TimeoutExpired."""
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired("quorumd start", timeout or 0)
        return code


def die_with_parent() -> None:
    """The kernel ends this process with the thread that started it."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _run(config: str, output: str, environ: dict[str, str], constants: dict[str, object]) -> None:
    die_with_parent()
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    os.chdir(Path(output).parent)
    os.environ.clear()
    os.environ.update(environ)
    sys.argv = ["quorumd", "start", "--config", config]
    for name, value in constants.items():
        module, _, constant = name.rpartition(".")
        assert hasattr(import_module(module), constant), name
        setattr(import_module(module), constant, value)
    from quorumd.server.main import main

    main()
