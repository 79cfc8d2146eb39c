"""Passwords and private keys are in no output: a quorum is given unusual ones and driven into each kind of
error; all that it and its clients have shown, written and been started with is searched for them.

Of Spark's plans, checkpoints and logs tests/pipeline/test_source_tls.py says the same. In the logs of all
other tests' nodes, and in what commands print there, tests/support/canary.py searches for keys and passwords.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import socket
import traceback
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from quorumd.client import CertificateProblem, QuorumClient, Record, Security
from quorumd.config.errors import ConfigError
from quorumd.config.load import load
from quorumd.pipeline.source.options import parse_options
from quorumd.server.certificate_checks import certificate_problems
from tests.support.authority import Authority
from tests.support.client_files import PASSWORD, ClientFiles
from tests.support.commands import quorumctl, quorumd
from tests.support.https_cluster import HttpsCluster
from tests.support.live_cluster import Cluster
from tests.support.secure_cluster import SecureCluster

PASSWORDS = {
    name: f"zq9-{name}-Ünseen"
    for name in ("pem", "pkcs12", "inline", "client", "wrong", "misspelt", "login", "sent")
}
PAGES = ("/", "/livez", "/readyz", "/status", "/metrics", "/nowhere")
REPLACED = "another-of-no-use"


class SecretiveCluster(SecureCluster):
    """Each node has an encrypted key of another kind: in a PEM file, in PKCS12, in its configuration."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, settings={"http.security.protocol": "PLAINTEXT"})
        self.files = ClientFiles(folder / "files", self.authority)
        self.password_file = folder / "secrets"
        self.password_file.mkdir()
        (self.password_file / "password").write_text(PASSWORDS["pkcs12"])

    def write_config(self, node: int, changes: Mapping[str, object] | None = None) -> None:
        name = f"quorumd-{node}"
        keys: dict[str, object] = dict(changes or {})
        if node == 1:
            keys["ssl.keystore.location"] = self.files.encrypted(name, PASSWORDS["pem"])
            keys["ssl.key.password"] = PASSWORDS["pem"]
        elif node == 2:
            keys["ssl.keystore.type"] = "PKCS12"
            keys["ssl.keystore.location"] = self.files.pkcs12(name, PASSWORDS["pkcs12"])
            keys["ssl.keystore.password"] = "${dir:secrets:password}"
        super().write_config(node, keys)
        if node == 3:
            locked = self.files.encrypted(name, PASSWORDS["inline"]).read_text()
            key, end, chain = locked.partition("-----END ENCRYPTED PRIVATE KEY-----\n")
            self.replace(node, "ssl.keystore.location", "ssl.keystore.key", key + end)
            with self.config_path(node).open("a") as file:
                file.write(f"ssl.keystore.certificate.chain: {json.dumps(chain)}\n")
                file.write(f"ssl.key.password: {PASSWORDS['inline']}\n")

    def replace(self, node: int, old: str, new: str, value: str) -> None:
        path = self.config_path(node)
        lines = path.read_text().splitlines(keepends=True)
        kept = "".join(line for line in lines if not line.startswith(f"{old}:"))
        path.write_text(f"{kept}{new}: {json.dumps(value, ensure_ascii=False)}\n")


class Seen:
    """What has been shown, by where."""

    def __init__(self) -> None:
        self.texts: dict[str, bytes] = {}

    def add(self, where: str, text: str | bytes) -> None:
        data = text.encode() if isinstance(text, str) else text
        self.texts[where] = self.texts.get(where, b"") + data

    def problem(self, where: str, error: BaseException) -> None:
        """All that a program may print of it."""
        whole = traceback.TracebackException.from_exception(error)
        self.add(where, "".join(whole.format()) + repr(error) + str(error))

    def holding(self, secrets: Mapping[str, bytes]) -> list[str]:
        """Where which of them is."""
        return [
            f"{what} in {where}"
            for what, secret in secrets.items()
            for where, text in self.texts.items()
            if secret in text
        ]


