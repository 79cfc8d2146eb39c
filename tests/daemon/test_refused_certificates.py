"""Clients that a node refuses: the alert that is sent, the count by reason, the one line in the log, and the
errors of the library and of quorumctl.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import time
import urllib.request
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import pytest

from quorumd.client import CertificateProblem, QuorumClient, Security
from quorumd.config.tls_port import HTTP
from quorumd.security.tls_records import UNEXPECTED_MESSAGE
from quorumd.server.net.connection_group import CLOSE_LINES_PER_S
from tests.support.commands import quorumctl
from tests.support.https_cluster import HttpsCluster
from tests.support.live_cluster import running
from tests.support.odd_certificates import SERVER_AUTH, Authority, Issued, now

LISTENER = "CONTROLLER"
MANY = 50
TLS_1_2, TLS_1_3 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3


class Row(NamedTuple):
    """What a client shows, and what it gets."""

    shown: str
    alert: str
    outcome: str
    logged: str
    said: tuple[str, ...]
    """In the error of the library and of quorumctl; {own}: the client's keystore."""


ROWS = (
    Row(
        "of another CA",
        "UNKNOWN_CA",
        "untrusted",
        "its certificate is of no CA in ",
        ("{own} (ssl.keystore.location)", "issued by CN=another CA", "not in the truststore there"),
    ),
    Row(
        "none",
        "CERTIFICATE_REQUIRED|HANDSHAKE_FAILURE",
        "no_certificate",
        "showed no certificate: ssl.client.auth is required here",
        ("requires a certificate", "set ssl.keystore.location"),
    ),
    Row(
        "expired",
        "CERTIFICATE_EXPIRED",
        "expired",
        "has expired",
        ("{own} (ssl.keystore.location)", "expired 3 h ago: renew it"),
    ),
    Row(
        "revoked",
        "CERTIFICATE_REVOKED",
        "revoked",
        "its certificate is revoked by ",
        ("{own} (ssl.keystore.location)", "revoked: have another one issued"),
    ),
    Row(
        "for servers",
        "UNSUPPORTED_CERTIFICATE",
        "purpose",
        "is not made for clients",
        ("{own} (ssl.keystore.location)", "extended key usage clientAuth"),
    ),
)
SHOWN = [row for row in ROWS if row.shown != "none"]


