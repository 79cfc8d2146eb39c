"""Real `quorumd` processes on the loopback, for tests of a live quorum and of what happens to it.

Knows a node only from outside: its command line, its signals, DescribeQuorum on its port, its HTTP
pages and its files. Nothing survives the test process: the kernel kills the nodes with it.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

from quorumd import QuorumAdmin
from quorumd.storage.errors import StorageError
from quorumd.storage.layout import LOG_SUFFIX, PARTITION_DIRECTORY
from quorumd.storage.reader import TailKind, find_files
from quorumd.wire.codec import decode, encode
from quorumd.wire.errors import MalformedMessage
from quorumd.wire.headers import decode_response_header, encode_request_header
from quorumd.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartition,
    DescribeQuorumRequestTopic,
    DescribeQuorumResponse,
    DescribeQuorumResponsePartition,
)
from quorumd.wire.records import Record, iter_records
from quorumd.wire.schema import Message
from tests.support.canary import check
from tests.support.commands import quorumd
from tests.support.forked import ForkedNode, die_with_parent
from tests.support.ports import free_ports

TOPIC = "__cluster_metadata"
# Much longer than anything takes on an idle machine: who waits goes on as soon as it can.
WAIT_S = 40.0
STOP_S = 30.0
PAGE_S = 5.0
ASK_S = 1.0
POLL_MIN_S, POLL_MAX_S = 0.02, 0.1
LOG_LINES = 60

_DESCRIBE_VERSION = 2

T = TypeVar("T")
M = TypeVar("M", bound=Message)
C = TypeVar("C", bound="Cluster")


def limited_to(open_files: int) -> tuple[str, ...]:
    """A prefix of a command whose process can't have more."""
    return "sh", "-c", f'ulimit -n {open_files} && exec "$@"', "sh"


class Ended(NamedTuple):
    """How a node's process ended (negative: by that signal), and what it had logged."""

    exit_code: int
    output: str