def forms_of(name: str, secret: bytes) -> dict[str, bytes]:
    """It might be shown escaped or encoded."""
    text = secret.decode()
    return {
        name: secret,
        f"{name} as JSON": json.dumps(text).strip('"').encode(),
        f"{name} in base64": base64.b64encode(secret),
        f"{name} in hex": secret.hex().encode(),
        f"{name} in Python": ascii(text).strip("'").encode(),
    }


def key_forms(path: Path, password: str | None) -> dict[str, bytes]:
    """A private key of a PEM file: each line of its text, and its number."""
    pem = path.read_bytes().partition(b"-----BEGIN CERTIFICATE")[0]
    found = {
        f"line {number} of {path.name}": line
        for number, line in enumerate(pem.splitlines()[1:-1])
        if len(line) > 20
    }
    key = load_pem_private_key(pem, password.encode() if password else None)
    assert isinstance(key, EllipticCurvePrivateKey)
    number = key.private_numbers().private_value.to_bytes(32, "big")
    return {**found, f"key of {path.name}": number, f"hex of {path.name}": number.hex().encode()}


def all_secrets(cluster: SecretiveCluster) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for name, text in PASSWORDS.items():
        found |= forms_of(f"password {name}", text.encode())
    for path in sorted(
        (*cluster.folder.glob("certificates/*.pem"), *cluster.files.folder.glob("*.pem"))
    ):
        text = path.read_text()
        if "ENCRYPTED" not in text and "PRIVATE KEY" in text:
            found |= key_forms(path, None)
    for name, password in (("quorumd-1", "pem"), ("quorumd-3", "inline"), ("client", "client")):
        found |= key_forms(cluster.files.folder / f"{name}-locked.pem", PASSWORDS[password])
    return found


def look_at_node(cluster: SecretiveCluster, node: int, seen: Seen) -> None:
    for page in PAGES:
        try:
            with urllib.request.urlopen(cluster.http_url(node, page), timeout=10) as answer:
                seen.add(f"{page} of node {node}", str(answer.headers).encode() + answer.read())
        except urllib.error.HTTPError as error:
            seen.add(f"{page} of node {node}", error.read())
            error.close()
    line = Path(f"/proc/{cluster.pid(node)}/cmdline").read_bytes()
    assert b"start" in line
    seen.add(f"command line of node {node}", line)


def use_the_library(cluster: SecretiveCluster, keys: Mapping[str, object], seen: Seen) -> None:
    async def append(security: Security) -> None:
        async with QuorumClient(cluster.secure_bootstrap, security=security) as client:
            seen.add("a client", repr(client) + repr(vars(client)))
            await client.append([Record(value=b"a record")])

    good = Security.from_pairs({name: str(value) for name, value in keys.items()}, "these")
    seen.add("Security", repr(good) + str(good) + repr(vars(good)) + str(good.tls))
    assert good.tls is not None
    seen.add("fields of Security", str(asdict(good.tls)))
    asyncio.run(append(good))
    wrong = {**keys, "ssl.key.password": PASSWORDS["wrong"]}
    with pytest.raises(CertificateProblem, match="is not the password") as refused:
        asyncio.run(append(Security.from_pairs({n: str(v) for n, v in wrong.items()}, "these")))
    seen.problem("a wrong password in the library", refused.value)
    options = {f"kafka.{name}": str(value) for name, value in wrong.items()}
    options["kafka.bootstrap.servers"] = cluster.secure_bootstrap
    seen.add("options of the Spark source", repr(parse_options(options)))


def use_quorumctl(cluster: SecretiveCluster, keys: Mapping[str, object], seen: Seen) -> None:
    key = cluster.files.store("bare").read_text().partition("-----BEGIN CERTIFICATE")[0]
    login = f'org.apache.kafka.X required username="u" password="{PASSWORDS["login"]}";'
    wrong: Mapping[str, tuple[int, dict[str, object]]] = {
        "good": (0, {}),
        "wrong password": (1, {"ssl.key.password": PASSWORDS["wrong"]}),
        "misspelt": (0, {"ssl.key.pasword": PASSWORDS["misspelt"]}),
        "login": (0, {"sasl.jaas.config": login}),
        "JKS": (2, {"ssl.keystore.type": "JKS", "ssl.keystore.password": PASSWORDS["wrong"]}),
        "both": (1, {"ssl.keystore.key": key.replace("\n", "\\n"), "ssl.keystore.password": "x"}),
        "type": (1, {"ssl.keystore.type": "PKCS12", "ssl.keystore.password": PASSWORDS["wrong"]}),
    }
    for name, (code, changes) in wrong.items():
        config = cluster.files.properties(
            {**keys, **changes}, f"{name.replace(' ', '-')}.properties"
        )
        where = ("-b", cluster.secure_bootstrap, "--command-config", config)
        done = quorumctl("describe", *where, "--timeout", 5)
        assert done.code == code, (name, done)
        seen.add(f"quorumctl: {name}", done.text)


