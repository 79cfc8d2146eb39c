"""TLS as it is configured: what each listener gets, what a careless file is refused for, what is hidden."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumd.config.connection_limits import ConnectionLimits, ListenerLimits
from quorumd.config.errors import ConfigError
from quorumd.config.keys import KEYS, TLS_KEYS, known_keys, variable_of
from quorumd.config.load import load
from quorumd.config.model import Config
from quorumd.config.node_principals import NodePrincipals
from quorumd.config.secrets import Secret
from quorumd.config.tls import ClientAuth, SecurityProtocol, StoreType, TlsConfig
from quorumd.config.tls_checks import tls_ports
from quorumd.config.tls_port import TlsPort
from quorumd.config.values import file
from tests.support.config_files import Write, refused

# Behind the four lines that every file of these tests begins with.
TWO = {"listeners": "CONTROLLER://db1:9093,CLIENT-A://db1:9094"}
SOUND = """\
listener.security.protocol.map: CONTROLLER:SSL,CLIENT-A:PLAINTEXT
ssl.keystore.location: node.pem
ssl.truststore.location: /etc/ca.pem
ssl.client.auth: required
"""


def without(key: str) -> str:
    return "".join(line for line in SOUND.splitlines(True) if not line.startswith(key))


# --- what loads


def test_without_keys_of_security_everything_is_plaintext(write: Write) -> None:
    config = load(write(), {})
    assert config.security_of("CONTROLLER") is None
    assert config.http_tls is None
    assert config.quorum_node_principals is None
    assert config.super_users == frozenset()
    assert config.max_connections_per_ip is None
    assert config.max_connections_per_ip_overrides == {}
    assert config.max_connection_creation_rate is None
    assert config.secret_files == frozenset()


def test_a_listener_has_the_keys_of_the_node_and_files_lie_beside_the_configuration(
    write: Write, tmp_path: Path
) -> None:
    config = load(write(TWO, SOUND), {})
    assert config.security_of("CONTROLLER") == TlsConfig(
        ssl_keystore_location=tmp_path / "node.pem",
        ssl_truststore_location=Path("/etc/ca.pem"),
        ssl_client_auth=ClientAuth.REQUIRED,
    )
    assert config.security_of("CLIENT-A") is None
    assert config.listener_security_protocol_map == {
        "CONTROLLER": SecurityProtocol.SSL,
        "CLIENT-A": SecurityProtocol.PLAINTEXT,
    }


def test_a_key_of_one_listener_replaces_that_of_the_node(write: Write, tmp_path: Path) -> None:
    extra = (
        SOUND.replace("PLAINTEXT", "SSL")
        + "listener.name.client-a.ssl.client.auth: none\n"
        + "listener.name.client-a.ssl.keystore.location: for-clients.p12\n"
        + "listener.name.client-a.ssl.keystore.type: pkcs12\n"
    )
    config = load(write(TWO, extra), {})
    peers, clients = config.security_of("CONTROLLER"), config.security_of("CLIENT-A")
    assert peers is not None
    assert clients is not None
    assert (peers.ssl_client_auth, peers.ssl_keystore_type) == (ClientAuth.REQUIRED, StoreType.PEM)
    assert clients == TlsConfig(
        ssl_keystore_type=StoreType.PKCS12,
        ssl_keystore_location=tmp_path / "for-clients.p12",
        ssl_truststore_location=Path("/etc/ca.pem"),
        ssl_client_auth=ClientAuth.NONE,
    )


def test_http_has_the_keys_of_the_node_and_may_have_its_own(write: Write) -> None:
    extra = SOUND + "http.security.protocol: SSL\nhttp.ssl.client.auth: none\n"
    config = load(write(TWO, extra), {})
    assert config.http_tls is not None
    assert config.http_tls.ssl_client_auth is ClientAuth.NONE
    assert config.http_tls.ssl_truststore_location == Path("/etc/ca.pem")


def test_variables_set_the_keys_of_one_listener_and_of_http(write: Write) -> None:
    environ = {
        "QUORUMD_LISTENER_NAME_CLIENT_A_SSL_CLIENT_AUTH": "requested",
        "QUORUMD_HTTP_SECURITY_PROTOCOL": "ssl",
        "QUORUMD_HTTP_SSL_CLIENT_AUTH": "none",
        "QUORUMD_LISTENER_SECURITY_PROTOCOL_MAP": "controller:ssl,client-a:ssl",
    }
    extra = SOUND + "listener.name.client-a.ssl.client.auth: none\n"
    config = load(write(TWO, extra), environ)
    clients = config.security_of("CLIENT-A")
    assert clients is not None
    assert clients.ssl_client_auth is ClientAuth.REQUESTED
    assert config.http_tls is not None
    assert config.http_tls.ssl_client_auth is ClientAuth.NONE
    variable = "QUORUMD_LISTENER_NAME_CLIENT_A_SSL_CLIENT_AUTH"
    assert config.places["listener.name.client-a.ssl.client.auth"].endswith(variable)


def test_what_kubernetes_sets_beside_a_service_is_no_setting(write: Write) -> None:
    environ = {
        "QUORUMD_SSL_SERVICE_HOST": "10.0.0.1",
        "QUORUMD_SSL_SERVICE_PORT_PEERS": "9093",
        "QUORUMD_SSL_PORT": "tcp://10.0.0.1:9093",
        "QUORUMD_SSL_PORT_9093_TCP_ADDR": "10.0.0.1",
    }
    assert load(write(), environ) == load(write(), {})


def test_the_other_keys_of_security(write: Write) -> None:
    extra = (
        "max.connections.per.ip: 10\n"
        "max.connections.per.ip.overrides: 10.0.0.7:100,[2001:DB8::7]:0,::1:5\n"
        "max.connection.creation.rate: 50\n"
        "quorum.node.principals: User:CN=quorumd-{id},O=Example;User:q{id}\n"
        "super.users: User:admin; User:CN=root,O=Example;\n"
    )
    config = load(write(extra=extra), {})
    assert config.max_connections_per_ip == 10
    assert config.max_connections_per_ip_overrides == {"10.0.0.7": 100, "2001:db8::7": 0, "::1": 5}
    assert config.max_connection_creation_rate == 50
    assert config.quorum_node_principals == NodePrincipals(
        ("User:CN=quorumd-{id},O=Example", "User:q{id}")
    )
    assert config.super_users == {"User:admin", "User:CN=root,O=Example"}


@given(st.data())
def test_each_key_holds_for_its_listener_alone(data: st.DataObject) -> None:
    """By any of three ways to set it, the nearest wins: the listener's own, else the node's, else none."""
    names = ("CONTROLLER", "CLIENT-A", "X_9")
    scopes = ("", *(f"listener.name.{name.lower()}." for name in names), "http.")
    listeners = ",".join(f"{name}://db1:{9093 + at}" for at, name in enumerate(names))
    found: dict[str, Any] = {
        "listeners": KEYS["listeners"].parse(listeners),
        "listener.security.protocol.map": dict.fromkeys(names, SecurityProtocol.SSL),
        "http.security.protocol": SecurityProtocol.SSL,
    }
    given_keys = data.draw(st.sets(st.sampled_from([s + k for s in scopes for k in TLS_KEYS])))
    found.update({key: object() for key in given_keys})
    assert given_keys <= known_keys(names).keys()
    ports = list(tls_ports(found))
    assert [port.name for port in ports] == [*names, "http"]
    assert [port.is_first for port in ports] == [True, False, False, False]
    for port, scope in zip(ports, scopes[1:], strict=True):
        for key, declared in TLS_KEYS.items():
            expected = found.get(scope + key, found.get(key, declared.default))
            assert getattr(port.tls, declared.field) is expected


# --- what is refused


@pytest.mark.parametrize(
    ("extra", "problem"),
    [
        (
            "listener.security.protocol.map: CONTROLLER:PLAINTEXT,CLIENT_A:SSL\n",
            "5: listener.security.protocol.map: the listener CLIENT-A is missing: add CLIENT-A:SSL or "
            "CLIENT-A:PLAINTEXT; is CLIENT_A meant for it?",
        ),
        (
            "listener.security.protocol.map: CONTROLLER:SASL_SSL,CLIENT-A:PLAINTEXT\n",
            "5: listener.security.protocol.map: 'SASL_SSL': logins are not supported yet. Permitted are "
            "PLAINTEXT and SSL, which knows clients by their certificates",
        ),
        (
            "listener.security.protocol.map: CONTROLLER:TLS,CLIENT-A:PLAINTEXT\n",
            "5: listener.security.protocol.map: 'TLS' is none of PLAINTEXT, SSL",
        ),
        (
            "listener.security.protocol.map: SSL\n",
            "5: listener.security.protocol.map: 'SSL' is not of the form NAME:PROTOCOL, such as "
            "CONTROLLER:SSL",
        ),
        (
            "listener.security.protocol.map: A:SSL,a:PLAINTEXT\n",
            "5: listener.security.protocol.map: A occurs more than once: remove one of them",
        ),
        (
            without("ssl.keystore"),
            "5: ssl.keystore.location: CONTROLLER is SSL and has no certificate: set this key to the file "
            "of its private key and certificate chain, or listener.name.controller.ssl.keystore.location "
            "for it alone",
        ),
        (
            without("ssl.truststore"),
            "5: ssl.truststore.location: CONTROLLER asks for certificates and trusts no CA: set this key "
            "to the file of the CAs whose certificates it accepts",
        ),
        (
            without("ssl.client.auth"),
            "5: ssl.client.auth: CONTROLLER is the first listener, which the other nodes use: they have "
            "to show certificates. Set this key to required, or "
            "listener.name.controller.ssl.client.auth for it alone",
        ),
        (
            SOUND + "listener.name.controller.ssl.client.auth: requested\n",
            "9: listener.name.controller.ssl.client.auth: CONTROLLER is the first listener, which the "
            "other nodes use: they have to show certificates. Set this key to required, or "
            "listener.name.controller.ssl.client.auth for it alone",
        ),
        (
            "ssl.keystore.location: node.pem\nssl.client.auth: required\n",
            "5: ssl.keystore.location: no listener is TLS: set listener.security.protocol.map, for "
            "example CONTROLLER:SSL",
        ),
        (
            "http.ssl.keystore.location: node.pem\n",
            "5: http.ssl.keystore.location: HTTP is plaintext: set http.security.protocol: SSL, or remove "
            "this key",
        ),
        (
            "listener.security.protocol.map: CONTROLLER:PLAINTEXT,CLIENT-A:PLAINTEXT\n"
            "listener.name.controller.ssl.client.auth: required\n",
            "6: listener.name.controller.ssl.client.auth: CONTROLLER is PLAINTEXT in "
            "listener.security.protocol.map: make it CONTROLLER:SSL, or remove this key",
        ),
        (
            "http.security.protocol: SSL\n",
            "5: ssl.keystore.location: http is SSL and has no certificate: set this key to the file of "
            "its private key and certificate chain, or http.ssl.keystore.location for it alone",
        ),
        (
            SOUND + "ssl.keystore.type: jks\n",
            "9: ssl.keystore.type: 'JKS' is a format of Java alone: convert the store, and set PKCS12: "
            "keytool -importkeystore -srckeystore FILE.jks -destkeystore FILE.p12 -deststoretype PKCS12",
        ),
        (
            SOUND + 'ssl.crl.location: ""\n',
            "9: ssl.crl.location: '' is not the path of a file",
        ),
        (
            SOUND + "ssl.enabled.protocols: TLSv1.3,TLSv1.1\n",
            "9: ssl.enabled.protocols: 'TLSv1.1' is not served: permitted are TLSv1.3 and TLSv1.2",
        ),
        (
            SOUND + "ssl.client.auth.: required\n",
            "9: unknown key 'ssl.client.auth.': did you mean ssl.client.auth?",
        ),
        (
            SOUND + "sasl.enabled.mechanisms: PLAIN\n",
            "9: unknown key 'sasl.enabled.mechanisms': logins are not supported yet, remove it",
        ),
        (
            SOUND + "listener.name.CLIENT-A.ssl.client.auth: none\n",
            "9: unknown key 'listener.name.CLIENT-A.ssl.client.auth': the listener's name is lower case "
            "here, write listener.name.client-a.ssl.client.auth",
        ),
        (
            SOUND + "listener.name.clients.ssl.client.auth: none\n",
            "9: unknown key 'listener.name.clients.ssl.client.auth': there is no such listener: these "
            "keys begin with listener.name.controller. or listener.name.client-a.",
        ),
        (
            SOUND + "listener.name.client-a.ssl.clientauth: none\n",
            "9: unknown key 'listener.name.client-a.ssl.clientauth': did you mean "
            "listener.name.client-a.ssl.client.auth?",
        ),
        (
            "max.connections.per.ip: 0\n",
            "5: max.connections.per.ip: 0 without max.connections.per.ip.overrides refuses all: set "
            "those, or more than 0",
        ),
        (
            "max.connections.per.ip: 0\nmax.connections.per.ip.overrides: 10.0.0.7:many\n",
            "6: max.connections.per.ip.overrides: the count in '10.0.0.7:many': 'many' is not a whole "
            "number from 0 to 1000000",
        ),
        (
            "max.connections.per.ip.overrides: 10.0.0.7:many\n",
            "5: max.connections.per.ip.overrides: the count in '10.0.0.7:many': 'many' is not a whole "
            "number from 0 to 1000000",
        ),
        (
            "max.connections.per.ip.overrides: ::1:5,[0:0::1]:6\n",
            "5: max.connections.per.ip.overrides: ::1 occurs more than once: remove one of them",
        ),
        (
            "super.users: alice,bob\n",
            "5: super.users: 'alice,bob' is no principal: write User: and the name, several separated by "
            "semicolons, such as User:alice;User:bob",
        ),
    ],
)
def test_a_careless_file_is_refused(write: Write, extra: str, problem: str) -> None:
    assert refused(write(TWO, extra)) == [f"controller.yaml:{problem}"]


def test_a_listener_that_is_called_ssl_is_not_plaintext_by_surprise(write: Write) -> None:
    assert refused(write({"listeners": "SSL://db1:9093"})) == [
        "controller.yaml:3: listeners: SSL://db1:9093 would be plaintext, whatever its name says: set "
        "listener.security.protocol.map, for example SSL:SSL"
    ]
    extra = "listener.security.protocol.map: SSL:PLAINTEXT\n"
    assert load(write({"listeners": "SSL://db1:9093"}, extra), {}).tls_ports == ()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("QUORUMD_SSL_CLIENT_AUTHENTICATION", "did you mean QUORUMD_SSL_CLIENT_AUTH?"),
        ("QUORUMD_HTTP_SSL_KEYSTORE", "did you mean QUORUMD_HTTP_SSL_KEYSTORE_KEY?"),
        (
            "QUORUMD_LISTENER_NAME_B_QUOTA",
            "a variable is named as its key, which the manual lists",
        ),
    ],
)
def test_a_variable_that_can_only_be_meant_for_tls_is_no_slip_that_is_passed_over(
    write: Write, name: str, text: str
) -> None:
    problem = f"environment variable {name}: there is no such setting: {text}"
    assert refused(write(TWO, SOUND), {name: "required"}) == [problem]


def test_all_is_reported_at_once_with_what_the_files_of_certificates_say(write: Write) -> None:
    asked: list[TlsPort] = []

    def judge(port: TlsPort, values: Mapping[str, Any]) -> list[tuple[str, str]]:
        asked.append(port)
        assert values["node.id"] == 1
        return [("ssl.keystore.location", "expired"), ("ssl.key.password", "is missing")]

    extra = SOUND.replace("PLAINTEXT", "SSL") + (
        "listener.name.client-a.ssl.keystore.location: other.pem\n"
        "quorum.witness: maybe\n"
        "http.security.protocol: SSL\n"
        "http.ssl.client.auth: perhaps\n"
    )
    advertised = {
        "listeners": "CONTROLLER://:9093,CLIENT-A://db1:9094",
        "quorum.voters": "1@10.0.0.1:9093",
    }
    path = write(advertised, extra + "advertised.listeners: CLIENT-A://pub:1,CONTROLLER://db1:2\n")
    with pytest.raises(ConfigError) as caught:
        load(path, {}, judge)
    assert [str(problem).removeprefix(f"{path}:") for problem in caught.value.problems] == [
        "6: ssl.keystore.location: expired",
        "6: ssl.key.password: is missing",
        "9: listener.name.client-a.ssl.keystore.location: expired",
        "9: ssl.key.password: is missing",
        "10: quorum.witness: 'maybe' is neither true nor false",
        "12: http.ssl.client.auth: 'perhaps' is none of none, requested, required",
    ]
    # HTTP, one of whose own keys is not sound, is asked about without it.
    assert [(port.name, port.hosts, port.is_first, {*port.unread}) for port in asked] == [
        ("CONTROLLER", ("db1", "10.0.0.1"), True, {"quorum.witness"}),
        ("CLIENT-A", ("pub",), False, {"quorum.witness"}),
        ("http", (), False, {"quorum.witness", "ssl.client.auth"}),
    ]


# --- limits of connections for one listener


def test_a_listener_has_limits_beside_the_nodes(write: Write) -> None:
    """Also one that is plaintext, and without any map."""
    extra = (
        "max.connections: 500\n"
        "listener.name.client-a.max.connections: 20\n"
        "listener.name.client-a.max.connections.per.ip: 5\n"
        "listener.name.client-a.max.connections.per.ip.overrides: [10.0.0.7:100, '[2001:db8::7]:0']\n"
    )
    rate = {"QUORUMD_LISTENER_NAME_CLIENT_A_MAX_CONNECTION_CREATION_RATE": "30"}
    config = load(write(TWO, extra), rate)
    assert config.max_connections == 500
    assert config.max_connections_per_ip is None
    assert config.max_connection_creation_rate is None
    overrides = {"10.0.0.7": 100, "2001:db8::7": 0}
    assert config.listener_limits == {
        "CLIENT-A": ListenerLimits(20, ConnectionLimits(5, overrides, 30))
    }
    per_ip = load(write(TWO, "listener.name.client-a.max.connections.per.ip: 5\n"), {})
    assert per_ip.listener_limits == {"CLIENT-A": ListenerLimits(None, ConnectionLimits(5, {}))}
    assert load(write(TWO, "listener.name.client-a.max.connections.per.ip: -1\n"), {}) == load(
        write(TWO), {}
    )


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (
            "listener.name.client-a.max.connections: 3",
            "listener.name.client-a.max.connections: '3' is out of range: permitted is a whole number from",
        ),
        (
            "listener.name.client-a.max.connections.per.ip: 0",
            "listener.name.client-a.max.connections.per.ip: 0 without "
            "listener.name.client-a.max.connections.per.ip.overrides refuses all: set those, or more than 0",
        ),
        (
            "listener.name.other.max.connections: 20",
            "unknown key 'listener.name.other.max.connections': there is no such listener: these keys begin "
            "with listener.name.controller. or listener.name.client-a.",
        ),
        (
            "listener.name.client-a.max.conections: 20",
            "unknown key 'listener.name.client-a.max.conections': did you mean "
            "listener.name.client-a.max.connections?",
        ),
        (
            "listener.name.client-a.quorum.witness: true",
            "unknown key 'listener.name.client-a.quorum.witness': for one listener alone there are",
        ),
        ("http.max.connections: 20", "unknown key 'http.max.connections': did you mean"),
    ],
)
def test_limits_of_a_listener_that_cannot_be(write: Write, line: str, problem: str) -> None:
    (found,) = refused(write(TWO, f"{line}\n"))
    assert found.startswith(f"controller.yaml:5: {problem}")


# --- secrets


def test_a_secret_is_shown_nowhere() -> None:
    secret = Secret("hunter2")
    tls = TlsConfig(ssl_key_password=secret, ssl_keystore_key=Secret("-----BEGIN hunter2"))
    shown = [repr(tls), str(tls), f"{secret}", f"{secret!r}", str(asdict(tls))]
    try:
        raise ValueError(tls, secret)
    except ValueError:
        shown.append(traceback.format_exc())
    assert not any("hunter2" in text for text in shown)
    assert secret.reveal() == "hunter2"
    assert pickle.loads(pickle.dumps(tls)) == tls
    assert secret == Secret("hunter2") != Secret("hunter3")


SECRETS = [key for key, declared in TLS_KEYS.items() if declared.parse is Secret]


@pytest.mark.parametrize("key", SECRETS)
@pytest.mark.parametrize("text", ["*hunter2", "&hunter2", "a: hunter2", "[hunter2]", "${hunter2}"])
def test_no_problem_shows_a_secret(write: Write, key: str, text: str) -> None:
    first = next(other for other in SECRETS if other != key)
    problems = refused(write(TWO, f"{SOUND}{first}: &hunter2 a\n{key}: {text}\nnode.idd: 1\n"))
    assert problems
    assert not any("hunter2" in problem for problem in problems)


def test_secrets_are_four() -> None:
    assert SECRETS == [
        "ssl.keystore.key",
        "ssl.keystore.password",
        "ssl.key.password",
        "ssl.truststore.password",
    ]
    paths = [key for key, declared in TLS_KEYS.items() if declared.parse is file]
    assert paths == ["ssl.keystore.location", "ssl.truststore.location", "ssl.crl.location"]


def test_every_variable_of_a_listener_is_another_one() -> None:
    known = known_keys(["CONTROLLER", "CLIENT_A"])
    assert len({variable_of(key) for key in known}) == len(known)


def test_the_configuration_can_be_compared_and_shown(write: Write) -> None:
    config: Config = load(write(TWO, SOUND + "ssl.key.password: hunter2\n"), {})
    assert "hunter2" not in repr(config)
    assert config.secret_files == {write(TWO, SOUND)}