class RefusingCluster(HttpsCluster):
    """A node with a revocation list, and the keystores of clients that it has to refuse."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        hour = timedelta(hours=1)
        revoked = self.authority.issue("revoked", ())
        shown: Mapping[str, Issued] = {
            "of another CA": Authority("another CA").issue("stranger", ()),
            "expired": self.authority.issue(
                "late", (), begin=now() - 9 * hour, end=now() - 3 * hour
            ),
            "revoked": revoked,
            "for servers": self.authority.issue("server", (), purposes=[SERVER_AUTH]),
        }
        self.keystores = {
            name: issued.write(folder / f"{name.replace(' ', '-')}.pem")
            for name, issued in shown.items()
        }
        self.crl = folder / "crl.pem"
        self.crl.write_bytes(self.authority.crl(revoked))

    def write_config(self, node: int, changes: Mapping[str, object] | None = None) -> None:
        keys = {"ssl.crl.location": self.crl}
        super().write_config(node, {**keys, **(changes or {})})

    def counts(self, listener: str = LISTENER) -> dict[str, int]:
        """Handshakes there, by outcome; those of HTTP hold the one that asks."""
        url, context = self.http_url(1, "/metrics"), self.context(has_certificate=True)
        with urllib.request.urlopen(url, timeout=5, context=context) as answer:
            text = answer.read().decode()
        series = re.compile(
            rf'^quorumd_tls_handshakes_total\{{listener="{listener}",outcome="(\w+)"\}} (\S+)$',
            re.MULTILINE,
        )
        return {outcome: int(float(count)) for outcome, count in series.findall(text)}

    def refusals(self, since: int) -> list[str]:
        lines = self.output(1)[since:].splitlines()
        return [line for line in lines if "TLS handshake failed" in line]

    def port_of(self, listener: str) -> int:
        url = self.http_url(1, "")
        return int(url.rpartition(":")[2]) if listener == HTTP else self.port(1)

    def refuses(self, context: ssl.SSLContext, listener: str = LISTENER) -> str:
        """The alert that a client of its own gets."""
        with (
            pytest.raises(ssl.SSLError) as refused,
            socket.create_connection(("127.0.0.1", self.port_of(listener)), 10) as raw,
            context.wrap_socket(raw, server_hostname="127.0.0.1") as client,
        ):
            client.recv(1)  # in TLS 1.3 a client learns it when it reads
        return str(refused.value.reason)

    def expect_one(
        self,
        context: ssl.SSLContext,
        alert: str,
        outcome: str,
        logged: str,
        listener: str = LISTENER,
    ) -> None:
        """One such client: one alert, one line, and one more of the count by its reason."""
        before, since = self.counts(listener), len(self.output(1))
        assert re.search(alert, self.refuses(context, listener))
        self.expect_told(before, since, outcome, logged, listener)

    def expect_told(
        self, before: dict[str, int], since: int, outcome: str, logged: str, listener: str
    ) -> None:
        """One line, and one more of the count by its reason."""
        self.wait_logged(1, f"why={outcome} ", since=since)
        (line,) = self.refusals(since)
        assert "peer=127.0.0.1:" in line
        assert f"listener={listener} " in line
        assert logged in line
        expected = {**before, outcome: before[outcome] + 1}
        if listener == HTTP:
            expected["done"] += 1
        assert self.counts(listener) == expected

    def client_of(self, shown: str) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.trust))
        if shown in self.keystores:
            context.load_cert_chain(self.keystores[shown])
        return context

    def keys_of(self, shown: str) -> dict[str, str]:
        keys = {"security.protocol": "SSL", "ssl.truststore.location": str(self.trust)}
        if shown in self.keystores:
            keys["ssl.keystore.location"] = str(self.keystores[shown])
        return keys


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RefusingCluster]:
    with running(RefusingCluster(tmp_path_factory.mktemp("refusing"))) as cluster:
        yield cluster


@pytest.mark.parametrize("version", [TLS_1_2, TLS_1_3], ids=["TLS 1.2", "TLS 1.3"])
@pytest.mark.parametrize("row", ROWS, ids=[row.shown for row in ROWS])
def test_a_certificate_that_is_refused_is_told_why_counted_and_logged_once(
    cluster: RefusingCluster, row: Row, version: ssl.TLSVersion
) -> None:
    context = cluster.client_of(row.shown)
    context.minimum_version = context.maximum_version = version
    cluster.expect_one(context, row.alert, row.outcome, row.logged)


@pytest.mark.parametrize("version", [TLS_1_2, TLS_1_3], ids=["TLS 1.2", "TLS 1.3"])
@pytest.mark.parametrize("row", SHOWN, ids=[row.shown for row in SHOWN])
def test_a_certificate_that_http_refuses_is_told_why_counted_and_logged_once(
    cluster: RefusingCluster, row: Row, version: ssl.TLSVersion
) -> None:
    """Who shows none is told by the pages what there is without one; who shows a bad one is refused."""
    context = cluster.client_of(row.shown)
    context.minimum_version = context.maximum_version = version
    cluster.expect_one(context, row.alert, row.outcome, row.logged, HTTP)


@pytest.mark.parametrize("listener", [LISTENER, HTTP])
def test_plaintext_is_closed_counted_and_logged_once(
    cluster: RefusingCluster, listener: str
) -> None:
    before, since = cluster.counts(listener), len(cluster.output(1))
    with socket.create_connection(("127.0.0.1", cluster.port_of(listener)), 10) as client:
        client.sendall(b"GET /livez HTTP/1.1\r\n\r\n")
        assert client.makefile("rb").read() == UNEXPECTED_MESSAGE
    logged = 'reason="sent plaintext on a listener that is TLS here"'
    cluster.expect_told(before, since, "plaintext", logged, listener)


@pytest.mark.parametrize("version", [TLS_1_2, TLS_1_3], ids=["TLS 1.2", "TLS 1.3"])
def test_clients_that_refuse_the_nodes_certificate_are_counted_by_why(
    cluster: RefusingCluster, version: ssl.TLSVersion
) -> None:
    """Each closes with bytes unread, which resets the connection behind its alert."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = context.maximum_version = version
    before, since = cluster.counts(), len(cluster.output(1))
    for _ in range(MANY):
        assert cluster.refuses(context) == "CERTIFICATE_VERIFY_FAILED"
    expected = {**before, "untrusted": before["untrusted"] + MANY}

    def counted() -> dict[str, int] | None:
        found = cluster.counts()
        return found if sum(found.values()) >= sum(expected.values()) else None

    assert cluster.wait_for(counted, "all to be counted") == expected
    assert "refused the certificate of this side" in cluster.refusals(since)[0]
    # A node logs so many such lines a second, and the tests that follow look for theirs.
    time.sleep(MANY / CLOSE_LINES_PER_S)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("listener", [LISTENER, HTTP])
def test_tls_1_1_is_told_why_counted_and_logged_once(
    cluster: RefusingCluster, listener: str
) -> None:
    context = cluster.client_of("none")
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    logged = "speaks no version of TLS that this side does: TLSv1.2, TLSv1.3"
    cluster.expect_one(context, "PROTOCOL_VERSION", "protocol_version", logged, listener)


@pytest.mark.parametrize("row", ROWS, ids=[row.shown for row in ROWS])
def test_the_library_and_quorumctl_name_the_cause_and_the_file(
    cluster: RefusingCluster, row: Row, tmp_path: Path
) -> None:
    async def ask(security: Security) -> None:
        async with QuorumClient(cluster.bootstrap, security=security, timeout_ms=60_000) as client:
            await client.describe_quorum()

    keys = cluster.keys_of(row.shown)
    with pytest.raises(CertificateProblem) as refused:
        asyncio.run(ask(Security.from_pairs(keys, "these")))
    properties = tmp_path / "client.properties"
    properties.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
    where = ("-b", cluster.bootstrap, "--command-config", properties)
    done = quorumctl("describe", *where, "--timeout", 60)
    assert done.code == 1
    for text in (str(refused.value), " ".join(done.err.split())):
        for words in row.said:
            assert words.format(own=keys.get("ssl.keystore.location")) in text
        assert cluster.address(1) in text
