"""The shared parts of the benchmarks: the load generator, a real quorum, and figures of processes.

Everything runs on 127.0.0.1; every process is signalled by its own id only and ends with the script.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from quorumd.wire.metadata_topic import TOPIC

ROOT = Path(__file__).resolve().parents[1]
NODES = 3
START_TIMEOUT_S = 30
STOP_TIMEOUT_S = 15

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


class Cluster(Protocol):
    """Three nodes under load; `pids` and `ports` (of clients) go by index."""

    topic: str
    ports: list[int]

    def format(self) -> None:
        """Prepares empty directories; nothing runs yet."""

    def spawn(self, index: int) -> None:
        """Starts one node and does not wait for it."""

    def wait_ready(self) -> None:
        """Returns when every node that runs is ready."""

    def leader(self) -> int | None:
        """Index of the node that leads, or None."""

    def signal(self, index: int, number: signal.Signals) -> None:
        """Sends a signal to one node; returns when a deadly one has ended it."""

    @property
    def pids(self) -> list[int]:
        """Process ids of the nodes that run."""

    def pid(self, index: int) -> int:
        """Process id of a node that runs."""

    def stop(self) -> None:
        """Ends all nodes in order."""


class Leading(Protocol):
    """Nodes of which one may lead."""

    def leader(self) -> int | None:
        """Its index."""


def loadgen() -> Path:
    """The load generator."""
    return compiled("loadgen.c", "loadgen")


def tls_loadgen() -> Path:
    """The same with TLS."""
    libraries = ("-Wl,--no-as-needed", "-lssl", "-lcrypto")
    return compiled("loadgen.c", "loadgen-tls", "-DWITH_TLS", *libraries)


def compiled(source: str, name: str, *options: str) -> Path:
    """A program in C of this folder, compiled into `.cache/bench` if it is missing or outdated."""
    text, binary = Path(__file__).with_name(source), ROOT / ".cache" / "bench" / name
    changed_s = max(each.stat().st_mtime for each in (text, *text.parent.glob("*.h")))
    if not binary.exists() or binary.stat().st_mtime < changed_s:
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            raise SystemExit(f"{source} needs a C compiler: install gcc")
        binary.parent.mkdir(parents=True, exist_ok=True)
        part = binary.with_name(f"{name}.{os.getpid()}")
        command = [compiler, "-O2", "-Wall", "-Wextra", *options, "-o", str(part), str(text)]
        subprocess.run(command, check=True)
        part.rename(binary)
    return binary


def generate(cluster: Cluster, ports: Sequence[int], **options: object) -> dict[str, Any]:
    """One run of the load generator; `options` are its own, `clients=64` is `--clients 64`."""
    program = tls_loadgen() if "tls_certificate" in options else loadgen()
    command = [str(program), "--topic", cluster.topic, "--ports", _joined(ports)]
    if cluster.pids:
        command += ["--pids", _joined(cluster.pids)]
    for name, value in options.items():
        command.append("--" + name.replace("_", "-"))
        command += [] if value is True else [str(value)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise SystemExit(done.stderr.strip() or f"the load generator ended with {done.returncode}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


class Quorum:
    """`quorumd` nodes with the default configuration, started through their command line."""

    topic = TOPIC

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, object] | None = None,
        size: int = NODES,
        command: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """`settings` are configuration keys that differ from the defaults.

        `command` runs in place of `quorumd`, and takes its arguments; `environ` comes on top of this
        process's own.
        """
        self._folder = folder
        self._command = list(command) or [_quorumd()]
        self._environ = {**os.environ, **(environ or {})}
        self._settings = dict(settings or {})
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * size
        self.load_options: Mapping[str, object] = {}
        """Options of the load generator for this quorum."""
        found = free_ports(2 * size)
        self.ports, self._http_ports = found[:size], found[size:]

    def format(self) -> None:
        voters = ",".join(f"{i + 1}@127.0.0.1:{port}" for i, port in enumerate(self.ports))
        for index in range(len(self.ports)):
            keys = {
                "node.id": index + 1,
                "storage.dir": self._folder / f"node-{index + 1}",
                "listeners": f"CONTROLLER://127.0.0.1:{self.ports[index]}",
                "http.listen": f"127.0.0.1:{self._http_ports[index]}",
                "quorum.voters": voters,
                **self.settings_of(index),
            }
            self._config(index).write_text("".join(f"{k}: {v}\n" for k, v in keys.items()))
            self._run("format", "--config", str(self._config(index)), "--bootstrap")

    def settings_of(self, index: int) -> dict[str, object]:
        """Configuration keys of one node that differ from the defaults."""
        del index
        return dict(self._settings)

    def spawn(self, index: int, before: Sequence[str] = ()) -> None:
        """Starts the node; `before` is put before its command."""
        with self._output(index).open("ab") as output:
            self._processes[index] = subprocess.Popen(
                [*before, *self._command, "start", "--config", str(self._config(index))],
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                preexec_fn=die_with_parent,
            )

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not all(self._is_ready(i) for i, p in enumerate(self._processes) if p):
            for index, process in enumerate(self._processes):
                if process and process.poll() is not None:
                    raise SystemExit(f"node {index + 1} ended: {self._tail(index)}")
            if time.monotonic() > deadline:
                raise SystemExit(f"not ready after {timeout_s} s: {self._tail(0)}")
            time.sleep(0.02)

    def status(self, index: int) -> dict[str, Any]:
        """The node's /status."""
        with urllib.request.urlopen(self.url(index, "/status"), timeout=5) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def url(self, index: int, path: str) -> str:
        """URL of a path that the node serves by HTTP."""
        return f"http://127.0.0.1:{self._http_ports[index]}{path}"

    def log_folder(self, index: int) -> Path:
        """Folder in which the node keeps segments and snapshots."""
        return self._folder / f"node-{index + 1}" / f"{self.topic}-0"

    def leader(self) -> int | None:
        for index, process in enumerate(self._processes):
            if process and (answer := _describe_quorum(self.ports[index])):
                error, leader_id = answer
                if error == 0 and leader_id == index + 1:
                    return index
        return None

    def signal(self, index: int, number: signal.Signals) -> None:
        process = self._processes[index]
        if process is None:
            return
        process.send_signal(number)
        if number in (signal.SIGKILL, signal.SIGTERM):
            self._processes[index] = None
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes if process]

    def pid(self, index: int) -> int:
        process = self._processes[index]
        if process is None:
            raise SystemExit(f"node {index + 1} does not run")
        return process.pid

    def stop(self) -> None:
        for process in self._processes:
            if process:
                process.terminate()
        for index in range(len(self.ports)):
            self.signal(index, signal.SIGTERM)

    def _config(self, index: int) -> Path:
        return self._folder / f"node-{index + 1}.yaml"

    def _output(self, index: int) -> Path:
        return self._folder / f"node-{index + 1}.log"

    def _tail(self, index: int) -> str:
        return self._output(index).read_text(errors="replace")[-1500:]

    def _run(self, *arguments: str) -> None:
        done = subprocess.run(
            [*self._command, *arguments],
            env=self._environ,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"quorumd {arguments[0]} failed: {done.stdout}{done.stderr}")

    def _is_ready(self, index: int) -> bool:
        try:
            with urllib.request.urlopen(self.url(index, "/readyz"), timeout=1) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False


