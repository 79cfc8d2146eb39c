"""CAs, certificates and revocation lists are exchanged on a live quorum: nobody who appends notices."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import socket
import ssl
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from quorumd.client import QuorumClient, QuorumError, Record, Security
from quorumd.wire.messages.api_versions import ApiVersionsRequest
from quorumd.wire.registry import API_VERSIONS_KEY
from tests.support.https_cluster import HttpsCluster
from tests.support.live_cluster import Cluster, running
from tests.support.niceness import before_others
from tests.support.odd_certificates import Authority, now
from tests.support.raw_client import frame, request

LATE_S = 5.0
ANSWER_S = 75.0
ESTABLISHED = "01"
"""In /proc/net/tcp."""
HOSTS = ("127.0.0.1", "localhost")


class Site:
    """Files of all nodes and clients: each of them trusts the CAs of one file."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.trust, self.crl = folder / "ca.pem", folder / "crl.pem"
        self._folder = folder

    def trusting(self, *authorities: Authority) -> None:
        self.put({self.trust: b"".join(each.pem for each in authorities)})

    def keystore(self, name: str) -> Path:
        return self._folder / f"{name}.pem"

    def issue(self, authority: Authority, *names: str) -> None:
        issued = {self.keystore(name): authority.issue(name, HOSTS) for name in names}
        self.put({path: each.key_pem + each.chain_pem for path, each in issued.items()})

    def put(self, files: Mapping[Path, bytes]) -> None:
        for path, data in files.items():
            replace(path, data)

    def security(self, name: str) -> Security:
        return Security(
            security_protocol="SSL",
            ssl_truststore_type="PEM",
            ssl_truststore_location=self.trust,
            ssl_keystore_type="PEM",
            ssl_keystore_location=self.keystore(name),
        )


class MountedSite(Site):
    """As Kubernetes mounts secrets: links lead through `..data`, a link that is replaced when they change."""

    def put(self, files: Mapping[Path, bytes]) -> None:
        data = self._folder / "..data"
        before = data.resolve()
        now = Path(tempfile.mkdtemp(prefix="..", dir=self._folder))
        if data.exists():
            shutil.copytree(before, now, dirs_exist_ok=True)
        for path, content in files.items():
            replace(now / path.name, content)
        new = self._folder / "..data_tmp"
        new.symlink_to(now.name)
        new.rename(data)
        for path in files:
            if not path.is_symlink():
                path.symlink_to(f"..data/{path.name}")
        if before != data:
            shutil.rmtree(before)


def replace(path: Path, data: bytes) -> None:
    new = path.with_suffix(".new")
    new.write_bytes(data)
    new.chmod(0o600)
    new.rename(path)


class SecuredCluster(Cluster):
    """Three nodes with one listener, which is TLS; their HTTP is not."""

    renewal_s: ClassVar[float] = 20.0
    """Within this time the nodes make all connections anew, and not in a minute."""
    constants: ClassVar[Mapping[str, object]] = {"quorumd.server.net.renewal.RENEWAL_S": renewal_s}

    def __init__(self, folder: Path, site: Site, settings: Mapping[str, object]) -> None:
        super().__init__(folder)
        self.site = site
        self._more = settings

    def write_config(self, node: int, changes: Mapping[str, object] | None = None) -> None:
        keys = {
            "listener.security.protocol.map": "CONTROLLER:SSL",
            "ssl.keystore.location": self.site.keystore(f"quorumd-{node}"),
            "ssl.truststore.location": self.site.trust,
            "ssl.client.auth": "required",
            "quorum.node.principals": "User:CN=quorumd-{id}",
        }
        super().write_config(node, {**keys, **self._more, **(changes or {})})

    def look_now(self) -> None:
        """As an operator who has put new files in their places."""
        for node in self.ids:
            os.kill(self.pid(node), signal.SIGHUP)

    def certificates(self, node: int) -> list[dict[str, Any]]:
        (listener,) = self.status(node)["listeners"]
        return list(listener["certificates"])

    def everywhere(self, holds: Callable[[int], bool], what: str) -> None:
        for node in self.ids:
            self.wait_for(partial(holds, node), f"{what} on node {node}")

    def connections(self) -> set[str]:
        """Connections to nodes, by the inode of the other end's socket."""
        ports = {self.port(node) for node in self.ids}
        rows = map(str.split, Path("/proc/net/tcp").read_text().splitlines()[1:])
        return {
            row[9]
            for row in rows
            if row[3] == ESTABLISHED and int(row[2].partition(":")[2], 16) in ports
        }

    def links(self) -> set[str]:
        """Those of them that nodes have made."""
        opened = (os.readlink(each) for node in self.ids for each in _descriptors(self.pid(node)))
        inodes = {name.removeprefix("socket:[")[:-1] for name in opened}
        return self.connections() & inodes

    def subjects(self, node: int) -> set[str]:
        return {each["subject"] for each in self.certificates(node)}

    def epochs(self) -> set[int]:
        return {self.status(node)["epoch"] for node in self.ids}

    def closed(self, node: int, reason: str) -> int:
        return self.counted(node, f'quorumd_connections_closed_total{{reason="{reason}"}}')

    def counted(self, node: int, series: str) -> int:
        with urllib.request.urlopen(self.http_url(node, "/metrics"), timeout=5) as answer:
            text = answer.read().decode()
        found = re.search(rf"^{re.escape(series)} (\S+)", text, re.MULTILINE)
        return int(float(found[1])) if found else 0


