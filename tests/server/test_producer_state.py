"""Deduplication of idempotent producers: what is remembered, and that truncation takes it back exactly."""

from __future__ import annotations

import random
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorumd.raft.effects import TruncateLog
from quorumd.server.disk.storage_adapter import ClientBatches, StorageAdapter
from quorumd.server.model import producer_state
from quorumd.server.model.metrics import Metrics
from quorumd.server.model.producer_state import Duplicate, ProducerState, Refused
from quorumd.storage.filesystem import RealFileSystem
from quorumd.storage.log import Log
from quorumd.wire.batch_header import read_header
from quorumd.wire.control_records import ProducerStates, decode_control_batch, encode_control_batch
from quorumd.wire.records import Record, build_batch


def state_of(*appends: tuple[int, int, int, int]) -> ProducerState:
    """Producer id, epoch, first sequence and record count of each batch, one after another."""
    state, offset = ProducerState(), 0
    for producer_id, epoch, sequence, count in appends:
        state.append(producer_id, epoch, sequence, offset, offset + count - 1)
        offset += count
    return state


def refusal(verdict: object) -> str:
    assert isinstance(verdict, Refused)
    return verdict.error


def test_an_unknown_producer_may_begin_at_any_sequence() -> None:
    assert ProducerState().check(7, 3, 1234, 5) is None


@pytest.mark.parametrize("epoch", [-1, -2])
def test_a_producer_without_an_epoch_is_refused(epoch: int) -> None:
    assert refusal(ProducerState().check(7, epoch, 0, 1)) == "INVALID_PRODUCER_EPOCH"


def test_the_same_batch_again_is_a_duplicate_at_its_first_offsets() -> None:
    state = state_of((9, 0, 0, 4), (7, 0, 0, 3))
    assert state.check(7, 0, 0, 3) == Duplicate(4, 6)


def test_only_the_last_five_batches_are_remembered() -> None:
    state = state_of(*((7, 0, n, 1) for n in range(6)))
    assert refusal(state.check(7, 0, 0, 1)) == "OUT_OF_ORDER_SEQUENCE_NUMBER"
    assert [state.check(7, 0, n, 1) for n in range(1, 6)] == [Duplicate(n, n) for n in range(1, 6)]


@pytest.mark.parametrize(("sequence", "count"), [(0, 2), (1, 2), (1, 1), (4, 1), (0, 4)])
def test_gaps_and_partial_overlaps_are_out_of_order(sequence: int, count: int) -> None:
    state = state_of((7, 0, 0, 3))
    assert refusal(state.check(7, 0, sequence, count)) == "OUT_OF_ORDER_SEQUENCE_NUMBER"


def test_the_sequence_after_the_last_one_possible_is_0() -> None:
    state = state_of((7, 0, 2**31 - 2, 2))
    assert state.check(7, 0, 0, 1) is None
    assert refusal(state.check(7, 0, 1, 1)) == "OUT_OF_ORDER_SEQUENCE_NUMBER"


def test_a_batch_may_wrap_in_its_middle_and_is_found_again() -> None:
    state = state_of((7, 0, 2**31 - 1, 3))
    assert state.check(7, 0, 2**31 - 1, 3) == Duplicate(0, 2)
    assert state.check(7, 0, 2, 1) is None


def test_a_new_epoch_begins_at_0_and_fences_the_old_one() -> None:
    state = state_of((7, 0, 0, 3))
    assert refusal(state.check(7, 1, 3, 1)) == "OUT_OF_ORDER_SEQUENCE_NUMBER"
    assert state.check(7, 1, 0, 3) is None
    state.append(7, 1, 0, 3, 5)
    assert refusal(state.check(7, 0, 3, 1)) == "INVALID_PRODUCER_EPOCH"
    assert state.check(7, 1, 0, 3) == Duplicate(3, 5)


def test_the_producer_that_is_silent_longest_makes_room_for_a_new_one() -> None:
    state = state_of(*((n, 0, 0, 1) for n in range(producer_state.REMEMBERED_PRODUCERS)))
    state.append(0, 0, 1, 10_000, 10_000)
    state.append(10_000, 0, 0, 10_001, 10_001)
    assert len(state) == producer_state.REMEMBERED_PRODUCERS
    assert state.check(1, 0, 7, 1) is None, "producer 1 was the oldest, and is forgotten"
    assert refusal(state.check(0, 0, 7, 1)) == "OUT_OF_ORDER_SEQUENCE_NUMBER"
    state.truncate(10_001)
    assert state.check(1, 0, 0, 1) == Duplicate(1, 1)
    assert state.check(10_000, 0, 7, 1) is None


