"""Certificates against a start: told with everything else that is wrong, and with the place of their keys."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from quorumd.config.errors import ConfigError
from quorumd.config.load import load
from quorumd.config.model import Config
from quorumd.config.tls_port import HTTP, TlsPort
from quorumd.security import reload
from quorumd.security.handshakes import Handshakes
from quorumd.security.identity import ANONYMOUS
from quorumd.security.material import read_material
from quorumd.security.reload import Outcome
from quorumd.server.certificate_checks import (
    certificate_problems,
    certificate_report,
    port_problems,
)
from quorumd.server.model.metrics import Metrics
from quorumd.server.model.node_rights import NodeRights
from quorumd.server.node_tls import NodeTls
from tests.support.config_files import writer_into
from tests.support.odd_certificates import HOUR, Authority, now
from tests.support.serving import Parking, answering, run, serving, until

# Behind the four lines that every file of these tests begins with.
TLS = """\
listener.security.protocol.map: CONTROLLER:SSL
ssl.keystore.location: node.pem
ssl.truststore.location: ca.pem
ssl.client.auth: required
"""


class Files:
    """The certificate of node 1, and the CA's."""

    def __init__(self, folder: Path, name: str = "quorumd-1") -> None:
        self.ca = Authority()
        (folder / "ca.pem").write_bytes(self.ca.pem)
        self.ca.issue(name, ["db1"]).write(folder / "node.pem")
        self.folder = folder

    def load(self, extra: str = "") -> Config:
        return load(writer_into(self.folder)(extra=TLS + extra), {}, certificate_problems)

    def problems(self, extra: str = "") -> list[str]:
        with pytest.raises(ConfigError) as caught:
            self.load(extra)
        return [str(each).replace(f"{self.folder}/", "") for each in caught.value.problems]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.mark.parametrize(
    "rule",
    [
        "",
        "quorum.node.principals: User:CN=quorumd-{id}\n",
        "super.users: User:CN=root;User:CN=quorumd-1\n",
        "quorum.node.principals: User:CN=quorumd-{id}\nsuper.users: User:CN=root\n",
    ],
)
def test_a_sound_set_starts(files: Files, rule: str) -> None:
    (port,) = files.load(rule).tls_ports
    assert (port.name, port.hosts, port.is_first) == ("CONTROLLER", ("db1",), True)


@pytest.mark.parametrize(
    ("rule", "key", "permitted"),
    [
        (
            "quorum.node.principals: User:quorumd-{id};User:node-{id}",
            "quorum.node.principals",
            "User:quorumd-1 or User:node-1",
        ),
        ("super.users: User:CN=root", "super.users", "User:CN=root"),
    ],
)
def test_who_would_be_locked_out_is_told_before_the_start(
    files: Files, rule: str, key: str, permitted: str
) -> None:
    assert files.problems(f"{rule}\nquorum.witness: maybe\n") == [
        f"controller.yaml:9: {key}: this node's certificate is that of User:CN=quorumd-1, who may not "
        "speak for node 1: the other nodes would refuse it. Have one issued to "
        f"{permitted}, map its name to that by ssl.principal.mapping.rules, or change {key} on every node",
        "controller.yaml:10: quorum.witness: 'maybe' is neither true nor false",
    ]


TWO = "listeners: CONTROLLER://db1:9093,SECURE://db1:9095\n"
OTHER_NAME = "listener.name.secure.ssl.principal.mapping.rules: RULE:^CN=(.*)$/$1/\n"
OTHER_STORE = "listener.name.secure.ssl.keystore.location: node.pem\n"
FIT, UNFIT = (
    "quorum.node.principals: User:CN=quorumd-{id}\n",
    "quorum.node.principals: User:q-{id}\n",
)
SWAPPED_ALREADY = "quorum.bootstrap.servers: db2:9095,db1:9095\n"


