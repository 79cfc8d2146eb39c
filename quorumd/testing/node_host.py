"""A process that has loaded the daemon, and forks `quorumd` commands that are ready in a few milliseconds.

It gets requests over a socket (`host_client` is the other end): each is a file with one JSON object, whose
handle is sent, and gets one response. It ends with the process that started it, however that ends, and then
kills its forks and removes the folders that were entrusted to it. A forked process dies with this one.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import select
import shutil
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from quorumd.server import run as _run  # loaded here once, not in each node
from quorumd.server.main import cli, main
from quorumd.server.page import page as _page
from quorumd.server.page import source as _source
from quorumd.testing import links
from quorumd.wire.registry import warm_all

_PR_SET_PDEATHSIG = 1
_PRELOADED = (_run, _page, _source)
_END = object()


class NodeHost:
    """Answers requests until the other end is gone. What is forked stays a zombie until it is waited for,
    so that its process id belongs to no other process as long as it is used."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._forked: dict[int, str] = {}
        """With the folder that each belongs to."""
        self._folders: set[str] = set()

    def serve(self) -> None:
        """Until the process that started this one has ended, or has closed its end of the socket."""
        codecs, are_all_compiled = warm_all(), False
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        # Not the socket alone: a process forked from that one may hold it open.
        with contextlib.suppress(OSError):
            poll.register(os.pidfd_open(os.getppid()), select.POLLIN)
        own = self._channel.fileno()
        try:
            while True:
                asked = [handle for handle, _ in poll.poll(None if are_all_compiled else 0)]
                if asked and (asked != [own] or not self._respond()):
                    return
                if not asked:
                    # Here once, while nobody asks, instead of in each node.
                    are_all_compiled = next(codecs, _END) is _END
        finally:
            self._clean_up()

    def _respond(self) -> bool:
        """False if the other end is gone."""
        # The file, and the one handle that may go with it.
        data, sent, _, _ = socket.recv_fds(self._channel, 1, 2)
        if not data:
            return False
        with os.fdopen(sent[0]) as file:
            request: dict[str, Any] = json.load(file)
        handles = sent[1:]
        number = request.pop("number")
        do: Callable[..., dict[str, object]] = getattr(self, f"on_{request.pop('do')}")
        response = {"number": number, **do(*handles, **request)}
        for handle in handles:
            os.close(handle)
        try:
            self._channel.send(json.dumps(response).encode())
        except OSError:
            return False
        return True

    # -- requests

    def on_keep(self, folder: str) -> dict[str, object]:
        """The folder is removed when this process ends."""
        self._folders.add(folder)
        return {}

    def on_remove(self, folder: str) -> dict[str, object]:
        """Kill what was forked for it, and remove it."""
        for pid in [pid for pid, at in self._forked.items() if at == folder]:
            self.on_end(pid)
        _remove(folder)
        self._folders.discard(folder)
        return {}

    def on_run(
        self, commands: list[list[str]], output: str, environ: dict[str, str]
    ) -> dict[str, object]:
        """Run `quorumd` commands one after the other, the last one being `start`."""
        return {"pid": self._fork(output, lambda: _run_commands(commands, output, environ))}

    def on_link(self, control: int, nodes: list[list[Any]], output: str) -> dict[str, object]:
        """Run the links between nodes, which obey the process at the other end of this handle."""

        def run() -> None:
            _redirect(output)
            links.run(control, [links.LinkedNode(*node) for node in nodes])

        return {"pid": self._fork(output, run, control)}

    def on_end(self, pid: int) -> dict[str, object]:
        """Kill a process that was forked, and wait for its end."""
        os.kill(pid, signal.SIGKILL)
        return self._wait(pid, 0)

    def on_poll(self, pid: int) -> dict[str, object]:
        """Its exit code as that of subprocess.Popen; null while it runs. Not asked again when it has one."""
        return self._wait(pid, os.WNOHANG)

    # -- processes

    def _fork(self, output: str, run: Callable[[], None], *kept: int) -> int:
        pid = os.fork()
        if not pid:
            _become(run, {0, 1, 2, *kept})
        self._forked[pid] = str(Path(output).parent)
        return pid

    def _wait(self, pid: int, options: int) -> dict[str, object]:
        ended, status = os.waitpid(pid, options)
        if not ended:
            return {"code": None}
        del self._forked[pid]
        return {"code": os.waitstatus_to_exitcode(status)}

    def _clean_up(self) -> None:
        for pid in self._forked:
            os.kill(pid, signal.SIGKILL)
        for pid in self._forked:
            os.waitpid(pid, 0)
        for folder in self._folders:
            _remove(folder)


def _remove(folder: str) -> None:
    # A builder of snapshots may need a moment to notice that its node was killed.
    for _ in range(3):
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.exists(folder):
            return


def _become(run: Callable[[], None], kept: set[int]) -> NoReturn:
    """Be the process that was forked, to its end."""
    code = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        lowest = 3
        for handle in sorted(kept - {0, 1, 2}):
            os.closerange(lowest, handle)
            lowest = handle + 1
        os.closerange(lowest, os.sysconf("SC_OPEN_MAX"))
        run()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _redirect(output: str) -> None:
    handle = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.close(handle)


def _run_commands(commands: list[list[str]], output: str, environ: dict[str, str]) -> None:
    _redirect(output)
    os.chdir(Path(output).parent)
    os.environ.clear()
    os.environ.update(environ)
    *before, last = commands
    for command in before:
        cli.main(command, prog_name="quorumd", standalone_mode=False)
    sys.argv = ["quorumd", *last]
    main()


def serve(handle: int) -> None:
    """The main function of the process; the handle is its end of the socket."""
    assert _PRELOADED
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=handle) as channel:
        NodeHost(channel).serve()