def test_a_snapshot_with_more_producers_than_are_remembered_does_not_grow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    states = state_of(*((n, 0, 0, 1) for n in range(5))).to_snapshot()
    monkeypatch.setattr(producer_state, "REMEMBERED_PRODUCERS", 3)
    state = ProducerState()
    state.load(states)
    state.append(9, 0, 0, 5, 5)
    assert list(state.remembered()) == [1, 2, 3, 4, 9]


def test_what_was_forgotten_before_a_snapshot_is_no_reason_to_read_the_log_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producer_state, "REMEMBERED_UNDOS", 1)
    state = state_of((7, 0, 0, 1), (7, 0, 1, 1), (7, 0, 2, 1))
    state.load(state_of((7, 0, 0, 1)).to_snapshot())
    assert state.truncate(1)
    assert state.check(7, 0, 0, 1) == Duplicate(0, 0)


def test_as_many_batches_can_be_taken_back_as_are_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producer_state, "REMEMBERED_UNDOS", 4)
    state = state_of(*((7, 0, n, 1) for n in range(5)))
    assert state.truncate(1)
    assert state.check(7, 0, 0, 1) == Duplicate(0, 0)


def test_when_more_goes_than_is_remembered_everything_begins_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producer_state, "REMEMBERED_UNDOS", 4)
    state = state_of(*((7, 0, n, 1) for n in range(5)))
    assert not state.truncate(0)
    assert len(state) == 0
    state.append(8, 0, 0, 0, 0)
    assert state.truncate(0)
    assert len(state) == 0


def test_every_producer_id_counts_and_no_control_batch_does() -> None:
    state = ProducerState()
    record = Record(timestamp=1, value=b"v")
    for producer_id in (-1, 0, 1):
        data = build_batch(
            [record], epoch=1, producer_id=producer_id, producer_epoch=0, base_sequence=0
        )
        header = read_header(data)
        state.note(header)
        state.note(header._replace(producer_id=9, attributes=header.attributes | 0x20))
    assert list(state.remembered()) == [0, 1]


def test_a_commit_below_a_batch_leaves_it_to_be_taken_back() -> None:
    state = state_of((7, 0, 0, 3), (7, 0, 3, 1))
    state.commit(2)
    assert state.truncate(3)
    assert state.check(7, 0, 3, 1) is None


Step = tuple[int, int, int]


