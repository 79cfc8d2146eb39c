"""Snapshot files: what is written is read back, and whatever is wrong with one is found."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from uuid import UUID

import pytest

from quorumd.raft.types import SnapshotId
from quorumd.storage import snapshot_file
from quorumd.storage.errors import DamagedSnapshot, DiskFailed, DiskFull
from quorumd.storage.layout import snapshot_path
from quorumd.storage.snapshot_file import (
    SnapshotFacts,
    SnapshotWriter,
    check_cluster,
    read_facts,
    verify_snapshot,
    verifying,
)
from quorumd.wire.control_records import (
    ControlRecord,
    KRaftVersion,
    KRaftVoter,
    KRaftVoters,
    LeaderChange,
    ProducerStates,
    ProducerStatesBatch,
    ProducerStatesProducer,
    SnapshotFooter,
    SnapshotHeader,
    UnknownControl,
    encode_control_batch,
)
from quorumd.wire.records import Record, build_batch, read_header
from tests.storage.faulty_filesystem import FaultyFileSystem
from tests.storage.helpers import DIRECTORY, START_MS, empty_disk

ID = SnapshotId(1234, 7)
PATH = snapshot_path(DIRECTORY, ID)
VOTERS = KRaftVoters(
    voters=(KRaftVoter(voter_id=1, voter_directory_id=UUID(int=5)),), cluster_id="cluster"
)
PRODUCER = ProducerStatesProducer(
    producer_id=4,
    epoch=1,
    batches=(
        ProducerStatesBatch(first_sequence=0, last_sequence=1, base_offset=10, last_offset=11),
    ),
)
HEADER = SnapshotHeader(last_contained_log_timestamp=START_MS, end_offset=1234)


class File:
    """A snapshot's bytes in the making."""

    def __init__(self) -> None:
        self.data = b""
        self.next_offset = 0

    def control(self, *records: ControlRecord, epoch: int = 7, skip: int = 0) -> File:
        return self.add(
            encode_control_batch(
                records, base_offset=self.next_offset + skip, epoch=epoch, timestamp_ms=START_MS
            ),
            len(records) + skip,
        )

    def records(self, *keys: bytes, **fields: int) -> File:
        batch = build_batch(
            [Record(START_MS, START_MS, key, b"v", (("quorumd.offset", b"3"),)) for key in keys],
            **{"base_offset": self.next_offset, "epoch": 7, **fields},
        )
        return self.add(batch, len(keys))

    def add(self, data: bytes, count: int = 0) -> File:
        self.data += data
        self.next_offset += count
        return self


def begun() -> File:
    return File().control(HEADER, KRaftVersion(kraft_version=1), VOTERS)


def whole() -> File:
    file = begun().control(ProducerStates(producers=(PRODUCER,)))
    return file.records(b"a", b"b").records(b"c").control(SnapshotFooter())


OF_KAFKA = SnapshotHeader(last_contained_log_timestamp=START_MS)
"""Kafka's header has no field for the end offset."""


def of_kafka() -> File:
    """As Kafka writes it: records without keys, whatever is in them."""
    file = File().control(OF_KAFKA, KRaftVersion(kraft_version=1), VOTERS)
    for values in ((b"b", b"a"), (b"a",)):
        records = [Record(START_MS, START_MS, None, value, ()) for value in values]
        batch = build_batch(records, base_offset=file.next_offset, epoch=7)
        file.add(batch, len(values))
    return file


def disk_with(data: bytes) -> FaultyFileSystem:
    fs = empty_disk()
    fs.put(PATH, data)
    return fs


def write(
    fs: FaultyFileSystem,
    producers: Sequence[ProducerStatesProducer] = (PRODUCER,),
    state: Sequence[ControlRecord] = (KRaftVersion(kraft_version=1), VOTERS),
    batches: int = 2,
) -> None:
    writer = SnapshotWriter(fs, PATH, ID, START_MS, state, producers)
    for number in range(batches):
        file = File()
        file.next_offset = writer.next_offset
        file.records(b"%03d" % number, b"%03d+" % number)
        writer.write_batch([file.data[:61], memoryview(file.data)[61:]], 2)
    assert writer.finish() == len(fs.contents(PATH))


# Whole ones


def test_what_is_written_is_whole_and_says_the_same_again() -> None:
    fs = empty_disk()
    write(fs)
    size = len(fs.contents(PATH))
    told = list(verifying(fs, PATH, ID))
    facts = verify_snapshot(fs, PATH, ID)
    assert facts == read_facts(fs, PATH, ID)
    assert facts == SnapshotFacts(
        id=ID,
        size_bytes=size,
        last_contained_log_timestamp=START_MS,
        kraft_version=1,
        voters=VOTERS,
        producers=(PRODUCER,),
    )
    assert len(told) == 2
    assert 0 < told[0] < told[1] < size
    assert fs.open_handles == 0


