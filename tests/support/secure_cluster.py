"""Real nodes with TLS: certificates by a CA of the test, and each step between plaintext and TLS."""

from __future__ import annotations

import asyncio
import ssl
import threading
import time
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Self

from quorumd.client import QuorumClient, QuorumError, Record, Security
from tests.support.authority import Authority
from tests.support.live_cluster import Cluster
from tests.support.ports import free_ports

PLAIN, SECURE = "CONTROLLER", "SECURE"
ORDERS: Mapping[str, tuple[str, ...]] = {
    "plaintext": (PLAIN,),
    "plaintext first": (PLAIN, SECURE),
    "TLS first": (SECURE, PLAIN),
    "TLS": (SECURE,),
}
"""The listeners of a node, by step of a migration."""
_NAMES = count(1)
PRINCIPALS = "User:CN=quorumd-{id}"


class SecureCluster(Cluster):
    """Nodes with a plaintext listener, which is `port`, and one with TLS. The peers use the first of them."""

    def __init__(
        self,
        folder: Path,
        *,
        size: int = 3,
        observers: int = 0,
        settings: Mapping[str, object] | None = None,
        step: str = "TLS first",
    ) -> None:
        super().__init__(folder, size=size, observers=observers, settings=settings)
        self.authority = Authority(folder / "certificates")
        self.secure_ports = dict(zip(self.ids, free_ports(len(self.ids)), strict=True))
        self.steps = dict.fromkeys(self.ids, step)
        self.is_static = True
        """The nodes know each other by quorum.voters, as at the first start; else by bootstrap servers."""
        for node in self.ids:
            self.authority.store(f"quorumd-{node}")

    @property
    def secure_bootstrap(self) -> str:
        """Every node's address with TLS, as clients take them."""
        return ",".join(f"127.0.0.1:{port}" for port in self.secure_ports.values())

    def keystore(self, name: object) -> Path:
        """The certificate of a node, or of whom the authority has issued one to."""
        return self.folder / "certificates" / f"{name}.pem"

    def client_context(self, name: str) -> ssl.SSLContext:
        """Of a client that shows the certificate of this name, which the authority has issued."""
        context = ssl.create_default_context(cafile=str(self.authority.trust))
        context.load_cert_chain(self.keystore(name))
        return context

    def secure_client(self, name: str = "client", programs: int = 3) -> Appending:
        """Programs that append by TLS, with this certificate."""
        security = Security(
            security_protocol="SSL",
            ssl_truststore_location=self.authority.trust,
            ssl_keystore_location=self.authority.store(name),
        )
        bootstrap = ",".join(f"127.0.0.1:{port}" for port in self.secure_ports.values())
        return Appending(bootstrap, security, programs)

    def wait_said(self, node: int, field: str, text: str) -> list[str]:
        """What a list in a node's `/status` says with this text in it, as soon as it says so."""
        return self.wait_for(
            lambda: [said for said in self.status(node)[field] if text in said],
            f"{text!r} in {field} of node {node}",
        )

    def peers_address(self, node: int, step: str) -> str:
        """host:port of the first listener at this step."""
        is_tls = ORDERS[step][0] == SECURE
        return f"127.0.0.1:{self.secure_ports[node] if is_tls else self.port(node)}"

    def write_config(self, node: int, changes: Mapping[str, object] | None = None) -> None:
        """As at the node's step."""
        step = self.steps[node]
        ports = {PLAIN: self.port(node), SECURE: self.secure_ports[node]}
        names = ORDERS[step]
        others = {other: self.peers_address(other, step) for other in self.voters}
        keys: dict[str, object] = {
            "listeners": ",".join(f"{name}://127.0.0.1:{ports[name]}" for name in names),
            "quorum.voters": ",".join(f"{other}@{at}" for other, at in others.items()),
        }
        if SECURE in names:
            keys |= {
                "listener.security.protocol.map": f"{PLAIN}:PLAINTEXT,{SECURE}:SSL",
                "ssl.keystore.location": self.keystore(f"quorumd-{node}"),
                "ssl.truststore.location": self.authority.trust,
                "ssl.client.auth": "required",
                "quorum.node.principals": PRINCIPALS,
            }
        if not self.is_static:
            keys["quorum.bootstrap.servers"] = ",".join(others.values())
        super().write_config(node, {**keys, **(changes or {})})
        if not self.is_static:
            path = self.config_path(node)
            lines = path.read_text().splitlines(keepends=True)
            path.write_text("".join(x for x in lines if not x.startswith("quorum.voters:")))

    def roll(self, step: str, *nodes: int) -> None:
        """Restart these nodes (none named: all), one after the other, as at this step."""
        for node in nodes or self.ids:
            self.steps[node] = step
            self.write_config(node)
            self.restart(node)


class Appending:
    """Programs that append by the library, one record after another, and remember what they were told.

    Use it in `with`.
    """

    def __init__(self, bootstrap: str, security: Security | None = None, programs: int = 3) -> None:
        self.failures: list[str] = []
        self.appended: dict[int, bytes] = {}
        """By offset."""
        self.latencies_s: list[float] = []
        """Of those that were acknowledged, in that order."""
        self._bootstrap = bootstrap
        self._security = security
        self._programs = programs
        self._name = next(_NAMES)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> Self:
        self._thread.start()
        self.wait_progress(1)
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        self._thread.join()

    def wait_progress(self, records: int = 20, timeout_s: float = 30.0) -> None:
        """Return when so many more records are acknowledged."""
        wanted, deadline = len(self.appended) + records, time.monotonic() + timeout_s
        while len(self.appended) < wanted:
            assert time.monotonic() < deadline, f"no progress in {timeout_s} s: {self.failures}"
            time.sleep(0.005)

    async def _run(self) -> None:
        await asyncio.gather(*(self._program(number) for number in range(self._programs)))

    async def _program(self, number: int) -> None:
        tries = 0
        async with QuorumClient(self._bootstrap, security=self._security) as client:
            while not self._stopping.is_set():
                tries += 1
                text = f"load {self._name} program {number} record {tries}"
                value, begun = text.encode(), time.monotonic()
                try:
                    (offset,) = await client.append([Record(value=value)])
                except QuorumError as error:
                    self.failures.append(str(error))
                    continue
                self.appended[offset] = value
                self.latencies_s.append(time.monotonic() - begun)
                await asyncio.sleep(0.002)

    def assert_nothing_lost(self, cluster: Cluster) -> None:
        """Every acknowledged record is in the log of every node, once, and no append has failed."""
        assert not self.failures
        for node in cluster.running():
            found = {record.offset: record.value for record in cluster.records(node)}
            lost = {at: value for at, value in self.appended.items() if found.get(at) != value}
            assert not lost, f"node {node} lost {len(lost)} acknowledged records"
            assert len(found) == len(set(found.values())), f"node {node} has a record twice"