@pytest.mark.parametrize(
    ("protocols", "keys", "is_refused"),
    [
        # Nodes that are ahead on the way from plaintext to TLS dial what will be the first listener.
        ("PLAINTEXT,SSL", FIT, False),
        ("PLAINTEXT,SSL", UNFIT, True),
        ("PLAINTEXT,SSL", "super.users: User:CN=root\n", False),
        ("PLAINTEXT,SSL", UNFIT + OTHER_STORE, False),
        ("PLAINTEXT,SSL", FIT + OTHER_NAME, False),
        # With TLS on the first they dial what they are told.
        ("SSL,SSL", FIT + OTHER_NAME, False),
        ("SSL,SSL", FIT + OTHER_NAME + "quorum.voters: 1@db1:9093,2@db2:9095\n", False),
        ("SSL,SSL", FIT + OTHER_NAME + "quorum.voters: 1@db1:9095,2@db2:9093\n", True),
        ("SSL,SSL", FIT + OTHER_NAME + SWAPPED_ALREADY, True),
        ("SSL,SSL", FIT + SWAPPED_ALREADY, False),
        ("SSL,PLAINTEXT", FIT + SWAPPED_ALREADY, False),
    ],
)
def test_each_listener_that_nodes_dial_has_to_know_them(
    tmp_path: Path, protocols: str, keys: str, is_refused: bool
) -> None:
    Files(tmp_path)
    first, second = protocols.split(",")
    tls = TLS.replace("CONTROLLER:SSL", f"CONTROLLER:{first},SECURE:{second}")
    named = {"listeners": None}
    if "quorum.voters" in keys or "bootstrap" in keys:
        named["quorum.voters"] = None
    path = writer_into(tmp_path)(named, extra=TWO + tls + keys)
    if not is_refused:
        assert load(path, {}, certificate_problems).tls_ports
        return
    with pytest.raises(ConfigError) as caught:
        load(path, {}, certificate_problems)
    (problem,) = map(str, caught.value.problems)
    assert "quorum.node.principals: this node's certificate is that of User:" in problem
    assert "who may not speak for node 1: the other nodes would refuse it" in problem


def test_a_listener_that_nodes_dial_requires_their_certificates(tmp_path: Path) -> None:
    Files(tmp_path)
    tls = TLS.replace("CONTROLLER:SSL", "CONTROLLER:SSL,SECURE:SSL")
    none = "listener.name.secure.ssl.client.auth: none\n"
    write = writer_into(tmp_path)
    load(write({"listeners": None}, extra=TWO + tls + none), {}, certificate_problems)
    named = {"listeners": None, "quorum.voters": None}
    with pytest.raises(ConfigError) as caught:
        load(write(named, extra=TWO + tls + none + SWAPPED_ALREADY), {}, certificate_problems)
    (problem,) = map(str, caught.value.problems)
    assert (
        "listener.name.secure.ssl.client.auth: SECURE is a listener that other nodes dial"
        in problem
    )


@pytest.mark.parametrize(
    "rights", ["", "quorum.node.principals: User:quorumd-{id}\n", "super.users: User:root\n"]
)
def test_rules_that_do_not_fit_this_nodes_own_name_are_told_before_the_start(
    files: Files, rights: str
) -> None:
    assert files.problems(f"ssl.principal.mapping.rules: RULE:^CN=node-(.*)$/$1/\n{rights}") == [
        "controller.yaml:9: ssl.principal.mapping.rules: the other nodes would refuse this one: the name of "
        "its certificate, 'CN=quorumd-1', fits none of ssl.principal.mapping.rules: add a rule for it, or "
        "DEFAULT"
    ]


def test_a_name_that_no_rule_fits_is_not_taken_while_this_node_runs(tmp_path: Path) -> None:
    rules = "ssl.principal.mapping.rules: RULE:^CN=(quorumd-1)$/$1/\n"
    (port,) = Files(tmp_path).load(rules).tls_ports
    rights = NodeRights(None, frozenset())
    assert port_problems(port, rights, 1) == []
    Files(tmp_path, "quorumd-2")
    ((key, text),) = port_problems(port, rights, 1, read_material(port.tls))
    assert key == "ssl.principal.mapping.rules"
    assert "'CN=quorumd-2', fits none" in text


