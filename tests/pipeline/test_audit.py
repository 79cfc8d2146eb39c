"""Damage planted in copies of a real quorum's directories: each found and named, none invented."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from quorumd.pipeline.audit import AuditFinding, AuditReport, BadReplicas, FindingKind, audit
from quorumd.storage.filesystem import RealFileSystem
from quorumd.storage.layout import BACKUP_MANIFEST, PARTITION_DIRECTORY, QUORUM_STATE
from tests.pipeline import planting
from tests.server.snapshot_logs import random_batches
from tests.storage.backups import put_backup
from tests.support.live_cluster import Cluster, running_cluster
from tests.support.live_snapshots import put, take

SMALL = {"log.segment.bytes": 8192, "log.max.batch.bytes": 4096}
LABELS = ("replica 1", "replica 2", "replica 3")
RANGE_BYTES = 10_000
"""A few segments in each task, and a few tasks in each segment where it is less."""


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Path]]:
    """Three directories with several segments, epochs and snapshots, the log from offset 0 on."""
    folder = tmp_path_factory.mktemp("quorum")
    with running_cluster(folder, settings=SMALL) as cluster:
        put(cluster, 150)
        for number in range(2):
            old = cluster.wait_leader()
            cluster.stop(old)
            cluster.wait_leader()
            put(cluster, 100, first=1000 * number)
            cluster.start(old)
            cluster.wait_ready()
            for node in cluster.ids:
                take(cluster, node)
        put(cluster, 100, first=5000)
        cluster.wait_converged()
        cluster.assert_same_logs()
        cluster.kill_all()
        yield [cluster.storage_dir(node) for node in cluster.ids]


@pytest.fixture
def replicas(healthy: list[Path], tmp_path: Path) -> list[Path]:
    """Copies, to be damaged."""
    return planting.copy_of(healthy, tmp_path / "copies")


def look(paths: list[Path], range_bytes: int = RANGE_BYTES) -> AuditReport:
    return audit(paths, range_bytes=range_bytes)


def damages(found: AuditReport) -> list[AuditFinding]:
    return [each for each in found.findings if each.is_damage]


def the_only(found: AuditReport) -> AuditFinding:
    (finding,) = damages(found)
    assert not found.is_sound
    return finding


def test_a_healthy_quorum_has_no_findings(healthy: list[Path]) -> None:
    assert len(planting.segments(healthy[0])) > 4
    assert len(planting.snapshots(healthy[0])) > 1
    found = look(healthy)
    assert found.is_sound
    assert damages(found) == []
    assert found.passes == 1
    assert found.batches > 60
    assert found.bytes_read > 3 * 40_000
    assert {each.label for each in found.replicas} == set(LABELS)


@pytest.mark.parametrize("range_bytes", [1, 3000, 1 << 20])
def test_ranges_of_any_size_give_the_same(replicas: list[Path], range_bytes: int) -> None:
    at = planting.place(replicas[1], 2, 1)
    planting.change_value(at)
    finding = the_only(look(replicas, range_bytes))
    assert (finding.kind, finding.offset) == (FindingKind.DIFFERENT_RECORDS, at.header.base_offset)


@pytest.mark.parametrize(("segment", "batch"), [(0, 1), (2, 0), (2, 1), (-1, 0)])
@pytest.mark.parametrize("step", [-1, 1])
def test_a_changed_epoch_is_named(
    replicas: list[Path], segment: int, batch: int, step: int
) -> None:
    at = planting.place(replicas[2], segment, batch)
    planting.change_epoch(at, at.header.epoch + step)
    finding = the_only(look(replicas))
    assert finding.kind is FindingKind.DIFFERENT_EPOCH
    assert (finding.offset, finding.end_offset) == (at.header.base_offset, at.header.next_offset)
    assert (finding.replicas, finding.against) == (LABELS[2:], LABELS[:2])


@pytest.mark.parametrize(("segment", "batch"), [(1, 0), (2, 1), (-1, -1)])
def test_a_changed_value_with_a_new_crc_is_named(
    replicas: list[Path], segment: int, batch: int
) -> None:
    at = planting.place(replicas[0], segment, batch)
    planting.change_value(at)
    finding = the_only(look(replicas))
    assert finding.kind is FindingKind.DIFFERENT_RECORDS
    assert (finding.offset, finding.end_offset) == (at.header.base_offset, at.header.next_offset)
    assert (finding.replicas, finding.against) == (LABELS[:1], LABELS[1:])


@pytest.mark.parametrize(("segment", "batch"), [(0, 0), (2, 1), (2, -1), (-1, 0), (-1, -1)])
def test_a_flipped_byte_is_named(replicas: list[Path], segment: int, batch: int) -> None:
    at = planting.place(replicas[1], segment, batch)
    planting.flip_byte(at)
    finding = the_only(look(replicas))
    assert finding.kind is FindingKind.BAD_CRC
    assert (finding.offset, finding.position) == (at.header.base_offset, at.position)
    assert (finding.replicas, finding.file) == (LABELS[1:2], str(at.path))


def test_a_size_that_leads_nowhere_is_named(replicas: list[Path]) -> None:
    at = planting.place(replicas[1], 2, 1)
    planting.write(at.path, at.position + 8, (1 << 30).to_bytes(4, "big"))
    finding = the_only(look(replicas))
    assert finding.kind is FindingKind.NO_BATCH
    assert (finding.offset, finding.position) == (at.header.base_offset, at.position)
    assert finding.end_offset == at.header.next_offset


@pytest.mark.parametrize("batch", [0, 1, -1])
@pytest.mark.parametrize("distance", [-10, 1_000_000])
def test_a_wrong_offset_is_named(replicas: list[Path], batch: int, distance: int) -> None:
    at = planting.place(replicas[1], 2, batch)
    planting.change_offset(at, at.header.base_offset + distance)
    finding = the_only(look(replicas))
    assert (finding.kind, finding.offset) == (FindingKind.WRONG_OFFSET, at.header.base_offset)
    assert finding.replicas == LABELS[1:2]


@pytest.mark.parametrize(("segment", "batch"), [(0, 1), (2, 0), (2, -1), (-1, 0)])
def test_a_missing_batch_is_named(replicas: list[Path], segment: int, batch: int) -> None:
    at = planting.place(replicas[0], segment, batch)
    planting.remove(at)
    finding = the_only(look(replicas))
    assert finding.kind is FindingKind.MISSING
    assert (finding.offset, finding.end_offset) == (at.header.base_offset, at.header.next_offset)
    assert finding.replicas == LABELS[:1]


@pytest.mark.parametrize(("segment", "batch"), [(0, 1), (2, 0), (2, -1), (-1, 0)])
def test_a_batch_that_is_there_twice_is_named(
    replicas: list[Path], segment: int, batch: int
) -> None:
    at = planting.place(replicas[2], segment, batch)
    planting.repeat(at)
    finding = the_only(look(replicas))
    assert finding.kind is FindingKind.REPEATED
    assert (finding.offset, finding.end_offset) == (at.header.base_offset, at.header.next_offset)
    assert finding.replicas == LABELS[2:]


def test_a_hole_that_all_replicas_have_is_named(replicas: list[Path]) -> None:
    places = [planting.place(each, 2, 1) for each in replicas]
    for each in places:
        planting.remove(each)
    finding = the_only(look(replicas))
    header = places[0].header
    assert finding.kind is FindingKind.MISSING
    assert (finding.offset, finding.end_offset) == (header.base_offset, header.next_offset)
    assert finding.replicas == LABELS


def test_a_segment_that_is_gone_everywhere_is_a_hole(replicas: list[Path]) -> None:
    for each in replicas:
        gone, following = planting.segments(each)[2:4]
        gone.unlink()
    finding = the_only(look(replicas))
    assert (finding.kind, finding.replicas) == (FindingKind.MISSING, LABELS)
    assert (finding.offset, finding.end_offset) == (int(gone.stem), int(following.stem))


def test_a_log_whose_start_is_gone_without_a_snapshot_is_named(replicas: list[Path]) -> None:
    planting.segments(replicas[1])[0].unlink()
    for each in planting.snapshots(replicas[1]):
        each.unlink()
    finding = the_only(look(replicas))
    assert (finding.kind, finding.replicas, finding.offset) == (
        FindingKind.BEGINS_LATE,
        LABELS[1:2],
        0,
    )


def set_applied(storage_dir: Path, offset: int) -> None:
    path = storage_dir / PARTITION_DIRECTORY / QUORUM_STATE
    path.write_text(json.dumps({**json.loads(path.read_text()), "appliedOffset": offset}))


def test_a_torn_tail_is_told_apart_from_damage(replicas: list[Path]) -> None:
    at = planting.place(replicas[1], -1, -1)
    set_applied(replicas[1], at.header.base_offset)
    planting.cut(at, 70)
    found = look(replicas)
    assert found.is_sound
    notes = {each.kind: each for each in found.findings}
    assert set(notes) == {FindingKind.TORN_TAIL, FindingKind.LAG}
    assert notes[FindingKind.TORN_TAIL].replicas == notes[FindingKind.LAG].replicas == LABELS[1:2]
    assert notes[FindingKind.TORN_TAIL].offset == at.header.base_offset
    assert notes[FindingKind.TORN_TAIL].position == at.position


def test_a_torn_tail_below_what_was_committed_is_damage(replicas: list[Path]) -> None:
    at = planting.place(replicas[1], -1, -1)
    set_applied(replicas[1], at.header.next_offset)
    planting.cut(at, 70)
    finding = the_only(look(replicas))
    assert (finding.kind, finding.offset) == (FindingKind.ENDS_EARLY, at.header.base_offset)
    assert finding.end_offset == at.header.next_offset


def test_the_same_cut_in_a_closed_segment_is_damage(replicas: list[Path]) -> None:
    at = planting.place(replicas[1], 1, -1)
    planting.cut(at, 70)
    finding = the_only(look(replicas))
    assert (finding.kind, finding.offset) == (FindingKind.NO_BATCH, at.header.base_offset)
    assert finding.end_offset == at.header.next_offset


def test_a_stale_replica_is_told_apart_from_damage(replicas: list[Path]) -> None:
    for each in planting.snapshots(replicas[2])[1:]:
        each.unlink()
    keep = int(planting.snapshots(replicas[2])[0].name[:20])
    for each in planting.segments(replicas[2]):
        if int(each.stem) > keep:
            each.unlink()
            planting.forget_indexes(each)
    set_applied(replicas[2], 0)
    found = look(replicas)
    assert found.is_sound
    (note,) = found.findings
    assert (note.kind, note.replicas) == (FindingKind.LAG, LABELS[2:])
    assert note.end_offset == found.replicas[0].end_offset
    assert "known to be committed" in note.what


def test_several_faults_on_several_replicas_are_all_named(replicas: list[Path]) -> None:
    value = planting.place(replicas[0], 1, 1)
    flipped = planting.place(replicas[1], 2, 1)
    missing = planting.place(replicas[2], 3, 0)
    planting.change_value(value)
    planting.flip_byte(flipped)
    planting.remove(missing)
    found = damages(look(replicas))
    assert [(each.kind, each.offset, each.replicas) for each in found] == [
        (FindingKind.DIFFERENT_RECORDS, value.header.base_offset, LABELS[:1]),
        (FindingKind.BAD_CRC, flipped.header.base_offset, LABELS[1:2]),
        (FindingKind.MISSING, missing.header.base_offset, LABELS[2:]),
    ]


def test_without_a_majority_nobody_is_blamed(replicas: list[Path]) -> None:
    planting.change_value(planting.place(replicas[0], 1, 1))
    finding = the_only(look(replicas[:2]))
    assert (finding.kind, finding.replicas, finding.against) == (
        FindingKind.DIFFERENT_RECORDS,
        LABELS[:2],
        (),
    )
    assert "no majority" in finding.what


def test_logs_that_end_in_different_epochs_are_sound_if_nothing_of_it_was_committed(
    replicas: list[Path],
) -> None:
    at = planting.place(replicas[1], -1, -1)
    for each in replicas:
        set_applied(each, at.header.base_offset)
    for each in (replicas[0], replicas[2]):
        planting.change_epoch(planting.place(each, -1, -1), at.header.epoch + 1)
        raise_epoch(each, at.header.epoch + 1)
    found = look(replicas)
    assert found.is_sound
    (note,) = found.findings
    assert (note.kind, note.replicas) == (FindingKind.UNCOMMITTED_TAIL, LABELS[1:2])
    assert note.offset == at.header.base_offset
    set_applied(replicas[0], at.header.next_offset)
    finding = the_only(look(replicas))
    assert (finding.kind, finding.replicas) == (FindingKind.DIFFERENT_EPOCH, LABELS[1:2])


def raise_epoch(storage_dir: Path, epoch: int) -> None:
    path = storage_dir / PARTITION_DIRECTORY / QUORUM_STATE
    path.write_text(json.dumps({**json.loads(path.read_text()), "leaderEpoch": epoch}))


def test_directories_of_different_clusters_are_a_wrong_use(
    replicas: list[Path], tmp_path: Path
) -> None:
    other = Cluster(tmp_path / "other", size=1)
    other.format()
    other.start()
    other.wait_ready()
    other.stop_all()
    with pytest.raises(BadReplicas, match="different clusters"):
        look([replicas[0], other.storage_dir(1)])
    with pytest.raises(BadReplicas, match="the same directory"):
        look([replicas[0], replicas[0] / PARTITION_DIRECTORY])


def test_a_backup_is_of_the_cluster_that_it_names(tmp_path: Path) -> None:
    batches = random_batches(7, 30)
    for name, cluster_id in (("a", "one"), ("b", "one"), ("c", "two"), ("d", "")):
        (tmp_path / name).mkdir()
        put_backup(RealFileSystem(), tmp_path / name, batches, cluster_id=cluster_id)
    a, b, c, d = (tmp_path / name for name in "abcd")
    assert look([a, b, d]).is_sound
    with pytest.raises(BadReplicas, match=f"different clusters: {a} of one, {c} of two"):
        look([a, c])


def test_a_backup_whose_manifest_is_damaged_is_damaged(tmp_path: Path) -> None:
    put_backup(RealFileSystem(), tmp_path, random_batches(7, 30))
    (tmp_path / BACKUP_MANIFEST).write_text("{}")
    finding = the_only(look([tmp_path]))
    assert finding.kind is FindingKind.SMALL_FILE
    assert BACKUP_MANIFEST in finding.what


# --- snapshots


def test_a_snapshot_with_a_changed_value_is_not_the_state_of_the_log(replicas: list[Path]) -> None:
    path = planting.snapshots(replicas[1])[-1]
    planting.change_value(planting.batches(path)[-2])
    finding = the_only(look(replicas))
    assert (finding.kind, finding.replicas) == (FindingKind.SNAPSHOT_NOT_LOG, LABELS[1:2])
    assert (finding.offset, finding.file) == (int(path.name[:20]), str(path))
    assert finding.against == (LABELS[0], LABELS[2])


def test_a_snapshot_that_is_wrong_everywhere_is_found_by_the_log(replicas: list[Path]) -> None:
    for each in replicas:
        planting.change_value(planting.batches(planting.snapshots(each)[0])[-2])
    found = damages(look(replicas))
    assert found[0].kind is FindingKind.SNAPSHOT_NOT_LOG
    assert (found[0].replicas, found[0].against) == (LABELS, ())


def test_a_snapshot_alone_is_held_against_its_own_log(replicas: list[Path]) -> None:
    planting.change_value(planting.batches(planting.snapshots(replicas[0])[0])[-2])
    found = damages(look(replicas[:1]))
    assert found[0].kind is FindingKind.SNAPSHOT_NOT_LOG
    assert found[0].replicas == LABELS[:1]


def test_without_the_log_a_majority_of_snapshots_decides(replicas: list[Path]) -> None:
    for each in replicas:
        newest = planting.snapshots(each)[-1]
        for old in planting.snapshots(each)[:-1]:
            old.unlink()
        for segment in planting.segments(each):
            # The log goes on behind the snapshot.
            if planting.batches(segment)[-1].header.next_offset <= int(newest.name[:20]):
                segment.unlink()
                planting.forget_indexes(segment)
    assert look(replicas).is_sound
    planting.change_value(planting.batches(planting.snapshots(replicas[2])[-1])[-2])
    finding = the_only(look(replicas))
    assert finding.kind is FindingKind.SNAPSHOT_DIFFERS
    assert (finding.replicas, finding.against) == (LABELS[2:], LABELS[:2])
    assert "key key" in finding.what


def test_kafkas_snapshots_are_compared_without_the_times_of_their_writers(
    replicas: list[Path],
) -> None:
    newest = [planting.snapshots(each)[-1] for each in replicas]
    for number, path in enumerate(newest):
        planting.as_kafka_writes_it(path, b"a record", time_ms=1_700_000_000_000 + number)
    assert look(replicas).is_sound
    planting.as_kafka_writes_it(newest[1], b"another one", time_ms=1_700_000_000_000)
    finding = the_only(look(replicas))
    assert finding.kind is FindingKind.SNAPSHOT_DIFFERS
    assert (finding.replicas, finding.against) == (LABELS[1:2], (LABELS[0], LABELS[2]))


def test_a_flipped_byte_in_a_snapshot_is_damage(replicas: list[Path]) -> None:
    path = planting.snapshots(replicas[2])[0]
    planting.flip_byte(planting.batches(path)[-2])
    finding = the_only(look(replicas))
    assert (finding.kind, finding.replicas) == (FindingKind.SNAPSHOT_DAMAGED, LABELS[2:])
    assert "CRC" in finding.what


def test_a_snapshot_without_its_end_is_damage(replicas: list[Path]) -> None:
    path = planting.snapshots(replicas[2])[0]
    planting.cut(planting.batches(path)[-1], 0)
    finding = the_only(look(replicas))
    assert finding.kind is FindingKind.SNAPSHOT_DAMAGED
    assert "footer" in finding.what


# --- alone


def test_a_replica_alone_is_scrubbed(replicas: list[Path]) -> None:
    assert look(replicas[:1]).is_sound
    at = planting.place(replicas[0], 1, 0)
    planting.change_epoch(at, at.header.epoch + 5)
    found = damages(look(replicas[:1]))
    assert {each.kind for each in found} == {FindingKind.EPOCH_ORDER, FindingKind.UNKNOWN_EPOCH}
    (order,) = (each for each in found if each.kind is FindingKind.EPOCH_ORDER)
    assert order.offset == at.header.next_offset


def test_an_unreadable_quorum_state_is_damage(replicas: list[Path]) -> None:
    (replicas[0] / PARTITION_DIRECTORY / QUORUM_STATE).write_text("nothing")
    finding = the_only(look(replicas))
    assert (finding.kind, finding.replicas) == (FindingKind.SMALL_FILE, LABELS[:1])
