"""The demo's three nodes: their files under one directory, their ports, their processes.

Ports and files are made once. A node is formatted as a first voter only before any node of the directory
was ever started, which a marker file says; a node whose data was deleted later joins as an observer,
as on a real host.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from quorumd.config import keys
from quorumd.config.errors import ConfigError
from quorumd.config.load import load
from quorumd.raft.types import Address, uuid_to_text
from quorumd.storage.directory import format_directory
from quorumd.storage.errors import StorageError
from quorumd.storage.filesystem import RealFileSystem
from quorumd.storage.layout import LOCK, META_PROPERTIES
from quorumd.storage.meta_properties import load_meta_properties, random_storage_id

NODE_IDS = (1, 2, 3)
HOST = "127.0.0.1"
MARKER = "demo.json"
CERTS = "certs"
CLIENT = "alice"
CERTIFICATE_DAYS = 3_650
DEMO_LOCK = "demo.pid"
DEMO_LOG = "demo.log"
# Below the range from which systems take the ports of outgoing connections.
FIRST_PORT, LAST_PORT, PORT_STEP = 19_091, 31_991, 100
HTTP_BELOW = 10
LOG_TAIL_BYTES = 8192


class DemoError(Exception):
    """The demo cannot run; the text says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFiles:
    """Files and addresses of one node of the demo."""

    node_id: int
    config_path: Path
    log_path: Path
    storage_dir: Path
    address: Address
    http: Address


@dataclass(frozen=True, slots=True)
class ClientFiles:
    """Files for clients of a demo with TLS."""

    properties: Path
    store: Path
    """Its private key and certificate."""
    ca: Path


def client_files(directory: Path) -> ClientFiles | None:
    """Of the demo in this directory; None if it has no TLS."""
    certs = directory / CERTS
    if not certs.exists():
        return None
    certs = certs.absolute()
    return ClientFiles(certs / f"{CLIENT}.properties", certs / f"{CLIENT}.pem", certs / "ca.pem")


def config_path(directory: Path, node_id: int) -> Path:
    """The configuration file of a node."""
    return directory / f"node{node_id}.yaml"


