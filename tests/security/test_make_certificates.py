"""`quorumd certs`: what it makes is taken by OpenSSL and by the checks of a start, and is nobody else's."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from quorumd.config.java_properties import parse
from quorumd.config.node_principals import node_principals
from quorumd.config.tls import ClientAuth, TlsConfig
from quorumd.security.checks import problems_of
from quorumd.security.credentials import Credentials
from quorumd.security.errors import CertificateProblem
from quorumd.security.make_certificates import NODE_PRINCIPALS, make_ca, make_client
from quorumd.server.main import cli
from tests.support import canary


def certs(directory: Path, command: str, *arguments: str) -> Result:
    """What the command does; it prints no key that it has made."""
    result = CliRunner().invoke(cli, ["certs", command, "--dir", str(directory), *arguments])
    canary.remember_keys_below(directory)
    canary.check(result.output, f"certs {command}")
    return result


@pytest.fixture
def made(tmp_path: Path) -> Path:
    directory = tmp_path / "certs"
    for command, *arguments in (
        ("ca",),
        ("node", "--id", "1", "--host", "db1.example.com", "--host", "::1"),
        ("client", "alice"),
    ):
        result = certs(directory, command, *arguments)
        assert result.exit_code == 0, result.output
    return directory


def config(directory: Path, store: str) -> TlsConfig:
    return TlsConfig(
        ssl_keystore_location=directory / store,
        ssl_truststore_location=directory / "ca.pem",
        ssl_client_auth=ClientAuth.REQUIRED,
    )


@pytest.mark.parametrize("name", ["ca.key", "quorumd-1.pem", "alice.pem"])
def test_a_key_would_be_found_in_what_is_printed(made: Path, name: str) -> None:
    with pytest.raises(AssertionError, match="holds a private key"):
        canary.check(f"a line\n{(made / name).read_text()}", name)


def test_a_nodes_certificate_serves_for_both_sides_and_for_its_hosts_alone(made: Path) -> None:
    tls = config(made, "quorumd-1.pem")
    for is_server in (True, False):
        hosts = ["db1.example.com", "::1"] if is_server else []
        assert not problems_of(
            tls, listener="CONTROLLER", hosts=hosts, is_server=is_server, is_peers=True
        )
    wrong = problems_of(
        tls, listener="CONTROLLER", hosts=["db2.example.com"], is_server=True, is_peers=True
    )
    assert "db2.example.com" in str(wrong)


def test_a_clients_certificate_is_no_servers(made: Path) -> None:
    tls = config(made, "alice.pem")
    assert not problems_of(tls, listener="client", hosts=[], is_server=False, is_peers=False)
    assert problems_of(tls, listener="CONTROLLER", hosts=[], is_server=True, is_peers=False)


def test_the_principals_are_those_that_are_printed(made: Path) -> None:
    templates = node_principals(NODE_PRINCIPALS)
    nodes = {}
    for store in ("quorumd-1.pem", "alice.pem"):
        credentials = Credentials(config(made, store), is_server=False)
        own = credentials.material.chain[0]
        principal = credentials.identify(own.public_bytes(Encoding.DER)).principal
        nodes[store] = templates.id_of(principal)
    assert nodes == {"quorumd-1.pem": 1, "alice.pem": None}


@pytest.mark.parametrize("folder", [r"a\tb", "z\u00fcrich", "my certs #1", "col: on"])
def test_a_folder_may_have_any_name(tmp_path: Path, folder: str) -> None:
    made = tmp_path / folder
    for command in (("ca",), ("node", "--id", "1", "--host", "db1"), ("client", "alice")):
        result = certs(made, *command)
        assert result.exit_code == 0, result.output
        if command[0] == "node":
            printed = [line for line in result.output.splitlines() if "store.location" in line]
            lines = yaml.safe_load("\n".join(line.strip() for line in printed))
            assert lines["ssl.keystore.location"] == str(made / "quorumd-1.pem")
    # Java reads ISO-8859-1.
    properties = parse((made / "alice.properties").read_bytes().decode("ascii"))
    assert properties["ssl.keystore.location"] == str(made / "alice.pem")


def test_a_certificate_ends_with_its_ca_and_an_expired_one_makes_none(tmp_path: Path) -> None:
    make_ca(tmp_path, 2)
    make_client(tmp_path, "alice", 397)
    ca, alice = (
        x509.load_pem_x509_certificate((tmp_path / name).read_bytes())
        for name in ("ca.pem", "alice.pem")
    )
    assert alice.not_valid_after_utc == ca.not_valid_after_utc
    assert ca.extensions.get_extension_for_class(x509.BasicConstraints).value.path_length == 0
    make_ca(tmp_path, 0, force=True)
    with pytest.raises(CertificateProblem, match="has expired: make another one"):
        make_client(tmp_path, "bob", 397)


def test_what_a_killed_command_has_left_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "ca.key.part").write_bytes(b"half")
    make_ca(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ca.key", "ca.pem"]


@pytest.mark.live
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_openssl_verifies_the_chain(made: Path) -> None:
    for store, purpose in (
        ("quorumd-1", "sslserver"),
        ("quorumd-1", "sslclient"),
        ("alice", "sslclient"),
    ):
        command = ["openssl", "verify", "-purpose", purpose, "-x509_strict", "-CAfile"]
        subprocess.run([*command, made / "ca.pem", made / f"{store}.pem"], check=True)


def test_private_keys_are_their_owners_and_nothing_is_replaced_by_chance(made: Path) -> None:
    modes = {path.name: path.stat().st_mode & 0o777 for path in made.iterdir()}
    assert made.stat().st_mode & 0o777 == 0o700
    assert modes == {
        "alice.pem": 0o600,
        "alice.properties": 0o644,
        "ca.key": 0o600,
        "ca.pem": 0o644,
        "quorumd-1.pem": 0o600,
    }
    before = {path.name: path.read_bytes() for path in made.iterdir()}
    for command, *arguments in (("ca",), ("client", "alice")):
        result = certs(made, command, *arguments)
        assert result.exit_code == 2
        assert "there already; --force replaces" in result.output
    assert {path.name: path.read_bytes() for path in made.iterdir()} == before
    assert certs(made, "client", "alice", "--force").exit_code == 0
    assert (made / "alice.pem").read_bytes() != before["alice.pem"]


def test_a_full_disk_leaves_everything_as_it_was(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path.name: path.read_bytes() for path in made.iterdir()}
    fsync, synced = os.fsync, []

    def full_at_the_second(handle: int) -> None:
        synced.append(handle)
        if len(synced) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", full_at_the_second)
    refused = certs(made, "ca", "--force")
    assert (refused.exit_code, refused.output) == (
        2,
        f"quorumd: cannot write {made}/ca.pem.part: No space left on device\n",
    )
    assert {path.name: path.read_bytes() for path in made.iterdir()} == before


@pytest.mark.parametrize(
    "name", ["quorumd-1", "QUORUMD-007", "ca", "", "a/b", "../x", "a,CN=b", "x" * 65]
)
def test_a_client_cannot_be_called_as_a_node_or_leave_the_directory(made: Path, name: str) -> None:
    result = certs(made, "client", name)
    assert result.exit_code == 2
    assert "no name for a client" in result.output


@pytest.mark.parametrize(
    "host", ["db1:9093", "", "a b", "https://db1", "-x.", "a..b", "x" * 64, f"{'x.' * 126}xx"]
)
def test_a_host_that_nobody_can_dial_is_refused(made: Path, host: str) -> None:
    result = certs(made, "node", "--id", "2", "--host", host)
    assert result.exit_code == 2
    assert not (made / "quorumd-2.pem").exists()


@pytest.mark.parametrize("node_id", [str(2**31), "1" + "0" * 80])
def test_an_id_that_no_node_can_have_is_refused(made: Path, node_id: str) -> None:
    result = certs(made, "node", "--id", node_id, "--host", "db1")
    assert result.exit_code == 2
    assert "is not in the range 0<=x<=2147483647" in result.output


def test_a_directory_that_cannot_be_there_is_told_in_a_line(tmp_path: Path) -> None:
    directory = tmp_path / ("d" * 300)
    result = CliRunner().invoke(cli, ["certs", "ca", "--dir", str(directory)])
    assert (result.exit_code, result.output) == (
        2,
        f"quorumd: cannot write {directory}: File name too long\n",
    )


def test_the_command_to_try_can_be_copied_whatever_the_directory_is_called(tmp_path: Path) -> None:
    directory = tmp_path / "my certs"
    certs(directory, "ca")
    tried = certs(directory, "client", "alice").output.splitlines()[-1]
    assert f"--command-config '{directory}/alice.properties' -b" in tried


def test_without_a_ca_it_says_what_makes_one(tmp_path: Path) -> None:
    result = certs(tmp_path / "certs", "client", "alice")
    assert result.exit_code == 2
    assert "`quorumd certs ca --dir" in result.output


def test_a_key_of_another_ca_signs_nothing(made: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    assert certs(other, "ca").exit_code == 0
    shutil.copy(other / "ca.key", made / "ca.key")
    result = certs(made, "client", "bob")
    assert result.exit_code == 2
    assert "is not the key of" in result.output
