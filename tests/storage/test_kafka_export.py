"""What is taken of a copy for a controller, and when nothing is."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from quorumd.raft.types import Address, SnapshotId, uuid_to_text
from quorumd.storage.directory import format_directory, open_directory
from quorumd.storage.epoch_checkpoint import parse_epochs
from quorumd.storage.errors import DamagedLog, StorageError
from quorumd.storage.filesystem import Buffer, RealFileSystem
from quorumd.storage.kafka_export import (
    EPOCH_GAP,
    ExportRefused,
    KafkaBroker,
    plan_export,
    write_export,
)
from quorumd.storage.layout import LOCK, log_path, partition_directory, snapshot_path
from quorumd.storage.meta_properties import LogOwner
from quorumd.storage.quorum_state import QuorumState, save_quorum_state
from quorumd.storage.verify.stopped import NodeRuns, lock_stopped
from quorumd.wire.control_records import (
    KRaftVersion,
    KRaftVoter,
    KRaftVoters,
    SnapshotFooter,
    SnapshotHeader,
    encode_control_batch,
)
from quorumd.wire.records import Record, build_batch
from tests.storage.helpers import START_MS

FS = RealFileSystem()
VOTERS = tuple(KRaftVoter(voter_id=node, voter_directory_id=UUID(int=70 + node)) for node in (1, 2))
COMMITTED = 5
END = 7
META = "meta.properties"


def batch(base_offset: int, epoch: int, count: int = 1) -> bytes:
    records = [Record(timestamp=START_MS + base_offset, value=b"v") for _ in range(count)]
    return build_batch(records, base_offset=base_offset, epoch=epoch)


def registered(broker_id: int, host: str, protocol: int = 0) -> bytes:
    """A RegisterBrokerRecord with one listener."""
    name = host.encode()
    listener = b"\2P" + bytes((len(name) + 1,)) + name + struct.pack(">Hh", 9092, protocol) + b"\0"
    begin = b"\x01\x00\x00" + struct.pack(">i16sq", broker_id, b"\0" * 16, 1)
    return begin + b"\2" + listener + b"\1" + b"\0" + b"\0" + b"\0"


def snapshot(snapshot_id: SnapshotId, *values: bytes) -> bytes:
    """One of Kafka's, with a record for each value."""
    epoch = snapshot_id.epoch
    header = SnapshotHeader(last_contained_log_timestamp=START_MS)
    kraft = (KRaftVersion(kraft_version=1), KRaftVoters(voters=VOTERS))
    records = [Record(timestamp=START_MS, value=value) for value in values]
    parts = [
        encode_control_batch([header, *kraft], base_offset=0, epoch=epoch, timestamp_ms=START_MS),
        build_batch(records, base_offset=3, epoch=epoch),
        encode_control_batch(
            [SnapshotFooter()], base_offset=3 + len(values), epoch=epoch, timestamp_ms=START_MS
        ),
    ]
    return b"".join(parts)


def observed(
    folder: Path,
    *,
    owner: LogOwner = LogOwner.KAFKA,
    committed: int = COMMITTED,
    voters: tuple[KRaftVoter, ...] = VOTERS,
) -> Path:
    """Offsets 0 to 6 in two segments and three epochs; the voters are named at 0."""
    directory = folder / "observer"
    format_directory(FS, directory, node_id=9, cluster_id="c", log_owner=owner)
    log = partition_directory(directory)
    named = encode_control_batch(
        [KRaftVoters(voters=voters)], base_offset=0, epoch=1, timestamp_ms=START_MS
    )
    log_path(log, 0).write_bytes(named + batch(1, 1, 2))
    log_path(log, 3).write_bytes(batch(3, 2, 2) + batch(5, 4) + batch(6, 4))
    save_quorum_state(FS, log, QuorumState(leader_epoch=6, applied_offset=committed))
    return directory


def test_the_copy_is_cut_at_the_high_watermark(tmp_path: Path) -> None:
    source = observed(tmp_path)
    records = [Record(timestamp=START_MS + later, value=b"v") for later in (3, 9)]
    segment = log_path(partition_directory(source), 3)
    taken = build_batch(records, base_offset=3, epoch=2)
    segment.write_bytes(taken + batch(5, 4) + batch(6, 4))
    plan = plan_export(source, 2)
    assert (plan.start_offset, plan.end_offset, plan.log_end) == (0, COMMITTED, END)
    assert plan.newest_ms == START_MS + 9
    assert plan.left_out == END - COMMITTED
    target = tmp_path / "controller"
    write_export(plan, target)
    log = partition_directory(target)
    assert log_path(log, 3).read_bytes() == taken
    assert parse_epochs((log / "leader-epoch-checkpoint").read_bytes()) == [(1, 0), (2, 3)]
    state = json.loads((log / "quorum-state").read_text())
    assert state == {
        "leaderId": -1,
        "leaderEpoch": 6 + EPOCH_GAP,
        "votedId": -1,
        "votedDirectoryId": "AAAAAAAAAAAAAAAAAAAAAA",
        "data_version": 1,
    }
    assert set((target / META).read_text().splitlines()) >= {
        "version=1",
        "cluster.id=c",
        "node.id=2",
        f"directory.id={uuid_to_text(UUID(int=72))}",
    }


def test_the_tail_is_kept_if_that_is_asked_for(tmp_path: Path) -> None:
    source = observed(tmp_path)
    plan = plan_export(source, 1, keep_tail=True)
    assert (plan.end_offset, plan.left_out, plan.known_end) == (END, 0, COMMITTED)
    write_export(plan, tmp_path / "controller")
    for base_offset in (0, 3):
        copies = [
            log_path(partition_directory(each), base_offset).read_bytes()
            for each in (source, tmp_path / "controller")
        ]
        assert copies[0] == copies[1]


def test_a_witness_s_tail_is_taken_unless_it_is_dropped(tmp_path: Path) -> None:
    """What it has acknowledged may be committed at the leader, and acknowledged to a client."""
    source = observed(tmp_path, voters=(*VOTERS, KRaftVoter(voter_id=9)))
    plan = plan_export(source, 1)
    assert (plan.is_of_voter, plan.end_offset, plan.left_out) == (True, END, 0)
    assert plan_export(source, 1, keep_tail=False).end_offset == COMMITTED
    assert not plan_export(observed(tmp_path / "other"), 1).is_of_voter


class CountedReads(RealFileSystem):
    """Notes each file that is opened."""

    def __init__(self) -> None:
        self.opened: list[str] = []

    def open(self, path: Path, *, writable: bool = False, create: bool = False) -> int:
        self.opened.append(path.name)
        return super().open(path, writable=writable, create=create)


@pytest.mark.parametrize("keep_tail", [None, True, False])
def test_what_is_taken_is_decided_by_one_reading_of_the_log(
    tmp_path: Path, keep_tail: bool | None
) -> None:
    fs = CountedReads()
    source = observed(tmp_path, voters=(*VOTERS, KRaftVoter(voter_id=9)))
    plan_export(source, 1, keep_tail=keep_tail, fs=fs)
    segments = [name for name in fs.opened if name.endswith(".log")]
    assert sorted(segments) == [log_path(tmp_path, at).name for at in (0, 3)]


def test_what_comes_with_the_tail_counts_if_the_tail_is_taken(tmp_path: Path) -> None:
    """A broker, an epoch and a voter set that are not known to be committed."""
    source = observed(tmp_path, voters=(*VOTERS, KRaftVoter(voter_id=9)))
    log = partition_directory(source)
    third = KRaftVoter(voter_id=3, voter_directory_id=UUID(int=73))
    named = encode_control_batch(
        [KRaftVoters(voters=(*VOTERS, third))], base_offset=5, epoch=4, timestamp_ms=START_MS
    )
    record = Record(timestamp=START_MS, value=registered(12, "new", 1))
    broker = build_batch([record], base_offset=6, epoch=5)
    log_path(log, 3).write_bytes(batch(3, 2, 2) + named + broker)
    taken = plan_export(source, 1)
    assert (taken.is_of_voter, taken.voters) == (True, (1, 2, 3))
    assert taken.epochs == ((1, 0), (2, 3), (4, 5), (5, 6))
    assert [each.id for each in taken.brokers] == [12]
    left = plan_export(source, 1, keep_tail=False)
    assert (left.end_offset, left.log_end, left.voters) == (COMMITTED, END, (1, 2, 9))
    assert left.epochs == ((1, 0), (2, 3))
    assert left.brokers == ()


