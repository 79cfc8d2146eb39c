"""Logs that end otherwise than the newest one: what was never committed is no damage, all else is. And
snapshots beside such logs."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path

import pytest

from quorumd.pipeline.audit import AuditFinding, FindingKind, audit
from quorumd.pipeline.audit import run as run_module
from quorumd.server.snapshots.snapshot_builder import SnapshotBuilder
from quorumd.storage.filesystem import RealFileSystem
from quorumd.storage.layout import log_path, part_path, partition_directory, snapshot_path
from quorumd.storage.quorum_state import QuorumState, save_quorum_state
from tests.pipeline import planting
from tests.pipeline.written import Log

VOTERS = (1, 2, 3)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "_PAUSE_S", 0.0)


def grow(log: Log, name: str, *counts: int) -> None:
    """A batch with so many records for each of the counts."""
    for count in counts:
        first = log.end
        log.append((b"%s %d" % (name.encode(), i), b"value") for i in range(first, first + count))


def begun() -> Log:
    """21 records, all of epoch 1."""
    log = Log()
    log.elect(1, VOTERS)
    grow(log, "common", 10, 10)
    return log


def fork(log: Log, leader: int, epoch: int, *counts: int) -> Log:
    """What another leader makes of a log. Its first record is that of its election."""
    other = deepcopy(log)
    other.now_ms += 1_000 * epoch
    other.elect(leader, VOTERS, epoch=epoch)
    grow(other, f"of epoch {epoch}", *counts)
    return other


class Replicas:
    """Directories, one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.paths: list[Path] = []

    def add(self, log: Log, *, epoch: int | None = None, applied: int = 0) -> str:
        """A replica with this log; returns how the audit calls it. It knows of `epoch`, or its log's."""
        path = self.folder / f"replica{len(self.paths) + 1}"
        directory = partition_directory(path)
        directory.mkdir(parents=True)
        log_path(directory, 0).write_bytes(log.data)
        epoch = log.epoch if epoch is None else epoch
        state = QuorumState(leader_epoch=epoch, applied_offset=applied)
        save_quorum_state(RealFileSystem(), directory, state)
        self.paths.append(path)
        return str(path)

    def snapshot(self, of: int, end_offset: int, epoch: int, *, into: int | None = None) -> Path:
        """A snapshot as replica `of` makes it, at the one `into` that has copied it; they count from 0."""
        source = partition_directory(self.paths[of])
        for _ in SnapshotBuilder(RealFileSystem(), source, end_offset).run():
            pass
        target = partition_directory(self.paths[of if into is None else into])
        made = part_path(source, (end_offset, epoch))
        return made.rename(snapshot_path(target, (end_offset, epoch)))

    def look(self, range_bytes: int = 1 << 20) -> list[AuditFinding]:
        """Everything but who lags."""
        found = audit(self.paths, range_bytes=range_bytes).findings
        return [each for each in found if each.kind is not FindingKind.LAG]


@pytest.fixture
def replicas(tmp_path: Path) -> Replicas:
    return Replicas(tmp_path)


Short = tuple[FindingKind, int, int, tuple[str, ...]]


def short(findings: Sequence[AuditFinding]) -> list[Short]:
    return [(each.kind, each.offset, each.end_offset, each.replicas) for each in findings]


@pytest.mark.parametrize("range_bytes", [1, 1 << 20])
@pytest.mark.parametrize("counts", [(4,), (1, 1, 1, 1), (2, 7), (40,)])
def test_what_a_former_leader_could_not_commit_is_no_damage_whatever_was_committed_since(
    replicas: Replicas, counts: tuple[int, ...], range_bytes: int
) -> None:
    common = begun()
    newest = fork(common, 2, 2, 5, 5, 5)
    former = deepcopy(common)
    grow(former, "never committed", *counts)
    names = [replicas.add(former, applied=20)]
    replicas.add(newest, applied=newest.end)
    replicas.add(newest, applied=newest.end)
    (note,) = short(replicas.look(range_bytes))
    assert note == (FindingKind.UNCOMMITTED_TAIL, 21, former.end, tuple(names))