class PollingCluster(SecuredCluster):
    """Nobody tells its nodes of new files: they look often."""

    renewal_s = 12.0
    constants: ClassVar[Mapping[str, object]] = {
        "quorumd.server.net.renewal.RENEWAL_S": renewal_s,
        "quorumd.security.reload.CHECK_S": 0.5,
    }

    def look_now(self) -> None:
        """It would be done by hand."""


def _descriptors(pid: int) -> list[Path]:
    return [each for each in Path(f"/proc/{pid}/fd").iterdir() if each.is_symlink()]


class Appending:
    """Programs that append by the library, each under a certificate. Use it in `with`."""

    def __init__(self, cluster: SecuredCluster, *names: str) -> None:
        self.failures: list[str] = []
        self.count = 0
        self._cluster = cluster
        self._names = names
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        self._thread.join()

    def go_on(self, seconds: float) -> None:
        """Return when appends have been acknowledged for so long, and more of them after that."""
        time.sleep(seconds)
        wanted, deadline = self.count + 20, time.monotonic() + 30
        while self.count < wanted and not self.failures:
            assert time.monotonic() < deadline, "no progress in 30 s"
            time.sleep(0.01)
        assert self.failures == []

    async def _run(self) -> None:
        await asyncio.gather(*map(self._program, self._names))

    async def _program(self, name: str) -> None:
        security = self._cluster.site.security(name)
        async with QuorumClient(self._cluster.bootstrap, security=security) as client:
            number = 0
            while not self._stopping.is_set():
                number += 1
                try:
                    await client.append([Record(value=f"{name} {number}".encode())])
                except QuorumError as error:
                    self.failures.append(f"{name} {number}: {error}")
                    return
                self.count += 1
                await asyncio.sleep(0.01)


@pytest.fixture
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    """With parameters a MountedSite, or not."""
    kind: type[Site] = getattr(request, "param", Site)
    return kind(tmp_path / "certificates")


NODES = ("quorumd-1", "quorumd-2", "quorumd-3")


@pytest.fixture
def old(site: Site) -> Authority:
    """The CA that has issued everything that is there at the start."""
    authority = Authority("old CA")
    site.trusting(authority)
    site.issue(authority, *NODES, "a-client", "another")
    replace(site.crl, authority.crl())
    return authority


@pytest.fixture
def cluster(tmp_path: Path, site: Site, old: Authority) -> Iterator[SecuredCluster]:
    kind = PollingCluster if isinstance(site, MountedSite) else SecuredCluster
    # All of them have to see new files within two seconds: who is renewed first depends on it.
    with (
        running(kind(tmp_path / "quorum", site, {})) as made,
        before_others(*map(made.pid, made.ids)),
    ):
        yield made


@pytest.fixture
def strict(tmp_path: Path, site: Site, old: Authority) -> Iterator[SecuredCluster]:
    """With a revocation list."""
    settings = {"ssl.crl.location": site.crl}
    with running(SecuredCluster(tmp_path / "quorum", site, settings)) as made:
        yield made


