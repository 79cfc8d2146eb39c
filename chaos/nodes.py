"""The nodes of a chaos run: real processes, started again when they end, and what they say of themselves."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos.hosts import Hosts

VOTERS = 3
PAGE_S = 2.0
COMMAND_S = 60.0
_BIN = Path(sys.executable).parent
SETTINGS = {
    "quorum.fetch.timeout.ms": 1000,
    "quorum.election.timeout.ms": 500,
    "quorum.election.backoff.max.ms": 500,
    "log.segment.bytes": 4 << 20,
    "snapshot.max.new.record.bytes": 8 << 20,
}


@dataclass(frozen=True, slots=True)
class Ended:
    """A node's process ended by itself."""

    node: int
    exit_code: int
    at_s: float


class Nodes:
    """Nodes 1 to `count` of one quorum; the first three are its first voters, the others observe.

    A supervisor thread starts nodes again that have ended by themselves, as on a real host.
    """

    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts
        self.ids = hosts.ids
        self.ended: list[Ended] = []
        self._wanted: set[int] = set()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._lock = threading.RLock()
        self._is_over = threading.Event()
        self._supervisor = threading.Thread(target=self._supervise, daemon=True)

    @property
    def bootstrap(self) -> str:
        return ",".join(map(self.hosts.address, self.ids))

    def storage(self, node: int) -> Path:
        return self.hosts.disk(node) / "data"

    def log(self, node: int) -> Path:
        """File with all that the node has logged, in all of its lives."""
        return self.hosts.folder / f"node-{node}.log"

    # -- life

    def create(self) -> None:
        """Format a new quorum and start it."""
        first = list(self.ids)[:VOTERS]
        uuids = {node: self._quorumd("random-uuid").strip() for node in first}
        voters = ",".join(f"{node}@{self.hosts.address(node)}:{uuids[node]}" for node in first)
        for node in self.ids:
            self._configure(node)
            if node in first:
                self._format(node, "--initial-voters", voters)
            else:
                self._format(node)
        for node in self.ids:
            self.start(node)
        self._supervisor.start()

    def close(self) -> None:
        """Kill all that is left."""
        self._is_over.set()
        if self._supervisor.is_alive():
            self._supervisor.join()
        for node in self.ids:
            self.kill(node)

    def start(self, node: int) -> None:
        """Starts the node, and again whenever it ends, until it is killed or stopped here.

        One that runs is left alone: two faults may have ended it, and both start it again.
        """
        with self._lock:
            self._wanted.add(node)
            process = self._processes.get(node)
            if process is None or process.poll() is not None:
                self._spawn(node)

    def kill(self, node: int) -> None:
        """SIGKILL."""
        self._end(node, signal.SIGKILL)

    def stop(self, node: int) -> None:
        """SIGTERM, and wait for the end."""
        self._end(node, signal.SIGTERM)

    def pause(self, node: int) -> None:
        """SIGSTOP: it says nothing, and its connections stay."""
        self._processes[node].send_signal(signal.SIGSTOP)

    def go_on(self, node: int) -> None:
        """SIGCONT."""
        if node in self._processes:
            self._processes[node].send_signal(signal.SIGCONT)

    def lose_disk(self, node: int) -> None:
        """The node is down; it gets an empty disk, formatted to join."""
        shutil.rmtree(self.storage(node))
        self._format(node)

    # -- asking

    def status(self, node: int) -> dict[str, Any] | None:
        """Its /status; None if it does not respond."""
        try:
            url = f"http://{self.hosts.http(node)}/status"
            with urllib.request.urlopen(url, timeout=PAGE_S) as page:
                found: dict[str, Any] = json.load(page)
        except (OSError, ValueError):
            return None
        return found

    def statuses(self) -> dict[int, dict[str, Any]]:
        """Status of each node that answers."""
        found = {node: self.status(node) for node in self.ids}
        return {node: status for node, status in found.items() if status is not None}

    def voters(self) -> list[int]:
        """Ids of the voters, as the leader names them; none without a leader."""
        leader = self.leader()
        status = None if leader is None else self.status(leader)
        return [] if status is None else sorted({voter["id"] for voter in status["voters"]})

    def leader(self) -> int | None:
        """The node that says that it leads in the latest epoch."""
        leaders = [
            (status["epoch"], node)
            for node, status in self.statuses().items()
            if status["role"] == "leader"
        ]
        return max(leaders)[1] if leaders else None

    def quorumctl(self, *arguments: object) -> tuple[int, str]:
        """Run to the end: exit code, and all that was printed."""
        environ = {**os.environ, "QUORUM_BOOTSTRAP_SERVERS": self.bootstrap}
        done = subprocess.run(
            [_BIN / "quorumctl", *map(str, arguments)],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=2 * COMMAND_S,
            check=False,
        )
        return done.returncode, done.stdout

    def keep_files(self, nodes: Iterable[int]) -> None:
        """Copy the disks of nodes that do not run beside the logs."""
        for node in nodes:
            shutil.copytree(self.storage(node), self.hosts.folder / f"files-{node}")

    # -- processes

    def _spawn(self, node: int) -> None:
        with self.log(node).open("ab") as log:
            self._processes[node] = subprocess.Popen(
                [
                    *self.hosts.prefix(node),
                    _BIN / "quorumd",
                    "start",
                    "--config",
                    self._config(node),
                ],
                env=self.hosts.environ(node),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _end(self, node: int, number: signal.Signals) -> None:
        with self._lock:
            self._wanted.discard(node)
            process = self._processes.get(node)
        if process is None:
            return
        process.send_signal(number)
        process.send_signal(signal.SIGCONT)
        try:
            process.wait(COMMAND_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            self.ended.append(Ended(node, -signal.SIGKILL, time.monotonic()))

    def _supervise(self) -> None:
        while not self._is_over.wait(1.0):
            with self._lock:
                for node in list(self._wanted):
                    code = self._processes[node].poll()
                    if code is not None:
                        self.ended.append(Ended(node, code, time.monotonic()))
                        self._spawn(node)

    # -- files

    def _config(self, node: int) -> Path:
        return self.hosts.folder / f"node-{node}.yaml"

    def _configure(self, node: int) -> None:
        keys = {
            "node.id": node,
            "storage.dir": self.storage(node),
            "listeners": f"CONTROLLER://{self.hosts.address(node)}",
            "http.listen": self.hosts.http(node),
            "quorum.bootstrap.servers": self.bootstrap,
            **SETTINGS,
        }
        text = "".join(f"{key}: {value}\n" for key, value in keys.items())
        self._config(node).write_text(text)

    def _format(self, node: int, *options: str) -> None:
        self._quorumd("format", "--config", self._config(node), *options)

    def _quorumd(self, *arguments: object) -> str:
        command = [str(_BIN / "quorumd"), *map(str, arguments)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout
