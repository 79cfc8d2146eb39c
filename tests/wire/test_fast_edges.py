"""One byte that differs: what the struct-based readers still take, the declarations read alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from uuid import UUID

import pytest

from quorumd.wire.codec import decode, encode
from quorumd.wire.errors import MalformedMessage
from quorumd.wire.fast import (
    JOIN_BYTES_MAX,
    FetchRequestWriter,
    FetchResponseWriter,
    parse_fetch_request,
    parse_fetch_response,
    parse_produce,
)
from quorumd.wire.headers import decode_request_header, decode_response_header
from quorumd.wire.messages.fetch import (
    FetchRequest,
    FetchRequestPartition,
    FetchRequestReplicaState,
    FetchRequestTopic,
    FetchResponse,
    FetchResponseCurrentLeader,
    FetchResponseDivergingEpoch,
    FetchResponseNodeEndpoint,
    FetchResponsePartition,
    FetchResponseSnapshotId,
    FetchResponseTopic,
)
from quorumd.wire.messages.produce import (
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
)
from tests.wire.test_fast import frame_of, same_fetch, same_produce, same_response, topic_fields

ODD = (0, 1, 2, 3, 4, 9, 13, 14, 16, 17, 126, 127, 128, 129, 254, 255)
TOPIC_ID = UUID(int=5)
NOBODY = FetchRequestReplicaState()


def neighbours(body: bytes) -> Iterator[bytes]:
    """The body, cut or continued, and with any one byte of another value."""
    yield body
    for extra in (b"\0", b"\1", b"\xff"):
        yield body + extra
    for place in range(len(body)):
        yield body[:place]
        for value in {*ODD, body[place] - 1 & 255, body[place] + 1 & 255}:
            yield body[:place] + bytes((value,)) + body[place + 1 :]


def fetch_request(version: int) -> FetchRequest:
    tagged: dict[str, object] = {"cluster_id": "c"}
    partition: dict[str, object] = {}
    if version >= 15:
        tagged["replica_state"] = FetchRequestReplicaState(replica_id=3)
    if version >= 17:
        partition["replica_directory_id"] = UUID(int=9)
    if version >= 18:
        partition["high_watermark"] = 77
    asked = FetchRequestPartition(partition=0, fetch_offset=5, last_fetched_epoch=1, **partition)
    topic = FetchRequestTopic(partitions=(asked,), **topic_fields(version, "t", TOPIC_ID))
    return FetchRequest(max_wait_ms=5, topics=(topic,), **tagged)


def fetch_response(version: int) -> FetchResponse:
    partition = FetchResponsePartition(
        high_watermark=9,
        diverging_epoch=FetchResponseDivergingEpoch(epoch=1, end_offset=5),
        current_leader=FetchResponseCurrentLeader(leader_id=2, leader_epoch=3),
        snapshot_id=FetchResponseSnapshotId(end_offset=4, epoch=1),
        aborted_transactions=(),
        records=b"rec",
    )
    topic = FetchResponseTopic(partitions=(partition,), **topic_fields(version, "t", TOPIC_ID))
    nodes = (FetchResponseNodeEndpoint(node_id=2, host="h", port=9, rack="r"),)
    return FetchResponse(responses=(topic,), node_endpoints=nodes if version >= 16 else ())


def produce_request(version: int) -> ProduceRequest:
    partition = ProduceRequestPartition(index=0, records=b"rec")
    topic = ProduceRequestTopic(
        partition_data=(partition,),
        **({"topic_id": TOPIC_ID} if version >= 13 else {"name": "t"}),
    )
    return ProduceRequest(acks=-1, timeout_ms=5, topic_data=(topic,))


def compare(
    body: bytes,
    version: int,
    parse: Callable[..., object],
    cls: type[FetchRequest | FetchResponse | ProduceRequest],
    is_same: Callable[..., bool],
) -> None:
    fast = parse(version, body)
    if fast is None:
        return
    try:
        message = decode(cls, version, body)
    except MalformedMessage:
        pytest.fail(f"{body.hex()} was read although it is no message")
    assert is_same(fast, message, version), body.hex()


@pytest.mark.parametrize("version", range(12, 19))
@pytest.mark.parametrize("read_as", range(12, 19))
def test_a_fetch_request_of_another_version_is_left_to_the_codec_or_read_alike(
    version: int, read_as: int
) -> None:
    body = encode(fetch_request(version), version)
    compare(body, read_as, parse_fetch_request, FetchRequest, same_fetch)
    if read_as == version:
        for each in neighbours(body):
            compare(each, version, parse_fetch_request, FetchRequest, same_fetch)


@pytest.mark.parametrize("version", range(12, 19))
def test_a_tag_with_the_sender_counts_from_the_version_on_that_has_it(version: int) -> None:
    body = encode(replace(fetch_request(version), cluster_id=None, replica_state=NOBODY), version)
    assert body.endswith(b"\0")
    state = encode(fetch_request(15), 15)[-15:]
    compare(body[:-1] + b"\1" + state, version, parse_fetch_request, FetchRequest, same_fetch)


@pytest.mark.parametrize("version", range(12, 19))
@pytest.mark.parametrize("read_as", range(12, 19))
def test_a_fetch_response_of_another_version_is_left_to_the_codec_or_read_alike(
    version: int, read_as: int
) -> None:
    body = encode(fetch_response(version), version)
    compare(body, read_as, parse_fetch_response, FetchResponse, same_response)
    if read_as == version:
        for each in neighbours(body):
            compare(each, version, parse_fetch_response, FetchResponse, same_response)


@pytest.mark.parametrize("version", [3, 8, 9, 12, 13])
def test_a_produce_request_with_one_byte_that_differs_is_left_to_the_codec_or_read_alike(
    version: int,
) -> None:
    for each in neighbours(encode(produce_request(version), version)):
        compare(each, version, parse_produce, ProduceRequest, same_produce)


@pytest.mark.parametrize("version", [3, 8, 9, 12, 13])
@pytest.mark.parametrize("read_as", [3, 8, 9, 12, 13])
def test_a_head_that_was_read_is_known_again_in_its_own_version_and_whole(
    version: int, read_as: int
) -> None:
    body = encode(produce_request(version), version)
    found = parse_produce(version, body)
    assert found is not None
    compare(body, read_as, parse_produce, ProduceRequest, same_produce)
    again = parse_produce(version, b"before" + body, 6)
    assert again == found
    assert again is not None
    assert again[0] is found[0]
    assert [parse_produce(version, body[:size]) for size in range(14, len(body))] == [None] * (
        len(body) - 14
    )


@pytest.mark.parametrize("high_watermark", [-1, 0, 77, (1 << 63) - 2])
def test_a_replicas_fetch_says_its_high_watermark(high_watermark: int) -> None:
    writer = FetchRequestWriter(
        18,
        client_id="c",
        cluster_id=None,
        replica_id=2,
        replica_directory_id=UUID(int=9),
        topic_id=TOPIC_ID,
        partition=0,
        max_wait_ms=1,
    )
    frame = frame_of(writer.encode(1, 1, 2, 1, 1, high_watermark))
    _, at = decode_request_header(frame)
    message = decode(FetchRequest, 18, frame, at)
    assert message.topics[0].partitions[0].high_watermark == high_watermark
    assert encode(message, 18) == frame[at:]


@pytest.mark.parametrize(("leader_id", "leader_epoch"), [(-1, -1), (-1, 5), (2, -1), (0, 0)])
def test_an_epoch_is_said_even_where_its_leader_is_not_known(
    leader_id: int, leader_epoch: int
) -> None:
    for size in (0, JOIN_BYTES_MAX):
        writer = FetchResponseWriter(
            17,
            topic=TOPIC_ID.bytes,
            partition=0,
            leader_id=leader_id,
            leader_epoch=leader_epoch,
            leader_endpoint=None,
        )
        frame = frame_of(b"".join(writer.encode(5, 1, 0, [bytes(size)])))
        _, at = decode_response_header(1, 17, frame)
        leader = decode(FetchResponse, 17, frame, at).responses[0].partitions[0].current_leader
        assert (leader.leader_id, leader.leader_epoch) == (leader_id, leader_epoch)
