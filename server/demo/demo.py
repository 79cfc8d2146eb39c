"""`quorumd demo`: three real nodes on this machine, a table that lives, and keys to break them.

Owns the run as a whole: polling the nodes, keys, signals, the end. The nodes end with it, however it
ends; only SIGKILL leaves them, and `--stop` finds those.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import subprocess
import sys
import termios
import time
import tty
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from quorumd.server.demo.nodes import (
    DEMO_LOCK,
    DEMO_LOG,
    ClientFiles,
    DemoError,
    NodeFiles,
    NodeProcess,
    check_startable,
    client_files,
    demo_lock,
    lock_holder,
    prepare,
    read_nodes,
)
from quorumd.server.demo.view import (
    NodeState,
    Status,
    differences,
    hints,
    lag_of,
    leader_of,
    own_command,
    read_status,
    table,
)
from quorumd.storage.layout import LOCK

if TYPE_CHECKING:
    from rich.live import Live

LOOK_INTERVAL_S = 0.2
STATUS_TIMEOUT_S = 0.5
STOP_GRACE_S = 8.0
READY_WITHIN_S = 20.0
STOPPED_WITHIN_S = 15.0
EVENTS_SHOWN = 8
_QUORUMCTL = "from quorumd.cli.entry import main; main()"
KEYS = "1 2 3 kill -9 or restart   s freeze leader or thaw   a append   q quit"


class Demo:
    """One run, from the start of three nodes to their end."""

    def __init__(
        self,
        nodes: Sequence[NodeFiles],
        client: ClientFiles | None,
        show: Callable[[str], None],
    ) -> None:
        """`client` has what one needs where the nodes have TLS. `show` prints a line; with `live` set,
        lines go below the table instead."""
        self._client = client
        self._nodes = [NodeProcess(files) for files in nodes]
        self._show = show
        self._stop = asyncio.Event()
        self._refresh = asyncio.Event()
        self._states: list[NodeState] = []
        self._leadership: tuple[int, int] | None = None
        self._hurt: tuple[str, float] | None = None
        self._appends: set[asyncio.Task[None]] = set()
        self._events: deque[str] = deque(maxlen=EVENTS_SHOWN)
        self.live: Live | None = None

    async def run(self) -> int:
        """Run until it is stopped. Returns the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self.stop)
        exit_code = 0
        try:
            for node in self._nodes:
                node.start()
            while not self._stop.is_set():
                if not await self._look():
                    exit_code = 1
                    break
                await self._pause()
        finally:
            await self._end_nodes()
        return exit_code

    def stop(self) -> None:
        """End in order; asked twice, at once."""
        if self._stop.is_set():
            for node in self._nodes:
                node.kill()
        self._stop.set()
        self._refresh.set()

    async def _pause(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_INTERVAL_S):
                await self._refresh.wait()
        self._refresh.clear()

    # -- looking

    async def _look(self) -> bool:
        """Bring the table up to date. False if no node is left though the user ended none."""
        for node in self._nodes:
            if node.has_ended():
                reason = node.last_log_line()
                self._say(
                    f"node {node.node_id} ended by itself, exit code {node.exit_code}: {reason}"
                )
        statuses = await asyncio.gather(*(self._status_of(node) for node in self._nodes))
        leader = leader_of(statuses)
        states = [
            self._state_of(node, status, leader)
            for node, status in zip(self._nodes, statuses, strict=True)
        ]
        changed, self._states = differences(self._states, states), states
        if self.live is None:
            for state in changed:
                self._say(state.line())
        if leader is not None:
            self._note_leader(leader)
        self._draw()
        return any(node.exit_code is None for node in self._nodes)

    async def _status_of(self, node: NodeProcess) -> Status | None:
        if node.pid is None or node.is_frozen:
            return None
        status = await read_status(node.files.http, STATUS_TIMEOUT_S)
        # The node was killed meanwhile, or another process has that port.
        return status if status is not None and status.get("pid") == node.pid else None

    def _state_of(
        self, node: NodeProcess, status: Status | None, leader: Status | None
    ) -> NodeState:
        files, since_s = node.files, time.monotonic() - node.since
        if status is not None:
            return NodeState(
                node_id=files.node_id,
                address=files.address,
                pid=node.pid,
                role=str(status["role"]),
                since_s=float(status["role_since_s"]),
                epoch=int(status["epoch"]),
                log_end=int(status["log_end_offset"]),
                high_watermark=int(status["high_watermark"]),
                lag=lag_of(leader, files.node_id, status.get("storage_id")),
            )
        if node.exit_code is not None:
            role = f"exited {node.exit_code}"
        elif node.pid is None:
            role = "killed"
        elif node.is_frozen:
            role = "frozen"
        else:
            known = next((s for s in self._states if s.node_id == files.node_id), None)
            was_up = known is not None and known.pid == node.pid and known.epoch is not None
            role = "silent" if was_up or (known and known.role == "silent") else "starting"
        lag = lag_of(leader, files.node_id, None)
        return NodeState(
            node_id=files.node_id,
            address=files.address,
            pid=node.pid,
            role=role,
            since_s=since_s,
            lag=lag,
        )

    def _note_leader(self, leader: Status) -> None:
        leadership = int(leader["node_id"]), int(leader["epoch"])
        if leadership == self._leadership:
            return
        text = f"node {leadership[0]} leads epoch {leadership[1]}"
        if self._hurt is not None:
            what, at = self._hurt
            after_ms = (time.monotonic() - float(leader["role_since_s"]) - at) * 1000
            text += f", {max(0.0, after_ms):.0f} ms after {what}"
        self._leadership, self._hurt = leadership, None
        self._say(text)

    # -- showing

    def _say(self, text: str) -> None:
        line = f"{time.strftime('%H:%M:%S')}  {text}"
        self._events.append(line)
        if self.live is None:
            self._show(line)

    def _draw(self) -> None:
        if self.live is not None:
            self.live.update(table(self._states, list(self._events), KEYS), refresh=True)

    # -- keys

    def on_key(self, key: str) -> None:
        """Do what a key stands for; unknown ones do nothing."""
        if self._stop.is_set():
            return
        if key in ("q", "Q", "\x04"):
            self.stop()
        elif key == "a":
            task = asyncio.ensure_future(self._append())
            self._appends.add(task)
            task.add_done_callback(self._appends.discard)
        elif key == "s":
            self._freeze_or_thaw()
        else:
            for node in self._nodes:
                if key == str(node.node_id):
                    self._kill_or_restart(node)
        self._refresh.set()

    def _kill_or_restart(self, node: NodeProcess) -> None:
        if node.pid is None:
            node.start()
            self._say(f"node {node.node_id} restarted")
            return
        self._note_hurt(node, "killed")
        node.kill()
        self._say(f"node {node.node_id} killed with SIGKILL; press {node.node_id} to restart it")

    def _freeze_or_thaw(self) -> None:
        frozen = [node for node in self._nodes if node.is_frozen]
        for node in frozen:
            node.thaw()
            self._say(f"node {node.node_id} thawed with SIGCONT")
        if frozen:
            return
        for node in self._nodes:
            if self._leads(node):
                self._note_hurt(node, "frozen")
                node.freeze()
                self._say(f"node {node.node_id} frozen with SIGSTOP; press s to thaw it")

    def _leads(self, node: NodeProcess) -> bool:
        return (
            node.pid is not None
            and self._leadership is not None
            and (self._leadership[0] == node.node_id)
        )

    def _note_hurt(self, node: NodeProcess, what: str) -> None:
        if self._leads(node):
            self._hurt = f"node {node.node_id} was {what}", time.monotonic()

    async def _append(self) -> None:
        """One record, by the command that a user would take."""
        servers = ",".join(str(node.files.address) for node in self._nodes)
        options = ["-b", servers]
        if self._client is not None:
            options += ["--command-config", str(self._client.properties)]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-c", _QUORUMCTL, "append", *options),
            time.strftime("hello at %H:%M:%S"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        lines = output.decode("utf-8", "replace").strip().splitlines()
        self._say(f"quorumctl append: {lines[0] if lines else 'no response'}")
        self._refresh.set()

    # -- the end

    async def _end_nodes(self) -> None:
        """SIGTERM to all, and SIGKILL to what is left after a while."""
        for task in self._appends:
            task.cancel()
        for node in self._nodes:
            node.terminate()
        deadline = time.monotonic() + STOP_GRACE_S
        try:
            while time.monotonic() < deadline and any(node.pid for node in self._nodes):
                for node in self._nodes:
                    node.has_ended()
                await asyncio.sleep(0.02)
        finally:
            for node in self._nodes:
                node.kill()


# -- the command


def run(directory: Path, *, secure: bool) -> int:
    """In the foreground. Returns the exit code. Raises DemoError."""
    with demo_lock(directory):
        nodes, done = prepare(directory, secure=secure)
        client = client_files(directory)
        check_startable(directory, nodes)
        for line in [*done, *_hints(nodes, client)]:
            click.echo(line)
        code = asyncio.run(
            _with_table(nodes, client) if _has_terminal() else _with_lines(nodes, client)
        )
        if code:
            raise DemoError(
                f"no node is left running; why is in {' '.join(str(n.log_path) for n in nodes)}"
            )
    click.echo(f"stopped; the data is kept: {_command(directory)} goes on with it")
    return code


def _has_terminal() -> bool:
    """For the table and its keys. A job in the background (`quorumd demo &`) that takes keys is stopped."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except OSError:  # It is another session's, whose jobs this process is none of.
        return True


def _hints(nodes: Sequence[NodeFiles], client: ClientFiles | None) -> list[str]:
    return hints(
        [node.address for node in nodes],
        [node.http for node in nodes],
        [node.log_path for node in nodes],
        client,
    )


def _command(directory: Path, option: str = "") -> str:
    text = f"{own_command('quorumd')} demo"
    if directory != Path("demo-data"):
        text += f" --dir {shlex.quote(str(directory))}"
    return f"`{text}{option}`"


async def _with_lines(nodes: Sequence[NodeFiles], client: ClientFiles | None) -> int:
    click.echo("Ctrl-C or SIGTERM stops the three nodes.")
    return await Demo(nodes, client, click.echo).run()


async def _with_table(nodes: Sequence[NodeFiles], client: ClientFiles | None) -> int:
    from rich.console import Console
    from rich.live import Live

    loop = asyncio.get_running_loop()
    demo = Demo(nodes, client, click.echo)
    descriptor = sys.stdin.fileno()

    def on_readable() -> None:
        data = os.read(descriptor, 64)
        if not data:
            loop.remove_reader(descriptor)
            demo.stop()
        for key in data.decode("ascii", "replace"):
            demo.on_key(key)

    with _single_keys(descriptor), Live(console=Console(), auto_refresh=False) as demo.live:
        loop.add_reader(descriptor, on_readable)
        try:
            return await demo.run()
        finally:
            loop.remove_reader(descriptor)


@contextmanager
def _single_keys(descriptor: int) -> Iterator[None]:
    """Keys arrive one by one and unseen; Ctrl-C still is a signal."""
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def detach(directory: Path, *, secure: bool) -> None:
    """Start in the background, and come back when every node is ready. Raises DemoError."""
    with demo_lock(directory):
        nodes, _ = prepare(directory, secure=secure)
        check_startable(directory, nodes)
    command = [sys.executable, "-P", "-m", "quorumd.server.main", "demo", "--dir", str(directory)]
    log_path = directory / DEMO_LOG
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    if not asyncio.run(_wait_until_ready(nodes, process)):
        if process.poll() is None:
            process.terminate()
        raise DemoError(f"the demo did not start:\n{log_path.read_text(errors='replace').strip()}")
    for line in _hints(nodes, client_files(directory)):
        click.echo(line)
    click.echo(f"Runs in the background as process {process.pid}; what happens is in {log_path}")
    click.echo(f"{_command(directory, ' --stop')} stops it and keeps the data.")


async def _wait_until_ready(nodes: Sequence[NodeFiles], process: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline and process.poll() is None:
        statuses = [await read_status(node.http, STATUS_TIMEOUT_S) for node in nodes]
        if all(status is not None and status["ready"] for status in statuses):
            return True
        await asyncio.sleep(LOOK_INTERVAL_S / 2)
    return False


def stop(directory: Path) -> bool:
    """Stop what runs in a directory, lost nodes too. False if nothing did. Raises DemoError."""
    try:
        return _stopped(directory)
    except OSError as error:
        raise DemoError(
            f"cannot stop what runs in {directory}: {error.strerror or error}"
        ) from error


def _stopped(directory: Path) -> bool:
    found = _end_holder(directory / DEMO_LOCK)
    if any((directory / f"node{node_id}.yaml").exists() for node_id in (1, 2, 3)):
        for node in read_nodes(directory):
            found = _end_holder(node.storage_dir / LOCK) or found
    return found


def _end_holder(lock: Path) -> bool:
    pid = lock_holder(lock)
    if pid is None:
        return False
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOPPED_WITHIN_S
    while lock_holder(lock) == pid:
        if time.monotonic() > deadline:
            raise DemoError(f"process {pid} does not stop: `kill -9 {pid}` ends it at once")
        time.sleep(0.05)
    return True