@pytest.mark.timeout(400)
@pytest.mark.parametrize("site", [Site, MountedSite], indirect=True)
def test_a_ca_is_exchanged_in_three_steps_under_load(
    cluster: SecuredCluster, site: Site, old: Authority
) -> None:
    new = Authority("new CA")
    epochs = cluster.epochs()
    with Appending(cluster, "a-client", "another") as appending:
        appending.go_on(0.5)
        site.trusting(old, new)
        cluster.look_now()
        cluster.everywhere(lambda node: "CN=new CA" in cluster.subjects(node), "both CAs")
        appending.go_on(0.5)

        before = own_ends(cluster)
        time.sleep(1.1)  # the ends of certificates are whole seconds
        site.issue(new, *NODES, "a-client", "another")
        cluster.look_now()
        cluster.everywhere(lambda node: own_ends(cluster)[node] != before[node], "its new one")
        appending.go_on(0.5)

        connections, links = cluster.connections(), cluster.links()
        closed = sum(cluster.closed(node, "renewed") for node in cluster.ids)
        site.trusting(new)
        cluster.look_now()
        cluster.everywhere(lambda node: "CN=old CA" not in cluster.subjects(node), "one CA")
        appending.go_on(cluster.renewal_s + LATE_S)
        assert not connections & cluster.connections()
    # All connections were made anew, and not one election was held for it.
    assert cluster.epochs() == epochs
    renewed = sum(cluster.closed(node, "renewed") for node in cluster.ids)
    assert renewed >= 2
    # Nodes have renewed their links themselves, before others' listeners would have.
    assert renewed - closed <= len(connections - links) + 1
    cluster.wait_converged()
    site.issue(old, "late")
    with (
        pytest.raises(ssl.SSLError, match=r"UNKNOWN_CA|unknown ca"),
        connection(cluster, site, "late"),
    ):
        pass


def own_ends(cluster: SecuredCluster) -> dict[int, str]:
    return {node: cluster.certificates(node)[0]["ends"] for node in cluster.ids}


@contextmanager
def connection(cluster: SecuredCluster, site: Site, name: str) -> Iterator[ssl.SSLSocket]:
    """To node 1, by this certificate; a request was answered on it. Raises ssl.SSLError if refused."""
    context = ssl.create_default_context(cafile=str(site.trust))
    context.load_cert_chain(site.keystore(name))
    with (
        socket.create_connection(("127.0.0.1", cluster.port(1)), ANSWER_S) as raw,
        context.wrap_socket(raw, server_hostname="localhost") as secured,
    ):
        secured.sendall(frame(request(API_VERSIONS_KEY, 0, ApiVersionsRequest())))
        assert len(secured.recv(1 << 16)) > 100
        yield secured


@pytest.mark.timeout(200)
def test_a_certificate_that_is_revoked_ends_its_connection_and_no_other(
    strict: SecuredCluster, site: Site, old: Authority
) -> None:
    victim = old.issue("victim", HOSTS)
    victim.write(site.keystore("victim"))
    with Appending(strict, "a-client") as appending, connection(strict, site, "victim") as open_:
        appending.go_on(0.5)
        connections = strict.connections()
        replace(site.crl, old.crl(victim, number=2))
        strict.look_now()
        assert open_.recv(1) == b""
        with (
            pytest.raises(ssl.SSLError, match=r"CERTIFICATE_REVOKED|certificate revoked"),
            connection(strict, site, "victim"),
        ):
            pass
        renewed = "all connections and links to be made anew"
        strict.wait_for(lambda: not connections & strict.connections(), renewed)
        appending.go_on(1)


@pytest.mark.timeout(200)
def test_a_revocation_list_that_ends_is_warned_of_and_refuses_everybody_until_there_is_a_new_one(
    strict: SecuredCluster, site: Site, old: Authority
) -> None:
    def warnings(node: int, text: str) -> list[str]:
        of_list = "listener CONTROLLER: the revocation list of CN=old CA"
        return [each for each in strict.status(node)["warnings"] if each == f"{of_list} {text}"]

    begin, end = now() - timedelta(days=30), now() + timedelta(days=13, hours=1)
    replace(site.crl, old.crl(number=2, begin=begin, end=end))
    strict.look_now()
    strict.everywhere(lambda node: warnings(node, "ends in 13 d 0 h"), "a warning")
    ends = now() + timedelta(seconds=5)
    replace(site.crl, old.crl(number=3, begin=begin, end=ends))
    strict.look_now()
    strict.everywhere(lambda node: warnings(node, "ends in 0 d 0 h"), "a warning")
    over = "ended 0 d 0 h ago: whoever needs it is refused"
    strict.everywhere(lambda node: warnings(node, over), "its end")
    assert now() >= ends.replace(microsecond=0)
    with (
        pytest.raises(ssl.SSLError, match=r"CERTIFICATE_EXPIRED|certificate expired"),
        connection(strict, site, "a-client"),
    ):
        pass
    assert strict.counted(1, 'quorumd_tls_handshakes_total{listener="CONTROLLER",outcome="crl"}')

    replace(site.crl, old.crl(number=4))
    strict.look_now()
    strict.everywhere(lambda node: not warnings(node, over), "the new list")
    for node in strict.ids:
        strict.wait_ready(node)
    with Appending(strict, "a-client") as appending:
        appending.go_on(0.5)
    assert not strict.status(1)["listeners"][0]["reload_problems"]