def test_what_is_written_is_durable_when_it_is_finished() -> None:
    fs = empty_disk()
    write(fs)
    fs.fsync_directory(DIRECTORY)
    assert fs._live[PATH].durable == fs.contents(PATH)


def test_a_snapshot_without_voters_producers_and_records_is_whole() -> None:
    fs = empty_disk()
    write(fs, (), (), 0)
    facts = verify_snapshot(fs, PATH, ID)
    assert (facts.kraft_version, facts.voters, facts.producers) == (0, None, ())
    assert read_facts(fs, PATH, ID) == facts
    assert fs.contents(PATH) == File().control(HEADER).control(SnapshotFooter()).data


def test_many_producers_are_in_several_batches_and_in_their_order() -> None:
    producers = [ProducerStatesProducer(producer_id=id_) for id_ in range(9000, 0, -2)]
    fs = empty_disk()
    write(fs, producers)
    assert list(read_facts(fs, PATH, ID).producers) == producers
    assert list(verify_snapshot(fs, PATH, ID).producers) == producers


def test_an_older_file_is_written_over() -> None:
    fs = disk_with(bytes(10_000))
    write(fs)
    verify_snapshot(fs, PATH, ID)


def test_facts_are_read_without_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    file = begun()
    for number in range(100):
        file.records(*(b"%03d-%04d" % (number, each) for each in range(100)))
    fs = disk_with(file.control(SnapshotFooter()).data)
    read = []
    pread = fs.pread
    monkeypatch.setattr(
        fs, "pread", lambda handle, size, at: read.append(size) or pread(handle, size, at)
    )
    read_facts(fs, PATH, ID)
    assert sum(read) < len(file.data) // 20


def test_a_header_that_does_not_tell_its_end_is_taken_as_it_is() -> None:
    """As Kafka writes it."""
    header = SnapshotHeader(last_contained_log_timestamp=START_MS)
    file = File().control(header).records(b"a").control(SnapshotFooter())
    assert verify_snapshot(disk_with(file.data), PATH, ID).last_contained_log_timestamp == START_MS


def test_what_a_restore_has_struck_out_is_passed_over() -> None:
    struck = [UnknownControl(kind, b"?") for kind in (1005, 1006)]
    file = File().control(HEADER, *struck).records(b"a").control(SnapshotFooter())
    facts = verify_snapshot(disk_with(file.data), PATH, ID)
    assert (facts.voters, facts.kraft_version) == (None, 0)


# Damaged ones


def test_a_snapshot_that_is_cut_anywhere_is_damaged() -> None:
    data = whole().data
    verify_snapshot(disk_with(data), PATH, ID)
    for size in range(len(data)):
        fs = disk_with(data[:size])
        with pytest.raises(DamagedSnapshot):
            verify_snapshot(fs, PATH, ID)
        with pytest.raises(DamagedSnapshot):
            read_facts(fs, PATH, ID)
        assert fs.open_handles == 0


def test_each_byte_that_changes_is_found() -> None:
    data = whole().data
    for at in range(len(data)):
        for mask in (1, 0x80):
            fs = disk_with(data[:at] + bytes((data[at] ^ mask,)) + data[at + 1 :])
            with pytest.raises(DamagedSnapshot) as caught:
                verify_snapshot(fs, PATH, ID)
            assert caught.value.position <= at
            assert caught.value.path == PATH
            assert fs.open_handles == 0


