"""A configuration either loads completely or is refused with every problem and its place."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quorumd.config import values
from quorumd.config.addresses import ConfiguredVoter
from quorumd.config.keys import KEYS, variable_of
from quorumd.config.load import REQUEST_OVERHEAD_BYTES, ConfigError, load
from quorumd.config.model import Config
from quorumd.config.secrets import Secret
from quorumd.raft.types import Address, Endpoint
from tests.support.config_files import GOOD, Write, refused

EVERYTHING = {variable_of(key): value for key, value in GOOD.items()}

# --- what loads


def test_a_minimal_file_gets_the_documented_defaults(write: Write) -> None:
    assert load(write(), {}) == Config(
        node_id=1,
        storage_dir=Path("/var/lib/quorumd"),
        listeners=(Endpoint("CONTROLLER", "db1", 9093),),
        advertised_listeners=(Endpoint("CONTROLLER", "db1", 9093),),
        http_listen=None,
        quorum_voters=(
            ConfiguredVoter(1, "db1", 9093),
            ConfiguredVoter(2, "db2", 9093),
            ConfiguredVoter(3, "db3", 9093),
        ),
        quorum_bootstrap_servers=(),
        quorum_fetch_timeout_ms=2000,
        quorum_election_timeout_ms=1000,
        quorum_election_backoff_max_ms=1000,
        quorum_request_timeout_ms=2000,
        quorum_retry_backoff_ms=20,
        quorum_retry_backoff_max_ms=1000,
        log_segment_bytes=134217728,
        log_max_batch_bytes=1048576,
        snapshot_max_new_record_bytes=20971520,
        snapshot_interval_ms=3600000,
        snapshot_bandwidth_bytes_per_second=None,
        retention_bytes=None,
        retention_ms=None,
        socket_request_max_bytes=104857600,
        max_connections=1000,
        connections_max_idle_ms=600000,
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [("log.segment.bytes", 2**20), ("socket.request.max.bytes", 2**20 + REQUEST_OVERHEAD_BYTES)],
)
def test_the_largest_batch_may_be_as_large_as_what_has_to_hold_it(
    write: Write, key: str, value: int
) -> None:
    largest = {"log.max.batch.bytes": str(2**20)}
    assert load(write({**largest, key: str(value)}), {}).log_max_batch_bytes == 2**20
    assert len(refused(write({**largest, key: str(value - 1)}))) == 1


def test_an_id_outside_the_voters_is_an_observer_and_loads(write: Write) -> None:
    assert load(write({"node.id": "7"}), {}).node_id == 7


def test_bootstrap_servers_alone_are_enough(write: Write) -> None:
    config = load(
        write({"quorum.voters": None, "quorum.bootstrap.servers": "db1:9093, db2:9094"}), {}
    )
    assert config.quorum_bootstrap_servers == (Address("db1", 9093), Address("db2", 9094))
    assert config.quorum_voters == ()


def test_ipv6_hosts_are_written_in_brackets_and_kept_without(write: Write) -> None:
    config = load(
        write(
            {
                "listeners": "CONTROLLER://[::1]:9093",
                "quorum.voters": "'1@[::1]:9093,2@[2001:db8::2]:9093'",
                "http.listen": "'[::]:8080'",
            }
        ),
        {},
    )
    assert config.listeners == (Endpoint("CONTROLLER", "::1", 9093),)
    assert config.quorum_voters[1] == ConfiguredVoter(2, "2001:db8::2", 9093)
    assert config.http_listen == Address("::", 8080)
    assert str(config.listeners[0]) == "CONTROLLER://[::1]:9093"
    assert str(config.quorum_voters[0]) == "1@[::1]:9093"
    assert str(Address("db1", 1)) == "db1:1"


def test_a_yaml_list_is_the_same_as_text_with_commas(write: Write) -> None:
    extra = "quorum.voters:\n  - 1@db1:9093\n  - 2@db2:9093\n  - 3@db3:9093\n"
    assert load(write({"quorum.voters": None}, extra), {}) == load(write(), {})


def test_quoted_numbers_and_digit_groups_are_numbers(write: Write) -> None:
    config = load(write({"node.id": "'3'", "log.segment.bytes": "134_217_728"}), {})
    assert (config.node_id, config.log_segment_bytes) == (3, 134217728)


def test_a_leading_zero_does_not_make_a_number_octal(write: Write) -> None:
    assert load(write({"node.id": "010"}), {}).node_id == 10


def test_a_relative_storage_dir_lies_beside_the_file_also_behind_a_symbolic_link(
    write: Write, tmp_path: Path
) -> None:
    path = write({"storage.dir": "data/n1"})
    assert load(path, {}).storage_dir == tmp_path / "data/n1"
    link = tmp_path / "links" / "controller.yaml"
    link.parent.mkdir()
    link.symlink_to(path)
    assert load(link, {}).storage_dir == tmp_path / "links/data/n1"


def test_advertised_listeners_take_the_order_of_listeners(write: Write) -> None:
    config = load(
        write(
            {
                "listeners": "controller://:9093,CLIENT://0.0.0.0:9092",
                "advertised.listeners": "CLIENT://pub:19092,CONTROLLER://db1:19093",
            }
        ),
        {},
    )
    assert config.listeners == (
        Endpoint("CONTROLLER", "", 9093),
        Endpoint("CLIENT", "0.0.0.0", 9092),
    )
    assert config.advertised_listeners == (
        Endpoint("CONTROLLER", "db1", 19093),
        Endpoint("CLIENT", "pub", 19092),
    )


def test_the_environment_wins_over_the_file_also_over_its_bad_values(write: Write) -> None:
    path = write({"node.id": "one"})
    environ = {
        "QUORUMD_NODE_ID": "4",
        "QUORUMD_QUORUM_FETCH_TIMEOUT_MS": " 300 ",
        "QUORUMD_QUORUM_VOTERS": "",
        "QUORUMD_RETENTION_MS": " ",
        "QUORUMD_SERVICE_HOST": "10.0.0.1",
        "QUORUMD_KAFKA_LIBS": "/opt/kafka",
        "HOME": "/root",
    }
    config = load(path, environ)
    assert (config.node_id, config.quorum_fetch_timeout_ms) == (4, 300)
    assert len(config.quorum_voters) == 3


@pytest.mark.parametrize("key", sorted(KEYS))
def test_every_key_can_come_from_the_environment(write: Write, key: str) -> None:
    path = write({"listener.security.protocol.map": "CONTROLLER:PLAINTEXT"})
    parse = KEYS[key].parse
    environ = {variable_of(key): "not:a:value of any key~,"}
    if parse in (str, Secret):
        # There is no wrong text.
        assert load(path, environ).places[key] == f"environment variable {variable_of(key)}"
        return
    if parse in (values.folder, values.file):
        environ = {variable_of(key): "~/data"}
    assert refused(path, environ)[0].startswith(f"environment variable {variable_of(key)}: {key}: ")


@pytest.mark.parametrize("content", ["", "# nothing\n\n", "{}\n", "---\n"])
def test_an_empty_file_is_enough_where_the_environment_sets_everything(
    tmp_path: Path, write: Write, content: str
) -> None:
    expected = load(write(), {})
    path = tmp_path / "controller.yaml"
    path.write_text(content)
    assert load(path, EVERYTHING) == expected


def test_no_file_is_needed_where_none_is_named_and_the_environment_sets_everything(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = load(write(), {})
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert load(None, EVERYTHING) == expected
    assert load(None, {**EVERYTHING, "QUORUMD_STORAGE_DIR": "d"}).storage_dir == elsewhere / "d"


def test_a_file_beside_is_read_where_none_is_named(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write()
    monkeypatch.chdir(path.parent)
    assert load(None, {"QUORUMD_NODE_ID": "2"}) == load(path, {"QUORUMD_NODE_ID": "2"})


def test_a_byte_order_mark_and_windows_line_ends_do_no_harm(write: Write) -> None:
    path = write()
    expected = load(path, {})
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert load(path, {}) == expected


# --- single problems


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        # names of keys
        ({"qorum.voters": "x"}, "unknown key 'qorum.voters': did you mean quorum.voters?"),
        (
            {"quorum.fetch.timeout": "5"},
            "unknown key 'quorum.fetch.timeout': did you mean quorum.fetch.timeout.ms?",
        ),
        ({"node_id": "1"}, "unknown key 'node_id': did you mean node.id?"),
        ({"log.dirs": "/d"}, "unknown key 'log.dirs': did you mean storage.dir?"),
        (
            {"controller.quorum.voters": "x"},
            "unknown key 'controller.quorum.voters': did you mean quorum.voters?",
        ),
        ({"zzz": "1"}, f"unknown key 'zzz': known are {', '.join(KEYS)}"),
        (
            {"quorum": "{voters: x}"},
            "unknown key 'quorum': keys are flat, write 'quorum.voters: ...' and not a block",
        ),
        ({"[a, b]": "1"}, "a key has to be text: expected lines of the form 'key: value'"),
    ],
)
def test_a_wrong_key_is_refused(write: Write, changes: dict[str, str], problem: str) -> None:
    assert refused(write(changes)) == [f"controller.yaml:5: {problem}"]


ID_RANGE = "a whole number from 0 to 2147483647"
MS_RANGE = "a whole number of milliseconds from 1 to 86400000"
VOTER_FORM = "id@host:port, such as 1@db1.example.com:9093"
LISTENER_FORM = "NAME://host:port, such as CONTROLLER://db1.example.com:9093"


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        # wrong types
        ("node.id", "one", f"node.id: 'one' is not {ID_RANGE}"),
        ("node.id", "1.5", f"node.id: '1.5' is not {ID_RANGE}"),
        ("node.id", "true", f"node.id: 'true' is not {ID_RANGE}"),
        ("node.id", "0x10", f"node.id: '0x10' is not {ID_RANGE}"),
        ("node.id", "[1, 2]", "node.id: a list is the wrong type here, write one value"),
        ("node.id", "{a: 1}", "node.id: a block of keys is the wrong type here, write one value"),
        ("node.id", "", "node.id has no value: write one, or remove the line"),
        ("node.id", "null", "node.id has no value: write one, or remove the line"),
        ("node.id", "''", f"node.id: '' is not {ID_RANGE}"),
        (
            "quorum.auto.join",
            "yes please",
            "quorum.auto.join: 'yes please' is neither true nor false",
        ),
        ("quorum.witness", "1", "quorum.witness: '1' is neither true nor false"),
        ("quorum.voters", "[[1]]", "quorum.voters: a list is the wrong type here, write one value"),
        ("quorum.fetch.timeout.ms", "2s", f"quorum.fetch.timeout.ms: '2s' is not {MS_RANGE}"),
        # impossible numbers
        ("node.id", "-1", f"node.id: '-1' is out of range: permitted is {ID_RANGE}"),
        (
            "node.id",
            "2147483648",
            f"node.id: '2147483648' is out of range: permitted is {ID_RANGE}",
        ),
        (
            "node.id",
            "9" * 5000,
            f"node.id: '{'9' * 77}...' is out of range: permitted is {ID_RANGE}",
        ),
        (
            "quorum.election.timeout.ms",
            "0",
            f"quorum.election.timeout.ms: '0' is out of range: permitted is {MS_RANGE}",
        ),
        (
            "log.max.batch.bytes",
            "8388609",
            "log.max.batch.bytes: '8388609' is out of range: permitted is a whole number of bytes "
            "from 1024 to 8388608",
        ),
        # folders
        (
            "storage.dir",
            "~/data",
            "storage.dir: '~/data': '~' is not expanded, write the whole path",
        ),
        (
            "storage.dir",
            '"a\\ud800b"',
            "storage.dir: 'a\\ud800b' has a character that no path has in this process (utf-8): use another "
            "name, or set LC_ALL=C.UTF-8",
        ),
        ("storage.dir", '"a\\0b"', "storage.dir: 'a\\x00b' is not the path of a folder"),
        # voters
        ("quorum.voters", "db1:9093", f"quorum.voters: 'db1:9093' is not of the form {VOTER_FORM}"),
        (
            "quorum.voters",
            "a@db1:9093",
            f"quorum.voters: the id in 'a@db1:9093': 'a' is not {ID_RANGE}",
        ),
        ("quorum.voters", "1@db1", f"quorum.voters: 'db1' has no port: expected {VOTER_FORM}"),
        (
            "quorum.voters",
            "1@db1:99999",
            "quorum.voters: the port in 'db1:99999': '99999' is out of range: permitted is a whole "
            f"number from 1 to 65535; expected {VOTER_FORM}",
        ),
        (
            "quorum.voters",
            "1@::1:9093",
            "quorum.voters: '::1:9093': an IPv6 address is written in brackets, such as [::1]:9093",
        ),
        *(
            (
                "quorum.voters",
                f"1@{host}:9093",
                f"quorum.voters: '{host}:9093': '{host}' is not a host name or IP address: "
                f"expected {VOTER_FORM}",
            )
            for host in ("http://db1", "db1:9093;2@db2", "db1:9092", "[::1")
        ),
        (
            "quorum.voters",
            "1@[::g]:9093",
            "quorum.voters: '[::g]:9093': '::g' is not an IPv6 address",
        ),
        (
            "quorum.voters",
            "1@10.0.0.256:9093",
            "quorum.voters: '10.0.0.256:9093': '10.0.0.256' is not an IPv4 address",
        ),
        (
            "quorum.voters",
            "1@db 1:9093",
            "quorum.voters: 'db 1:9093': 'db 1' is not a host name or IP address: "
            f"expected {VOTER_FORM}",
        ),
        *(
            (
                "quorum.voters",
                f"1@{host}:9093",
                f"quorum.voters: '{host}:9093': '{host}' is not a host name or IP address: "
                f"expected {VOTER_FORM}",
            )
            # No resolver takes an empty label, or one of more than 63 characters.
            for host in ("db..1", ".db1", "a" * 64, "-db1", "db1-")
        ),
        (
            "quorum.voters",
            "1@0.0.0.0:9093",
            "quorum.voters: '0.0.0.0:9093' names no host that another node could connect to: "
            f"expected {VOTER_FORM}",
        ),
        (
            "quorum.voters",
            "1@db1:9093,",
            "quorum.voters: '1@db1:9093,' has an empty entry: remove the comma, or write what is "
            "missing",
        ),
        (
            "quorum.voters",
            "1@db1:9093,1@db2:9093",
            "quorum.voters: id 1 occurs more than once: each needs its own",
        ),
        (
            "quorum.voters",
            "1@db1:9093,2@db1:9093",
            "quorum.voters: address db1:9093 occurs more than once: each needs its own",
        ),
        # listeners
        ("listeners", "db1:9093", f"listeners: 'db1:9093' is not of the form {LISTENER_FORM}"),
        ("listeners", "C D://h:1", f"listeners: 'C D://h:1' is not of the form {LISTENER_FORM}"),
        (
            "listeners",
            "A://h:1,a://h:2",
            "listeners: name A occurs more than once: each needs its own",
        ),
        (
            "listeners",
            "A://h:1,B://h:1",
            "listeners: address h:1 occurs more than once: each needs its own",
        ),
        (
            "listeners",
            "CONTROLLER://:9093",
            "listeners: CONTROLLER://:9093 names no host that another node could connect to: set "
            "advertised.listeners too, for example CONTROLLER://db1.example.com:9093",
        ),
        (
            "advertised.listeners",
            "OTHER://db1:9093",
            "advertised.listeners: the names have to be those of listeners: CONTROLLER",
        ),
        # http
        (
            "http.listen",
            "8080",
            "http.listen: '8080' has no port: expected host:port, such as 127.0.0.1:8080 or "
            "[::1]:8080",
        ),
        (
            "http.listen",
            "0.0.0.0:9093",
            "http.listen: port 9093 is that of CONTROLLER://db1:9093: take another",
        ),
        # values that contradict each other
        (
            "quorum.retry.backoff.ms",
            "5000",
            "quorum.retry.backoff.ms: quorum.retry.backoff.ms (5000) must not be above "
            "quorum.retry.backoff.max.ms (1000): change this value or quorum.retry.backoff.max.ms",
        ),
        (
            "log.segment.bytes",
            "65536",
            "log.segment.bytes: log.max.batch.bytes (1048576) must not be above log.segment.bytes "
            "(65536): change this value or log.max.batch.bytes",
        ),
        (
            "socket.request.max.bytes",
            "1048576",
            "socket.request.max.bytes: log.max.batch.bytes (1048576) plus 1024 must not be above "
            "socket.request.max.bytes (1048576): change this value or log.max.batch.bytes",
        ),
    ],
)
def test_a_wrong_value_is_refused(write: Write, key: str, value: str, problem: str) -> None:
    line = [*GOOD].index(key) + 1 if key in GOOD else len(GOOD) + 1
    assert refused(write({key: value})) == [f"controller.yaml:{line}: {problem}"]


@pytest.mark.parametrize("key", ["node.id", "storage.dir", "listeners"])
def test_a_missing_key_is_named_with_an_example(write: Write, key: str) -> None:
    (problem,) = refused(write({key: None}))
    assert problem.startswith(f"controller.yaml: {key} is missing: set it to ")
    assert "for example" in problem


def test_an_empty_file_lacks_all_that_is_required(tmp_path: Path) -> None:
    path = tmp_path / "controller.yaml"
    path.touch()
    missing = [text.split()[1] for text in refused(path, {"QUORUMD_NODE_ID": "1"})]
    assert missing == ["storage.dir", "listeners", "quorum.voters"]


def test_without_a_file_what_the_environment_lacks_is_named_and_the_file_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    no_file = (
        "controller.yaml: there is no such file: name the configuration with --config FILE, or set "
        "its keys by QUORUMD_ variables"
    )
    assert refused(None) == [no_file]
    found = refused(None, {**EVERYTHING, "QUORUMD_LISTENERS": ""})
    assert found[0] == no_file
    assert [text.partition(" is missing")[0] for text in found[1:]] == [
        "controller.yaml: listeners"
    ]


def test_a_file_that_was_named_has_to_be_there_whatever_the_environment_sets(
    tmp_path: Path,
) -> None:
    assert refused(tmp_path / "controller.yaml", EVERYTHING) == [
        "controller.yaml: there is no such file: name the configuration with --config FILE"
    ]


def test_a_node_has_to_know_some_other_node(write: Write) -> None:
    (problem,) = refused(write({"quorum.voters": None}))
    assert problem.startswith(
        "controller.yaml: quorum.voters or quorum.bootstrap.servers is missing: set one of them"
    )


def test_a_key_that_is_set_twice_is_refused_and_not_the_last_one_taken(write: Write) -> None:
    assert refused(write(extra="node.id: 2\n")) == [
        "controller.yaml:5: node.id is set twice, first in line 1: remove one of them"
    ]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("QUORUMD_NODEID", "QUORUMD_NODE_ID"),
        ("QUORUMD_QUORUM_VOTER", "QUORUMD_QUORUM_VOTERS"),
        ("QUORUMD_LISTENER", "QUORUMD_LISTENERS"),
    ],
)
def test_a_mistyped_variable_is_refused(write: Write, name: str, meant: str) -> None:
    assert refused(write(), {name: "1"}) == [
        f"environment variable {name}: there is no such setting: did you mean {meant}?"
    ]


def test_a_bad_value_of_a_variable_is_blamed_on_the_variable(write: Write) -> None:
    assert refused(write(), {"QUORUMD_NODE_ID": "x"}) == [
        f"environment variable QUORUMD_NODE_ID: node.id: 'x' is not {ID_RANGE}"
    ]


# --- all problems at once


def test_every_problem_is_listed_at_once_in_the_order_of_the_file(write: Write) -> None:
    path = write(
        {"node.id": "one", "listeners": None, "quorum.voters": "1@db1:9093,1@db2:9093"},
        "qorum.fetch.timeout.ms: 5\nquorum.witness: perhaps\nmax.connections: 1\n",
    )
    problems = refused(path, {"QUORUMD_HTTP_LISTEN": "x"})
    assert [problem.split(": ")[:2] for problem in problems] == [
        ["controller.yaml:1", "node.id"],
        ["controller.yaml:3", "quorum.voters"],
        ["controller.yaml:4", "unknown key 'qorum.fetch.timeout.ms'"],
        ["controller.yaml:5", "quorum.witness"],
        ["controller.yaml:6", "max.connections"],
        ["controller.yaml", "listeners is missing"],
        ["environment variable QUORUMD_HTTP_LISTEN", "http.listen"],
    ]
    with pytest.raises(ConfigError, match=r"^7 problems in the configuration:\n  /"):
        load(path, {"QUORUMD_HTTP_LISTEN": "x"})


@pytest.mark.live
def test_a_path_that_the_locale_cannot_write_is_refused(write: Write) -> None:
    path = write({"storage.dir": "d\u00e4t\u00e4"})
    code = (
        "import sys; from pathlib import Path; from quorumd.config.load import load; "
        "load(Path(sys.argv[1]), {})"
    )
    posix = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code, path],
        env=os.environ | posix,
        capture_output=True,
        text=True,
    )
    assert "has a character that no path has in this process (ascii)" in done.stderr


def test_a_working_directory_that_is_gone_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert refused(None, EVERYTHING) == [
        "controller.yaml: the working directory of this process was removed: start it in one that is there"
    ]
