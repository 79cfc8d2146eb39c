"""Every command of quorumctl against a live quorum of mutual TLS, and what it says without the right keys."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from quorumd.cli.options import COMMAND_CONFIG_VARIABLE
from tests.quorumd.conftest import Done
from tests.support.client_files import PASSWORD, ClientFiles
from tests.support.secure_cluster import SecureCluster

pytestmark = pytest.mark.live

Run = Callable[..., Done]
SOON_S = 10.0
"""Far below the time that commands are given here."""


class Secure(NamedTuple):
    """A quorum of three voters and an observer, and the files of its clients."""

    cluster: SecureCluster
    files: ClientFiles


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    cluster = SecureCluster(tmp_path_factory.mktemp("quorum"), observers=1)
    files = ClientFiles(tmp_path_factory.mktemp("files"), cluster.authority)
    files.properties(files.client_keys())
    try:
        cluster.format()
        cluster.start(*cluster.voters)
        cluster.wait_ready(*cluster.voters)
        # Ids beside those of quorum.voters may become voters then.
        cluster.is_static = False
        cluster.roll("TLS first", *cluster.voters)
        cluster.write_config(4)
        cluster.start(4)
        cluster.wait_ready()
        yield Secure(cluster, files)
    finally:
        cluster.kill_all()


@pytest.fixture
def ctl(secure: Secure, quorumctl: Run) -> Run:
    """A command with a certificate, at the live quorum."""

    def run(name: str, *arguments: object) -> Done:
        config = secure.files.folder / "client.properties"
        where = ("-b", secure.cluster.secure_bootstrap, "--command-config", config)
        return quorumctl(name, *where, *arguments)

    return run


def succeeds(ctl: Run, name: str, *arguments: object) -> str:
    """What the command printed."""
    done = ctl(name, *arguments)
    assert (done.code, "Error" in done.err) == (0, False), done
    return done.out


def test_records_are_written_read_and_backed_up(ctl: Run, tmp_path: Path) -> None:
    succeeds(ctl, "append", "a record")
    assert "a record" in succeeds(ctl, "tail", "--from-beginning")
    succeeds(ctl, "put", "color", "blue")
    assert "blue" in succeeds(ctl, "get", "color")
    changes = tmp_path / "changes.json"
    changes.write_text('{"changes": [{"key": "shape", "value": "round"}]}')
    succeeds(ctl, "txn", "--file", changes)
    succeeds(ctl, "delete", "color")
    assert ctl("get", "color").code == 1
    assert " -" in succeeds(ctl, "snapshot")
    succeeds(ctl, "backup", tmp_path / "backup")
    assert "records/s" in succeeds(ctl, "bench", "--clients", 3, "--seconds", 0.3, "--warmup", 0)


def test_the_quorum_is_described_and_changed(ctl: Run, secure: Secure) -> None:
    assert "CurrentVoters" in succeeds(ctl, "describe", "--status", "--replication")
    succeeds(ctl, "transfer-leader")
    succeeds(ctl, "add-voter", "--replica-id", 4)
    succeeds(ctl, "remove-voter", "--replica-id", 4)
    succeeds(ctl, "reassign", "--voters", "1,2,4", "--watch")
    succeeds(ctl, "reassign", "--voters", "1,2,3", "--watch")
    done = ctl("replace-voter", 3, "--timeout", 6)
    assert "could not replace the disk of voter 3" in done.err or done.code == 0, done
    logs = "".join(secure.cluster.output(node) for node in secure.cluster.ids)
    for what in (
        "hand leadership to any voter",
        "add voter (4, ",
        "remove voter (4, ",
        "reassign the voters to 1, 2, 4",
    ):
        line = next(line for line in logs.splitlines() if f'what="{what}' in line)
        assert " change requested " in line
        assert " by=" in line
        assert "ANONYMOUS" not in line


def test_the_variable_names_the_file_and_what_means_nothing_is_named_once(
    secure: Secure, quorumctl: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {**secure.files.client_keys("other"), "linger.ms": 5, "acks": "all"}
    file = secure.files.properties(keys, "with-more.properties")
    monkeypatch.setenv(COMMAND_CONFIG_VARIABLE, str(file))
    done = quorumctl("describe", "-b", secure.cluster.secure_bootstrap)
    assert done.code == 0
    assert done.err.count("linger.ms") == done.err.count("acks") == 1


def test_a_pkcs12_store_is_read_with_its_password(secure: Secure, quorumctl: Run) -> None:
    keys = {
        **secure.files.client_keys("keeper"),
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": secure.files.pkcs12("keeper"),
        "ssl.keystore.password": PASSWORD,
    }
    file = secure.files.properties(keys, "pkcs12.properties")
    where = ("-b", secure.cluster.secure_bootstrap, "--command-config", file)
    done = quorumctl("append", *where, "kept in PKCS12")
    assert (done.code, done.err) == (0, "")
    done = quorumctl("tail", "--from-beginning", *where)
    assert (done.code, done.err) == (0, "")
    assert "kept in PKCS12" in done.out
    assert PASSWORD not in done.out


def test_the_options_of_sparks_kafka_source_are_understood(
    secure: Secure, quorumctl: Run, tmp_path: Path
) -> None:
    keys = {f"kafka.{name}": value for name, value in secure.files.client_keys().items()}
    file = tmp_path / "spark.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in keys.items()))
    where = ("-b", secure.cluster.secure_bootstrap, "--command-config", file)
    done = quorumctl("append", *where, "as Spark has it")
    assert (done.code, done.err) == (0, "")
    file.write_text(
        file.read_text()
        + f"kafka.ssl.key.password={PASSWORD}\nssl.key.password=another\nkafka.ssl.typo=1\n"
    )
    done = quorumctl("append", *where, "which password?")
    assert done.code == 2
    assert "kafka.ssl.key.password and ssl.key.password mean the same: remove one" in done.err
    assert PASSWORD not in done.err


# --- what is wrong is said at once


def without_certificate(files: ClientFiles, folder: Path) -> dict[str, object]:
    return {"ssl.truststore.location": files.trust}


def wrong_ca(files: ClientFiles, folder: Path) -> dict[str, object]:
    return {**files.client_keys(), "ssl.truststore.location": ClientFiles(folder / "x").trust}


def stranger(files: ClientFiles, folder: Path) -> dict[str, object]:
    store = ClientFiles(folder / "x").store("stranger")
    return {**files.client_keys(), "ssl.keystore.location": store}


def expired(files: ClientFiles, folder: Path) -> dict[str, object]:
    store = files.store("expired", ends_in=datetime.timedelta(hours=-3))
    return {**files.client_keys(), "ssl.keystore.location": store}


def missing(files: ClientFiles, folder: Path) -> dict[str, object]:
    return {**files.client_keys(), "ssl.keystore.location": folder / "nowhere.pem"}


def wrong_password(files: ClientFiles, folder: Path) -> dict[str, object]:
    return {
        **files.client_keys(),
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": files.pkcs12("locked", password="another"),
        "ssl.keystore.password": PASSWORD,
    }


def plaintext(files: ClientFiles, folder: Path) -> dict[str, object]:
    return {"security.protocol": "PLAINTEXT"}


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (without_certificate, ("certificate", "ssl.keystore.location")),
        (wrong_ca, ("ca.pem", "ssl.truststore.location")),
        (stranger, ("stranger.pem",)),
        (expired, ("expired", "expired.pem")),
        (missing, ("nowhere.pem", "ssl.keystore.location")),
        (wrong_password, ("locked.p12", "password")),
        (plaintext, ("security.protocol=SSL",)),
    ],
)
def test_what_stands_in_the_way_is_named(
    secure: Secure,
    quorumctl: Run,
    tmp_path: Path,
    keys: Callable[[ClientFiles, Path], dict[str, object]],
    words: tuple[str, ...],
) -> None:
    file = secure.files.properties(keys(secure.files, tmp_path), f"{keys.__name__}.properties")
    where = ("-b", secure.cluster.secure_bootstrap, "--timeout", 60)
    done = quorumctl("describe", *where, "--command-config", file)
    assert done.has_one_error, done
    assert [word for word in words if word not in done.err] == [], done.err
    assert PASSWORD not in done.err + done.out


def test_a_leader_whose_certificate_alone_will_not_do_is_named_soon(
    secure: Secure, quorumctl: Run, tmp_path: Path
) -> None:
    """This client has a revocation list with the leader's; any other node may lead."""
    leader = secure.cluster.wait_leader()
    crl = tmp_path / "crl.pem"
    crl.write_bytes(secure.cluster.authority.revoking(secure.cluster.keystore(f"quorumd-{leader}")))
    file = secure.files.properties(
        {**secure.files.client_keys(), "ssl.crl.location": crl}, "revoking.properties"
    )
    where = ("-b", secure.cluster.secure_bootstrap, "--command-config", file, "--timeout", 60)
    for command in ("describe", "append v"):
        name, *arguments = command.split()
        begun = time.monotonic()
        done = quorumctl(name, *where, *arguments)
        assert time.monotonic() - begun < SOON_S
        assert done.has_one_error, done
        address = f"127.0.0.1:{secure.cluster.secure_ports[leader]}"
        for word in (f"the leader, {address}, cannot be used", "revoked", str(crl)):
            assert word in done.err
    for other in secure.cluster.voters:
        if other != leader:
            secure.cluster.lead(other)
            done = quorumctl("append", *where, "led by another")
            assert (done.code, done.err) == (0, "")


def test_bad_settings_are_all_named_and_end_as_wrong_usage(
    secure: Secure, quorumctl: Run, tmp_path: Path
) -> None:
    keys = {
        "ssl.keystore.type": "JKS",
        "ssl.keystore.location": tmp_path / "keys.jks",
        "ssl.enabled.protocols": "TLSv1.1",
        "ssl.key.password": PASSWORD,
    }
    file = secure.files.properties(keys, "bad.properties")
    done = quorumctl("describe", "-b", secure.cluster.secure_bootstrap, "--command-config", file)
    assert done.code == 2
    assert "keytool -importkeystore" in done.err
    assert "TLSv1.1" in done.err
    assert PASSWORD not in done.err
    done = quorumctl("describe", "-b", "localhost:1", "--command-config", tmp_path / "nowhere")
    assert done.code == 2
    assert "nowhere" in done.err