def start_wrongly(cluster: SecretiveCluster, seen: Seen) -> None:
    """A node that does not start, and `certs check`, with faults beside and in what is secret."""
    good = cluster.config_path(1).read_text()
    of_password = f"ssl.key.password: {PASSWORDS['pem']}"
    assert of_password in good
    faults = {
        "wrong password": good.replace(of_password, f"ssl.key.password: {PASSWORDS['wrong']}"),
        "misspelt key": good + f"ssl.key.pasword: {PASSWORDS['misspelt']}\n",
        "open quote": good.replace(of_password, f'ssl.key.password: "{PASSWORDS["pem"]}'),
        "twice": good + f"{of_password}\n",
        "a list": good.replace(of_password, f"ssl.key.password: [{PASSWORDS['pem']}]"),
        "no colon": good.replace(of_password, f"ssl.key.password {PASSWORDS['pem']}"),
        "secret as a type": good + "ssl.keystore.type: ${dir:secrets:password}\n",
    }
    path = cluster.folder / "wrong.yaml"
    for name, text in faults.items():
        path.write_text(text)
        for command in (("start",), ("certs", "check")):
            done = quorumd(*command, "--config", path)
            assert done.code == 2, (name, done)
            assert done.text
            seen.add(f"quorumd {' '.join(command)}: {name}", done.text)
        with pytest.raises(ConfigError) as refused:
            load(path, {}, certificate_problems)
        seen.problem(f"loading: {name}", refused.value)
    path.unlink()
    for node in cluster.ids:
        config = load(cluster.config_path(node), {})
        seen.add(f"configuration of node {node}", repr(config) + str(config))
        done = quorumd("certs", "check", "--config", cluster.config_path(node))
        assert done.code == 0, done
        seen.add(f"certs check of node {node}", done.text)
    for command in ((), ("start",), ("certs",), ("certs", "check"), ("format",)):
        seen.add(f"help of {command}", quorumd(*command, "--help").text)


def send_plaintext(cluster: SecretiveCluster, seen: Seen) -> None:
    """A client that takes the port for another, and says its password."""
    for node, port in cluster.secure_ports.items():
        with socket.create_connection(("127.0.0.1", port), 10) as raw:
            raw.sendall(b"GET /?password=%s HTTP/1.1\r\n\r\n" % PASSWORDS["sent"].encode())
            seen.add(f"answer of node {node} to plaintext", raw.makefile("rb").read())


def reload_badly(cluster: SecretiveCluster) -> None:
    """Keys that the nodes' passwords do not open."""
    for node, name, make in (
        (1, "quorumd-1-locked.pem", cluster.files.encrypted),
        (2, "quorumd-2.p12", cluster.files.pkcs12),
    ):
        path = cluster.files.folder / name
        good = path.read_bytes()
        make(f"quorumd-{node}", REPLACED)
        os.kill(cluster.pid(node), signal.SIGHUP)

        def problems(node: int = node) -> bool:
            listeners = cluster.status(node)["listeners"]
            return any(each.get("reload_problems") for each in listeners)

        cluster.wait_for(problems, "the bad files to be told")
        path.write_bytes(good)
        os.kill(cluster.pid(node), signal.SIGHUP)
        cluster.wait_for(lambda: not problems(), "the mended files")


