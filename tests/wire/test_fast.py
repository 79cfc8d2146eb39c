"""The struct-based readers and writers agree with the declarations on everything they handle."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumd.wire.codec import decode, encode
from quorumd.wire.errors import MalformedMessage
from quorumd.wire.fast import (
    JOIN_BYTES_MAX,
    FetchEndpoint,
    FetchRequestWriter,
    FetchResponseWriter,
    ProduceResponseWriter,
    parse_fetch_request,
    parse_fetch_response,
    parse_produce,
    parse_produce_size,
)
from quorumd.wire.fast.fetch_request import HIGH_WATERMARK_ABSENT
from quorumd.wire.framing import FrameBuffer
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
    ProduceResponse,
    ProduceResponsePartition,
    ProduceResponseRecordError,
    ProduceResponseTopic,
)
from tests.wire.wire_values import examples, messages

SOME = examples(12)
PRODUCE_VERSIONS = range(3, 14)
FETCH_VERSIONS = range(12, 19)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
INT16 = st.integers(-(2**15), 2**15 - 1)
NAMES = st.text(st.characters(exclude_categories=("Cs",)), max_size=30)
UUIDS = st.just(UUID(int=0)) | st.uuids()
RECORDS = st.binary(max_size=300)


def frame_of(whole: bytes) -> bytes:
    """The one frame that these bytes are."""
    buffer = FrameBuffer(max_frame_bytes=1 << 20)
    buffer.feed(whole)
    (frame,) = buffer.frames()
    assert buffer.bytes_held == 0
    return frame


def topic_fields(
    version: int, name: str, topic_id: UUID, *, id_from: int = 13
) -> dict[str, object]:
    return {"topic_id": topic_id} if version >= id_from else {"topic": name}


def topic_bytes(version: int, name: str, topic_id: UUID) -> bytes:
    return topic_id.bytes if version >= 13 else name.encode()


def damaged(data: st.DataObject, whole: bytes) -> bytes:
    place = data.draw(st.integers(0, len(whole) - 1))
    kind = data.draw(st.sampled_from(["cut", "flip", "insert", "repeat"]))
    if kind == "cut":
        return whole[:place]
    if kind == "insert":
        return whole[:place] + data.draw(st.binary(max_size=4)) + whole[place:]
    if kind == "repeat":
        return whole[:place] + whole[place : place + 12] + whole[place:]
    return (
        whole[:place] + bytes((whole[place] ^ data.draw(st.integers(1, 255)),)) + whole[place + 1 :]
    )


# Produce


def same_produce(fast, message: ProduceRequest, version: int) -> bool:
    head, records = fast
    (topic,) = message.topic_data
    (partition,) = topic.partition_data
    name = head.topic if version >= 13 else head.topic.decode(errors="replace")
    return (
        message.transactional_id is None
        and (head.acks, head.timeout_ms) == (message.acks, message.timeout_ms)
        and name == (topic.topic_id.bytes if version >= 13 else topic.name)
        and (head.partition, records) == (partition.index, partition.records)
    )


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@SOME
@given(data=st.data())
def test_produce_requests_of_one_partition_are_read_as_declared(version, data):
    name, topic_id = data.draw(NAMES), data.draw(UUIDS)
    partition = ProduceRequestPartition(index=data.draw(INT32), records=data.draw(RECORDS))
    named = {"topic_id": topic_id} if version >= 13 else {"name": name}
    message = ProduceRequest(
        acks=data.draw(INT16),
        timeout_ms=data.draw(INT32),
        topic_data=(ProduceRequestTopic(partition_data=(partition,), **named),),
    )
    body = encode(message, version)

    fast = parse_produce(version, b"head" + body, 4)
    if len(name.encode()) < 127 or version >= 13:
        assert fast is not None
        assert same_produce(fast, message, version)

    for _ in range(4):
        raw = damaged(data, body)
        fast = parse_produce(version, raw)
        if fast is not None:
            assert same_produce(fast, decode(ProduceRequest, version, raw), version)


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@SOME
@given(data=st.data())
def test_a_produce_request_cut_off_in_its_records_tells_how_many_they_are(version, data):
    name, topic_id = data.draw(NAMES), data.draw(UUIDS)
    partition = ProduceRequestPartition(index=data.draw(INT32), records=bytes(300))
    named = {"topic_id": topic_id} if version >= 13 else {"name": name}
    topic = ProduceRequestTopic(partition_data=(partition,), **named)
    message = ProduceRequest(
        acks=data.draw(INT16), timeout_ms=data.draw(INT32), topic_data=(topic,)
    )
    body = encode(message, version)
    if len(name.encode()) < 127 or version >= 13:
        (head, _) = parse_produce(version, body)
        assert parse_produce_size(version, b"head" + body, 4) == (head, 300)
        end_bytes = 3 if version >= 9 else 0
        assert parse_produce_size(version, body[: -300 - end_bytes]) == (head, 300)
    for others in (
        replace(message, transactional_id="t"),
        replace(message, topic_data=(topic, topic)),
        replace(message, topic_data=(replace(topic, partition_data=(partition, partition)),)),
    ):
        assert parse_produce_size(version, encode(others, version)) is None


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@SOME
@given(data=st.data())
def test_other_produce_requests_are_left_to_the_codec(version, data):
    message = data.draw(messages(ProduceRequest, version))
    fast = parse_produce(version, encode(message, version))
    partitions = [part for topic in message.topic_data for part in topic.partition_data]
    if fast is not None:
        assert same_produce(fast, message, version)
    if (
        len(message.topic_data) != 1
        or len(partitions) != 1
        or message.transactional_id is not None
        or partitions[0].records is None
    ):
        assert fast is None


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@SOME
@given(
    name=NAMES | st.just("n" * 200),
    topic_id=UUIDS,
    index=INT32,
    offsets=st.lists(st.tuples(INT64, INT64 | st.sampled_from([0, 7])), min_size=1, max_size=4),
)
def test_produce_answers_are_written_as_declared(version, name, topic_id, index, offsets):
    """One after the other, while the log may start elsewhere."""
    topic = topic_bytes(version, name, topic_id)
    answers = ProduceResponseWriter(version, topic, index)
    named = {"topic_id": topic_id} if version >= 13 else {"name": name}
    for number, (base_offset, log_start) in enumerate(offsets, 77):
        partition = ProduceResponsePartition(
            index=index, base_offset=base_offset, log_start_offset=log_start
        )
        message = ProduceResponse(
            responses=(ProduceResponseTopic(partition_responses=(partition,), **named),)
        )
        frame = frame_of(answers.encode(number, base_offset, log_start))
        correlation_id, body_at = decode_response_header(0, version, frame)
        assert correlation_id == number
        assert frame[body_at:] == encode(message, version)


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@SOME
@given(
    name=NAMES | st.just("n" * 200),
    topic_id=UUIDS,
    numbers=st.tuples(INT32, INT16, INT32),
    text=st.text(max_size=300),
)
def test_refusals_of_a_record_are_written_as_declared(version, name, topic_id, numbers, text):
    index, error_code, record_index = numbers
    errors = (ProduceResponseRecordError(batch_index=record_index, batch_index_error_message=text),)
    partition = ProduceResponsePartition(
        index=index,
        error_code=error_code,
        base_offset=-1,
        record_errors=errors,
        error_message=text,
    )
    named = {"topic_id": topic_id} if version >= 13 else {"name": name}
    message = ProduceResponse(
        responses=(ProduceResponseTopic(partition_responses=(partition,), **named),)
    )

    answers = ProduceResponseWriter(version, topic_bytes(version, name, topic_id), index)
    frame = frame_of(answers.encode_refusal(77, error_code, record_index, text.encode()))

    correlation_id, body_at = decode_response_header(0, version, frame)
    assert correlation_id == 77
    assert frame[body_at:] == encode(message, version)


# Fetch requests


def fetch_request(data: st.DataObject, version: int) -> tuple[FetchRequest, FetchRequestPartition]:
    tagged = {}
    if version >= 17:
        tagged["replica_directory_id"] = data.draw(UUIDS)
    if version >= 18:
        tagged["high_watermark"] = data.draw(st.just(HIGH_WATERMARK_ABSENT) | INT64)
    partition = FetchRequestPartition(
        partition=data.draw(INT32),
        current_leader_epoch=data.draw(INT32),
        fetch_offset=data.draw(INT64),
        last_fetched_epoch=data.draw(INT32),
        log_start_offset=data.draw(INT64),
        partition_max_bytes=data.draw(INT32),
        **tagged,
    )
    replica = data.draw(st.just(-1) | INT32)
    sender = (
        {"replica_state": FetchRequestReplicaState(replica_id=replica)}
        if version >= 15
        else {"replica_id": replica}
    )
    topic = FetchRequestTopic(
        partitions=(partition,),
        **topic_fields(version, data.draw(NAMES), data.draw(UUIDS)),
    )
    request = FetchRequest(
        cluster_id=data.draw(st.none() | NAMES),
        max_wait_ms=data.draw(INT32),
        min_bytes=data.draw(INT32),
        max_bytes=data.draw(INT32),
        isolation_level=data.draw(st.integers(-128, 127)),
        session_id=data.draw(INT32),
        session_epoch=data.draw(INT32),
        topics=(topic,),
        rack_id=data.draw(NAMES),
        **sender,
    )
    return request, partition


def same_fetch(fast, message: FetchRequest, version: int) -> bool:
    (topic,) = message.topics
    (partition,) = topic.partitions
    replica = message.replica_state.replica_id if version >= 15 else message.replica_id
    topic_read = fast.topic if version >= 13 else fast.topic.decode(errors="replace")
    alike = ["max_wait_ms", "min_bytes", "max_bytes", "isolation_level"]
    alike += ["session_id", "session_epoch", "cluster_id"]
    return (
        all(getattr(fast, name) == getattr(message, name) for name in alike)
        and not message.forgotten_topics_data
        and fast.replica_id == replica
        and topic_read == (topic.topic_id.bytes if version >= 13 else topic.topic)
        and all(
            getattr(fast, spec.name) == getattr(partition, spec.name)
            for spec in FetchRequestPartition.wire_spec.fields
        )
    )


@pytest.mark.parametrize("version", FETCH_VERSIONS)
@SOME
@given(data=st.data())
def test_fetch_requests_of_one_partition_are_read_as_declared(version, data):
    message, _ = fetch_request(data, version)
    body = encode(message, version)
    texts = (message.topics[0].topic, message.rack_id, message.cluster_id or "")
    fast = parse_fetch_request(version, b"head" + body, 4)
    if all(len(text.encode()) < 127 for text in texts):
        assert fast is not None
    if fast is not None:
        assert same_fetch(fast, message, version)
        assert parse_fetch_request(version, body) == fast
    for _ in range(4):
        raw = damaged(data, body)
        fast = parse_fetch_request(version, raw)
        if fast is not None:
            assert same_fetch(fast, decode(FetchRequest, version, raw), version)


@pytest.mark.parametrize("version", FETCH_VERSIONS)
@SOME
@given(data=st.data())
def test_other_fetch_requests_are_left_to_the_codec(version, data):
    message = data.draw(messages(FetchRequest, version))
    fast = parse_fetch_request(version, encode(message, version))
    if len(message.topics) != 1 or len(message.topics[0].partitions) != 1:
        assert fast is None
    if fast is not None:
        assert same_fetch(fast, message, version)


@pytest.mark.parametrize("version", [17, 18])
@SOME
@given(data=st.data())
def test_fetch_requests_of_a_replica_are_written_as_declared(version, data):
    message, partition = fetch_request(data, version)
    client_id = data.draw(NAMES)
    writer = FetchRequestWriter(
        version,
        client_id=client_id,
        cluster_id=message.cluster_id,
        replica_id=message.replica_state.replica_id,
        replica_directory_id=partition.replica_directory_id,
        topic_id=message.topics[0].topic_id,
        partition=partition.partition,
        max_wait_ms=message.max_wait_ms,
    )
    places = st.fixed_dictionaries(
        {
            "current_leader_epoch": INT32,
            "fetch_offset": INT64,
            "last_fetched_epoch": INT32,
            "max_bytes": INT32,
            "high_watermark": st.integers(-1, HIGH_WATERMARK_ABSENT - 1),
        }
    )
    for _ in range(2):
        correlation_id, values = data.draw(INT32), data.draw(places)
        frame = frame_of(writer.encode(correlation_id, **values))
        header, body_at = decode_request_header(frame)
        assert header == (1, version, correlation_id, client_id)
        read = decode(FetchRequest, version, frame, body_at)
        assert encode(read, version) == frame[body_at:]
        fast = parse_fetch_request(version, frame, body_at)
        if fast is not None:
            assert same_fetch(fast, read, version)
        assert (read.cluster_id, read.replica_state) == (message.cluster_id, message.replica_state)
        assert (read.max_wait_ms, read.min_bytes) == (message.max_wait_ms, 0)
        assert read.max_bytes == values.pop("max_bytes")
        (topic,) = read.topics
        assert topic.topic_id == message.topics[0].topic_id
        (found,) = topic.partitions
        assert found.partition == partition.partition
        assert found.replica_directory_id == partition.replica_directory_id
        if version < 18:
            values["high_watermark"] = HIGH_WATERMARK_ABSENT
        assert {name: getattr(found, name) for name in values} == values


# Fetch responses


@pytest.mark.parametrize("version", range(4, 19))
@SOME
@given(data=st.data())
def test_fetch_responses_of_one_partition_are_written_as_declared(version, data):
    name, topic_id = data.draw(NAMES), data.draw(UUIDS)
    leader_id, leader_epoch = data.draw(st.just((-1, -1)) | st.tuples(INT32, INT32))
    endpoint = data.draw(
        st.none()
        | st.builds(FetchEndpoint, INT32, NAMES, INT32, st.none() | NAMES | st.just("r" * 200))
    )
    index, error_code = data.draw(INT32), data.draw(INT16)
    leader = FetchResponseCurrentLeader(leader_id=leader_id, leader_epoch=leader_epoch)
    writer = FetchResponseWriter(
        version,
        topic=topic_bytes(version, name, topic_id),
        partition=index,
        leader_id=leader_id,
        leader_epoch=leader_epoch,
        leader_endpoint=endpoint,
        error_code=error_code,
    )
    for least in (0, JOIN_BYTES_MAX):
        chunks = [bytes(least), *data.draw(st.lists(RECORDS, max_size=3))]
        correlation_id, high_watermark, start = data.draw(st.tuples(INT32, INT64, INT64))
        partition = FetchResponsePartition(
            partition_index=index,
            error_code=error_code,
            high_watermark=high_watermark,
            last_stable_offset=-1,
            log_start_offset=start,
            records=b"".join(chunks),
            **({"current_leader": leader} if version >= 12 else {}),
        )
        topic = FetchResponseTopic(partitions=(partition,), **topic_fields(version, name, topic_id))
        nodes = (FetchResponseNodeEndpoint(**endpoint._asdict()),) if endpoint else ()
        message = FetchResponse(responses=(topic,), node_endpoints=nodes if version >= 16 else ())

        records = [memoryview(chunk) for chunk in chunks[not least :]]
        buffers = writer.encode(correlation_id, high_watermark, start, records)

        assert len(buffers) == 1 or least
        frame = frame_of(b"".join(buffers))
        found_id, body_at = decode_response_header(1, version, frame)
        assert found_id == correlation_id
        assert frame[body_at:] == encode(message, version)
        fast = parse_fetch_response(version, frame, body_at)
        if fast is not None:
            assert same_response(fast, message, version)


def same_response(fast, message: FetchResponse, version: int) -> bool:
    (topic,) = message.responses
    (partition,) = topic.partitions
    diverging, snapshot = partition.diverging_epoch, partition.snapshot_id
    topic_read = fast.topic if version >= 13 else fast.topic.decode(errors="replace")
    endpoints = tuple((e.node_id, e.host, e.port, e.rack) for e in message.node_endpoints)
    return (
        fast.error_code == message.error_code
        and topic_read == (topic.topic_id.bytes if version >= 13 else topic.topic)
        and fast.partition == partition.partition_index
        and fast.partition_error_code == partition.error_code
        and fast.high_watermark == partition.high_watermark
        and fast.last_stable_offset == partition.last_stable_offset
        and fast.log_start_offset == partition.log_start_offset
        and (fast.diverging_epoch or (-1, -1)) == (diverging.epoch, diverging.end_offset)
        and (fast.snapshot_id or (-1, -1)) == (snapshot.end_offset, snapshot.epoch)
        and (fast.leader_id, fast.leader_epoch)
        == (partition.current_leader.leader_id, partition.current_leader.leader_epoch)
        and fast.records == (partition.records or b"")
        and fast.node_endpoints == endpoints
        and not partition.aborted_transactions
    )


@pytest.mark.parametrize("version", FETCH_VERSIONS)
@SOME
@given(data=st.data())
def test_fetch_responses_of_one_partition_are_read_as_declared(version, data):
    pairs = st.just((-1, -1)) | st.tuples(INT32, INT32)
    (epoch, end), (leader, leader_epoch), (snapshot_end, snapshot_epoch) = (
        data.draw(pairs) for _ in range(3)
    )
    partition = FetchResponsePartition(
        partition_index=data.draw(INT32),
        error_code=data.draw(INT16),
        high_watermark=data.draw(INT64),
        last_stable_offset=data.draw(INT64),
        log_start_offset=data.draw(INT64),
        diverging_epoch=FetchResponseDivergingEpoch(epoch=epoch, end_offset=end),
        current_leader=FetchResponseCurrentLeader(leader_id=leader, leader_epoch=leader_epoch),
        snapshot_id=FetchResponseSnapshotId(end_offset=snapshot_end, epoch=snapshot_epoch),
        aborted_transactions=data.draw(st.none() | st.just(())),
        preferred_read_replica=data.draw(INT32),
        records=data.draw(st.none() | RECORDS),
    )
    endpoints = st.builds(
        FetchResponseNodeEndpoint, node_id=INT32, host=NAMES, port=INT32, rack=st.none() | NAMES
    )
    message = FetchResponse(
        throttle_time_ms=data.draw(INT32),
        error_code=data.draw(INT16),
        session_id=data.draw(INT32),
        responses=(
            FetchResponseTopic(
                partitions=(partition,),
                **topic_fields(version, data.draw(NAMES), data.draw(UUIDS)),
            ),
        ),
        node_endpoints=(tuple(data.draw(st.lists(endpoints, max_size=2))) if version >= 16 else ()),
    )
    body = encode(message, version)
    texts = [message.responses[0].topic]
    texts += [text or "" for e in message.node_endpoints for text in (e.host, e.rack)]

    fast = parse_fetch_response(version, b"head" + body, 4)

    if all(len(text.encode()) < 127 for text in texts):
        assert fast is not None
    if fast is not None:
        assert same_response(fast, message, version)
        assert parse_fetch_response(version, memoryview(body)) == fast
    for _ in range(4):
        raw = damaged(data, body)
        fast = parse_fetch_response(version, raw)
        if fast is not None:
            assert same_response(fast, decode(FetchResponse, version, raw), version)


@SOME
@given(
    version=st.integers(-1, 20),
    data=st.binary(max_size=120),
    at=st.integers(0, 130),
)
def test_random_bytes_are_left_to_the_codec_or_read_as_declared(version, data, at):
    for parse, cls in (
        (parse_produce, ProduceRequest),
        (parse_fetch_request, FetchRequest),
        (parse_fetch_response, FetchResponse),
    ):
        if parse(version, data, at) is not None:
            try:
                decode(cls, version, data, at)
            except MalformedMessage:
                pytest.fail("read although it is no message")