def test_the_certificate_of_another_node_is_not_taken_while_this_one_runs(tmp_path: Path) -> None:
    (port,) = Files(tmp_path).load("quorum.node.principals: User:CN=quorumd-{id}\n").tls_ports
    rights = NodeRights(None, frozenset({"User:CN=quorumd-1"}))
    assert port_problems(port, rights, 1) == []
    Files(tmp_path, "quorumd-2")
    ((key, text),) = port_problems(port, rights, 1, read_material(port.tls))
    assert key == "super.users"
    assert "that of User:CN=quorumd-2, who may not speak for node 1" in text


def test_a_file_that_is_missing_is_named_with_the_line_of_its_key(files: Files) -> None:
    (files.folder / "node.pem").unlink()
    (problem,) = files.problems("quorum.node.principals: User:CN=quorumd-{id}\n")
    assert problem.startswith("controller.yaml:6: ssl.keystore.location: ")
    assert "node.pem" in problem


def test_http_and_a_listener_of_clients_need_no_certificate_of_a_node(tmp_path: Path) -> None:
    tls = Files(tmp_path).load().tls_ports[0].tls
    port = TlsPort("CLIENTS", "listener.name.clients.", tls)
    assert port_problems(port, NodeRights(None, frozenset({"User:CN=root"})), 1) == []


@pytest.mark.parametrize(
    ("place", "own_keys", "is_refused"),
    [
        ("SECURE:SSL", "", True),
        # A listener for clients alone: its certificate may be of a public CA, that of its clients another's.
        ("SECURE:SSL", "listener.name.secure.ssl.keystore.location: node.pem\n", False),
        ("SECURE:SSL", "listener.name.secure.ssl.truststore.location: ca.pem\n", False),
        ("http", "", False),
    ],
)
def test_the_nodes_own_certificate_is_of_a_ca_that_it_trusts(
    tmp_path: Path, place: str, own_keys: str, is_refused: bool
) -> None:
    Files(tmp_path)
    (tmp_path / "ca.pem").write_bytes(Authority("another").pem)
    keys = (
        "ssl.keystore.location: node.pem\nssl.truststore.location: ca.pem\n"
        "listeners: CONTROLLER://db1:9093,SECURE://db1:9095\n"
    )
    if place == "http":
        keys += "http.listen: db1:8080\nhttp.security.protocol: SSL\n"
    else:
        keys += f"listener.security.protocol.map: CONTROLLER:PLAINTEXT,{place}\n"
    path = writer_into(tmp_path)({"listeners": None}, extra=keys + own_keys)
    if is_refused:
        with pytest.raises(ConfigError) as caught:
            load(path, {}, certificate_problems)
        (problem,) = map(str, caught.value.problems)
        assert "ssl.truststore.location" in problem
        assert "does not hold the CA of this node's certificate" in problem
    else:
        assert load(path, {}, certificate_problems).tls_ports


