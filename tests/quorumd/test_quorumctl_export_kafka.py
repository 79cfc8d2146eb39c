"""`quorumctl export-kafka`: which brokers are asked, what is said of them, and when nothing is written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from uuid import UUID

import pytest

from quorumd.cli.broker_offsets import BrokerOffset
from quorumd.cli.export_kafka import _time
from quorumd.raft.types import Address
from quorumd.storage.kafka_export import KafkaExport
from quorumd.storage.layout import log_path, partition_directory
from quorumd.wire.control_records import KRaftVoter
from quorumd.wire.records import Record, build_batch
from tests.quorumd.conftest import Done
from tests.storage.helpers import START_MS
from tests.storage.test_kafka_export import COMMITTED, END, batch, observed, registered
from tests.support.client_files import ClientFiles

Run = Callable[..., Done]
AT = Address("b11", 9092)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Address]:
    """Those that were asked; each has applied as much as its port says above 10000, or says nothing."""
    found: list[Address] = []

    async def ask(addresses: Sequence[Address], *_: object) -> list[BrokerOffset]:
        found.extend(addresses)
        return [
            BrokerOffset(each, each.port - 10_000 if each.port > 10_000 else None, "it is silent")
            for each in addresses
        ]

    monkeypatch.setattr("quorumd.cli.broker_offsets.ask_brokers", ask)
    return found


def with_brokers(folder: Path, *values: bytes) -> Path:
    """A copy in which these are registered, at offset 3."""
    source = observed(folder, committed=3 + len(values))
    records = [Record(timestamp=START_MS, value=value) for value in values]
    log_path(partition_directory(source), 3).write_bytes(
        build_batch(records, base_offset=3, epoch=2)
    )
    return source


@pytest.mark.parametrize(
    ("applied", "said", "code"),
    [
        (COMMITTED, f"is not ahead: it has applied up to offset {COMMITTED}", 0),
        (COMMITTED + 1, f"is AHEAD by 1 offsets, up to {COMMITTED + 1}", 2),
        (None, "is NOT KNOWN to survive: it is silent", 2),
    ],
)
def test_nothing_is_written_unless_every_broker_survives_or_that_is_accepted(
    tmp_path: Path,
    quorumctl: Run,
    asked: list[Address],
    applied: int | None,
    said: str,
    code: int,
) -> None:
    target = tmp_path / "controller"
    port = 9092 if applied is None else 10_000 + applied
    command = ("export-kafka", observed(tmp_path), "--node-id", 1, "--brokers", f"b:{port}")
    tried = quorumctl(*command, "--dry-run")
    assert (tried.code, f"broker b:{port} {said}" in tried.out) == (0, True)
    done = quorumctl(*command, "--to", target)
    assert (done.code, target.exists()) == (code, not code)
    if code:
        assert "not all brokers are known to survive this, and nothing was written" in done.err
        assert quorumctl(*command, "--to", target, "--accept-ahead").code == 0
        assert target.exists()
    assert set(asked) == {Address("b", port)}


def test_the_brokers_of_the_copy_are_asked_where_they_speak_as_quorumctl_does(
    tmp_path: Path, quorumctl: Run, asked: list[Address]
) -> None:
    unnamed = registered(13, "nowhere")[:31] + b"\1\1\0\0\0"
    source = with_brokers(tmp_path, registered(11, "b11"), registered(12, "b12", 1), unnamed)
    command = ("export-kafka", source, "--node-id", 1, "--dry-run")
    done = quorumctl(*command)
    assert (done.code, asked) == (0, [AT])
    assert "broker 12 has no listener that speaks plaintext: give --command-config" in done.out
    assert "broker 13 has no listener" in done.out
    assert "broker b11:9092 is NOT KNOWN to survive: it is silent" in done.out
    asked.clear()
    files = ClientFiles(tmp_path / "keys")
    done = quorumctl(*command, "--command-config", files.properties(files.client_keys()))
    assert (done.code, asked) == (0, [Address("b12", 9092)])
    assert "broker 11 has no listener that speaks TLS: leave --command-config out" in done.out


def test_those_that_are_named_are_asked_instead_and_none_if_that_is_wanted(
    tmp_path: Path, quorumctl: Run, asked: list[Address]
) -> None:
    source = with_brokers(tmp_path, registered(11, "b11"), registered(12, "b12", 1))
    command = ("export-kafka", source, "--node-id", 1, "--dry-run")
    assert "broker 12" not in quorumctl(*command, "--brokers", "other:10001").out
    assert asked == [Address("other", 10_001)]
    assert "broker" not in quorumctl(*command, "--no-brokers").out.partition("a broker that")[0]
    assert asked == [Address("other", 10_001)]


@pytest.mark.parametrize(("count", "majority"), [(1, 1), (2, 2), (3, 2), (4, 3)])
def test_it_says_how_many_make_a_majority(
    tmp_path: Path, quorumctl: Run, count: int, majority: int
) -> None:
    voters = tuple(
        KRaftVoter(voter_id=node, voter_directory_id=UUID(int=70 + node))
        for node in range(1, count + 1)
    )
    source = observed(tmp_path, voters=voters)
    done = quorumctl("export-kafka", source, "--node-id", 1, "--dry-run", "--no-brokers")
    assert f"export {majority} of them at least" in done.out


def test_what_is_taken_or_left_above_what_was_known_to_be_committed_is_said(
    tmp_path: Path, quorumctl: Run
) -> None:
    command = ("export-kafka", observed(tmp_path), "--node-id", 1, "--dry-run", "--no-brokers")
    said = quorumctl(*command).out
    assert f"{END - COMMITTED} offsets above {COMMITTED} are left out" in said
    said = quorumctl(*command, "--keep-tail").out
    assert f"{END - COMMITTED} offsets above {COMMITTED} are taken although" in said
    assert "a witness" not in said


@pytest.mark.parametrize("more", [(), ("--dry-run", "--to", "somewhere")])
def test_a_target_or_a_dry_run_and_not_both(
    tmp_path: Path, quorumctl: Run, more: tuple[str, ...]
) -> None:
    done = quorumctl("export-kafka", observed(tmp_path), "--node-id", 1, "--no-brokers", *more)
    assert done.code == 2
    assert "give either --to, the new directory, or --dry-run" in done.err


def test_damage_is_an_exit_code_of_its_own(tmp_path: Path, quorumctl: Run) -> None:
    source = observed(tmp_path)
    log_path(partition_directory(source), 3).write_bytes(batch(4, 2))
    done = quorumctl("export-kafka", source, "--node-id", 1, "--to", tmp_path / "controller")
    assert (done.code, (tmp_path / "controller").exists()) == (3, False)


@pytest.mark.parametrize(
    ("newest_ms", "said"),
    [(-1, "a snapshot alone"), (0, "the last of 1970-01-01T00:00:00.000+00:00")],
)
def test_the_time_of_the_last_record_is_said_if_there_is_one(newest_ms: int, said: str) -> None:
    assert _time(cast(KafkaExport, SimpleNamespace(newest_ms=newest_ms))) == said
