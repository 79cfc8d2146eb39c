"""Clusters of etcd and ZooKeeper to be measured beside a quorum: three nodes each, with their defaults.

Everything runs on 127.0.0.1 and ends with the script. Both sync to disk before they answer.
"""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from bench.common import (
    NODES,
    START_TIMEOUT_S,
    STOP_TIMEOUT_S,
    Quorum,
    die_with_parent,
    free_ports,
)

ETCD_BYTES = 8 << 30
ZOOKEEPER_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
ZOOKEEPER_LIMIT_TICKS = 100_000
"""A cluster that was paused for minutes goes on without an election."""
DEBIAN_JARS = ("zookeeper.jar", "slf4j-simple.jar")


class Peer(NamedTuple):
    """Three nodes of one system; `ports` (of clients) and `pids` go by index.

    `protocol` is that of casgen. `leader` is the index of the node that leads, or None.
    """

    name: str
    protocol: str
    ports: list[int]
    pids: list[int]
    leader: Callable[[], int | None]


def quorum_peer(name: str, quorum: Quorum) -> Peer:
    """A quorum that runs."""
    return Peer(name, "quorumd", quorum.ports, quorum.pids, quorum.leader)


@contextmanager
def etcd_cluster(etcd: str, parent: Path | None = None) -> Iterator[Peer]:
    """A fresh cluster that is ready; `etcd` is the program."""
    found = free_ports(2 * NODES)
    ports, peer_ports = found[:NODES], found[NODES:]
    peers = [f"http://127.0.0.1:{port}" for port in peer_ports]
    cluster = ",".join(f"n{i}={url}" for i, url in enumerate(peers))

    def leader() -> int | None:
        return next((i for i, port in enumerate(ports) if _leads_etcd(port)), None)

    with _folder("etcd", parent) as folder, ExitStack() as stack:
        pids = []
        for i, (port, peer) in enumerate(zip(ports, peers, strict=True)):
            client = f"http://127.0.0.1:{port}"
            command = [etcd, "--name", f"n{i}", "--data-dir", f"{folder}/{i}"]
            command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
            command += ["--listen-client-urls", client, "--advertise-client-urls", client]
            command += ["--initial-cluster", cluster, "--log-level", "error"]
            command += ["--quota-backend-bytes", str(ETCD_BYTES)]
            pids.append(_spawn(stack, command, folder / f"{i}.log"))
        peer_cluster = Peer(f"etcd {_etcd_version(etcd)}", "etcd", ports, pids, leader)
        _wait_for_leader(peer_cluster, folder)
        yield peer_cluster


@contextmanager
def zookeeper_cluster(jars: Path, parent: Path | None = None) -> Iterator[Peer]:
    """A fresh ensemble that is ready; `jars` has ZooKeeper's and what they need."""
    found = free_ports(3 * NODES)
    ports, peer_ports = found[:NODES], found[NODES:]
    servers = [
        f"server.{i + 1}=127.0.0.1:{peer_ports[2 * i]}:{peer_ports[2 * i + 1]}"
        for i in range(NODES)
    ]

    def leader() -> int | None:
        modes = [_zookeeper_says(port, "Mode") for port in ports]
        return modes.index("leader") if "leader" in modes and None not in modes else None

    with _folder("zookeeper", parent) as folder, ExitStack() as stack:
        pids = []
        for i, port in enumerate(ports):
            data, config = folder / str(i), folder / f"{i}.cfg"
            data.mkdir()
            (data / "myid").write_text(f"{i + 1}\n")
            lines = ["tickTime=2000", f"dataDir={data}", f"clientPort={port}"]
            lines += [f"initLimit={ZOOKEEPER_LIMIT_TICKS}", f"syncLimit={ZOOKEEPER_LIMIT_TICKS}"]
            lines += ["clientPortAddress=127.0.0.1", "maxClientCnxns=0", *servers]
            lines += ["admin.enableServer=false", "4lw.commands.whitelist=srvr"]
            config.write_text("\n".join(lines) + "\n")
            command = ["java", "-Xmx1000m", "-Djava.net.preferIPv4Stack=true"]
            command += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
            command += ["-cp", _class_path(jars), ZOOKEEPER_MAIN, str(config)]
            pids.append(_spawn(stack, command, folder / f"{i}.log"))
        peer = Peer("ZooKeeper", "zookeeper", ports, pids, leader)
        _wait_for_leader(peer, folder)
        version = (_zookeeper_says(ports[0], "Zookeeper version") or "").partition("-")[0]
        yield peer._replace(name=f"ZooKeeper {version}")


def etcd_missing(etcd: str | None) -> str:
    """The reason why etcd is not measured; empty if it can be."""
    return "" if etcd else "etcd is not installed (https://etcd.io/docs/latest/install; --etcd DIR)"


def zookeeper_missing(jars: Path | None) -> str:
    """The reason why ZooKeeper is not measured; empty if it can be."""
    if jars is None:
        return "--zookeeper DIR names its jars (apt-get install libzookeeper-java: /usr/share/java)"
    if not list(jars.glob("zookeeper*.jar")):
        return f"{jars} has no zookeeper*.jar"
    return "" if shutil.which("java") else "java is not installed"


def _class_path(jars: Path) -> str:
    """Debian's folder has the jars of other programs, too."""
    debian = [jars / name for name in DEBIAN_JARS]
    return ":".join(map(str, debian)) if all(each.exists() for each in debian) else f"{jars}/*"


@contextmanager
def _folder(name: str, parent: Path | None) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix=f"{name}-bench-", dir=parent) as folder:
        yield Path(folder)


def _spawn(stack: ExitStack, command: Sequence[str], output: Path) -> int:
    with output.open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=die_with_parent
        )
    stack.callback(process.wait, STOP_TIMEOUT_S)
    stack.callback(process.kill)
    stack.callback(process.send_signal, signal.SIGCONT)
    return process.pid


def _wait_for_leader(peer: Peer, folder: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while peer.leader() is None:
        if time.monotonic() > deadline:
            said = "".join(log.read_text(errors="replace")[-500:] for log in folder.glob("*.log"))
            raise SystemExit(f"{peer.name} has no leader after {START_TIMEOUT_S} s: {said}")
        time.sleep(0.05)


def _etcd_version(etcd: str) -> str:
    """As in "etcd Version: 3.6.16"."""
    done = subprocess.run([etcd, "--version"], capture_output=True, text=True, check=True)
    return done.stdout.split("\n")[0].rpartition(" ")[2]


def _leads_etcd(port: int) -> bool:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v3/maintenance/status", data=b"{}")
    try:
        with urllib.request.urlopen(request, timeout=1) as answer:
            status = json.load(answer)
    except (OSError, ValueError):
        return False
    return bool(status.get("leader") == status["header"]["member_id"])


def _zookeeper_says(port: int, what: str) -> str | None:
    """A line of its "srvr"; None without an answer."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"srvr")
            answer = connection.makefile().read()
    except OSError:
        return None
    lines = dict(line.split(": ", 1) for line in answer.splitlines() if ": " in line)
    return lines.get(what)