def test_the_brokers_that_the_copy_names_are_those_that_are_registered_last(tmp_path: Path) -> None:
    source = observed(tmp_path)
    log = partition_directory(source)
    moved = Record(timestamp=START_MS, value=registered(12, "moved", 1))
    values = [registered(11, "b11"), registered(12, "b12"), registered(13, "gone"), b"\x01\x00?"]
    first = [Record(timestamp=START_MS, value=value) for value in values]
    unregistered = Record(
        timestamp=START_MS, value=b"\x01\x01\x00" + struct.pack(">iq", 13, 1) + b"\0"
    )
    batches = [
        build_batch(first, base_offset=7, epoch=4),
        build_batch([moved, unregistered], base_offset=11, epoch=4),
    ]
    with log_path(log, 3).open("ab") as file:
        file.write(b"".join(batches))
    assert plan_export(source, 1).brokers == ()
    assert plan_export(source, 1, keep_tail=True).brokers == (
        KafkaBroker(11, ((Address("b11", 9092), 0),)),
        KafkaBroker(12, ((Address("moved", 9092), 1),)),
    )


def test_a_copy_that_begins_with_a_snapshot_of_kafkas_names_its_brokers(tmp_path: Path) -> None:
    source = observed(tmp_path)
    log = partition_directory(source)
    log_path(log, 0).unlink()
    data = snapshot(SnapshotId(3, 1), registered(11, "b11"))
    snapshot_path(log, SnapshotId(3, 1)).write_bytes(data)
    plan = plan_export(source, 2)
    assert (plan.start_offset, plan.end_offset, plan.voters) == (3, COMMITTED, (1, 2))
    assert plan.brokers == (KafkaBroker(11, ((Address("b11", 9092), 0),)),)
    write_export(plan, tmp_path / "controller")
    copied = partition_directory(tmp_path / "controller")
    assert snapshot_path(copied, SnapshotId(3, 1)).read_bytes() == data
    assert log_path(copied, 3).read_bytes() == batch(3, 2, 2)


def test_the_newest_snapshot_says_which_brokers_there_are(tmp_path: Path) -> None:
    """One that is not in it any more has been unregistered."""
    source = observed(tmp_path)
    log = partition_directory(source)
    older, newer = SnapshotId(2, 1), SnapshotId(3, 1)
    snapshot_path(log, older).write_bytes(snapshot(older, registered(11, "b11")))
    snapshot_path(log, newer).write_bytes(snapshot(newer, registered(12, "b12")))
    log_path(log, 0).unlink()
    plan = plan_export(source, 1)
    assert ([each.id for each in plan.brokers], plan.snapshots) == ([12], (older, newer))


def test_a_snapshot_alone_makes_a_controller_with_an_epoch_above_its_own(tmp_path: Path) -> None:
    source = observed(tmp_path)
    log = partition_directory(source)
    alone = SnapshotId(9, 40)
    snapshot_path(log, alone).write_bytes(snapshot(alone, registered(11, "b11")))
    for base_offset in (0, 3):
        log_path(log, base_offset).unlink()
    plan = plan_export(source, 1)
    assert (plan.epochs, plan.newest_ms, plan.leader_epoch) == ((), -1, 40 + EPOCH_GAP)


def test_a_log_that_goes_on_in_the_epoch_of_its_snapshot_has_an_epoch(tmp_path: Path) -> None:
    source = observed(tmp_path)
    log = partition_directory(source)
    before = SnapshotId(3, 2)
    snapshot_path(log, before).write_bytes(snapshot(before, registered(11, "b11")))
    log_path(log, 0).unlink()
    assert plan_export(source, 1).epochs == ((2, 3),)


def test_a_snapshot_that_came_after_the_copy_was_checked_is_left_out(tmp_path: Path) -> None:
    source = observed(tmp_path)
    plan = plan_export(source, 1)
    late = snapshot_path(partition_directory(source), SnapshotId(5, 2))
    late.write_bytes(snapshot(SnapshotId(5, 2), registered(11, "b11")))
    write_export(plan, tmp_path / "controller")
    assert not (partition_directory(tmp_path / "controller") / late.name).exists()


