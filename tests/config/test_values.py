"""What a text stands for, where another reading of it would load as well."""

from __future__ import annotations

from pathlib import Path

import pytest

from quorumd.config.errors import BadValue, ConfigError
from quorumd.config.keys import KEYS
from quorumd.config.load import load
from quorumd.config.node_principals import super_users
from quorumd.config.properties import client_tls
from quorumd.config.references import FileReference, resolve
from quorumd.config.regular_file import read_regular_file
from quorumd.config.secrets import Secret
from quorumd.config.tls import StoreType
from quorumd.config.values import (
    Limit,
    addresses,
    counts_by_ip,
    identification,
    true_or_false,
    voters,
)
from quorumd.raft.types import Address
from tests.support.config_files import GOOD, Write, refused

A_DAY_MS = 86_400_000
TIMES = (
    "fetch.timeout",
    "election.timeout",
    "election.backoff.max",
    "request.timeout",
    "retry.backoff",
    "retry.backoff.max",
)


def test_letters_of_words_are_large_or_small() -> None:
    assert [true_or_false(text) for text in ("true", "True", "TRUE")] == [True] * 3
    assert [true_or_false(text) for text in ("false", "False", "FALSE")] == [False] * 3
    assert [identification(text) for text in ("HTTPS", "Https", "")] == ["https", "https", ""]


@pytest.mark.parametrize(
    ("key", "lowest", "highest"),
    [
        ("node.id", 0, 2**31 - 1),
        *((f"quorum.{each}.ms", 1, A_DAY_MS) for each in TIMES),
        ("log.segment.bytes", 4096, 2**31 - 1),
        ("log.max.batch.bytes", 1024, 8 << 20),
        ("conditions.window.bytes", 1 << 20, 2**31 - 1),
        ("snapshot.max.new.record.bytes", 1, 1 << 50),
        ("snapshot.interval.ms", 1000, 3650 * A_DAY_MS),
        ("snapshot.bandwidth.bytes.per.second", 1, 1 << 50),
        ("retention.bytes", 0, 1 << 50),
        ("retention.ms", 0, 3650 * A_DAY_MS),
        ("socket.request.max.bytes", 4096, 2**31 - 1),
        ("max.connections", 16, 1_000_000),
        ("connections.max.idle.ms", 1000, A_DAY_MS),
        ("max.connections.per.ip", 0, 1_000_000),
        ("max.connection.creation.rate", 1, 1_000_000),
    ],
)
def test_each_number_is_taken_up_to_its_bounds(key: str, lowest: int, highest: int) -> None:
    parse = KEYS[key].parse
    for number in (lowest, highest):
        assert parse(str(number)) == number
    beyond = [highest + 1] if lowest == 0 else [lowest - 1, highest + 1]
    for number in beyond:
        with pytest.raises(BadValue, match="out of range"):
            parse(str(number))


@pytest.mark.parametrize("text", ["-2", "-10", "--1", "-"])
def test_only_minus_one_is_no_limit(text: str) -> None:
    assert Limit(0, 10)("-1") is None
    with pytest.raises(BadValue, match="or -1 for no limit"):
        Limit(0, 10)(text)


def test_blanks_beside_commas_and_signs_do_no_harm() -> None:
    assert voters("1@a:1 , 2 @ b:2")[1] == (2, "b", 2)
    assert counts_by_ip("10.0.0.1: 5 , ::1:0") == {"10.0.0.1": 5, "::1": 0}
    assert addresses("a:1 , b:2") == (Address("a", 1), Address("b", 2))


def test_a_quoted_value_has_no_blanks_around(write: Write) -> None:
    assert load(write({"node.id": '" 7 "'}), {}).node_id == 7


def test_what_is_shown_of_a_secret_says_nothing_of_it() -> None:
    assert {repr(Secret(text)) for text in ("", "a", "a longer one")} == {"[hidden]"}
    assert str(Secret("a")) == f"{Secret('a')}" == "[hidden]"


