"""The properties file of Kafka's own clients and tools, as far as TLS goes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumd.config.errors import ConfigError
from quorumd.config.keys import TLS_KEYS
from quorumd.config.properties import MAX_FILE_BYTES, client_tls, read_properties
from quorumd.config.secrets import Secret
from quorumd.config.tls import SecurityProtocol, StoreType, TlsConfig

OF_KAFKAS_DOCUMENTATION = """\
# Kafka's documentation, "Configuring Kafka Clients", with what people add
bootstrap.servers=localhost:9093
security.protocol=SSL
ssl.truststore.location=client.truststore.p12
ssl.truststore.password = test1234
ssl.keystore.location:/var/private/ssl/client.pem
ssl.key.password=t\\u00e9st
ssl.enabled.protocols=TLSv1.2,TLSv1.3
ssl.endpoint.identification.algorithm=
ssl.keystore.password=
ssl.client.auth=required
ssl.protocol=TLSv1.3
sasl.mechanism=GSSAPI
"""


def refused(pairs: dict[str, str]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        client_tls(pairs, "client.properties")
    return [str(problem) for problem in caught.value.problems]


def test_a_file_of_kafkas_tools_is_understood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in Kafka, paths begin at the working directory, and a store may lack its type."""
    monkeypatch.chdir(tmp_path)
    Path("client.truststore.p12").write_bytes(b"\x30\x82\x01\x00")
    path = tmp_path / "folder" / "client.properties"
    path.parent.mkdir()
    path.write_text(OF_KAFKAS_DOCUMENTATION)
    protocol, tls, ignored = client_tls(read_properties(path))
    assert protocol is SecurityProtocol.SSL
    assert tls == TlsConfig(
        ssl_truststore_location=Path("client.truststore.p12"),
        ssl_truststore_type=StoreType.PKCS12,
        ssl_truststore_password=Secret("test1234"),
        ssl_keystore_location=Path("/var/private/ssl/client.pem"),
        ssl_key_password=Secret("tést"),
        ssl_enabled_protocols=("TLSv1.2", "TLSv1.3"),
        ssl_endpoint_identification_algorithm="",
    )
    assert ignored == ["bootstrap.servers", "ssl.client.auth", "ssl.protocol", "sasl.mechanism"]


def test_nothing_is_plaintext() -> None:
    assert client_tls({}) == (SecurityProtocol.PLAINTEXT, TlsConfig(), [])


@pytest.mark.parametrize("content", [b"-----BEGIN CERTIFICATE-----", b"", b"\xfe\xed\xfe\xed"])
def test_a_store_that_is_no_pkcs12_is_pem_for_who_reads_it_whole(
    tmp_path: Path, content: bytes
) -> None:
    store = tmp_path / "store"
    store.write_bytes(content)
    _, tls, _ = client_tls({"security.protocol": "SSL", "ssl.truststore.location": str(store)})
    assert tls.ssl_truststore_type is StoreType.PEM


def test_a_type_that_is_given_counts(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.write_bytes(b"\x30\x82")
    pairs = {"ssl.truststore.location": str(store), "ssl.truststore.type": "PEM"}
    assert client_tls(pairs)[1].ssl_truststore_type is StoreType.PEM


def test_all_that_is_wrong_is_told_at_once_without_secrets() -> None:
    pairs = {
        "security.protocol": "SASL_SSL",
        "ssl.truststore.type": "JKS",
        "ssl.keystore.type": "hunter",
        "ssl.key.password": "hunter2",
        "ssl.enabled.protocols": "SSLv3",
        "ssl.keystore.location": "~/client.pem",
    }
    problems = refused(pairs)
    assert problems == [
        "client.properties: security.protocol: 'SASL_SSL': logins are not supported yet. Permitted are "
        "PLAINTEXT and SSL, which knows clients by their certificates",
        "client.properties: ssl.truststore.type: 'JKS' is a format of Java alone: convert the store, and "
        "set PKCS12: keytool -importkeystore -srckeystore FILE.jks -destkeystore FILE.p12 -deststoretype "
        "PKCS12",
        "client.properties: ssl.keystore.type: 'HUNTER' is none of PEM, PKCS12",
        "client.properties: ssl.enabled.protocols: 'SSLv3' is not served: permitted are TLSv1.3 and "
        "TLSv1.2",
        "client.properties: ssl.keystore.location: '~/client.pem': '~' is not expanded, write the whole "
        "path",
    ]


def test_references_of_nodes_are_text_here() -> None:
    """A client's file names no other files: CVE-2024-31141 is what came of that."""
    _, tls, _ = client_tls({"ssl.key.password": "${dir:/etc:passwd}"})
    assert tls.ssl_key_password == Secret("${dir:/etc:passwd}")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (
            b"ssl.key.password=hunter2\\u12\n",
            "\\u12 is no character: \\u is followed by four hexadecimal digits, and a backslash is "
            "written twice",
        ),
        (b"a=\\ud83d\n", "a \\u escape is half of a character: write the other half behind it"),
        (
            b"#" * (MAX_FILE_BYTES + 1),
            f"the file is larger than {MAX_FILE_BYTES} bytes: is it the right one?",
        ),
    ],
)
def test_a_file_that_cannot_be_understood(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "client.properties"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_properties(path)
    assert str(caught.value) == f"{path}: {problem}"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "none", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(ConfigError, match=f"{path}: cannot be read \\({reason}"):
            read_properties(path)


def test_every_byte_is_a_character_where_the_file_is_no_utf_8(tmp_path: Path) -> None:
    """As in Java; in other encodings some of them are another one, or none."""
    path = tmp_path / "client.properties"
    path.write_bytes(b"a=" + bytes(range(0x80, 0x100)))
    assert read_properties(path) == {"a": "".join(map(chr, range(0x80, 0x100)))}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "iso-8859-1"])
def test_all_encodings_are_read(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "client.properties"
    path.write_text("ssl.key.password=schlüssel\n", encoding=encoding)
    assert read_properties(path) == {"ssl.key.password": "schlüssel"}


KEY = st.sampled_from(["security.protocol", *TLS_KEYS]) | st.text(max_size=8)
VALUE = st.sampled_from(["SSL", "JKS", "PEM", "", " ", ",", os.sep, "TLSv1.3"]) | st.text(
    max_size=8
)


@given(st.dictionaries(KEY, VALUE))
def test_any_pairs_are_taken_or_refused_and_no_secret_is_shown(pairs: dict[str, str]) -> None:
    pairs = {**pairs, "ssl.key.password": "hunter2"}
    shown = ""
    try:
        protocol, tls, ignored = client_tls(pairs)
    except ConfigError as error:
        shown = str(error)
    else:
        shown = f"{protocol} {tls} {ignored}"
    assert "hunter2" not in shown
