"""What `openssl s_client` finds at each TLS port of a node: that of the protocol, and that of HTTP."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.support.https_cluster import HttpsCluster
from tests.support.live_cluster import running

OPENSSL = shutil.which("openssl")
pytestmark = pytest.mark.skipif(
    OPENSSL is None, reason="no openssl: Debian, Ubuntu: apt install openssl"
)
PORTS = ("CONTROLLER", "http")
OLD = ("-cipher", "ALL:@SECLEVEL=0")
"""Without it openssl itself speaks nothing before TLS 1.2."""


class Port(NamedTuple):
    """Where one port of a node is, and what a client of it has."""

    cluster: HttpsCluster
    number: int

    def connect(
        self, *options: str, has_certificate: bool = True, keys: str = "Q\n"
    ) -> tuple[bool, str]:
        """Whether a handshake was done, and all that openssl says until the connection ends."""
        assert OPENSSL is not None
        folder = self.cluster.folder
        if has_certificate:
            own = str(folder / "client.pem")
            options += ("-cert", own, "-cert_chain", own, "-key", own)
        command = [OPENSSL, "s_client", "-connect", f"127.0.0.1:{self.number}"]
        command += ["-CAfile", str(self.cluster.trust), "-verify_return_error"]
        command += ["-verify_ip", "127.0.0.1", "-no_ign_eof", *options]
        done = subprocess.run(
            command, input=keys, capture_output=True, text=True, timeout=30, check=False
        )
        said = done.stdout + done.stderr
        # After TLS 1.2's alert it shows what was agreed on before.
        is_done = "Cipher is (NONE)" not in said and "SSL alert number" not in said
        return is_done and "Verification: OK" in said, said


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpsCluster]:
    with running(HttpsCluster(tmp_path_factory.mktemp("openssl"))) as cluster:
        yield cluster


@pytest.fixture(params=PORTS)
def port(cluster: HttpsCluster, request: pytest.FixtureRequest) -> Port:
    if request.param == "http":
        return Port(cluster, int(cluster.http_url(1, "").rstrip("/").rpartition(":")[2]))
    return Port(cluster, cluster.port(1))


@pytest.mark.parametrize("version", ["-tls1_3", "-tls1_2"])
def test_both_versions_are_spoken_and_the_chain_holds(port: Port, version: str) -> None:
    is_done, said = port.connect(version)
    assert is_done, said
    assert f"New, {'TLSv1.3' if version == '-tls1_3' else 'TLSv1.2'}, Cipher is" in said


@pytest.mark.parametrize("version", ["-tls1_1", "-tls1"])
def test_nothing_older_is(port: Port, version: str) -> None:
    is_done, said = port.connect(version, *OLD)
    assert not is_done
    assert "alert protocol version" in said


@pytest.mark.parametrize(
    "suites",
    ["ECDHE-ECDSA-AES128-SHA256", "AES256-GCM-SHA384", "DHE-RSA-AES256-GCM-SHA384", "NULL"],
)
def test_only_ecdhe_with_aead_is(port: Port, suites: str) -> None:
    is_done, said = port.connect("-tls1_2", "-cipher", f"{suites}:@SECLEVEL=0")
    assert not is_done
    assert "handshake failure" in said


def test_there_are_no_tickets_and_no_sessions_to_resume(port: Port) -> None:
    for version in ("-tls1_2", "-tls1_3"):
        said = port.connect(version)[1]
        assert "session ticket" not in said.lower()
        assert "Reused" not in port.connect(version, "-reconnect")[1]


def test_a_tls_1_2_client_cannot_renegotiate(port: Port) -> None:
    said = port.connect("-tls1_2", keys="R\n")[1]
    assert "RENEGOTIATING" in said
    assert "no renegotiation" in said


def test_whoever_shows_no_certificate_hears_so_by_an_alert(cluster: HttpsCluster) -> None:
    is_old, said = Port(cluster, cluster.port(1)).connect("-tls1_2", has_certificate=False)
    assert not is_old, said
    assert "alert" in said
    # In TLS 1.3 the client is done first, and is told when it reads.
    said = Port(cluster, cluster.port(1)).connect("-tls1_3", "-ign_eof", has_certificate=False)[1]
    assert "alert certificate required" in said