@contextmanager
def running_quorum(
    parent: Path | None = None,
    settings: Mapping[str, object] | None = None,
    size: int = NODES,
    command: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    kind: type[Quorum] = Quorum,
) -> Iterator[Quorum]:
    """A fresh quorum that is ready; its data lie below `parent` (default: the temporary folder)."""
    with formatted_quorum(parent, settings, size, command, environ, kind) as quorum:
        for index in range(size):
            quorum.spawn(index)
        quorum.wait_ready()
        yield quorum


@contextmanager
def formatted_quorum(
    parent: Path | None = None,
    settings: Mapping[str, object] | None = None,
    size: int = NODES,
    command: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    kind: type[Quorum] = Quorum,
) -> Iterator[Quorum]:
    """A fresh quorum of which nothing runs yet; at the end nothing of it is left."""
    with tempfile.TemporaryDirectory(prefix="quorumd-bench-", dir=parent) as folder:
        quorum = kind(Path(folder), settings, size, command, environ)
        try:
            quorum.format()
            yield quorum
        finally:
            quorum.stop()


def leader_of(nodes: Leading) -> int:
    """The leader's index, waited for."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while (leader := nodes.leader()) is None:
        if time.monotonic() > deadline:
            raise SystemExit(f"no leader within {START_TIMEOUT_S} s")
        time.sleep(0.02)
    return leader


def processor_seconds(pids: Sequence[int]) -> float:
    """Seconds of processor that these processes have used, user and kernel, since their start."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def resident_mb(pids: Sequence[int]) -> list[float]:
    """Resident memory of each process, in units of 10^6 bytes."""
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids]
    return [round(count * page_bytes / 1e6, 1) for count in pages]


def machine() -> dict[str, object]:
    """Properties of the machine that the figures depend on."""
    info = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":", 1)[1].strip() for line in info if "model name" in line), "?")
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def write_json(path: Path | None, figures: object) -> None:
    """The figures of a script with the machine they were measured on, if a file was asked for."""
    if path:
        path.write_text(json.dumps({"machine": machine(), "figures": figures}, indent=1) + "\n")


def free_ports(count: int) -> list[int]:
    """Different free ports below the ephemeral range, where no client's own end can take them."""
    found: list[int] = []
    port = 12_000 + os.getpid() * 16 % 18_000
    while len(found) < count:
        port += 1
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            found.append(port)
    return found


def _quorumd() -> str:
    """The command that belongs to this interpreter, else the one on the path."""
    beside = Path(sys.executable).with_name("quorumd")
    if beside.exists():
        return str(beside)
    if found := shutil.which("quorumd"):
        return found
    raise SystemExit("quorumd is not installed: run `make venv` and use .venv/bin/python")


def _describe_quorum(port: int) -> tuple[int, int] | None:
    """DescribeQuorum v0 by hand: the partition's error and leader id, or None without an answer."""
    topic = TOPIC.encode()
    body = b"\2" + bytes([len(topic) + 1]) + topic + b"\2" + struct.pack(">i", 0) + b"\0\0\0"
    request = struct.pack(">hhih", 55, 0, 1, -1) + b"\0" + body
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            stream = connection.makefile("rb")
            answer = stream.read(int.from_bytes(stream.read(4), "big"))
    except OSError:
        return None
    at = 4 + 1 + 2 + 1 + 1 + len(topic) + 1 + 4  # up to the partition's error code
    if len(answer) < at + 6:
        return None
    error, leader_id = struct.unpack_from(">hi", answer, at)
    return error, leader_id


def _joined(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


def die_with_parent() -> None:
    """For `preexec_fn`: the process gets SIGKILL when this one ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