@pytest.mark.long
def test_a_node_without_tls_loads_no_library_for_it(tmp_path: Path) -> None:
    path = writer_into(tmp_path)()
    code = (
        "import sys; from pathlib import Path; from quorumd.config.load import load; "
        "from quorumd.server.certificate_checks import certificate_problems; import quorumd.server.run; "
        f"load(Path({str(path)!r}), {{}}, certificate_problems); print('cryptography' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ, capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


@pytest.mark.parametrize(
    ("listeners", "protocols", "plaintext"),
    [
        ("SECURE,OLD,OTHER", "SECURE:SSL,OLD:PLAINTEXT,OTHER:PLAINTEXT", ["OLD", "OTHER"]),
        ("OLD,SECURE", "OLD:PLAINTEXT,SECURE:SSL", ["OLD"]),
        ("SECURE,CLIENTS", "SECURE:SSL,CLIENTS:SSL", []),
        ("OLD", "OLD:PLAINTEXT", []),
    ],
)
def test_a_plaintext_listener_beside_tls_is_warned_of(
    files: Files, listeners: str, protocols: str, plaintext: list[str]
) -> None:
    """HTTP is TLS, so that there are certificates in any case."""
    names = listeners.split(",")
    keys = {
        "listeners": ",".join(f"{name}://db1:{9093 + at}" for at, name in enumerate(names)),
        "listener.security.protocol.map": protocols,
        "ssl.keystore.location": "node.pem",
        "ssl.truststore.location": "ca.pem",
        "ssl.client.auth": "required",
        "http.listen": "db1:8080",
        "http.security.protocol": "SSL",
    }
    config = load(writer_into(files.folder)(keys), {}, certificate_problems)
    tls = NodeTls(config, Metrics(), Handshakes(lambda ip: False))
    assert [text for text in tls.warnings() if "plaintext" in text] == [
        f"listener {name} is plaintext: whoever reaches it reads and writes all records and changes the "
        "voters. Move its clients to a TLS listener, and remove it"
        for name in plaintext
    ]


@pytest.mark.parametrize(
    ("keys", "takes"),
    [
        ("", True),
        ("listener.name.clients.ssl.truststore.location: ca.pem\n", True),
        ("listener.name.clients.ssl.truststore.location: other.pem\n", False),
        ("listener.name.clients.ssl.truststore.location: both.pem\n", False),
        ("listener.name.controller.ssl.truststore.location: both.pem\n", True),
        (OTHER_NAME.replace("secure", "clients"), False),
        ("quorum.bootstrap.servers: db2:9095,db1:9095\n", True),
        (
            "quorum.bootstrap.servers: db2:9095,db1:9095\n"
            "listener.name.clients.ssl.truststore.location: both.pem\n",
            True,
        ),
    ],
)
def test_a_listener_takes_nodes_by_the_cas_and_rules_of_the_peers_listener_alone(
    files: Files, keys: str, takes: bool
) -> None:
    other = Authority("another").pem
    (files.folder / "other.pem").write_bytes(other)
    (files.folder / "both.pem").write_bytes((files.folder / "ca.pem").read_bytes() + other)
    tls = TLS.replace("CONTROLLER:SSL", "CONTROLLER:SSL,CLIENTS:SSL")
    named: dict[str, str | None] = {"listeners": None}
    if "bootstrap" in keys:
        named["quorum.voters"] = None
    path = writer_into(files.folder)(
        named, extra=TWO.replace("SECURE", "CLIENTS") + tls + FIT + keys
    )
    node = NodeTls(load(path, {}, certificate_problems), Metrics(), Handshakes(lambda ip: False))
    assert node.takes_nodes("CLIENTS") is takes
    assert node.may_speak_for("CLIENTS", "User:CN=quorumd-2", 2) is takes
    assert node.takes_nodes("CONTROLLER")
    assert not node.may_speak_for("CONTROLLER", "User:CN=quorumd-2", 1)


@pytest.mark.parametrize("own_store", ["", "http.ssl.keystore.location: http.pem\n"])
def test_a_new_set_counts_for_all_that_have_the_same_stores_or_for_none(
    files: Files, own_store: str
) -> None:
    """The listener of the nodes has to be named by its host; HTTP is dialled under any name."""
    shutil.copy(files.folder / "node.pem", files.folder / "http.pem")
    keys = f"http.listen: 127.0.0.1:8080\nhttp.security.protocol: SSL\n{own_store}"
    node = NodeTls(files.load(keys), Metrics(), Handshakes(lambda ip: False))
    for name in ("node.pem", "http.pem"):
        files.ca.issue("quorumd-1", ["elsewhere"]).write(files.folder / name)
    own, http = (node._sides[name].watched.reload(at_once=True) for name in ("CONTROLLER", HTTP))
    assert own.outcome is Outcome.BAD
    assert "names elsewhere" in own.problems[0]
    assert http.outcome is (Outcome.LOADED if own_store else Outcome.BAD)
    assert http.problems == (() if own_store else own.problems)


class Renewed:
    """What is made anew, in the place of the connections."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def renew_connections(self, listener: str) -> None:
        self.said.append(listener)

    def renew_links(self) -> None:
        self.said.append("links")

    def end_expired(self, wall_s: float) -> None:
        self.said.append(f"ended {wall_s:g}")


def test_of_a_new_set_the_figures_are_the_only_ones_and_new_trust_makes_links_anew(
    files: Files,
) -> None:
    metrics, renewed = Metrics(), Renewed()
    node = NodeTls(files.load(), metrics, Handshakes(lambda ip: False), lambda: 1e9)
    node._renewal = renewed  # type: ignore[assignment]  # as far as it is used here
    known = metrics.certificates.lifetimes
    assert [subject for _, role, subject in known if role == "own"] == ["CN=quorumd-1"]
    files.ca.issue("another-1", ["db1"]).write(files.folder / "node.pem")
    assert node._sides["CONTROLLER"].watched.reload(at_once=True).outcome is Outcome.LOADED
    node._warned_s = 1e9
    node.on_loaded("CONTROLLER", False)
    assert renewed.said == []
    assert [subject for _, role, subject in known if role == "own"] == ["CN=another-1"]
    assert len(known) == 2
    assert node._warned_s == 0, "warnings are written again, for what they say may be over"
    node.on_loaded("CONTROLLER", True)
    assert renewed.said == ["CONTROLLER", "links"]


def test_how_long_a_certificate_lasts_is_said_in_days_and_hours(files: Files) -> None:
    config = files.load()
    (own, *_) = read_material(config.tls_ports[0].tls).chain
    wall_s = own.not_valid_after_utc.timestamp()
    for left_s, said in (
        (2 * 86_400 + 3 * 3600 + 1, "ends in 2 d 3 h"),
        (-90_000, "ended 1 d 1 h ago: whoever needs it is refused"),
    ):
        now_s = wall_s - left_s
        node = NodeTls(config, Metrics(), Handshakes(lambda ip: False), lambda at=now_s: at)
        texts = [text for text in node.warnings() if "this node's certificate" in text]
        assert texts == [f"listener CONTROLLER: this node's certificate CN=quorumd-1 {said}"]


def test_a_name_that_is_mapped_to_that_of_nobody_is_told(files: Files) -> None:
    (problem,) = files.problems("ssl.principal.mapping.rules: RULE:^.*$/ANONYMOUS/\n")
    assert "User:ANONYMOUS, who shows no certificate: give it another name" in problem


def test_who_shows_no_certificate_is_no_node() -> None:
    anybody = NodeRights(None, frozenset())
    assert [name for name in ("", ANONYMOUS, "User:CN=x") if anybody.is_node(name)] == ["User:CN=x"]


def test_a_host_need_not_be_named_where_no_node_dials(files: Files) -> None:
    key = "ssl.endpoint.identification.algorithm"
    for scope, is_dangerous in (("listener.name.secure.", False), ("", True)):
        keys = TLS.replace("CONTROLLER:SSL", "CONTROLLER:SSL,SECURE:SSL") + FIT
        path = writer_into(files.folder)(
            {"listeners": None}, extra=f"{TWO}{keys}{scope}{key}: ''\n"
        )
        config = load(path, {}, certificate_problems)
        warnings = NodeTls(config, Metrics(), Handshakes(lambda ip: False)).warnings()
        assert any(text.startswith(f"{key}: is empty") for text in warnings) is is_dangerous


def test_warnings_are_written_once_a_day_and_what_has_expired_is_looked_for_each_time(
    files: Files, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wall_s, renewed = [1e9], Renewed()
    node = NodeTls(files.load(), Metrics(), Handshakes(lambda ip: False), lambda: wall_s[0])
    node._renewal = renewed  # type: ignore[assignment]  # as far as it is used here
    monkeypatch.setattr(node, "warnings", lambda: ["look at this"])
    written = []

    async def work() -> None:
        for step_s in (0, 5, 86_390, 10):
            wall_s[0] += step_s
            caplog.clear()
            node._sweep()
            written.append(len([each for each in caplog.records if "look" in each.getMessage()]))
        node.close()
        assert node._sweep_timer is not None
        assert node._sweep_timer.cancelled()

    run(work())
    assert written == [1, 0, 0, 1]
    assert len(renewed.said) == 4


def expired(ca: Authority) -> bytes:
    return ca.issue("quorumd-1", ["db1"], begin=now() - 9 * HOUR, end=now() - 2 * HOUR).pem


def to_come(ca: Authority) -> bytes:
    return ca.issue("quorumd-1", ["db1"], begin=now() + HOUR).pem


def of_another_ca(ca: Authority) -> bytes:
    return Authority("another CA").issue("quorumd-1", ["db1"]).pem


def below_another_ca(ca: Authority) -> bytes:
    return Authority("between", above=Authority("another CA")).issue("quorumd-1", ["db1"]).pem


def beside_the_ca(ca: Authority) -> bytes:
    """Behind it is the certificate of the CA that is trusted, which has not made it."""
    return of_another_ca(ca) + ca.pem


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (expired, "expired 2 h ago"),
        (to_come, "is not valid yet"),
        (of_another_ca, "does not hold the CA of this node's certificate"),
        (below_another_ca, "does not hold the CA of this node's certificate"),
        (beside_the_ca, "does not hold the CA of this node's certificate"),
    ],
)
def test_a_new_set_that_nobody_could_verify_is_not_used_and_reported_until_it_is_mended(
    files: Files,
    made: Callable[[Authority], bytes],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """By a node's own watcher, which looks when it is asked to and never else."""
    monkeypatch.setattr(reload, "CHECK_S", 3600.0)
    store = files.folder / "node.pem"
    good = store.read_bytes()

    def logged() -> list[object]:
        fields = [each.__dict__["quorumd_fields"] for each in caplog.records]
        return [each["reason"] for each in fields if "reason" in each]

    async def work() -> None:
        metrics = Metrics()
        node = NodeTls(files.load(), metrics, Handshakes(lambda ip: False))
        users = node._sides["CONTROLLER"].watched.users
        assert len(users) == 2, "the listener and the links"
        before = [each.material for each in users]

        def problems() -> list[str]:
            found = node.status("CONTROLLER")["reload_problems"]
            assert isinstance(found, list)
            return found

        async with serving(Parking(answering)) as served:
            node.open(served.listeners)
            store.write_bytes(made(files.ca))
            node.read_again()
            await until(lambda: metrics.certificates.reload_failures == 1)
            node.read_again()
            await until(lambda: metrics.certificates.reload_failures == 2)
            assert [each.material for each in users] == before
            (problem,) = problems()
            assert reason in problem
            assert [text for text in node.warnings() if problem in text] == [
                "listener CONTROLLER: the new files are not used, those read before stay: "
                + problem
            ]
            assert logged() == [problem]
            store.write_bytes(good)
            node.read_again()
            await until(lambda: not problems())
            assert [each.material for each in users] == before
            node.close()

    run(work())


def test_links_that_do_not_look_at_the_host_are_warned_of(files: Files) -> None:
    def warnings(extra: str) -> list[str]:
        config = files.load(extra)
        seen = NodeTls(config, Metrics(), Handshakes(lambda ip: False)).warnings()
        reported = [line.removeprefix("warning: ") for line in certificate_report(config)]
        found = [text for text in seen if "ssl.endpoint.identification.algorithm" in text]
        assert found == [text for text in reported if text in found]
        return found

    assert warnings("") == warnings("ssl.endpoint.identification.algorithm: https\n") == []
    assert warnings('ssl.endpoint.identification.algorithm: ""\n') == [
        "ssl.endpoint.identification.algorithm: is empty: links to other nodes take a certificate that does "
        "not name the host that was dialled. Remove this key, or set it to https"
    ]


def test_secrets_that_everybody_may_read_are_warned_of(files: Files) -> None:
    secret = files.folder / "password"
    secret.write_text("hunter2\n")
    (files.folder / "node.pem").chmod(0o600)

    def warnings(extra: str) -> list[str]:
        config = files.load(extra)
        tls = NodeTls(config, Metrics(), Handshakes(lambda ip: False))
        return [text for text in tls.warnings() if "may read" in text]

    for mode, expected in ((0o640, 0), (0o644, 1)):
        secret.chmod(mode)
        found = warnings("ssl.key.password: ${dir:.:password}\n")
        assert (
            found
            == [
                f"everybody on this host may read the password or key in {secret}: chmod 600 {secret}"
            ]
            * expected
        )
    secret.chmod(0o600)
    # The configuration file itself is open to all.
    assert warnings("ssl.key.password: ${dir:.:password}\n") == []
    (text,) = warnings("ssl.key.password: hunter2\n")
    assert "controller.yaml" in text