def prepare(directory: Path, *, secure: bool = False) -> tuple[list[NodeFiles], list[str]]:
    """The nodes of a directory, made and formatted if need be, and what was done. Raises DemoError.

    `secure`: with mutual TLS, if they are made now. A directory stays what it was made as.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        is_first = not (directory / MARKER).exists()
        if is_first:
            _check_empty(directory)
            _write_configs(directory, secure=secure)
        elif secure and client_files(directory) is None:
            raise DemoError(
                f"the nodes in {directory} were made without TLS: name another directory with --dir"
            )
        nodes = read_nodes(directory)
        cluster_id = _cluster_id_of(nodes) if is_first else None
        formatted = [
            node.node_id for node in nodes if _format(node, cluster_id, bootstrap=is_first)
        ]
        if is_first:
            text = json.dumps({"made_by": "quorumd demo", "made_at": int(time.time())})
            (directory / MARKER).write_text(text + "\n")
            return nodes, [f"made three nodes under {directory}"]
    except OSError as error:
        raise DemoError(f"cannot use {directory}: {error.strerror or error}") from error
    return nodes, [
        f"node {node_id} has no data: formatted anew, it joins as an observer, because a voter is its "
        "id together with its storage id"
        for node_id in formatted
    ]


def read_nodes(directory: Path) -> list[NodeFiles]:
    """The nodes as their configuration files describe them. Raises DemoError."""
    return [_read_node(directory, node_id) for node_id in NODE_IDS]


def _read_node(directory: Path, node_id: int) -> NodeFiles:
    path = config_path(directory, node_id)
    if not path.exists():
        raise DemoError(f"{path} is missing: put it back, or begin anew with another --dir")
    try:
        config = load(path, {})
    except ConfigError as error:
        raise DemoError(str(error)) from error
    if config.http_listen is None:
        raise DemoError(f"{path} has no http.listen, where the demo asks for the node's status")
    return NodeFiles(
        node_id=node_id,
        config_path=path,
        log_path=directory / f"node{node_id}.log",
        storage_dir=config.storage_dir,
        address=Address(config.listeners[0].host, config.listeners[0].port),
        http=config.http_listen,
    )


def _check_empty(directory: Path) -> None:
    ours = {DEMO_LOCK, DEMO_LOG, CERTS}
    ours.update(f"node{node_id}{suffix}" for node_id in NODE_IDS for suffix in ("", ".yaml"))
    if foreign := sorted({path.name for path in directory.iterdir()} - ours):
        raise DemoError(
            f"{directory} holds other things ({', '.join(foreign[:3])}): name an empty or new "
            "directory with --dir"
        )


def _write_configs(directory: Path, *, secure: bool) -> None:
    if all(config_path(directory, node_id).exists() for node_id in NODE_IDS):
        return
    if secure:
        _make_certificates(directory / CERTS)
    ports = choose_ports()
    voters = ",".join(
        f"{node_id}@{HOST}:{port}" for node_id, port in zip(NODE_IDS, ports, strict=True)
    )
    for node_id, port in zip(NODE_IDS, ports, strict=True):
        config_path(directory, node_id).write_text(
            f"# Node {node_id} of `quorumd demo`, which wrote this once and does not change it again.\n"
            f"node.id: {node_id}\n"
            f"storage.dir: node{node_id}\n"
            f"listeners: CONTROLLER://{HOST}:{port}\n"
            f"http.listen: {HOST}:{port - HTTP_BELOW}\n"
            f"quorum.voters: {voters}\n" + (_tls_lines(node_id) if secure else "")
        )


def _make_certificates(certs: Path) -> None:
    # A demo without TLS does not load what they take.
    from quorumd.security import make_certificates as makers
    from quorumd.security.errors import CertificateProblem

    try:
        makers.make_ca(certs, CERTIFICATE_DAYS, force=True)
        for node_id in NODE_IDS:
            makers.make_node(certs, node_id, (HOST, "localhost"), CERTIFICATE_DAYS, force=True)
        makers.make_client(certs, CLIENT, CERTIFICATE_DAYS, force=True)
    except CertificateProblem as problem:
        raise DemoError(str(problem)) from problem


def _tls_lines(node_id: int) -> str:
    from quorumd.security.make_certificates import NODE_NAME, node_settings

    certs = Path(CERTS)
    lines = node_settings(certs / f"{NODE_NAME.format(id=node_id)}.pem", certs)
    return "".join(f"{line}\n" for line in lines)


def choose_ports() -> list[int]:
    """Three ports, free like those `HTTP_BELOW` them. Raises DemoError."""
    for first in range(FIRST_PORT, LAST_PORT, PORT_STEP):
        ports = [first, first + 1, first + 2]
        if all(is_free(HOST, port) and is_free(HOST, port - HTTP_BELOW) for port in ports):
            return ports
    raise DemoError(f"no free ports were found between {FIRST_PORT} and {LAST_PORT} on {HOST}")


def is_free(host: str, port: int) -> bool:
    """True if a node could listen there now."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def _cluster_id_of(nodes: list[NodeFiles]) -> str | None:
    """One for the first start, so that the nodes of two demos that took the same ports are strangers; the
    one that is there where an earlier start was cut off between two nodes."""
    for node in nodes:
        if (node.storage_dir / META_PROPERTIES).exists():
            try:
                return load_meta_properties(RealFileSystem(), node.storage_dir).cluster_id
            except StorageError as error:
                raise DemoError(str(error)) from error
    return uuid_to_text(random_storage_id())


def _format(node: NodeFiles, cluster_id: str | None, *, bootstrap: bool) -> bool:
    if (node.storage_dir / META_PROPERTIES).exists():
        return False
    try:
        format_directory(
            RealFileSystem(),
            node.storage_dir,
            node_id=node.node_id,
            cluster_id=cluster_id,
            bootstrap=bootstrap,
        )
    except StorageError as error:
        raise DemoError(str(error)) from error
    return True


