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
