"""Replicas' directories: whose they are, cut into ranges, read back; beside running nodes, too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from quorumd.pipeline.files import (
    FileChanged,
    find_replicas,
    first_offset_since,
    plan_segment,
    plan_snapshot,
    read_bytes,
    read_rows,
)
from quorumd.pipeline.parse import DamagedBatch
from quorumd.raft.types import uuid_to_text
from quorumd.storage.directory import format_directory, open_directory
from quorumd.storage.errors import StorageError
from quorumd.storage.filesystem import RealFileSystem
from quorumd.storage.layout import PARTITION_DIRECTORY, index_path, log_path, time_index_path
from quorumd.storage.reader import TailKind
from quorumd.wire.control_records import KRaftVersion, KRaftVoters, LeaderChange
from quorumd.wire.records import Record, build_batch
from tests.pipeline.nodes import (
    FS,
    SEGMENT_BYTES,
    STORAGE_ID,
    contents,
    fill,
    make_node,
    offsets_in,
    plans_of,
    ranges_of,
    rows_in,
    segments_of,
    the_replica,
)
from tests.pipeline.parsed import ALL, parsed
from tests.server.snapshot_logs import Batches, expected_snapshot
from tests.storage.backups import put_backup
from tests.storage.helpers import START_MS, batch, open_log
from tests.support.kafka_controller import CLUSTER_ID, running_controller
from tests.support.kafka_jars import requires_java


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """The storage.dir of a stopped node: several closed segments with indexes, and an active one."""
    folder = tmp_path / "node-1"
    make_node(folder, 1)
    return folder


# --- whose they are


@pytest.mark.parametrize("below", ["", PARTITION_DIRECTORY])
def test_a_nodes_directory_says_whose_it_is(node: Path, below: str) -> None:
    replica = the_replica(node / below)
    assert (replica.replica_id, replica.cluster_id) == (1, "a cluster")
    assert replica.storage_id == uuid_to_text(STORAGE_ID)
    assert replica.label == "replica 1"
    assert [each.path for each in replica.segments] == segments_of(node)
    assert [each.may_be_unfinished for each in replica.segments] == [
        *[False] * (len(replica.segments) - 1),
        True,
    ]
    assert [each.next_base for each in replica.segments[:-1]] == [
        each.base_offset for each in replica.segments[1:]
    ]
    origin = ranges_of(replica)[0].origin
    assert origin[:3] == (1, uuid_to_text(STORAGE_ID), str(segments_of(node)[0]))


def test_a_relative_path_and_a_link_lead_to_the_same_node(
    node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (node.parent / "link").symlink_to(node / PARTITION_DIRECTORY)
    assert the_replica(node.parent / "link").replica_id == 1
    monkeypatch.chdir(node / PARTITION_DIRECTORY)
    assert the_replica(Path()).replica_id == 1


def test_several_directories_and_a_directory_of_several(node: Path) -> None:
    for name, node_id in (("node-3", 3), ("node-2", 2)):
        make_node(node.parent / name, node_id, count=20)
    (node.parent / "notes.txt").write_text("not a directory")
    (node.parent / "other").mkdir()
    ids = [replica.replica_id for replica in find_replicas([node.parent])]
    assert ids == [1, 2, 3]
    paths = [node.parent / "node-3", str(node), node.parent / "node-2" / PARTITION_DIRECTORY]
    assert [replica.replica_id for replica in find_replicas(paths)] == [3, 1, 2]


def test_a_directory_as_kafka_writes_it(node: Path) -> None:
    text = (
        "#\n#Thu Nov 19 20:00:00 UTC 2026\nnode.id=7\n"
        f"directory.id={uuid_to_text(STORAGE_ID)}\nversion=1\ncluster.id=cXVvcnVtZC10ZXN0LTAwMQ\n"
    )
    (node / "meta.properties").write_text(text)
    replica = the_replica(node)
    assert (replica.replica_id, replica.cluster_id) == (7, "cXVvcnVtZC10ZXN0LTAwMQ")
    assert replica.storage_id == uuid_to_text(STORAGE_ID)


def test_without_meta_properties_nobody_knows_whose_it_is(node: Path) -> None:
    (node / "meta.properties").unlink()
    replica = the_replica(node)
    assert (replica.replica_id, replica.storage_id, replica.problem) == (None, None, "")
    assert replica.label == str(node)
    (node / "meta.properties").write_text("version=9\n")
    replica = the_replica(node)
    assert replica.replica_id is None
    assert "version is '9'" in replica.problem
    assert len(ranges_of(replica)) > 3


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("missing", "there is no such directory"),
        ("file", "this is a file"),
        ("empty", "there is no log in this directory"),
        ("formatted", "this node has never been started"),
    ],
)
def test_a_path_without_a_log_is_named(tmp_path: Path, name: str, what: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "empty" / "deeper" / "node").mkdir(parents=True)
    format_directory(FS, tmp_path / "formatted", node_id=1)
    with pytest.raises(StorageError, match=what) as caught:
        find_replicas([tmp_path / name])
    assert str(tmp_path / name) in str(caught.value)
    assert "storage.dir" in str(caught.value)


# --- ranges


@pytest.mark.parametrize("range_bytes", [1, 2_000, 5_000, 1 << 20])
@pytest.mark.parametrize("has_indexes", [True, False])
def test_ranges_are_all_of_the_log_once(node: Path, range_bytes: int, has_indexes: bool) -> None:
    if not has_indexes:
        for path in segments_of(node):
            path.with_suffix(".index").unlink(missing_ok=True)
    replica = the_replica(node)
    assert len(replica.segments) > 4
    expected = 0
    for segment, plan in zip(replica.segments, plans_of(replica, range_bytes), strict=True):
        assert plan.damages == ()
        data = segment.path.read_bytes()
        position = 0
        for each in plan.ranges:
            assert each.origin.position == position
            assert each.start_offset == expected
            assert read_bytes(each) == data[position : position + each.size_bytes]
            assert offsets_in(each) == list(range(each.start_offset, each.end_offset))
            position += each.size_bytes
            expected = each.end_offset
        assert position == len(data) == plan.tail.position
        assert plan.tail.kind is TailKind.NONE
        assert plan.end_offset == expected
        if range_bytes == 5_000:
            # A batch has up to 6.5 KB here, and an entry of the index covers 4 KiB.
            assert all(each.size_bytes <= 5_000 + 6_500 for each in plan.ranges)
            assert len(plan.ranges) > 1 or len(data) <= range_bytes
    assert expected > 300


def test_a_closed_segment_with_an_index_is_not_walked_through(
    node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = the_replica(node).segments[0]
    sizes: list[int] = []

    class Counting(RealFileSystem):
        def pread(self, handle: int, size: int, at: int) -> bytes:
            sizes.append(size)
            return super().pread(handle, size, at)

    without = plan_segment(segment, range_bytes=100)
    plan = plan_segment(segment, range_bytes=5_000, fs=Counting())
    assert sum(sizes) < segment.path.stat().st_size / 2 + 5_000
    starts = {each.origin.position for each in without.ranges}
    assert {each.origin.position for each in plan.ranges} <= starts


def spoil_order(data: bytes) -> bytes:
    return data[8:16] + data[:8] + data[16:]


def spoil_position(data: bytes) -> bytes:
    entries = [data[at : at + 8] for at in range(0, len(data), 8)]
    return b"".join(
        each[:4] + (int.from_bytes(each[4:], "big") + 1).to_bytes(4, "big") for each in entries
    )


def spoil_offset(data: bytes) -> bytes:
    entries = [data[at : at + 8] for at in range(0, len(data), 8)]
    return b"".join(
        (int.from_bytes(each[:4], "big") + 1).to_bytes(4, "big") + each[4:] for each in entries
    )


@pytest.mark.parametrize(
    "spoil",
    [
        spoil_order,
        spoil_position,
        spoil_offset,
        lambda data: data[:-3],
        lambda data: b"",
        lambda data: data[:8] + b"\x7f\xff\xff\xff" * 2,
        lambda data: b"\xff" * len(data),
    ],
)
def test_an_index_that_is_not_sound_is_not_used(node: Path, spoil: object) -> None:
    assert callable(spoil)
    before = []
    for path in segments_of(node)[:-1]:
        index = path.with_suffix(".index")
        index.write_bytes(spoil(index.read_bytes()))
    without = ranges_of(the_replica(node))
    for path in segments_of(node)[:-1]:
        path.with_suffix(".index").unlink()
    before = ranges_of(the_replica(node))
    assert without == before


def test_zeros_behind_the_entries_of_an_index_are_no_entries(node: Path) -> None:
    """A Kafka controller that was killed leaves them."""
    before = ranges_of(the_replica(node))
    for path in segments_of(node)[:-1]:
        with path.with_suffix(".index").open("ab") as file:
            file.write(bytes(80))
    assert ranges_of(the_replica(node)) == before


def test_a_backup_has_no_unfinished_segment(tmp_path: Path) -> None:
    batches = Batches(Random(1))
    batches.add_control(LeaderChange(leader_id=1))
    for _ in range(30):
        batches.add_records(3)
    put_backup(FS, tmp_path, batches, first=10, snapshot_after=12)
    replica = the_replica(tmp_path)
    assert not any(each.may_be_unfinished for each in replica.segments)
    assert replica.replica_id is None
    found = [row for each in ranges_of(replica, 100) for row in rows_in(each)]
    assert found == parsed(b"".join(batches.data[10:]))
    assert [each.end_offset for each in replica.snapshots] == [batches.ends[12]]


def test_a_snapshots_ranges_are_all_of_its_records(tmp_path: Path) -> None:
    batches = Batches(Random(2))
    batches.add_control(KRaftVersion(kraft_version=1), KRaftVoters())
    count = 40
    for number in range(count):
        # So large that the snapshot has several batches.
        record = Record(timestamp=START_MS, key=b"%03d" % number, value=bytes(70_000))
        batches.add(build_batch([record], base_offset=batches.ends[-1], epoch=1), 1)
    snapshot_id, data = expected_snapshot(batches, batches.ends[-1])
    path = tmp_path / f"{snapshot_id[0]:020d}-{snapshot_id[1]:010d}.checkpoint"
    path.write_bytes(data)
    replica = the_replica(tmp_path)
    assert replica.segments == ()
    (snapshot,) = replica.snapshots
    plan = plan_snapshot(snapshot, range_bytes=500_000)
    assert plan.damages == ()
    assert len(plan.ranges) > 3
    assert sum(each.size_bytes for each in plan.ranges) == len(data)
    offsets = [offset for each in plan.ranges for offset in offsets_in(each)]
    assert offsets == list(range(2, 2 + count))
    types = [
        name
        for each in plan.ranges
        for part in read_rows("control", each, 0, ALL)
        for name in part["type_name"].to_pylist()
    ]
    assert types == ["SnapshotHeader", "KRaftVersion", "KRaftVoters", "SnapshotFooter"]

    path.write_bytes(data[:-10])
    (damage,) = plan_snapshot(snapshot).damages
    assert damage.file == str(path)
    assert "where" in damage.what


# --- beside running nodes


def test_nothing_is_changed_and_no_lock_is_taken(node: Path) -> None:
    directory = open_directory(FS, node, node_id=1)
    before = contents(node)
    replica = the_replica(node)
    for table in ("records", "batches", "control"):
        for each in ranges_of(replica):
            list(read_rows(table, each, 0, ALL))
    first_offset_since(replica.segments, START_MS + 100)
    assert contents(node) == before
    directory.close()


@pytest.mark.long
def test_what_a_node_has_written_ahead_is_no_data_and_what_it_appends_is_found(node: Path) -> None:
    log = open_log(FS, node / PARTITION_DIRECTORY, segment_bytes=SEGMENT_BYTES)
    start = log.log_end_offset
    for step in range(1, 12):
        fill(log, start, start + 10 * step)
        start = log.log_end_offset
        plans = plans_of(the_replica(node))
        assert [plan.damages for plan in plans] == [()] * len(plans)
        assert plans[-1].end_offset == start
        assert plans[-1].tail.kind is TailKind.ZEROS
        found = [offset for plan in plans for each in plan.ranges for offset in offsets_in(each)]
        assert found == list(range(start))
    log.close()


def test_a_write_that_is_not_finished_is_told_apart_from_damage(node: Path) -> None:
    last = segments_of(node)[-1]
    end = plans_of(the_replica(node))[-1].end_offset
    whole = last.read_bytes()
    more = batch(end, count=20, epoch=9, value_bytes=100)
    for size in range(20, len(more), 37):
        last.write_bytes(whole + more[:size])
        plan = plans_of(the_replica(node))[-1]
        assert plan.damages == ()
        assert (plan.end_offset, plan.tail.position) == (end, len(whole))
        assert plan.tail.kind is TailKind.TORN
    # The same in a backup, or where another segment follows, is damage.
    following = log_path(node / PARTITION_DIRECTORY, end + 20)
    following.write_bytes(batch(end + 20, epoch=9))
    plan = plans_of(the_replica(node))[-2]
    (damage,) = plan.damages
    assert (damage.offset, damage.position, damage.file) == (end, len(whole), str(last))
    assert plan.tail.kind is TailKind.DAMAGE


def test_a_range_that_a_node_has_deleted_cut_or_rewritten_is_not_taken_for_damage(
    node: Path,
) -> None:
    replica = the_replica(node)
    each = ranges_of(replica)[-1]
    path = Path(str(each.origin.file))
    data = path.read_bytes()
    at = each.origin.position
    shorter = data[: at + each.size_bytes - 1]
    other = batch(each.start_offset - 1, count=40, value_bytes=2_000)
    for changed in (shorter, data[:at] + other):
        path.write_bytes(changed)
        with pytest.raises(FileChanged, match="Read again"):
            offsets_in(each)
    path.unlink()
    with pytest.raises(FileChanged, match="the file is gone"):
        offsets_in(each)
    with pytest.raises(StorageError, match="no such file any more"):
        plan_segment(replica.segments[-1])


def test_bytes_that_change_while_they_are_read_are_read_again(
    node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    each = ranges_of(the_replica(node))[-1]
    path = Path(str(each.origin.file))
    good = path.read_bytes()
    bad = bytearray(good)
    bad[-1] ^= 1
    path.write_bytes(bad)
    with pytest.raises(DamagedBatch, match="CRC"):
        offsets_in(each)
    answers = iter([bytes(bad), good])

    def pread(self: RealFileSystem, handle: int, size: int, at: int) -> bytes:
        return next(answers)[at : at + size]

    monkeypatch.setattr(RealFileSystem, "pread", pread)
    with pytest.raises(FileChanged, match="written while it was read"):
        offsets_in(each)


# --- times


def brute_force(node: Path, timestamp_ms: int) -> int | None:
    rows = parsed(b"".join(path.read_bytes() for path in segments_of(node)))
    found = (row.offset for row in rows if (row.timestamp or 0) >= timestamp_ms)
    return next(found, None)


def spoiled_times(node: Path) -> Iterator[None]:
    """With sound time indexes, with foreign ones, without any."""
    yield
    for path in segments_of(node)[:-1]:
        times = time_index_path(path.parent, int(path.stem))
        times.write_bytes(times.read_bytes()[:-12] + bytes(12))
    yield
    for path in segments_of(node)[:-1]:
        time_index_path(path.parent, int(path.stem)).unlink()
    yield


def test_the_first_offset_since_a_time(node: Path) -> None:
    for _ in spoiled_times(node):
        replica = the_replica(node)
        lasts = [plan.end_offset - 1 for plan in plans_of(replica)]
        for delta in (-5, 0, 1, 57, 120, 250, 305, 10**6, *lasts, lasts[0] + 1):
            assert first_offset_since(replica.segments, START_MS + delta) == brute_force(
                node, START_MS + delta
            )
        assert first_offset_since(replica.segments, (1 << 63) - 1) is None


def test_a_segment_that_is_older_as_a_whole_is_not_read(node: Path) -> None:
    replica = the_replica(node)
    last = plans_of(replica)[-1]
    for path in segments_of(node)[:-1]:
        path.unlink()
    newest = last.end_offset - 1
    assert first_offset_since(replica.segments, START_MS + newest) == newest


def test_ranges_are_plain_values(node: Path) -> None:
    """They go to other machines."""
    import pickle

    ranges = ranges_of(the_replica(node))
    assert pickle.loads(pickle.dumps(ranges)) == ranges
    assert json.dumps(ranges)
    assert index_path(node, 0).suffix == ".index"


# --- Kafka's own


@requires_java
@pytest.mark.timeout(300)
def test_a_real_controllers_directory_is_read_while_it_runs(tmp_path: Path) -> None:
    settings = {"metadata.log.max.record.bytes.between.snapshots": "200"}
    with running_controller(tmp_path / "kafka", node_id=7, extra=settings) as controller:
        replica = the_replica(controller.data_folder)
        running = [row for each in ranges_of(replica) for row in rows_in(each)]
        controller.kill()
        killed = the_replica(controller.log_folder)
    assert (replica.replica_id, replica.cluster_id) == (7, CLUSTER_ID)
    assert replica.storage_id == killed.storage_id is not None
    plans = plans_of(killed)
    assert [plan.damages for plan in plans] == [()] * len(plans)
    ranges = [each for plan in plans for each in plan.ranges]
    found = [row for each in ranges for row in rows_in(each)]
    assert found[: len(running)] == running
    assert [row.offset for row in found] == list(range(plans[-1].end_offset))
    control = [
        row
        for each in ranges
        for part in read_rows("control", each, 0, ALL)
        for row in part.to_pylist()
    ]
    assert {row["type_name"] for row in control} >= {"LeaderChange", "KRaftVersion", "KRaftVoters"}
    snapshots = [plan_snapshot(snapshot) for snapshot in killed.snapshots]
    assert snapshots
    for plan in snapshots:
        assert plan.damages == ()
        offsets = {offset for each in plan.ranges for offset in offsets_in(each)}
        assert offsets <= {plan.end_offset - 1}
