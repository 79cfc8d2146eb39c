"""Where TLS is spoken: which listeners nodes dial, under which names, and what they have to ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from quorumd.config.load import load
from quorumd.config.tls_port import TlsPort
from tests.support.config_files import Write, refused

STORES = "ssl.keystore.location: node.pem\nssl.truststore.location: ca.pem\n"
REQUIRED = f"{STORES}ssl.client.auth: required\n"
BOTH = "listener.security.protocol.map: PEERS:SSL,CLIENTS:SSL\n"
SECOND = "listener.security.protocol.map: PEERS:PLAINTEXT,CLIENTS:SSL\n"
TWO = {
    "listeners": "PEERS://:9093,CLIENTS://:9094",
    "advertised.listeners": "PEERS://peers1:9093,CLIENTS://clients1:9094",
}


def ports(write: Write, extra: str, **changes: str) -> dict[str, TlsPort]:
    given = {**TWO, **{key.replace("_", "."): text for key, text in changes.items()}}
    return {port.name: port for port in load(write(given, extra), {}).tls_ports}


def test_names_are_those_that_are_advertised_and_that_of_the_voter(write: Write) -> None:
    found = ports(write, BOTH + REQUIRED)
    assert found["PEERS"].hosts == ("peers1", "db1")
    assert found["CLIENTS"].hosts == ("clients1",)
    assert ports(write, BOTH + REQUIRED, node_id="9")["PEERS"].hosts == ("peers1",)


@pytest.mark.parametrize(
    ("changes", "is_dialled"),
    [
        ({}, False),
        ({"quorum_voters": "1@clients1:9094,2@db2:9093"}, True),
        ({"quorum_voters": "1@peers1:9093,2@db2:9093"}, False),
        ({"quorum_voters": "2@clients1:9094,1@db2:9093"}, False),
        ({"quorum_bootstrap_servers": "db2:9093,clients1:9094"}, True),
        ({"quorum_bootstrap_servers": "clients1:9093,peers1:9094"}, False),
    ],
)
def test_a_second_listener_is_dialled_where_the_quorum_names_it(
    changes: dict[str, str], is_dialled: bool, write: Write
) -> None:
    found = ports(write, BOTH + REQUIRED, **changes)
    assert (found["PEERS"].is_first, found["PEERS"].is_dialled) == (True, False)
    assert (found["CLIENTS"].is_first, found["CLIENTS"].is_dialled) == (False, is_dialled)
    assert found["CLIENTS"].has_peers is is_dialled


@pytest.mark.parametrize(
    ("extra", "is_dialled"),
    [
        ("", False),
        ("quorum.node.principals: User:node-{id}\n", True),
        (
            "quorum.node.principals: User:node-{id}\n"
            "listener.name.clients.ssl.truststore.location: other.pem\n",
            False,
        ),
        (
            "quorum.node.principals: User:node-{id}\n"
            "listener.name.clients.ssl.principal.mapping.rules: DEFAULT\n",
            False,
        ),
    ],
)
def test_beside_plaintext_links_it_is_the_one_with_the_stores_and_rules_of_the_node(
    extra: str, is_dialled: bool, write: Write
) -> None:
    assert ports(write, SECOND + REQUIRED + extra)["CLIENTS"].is_dialled is is_dialled


def test_what_nodes_dial_asks_for_certificates(write: Write) -> None:
    dialled = {**TWO, "quorum.bootstrap.servers": "clients1:9094"}
    extra = BOTH + REQUIRED + "listener.name.clients.ssl.client.auth: requested\n"
    (problem,) = refused(write(dialled, extra))
    assert "CLIENTS is a listener that other nodes dial" in problem
    assert load(write(TWO, extra), {}).tls_ports


@pytest.mark.parametrize("auth", ["requested", "required"])
def test_who_asks_for_certificates_trusts_a_ca(auth: str, write: Write) -> None:
    extra = SECOND + f"ssl.keystore.location: node.pem\nssl.client.auth: {auth}\n"
    (problem,) = refused(write(TWO, extra))
    assert "CLIENTS asks for certificates and trusts no CA" in problem


def test_ports_with_the_same_stores_are_known(write: Write, tmp_path: Path) -> None:
    for own, is_same in (
        ("ssl.client.auth: none", True),
        ("ssl.key.password: x", True),
        ("ssl.keystore.type: PKCS12", False),
        ("ssl.keystore.location: other.pem", False),
        ("ssl.truststore.location: other.pem", False),
        ("ssl.crl.location: crl.pem", False),
    ):
        found = ports(write, BOTH + REQUIRED + f"listener.name.clients.{own}\n")
        assert found["CLIENTS"].has_stores_of(found["PEERS"]) is is_same, own
    (tmp_path / "password").write_text("x")
    referred = "listener.name.clients.ssl.key.password: ${dir:.:password}\n"
    port = ports(write, BOTH + REQUIRED + referred)["CLIENTS"]
    assert port.files[2:] == (tmp_path / "password",)
    assert found["CLIENTS"].files == tuple(
        tmp_path / f"{name}.pem" for name in ("node", "ca", "crl")
    )