def crash(cluster: SecretiveCluster) -> int:
    """Exit code of a node that cannot keep its vote."""
    leader = cluster.wait_leader()
    victim = next(node for node in cluster.ids if node != leader)
    folder = cluster.log_folder(victim)
    folder.rename(folder.with_name("moved"))
    cluster.kill(leader)
    return cluster.wait_exit(victim, 30).exit_code


@pytest.mark.timeout(180)
def test_no_password_and_no_key_is_in_any_output(folder: Path) -> None:
    folder.mkdir()
    cluster, seen = SecretiveCluster(folder), Seen()
    keys = {
        **cluster.files.client_keys(),
        "ssl.keystore.location": cluster.files.encrypted("client", PASSWORDS["client"]),
        "ssl.key.password": PASSWORDS["client"],
    }
    cluster.format()
    try:
        for node in cluster.ids:
            cluster.start_with(node, environ={"QUORUMD_LOG_LEVEL": "debug"})
        cluster.wait_ready()
        use_the_library(cluster, keys, seen)
        use_quorumctl(cluster, keys, seen)
        start_wrongly(cluster, seen)
        send_plaintext(cluster, seen)
        reload_badly(cluster)
        for node in cluster.ids:
            look_at_node(cluster, node, seen)
        assert crash(cluster) != 0
    finally:
        cluster.kill_all()
    for node in cluster.ids:
        seen.add(f"log of node {node}", cluster.output(node))
        for path in cluster.storage_dir(node).rglob("*"):
            if path.is_file():
                seen.add(str(path), path.read_bytes())
    secrets = all_secrets(cluster)
    assert seen.holding(secrets) == []
    # What is searched for is what was given.
    given = Seen()
    for path in (*map(cluster.config_path, cluster.ids), *cluster.files.folder.iterdir()):
        given.add("the files", path.read_bytes())
    given.add("the files", PASSWORDS["pkcs12"])
    assert {f"password {name} in the files" for name in ("pem", "inline", "client", "wrong")} <= {
        *given.holding(secrets)
    }
    logs = "".join(cluster.output(node) for node in cluster.ids)
    for said in ("is not the password", "plaintext on a listener that is TLS", "quorum-state"):
        assert said in logs


def test_secrets_that_others_may_read_are_warned_of_by_each_start_and_in_status(
    folder: Path,
) -> None:
    cluster = HttpsCluster(folder)
    (folder / "secrets").mkdir()
    password, store = folder / "secrets" / "password", folder / "node.pem"
    password.write_text(PASSWORD)
    cluster.format()
    changes = {"ssl.key.password": "${dir:secrets:password}", "http.ssl.key.password": PASSWORD}
    cluster.write_config(1, changes)
    held = {password: "password or key", cluster.config_path(1): "password or key"}
    held[store] = "private key"
    expected = [
        f"everybody on this host may read the {what} in {path}: chmod 600 {path}"
        for path, what in held.items()
    ]

    def warned(mode: int) -> tuple[list[str], str]:
        """In /status, and in the log of this start."""
        for path in held:
            path.chmod(mode)
        since = len(cluster.output(1))
        cluster.start(1)
        cluster.wait_ready(1)
        said = cluster.status(1)["warnings"]
        cluster.stop(1)
        return said, cluster.output(1)[since:]

    try:
        said, log = warned(0o644)
        assert [text for text in expected if not any(each.endswith(text) for each in said)] == []
        assert len(said) == len(expected)
        for text in expected:
            (line,) = [each for each in log.splitlines() if text in each]
            assert " WARN  tls " in line
        said, log = warned(0o600)
        assert said == []
        assert "may read" not in log
    finally:
        cluster.kill_all()


@pytest.mark.parametrize("which", ["password", "key"])
def test_a_secret_in_the_log_of_any_node_fails_its_test(folder: Path, which: str) -> None:
    key = Authority(folder).store("anybody").read_text().splitlines()[2]
    cluster = Cluster(folder, size=1)
    log = folder / "node-1.log"
    log.write_text("WARN nothing of note\n")
    cluster.kill_all()
    log.write_text(f"WARN cannot open {PASSWORD if which == 'password' else key}\n")
    with pytest.raises(AssertionError, match="the log of node 1 holds") as failed:
        cluster.kill_all()
    assert key not in str(failed.value)