def check_startable(directory: Path, nodes: list[NodeFiles]) -> None:
    """Raises DemoError if a node runs already, or another process has one of its ports."""
    for node in nodes:
        if (pid := lock_holder(node.storage_dir / LOCK)) is not None:
            raise DemoError(
                f"node {node.node_id} still runs, as process {pid}, from a demo that was killed: "
                f"`quorumd demo --dir {shlex.quote(str(directory))} --stop` ends it"
            )
        for key, address in (("listeners", node.address), ("http.listen", node.http)):
            if not is_free(*address):
                raise DemoError(
                    f"port {address.port} of node {node.node_id} is in use by another program: end "
                    f"that one, or change {key} in {node.config_path} (and quorum.voters in all "
                    "three), or take another --dir, which gets ports of its own"
                )


def lock_holder(path: Path) -> int | None:
    """The id of the process that holds this lock file, None if there is none."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.read(handle, 32).decode("ascii", "replace").strip()
        return int(text) if text.isdigit() else None
    else:
        return None
    finally:
        os.close(handle)


@contextmanager
def demo_lock(directory: Path) -> Iterator[None]:
    """One demo at a time in a directory. Raises DemoError."""
    path = directory / DEMO_LOCK
    try:
        directory.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise DemoError(f"cannot use {directory}: {error.strerror or error}") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DemoError(
                f"a demo runs in {directory} already, as process {lock_holder(path)}: "
                f"`quorumd demo --dir {shlex.quote(str(directory))} --stop` ends it"
            ) from None
        try:
            os.truncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            raise DemoError(f"cannot use {directory}: {error.strerror or error}") from error
        yield
    finally:
        os.close(handle)


class NodeProcess:
    """A node's process, which can be killed, frozen and started again."""

    def __init__(self, files: NodeFiles) -> None:
        self.files = files
        self.is_frozen = False
        self.since = time.monotonic()
        self.exit_code: int | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def node_id(self) -> int:
        return self.files.node_id

    @property
    def pid(self) -> int | None:
        """None if it does not run."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start it. Its environment is ours, without the variables that override configuration."""
        known = {keys.variable_of(key) for key in keys.KEYS}
        environ = {name: value for name, value in os.environ.items() if name not in known}
        # A session of its own, so that Ctrl-C reaches the demo alone, and a path without the
        # current directory, which may hold modules with the names of ours.
        command = [sys.executable, "-P", "-m", "quorumd.server.main", "start", "--config"]
        with self.files.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, str(self.files.config_path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environ,
                start_new_session=True,
            )
        self._changed()

    def has_ended(self) -> bool:
        """True once, when the process has ended since the last look; then `exit_code` is set."""
        if self._process is None or (code := self._process.poll()) is None:
            return False
        self._process = None
        self._changed()
        self.exit_code = code
        return True

    def kill(self) -> None:
        """SIGKILL: as if the power had gone, but for what the kernel still holds."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
            self._changed()

    def freeze(self) -> None:
        """SIGSTOP: the process lives and its connections are open, but it says nothing."""
        self._signal(signal.SIGSTOP)
        self._changed()
        self.is_frozen = True

    def thaw(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)
        self._changed()

    def terminate(self) -> None:
        """SIGTERM: an orderly stop."""
        if self.is_frozen:
            self.thaw()
        self._signal(signal.SIGTERM)

    def last_log_line(self) -> str:
        """The last line of the node's log, to explain why it ended."""
        with suppress(OSError), self.files.log_path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(0, size - LOG_TAIL_BYTES))
            lines = log.read().decode("utf-8", "replace").splitlines()
            return next((line.strip() for line in reversed(lines) if line.strip()), "")
        return ""

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def _changed(self) -> None:
        self.since = time.monotonic()
        self.is_frozen = False
        self.exit_code = None
