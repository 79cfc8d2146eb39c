"""`LocalQuorum`: a quorum of real nodes on this machine, for the tests of programs that use one."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from quorumd.testing.errors import LocalQuorumError
from quorumd.testing.host_client import HostClient, HostRequest, environment, shared_host
from quorumd.testing.node_pages import status_at
from quorumd.testing.ports import KeptPorts

HOST = "127.0.0.1"
TIMEOUT_S = 30.0
"""Much longer than anything takes on an idle machine."""
POLL_S = 0.005
LOG_LINES = 40
_PORTS_PER_NODE = 4

T = TypeVar("T")


@dataclass(slots=True)
class _Node:
    node: int
    folder: Path
    own_port: int
    """Port at which it listens for other nodes."""
    link_port: int
    """Port to which they connect."""
    client_port: int
    http_port: int
    pid: int | None = None
    is_paused: bool = False

    @property
    def config(self) -> Path:
        return self.folder / f"node-{self.node}.yaml"

    @property
    def log(self) -> Path:
        return self.folder / f"node-{self.node}.log"


class LocalQuorum:
    """Real nodes, `1` to `nodes`, on free ports of this machine; made and ready within `with`.

        with LocalQuorum(nodes=3) as quorum:
            ...  # a program that is given quorum.servers
            quorum.kill_leader()

    `settings` are configuration keys of the nodes that differ from the defaults. `timeout_s` bounds each
    wait, for a leader or for nodes that are to be ready. Everything is gone behind `with`, and also when
    this process is killed. An exception that leaves `with` has what the nodes logged as a note.

    Not for several threads at once. Methods raise LocalQuorumError if a node has ended by itself or a wait
    takes too long, and ValueError for a node that there is not.
    """

    def __init__(
        self,
        nodes: int = 3,
        *,
        settings: Mapping[str, object] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        if nodes < 1:
            raise ValueError(f"nodes={nodes}: a quorum has one node at least, usually 1 or 3")
        self.ids = tuple(range(1, nodes + 1))
        self._settings = dict(settings or {})
        self._timeout_s = timeout_s
        self._nodes: dict[int, _Node] = {}
        self._host: HostClient | None = None
        self._ports: KeptPorts | None = None
        self._control: socket.socket | None = None
        self._folder: Path | None = None

    # -- life

    def __enter__(self) -> LocalQuorum:
        if self._folder is not None:
            raise LocalQuorumError("this quorum runs already: make another LocalQuorum")
        try:
            self._start()
            self.wait_ready()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, Exception) and not isinstance(error, LocalQuorumError):
            error.add_note(self.logs())
        self._close()

    def _start(self) -> None:
        host = self._host = shared_host()
        folder = self._folder = Path(tempfile.mkdtemp(prefix="quorumd-test-"))
        self._ports = KeptPorts(_PORTS_PER_NODE * len(self.ids))
        ports = iter(self._ports.numbers)
        for node in self.ids:
            own, link, client, http = (next(ports) for _ in range(_PORTS_PER_NODE))
            # Without others there is no link to cut.
            self._nodes[node] = _Node(
                node, folder, own, link if self._has_links else own, client, http
            )
        for each in self._nodes.values():
            self._write_config(each)
        control: socket.socket | None = None
        requests: list[HostRequest] = [("keep", [], {"folder": str(folder)})]
        if self._has_links:
            self._control, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._control.settimeout(self._timeout_s)
            linked = [(each.node, each.link_port, each.own_port) for each in self._nodes.values()]
            request = {"nodes": linked, "output": str(folder / "links.log")}
            requests.append(("link", [control.fileno()], request))
        requests += [
            ("run", [], self._run_request(each, is_new=True)) for each in self._nodes.values()
        ]
        try:
            responses = host.ask_all(requests)
        finally:
            if control is not None:
                control.close()
        started = responses[-len(self.ids) :]
        for each, response in zip(self._nodes.values(), started, strict=True):
            each.pid = response["pid"]

    @property
    def _has_links(self) -> bool:
        return len(self.ids) > 1

    def _write_config(self, node: _Node) -> None:
        voters = ",".join(f"{each.node}@{HOST}:{each.link_port}" for each in self._nodes.values())
        keys = {
            "node.id": node.node,
            "storage.dir": f"node-{node.node}",
            "listeners": f"CONTROLLER://{HOST}:{node.own_port},CLIENT://{HOST}:{node.client_port}",
            "advertised.listeners": f"CONTROLLER://{HOST}:{node.link_port},"
            f"CLIENT://{HOST}:{node.client_port}",
            "http.listen": f"{HOST}:{node.http_port}",
            "quorum.voters": voters,
            **self._settings,
        }
        # JSON is YAML: in quotes a value is taken as it is.
        lines = (
            f"{key}: {json.dumps(value, ensure_ascii=False, default=str)}\n"
            for key, value in keys.items()
        )
        node.config.write_text("".join(lines), encoding="utf-8")

    def _run_request(self, node: _Node, *, is_new: bool) -> dict[str, object]:
        start = ["start", "--config", str(node.config)]
        form = ["format", "--config", str(node.config), "--bootstrap"]
        return {
            "commands": [form, start] if is_new else [start],
            "output": str(node.log),
            "environ": environment(),
        }

    def _close(self) -> None:
        host, self._host = self._host, None
        if host is not None and host.is_alive:
            with contextlib.suppress(LocalQuorumError):
                host.ask("remove", folder=str(self._folder))
        elif self._folder is not None and host is not None and host.owner == os.getpid():
            shutil.rmtree(self._folder, ignore_errors=True)
        if self._control is not None:
            self._control.close()
        if self._ports is not None:
            self._ports.close()
        self._nodes.clear()
        self._folder = self._ports = self._control = None

    # -- what there is

    @property
    def servers(self) -> str:
        """The addresses of all nodes, running or not: `host:port,host:port`, as every client takes them."""
        return ",".join(self.server(node) for node in self.ids)

    def server(self, node: int) -> str:
        """The address of one node, for clients."""
        return f"{HOST}:{self._node(node).client_port}"

    @property
    def running(self) -> tuple[int, ...]:
        """The nodes that run and are not paused."""
        return tuple(
            each.node
            for each in self._nodes.values()
            if each.pid is not None and not each.is_paused
        )

    def status(self, node: int) -> dict[str, Any]:
        """The node's `/status`, as docs/operations.md has it; empty if the node does not respond."""
        each = self._node(node)
        if each.pid is None or each.is_paused:
            return {}
        return status_at(each.http_port) or {}

    def leader(self) -> int:
        """The node that leads, in the newest epoch if several say so; waits until there is one."""

        def found() -> int | None:
            claims = [
                (status["epoch"], node)
                for node in self.running
                if (status := self.status(node)).get("role") == "leader"
            ]
            return max(claims)[1] if claims else None

        return self._wait_for(found, "a leader")

    def folder(self, node: int) -> Path:
        """The node's storage.dir."""
        return self._node(node).folder / f"node-{node}"

    def logs(self) -> str:
        """The newest lines that each node has logged."""
        parts = []
        for each in self._nodes.values():
            state = "paused" if each.is_paused else "down" if each.pid is None else "running"
            lines = each.log.read_text(errors="replace").splitlines() if each.log.exists() else []
            parts += [f"-- quorumd node {each.node}, {state}", *lines[-LOG_LINES:]]
        return "\n".join(parts)

    # -- what is done to nodes

    def kill(self, node: int) -> None:
        """SIGKILL: the node is gone at once. Nothing happens if it is down."""
        each = self._node(node)
        if each.pid is not None:
            self._ask("end", pid=each.pid)
        each.pid, each.is_paused = None, False

    def kill_leader(self) -> int:
        """Kill the node that leads, and return its id. Does not wait for the next leader: `leader` does."""
        node = self.leader()
        self.kill(node)
        return node

    def stop(self, node: int) -> None:
        """SIGTERM: an orderly stop, in which a leader hands over. Nothing happens if it is down."""
        each = self._node(node)
        if each.is_paused:
            self.resume(node)
        if each.pid is None:
            return
        os.kill(each.pid, signal.SIGTERM)
        self._wait_for(lambda: self._end_of(each), f"the stop of node {node}", may_end=node)
        each.pid = None

    def restart(self, node: int) -> None:
        """Start the node again, with its data, and wait until it is ready; stop it before if it runs."""
        self.stop(node)
        each = self._node(node)
        each.pid = self._ask("run", **self._run_request(each, is_new=False))["pid"]
        self.wait_ready(node)

    def pause(self, node: int) -> None:
        """SIGSTOP: its connections stay open, and nothing answers."""
        each = self._running_node(node)
        assert each.pid is not None, "it runs"
        os.kill(each.pid, signal.SIGSTOP)
        each.is_paused = True

    def resume(self, node: int) -> None:
        """SIGCONT: the node goes on where it was paused."""
        each = self._running_node(node)
        assert each.pid is not None, "it runs"
        os.kill(each.pid, signal.SIGCONT)
        each.is_paused = False

    def partition(self, *sides: Collection[int]) -> None:
        """Cut the network between nodes of different sides: `partition({1}, {2, 3})`.

        Nodes that no side names are one more side. Between two sides nothing arrives, and connections stay
        open; clients reach every node. It takes the place of an earlier partition. Raises ValueError if a
        node is on two sides.
        """
        self._require_running()
        named = [node for side in sides for node in {*map(self._known, side)}]
        if twice := sorted({node for node in named if named.count(node) > 1}):
            raise ValueError(f"node {twice[0]} is on two sides: name each node once")
        groups = [*map(set, sides), set(self.ids) - set(named)]
        self._cut(
            (one, other)
            for a, b in combinations(groups, 2)
            for one in sorted(a)
            for other in sorted(b)
        )

    def heal(self) -> None:
        """Every node reaches every other one again."""
        self._require_running()
        self._cut([])

    def restore(self) -> None:
        """Heal, resume and start whatever is not as it was at the beginning, and wait until it is ready."""
        self.heal()
        for each in self._nodes.values():
            if each.is_paused:
                self.resume(each.node)
        for each in self._nodes.values():
            if each.pid is None:
                each.pid = self._ask("run", **self._run_request(each, is_new=False))["pid"]
        self.wait_ready()

    def wait_ready(self, *nodes: int) -> None:
        """Return when these nodes (none named: all that run) know a leader and all that is committed."""
        for node in map(self._known, nodes or self.running):
            self._wait_for(partial(self._is_ready, node), f"node {node} to be ready")

    # -- helpers

    def _known(self, node: int) -> int:
        if node not in self.ids:
            raise ValueError(
                f"there is no node {node}: this quorum has {self.ids[0]} to {self.ids[-1]}"
            )
        return node

    def _require_running(self) -> None:
        if not self._nodes:
            raise LocalQuorumError("this quorum does not run: use it within `with`")

    def _node(self, node: int) -> _Node:
        self._known(node)
        self._require_running()
        return self._nodes[node]

    def _running_node(self, node: int) -> _Node:
        each = self._node(node)
        if each.pid is None:
            raise LocalQuorumError(f"node {node} is down: restart({node}) starts it")
        return each

    def _ask(self, do: str, **request: object) -> dict[str, Any]:
        assert self._host is not None, "it runs"
        return self._host.ask(do, **request)

    def _cut(self, pairs: Iterable[tuple[int, int]]) -> None:
        if self._control is None:
            return
        try:
            wanted = json.dumps([*pairs]).encode()
            self._control.send(wanted)
            # One that an interrupted call did not take may come first.
            while (done := self._control.recv(len(wanted))) not in (b"", wanted):
                pass
        except OSError as error:
            raise LocalQuorumError(f"the links between nodes do not respond: {error}") from error
        if not done:
            said = (self._node(1).folder / "links.log").read_text(errors="replace")
            raise LocalQuorumError(f"the links between nodes have ended. They said:\n{said}")

    def _is_ready(self, node: int) -> bool:
        return self.status(node).get("ready") is True

    def _end_of(self, node: _Node) -> bool:
        return self._ask("poll", pid=node.pid)["code"] is not None

    def _wait_for(
        self, probe: Callable[[], T | None], what: str, *, may_end: int | None = None
    ) -> T:
        """Result of `probe` as soon as that is truthy."""
        self._require_running()
        deadline = time.monotonic() + self._timeout_s
        while True:
            if found := probe():
                return found
            for each in self._nodes.values():
                if each.node != may_end and each.pid is not None:
                    self._check_alive(each)
            if not self.running:
                raise LocalQuorumError(
                    f"{what} was waited for, but no node runs: restart(1) starts node 1"
                )
            if time.monotonic() > deadline:
                raise LocalQuorumError(
                    f"waited {self._timeout_s:g} s for {what}. Do enough nodes run, and reach each other? A "
                    f"longer timeout_s of LocalQuorum waits longer.\n{self.logs()}"
                )
            time.sleep(POLL_S)

    def _check_alive(self, node: _Node) -> None:
        code = self._ask("poll", pid=node.pid)["code"]
        if code is not None:
            node.pid = None
            raise LocalQuorumError(
                f"node {node.node} ended by itself, exit code {code}; why is in its log:\n{self.logs()}"
            )
