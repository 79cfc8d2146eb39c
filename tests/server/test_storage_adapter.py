"""What a partition keeps between the rules and the disk: as long as it is needed, and of the newest alone."""

from __future__ import annotations

from dataclasses import replace
from typing import cast
from uuid import UUID

import pytest

from quorumd.raft.effects import (
    AppendFetched,
    PersistQuorumState,
    ResetLog,
    StoreSnapshotChunk,
    TruncateLog,
)
from quorumd.raft.types import ReplicaKey, SnapshotId
from quorumd.server.disk.recovered_log import RecoveredLog, log_view
from quorumd.server.disk.storage_adapter import ClientBatches, StorageAdapter
from quorumd.server.model import producer_state
from quorumd.server.model.disk_jobs import InstallSnapshot, Job, SaveState, StoreChunk
from quorumd.server.model.metrics import Metrics
from quorumd.server.model.producer_state import Duplicate, ProducerState
from quorumd.server.translate.fetched_batches import FetchedBatches
from quorumd.storage.log import Chunk
from quorumd.storage.quorum_state import QuorumState
from quorumd.storage.snapshot_file import SnapshotFacts
from quorumd.storage.snapshot_store import SnapshotStore
from quorumd.wire.batch_header import BatchHeader, read_header
from quorumd.wire.control_records import KRaftVoter, KRaftVoters
from quorumd.wire.records import Record, build_batch
from tests.storage.helpers import DIRECTORY, batch, empty_disk, open_log, put_snapshot

SNAPSHOT = SnapshotId(10, 1)


class Bench:
    """The adapter over an empty log; its disk only notes what it is to do."""

    def __init__(self) -> None:
        self.log = open_log(empty_disk())
        self.producers = ProducerState()
        self.metrics = Metrics()
        self.jobs: list[Job] = []
        self.installed: list[SnapshotFacts] = []
        self.adapter = StorageAdapter(
            self.log,
            self,
            self.producers,
            self.metrics,
            lambda: "cluster",
            cast(ClientBatches, None),
            self.installed.append,
            None,
            lambda: 0,
        )

    def submit(self, job: Job) -> None:
        self.jobs.append(job)

    def flush(self) -> None:
        raise AssertionError("the driver flushes")

    def start(self) -> None:
        raise AssertionError("it has no thread")

    stop = start

    def write_age_s(self) -> float:
        return 0.0

    def take(self, token: int, data: bytes, *, of_producer: bool = False) -> None:
        """A batch of the leader, held and appended."""
        header = read_header(data)
        self.adapter.hold_fetched(token, fetched(data, [header] if of_producer else []))
        self.append(token, header)

    def append(self, token: int, header: BatchHeader) -> None:
        at = {"base_offset": header.base_offset, "end_offset": header.next_offset}
        self.adapter.append_fetched(AppendFetched(write=1, token=token, **at))


def fetched(data: bytes, of_producers: list[BatchHeader]) -> FetchedBatches:
    header = read_header(data)
    chunk = Chunk(data, header.base_offset, header.next_offset)
    return FetchedBatches(chunk, 1, [(header.epoch, header.base_offset)], [], of_producers)


def of_producer(offset: int, sequence: int) -> bytes:
    return build_batch(
        [Record(timestamp=1, value=b"v")],
        base_offset=offset,
        epoch=1,
        producer_id=7,
        producer_epoch=0,
        base_sequence=sequence,
    )


def facts() -> SnapshotFacts:
    """Of a snapshot below whose end producer 7 has written once."""
    producers = ProducerState()
    producers.append(7, 0, 0, 9, 9)
    return SnapshotFacts(
        id=SNAPSHOT,
        size_bytes=100,
        last_contained_log_timestamp=1,
        kraft_version=1,
        voters=None,
        producers=producers.to_snapshot(),
    )


def test_batches_that_the_rules_did_not_take_are_let_go_of_when_others_come() -> None:
    bench, data = Bench(), batch(0)
    bench.adapter.hold_fetched(1, fetched(data, []))
    bench.take(2, data)
    assert bench.log.log_end_offset == 1
    with pytest.raises(KeyError):
        bench.append(1, read_header(batch(1)))


def test_what_is_appended_counts_for_the_next_snapshot() -> None:
    bench, (first, second) = Bench(), (batch(0), batch(1))
    bench.take(1, first)
    bench.take(2, second)
    assert bench.adapter.written_bytes == len(first) + len(second)
    assert bench.metrics.fetched_bytes == len(first) + len(second)
    assert bench.metrics.fetched_records == 2


