"""Prometheus and promtool for tests: where they come from, and a server that scrapes real nodes.

Those on the path are used, else Debian's package, fetched once into `.cache/prometheus` of the project;
that needs apt-get and dpkg-deb, and neither root nor an installation.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.error import HTTPError
from urllib.parse import urlencode

from tests.support.ports import free_port

FETCH_TIMEOUT_S = 300
ASK_S = 5.0
WAIT_S = 30.0
POLL_S = 0.05

_CACHE = Path(__file__).resolve().parents[2] / ".cache" / "prometheus"
_NAMES = ("prometheus", "promtool")
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)

T = TypeVar("T")


class Programs(NamedTuple):
    """Where they are."""

    prometheus: Path
    promtool: Path


class CannotFetch(Exception):
    """Prometheus is not here and cannot be brought here; says why, and what to do."""


@functools.cache
def programs() -> Programs:
    """Both programs, fetched first if need be. Raises CannotFetch."""
    found = [shutil.which(name) for name in _NAMES]
    if all(found):
        return Programs(*(Path(path) for path in found if path))
    cached = Programs(*(_CACHE / "bin" / name for name in _NAMES))
    if not cached.promtool.exists():
        _CACHE.mkdir(parents=True, exist_ok=True)
        with (_CACHE / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not cached.promtool.exists():
                _fetch(_CACHE / "bin")
    return cached


def run_promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Its exit code and what it says."""
    return subprocess.run(
        [programs().promtool, *arguments], capture_output=True, text=True, timeout=100, check=False
    )


class Sample(NamedTuple):
    labels: dict[str, str]
    value: float


class Server:
    """A Prometheus that runs, asked through its API."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def is_ready(self) -> bool:
        """Whether it answers queries. Raises OSError if it does not yet."""
        with urllib.request.urlopen(f"{self._url}/-/ready", timeout=ASK_S) as answer:
            return bool(answer.status == 200)

    def get(self, path: str, **arguments: str) -> Any:
        """`data` of the answer. Raises AssertionError with Prometheus' own words if it refuses."""
        url = f"{self._url}/api/v1/{path}?{urlencode(arguments)}"
        try:
            with urllib.request.urlopen(url, timeout=ASK_S) as answer:
                return json.load(answer)["data"]
        except HTTPError as error:
            with error:
                raise AssertionError(f"{path} {arguments}: {error.read().decode()}") from None

    def query(self, expression: str) -> list[Sample]:
        """What an instant query finds now."""
        found = self.get("query", query=expression)
        assert found["resultType"] == "vector", expression
        return [Sample(row["metric"], float(row["value"][1])) for row in found["result"]]

    def query_range(self, expression: str, seconds: float) -> list[dict[str, Any]]:
        """The series of the last seconds, as Prometheus gives them."""
        now = time.time()
        found: list[dict[str, Any]] = self.get(
            "query_range", query=expression, start=str(now - seconds), end=str(now), step="1"
        )["result"]
        return found

    def alerts(self) -> dict[str, set[str]]:
        """States (pending, firing) of the alerts that are not quiet, by name."""
        found: dict[str, set[str]] = {}
        for alert in self.get("alerts")["alerts"]:
            found.setdefault(alert["labels"]["alertname"], set()).add(alert["state"])
        return found

    def wait_for(self, look: Callable[[], T | None], what: str, timeout_s: float = WAIT_S) -> T:
        """What `look` finds as soon as it is truthy."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                if found := look():
                    return found
            except OSError:
                pass  # it does not listen, or is not ready
            if time.monotonic() > deadline:
                raise AssertionError(f"waited {timeout_s} s for {what}")
            time.sleep(POLL_S)

    def wait_firing(self, name: str) -> None:
        """Return when an alert of this name fires."""
        self.wait_for(lambda: "firing" in self.alerts().get(name, ()), f"{name} to fire")


@contextmanager
def running_prometheus(folder: Path, config: Path) -> Iterator[Server]:
    """A Prometheus with its data in a folder, ready for queries; killed at the end, or with the tests."""
    port = free_port()
    log_path = folder / "prometheus.log"
    command: Sequence[str | Path] = [
        programs().prometheus,
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**os.environ, "GOMAXPROCS": "1"},
            preexec_fn=_die_with_parent,
        )
    try:
        server = Server(port)

        def ready() -> bool:
            assert process.poll() is None, log_path.read_text()
            return server.is_ready()

        server.wait_for(ready, "Prometheus to listen")
        yield server
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _fetch(target: Path) -> None:
    """Fetch the package and move its two programs to `target`, which is whole then or absent."""
    if missing := [name for name in ("apt-get", "dpkg-deb") if shutil.which(name) is None]:
        raise CannotFetch(
            f"prometheus and promtool are not on the path, and without {missing[0]} they cannot be "
            "fetched: install Prometheus 2.42 or newer"
        )
    with tempfile.TemporaryDirectory(dir=_CACHE) as name:
        scratch = Path(name)
        own_lists = [f"-oDir::State::lists={scratch}/lists", f"-oDir::Cache={scratch}/cache"]
        # The machine's package lists, if it has fresh ones; else lists of our own, which need no root.
        if _apt_get(scratch, "download", "prometheus"):
            (scratch / "lists/partial").mkdir(parents=True)
            (scratch / "cache/archives/partial").mkdir(parents=True)
            problem = _apt_get(scratch, *own_lists, "update") or _apt_get(
                scratch, *own_lists, "download", "prometheus"
            )
            if problem:
                raise CannotFetch(
                    "prometheus and promtool are not on the path, and Debian's package could not be "
                    f"fetched; install Prometheus 2.42 or newer. apt-get says: {problem}"
                )
        (package,) = scratch.glob("prometheus_*.deb")
        subprocess.run(["dpkg-deb", "-x", package, scratch / "unpacked"], check=True)
        programs_of_package = scratch / "bin"
        programs_of_package.mkdir()
        for program in _NAMES:
            (scratch / "unpacked/usr/bin" / program).rename(programs_of_package / program)
        programs_of_package.rename(target)


def _apt_get(folder: Path, *arguments: str) -> str:
    """Run it in a folder; its last words if it fails, empty if it does not."""
    try:
        done = subprocess.run(
            ["apt-get", "-q", "-oAPT::Sandbox::User=", *arguments],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=FETCH_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"nothing within {FETCH_TIMEOUT_S} s"
    return (done.stderr or done.stdout).strip()[-300:] if done.returncode else ""


if __name__ == "__main__":  # before the tests, so that no test's time limit covers the download
    try:
        print(f"Prometheus: {programs().prometheus}")
    except CannotFetch as error:
        print(f"Prometheus tests: {error}")
