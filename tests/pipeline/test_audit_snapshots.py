"""Snapshots that the audit holds against each other and against the log: what differs is found and named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from crc32c import crc32c

from quorumd.pipeline.audit import FindingKind
from quorumd.pipeline.audit import run as run_module
from quorumd.storage.layout import log_path, partition_directory
from quorumd.wire.control_records import SnapshotFooter, encode_control_batch
from tests.pipeline import planting
from tests.pipeline.planting import Place
from tests.pipeline.test_audit_tails import Replicas, begun


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "_PAUSE_S", 0.0)


@pytest.fixture
def replicas(tmp_path: Path) -> Replicas:
    return Replicas(tmp_path)


def change_time(at: Place) -> None:
    """One ms later, with the CRC that goes with it."""
    data = bytearray(at.path.read_bytes()[at.position : at.end])
    for where in (27, 35):
        time_ms = int.from_bytes(data[where : where + 8], "big") + 1
        data[where : where + 8] = time_ms.to_bytes(8, "big")
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    planting.write(at.path, at.position, bytes(data))


def change_value(at: Place) -> None:
    planting.change_value(at, b"value", b"other")


def test_a_key_that_was_deleted_is_in_the_state_of_the_log_no_more(replicas: Replicas) -> None:
    log = begun()
    log.append([(b"common 3", None), (b"never there", None), (b"common 4", b"other")])
    name = replicas.add(log)
    replicas.snapshot(0, log.end, 1)
    assert replicas.look() == []
    # That of a log that goes on from an older one, too.
    log.append([(b"common 5", None)])
    log_path(partition_directory(Path(name)), 0).write_bytes(log.data)
    replicas.snapshot(0, log.end, 1)
    assert replicas.look() == []


@pytest.mark.parametrize("change", [change_time, change_value])
def test_a_snapshot_that_ends_where_its_log_does_is_held_against_it(
    replicas: Replicas, change: Callable[[Place], None]
) -> None:
    log = begun()
    name = replicas.add(log)
    path = replicas.snapshot(0, log.end, 1)
    assert replicas.look() == []
    (data,) = (each for each in planting.batches(path) if not each.header.is_control)
    change(data)
    (finding,) = replicas.look()
    assert (finding.kind, finding.replicas) == (FindingKind.SNAPSHOT_NOT_LOG, (name,))


@pytest.mark.parametrize("step", [-1, 1])
def test_a_batch_of_another_epoch_than_the_snapshots_is_damage(
    replicas: Replicas, step: int
) -> None:
    log = begun()
    name = replicas.add(log)
    path = replicas.snapshot(0, log.end, 1)
    for each in planting.batches(path):
        planting.change_epoch(each, 1 + step)
    (finding,) = replicas.look()
    assert (finding.kind, finding.replicas) == (FindingKind.SNAPSHOT_DAMAGED, (name,))
    assert f"a batch of epoch {1 + step} in a snapshot of epoch 1" in finding.what


def test_what_goes_on_behind_its_footer_is_no_snapshot(replicas: Replicas) -> None:
    log = begun()
    replicas.add(log)
    path = replicas.snapshot(0, log.end, 1)
    *_, last = planting.batches(path)
    more = encode_control_batch(
        [SnapshotFooter(version=0)],
        base_offset=last.header.next_offset,
        epoch=1,
        timestamp_ms=log.now_ms,
    )
    as_leader_change = more[:61] + more[61:].replace(b"\x00\x04", b"\x00\x02", 1)
    sealed = bytearray(as_leader_change)
    sealed[17:21] = crc32c(bytes(sealed[21:])).to_bytes(4, "big")
    path.write_bytes(path.read_bytes() + bytes(sealed))
    (finding,) = replicas.look()
    assert finding.kind is FindingKind.SNAPSHOT_DAMAGED


@pytest.mark.parametrize(
    ("values", "right"), [("aab", 2), ("aabb", 0), ("aabc", 0), ("aaab", 3), ("ab", 0)]
)
def test_more_than_half_of_the_snapshots_are_right(
    replicas: Replicas, values: str, right: int
) -> None:
    """Kafka's, which no log can be held against."""
    log = begun()
    for number in range(len(values)):
        replicas.add(log)
        path = replicas.snapshot(number, log.end, 1)
        planting.as_kafka_writes_it(path, values[number].encode(), log.now_ms + number)
    (finding,) = replicas.look()
    assert finding.kind is FindingKind.SNAPSHOT_DIFFERS
    assert (len(finding.against), len(finding.replicas)) == (right, len(values) - right)


def test_a_batch_whose_crc_is_wrong_is_not_counted(replicas: Replicas) -> None:
    """Its number of records may be what is wrong."""
    log = begun()
    for _ in range(3):
        replicas.add(log)
    at = planting.place(replicas.paths[0], 0, 1)
    planting.write(at.path, at.position + 57, (99).to_bytes(4, "big"))
    assert [each.kind for each in replicas.look()] == [FindingKind.BAD_CRC]


def test_a_log_ends_early_only_if_no_snapshot_has_the_rest(replicas: Replicas) -> None:
    """A snapshot that was copied takes the log's place at the next start."""
    log = begun()
    longer = begun()
    longer.append((b"more %d" % number, b"value") for number in range(4))
    name = replicas.add(log, applied=longer.end)
    replicas.add(longer)
    kinds = [(each.kind, each.replicas) for each in replicas.look()]
    assert kinds == [(FindingKind.ENDS_EARLY, (name,))]
    replicas.snapshot(1, longer.end, 1, into=0)
    assert replicas.look() == []