def test_a_connection_ends_with_the_certificate_that_made_it(
    cluster: SecuredCluster, site: Site, old: Authority
) -> None:
    soon = now() + timedelta(seconds=5)
    old.issue("brief", HOSTS, end=soon).write(site.keystore("brief"))
    with (
        connection(cluster, site, "brief") as open_,
        connection(cluster, site, "a-client") as other,
    ):
        assert open_.recv(1) == b""
        assert now() >= soon.replace(microsecond=0)
        other.sendall(frame(request(API_VERSIONS_KEY, 0, ApiVersionsRequest())))
        assert len(other.recv(1 << 16)) > 100
        with (
            pytest.raises(ssl.SSLError, match=r"CERTIFICATE_EXPIRED|certificate expired"),
            connection(cluster, site, "brief"),
        ):
            pass
    assert cluster.closed(1, "expired") == 1


def test_a_bad_set_is_shown_and_counted_until_it_is_mended(
    cluster: SecuredCluster, site: Site
) -> None:
    good = site.keystore("quorumd-2").read_bytes()
    replace(site.keystore("quorumd-2"), good[:-400])
    cluster.look_now()

    def problems() -> list[str]:
        return list(cluster.status(2)["listeners"][0]["reload_problems"])

    (text,) = cluster.wait_for(problems, "the problem in /status")
    assert "ssl.keystore.location" in text
    assert any("the new files are not used" in each for each in cluster.status(2)["warnings"])
    assert cluster.certificates(2)[0]["subject"] == "CN=quorumd-2"
    with urllib.request.urlopen(cluster.http_url(2, "/metrics"), timeout=5) as answer:
        metrics = answer.read().decode()
    assert (
        'quorumd_certificate_expiry_timestamp_seconds{listener="CONTROLLER",role="own"' in metrics
    )
    failures = re.search(r"^quorumd_certificate_reload_failures_total (\S+)", metrics, re.MULTILINE)
    assert failures is not None
    assert float(failures[1]) >= 1
    cluster.wait_logged(2, "new files are not used")
    assert cluster.output(2).count("new files are not used") == 1
    # The quorum works as before.
    with Appending(cluster, "a-client") as appending:
        appending.go_on(0.2)
    replace(site.keystore("quorumd-2"), good)
    cluster.look_now()
    cluster.wait_for(lambda: not problems(), "the mended files")


class Unwatched(HttpsCluster):
    """A node that does not look at its files by itself."""

    constants: ClassVar[Mapping[str, object]] = {"quorumd.security.reload.CHECK_S": 3600.0}

    def shown(self) -> list[bytes]:
        """The certificates that its listener and its pages show."""
        return [
            self.certificate_at(port)
            for port in (self.port(1), int(self.http_url(1, "").rpartition(":")[2]))
        ]

    def shows(self, certificates: list[bytes]) -> bool:
        return self.shown() == certificates

    def certificate_at(self, port: int) -> bytes:
        with (
            socket.create_connection(("127.0.0.1", port), 10) as raw,
            self.context(has_certificate=True).wrap_socket(
                raw, server_hostname="localhost"
            ) as secured,
        ):
            found = secured.getpeercert(binary_form=True)
        assert found is not None
        return found


def test_sighup_has_a_node_look_at_once_each_time(tmp_path: Path) -> None:
    with running(Unwatched(tmp_path / "node")) as cluster:
        for _ in range(2):
            since, before = len(cluster.output(1)), cluster.shown()
            new = cluster.authority.issue("quorumd-1", HOSTS)
            replace(cluster.folder / "node.pem", new.pem)
            assert cluster.shown() == before
            os.kill(cluster.pid(1), signal.SIGHUP)
            wanted = [new.certificate.public_bytes(Encoding.DER)] * 2
            cluster.wait_for(partial(cluster.shows, wanted), "the new certificate")
            for line in (
                "SIGHUP: reading keys and certificates",
                "new certificates are in use listener=CONTROLLER ",
                "new certificates are in use listener=http ",
            ):
                cluster.wait_logged(1, line, since=since)


def test_files_that_cannot_be_used_at_the_start_are_refused_all_at_once(
    tmp_path: Path, site: Site, old: Authority
) -> None:
    cluster = SecuredCluster(tmp_path / "quorum", site, {"ssl.crl.location": site.crl})
    cluster.format()
    site.keystore("quorumd-1").write_bytes(b"")
    site.crl.write_bytes(b"")
    cluster.start(1)
    ended = cluster.wait_exit(1)
    assert ended.exit_code == 2
    for key in ("ssl.keystore.location", "ssl.crl.location"):
        assert re.search(rf"node-1\.yaml:\d+: {key}: ", ended.output), ended.output