def test_several_former_leaders_each_have_a_tail_of_their_own(replicas: Replicas) -> None:
    common = begun()
    second = fork(common, 2, 2, 6)
    grow(common, "of the first", 3)
    third = deepcopy(second)
    grow(second, "of the second", 9)
    newest = fork(third, 3, 3, 2, 2, 2, 2)
    names = [replicas.add(log) for log in (common, second, second)]
    for _ in range(2):
        replicas.add(newest, applied=newest.end)
    assert short(replicas.look()) == [
        (FindingKind.UNCOMMITTED_TAIL, 21, common.end, (names[0],)),
        (FindingKind.UNCOMMITTED_TAIL, third.end, second.end, (names[1], names[2])),
    ]


def test_tails_begin_where_they_do_whatever_batches_others_have(replicas: Replicas) -> None:
    """The first tail has a batch over the beginning of the second one."""
    common = begun()
    second = fork(common, 2, 2, 5)
    grow(common, "of the first", 4, 9, 9)
    newest = fork(second, 3, 3, 2, 2)
    begins = second.end
    grow(second, "of the second", 3)
    names = [replicas.add(common), replicas.add(second)]
    for _ in range(3):
        replicas.add(newest, applied=newest.end)
    assert short(replicas.look()) == [
        (FindingKind.UNCOMMITTED_TAIL, 21, common.end, (names[0],)),
        (FindingKind.UNCOMMITTED_TAIL, begins, second.end, (names[1],)),
    ]


def test_a_higher_epoch_in_a_tail_is_no_damage_if_a_still_higher_one_took_its_place(
    replicas: Replicas,
) -> None:
    """Figure 8 of the Raft paper: records of epoch 2 are committed by those of epoch 4."""
    common = begun()
    second = fork(common, 2, 2, 5)
    third = fork(common, 3, 3, 4)
    fourth = fork(second, 2, 4, 5)
    name = replicas.add(third)
    replicas.add(fourth, applied=fourth.end)
    replicas.add(fourth, applied=fourth.end)
    assert short(replicas.look()) == [(FindingKind.UNCOMMITTED_TAIL, 21, third.end, (name,))]


def test_a_newest_log_that_is_short_proves_nothing_committed_beyond_it(replicas: Replicas) -> None:
    common = begun()
    newest = fork(common, 2, 2, 1)
    grow(common, "of the first", 4, 4, 4)
    names = [replicas.add(common), replicas.add(common)]
    replicas.add(newest)
    assert short(replicas.look()) == [(FindingKind.UNCOMMITTED_TAIL, 21, common.end, tuple(names))]


def test_a_replica_that_knew_its_records_to_be_committed_has_no_tail(replicas: Replicas) -> None:
    common = begun()
    newest = fork(common, 2, 2, 5, 5)
    grow(common, "of the first", 4)
    name = replicas.add(common, epoch=2, applied=common.end)
    replicas.add(newest)
    replicas.add(newest)
    assert short(replicas.look()) == [(FindingKind.DIFFERENT_RECORDS, 21, common.end, (name,))]


def test_a_tail_may_begin_just_where_the_replica_knew_the_rest_to_be_committed(
    replicas: Replicas,
) -> None:
    common = begun()
    newest = fork(common, 2, 2, 5, 5)
    applied = common.end
    grow(common, "of the first", 4)
    name = replicas.add(common, epoch=2, applied=applied)
    replicas.add(newest)
    replicas.add(newest)
    assert short(replicas.look()) == [(FindingKind.UNCOMMITTED_TAIL, 21, common.end, (name,))]


def test_a_replica_that_took_a_snapshot_of_its_records_has_no_tail(replicas: Replicas) -> None:
    common = begun()
    newest = fork(common, 2, 2, 5, 5)
    grow(common, "of the first", 4)
    name = replicas.add(common)
    replicas.add(newest)
    replicas.add(newest)
    replicas.snapshot(0, common.end, 1)
    assert short(replicas.look())[0] == (FindingKind.DIFFERENT_RECORDS, 21, common.end, (name,))