class Cluster:
    """Formatted nodes, by id from 1: `size` voters, then the observers.

    `settings` are configuration keys that differ from the defaults. Start and stop nodes from the thread
    that made the cluster.
    """

    constants: ClassVar[Mapping[str, object]] = {}
    """Of modules, by their dotted names: they have these values in nodes that `start` starts."""

    def __init__(
        self,
        folder: Path,
        *,
        size: int = 3,
        observers: int = 0,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        self.folder = folder
        self.ids = tuple(range(1, size + observers + 1))
        self.voters = self.ids[:size]
        self._settings = dict(settings or {})
        ports = free_ports(2 * len(self.ids))
        self._ports = dict(zip(self.ids, ports[: len(self.ids)], strict=True))
        self._http_ports = dict(zip(self.ids, ports[len(self.ids) :], strict=True))
        self._processes: dict[int, subprocess.Popen[bytes] | ForkedNode] = {}
        self._suspended: set[int] = set()

    # -- where things are

    def address(self, node: int) -> str:
        """host:port of the node's listener."""
        return f"127.0.0.1:{self._ports[node]}"

    def port(self, node: int) -> int:
        """The listener's port."""
        return self._ports[node]

    @property
    def bootstrap(self) -> str:
        """Every node's address, as clients take them."""
        return ",".join(map(self.address, self.ids))

    def http_url(self, node: int, page: str) -> str:
        """Where the node serves a page, `/status` for example."""
        return f"http://127.0.0.1:{self._http_ports[node]}{page}"

    def storage_dir(self, node: int) -> Path:
        """The folder with meta.properties."""
        return self.folder / f"node-{node}"

    def log_folder(self, node: int) -> Path:
        """The folder with the segments."""
        return self.storage_dir(node) / PARTITION_DIRECTORY

    def config_path(self, node: int) -> Path:
        """The node's configuration file."""
        return self.folder / f"node-{node}.yaml"

    def output(self, node: int) -> str:
        """Everything that the node has logged, over all its starts."""
        path = self._output_path(node)
        return path.read_text(errors="replace") if path.exists() else ""

    def wait_logged(self, node: int, text: str, *, since: int = 0) -> None:
        """Returns when the node has logged this: a thread of its own writes lines, some time after the event.

        `since` is the length of an earlier `output`.
        """
        self.wait_for(lambda: text in self.output(node)[since:], f"node {node} to log {text!r}")

    def logs(self) -> str:
        """The newest log lines of every node."""
        parts = []
        for node in self.ids:
            lines = self.output(node).splitlines()[-LOG_LINES:]
            parts.append("\n".join([f"-- node {node}", *lines]))
        return "\n".join(parts)

    # -- what is done to nodes

    def format(self, *, bootstrap: bool = True, cluster_id: str | None = None) -> None:
        """Write the configuration files and prepare the folders."""
        self.folder.mkdir(parents=True, exist_ok=True)
        named = [] if cluster_id is None else ["--cluster-id", cluster_id]
        for node in self.ids:
            self.write_config(node)
            is_first = bootstrap and node in self.voters
            self.format_one(node, *(["--bootstrap"] if is_first else []), *named)

    def format_one(self, node: int, *options: str) -> None:
        """`quorumd format` for a node that is configured."""
        done = quorumd("format", "--config", self.config_path(node), *options)
        if done.code:
            raise AssertionError(f"format failed: {done.text}")

    def new_disk(self, node: int, *options: str) -> None:
        """A node that does not run gets an empty directory, formatted to join."""
        # Taken out, not emptied: a builder of snapshots may need a moment to notice that its node was killed.
        self.storage_dir(node).rename(tempfile.mkdtemp(prefix=f"old-disk-{node}-", dir=self.folder))
        self.format_one(node, *options)

    def write_config(self, node: int, changes: Mapping[str, object] | None = None) -> None:
        """The node's file, with these keys added or changed for its next start."""
        voters = ",".join(f"{other}@{self.address(other)}" for other in self.voters)
        keys = {
            "node.id": node,
            "storage.dir": self.storage_dir(node),
            "listeners": f"CONTROLLER://{self.address(node)}",
            "http.listen": f"127.0.0.1:{self._http_ports[node]}",
            **({"quorum.voters": voters} if voters else {}),
            **self._settings,
            **(changes or {}),
        }
        self.config_path(node).write_text("".join(f"{k}: {v}\n" for k, v in keys.items()))

    def start(self, *nodes: int) -> None:
        """Start these nodes (none named: all) that do not run; does not wait for them.

        Forked from a process that has loaded what a node is; `start_with` is the command itself.
        """
        for node in nodes or self.ids:
            if node not in self._processes:
                self._processes[node] = ForkedNode(
                    self.config_path(node), self._output_path(node), self.constants
                )

    def start_with(
        self,
        node: int,
        *,
        prefix: Sequence[str] = (),
        command: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """Start a node by the installed command, or this one, perhaps under another (strace) or with more in
        its environment."""
        with self._output_path(node).open("ab") as output:
            quorumd = command or [str(Path(sys.executable).with_name("quorumd"))]
            self._processes[node] = subprocess.Popen(
                [*prefix, *quorumd, "start", "--config", str(self.config_path(node))],
                env={**os.environ, **(environ or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                preexec_fn=die_with_parent,
            )

    def stop(self, node: int) -> Ended:
        """SIGTERM, and wait for the end. Fails if the node does not end by itself in time."""
        return self._end(node, signal.SIGTERM)

    def terminate(self, node: int) -> None:
        """SIGTERM, without waiting."""
        self._processes[node].send_signal(signal.SIGTERM)

    def kill(self, node: int) -> Ended:
        """SIGKILL, and wait for the end."""
        return self._end(node, signal.SIGKILL)

    def restart(self, node: int) -> None:
        """Stop it in order, start it again, and wait until it is ready."""
        self.stop(node)
        self.start(node)
        self.wait_ready(node)

    def suspend(self, node: int) -> None:
        """SIGSTOP: its connections stay open, and nothing answers."""
        self._processes[node].send_signal(signal.SIGSTOP)
        self._suspended.add(node)

    def resume(self, node: int) -> None:
        """SIGCONT."""
        self._processes[node].send_signal(signal.SIGCONT)
        self._suspended.discard(node)

    def resume_all(self) -> None:
        """SIGCONT to every node that is suspended."""
        for node in list(self._suspended):
            self.resume(node)

    def kill_all(self) -> None:
        """SIGKILL to whatever runs. Fails if a node has logged a secret."""
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()
        self._processes.clear()
        self._suspended.clear()
        for node in self.ids:
            check(self.output(node), f"the log of node {node}")

    def stop_all(self) -> None:
        """SIGTERM to every node, one after the other, so that the last ones still have a quorum."""
        for node in sorted(self._processes):
            self.stop(node)

    def running(self) -> tuple[int, ...]:
        """The nodes whose process runs and is not suspended."""
        return tuple(
            node
            for node in self.ids
            if node in self._processes
            and self._processes[node].poll() is None
            and node not in self._suspended
        )

    def pid(self, node: int) -> int:
        """Process id of a node that was started."""
        return self._processes[node].pid

    def wait_exit(self, node: int, timeout_s: float = STOP_S) -> Ended:
        """Wait for a node that ends by itself."""
        process = self._processes[node]
        try:
            exit_code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"node {node} runs on after {timeout_s} s") from None
        del self._processes[node]
        self._suspended.discard(node)
        return Ended(exit_code, self.output(node))

    # -- what nodes say

    def ask(
        self,
        node: int,
        request: Message,
        response: type[M],
        version: int,
        timeout_s: float = ASK_S,
    ) -> M | None:
        """The node's answer to a request, on a connection of its own; None if it gives none."""
        return ask_port(self._ports[node], request, response, version, timeout_s)

    def describe(self, node: int) -> DescribeQuorumResponsePartition | None:
        """The node's answer to DescribeQuorum; None if it gives none within a second."""
        return describe_quorum_at(self._ports[node])

    def leader(self) -> int | None:
        """The node that says it leads, in the newest epoch if several do."""
        claims = []
        for node in self.running():
            answer = self.describe(node)
            if answer is not None and not answer.error_code and answer.leader_id == node:
                claims.append((answer.leader_epoch, node))
        return max(claims)[1] if claims else None

    def metric(self, node: int, name: str) -> float:
        """The value of a metric, named as in the page."""
        _, body = self._page(node, "/metrics")
        found = re.search(rf"^{re.escape(name)} (\S+)$", body.decode(), re.M)
        assert found is not None, f"no metric {name}"
        return float(found[1])

    def status(self, node: int) -> dict[str, Any]:
        """The node's /status. Raises OSError if it does not respond."""
        code, body = self._page(node, "/status")
        if code != HTTPStatus.OK:
            raise OSError(f"/status of node {node}: {code}")
        found: dict[str, Any] = json.loads(body)
        return found

    def is_ready(self, node: int) -> bool:
        """Whether /readyz answers 200."""
        try:
            return self._page(node, "/readyz")[0] == HTTPStatus.OK
        except OSError:
            return False

    def lead(self, node: int) -> None:
        """Have this node lead, which is up to date or soon will be."""

        async def transfer() -> None:
            async with QuorumAdmin(self.bootstrap) as admin:
                await admin.transfer_leader(node)

        while self.wait_leader() != node:
            asyncio.run(transfer())

    def _page(self, node: int, page: str) -> tuple[int, bytes]:
        """Status code and body. Raises OSError if the node does not respond.

        Whoever waits asks often: urllib would take more than half of the time, of this process and the node.
        """
        with socket.create_connection(("127.0.0.1", self._http_ports[node]), PAGE_S) as connection:
            connection.sendall(f"GET {page} HTTP/1.1\r\n\r\n".encode())
            with connection.makefile("rb") as stream:
                head, _, body = stream.read().partition(b"\r\n\r\n")
        if not head:
            raise ConnectionResetError(f"node {node} has hung up")
        return int(head.split()[1]), body

    # -- waiting

    def wait_leader(self, *, other_than: int | None = None, timeout_s: float = WAIT_S) -> int:
        """The leader, as soon as there is one (and it is another one)."""

        def found() -> int | None:
            leader = self.leader()
            return None if leader == other_than else leader

        return self.wait_for(found, "a leader", timeout_s)

    def wait_ready(self, *nodes: int, timeout_s: float = WAIT_S) -> None:
        """Return when these nodes (none named: all that run) are ready."""
        for node in nodes or self.running():
            self.wait_for(partial(self.is_ready, node), f"node {node} ready", timeout_s)

    def wait_converged(self, timeout_s: float = WAIT_S) -> int:
        """The log end offset, as soon as all running nodes have the same and all of it is committed."""

        def found() -> int | None:
            seen = [self.status(node) for node in self.running()]
            ends = {row[key] for row in seen for key in ("log_end_offset", "high_watermark")}
            return ends.pop() if len(ends) == 1 else None

        return self.wait_for(found, "the same committed log everywhere", timeout_s)

    def wait_for(self, look: Callable[[], T | None], what: str, timeout_s: float = WAIT_S) -> T:
        """What `look` finds as soon as it is truthy; a node that does not respond is asked again."""
        begun = time.monotonic()
        while True:
            self._check_alive()
            try:
                if found := look():
                    return found
            except OSError:
                pass
            waited_s = time.monotonic() - begun
            if waited_s > timeout_s:
                raise AssertionError(f"waited {timeout_s} s for {what}\n{self.logs()}")
            # To ask a node takes a millisecond of processor time: what takes long is asked for seldom.
            time.sleep(min(max(POLL_MIN_S, waited_s / 20), POLL_MAX_S))

    # -- what is on the disks

    def log_bytes(self, node: int) -> bytes:
        """The whole batches of the node's log, without what is written ahead behind them."""
        return b"".join(self._batches(node))

    def records(self, node: int) -> list[Record]:
        """Every record in the node's log that a client wrote, committed or not, in order."""
        found: list[Record] = []
        for data in self._batches(node, is_control=False):
            found.extend(iter_records(data))
        return found

    def assert_same_logs(self) -> None:
        """All running nodes hold, byte for byte, the same log. Nothing may be appended meanwhile."""
        self.wait_converged()
        deadline = time.monotonic() + WAIT_S
        # What a follower has told its leader is on its disk; what it has just been told may not be.
        while len({self.log_bytes(node) for node in self.running()}) > 1:
            if time.monotonic() > deadline:
                sizes = {node: len(self.log_bytes(node)) for node in self.running()}
                raise AssertionError(f"the replicas' logs differ: bytes by node {sizes}")
            time.sleep(POLL_MIN_S)

    def _batches(self, node: int, is_control: bool | None = None) -> Iterator[bytes]:
        for file in find_files(self.log_folder(node)):
            if file.path.suffix != LOG_SUFFIX:
                continue
            try:
                for batch in file.batches():
                    assert batch.crc_is_valid, f"{file.path} at byte {batch.position}"
                    if is_control is None or batch.header.is_control == is_control:
                        yield batch.data
            except StorageError as error:
                if isinstance(error.__cause__, FileNotFoundError):
                    continue  # A snapshot took its place since the files were listed.
                raise
            tail = file.tail
            assert tail is not None, "the walk is over"
            assert tail.kind is not TailKind.DAMAGE, f"{file.path}: {tail.reason}"

    # -- processes

    def _output_path(self, node: int) -> Path:
        return self.folder / f"node-{node}.log"

    def _end(self, node: int, number: signal.Signals) -> Ended:
        self._processes[node].send_signal(number)
        return self.wait_exit(node)

    def _check_alive(self) -> None:
        for node, process in self._processes.items():
            if process.poll() is not None:
                raise AssertionError(
                    f"node {node} ended by itself, exit code {process.returncode}\n{self.logs()}"
                )


def ask_port(
    port: int, request: Message, response: type[M], version: int, timeout_s: float = ASK_S
) -> M | None:
    """The answer of whoever listens there, on a connection of its own; None if there is none."""
    key = request.wire_spec.api_key
    assert key is not None, "requests have one"
    frame = encode_request_header(key, version, 1, "tests") + encode(request, version)
    try:
        with socket.create_connection(("127.0.0.1", port), timeout_s) as connection:
            connection.sendall(struct.pack(">i", len(frame)) + frame)
            stream = connection.makefile("rb")
            answer = stream.read(int.from_bytes(stream.read(4), "big"))
        _, body_at = decode_response_header(key, version, answer)
        return decode(response, version, answer, body_at)
    except (OSError, MalformedMessage):
        return None


def describe_quorum_at(
    port: int, timeout_s: float = ASK_S
) -> DescribeQuorumResponsePartition | None:
    """The answer to DescribeQuorum of whoever listens there; None if there is none in time."""
    partition = DescribeQuorumRequestPartition(partition_index=0)
    topic = DescribeQuorumRequestTopic(topic_name=TOPIC, partitions=(partition,))
    request = DescribeQuorumRequest(topics=(topic,))
    answer = ask_port(port, request, DescribeQuorumResponse, _DESCRIBE_VERSION, timeout_s)
    return answer.topics[0].partitions[0] if answer is not None and answer.topics else None


@contextmanager
def running_cluster(
    folder: Path,
    *,
    size: int = 3,
    observers: int = 0,
    settings: Mapping[str, object] | None = None,
) -> Iterator[Cluster]:
    """A fresh quorum that is ready; whatever is left of it at the end is killed."""
    with running(Cluster(folder, size=size, observers=observers, settings=settings)) as cluster:
        yield cluster


@contextmanager
def running(cluster: C) -> Iterator[C]:
    """A cluster of any kind, formatted and ready; whatever is left of it at the end is killed."""
    try:
        cluster.format()
        cluster.start()
        cluster.wait_ready()
        yield cluster
    finally:
        cluster.kill_all()
