"""What differences amount to, by themselves: majorities, runs of differences, causes, ends of ranges."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from quorumd.pipeline.audit import scan
from quorumd.pipeline.audit.compare import Difference, EpochChange
from quorumd.pipeline.audit.findings import AuditFinding, FindingKind
from quorumd.pipeline.audit.run import BadReplicas, _labels, _tidied
from quorumd.pipeline.audit.scan import ScannedReplica, _ends
from quorumd.pipeline.audit.structure import (
    ContiguousBatches,
    _is_misplaced,
    _is_whole_batch,
    structure_findings,
)
from quorumd.pipeline.audit.verdict import lag_findings, reach_verdict
from quorumd.pipeline.files import FilePlan, FileRange, LogSegment, Replica
from quorumd.pipeline.files.replicas import Snapshot
from quorumd.pipeline.parse import ChunkOrigin
from quorumd.storage.errors import StorageError
from quorumd.storage.reader import FileTail, TailKind
from tests.storage.helpers import batch


def replicas(count: int) -> list[ScannedReplica]:
    """Their logs have offsets 0 to 99."""
    return [
        ScannedReplica(
            f"replica {number}",
            Replica(path=Path(f"r{number}"), log_directory=Path("d"), segments=(), snapshots=()),
            end_offset=100,
        )
        for number in range(count)
    ]


def difference(
    start: int, *groups: tuple[int, ...], only_epoch: bool = False, size: int = 1
) -> Difference:
    return Difference(start, start + size, groups, tuple(range(len(groups))), only_epoch)


def damage(count: int, *differences: Difference) -> list[AuditFinding]:
    return reach_verdict(replicas(count), differences, [[] for _ in range(count)], 100).findings


@pytest.mark.parametrize(
    ("groups", "against"),
    [
        (((0, 1, 2), (3,)), 3),
        (((0, 1), (2, 3)), 0),
        (((0, 1), (2,)), 2),
        (((0, 1), (2,), (3,)), 0),
        (((0,), (1,)), 0),
    ],
)
def test_more_than_half_of_those_that_have_it_are_right(
    groups: tuple[tuple[int, ...], ...], against: int
) -> None:
    count = sum(map(len, groups))
    (finding,) = damage(count, difference(10, *groups))
    assert len(finding.against) == against
    assert len(finding.replicas) == count - against
    assert ("no majority says" in finding.what) == (not against)


@pytest.mark.parametrize(
    ("only_epochs", "kind"),
    [
        ((True, True), FindingKind.DIFFERENT_EPOCH),
        ((True, False), FindingKind.DIFFERENT_RECORDS),
        ((False, True), FindingKind.DIFFERENT_RECORDS),
    ],
)
def test_of_differences_one_behind_the_other_any_records_that_differ_count(
    only_epochs: tuple[bool, bool], kind: FindingKind
) -> None:
    found = damage(
        3,
        *(
            difference(10 + at, (0, 1), (2,), only_epoch=only_epoch)
            for at, only_epoch in enumerate(only_epochs)
        ),
    )
    assert [(each.kind, each.offset, each.end_offset) for each in found] == [(kind, 10, 12)]


OLDER, NEWER = ([EpochChange(0, 0, 50, epoch)] for epoch in (3, 5))
APART = Difference(50, 100, ((0,), (1,)), (3, 5), False)
"""Replica 0 ends with records of epoch 3 where replica 1 has those of epoch 5."""


@pytest.mark.parametrize(
    ("only_epoch", "committed", "is_tail"),
    [(False, 60, True), (True, 50, True), (True, 51, False)],
)
def test_the_same_records_in_another_epoch_are_a_tail_only_where_nothing_is_committed(
    only_epoch: bool, committed: int, is_tail: bool
) -> None:
    apart = [APART._replace(only_epoch=only_epoch)]
    found = reach_verdict(replicas(2), apart, [OLDER, NEWER], committed)
    assert [tail.replica for tail in found.tails] == [0] * is_tail
    kind = FindingKind.UNCOMMITTED_TAIL if is_tail else FindingKind.DIFFERENT_EPOCH
    assert [each.kind for each in found.findings] == [kind]


def test_of_logs_that_end_with_the_same_epoch_none_has_a_tail() -> None:
    apart = [APART._replace(epochs=(5, 4))]
    found = reach_verdict(replicas(2), apart, [NEWER, NEWER], 0)
    assert (found.tails, [each.kind for each in found.findings]) == (
        [],
        [FindingKind.DIFFERENT_RECORDS],
    )


@pytest.mark.parametrize("snapshot_end", [None, 150])
def test_a_copied_snapshot_takes_the_place_of_a_log_whatever_was_committed_of_that(
    snapshot_end: int | None,
) -> None:
    older, newer = replicas(2)
    older.applied_offset = 51
    if snapshot_end is not None:
        path = Path("s")
        snapshot = Snapshot(
            path=path, end_offset=snapshot_end, epoch=5, replica_id=None, storage_id=None
        )
        older.replica = replace(older.replica, snapshots=(snapshot,))
    found = reach_verdict([older, newer], [APART], [OLDER, NEWER], 51)
    assert [tail.replica for tail in found.tails] == [0] * (snapshot_end is not None)


def finding(kind: FindingKind, offset: int, end: int, *names: str) -> AuditFinding:
    return AuditFinding(kind=kind, offset=offset, end_offset=end, replicas=names, what="what")


@pytest.mark.parametrize(
    ("offset", "names", "is_left"),
    [
        (9, ("a",), True),
        (10, ("a",), False),
        (12, ("a",), False),
        (13, ("a",), True),
        (10, ("b",), True),
        (10, ("a", "b"), True),
    ],
)
def test_what_follows_from_a_changed_epoch_is_left_out_on_that_replica_alone(
    offset: int, names: tuple[str, ...], is_left: bool
) -> None:
    cause = finding(FindingKind.DIFFERENT_EPOCH, 10, 12, "a")
    effect = finding(FindingKind.EPOCH_ORDER, offset, offset + 1, *names)
    assert (effect in _tidied([cause, effect])) is is_left


def test_one_fault_of_several_replicas_is_one_finding() -> None:
    missing = [finding(FindingKind.MISSING, 5, 6, name) for name in ("a", "b")]
    crcs = [finding(FindingKind.BAD_CRC, 5, 6, name) for name in ("a", "b")]
    found = _tidied([*missing, *crcs])
    assert sorted(each.replicas for each in found) == [("a",), ("a", "b"), ("b",)]


def replica_at(path: Path, cluster_id: str | None = None) -> Replica:
    return Replica(path=path, log_directory=path, segments=(), snapshots=(), cluster_id=cluster_id)


def test_two_clusters_are_one_too_many(tmp_path: Path) -> None:
    names = ("one", "one", None, "two")
    found = [replica_at(tmp_path / f"{at}", name) for at, name in enumerate(names)]
    assert len(_labels(found[:3])) == 3
    with pytest.raises(BadReplicas, match="different clusters"):
        _labels(found)


def test_one_directory_under_two_names_is_one(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(BadReplicas, match="are the same directory"):
        _labels([replica_at(tmp_path / "real"), replica_at(tmp_path / "link")])


@pytest.mark.parametrize(("end", "is_misplaced"), [(25, True), (24, False), (26, False)])
def test_batches_with_other_offsets_are_as_many_as_are_missing(
    end: int, is_misplaced: bool
) -> None:
    before, after = ContiguousBatches(0, 10, 0, 10), ContiguousBatches(20, 30, 15, 20)
    here = ContiguousBatches(10, 20, 20, end)
    assert _is_misplaced(before, here, after) is is_misplaced


def plan_of(*ranges: tuple[int, int, int]) -> FilePlan:
    """Ranges of 10 bytes, each with its position, first offset and end offset; nothing is behind them."""
    found = tuple(
        FileRange(ChunkOrigin(file="segment", position=position), 10, start, end)
        for position, start, end in ranges
    )
    end = ranges[-1][0] + 10
    tail = FileTail(TailKind.NONE, end, 0)
    return FilePlan(Path("segment"), found, ranges[0][1], ranges[-1][2], tail, ())


@pytest.mark.parametrize(
    ("begins", "next_base", "kinds"),
    [
        (5, 9, []),
        (6, 9, [(FindingKind.MISSING, 5, 6)]),
        (4, 9, [(FindingKind.REPEATED, 4, 5)]),
        (5, 10, [(FindingKind.MISSING, 9, 10)]),
        (5, 8, [(FindingKind.REPEATED, 8, 9)]),
        (5, None, []),
    ],
)
def test_a_single_offset_that_is_missing_or_twice_there_is_named(
    begins: int, next_base: int | None, kinds: list[tuple[FindingKind, int, int]]
) -> None:
    segment = LogSegment(
        path=Path("segment"),
        base_offset=0,
        next_base=next_base,
        may_be_unfinished=False,
        replica_id=None,
        storage_id=None,
    )
    found = structure_findings("one", segment, plan_of((0, 0, 5), (10, begins, 9)))
    assert [(each.kind, each.offset, each.end_offset) for each in found] == kinds


@pytest.mark.parametrize("start", [10, 11])
def test_a_log_begins_late_from_the_first_offset_on_that_no_snapshot_holds(start: int) -> None:
    (found,) = replicas(1)
    snapshot = Snapshot(path=Path("s"), end_offset=10, epoch=1, replica_id=None, storage_id=None)
    found.replica = replace(found.replica, snapshots=(snapshot,))
    found.start_offset = start
    kinds = [each.kind for each in _ends(found)]
    assert kinds == ([FindingKind.BEGINS_LATE] if start > 10 else [])


def test_of_what_a_replica_lacks_that_is_told_which_is_known_to_be_committed() -> None:
    found = replicas(3)
    found[1].end_offset, found[2].end_offset = 98, 90
    told = [each.what for each in lag_findings(found, 95)]
    assert told == [
        "it ends 2 offsets before the longest log",
        "it ends 10 offsets before the longest log, 5 of them known to be committed",
    ]


def test_a_log_of_which_files_go_on_disappearing_is_not_read_for_ever(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tries = 0

    def scan_once(*_: object) -> ScannedReplica:
        nonlocal tries
        tries += 1
        raise StorageError("no such file any more", path=tmp_path / "gone", remedy="")

    monkeypatch.setattr(scan, "_scan_once", scan_once)
    monkeypatch.setattr(scan, "find_replicas", lambda paths: [replica_at(path) for path in paths])
    with pytest.raises(StorageError, match="no such file any more"):
        scan.scan_replica(0, "one", replica_at(tmp_path), 1)
    assert tries == scan._TRIES


@pytest.mark.parametrize(
    ("position", "offset", "is_whole"), [(100, 7, True), (100, 6, False), (100, 8, False)]
)
def test_a_bad_batch_at_the_end_is_whole_if_it_is_the_next_and_the_file_ends_with_it(
    tmp_path: Path, position: int, offset: int, is_whole: bool
) -> None:
    data = batch(offset)
    path = tmp_path / "segment"
    last = ContiguousBatches(0, position, 0, 7)

    def judged(position: int) -> bool:
        path.write_bytes(bytes(position) + data)
        tail = SimpleNamespace(position=position, size_bytes=len(data))
        return _is_whole_batch(cast(FilePlan, SimpleNamespace(path=path, tail=tail)), last)

    assert judged(position) is is_whole
    assert not judged(1024 - len(data)), "at the end of a sector the rest may be lost"
