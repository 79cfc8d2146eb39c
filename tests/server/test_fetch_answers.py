"""What a follower takes of its leader's answer to a fetch."""

from __future__ import annotations

import pytest

from quorumd.raft.events import FetchResponseReceived
from quorumd.server.model.topic import METADATA
from quorumd.server.peers.outbound import FETCH
from quorumd.server.translate import fetch as translate_fetch
from quorumd.wire.batch_header import stamp
from quorumd.wire.codec import encode
from quorumd.wire.errors import CorruptBatch
from quorumd.wire.headers import encode_response_header
from quorumd.wire.messages.fetch import (
    FetchResponse,
    FetchResponseCurrentLeader,
    FetchResponsePartition,
    FetchResponseTopic,
)
from tests.storage.helpers import batch
from tests.support.work import STEPS_PER_MS, steps

VERSION = 17


def fetch_answer(records: bytes) -> tuple[bytes, int]:
    """What a leader of epoch 1 answers, and where the body begins."""
    partition = FetchResponsePartition(
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
    return translate_fetch.fetch_response_received(VERSION, data, at, 1, "CONTROLLER")


@pytest.mark.parametrize("cut", [1, 12, 60, 61, 70])
def test_what_is_left_of_a_cut_batch_is_not_taken_for_records(cut: int) -> None:
    whole = batch(0) + batch(1, count=2)
    found = outcome(whole + batch(3)[:cut])
    assert bytes(found.data) == whole
    assert isinstance(found.event, FetchResponseReceived)
    assert found.event.records is not None
    assert (found.event.records.base_offset, found.event.records.end_offset) == (0, 3)


def test_an_answer_that_holds_only_a_cut_batch_holds_no_records() -> None:
    found = outcome(batch(0)[:-1])
    assert isinstance(found.event, FetchResponseReceived)
    assert found.event.records is None
    assert not found.batches


SMALL = batch(0, count=1)


def many(count: int) -> bytes:
    return b"".join(stamp(SMALL, offset, 1) for offset in range(count))


def test_a_follower_takes_so_many_batches_of_an_answer_and_fetches_the_rest_again() -> None:
    taken = translate_fetch.FETCH_BATCHES_MAX
    records = memoryview(many(5 * taken))
    data, at = fetch_answer(bytes(records))
    found: list[translate_fetch.ParsedFetchResponse] = []

    def take() -> None:
        found.append(translate_fetch.fetch_response_received(VERSION, data, at, 1, "CONTROLLER"))

    assert steps(take) < 7 * STEPS_PER_MS
    (only,) = found
    assert isinstance(only.event, FetchResponseReceived)
    assert only.event.records is not None
    assert (only.event.records.base_offset, only.event.records.end_offset) == (0, taken)
    assert only.data == records[: taken * len(SMALL)]
    assert isinstance(only.data, bytes), "a view would keep all of the answer in memory"


def test_a_follower_asks_for_what_it_can_take_and_for_more_when_batches_are_large_again() -> None:
    taken, most = translate_fetch.FETCH_BATCHES_MAX, translate_fetch.FETCH_MAX_BYTES
    sizes = [most]
    for count in (taken, taken - 1, taken // 2, 1, 100):
        sizes.append(translate_fetch.next_max_bytes(sizes[-1], outcome(many(count))))
    small = taken * len(SMALL)
    assert sizes == [most, small, small, small, 2 * small, 4 * small]
    assert translate_fetch.next_max_bytes(most - 1, outcome(many(1))) == most


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