def test_a_chunk_that_the_rules_did_not_take_is_let_go_of_when_another_comes() -> None:
    bench = Bench()
    bench.adapter.hold_chunk(1, b"first")
    bench.adapter.hold_chunk(2, b"second")
    bench.adapter.store_chunk(StoreSnapshotChunk(write=1, snapshot=SNAPSHOT, position=0, token=2))
    assert bench.jobs == [StoreChunk(1, SNAPSHOT, 0, b"second")]
    assert bench.metrics.snapshots.copied_bytes == len(b"second")
    with pytest.raises(KeyError):
        bench.adapter.store_chunk(
            StoreSnapshotChunk(write=2, snapshot=SNAPSHOT, position=0, token=1)
        )


def test_behind_a_copied_snapshot_producers_are_counted_from_what_it_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also when more is truncated than can be taken back."""
    monkeypatch.setattr(producer_state, "REMEMBERED_UNDOS", 2)
    bench = Bench()
    bench.take(1, of_producer(0, 0), of_producer=True)
    bench.adapter.hold_copied(facts())
    bench.adapter.reset(ResetLog(write=2, snapshot=SNAPSHOT))
    assert bench.jobs[-1] == InstallSnapshot(2, SNAPSHOT)
    assert bench.installed == [facts()]
    assert bench.producers.check(7, 0, 0, 1) == Duplicate(9, 9)
    for sequence in range(1, 6):
        bench.take(3, of_producer(9 + sequence, sequence), of_producer=True)
    bench.adapter.truncate(TruncateLog(write=4, end_offset=11))
    assert bench.metrics.truncated_records == 4
    known = bench.producers.remembered()[7].batches
    assert [each.base_offset for each in known] == [9, 10]


def test_what_a_snapshot_stands_for_is_not_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log still has it."""
    monkeypatch.setattr(producer_state, "REMEMBERED_UNDOS", 2)
    bench = Bench()
    for offset in range(2):
        bench.take(1, of_producer(offset, offset), of_producer=True)
    producers = bench.producers.to_snapshot()
    bench.adapter.base = replace(facts(), id=SnapshotId(2, 1), producers=producers)
    for offset in range(2, 7):
        bench.take(1, of_producer(offset, offset), of_producer=True)
    bench.adapter.truncate(TruncateLog(write=2, end_offset=3))
    known = bench.producers.remembered()[7].batches
    assert [each.base_offset for each in known] == [0, 1, 2]


def test_the_quorum_state_is_saved_with_everybodys_own_storage_id() -> None:
    bench = Bench()
    leader, voted = ReplicaKey(1, UUID(int=11)), ReplicaKey(2, UUID(int=22))
    for one, other in ((leader, voted), (leader, None), (None, voted)):
        effect = PersistQuorumState(write=1, epoch=5, leader=one, voted=other, applied_offset=3)
        bench.adapter.persist(effect)
        assert bench.jobs[-1] == SaveState(
            1,
            QuorumState(
                cluster_id="cluster",
                leader_id=None if one is None else 1,
                leader_uuid=None if one is None else UUID(int=11),
                leader_epoch=5,
                voted_id=None if other is None else 2,
                voted_uuid=None if other is None else UUID(int=22),
                applied_offset=3,
            ),
        )


def test_the_voters_of_the_newest_snapshot_count_as_of_its_last_offset() -> None:
    fs = empty_disk()
    put_snapshot(fs, 10, 1)

    def naming(end_offset: int, voter_id: int) -> SnapshotFacts:
        named = KRaftVoters(voters=(KRaftVoter(voter_id=voter_id),))
        return replace(facts(), id=SnapshotId(end_offset, 1), voters=named)

    found = [naming(5, 1), naming(10, 2)]
    opened = RecoveredLog(
        log=open_log(fs, snapshots=[SNAPSHOT]),
        snapshots=SnapshotStore(fs, DIRECTORY),
        facts=found,
        producers=ProducerState(),
        new_bytes=0,
    )
    view = log_view(opened)
    assert (view.voters_offset, view.voters.ids) == (9, (2,))
    assert (view.start_offset, view.end_offset) == (10, 10)
    assert view.snapshots == [each.id for each in found]