def test_a_tail_with_the_epoch_of_the_newest_log_is_damage(replicas: Replicas) -> None:
    first = begun()
    second = deepcopy(first)
    grow(first, "one", 4)
    grow(second, "two", 4)
    replicas.add(first)
    replicas.add(second)
    replicas.add(second)
    assert short(replicas.look()) == [
        (FindingKind.DIFFERENT_RECORDS, 21, 25, (str(replicas.paths[0]),)),
    ]


def test_a_log_that_goes_on_like_the_newest_one_has_no_tail(replicas: Replicas) -> None:
    """As if who fetched had not looked at epochs."""
    common = begun()
    newest = fork(common, 2, 2, 3, 3)
    diverging = deepcopy(common)
    grow(diverging, "of the first", 4)
    at = len(fork(common, 2, 2, 3).data)
    diverging.data += newest.data[at:]
    name = replicas.add(diverging, epoch=2)
    replicas.add(newest)
    replicas.add(newest)
    assert short(replicas.look()) == [(FindingKind.DIFFERENT_RECORDS, 21, 25, (name,))]


def test_a_tail_of_an_epoch_that_the_replica_never_heard_of_is_damage(replicas: Replicas) -> None:
    common = begun()
    newest = fork(common, 3, 3, 5)
    name = replicas.add(fork(common, 2, 2, 4), epoch=1)
    replicas.add(newest)
    replicas.add(newest)
    found = short(replicas.look())
    assert (FindingKind.DIFFERENT_RECORDS, 21, 26, (name,)) in found


# --- tails and snapshots


def test_a_tail_is_no_witness_against_a_snapshot(replicas: Replicas) -> None:
    common = begun()
    newest = fork(common, 2, 2, 5, 5)
    former = deepcopy(common)
    grow(former, "never committed", 30)
    name = replicas.add(former)
    replicas.add(newest)
    replicas.snapshot(1, 27, 2)
    assert short(replicas.look()) == [(FindingKind.UNCOMMITTED_TAIL, 21, former.end, (name,))]


def test_a_tail_that_nothing_is_left_to_compare_with_is_no_witness_either(
    replicas: Replicas,
) -> None:
    common = begun()
    newest = fork(common, 2, 2, 5, 5)
    former = deepcopy(common)
    grow(former, "never committed", 30)
    replicas.add(former)
    replicas.add(newest)
    replicas.snapshot(1, 27, 2)
    for each in partition_directory(replicas.paths[1]).glob("*.log"):
        each.unlink()
    assert short(replicas.look()) == []


def test_a_copied_snapshot_may_stand_for_what_the_log_does_not_hold_yet(replicas: Replicas) -> None:
    """A kill between the snapshot's rename and the end of the old log: the next start gives that up."""
    common = begun()
    newest = fork(common, 2, 2, 5, 5)
    former = deepcopy(common)
    grow(former, "never committed", 30)
    name = replicas.add(former, epoch=2, applied=21)
    replicas.add(newest, applied=newest.end)
    replicas.snapshot(1, 27, 2, into=0)
    assert short(replicas.look()) == [(FindingKind.UNCOMMITTED_TAIL, 21, former.end, (name,))]


def test_a_snapshot_of_another_epoch_than_the_committed_log_is_held_against_it(
    replicas: Replicas,
) -> None:
    common = begun()
    newest = fork(common, 3, 3, 5, 5)
    other = fork(common, 2, 2, 5)
    replicas.add(newest, applied=newest.end)
    replicas.add(other)
    made = replicas.snapshot(1, 27, 2)
    name = replicas.add(newest, applied=newest.end)
    made.rename(partition_directory(replicas.paths[2]) / made.name)
    replicas.paths.pop(1)
    assert short(replicas.look()) == [(FindingKind.SNAPSHOT_NOT_LOG, 27, 27, (name,))]


def test_a_changed_epoch_in_a_snapshot_is_damage(replicas: Replicas) -> None:
    """The node refuses it as well."""
    log = begun()
    name = replicas.add(log)
    path = replicas.snapshot(0, 11, 1)
    planting.change_epoch(planting.batches(path)[1], 0)
    assert short(replicas.look()) == [(FindingKind.SNAPSHOT_DAMAGED, 11, 11, (name,))]
