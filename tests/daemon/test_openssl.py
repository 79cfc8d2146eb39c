"""What `openssl s_client` and sslyze find at each TLS port of a node: that of its peers, that of its clients,
which has an RSA certificate of its own, and that of HTTP.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.support.https_cluster import HOSTS, HttpsCluster
from tests.support.live_cluster import running
from tests.support.ports import free_port
from tests.support.sslyze import CannotFetch, scan, sslyze

OPENSSL = shutil.which("openssl")
needs_openssl = pytest.mark.skipif(
    OPENSSL is None, reason="no openssl: Debian, Ubuntu: apt install openssl"
)
PORTS = ("CONTROLLER", "CLIENTS", "http")
OLD = ("-cipher", "ALL:@SECLEVEL=0")
"""Without it openssl itself speaks nothing before TLS 1.2."""
TLS_1_3_SUITES = {
    "TLS_AES_256_GCM_SHA384",
    "TLS_AES_128_GCM_SHA256",
    "TLS_CHACHA20_POLY1305_SHA256",
}
AEAD = ("AES_256_GCM_SHA384", "AES_128_GCM_SHA256", "CHACHA20_POLY1305_SHA256")


class ScannedCluster(HttpsCluster):
    """Clients have a listener of their own, with another certificate."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.clients_port = free_port()
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.authority.issue("quorum", HOSTS, key=key).write(folder / "clients.pem")

    def write_config(self, node: int, changes: Mapping[str, object] | None = None) -> None:
        clients = f"CLIENTS://127.0.0.1:{self.clients_port}"
        keys = {
            "listeners": f"CONTROLLER://{self.address(node)},{clients}",
            "listener.security.protocol.map": "CONTROLLER:SSL,CLIENTS:SSL",
            "listener.name.clients.ssl.keystore.location": self.folder / "clients.pem",
        }
        super().write_config(node, {**keys, **(changes or {})})

    def port_of(self, name: str) -> int:
        if name == "http":
            return int(self.http_url(1, "").rpartition(":")[2])
        return self.clients_port if name == "CLIENTS" else self.port(1)


class Port(NamedTuple):
    """Where one port of a node is, and what a client of it has."""

    cluster: ScannedCluster
    name: str

    @property
    def number(self) -> int:
        return self.cluster.port_of(self.name)

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
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScannedCluster]:
    with running(ScannedCluster(tmp_path_factory.mktemp("openssl"))) as cluster:
        yield cluster


@pytest.fixture(params=PORTS)
def port(cluster: ScannedCluster, request: pytest.FixtureRequest) -> Port:
    return Port(cluster, request.param)


@needs_openssl
@pytest.mark.parametrize("version", ["-tls1_3", "-tls1_2"])
def test_both_versions_are_spoken_and_the_chain_holds(port: Port, version: str) -> None:
    is_done, said = port.connect(version)
    assert is_done, said
    assert f"New, {'TLSv1.3' if version == '-tls1_3' else 'TLSv1.2'}, Cipher is" in said


@needs_openssl
@pytest.mark.parametrize("version", ["-tls1_1", "-tls1"])
def test_nothing_older_is(port: Port, version: str) -> None:
    is_done, said = port.connect(version, *OLD)
    assert not is_done
    assert "alert protocol version" in said


@needs_openssl
@pytest.mark.parametrize(
    "suites",
    [
        "ECDHE-ECDSA-AES128-SHA256:ECDHE-RSA-AES128-SHA256",
        "AES256-GCM-SHA384",
        "DHE-RSA-AES256-GCM-SHA384",
        "NULL",
    ],
)
def test_only_ecdhe_with_aead_is(port: Port, suites: str) -> None:
    is_done, said = port.connect("-tls1_2", "-cipher", f"{suites}:@SECLEVEL=0")
    assert not is_done
    assert "handshake failure" in said


@needs_openssl
def test_there_are_no_tickets_and_no_sessions_to_resume(port: Port) -> None:
    for version in ("-tls1_2", "-tls1_3"):
        said = port.connect(version)[1]
        assert "session ticket" not in said.lower()
        assert "Reused" not in port.connect(version, "-reconnect")[1]


@needs_openssl
def test_a_tls_1_2_client_cannot_renegotiate(port: Port) -> None:
    said = port.connect("-tls1_2", keys="R\n")[1]
    assert "RENEGOTIATING" in said
    assert "no renegotiation" in said


@needs_openssl
@pytest.mark.parametrize("name", ["CONTROLLER", "CLIENTS"])
def test_whoever_shows_no_certificate_hears_so_by_an_alert(
    cluster: ScannedCluster, name: str
) -> None:
    port = Port(cluster, name)
    is_old, said = port.connect("-tls1_2", has_certificate=False)
    assert not is_old, said
    assert "alert" in said
    # In TLS 1.3 the client is done first, and is told when it reads.
    said = port.connect("-tls1_3", "-ign_eof", has_certificate=False)[1]
    assert "alert certificate required" in said


@pytest.fixture(scope="module")
def scanned(cluster: ScannedCluster) -> Mapping[str, Any]:
    """What sslyze has found, by port."""
    try:
        sslyze()
    except CannotFetch as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"on CI sslyze must run, but {error}", pytrace=False)
        pytest.skip(str(error))
    folder = cluster.folder
    files = (cluster.trust, folder / "prometheus.crt", folder / "prometheus.key")
    found = scan(map(cluster.port_of, PORTS), *files)
    return {name: found[cluster.port_of(name)] for name in PORTS}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", PORTS)
def test_sslyze_finds_nothing_old_weak_or_resumed(scanned: Mapping[str, Any], name: str) -> None:
    found = scanned[name]
    accepted = {
        version: {
            each["cipher_suite"]["name"]
            for each in found[f"{version}_cipher_suites"]["accepted_cipher_suites"]
        }
        for version in ("ssl_2_0", "ssl_3_0", "tls_1_0", "tls_1_1", "tls_1_2", "tls_1_3")
    }
    key = "RSA" if name == "CLIENTS" else "ECDSA"
    assert {version: suites for version, suites in accepted.items() if suites} == {
        "tls_1_2": {f"TLS_ECDHE_{key}_WITH_{suite}" for suite in AEAD},
        "tls_1_3": TLS_1_3_SUITES,
    }
    resumed = found["session_resumption"]
    assert resumed["session_id_resumption_result"] == "NOT_SUPPORTED"
    assert resumed["tls_ticket_resumption_result"] == "NOT_SUPPORTED"
    assert found["session_renegotiation"]["client_renegotiations_success_count"] == 0
    assert not found["tls_compression"]["supports_compression"]
    assert found["tls_fallback_scsv"]["supports_fallback_scsv"]
    assert found["tls_extended_master_secret"]["supports_ems_extension"]
    assert not found["heartbleed"]["is_vulnerable_to_heartbleed"]
    assert not found["openssl_ccs_injection"]["is_vulnerable_to_ccs_injection"]
    assert found["robot"]["robot_result"] == "NOT_VULNERABLE_RSA_NOT_SUPPORTED"
    (deployed,) = found["certificate_info"]["certificate_deployments"]
    leaf = deployed["received_certificate_chain"][0]
    assert leaf["subject_alternative_name"] == {
        "dns_names": ["localhost"],
        "ip_addresses": ["127.0.0.1"],
    }
    assert deployed["received_chain_has_valid_order"]
    (own,) = (
        each
        for each in deployed["path_validation_results"]
        if each["trust_store"]["name"] == "Supplied CA file"
    )
    assert own["was_validation_successful"]
