"""The process that nodes are forked from: one for all quorums of this process, started with the first."""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any

from quorumd.testing.errors import LocalQuorumError

HostRequest = tuple[str, Sequence[int], Mapping[str, object]]
"""A request: its name, handles that go with it, and its fields."""
_RESPONSE_BYTES_MAX = 1 << 16
END_S = 5.0
"""Time that the process may take to end when its end of the socket does not respond any more."""
# The quorumd that was imported here, wherever this process found it; behind all other folders, as none of
# them may be hidden by what lies beside it.
_CODE = (
    "import gc, sys; gc.disable(); sys.path.append(sys.argv[2]); "
    "from quorumd.testing.node_host import serve; serve(int(sys.argv[1]))"
)
_ROOT = Path(__file__).resolve().parents[2]


class HostClient:
    """Starts the host, and asks it. From any thread."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._lock = Lock()
        self._numbers = count(1)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (as long-lived as the host)
        self._channel, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            # A session of its own: Ctrl-C is for the test process, which then ends the nodes.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _CODE, str(other.fileno()), str(_ROOT)],
                stdin=subprocess.DEVNULL,
                stdout=self._errors,
                stderr=self._errors,
                env=environment(),
                cwd="/",
                pass_fds=[other.fileno()],
                start_new_session=True,
            )
        atexit.register(self.close)

    @property
    def is_alive(self) -> bool:
        """True if this process can use it."""
        return self.owner == os.getpid() and self._process.poll() is None

    def send(self, number: int, do: str, /, *handles: int, **request: object) -> None:
        """Sends a request. Its response has the same number, and may take until the host has loaded."""
        with os.fdopen(os.memfd_create("request"), "w") as file:
            json.dump({"number": number, "do": do, **request}, file)
            file.seek(0)
            try:
                # A file: an environment may be larger than a message of a socket.
                socket.send_fds(self._channel, [b"."], [file.fileno(), *handles])
            except OSError as error:
                raise self._lost() from error

    def ask_all(self, requests: Sequence[HostRequest]) -> list[dict[str, Any]]:
        """The responses to some requests, in order. Raises LocalQuorumError if the host has ended."""
        with self._lock:
            numbers = [next(self._numbers) for _ in requests]
            for number, (do, handles, request) in zip(numbers, requests, strict=True):
                self.send(number, do, *handles, **request)
            return [self._receive(number) for number in numbers]

    def _receive(self, number: int) -> dict[str, Any]:
        """The response with this number. One that is left of an interrupted request is skipped."""
        while True:
            try:
                data = self._channel.recv(_RESPONSE_BYTES_MAX)
            except OSError:
                data = b""
            if not data:
                raise self._lost()
            response: dict[str, Any] = json.loads(data)
            if response.pop("number") == number:
                return response

    def ask(self, do: str, **request: object) -> dict[str, Any]:
        """The response to one request. Raises LocalQuorumError if the host has ended."""
        return self.ask_all([(do, (), request)])[0]

    def close(self) -> None:
        """The host ends, and all that it has forked. A fork of its owner does nothing."""
        if self.owner == os.getpid():
            atexit.unregister(self.close)
            self._channel.close()
            self._process.wait()
            self._errors.close()

    def _lost(self) -> LocalQuorumError:
        try:
            code = self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip()
        return LocalQuorumError(
            f"the process that starts nodes has ended, exit code {code}. It said:\n"
            f"{said or '(nothing: it was killed)'}\n"
            "Is quorumd installed with all it needs (`quorumd --version`)? Then begin with a new LocalQuorum."
        )


def environment() -> dict[str, str]:
    """The environment of nodes: this process's, without what would override their configuration."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("QUORUMD_") or name == "QUORUMD_LOG_LEVEL"
    }


_hosts: list[HostClient] = []
"""The last one is in use; a process that is forked from this one leaves it alone, and starts another."""
_hosts_lock = Lock()


def shared_host() -> HostClient:
    """This process's host, started if there is none."""
    with _hosts_lock:
        if not _hosts or not _hosts[-1].is_alive:
            if _hosts:
                _hosts[-1].close()
            _hosts.append(HostClient())
        return _hosts[-1]
