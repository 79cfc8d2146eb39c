"""What a start with TLS is refused for: exit code 2; for each fault key, line, what is permitted, the remedy.

The commands are real ones, run in this process; the last test has every fault that fits into one file.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.commands import quorumd
from tests.support.config_files import GOOD
from tests.support.odd_certificates import DAY, HOUR, Authority, Issued, key_pem, now

SOUND = {
    **GOOD,
    "listener.security.protocol.map": "CONTROLLER:SSL",
    "ssl.keystore.location": "node.pem",
    "ssl.truststore.location": "ca.pem",
    "ssl.client.auth": "required",
    "quorum.node.principals": "User:CN=quorumd-{id}",
}
CA = Authority()
NODE = CA.issue("quorumd-1", ["db1"])
COMMANDS = (("start",), ("certs", "check"))


def of_another(folder: Path) -> None:
    other = CA.issue("quorumd-1", ["db1"])
    (folder / "node.pem").write_bytes(other.key_pem + NODE.chain_pem)


def encrypted(folder: Path) -> None:
    key = key_pem(NODE.key, password="hunter2")
    (folder / "node.pem").write_bytes(key + NODE.chain_pem)


def written(make: Callable[[], Issued]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        make().write(folder / "node.pem")

    return write


def nothing(folder: Path) -> None:
    """The files are sound."""


@dataclass(frozen=True)
class Fault:
    """`words` are in the one problem that names `key`: the cause, what is permitted, the remedy."""

    key: str
    words: tuple[str, ...]
    changes: dict[str, str | None] = field(default_factory=dict)
    spoil: Callable[[Path], None] = nothing
    said_of: str = ""
    """The key whose line is named; `key` if none."""


KEYSTORE = "ssl.keystore.location"
FAULTS = {
    "a listener without a protocol": Fault(
        "listener.security.protocol.map",
        ("the listener SECURE is missing", "add SECURE:SSL or SECURE:PLAINTEXT"),
        {"listeners": "CONTROLLER://db1:9093,SECURE://db1:9094"},
    ),
    "SSL without keystore": Fault(
        KEYSTORE,
        ("has no certificate", "set this key to the file", "certificate chain"),
        {KEYSTORE: None},
        said_of="listener.security.protocol.map",
    ),
    "the key of another certificate": Fault(
        KEYSTORE,
        ("belongs to none of its certificates", "CN=quorumd-1", "take the key with which"),
        spoil=of_another,
    ),
    "an encrypted key without password": Fault(
        KEYSTORE, ("is encrypted", "set ssl.key.password"), spoil=encrypted
    ),
    "expired": Fault(
        KEYSTORE,
        ("CN=quorumd-1", "expired 2 h ago", "have it issued anew"),
        spoil=written(
            lambda: CA.issue("quorumd-1", ["db1"], begin=now() - DAY, end=now() - 2 * HOUR)
        ),
    ),
    "not yet valid": Fault(
        KEYSTORE,
        ("CN=quorumd-1", "not valid yet", "set the clock of this host"),
        spoil=written(lambda: CA.issue("quorumd-1", ["db1"], begin=now() + 2 * DAY)),
    ),
    "without the advertised host": Fault(
        KEYSTORE,
        ("names db7, not db1", "have it issued", "subject alternative names"),
        spoil=written(lambda: CA.issue("quorumd-1", ["db7"])),
    ),
    "no certificates of peers": Fault(
        "ssl.client.auth",
        ("they have to show certificates", "Set this key to required"),
        {"ssl.client.auth": "requested"},
    ),
    "a rule that cannot be parsed": Fault(
        "ssl.principal.mapping.rules",
        ("RULE:pattern/replacement/",),
        {"ssl.principal.mapping.rules": "RULE:^CN=(.*$"},
    ),
    "a rule that never ends": Fault(
        "ssl.principal.mapping.rules",
        ("(a*)*",),
        {"ssl.principal.mapping.rules": "RULE:^CN=(a*)*$/$1/,DEFAULT"},
    ),
    "a rule that fits this node's own name nowhere": Fault(
        "ssl.principal.mapping.rules",
        (
            "the other nodes would refuse this one",
            "'CN=quorumd-1'",
            "add a rule for it, or DEFAULT",
        ),
        {"ssl.principal.mapping.rules": "RULE:^CN=node-(.*)$/$1/"},
    ),
    "a rule that makes this node nobody": Fault(
        "ssl.principal.mapping.rules",
        ("the other nodes would refuse this one", "User:ANONYMOUS", "who shows no certificate"),
        {"ssl.principal.mapping.rules": "RULE:^.*$/ANONYMOUS/", "quorum.node.principals": None},
    ),
    "principals that lock the node out": Fault(
        "quorum.node.principals",
        ("may not speak for node 1", "Have one issued to User:CN=node-1", "on every node"),
        {"quorum.node.principals": "User:CN=node-{id}"},
    ),
}


def write(folder: Path, changes: dict[str, str | None]) -> tuple[Path, list[str]]:
    """The configuration, and its keys by line."""
    (folder / "ca.pem").write_bytes(CA.pem)
    NODE.write(folder / "node.pem")
    keys = {name: value for name, value in {**SOUND, **changes}.items() if value is not None}
    path = folder / "controller.yaml"
    path.write_text("".join(f"{name}: {value}\n" for name, value in keys.items()))
    return path, list(keys)


def refusal(path: Path, command: tuple[str, ...]) -> str:
    """What the command says, and ends."""
    done = quorumd(*command, "--config", path)
    assert done.code == 2, done
    assert "Traceback" not in done.text
    return done.text


def problem_of(text: str, key: str, path: Path, line: int) -> str:
    """What is said of this key, at this line."""
    found = re.search(rf"{re.escape(str(path))}:{line}: {re.escape(key)}: (.+)", text)
    assert found is not None, text
    return found[1]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_with_key_line_and_remedy(
    tmp_path: Path, name: str, command: tuple[str, ...]
) -> None:
    fault = FAULTS[name]
    path, keys = write(tmp_path, fault.changes)
    fault.spoil(tmp_path)
    text = refusal(path, command)
    line = 1 + keys.index(fault.said_of or fault.key)
    said = problem_of(text, fault.key, path, line)
    for word in fault.words:
        assert word in said
    assert text.count(f"{path}:") == 1, f"and of nothing else: {text}"


def test_what_is_sound_is_not_refused(tmp_path: Path) -> None:
    path, _ = write(tmp_path, {})
    done = quorumd("certs", "check", "--config", path)
    assert (done.code, done.err) == (0, "")


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_all_faults_of_a_file_are_named_at_once(tmp_path: Path, command: tuple[str, ...]) -> None:
    changes = {
        **FAULTS["a listener without a protocol"].changes,
        **FAULTS["no certificates of peers"].changes,
        **FAULTS["a rule that never ends"].changes,
        "quorum.witness": "maybe",
    }
    path, keys = write(tmp_path, changes)
    end = now() - 2 * HOUR
    Authority("another").issue("quorumd-2", ["db7"], begin=end - DAY, end=end).write(
        tmp_path / "node.pem"
    )
    text = refusal(path, command)
    for key, words in {
        "listener.security.protocol.map": ("SECURE is missing",),
        "ssl.client.auth": ("Set this key to required",),
        "ssl.principal.mapping.rules": ("(a*)*",),
        KEYSTORE: ("expired 2 h ago",),
        "ssl.truststore.location": ("does not hold the CA",),
        "quorum.witness": ("neither true nor false",),
    }.items():
        said = problem_of(text, key, path, 1 + keys.index(key))
        assert [word for word in words if word not in said] == []
    assert "names db7, not db1" in text


# --- beside a value that cannot be had


MISSING = "${env:QUORUM_TEST_NOT_SET}"


def spoiled(folder: Path) -> None:
    """Expired, for another host, of another node, of a CA that is not trusted."""
    end = now() - 2 * HOUR
    Authority("another").issue("quorumd-2", ["db7"], begin=end - DAY, end=end).write(
        folder / "node.pem"
    )


OWN_CERTIFICATE = {
    "expired": (KEYSTORE, "expired 2 h ago"),
    "host": (KEYSTORE, "names db7, not db1"),
    "ca": ("ssl.truststore.location", "does not hold the CA"),
    "node": ("quorum.node.principals", "may not speak for node 1"),
    "peers": ("ssl.client.auth", "Set this key to required"),
}
"""What is said of it: key, and words."""
BESIDE = {
    "ssl.key.password": OWN_CERTIFICATE.keys(),
    "ssl.keystore.password": OWN_CERTIFICATE.keys(),
    "ssl.truststore.password": OWN_CERTIFICATE.keys(),
    "listener.name.controller.ssl.key.password": OWN_CERTIFICATE.keys(),
    "ssl.cipher.suites": OWN_CERTIFICATE.keys(),
    "ssl.crl.location": OWN_CERTIFICATE.keys(),
    "ssl.client.auth": OWN_CERTIFICATE.keys() - {"peers"},
    "ssl.keystore.location": {"peers"},
    "ssl.truststore.location": OWN_CERTIFICATE.keys() - {"ca"},
    "ssl.principal.mapping.rules": OWN_CERTIFICATE.keys() - {"node"},
    "quorum.node.principals": OWN_CERTIFICATE.keys() - {"node"},
    "advertised.listeners": OWN_CERTIFICATE.keys() - {"host"},
    "node.id": OWN_CERTIFICATE.keys() - {"node"},
    "listeners": {"expired", "ca"},
    "quorum.voters": OWN_CERTIFICATE.keys(),
}
"""By the key whose value is missing, what has to be said of the certificate all the same."""


@pytest.mark.parametrize("key", BESIDE)
def test_a_value_that_cannot_be_had_hides_no_other_fault(tmp_path: Path, key: str) -> None:
    """And nothing is said that may not be so once it can be."""
    changes = {"ssl.client.auth": "requested", "quorum.witness": "maybe", key: MISSING}
    path, keys = write(tmp_path, changes)
    spoiled(tmp_path)
    text = refusal(path, ("start",))
    assert f"{MISSING}: the environment variable" in problem_of(
        text, key, path, 1 + keys.index(key)
    )
    assert "neither true nor false" in text
    said = {
        name
        for name, (of, words) in OWN_CERTIFICATE.items()
        if re.search(rf"{re.escape(of)}: .*{re.escape(words)}", text)
    }
    assert said == BESIDE[key], text
    assert text.count(f"{path}:") == len(said) + 2, f"and of nothing else: {text}"


def test_a_key_whose_password_is_missing_hides_nothing_that_its_certificate_says(
    tmp_path: Path,
) -> None:
    path, _ = write(
        tmp_path, {"ssl.key.password": MISSING, "quorum.node.principals": "User:CN=node-{id}"}
    )
    end = now() - 2 * HOUR
    issued = CA.issue("quorumd-1", ["db7"], begin=end - DAY, end=end)
    key = key_pem(issued.key, password="hunter2")
    (tmp_path / "node.pem").write_bytes(key + issued.chain_pem)
    text = refusal(path, ("start",))
    for of, words in (OWN_CERTIFICATE[name] for name in ("expired", "host", "node")):
        assert re.search(rf"{re.escape(of)}: .*{re.escape(words)}", text), text
    assert "is encrypted" not in text
    assert text.count(f"{path}:") == 4, f"and of nothing else: {text}"


@pytest.mark.parametrize("inline", ["ssl.keystore.key", "ssl.keystore.certificate.chain"])
def test_a_key_or_chain_that_cannot_be_had(tmp_path: Path, inline: str) -> None:
    end = now() - 2 * HOUR
    issued = CA.issue("quorumd-1", ["db7"], begin=end - DAY, end=end)
    (tmp_path / "chain").write_bytes(issued.chain_pem)
    (tmp_path / "key").write_bytes(issued.key_pem)
    given = {
        KEYSTORE: None,
        "ssl.keystore.key": "${dir:.:key}",
        "ssl.keystore.certificate.chain": "${dir:.:chain}",
        "ssl.truststore.location": "nowhere.pem",
        inline: "${dir:.:missing}",
    }
    path, keys = write(tmp_path, given)
    text = refusal(path, ("start",))
    problem_of(text, inline, path, 1 + keys.index(inline))
    trusted = problem_of(
        text, "ssl.truststore.location", path, 1 + keys.index("ssl.truststore.location")
    )
    assert "nowhere.pem cannot be read" in trusted
    is_chain_there = inline == "ssl.keystore.key"
    assert ("expired 2 h ago" in text) is is_chain_there
    assert ("names db7" in text) is is_chain_there
    assert text.count(f"{path}:") == (4 if is_chain_there else 2), text


@pytest.mark.parametrize("store", ["keystore", "truststore"])
def test_a_pkcs12_store_whose_password_cannot_be_had(tmp_path: Path, store: str) -> None:
    """What is in the other store is judged."""
    changes = {f"ssl.{store}.type": "PKCS12", f"ssl.{store}.password": MISSING}
    if store == "keystore":
        changes |= {"ssl.truststore.location": "nowhere.pem"}
    path, _ = write(tmp_path, changes)
    if store == "truststore":
        spoiled(tmp_path)
    text = refusal(path, ("start",))
    assert f"ssl.{store}.password: {MISSING}" in text
    if store == "keystore":
        assert "nowhere.pem cannot be read" in text
        assert text.count(f"{path}:") == 2, text
    else:
        assert "expired 2 h ago" in text
        assert "does not hold the CA" not in text
        assert text.count(f"{path}:") == 4, text


def test_a_store_that_cannot_be_read_hides_nothing_of_the_other(tmp_path: Path) -> None:
    path, _ = write(tmp_path, {"ssl.truststore.location": "nowhere.pem"})
    spoiled(tmp_path)
    text = refusal(path, ("start",))
    for name in ("expired", "host", "node"):
        assert OWN_CERTIFICATE[name][1] in text
    assert "nowhere.pem cannot be read" in text
    assert text.count(f"{path}:") == 4, f"and of nothing else: {text}"
