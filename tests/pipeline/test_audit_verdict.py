"""What differences amount to, by themselves: majorities, runs of differences, causes, ends of ranges."""

from __future__ import annotations

from pathlib import Path

import pytest

from quorumd.pipeline.audit.compare import Difference
from quorumd.pipeline.audit.findings import AuditFinding, FindingKind
from quorumd.pipeline.audit.run import BadReplicas, _labels, _tidied
from quorumd.pipeline.audit.scan import ScannedReplica
from quorumd.pipeline.audit.structure import ContiguousBatches, _is_misplaced
from quorumd.pipeline.audit.verdict import reach_verdict
from quorumd.pipeline.files import Replica


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