def test_a_file_may_be_just_as_large_as_it_may_be(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_regular_file(path, 5) == b"12345"
    with pytest.raises(OSError, match="larger than 4 bytes"):
        read_regular_file(path, 4)


def test_the_folder_of_a_reference_may_have_a_colon(tmp_path: Path) -> None:
    folder = tmp_path / "a:b"
    folder.mkdir()
    (folder / "name").write_text("x")
    assert resolve(f"${{dir:{folder}:name}}", {}, tmp_path) == ("x", (folder / "name",))


def test_a_value_that_is_read_again_has_no_line_feed_either(tmp_path: Path) -> None:
    (tmp_path / "name").write_text("first\n")
    written = "${dir:.:name}"
    reference = FileReference("k", str, written, {}, tmp_path, (tmp_path / "name",))
    assert reference.value() == "first"
    (tmp_path / "name").unlink()
    with pytest.raises(BadValue, match=r"^k: .* cannot be read"):
        reference.value()


def test_a_store_that_cannot_be_read_is_reported_where_it_is_read_whole(tmp_path: Path) -> None:
    _, tls, _ = client_tls({"ssl.keystore.location": str(tmp_path)})
    assert tls.ssl_keystore_type is StoreType.PEM


def test_an_empty_list_of_cipher_suites_is_all_that_are_permitted() -> None:
    _, tls, _ = client_tls({"ssl.cipher.suites": " "})
    assert tls.ssl_cipher_suites == ()


@pytest.mark.parametrize("text", ["User:", "User:a; User:", "alice", ";"])
def test_a_user_without_a_name_is_no_principal(text: str) -> None:
    assert super_users("User:a; User:b;") == {"User:a", "User:b"}
    with pytest.raises(BadValue, match="principal"):
        super_users(text)


# --- between values


def test_values_that_just_fit_load(write: Write) -> None:
    sizes = {
        "log.max.batch.bytes": "8192",
        "log.segment.bytes": "8192",
        "socket.request.max.bytes": "9216",
        "quorum.retry.backoff.ms": "500",
        "quorum.retry.backoff.max.ms": "500",
    }
    assert load(write(sizes), {}).socket_request_max_bytes == 9216


def test_advertised_listeners_are_those_of_the_node_each_once(write: Write) -> None:
    two = {"listeners": "A://db1:9093,B://db1:9094"}
    (problem,) = refused(write({**two, "advertised.listeners": "A://db1:9093"}))
    assert "the names have to be those of listeners: A, B" in problem
    twice = "A://db1:9093,B://db1:9094,B://db1:9095"
    (problem,) = refused(write({**two, "advertised.listeners": twice}))
    assert "advertised.listeners: name B occurs more than once" in problem


@pytest.mark.parametrize(
    ("listener", "http"), [(":8080", "db1:8080"), ("db1:8080", ":8080"), ("db1:8080", "db1:8080")]
)
def test_http_has_a_port_of_its_own_on_every_host_that_is_the_same(
    listener: str, http: str, write: Write
) -> None:
    changes = {
        "listeners": f"CONTROLLER://{listener}",
        "advertised.listeners": "CONTROLLER://db1:8080",
        "http.listen": f"'{http}'",
    }
    (problem,) = refused(write(changes))
    assert "port 8080 is that of CONTROLLER://" in problem
    assert load(write({**changes, "http.listen": "db1:8081"}), {}).http_listen is not None


@pytest.mark.parametrize("key", ["storage.dir", "advertised.listeners"])
def test_a_reference_to_nothing_is_one_problem_and_not_a_missing_key_too(
    key: str, write: Write
) -> None:
    changes = {"listeners": "CONTROLLER://:9093", "advertised.listeners": "CONTROLLER://db1:9093"}
    (problem,) = refused(write({**changes, key: "${env:NO_SUCH}"}))
    assert f"{key}: ${{env:NO_SUCH}}" in problem


def test_listeners_of_the_environment_are_the_ones_that_may_have_keys(write: Write) -> None:
    environ = {
        "QUORUMD_LISTENERS": "SAFE://db1:9093",
        "QUORUMD_LISTENER_SECURITY_PROTOCOL_MAP": "SAFE:PLAINTEXT",
    }
    (problem,) = refused(write(extra="listener.name.controller.ssl.client.auth: none\n"), environ)
    assert "there is no such listener: these keys begin with listener.name.safe." in problem
    (problem,) = refused(write(extra="listener.name.safe.ssl.client.auth: none\n"), environ)
    assert "SAFE is PLAINTEXT" in problem


# --- the file


def test_a_link_that_leads_nowhere_is_a_file_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not none, though the environment sets everything."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "controller.yaml").symlink_to("nowhere.yaml")
    environ = {f"QUORUMD_{key.upper().replace('.', '_')}": text for key, text in GOOD.items()}
    with pytest.raises(ConfigError, match="there is no such file"):
        load(None, environ)


def test_a_file_that_is_nested_without_end_is_no_yaml(tmp_path: Path) -> None:
    path = tmp_path / "controller.yaml"
    path.write_text("a: " + "[" * 100_000)
    (problem,) = refused(path)
    assert "this is not YAML" in problem