def test_a_disk_that_says_something_else_the_second_time_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A header is read once by itself and once with its batch."""
    data = whole().data
    pread = FaultyFileSystem.pread
    for position in range(20):
        fs, reads = disk_with(data), 0

        def flipped(
            self: FaultyFileSystem, handle: object, size: int, offset: int, *, flip: int = position
        ) -> bytes:
            nonlocal reads
            reads += 1
            found = pread(self, handle, size, offset)
            if reads != 2:
                return found
            return found[:flip] + bytes([found[flip] ^ 1]) + found[flip + 1 :]

        monkeypatch.setattr(FaultyFileSystem, "pread", flipped)
        with pytest.raises(DamagedSnapshot):
            verify_snapshot(fs, PATH, ID)


@pytest.mark.parametrize(
    ("file", "problem"),
    [
        (File(), "only 0 bytes"),
        (File().records(b"a").control(SnapshotFooter()), "begins with its header"),
        (File().control(SnapshotFooter()), "begins with its header"),
        (File().control(VOTERS, HEADER).control(SnapshotFooter()), "begins with its header"),
        (begun().control(HEADER).control(SnapshotFooter()), "SnapshotHeader record where none"),
        (begun().control(VOTERS).control(SnapshotFooter()), "second KRaftVoters"),
        (begun().control(KRaftVersion()).control(SnapshotFooter()), "second KRaftVersion"),
        (begun().control(LeaderChange()).control(SnapshotFooter()), "LeaderChange record where"),
        (begun().records(b"a"), "without its footer"),
        (begun().records(b"a").control(VOTERS).control(SnapshotFooter()), "no footer"),
        (begun().records(b"a").control(LeaderChange()), "no footer|without its footer"),
        (whole().add(b"\0"), "no footer|without its footer"),
        (whole().records(b"d"), "SnapshotFooter record where|no footer"),
        (whole().control(SnapshotFooter()), "no footer"),
        (begun().control(SnapshotFooter(), SnapshotFooter()), "where none|without its footer"),
        (begun().records(b"b").records(b"a").control(SnapshotFooter()), "not ascend"),
        (begun().records(b"b").records(b"b").control(SnapshotFooter()), "not ascend"),
        (begun().records(b"a", b"c").records(b"b").control(SnapshotFooter()), "not ascend"),
        (begun().records(b"b", b"a").control(SnapshotFooter()), "not ascend"),
        (begun().records(b"a", epoch=6).control(SnapshotFooter()), "epoch 6 in a snapshot of epoch 7"),
        (begun().records(b"a").control(SnapshotFooter(), epoch=8), "epoch 8 in a snapshot of epoch 7"),
        (begun().records(b"a", base_offset=9).control(SnapshotFooter()), "offset 9 where 3"),
        (begun().records(b"a").control(SnapshotFooter(), skip=1), "offset 5 where 4"),
        (File().control(HEADER, UnknownControl(6, b"")).control(SnapshotFooter()), "KRaftVoters"),
        (begun().add(build_batch([Record(value=b"v")], base_offset=3, epoch=7), 1)
         .control(SnapshotFooter()), "no key"),
    ],
)  # fmt: skip
def test_what_is_out_of_place_is_found(file: File, problem: str) -> None:
    fs = disk_with(file.data)
    with pytest.raises(DamagedSnapshot, match=problem) as caught:
        verify_snapshot(fs, PATH, ID)
    assert caught.value.exit_code == 3
    assert str(PATH) in str(caught.value)
    assert fs.open_handles == 0


def test_a_batch_larger_than_any_record_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_file, "SNAPSHOT_BATCH_BYTES_MAX", 1000)
    file = begun().records(bytes(1000)).control(SnapshotFooter())
    with pytest.raises(DamagedSnapshot, match="a batch of 1"):
        verify_snapshot(disk_with(file.data), PATH, ID)


@pytest.mark.parametrize("read", [read_facts, verify_snapshot])
def test_another_snapshot_under_this_name_is_found(read: Callable[..., SnapshotFacts]) -> None:
    with pytest.raises(DamagedSnapshot, match="epoch 7 in a snapshot of epoch 8"):
        read(disk_with(whole().data), PATH, SnapshotId(1234, 8))
    for end_offset in (1233, 1235):
        with pytest.raises(DamagedSnapshot, match=f"says offset {end_offset}.*ends at 1234"):
            read(disk_with(whole().data), PATH, SnapshotId(end_offset, 7))


LATER = KRaftVersion(version=1, kraft_version=1)


@pytest.mark.parametrize(
    ("file", "what"),
    [
        (File().control(HEADER, UnknownControl(2001, b"?")), "control records of type 2001"),
        (begun().control(UnknownControl(7, b"?")), "control records of type 7"),
        (File().control(SnapshotHeader(version=1, end_offset=1234)), "version 1 of SnapshotHeader"),
        (File().control(HEADER, LATER), "version 1 of KRaftVersion"),
        (File().control(HEADER, KRaftVersion(kraft_version=2)), "kraft.version 2"),
        (File().control(HEADER, KRaftVoters(version=3)), "version 3 of KRaftVoters"),
        (begun().control(ProducerStates(version=1)), "version 1 of ProducerStates"),
    ],
)
def test_what_a_later_version_has_written_is_neither_used_nor_called_damage(
    file: File, what: str
) -> None:
    fs = disk_with(file.records(b"a").control(SnapshotFooter()).data)
    for read in (read_facts, verify_snapshot):
        with pytest.raises(
            DamagedSnapshot, match=f"a later version.*{what}.*Upgrade this"
        ) as found:
            read(fs, PATH, ID)
        assert "not a whole snapshot" not in str(found.value)
    assert fs.open_handles == 0


def test_the_position_is_that_of_the_batch_that_is_wrong() -> None:
    file = begun()
    position = len(file.data)
    file.records(b"a")
    data = bytearray(file.control(SnapshotFooter()).data)
    data[position + 70] ^= 1
    with pytest.raises(DamagedSnapshot, match="CRC") as caught:
        verify_snapshot(disk_with(bytes(data)), PATH, ID)
    assert caught.value.position == position


# The disk


def test_a_file_that_cannot_be_read_is_no_damage() -> None:
    fs = disk_with(whole().data)
    fs.errors["pread"] = errno.EIO
    for read in (read_facts, verify_snapshot):
        with pytest.raises(DiskFailed):
            read(fs, PATH, ID)
    assert fs.open_handles == 0


@pytest.mark.parametrize("number", [errno.EISDIR, errno.EACCES, errno.ELOOP])
@pytest.mark.parametrize("call", ["open", "pread"])
def test_what_is_no_file_that_can_be_read_is_no_failure_of_the_disk(call: str, number: int) -> None:
    fs = disk_with(whole().data)
    fs.errors[call] = number
    for read in (read_facts, verify_snapshot):
        with pytest.raises(DamagedSnapshot, match=r"can be read here: .*Put the file back"):
            read(fs, PATH, ID)
        with pytest.raises(DamagedSnapshot, match="no snapshot can be read here"):
            read(fs, PATH.with_name("missing"), ID)
    assert fs.open_handles == 0


@pytest.mark.parametrize("call", ["open for writing", "truncate", "pwritev", "fsync"])
def test_a_full_disk_is_called_so_whatever_met_it(call: str) -> None:
    fs = disk_with(b"")
    fs.errors[call] = errno.ENOSPC
    with pytest.raises(DiskFull):
        write(fs)
    assert fs.open_handles == 0


def test_a_disk_that_takes_little_at_a_time_gets_it_all() -> None:
    fs = empty_disk()
    fs.write_bytes_max = 7
    write(fs)
    verify_snapshot(fs, PATH, ID)


def test_long_ones_are_synced_as_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_file, "SYNC_STEP_BYTES", 1000)
    fs = empty_disk()
    write(fs, batches=40)
    size = len(fs.contents(PATH))
    assert size // 1200 <= fs.log.count("fdatasync") <= size // 1000
    assert read_header(fs.contents(PATH)).is_control


# Those of Kafka


def test_a_snapshot_of_kafkas_is_checked_by_its_form_alone() -> None:
    data = of_kafka().control(SnapshotFooter()).data
    facts = verify_snapshot(disk_with(data), PATH, ID)
    assert facts.voters == VOTERS
    for at in range(100, len(data), 7):
        damaged = bytearray(data)
        damaged[at] ^= 1
        with pytest.raises(DamagedSnapshot):
            verify_snapshot(disk_with(bytes(damaged)), PATH, ID)


def test_what_a_later_kafka_writes_into_its_snapshots_is_kept() -> None:
    later = UnknownControl(77, b"whatever")
    file = File().control(OF_KAFKA, KRaftVersion(kraft_version=9), VOTERS, later)
    facts = verify_snapshot(disk_with(file.control(SnapshotFooter()).data), PATH, ID)
    assert facts.kraft_version == 9
    own = File().control(HEADER, later).control(SnapshotFooter())
    with pytest.raises(DamagedSnapshot, match="control records of type 77"):
        verify_snapshot(disk_with(own.data), PATH, ID)


@pytest.mark.parametrize(
    ("voters", "cluster_id", "is_strange"),
    [
        (VOTERS, "cluster", False),
        (VOTERS, "another", True),
        (VOTERS, None, False),  # the directory learns it from this snapshot's quorum
        (replace(VOTERS, cluster_id=None), "cluster", False),
        (None, "cluster", False),
    ],
)
def test_a_snapshot_that_names_a_cluster_is_of_that_of_its_directory(
    voters: KRaftVoters | None, cluster_id: str | None, is_strange: bool
) -> None:
    facts = SnapshotFacts(
        id=ID,
        size_bytes=1,
        last_contained_log_timestamp=START_MS,
        kraft_version=1,
        voters=voters,
        producers=(),
    )
    with pytest.raises(DamagedSnapshot) if is_strange else nullcontext():
        check_cluster(facts, cluster_id, PATH)