def test_where_configuration_names_the_voters_the_state_names_none(tmp_path: Path) -> None:
    """kraft.version 0: a controller reads version 0 of its state then."""
    source = observed(tmp_path)
    log_path(partition_directory(source), 0).write_bytes(batch(0, 1, 3))
    plan = plan_export(source, 1)
    assert (plan.has_voters, plan.voters, plan.is_of_voter) == (False, (), False)
    write_export(plan, tmp_path / "controller")
    log = partition_directory(tmp_path / "controller")
    assert json.loads((log / "quorum-state").read_text()) == {
        "clusterId": "",
        "leaderId": -1,
        "leaderEpoch": 6 + EPOCH_GAP,
        "votedId": -1,
        "appliedOffset": 0,
        "currentVoters": [],
        "data_version": 0,
    }


@pytest.mark.pure
def test_a_long_segment_is_copied_piece_by_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = observed(tmp_path)
    plan = plan_export(source, 1, keep_tail=True)
    fs = Pieces()
    monkeypatch.setattr("quorumd.storage.kafka_export._STEP_BYTES", 1)
    write_export(plan, tmp_path / "controller", fs=fs)
    copied = partition_directory(tmp_path / "controller")
    first, last = (log_path(copied, at).read_bytes() for at in (0, 3))
    assert last == batch(3, 2, 2) + batch(5, 4) + batch(6, 4)
    assert (len(fs.sizes), sum(fs.sizes)) == (5, len(first) + len(last))


def test_a_segment_that_would_hold_nothing_is_left_out(tmp_path: Path) -> None:
    plan = plan_export(observed(tmp_path, committed=3), 1)
    write_export(plan, tmp_path / "controller")
    log = partition_directory(tmp_path / "controller")
    assert log_path(log, 0).exists()
    assert not log_path(log, 3).exists()


def test_a_node_that_is_no_voter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ExportRefused, match="node 9 is no voter of this quorum, the voters are 1, 2"
    ):
        plan_export(observed(tmp_path), 9)


def test_a_voter_without_a_directory_id_is_refused(tmp_path: Path) -> None:
    """A controller with another one would not be that voter."""
    with pytest.raises(ExportRefused, match="node 9 is no voter"):
        plan_export(observed(tmp_path, voters=(*VOTERS, KRaftVoter(voter_id=9))), 9)


def test_quorumds_own_log_is_refused(tmp_path: Path) -> None:
    """A Kafka controller would end at the first record that it does not know."""
    with pytest.raises(ExportRefused, match="does not hold the log of a Kafka quorum"):
        plan_export(observed(tmp_path, owner=LogOwner.QUORUMD), 1)


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    source = observed(tmp_path)
    node = open_directory(FS, source, node_id=9)
    try:
        with pytest.raises(NodeRuns, match="a node runs"), lock_stopped(source):
            pass
    finally:
        node.close()
    with lock_stopped(source):
        pass


def test_nothing_is_written_of_a_copy_that_is_damaged(tmp_path: Path) -> None:
    source = observed(tmp_path)
    path = log_path(partition_directory(source), 3)
    sound = path.read_bytes()
    for at in range(20, len(batch(3, 2, 2))):
        path.write_bytes(sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :])
        with pytest.raises(DamagedLog):
            plan_export(source, 1)


@pytest.mark.parametrize(
    ("batches", "reason"),
    [
        (batch(3, 2, 2) + batch(5, 1), "a batch of epoch 1 after one of epoch 2"),
        (batch(3, 0), "a batch of epoch 0 after one of epoch 1"),
        (batch(3, 2) + batch(5, 2), "a batch with offset 5 where 4 must follow"),
    ],
    ids=["in a segment", "from one segment to the next", "a gap"],
)
def test_nothing_is_written_of_a_copy_out_of_order(
    tmp_path: Path, batches: bytes, reason: str
) -> None:
    source = observed(tmp_path)
    log_path(partition_directory(source), 3).write_bytes(batches)
    with pytest.raises(DamagedLog, match=reason):
        plan_export(source, 1)


def test_half_a_batch_is_one_that_was_being_written_at_the_end_of_the_log_alone(
    tmp_path: Path,
) -> None:
    source = observed(tmp_path)
    first, last = (log_path(partition_directory(source), at) for at in (0, 3))
    sound = first.read_bytes()
    last.write_bytes(last.read_bytes() + batch(7, 4)[:40])
    assert plan_export(source, 1).log_end == END
    first.write_bytes(sound + batch(3, 1)[:40])
    with pytest.raises(DamagedLog):
        plan_export(source, 1)