@pytest.mark.long
@settings(max_examples=300, deadline=None)
@given(
    steps=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 2), st.integers(1, 3)), max_size=40),
    cuts=st.lists(st.integers(0, 10**6), max_size=3),
    committed=st.integers(0, 10**6),
)
def test_truncation_equals_a_fresh_scan_of_what_is_left(
    steps: list[Step], cuts: list[int], committed: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(producer_state, "REMEMBERED_PRODUCERS", 3)
        log: list[tuple[int, int, int, int, int]] = []
        state, commit_at = ProducerState(), 0

        def append_all() -> None:
            for producer_id, epoch, count in steps:
                offset = log[-1][4] + 1 if log else 0
                entry = (producer_id, epoch, offset * 7 % 50, offset, offset + count - 1)
                log.append(entry)
                state.append(*entry)

        append_all()
        for number, cut in enumerate(cuts):
            if number == 1 and log:
                commit_at = log[committed % len(log)][3]
                state.commit(commit_at)
            bounds = [entry[3] for entry in log if entry[3] >= commit_at]
            if not bounds:
                break
            end = bounds[cut % len(bounds)]
            assert state.truncate(end)
            log = [entry for entry in log if entry[3] < end]
            fresh = ProducerState()
            for entry in log:
                fresh.append(*entry)
            assert list(state._producers.items()) == list(fresh._producers.items())
            append_all()


@settings(max_examples=200, deadline=None)
@given(
    steps=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 2), st.integers(1, 3)), max_size=60),
    at=st.integers(0, 60),
    cut=st.integers(0, 60),
)
def test_a_state_that_begins_with_a_snapshot_equals_one_that_saw_it_all(
    steps: list[Step], at: int, cut: int
) -> None:
    """Also in what is forgotten first, and after a truncation."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(producer_state, "REMEMBERED_PRODUCERS", 3)
        entries: list[tuple[int, int, int, int, int]] = []
        for producer_id, epoch, count in steps:
            offset = entries[-1][4] + 1 if entries else 0
            first = (2**31 - 20 + offset) % 2**31
            entries.append((producer_id, epoch, first, offset, offset + count - 1))
        at = min(at, len(entries))
        whole, loaded = ProducerState(), ProducerState()
        loaded.append(99, 0, 0, 0, 0)
        for entry in entries[:at]:
            whole.append(*entry)
        end_offset = entries[at - 1][4] + 1 if at else 0
        states = whole.to_snapshot()
        records = [ProducerStates(producers=states[:2]), ProducerStates(producers=states[2:])]
        batch = encode_control_batch(records, base_offset=0, epoch=1, timestamp_ms=0)
        read = [
            producer
            for _, record in decode_control_batch(batch)
            if isinstance(record, ProducerStates)
            for producer in record.producers
        ]
        loaded.load(read)
        for state in (whole, loaded):
            state.commit(end_offset)
            for entry in entries[at:]:
                state.append(*entry)
        assert list(loaded.remembered().items()) == list(whole.remembered().items())
        assert loaded.to_snapshot() == whole.to_snapshot()
        left = [entry[3] for entry in entries[at:]]
        if left:
            for state in (whole, loaded):
                assert state.truncate(left[cut % len(left)])
            assert list(loaded.remembered().items()) == list(whole.remembered().items())


def test_what_is_committed_costs_no_memory() -> None:
    state = ProducerState()
    state.commit(1000)
    for n in range(1000):
        state.append(7, 0, n, n, n)
    assert not state._undo
    state.append(7, 0, 1000, 1000, 1000)
    assert state.truncate(1000)
    assert state.check(7, 0, 1000, 1) is None
    assert state.check(7, 0, 999, 1) == Duplicate(999, 999)


class Jobs:
    """A disk that has done nothing yet."""

    def __init__(self) -> None:
        self.all: list[object] = []

    def submit(self, job: object) -> None:
        self.all.append(job)

    def flush(self) -> None:
        raise AssertionError("the driver flushes")


def adapter_of(log: Log, producers: ProducerState, jobs: Jobs) -> StorageAdapter:
    return StorageAdapter(
        log,
        jobs,
        producers,
        Metrics(),
        lambda: None,
        cast(ClientBatches, None),
        lambda facts: None,
        None,
        lambda: 0,
    )


def one_batch(offset: int, producer_id: int) -> bytes:
    return build_batch(
        [Record(timestamp=1, value=b"v")],
        base_offset=offset,
        epoch=1,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=offset,
    )


@pytest.mark.parametrize("cache_bytes", [1 << 20, 3_000, 0])
def test_a_truncation_beyond_what_is_remembered_reads_the_log_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache_bytes: int
) -> None:
    monkeypatch.setattr(producer_state, "REMEMBERED_UNDOS", 4)
    log = Log.open(RealFileSystem(), tmp_path, segment_bytes=4096, tail_cache_bytes=cache_bytes)
    producers, draw = ProducerState(), random.Random(5)
    headers = []
    for offset in range(100):
        data = one_batch(offset, draw.randrange(5))
        headers.append(read_header(data))
        producers.note(headers[-1])
        log.append(data, offset, offset + 1)
        log.write(data, offset, offset + 1)
    log.sync()
    jobs = Jobs()
    adapter_of(log, producers, jobs).truncate(TruncateLog(write=1, end_offset=60))
    fresh = ProducerState()
    for header in headers[:60]:
        fresh.note(header)
    assert producers._producers == fresh._producers
    assert len(jobs.all) == 1
    log.truncate(60)
    log.close()


def test_what_a_truncation_that_waits_for_the_disk_takes_away_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other batches have taken its place in memory, and are truncated in turn."""
    monkeypatch.setattr(producer_state, "REMEMBERED_UNDOS", 4)
    log = Log.open(RealFileSystem(), tmp_path, segment_bytes=1 << 20, tail_cache_bytes=0)
    producers, jobs = ProducerState(), Jobs()
    adapter = adapter_of(log, producers, jobs)

    def append(offset: int, producer_id: int) -> bytes:
        data = one_batch(offset, producer_id)
        producers.note(read_header(data))
        log.append(data, offset, offset + 1)
        return data

    for offset in range(20):
        log.write(append(offset, 1), offset, offset + 1)
    adapter.truncate(TruncateLog(write=1, end_offset=10))
    for offset in range(10, 20):
        append(offset, 2)
    adapter.truncate(TruncateLog(write=2, end_offset=15))
    assert len(jobs.all) == 2
    fresh = state_of(*((1, 0, n, 1) for n in range(10)), *((2, 0, n, 1) for n in range(10, 15)))
    assert producers.remembered() == fresh.remembered()
    log.close()
