"""What a follower takes of its leader's answer to a fetch."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumd.raft.control import KRaftVersionRecord, LeaderChangeRecord
from quorumd.raft.effects import Fetch
from quorumd.raft.events import FetchResponseReceived
from quorumd.raft.types import OffsetAndEpoch, ReplicaKey
from quorumd.server.model.topic import METADATA
from quorumd.server.peers.outbound import FETCH
from quorumd.server.translate import fetch as translate_fetch
from quorumd.server.translate.common import InvalidRequestShape
from quorumd.server.translate.control_records import control_batch
from quorumd.server.translate.fetched_batches import FetchedBatches
from quorumd.storage.log import ChunkSummary
from quorumd.wire.batch_header import read_header, stamp
from quorumd.wire.codec import decode, encode
from quorumd.wire.errors import CorruptBatch
from quorumd.wire.headers import decode_request_header, encode_response_header
from quorumd.wire.messages.fetch import (
    FetchRequest,
    FetchResponse,
    FetchResponseCurrentLeader,
    FetchResponsePartition,
    FetchResponseSnapshotId,
    FetchResponseTopic,
)
from quorumd.wire.records import Record, build_batch
from tests.storage.helpers import batch
from tests.support.work import STEPS_PER_MS, steps
from tests.wire.wire_values import examples

VERSION = 17
SIZES = st.sampled_from((0, 20, 5_000))


def fetch_answer(records: bytes, **more: Any) -> tuple[bytes, int]:
    """What a leader of epoch 1 answers, and where the body begins."""
    partition = FetchResponsePartition(
        **more,
        high_watermark=0,
        current_leader=FetchResponseCurrentLeader(leader_id=2, leader_epoch=1),
        aborted_transactions=(),
        records=records,
    )
    topic = FetchResponseTopic(topic_id=METADATA.topic_id, partitions=(partition,))
    header = encode_response_header(FETCH, VERSION, 1)
    return header + encode(FetchResponse(responses=(topic,)), VERSION), len(header)


def outcome(records: bytes) -> translate_fetch.ParsedFetchResponse:
    data, at = fetch_answer(records)
    return translate_fetch.fetch_response_received(VERSION, data, at, METADATA, 1, "CONTROLLER")


def taken_over(records: bytes) -> FetchedBatches:
    fetched = outcome(records).fetched
    assert fetched is not None
    return fetched


@pytest.mark.parametrize("cut", [1, 12, 60, 61, 70])
def test_what_is_left_of_a_cut_batch_is_not_taken_for_records(cut: int) -> None:
    whole = batch(0) + batch(1, count=2)
    found = outcome(whole + batch(3)[:cut])
    assert found.fetched is not None
    assert found.fetched.chunk.data == whole
    assert isinstance(found.event, FetchResponseReceived)
    assert found.event.records is not None
    assert (found.event.records.base_offset, found.event.records.end_offset) == (0, 3)


def test_an_answer_that_holds_only_a_cut_batch_holds_no_records() -> None:
    found = outcome(batch(0)[:-1])
    assert isinstance(found.event, FetchResponseReceived)
    assert found.event.records is None
    assert found.fetched is None


SMALL = batch(0, count=1)


def many(count: int) -> bytes:
    return b"".join(stamp(SMALL, offset, 1) for offset in range(count))


def test_a_follower_takes_so_many_batches_of_an_answer_and_fetches_the_rest_again() -> None:
    taken = translate_fetch.FETCH_BATCHES_MAX
    records = memoryview(many(5 * taken))
    data, at = fetch_answer(bytes(records))
    found: list[translate_fetch.ParsedFetchResponse] = []

    def take() -> None:
        found.append(
            translate_fetch.fetch_response_received(VERSION, data, at, METADATA, 1, "CONTROLLER")
        )

    assert steps(take) < 7 * STEPS_PER_MS
    (only,) = found
    assert isinstance(only.event, FetchResponseReceived)
    assert only.event.records is not None
    assert (only.event.records.base_offset, only.event.records.end_offset) == (0, taken)
    assert only.fetched is not None
    data = only.fetched.chunk.data
    assert data == records[: taken * len(SMALL)]
    assert isinstance(data, bytes), "a view would keep all of the answer in memory"


def test_a_follower_asks_for_what_it_can_take_and_for_more_when_batches_are_large_again() -> None:
    taken, most = translate_fetch.FETCH_BATCHES_MAX, translate_fetch.FETCH_MAX_BYTES
    sizes = [most]
    for count in (taken, taken - 1, taken // 2, 1, 100):
        sizes.append(translate_fetch.next_max_bytes(sizes[-1], taken_over(many(count))))
    small = taken * len(SMALL)
    assert sizes == [most, small, small, small, 2 * small, 4 * small]
    assert translate_fetch.next_max_bytes(most - 1, taken_over(many(1))) == most


def with_delta(data: bytes, delta: int) -> bytes:
    """The batch with another last offset delta, its CRC made right again."""
    from crc32c import crc32c

    changed = bytearray(data)
    changed[23:27] = delta.to_bytes(4, "big", signed=True)
    changed[17:21] = crc32c(changed[21:]).to_bytes(4, "big")
    return bytes(changed)


@pytest.mark.parametrize(
    "records",
    [
        batch(0) + batch(2),
        batch(1, count=3) + batch(2),
        batch(5) + batch(5),
        batch(5) + batch(4),
        with_delta(batch(0), -1),
        with_delta(batch(0), -5) + batch(0),
    ],
    ids=["gap", "overlap", "again", "backwards", "no offset", "negative"],
)
def test_batches_that_do_not_follow_one_another_never_reach_the_rules(records: bytes) -> None:
    with pytest.raises(CorruptBatch):
        outcome(records)


@given(data=st.data())
@examples(60)
def test_what_is_taken_over_is_what_the_headers_say(data: st.DataObject) -> None:
    offset, epoch = data.draw(st.integers(0, 2**40)), data.draw(st.integers(0, 5))
    batches: list[bytes] = []
    for _ in range(data.draw(st.integers(1, 6))):
        epoch += data.draw(st.sampled_from((0, 0, 0, 1, 3)))
        times = data.draw(st.lists(st.integers(-1, 5), min_size=1, max_size=3))
        records = [Record(timestamp=at, value=bytes(data.draw(SIZES))) for at in times]
        producer_id = data.draw(st.sampled_from((-1, -1, 7)))
        batches.append(
            build_batch(records, base_offset=offset, epoch=epoch, producer_id=producer_id)
        )
        offset += len(times)
    headers = [read_header(each) for each in batches]
    fetched = taken_over(b"".join(batches))
    chunk = fetched.chunk
    assert chunk.data == b"".join(batches)
    assert (chunk.base_offset, chunk.end_offset) == (headers[0].base_offset, offset)
    assert fetched.count == len(batches)
    assert fetched.of_producers == [header for header in headers if header.producer_id >= 0]
    firsts = {header.epoch: header.base_offset for header in reversed(headers)}
    assert fetched.epochs == sorted(firsts.items())
    newest = max(headers, key=lambda header: header.max_timestamp)
    summary = ChunkSummary(epoch, newest.max_timestamp, newest.last_offset)
    assert chunk.summary == (summary if len(firsts) == 1 else None)


def test_control_records_are_taken_out_of_their_batches() -> None:
    records = [KRaftVersionRecord(1), LeaderChangeRecord(ReplicaKey(1), (), ())]
    data = batch(0) + control_batch(records, 1, 1, 1_000) + batch(3)
    assert taken_over(data).control == [(1, records[0]), (2, records[1])]
    assert taken_over(data).of_producers == []


@pytest.mark.parametrize("size", [0, 5_000])
@pytest.mark.parametrize("place", [16, 17, 21, 40, 60, 62, -1])
def test_damage_is_found_where_it_is(place: int, size: int) -> None:
    whole = batch(0)
    damaged = bytearray(build_batch([Record(value=bytes(size))], base_offset=1, epoch=1))
    damaged[place] ^= 4
    with pytest.raises(CorruptBatch) as caught:
        outcome(whole + damaged + batch(2))
    assert caught.value.position == len(whole)


def test_a_batch_shorter_than_its_header_is_damaged() -> None:
    damaged = bytearray(batch(1))
    damaged[8:12] = (48).to_bytes(4, "big")
    with pytest.raises(CorruptBatch, match="too small for a header"):
        outcome(batch(0) + damaged)


@pytest.mark.parametrize(("end_offset", "epoch"), [(20, -1), (-1, 3)])
def test_half_of_a_snapshots_id_is_none(end_offset: int, epoch: int) -> None:
    named = FetchResponseSnapshotId(end_offset=end_offset, epoch=epoch)
    data, at = fetch_answer(b"", snapshot_id=named)
    with pytest.raises(InvalidRequestShape):
        translate_fetch.fetch_response_received(VERSION, data, at, METADATA, 1, "CONTROLLER")


@pytest.mark.parametrize("producer_id", [-1, 0, 7])
def test_batches_of_any_producer_are_noted(producer_id: int) -> None:
    """The least id that a producer may have is 0."""
    sequence = 0 if producer_id >= 0 else -1
    data = build_batch(
        [Record(value=b"v")],
        epoch=1,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
    )
    noted = [header.producer_id for header in taken_over(data).of_producers]
    assert noted == [producer_id] * (producer_id >= 0)


def test_a_fetch_names_the_cluster_as_soon_as_it_is_known() -> None:
    frames = translate_fetch.FetchRequestFrames(METADATA, "a", ReplicaKey(1, UUID(int=1)), 500)
    asked = Fetch(epoch=3, position=OffsetAndEpoch(2, 3), high_watermark=0)
    for cluster_id in (None, "cluster", "cluster"):
        frame = frames.of(asked, VERSION, 1, cluster_id)
        _, body_at = decode_request_header(frame[4:])
        assert decode(FetchRequest, VERSION, frame[4:], body_at).cluster_id == cluster_id