def test_a_log_without_its_beginning_is_refused(tmp_path: Path) -> None:
    source = observed(tmp_path)
    log_path(partition_directory(source), 0).unlink()
    with pytest.raises(DamagedLog, match="no snapshot stands for what was before"):
        plan_export(source, 1)


def test_nothing_committed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportRefused, match="nothing in this directory is known"):
        plan_export(observed(tmp_path, committed=0), 1)


def test_what_is_there_is_not_written_over(tmp_path: Path) -> None:
    plan = plan_export(observed(tmp_path), 1)
    (tmp_path / "controller").mkdir()
    (tmp_path / "controller" / META).write_text("another's")
    with pytest.raises(ExportRefused, match="not empty"):
        write_export(plan, tmp_path / "controller")


def test_a_folder_that_is_not_there_is_named_and_the_disk_is_not_blamed(tmp_path: Path) -> None:
    plan = plan_export(observed(tmp_path), 1)
    target = tmp_path / "rescue" / "controller"
    with pytest.raises(
        ExportRefused, match=r"there is no such directory\. Make it first"
    ) as caught:
        write_export(plan, target)
    assert str(caught.value).startswith(f"{target.parent}: ")
    target.parent.mkdir()
    write_export(plan, target)
    assert (target / META).exists()


@pytest.mark.parametrize("name", ["", "empty"])
def test_who_names_another_directory_is_not_told_to_format_it(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        ExportRefused, match=r"no meta\.properties\. Name the storage\.dir of an obs"
    ):
        plan_export(tmp_path / name, 1)


def test_without_meta_properties_until_all_is_there(tmp_path: Path) -> None:
    """Who dies half-way leaves no directory that a controller starts from."""
    plan = plan_export(observed(tmp_path), 1)
    log = partition_directory(plan.source)
    segment = log_path(log, 3)
    segment.rename(segment.with_suffix(".gone"))
    segment.mkdir()
    with pytest.raises(StorageError):
        write_export(replace(plan), tmp_path / "controller")
    assert not (tmp_path / "controller" / META).exists()


class Syncs(RealFileSystem):
    """Knows of each file that was opened to be written whether it was synced behind its last write."""

    def __init__(self) -> None:
        self.is_synced: dict[str, bool] = {}
        self.synced_directories: set[Path] = set()
        self._names: dict[int, str] = {}

    def open(self, path: Path, *, writable: bool = False, create: bool = False) -> int:
        handle = super().open(path, writable=writable, create=create)
        self._names[handle] = path.name if writable else ""
        return handle

    def close(self, handle: int) -> None:
        super().close(handle)
        del self._names[handle]

    @property
    def open_count(self) -> int:
        return len(self._names)

    def fsync_directory(self, path: Path) -> None:
        super().fsync_directory(path)
        self.synced_directories.add(path)

    def pwritev(self, handle: int, buffers: Sequence[Buffer], at: int) -> int:
        self.is_synced[self._names[handle]] = False
        return super().pwritev(handle, buffers, at)

    def fsync(self, handle: int) -> None:
        super().fsync(handle)
        self.is_synced[self._names[handle]] = True


class Pieces(Syncs):
    """Remembers the size of each write to a segment."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def pwritev(self, handle: int, buffers: Sequence[Buffer], at: int) -> int:
        if self._names[handle].endswith(".log"):
            self.sizes.append(sum(map(len, buffers)))
        return super().pwritev(handle, buffers, at)


@pytest.mark.pure
def test_what_is_copied_is_on_disk_before_the_directory_is_a_controllers(tmp_path: Path) -> None:
    fs = Syncs()
    write_export(plan_export(observed(tmp_path), 2), tmp_path / "controller", fs=fs)
    written = [name for name in fs.is_synced if name.endswith(".log")]
    assert len(written) == 2
    assert all(fs.is_synced[name] for name in written)
    target = tmp_path / "controller"
    assert fs.synced_directories == {tmp_path, target, partition_directory(target)}


@pytest.mark.pure
def test_every_file_is_closed(tmp_path: Path) -> None:
    fs, source = Syncs(), observed(tmp_path)
    (source / LOCK).touch()
    with lock_stopped(source, fs):
        write_export(plan_export(source, 2, fs=fs), tmp_path / "controller", fs=fs)
    assert fs.open_count == 0
