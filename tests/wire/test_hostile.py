"""Bytes that are no message: only MalformedMessage comes out, and soon; both parsers agree."""

from __future__ import annotations

import random
import struct
import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quorumd.wire.codec import codec_for, decode, encode
from quorumd.wire.errors import LimitExceeded, MalformedMessage
from quorumd.wire.framing import FrameBuffer
from quorumd.wire.headers import (
    decode_request_header,
    decode_response_header,
    encode_request_header,
)
from quorumd.wire.messages.describe_cluster import DescribeClusterRequest
from quorumd.wire.messages.fetch import FetchRequest
from quorumd.wire.messages.init_producer_id import InitProducerIdRequest
from quorumd.wire.messages.metadata import MetadataRequest, MetadataResponse
from quorumd.wire.primitives import Source
from quorumd.wire.registry import APIS
from quorumd.wire.request_limits import REQUEST_LIMITS, RESPONSE_ELEMENTS_MAX, frame_bytes_max
from tests.wire.wire_values import ALL_BODIES, BODY_IDS, examples, messages

MANY = examples(300)
FEW = examples(2)
EACH_BODY = pytest.mark.parametrize(("cls", "version"), ALL_BODIES, ids=BODY_IDS)
ABSURD = ["ffffffff07", "feffffff07", "ffff03", "7fffffff", "80000000", "ffffffffff0f", "7f"]


def verdicts(cls, version, data):
    """What the compiled and the plain parser say: a message, or None for a refusal."""
    codec = codec_for(cls, version)
    elements_max, _ = codec.limit
    try:
        compiled = decode(cls, version, data)
    except MalformedMessage:
        compiled = None
    try:
        plain = codec.construct._parse(Source(data, elements_max), None, "")
    except Exception:
        plain = None
    return compiled, plain


@MANY
@given(body=st.sampled_from(ALL_BODIES), data=st.binary(max_size=300))
def test_random_bytes_are_refused_or_read_and_both_parsers_agree(body, data):
    compiled, plain = verdicts(*body, data)
    assert compiled == plain


def test_both_parsers_refuse_more_elements_than_a_request_may_hold():
    tags = b"\x4e" + 78 * b"\x05\x00"
    assert verdicts(InitProducerIdRequest, 2, b"\0" + bytes(4) + tags) == (None, None)


@pytest.mark.long
@EACH_BODY
@FEW
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_damaged_messages_are_refused_or_read_and_both_parsers_agree(cls, version, data, seed):
    whole = encode(data.draw(messages(cls, version)), version)
    rng = random.Random(seed)
    for _ in range(20):
        compiled, plain = verdicts(cls, version, damaged(whole, rng))
        assert compiled == plain


def damaged(whole: bytes, rng: random.Random) -> bytes:
    data = bytearray(whole)
    for _ in range(rng.randint(1, 2)):
        place = rng.randint(0, len(data))
        match rng.choice(["cut", "flip", "insert", "absurd", "repeat"]):
            case "cut":
                del data[place:]
            case "flip" if place < len(data):
                data[place] ^= rng.randint(1, 255)
            case "insert":
                data[place:place] = rng.randbytes(rng.randint(1, 8))
            case "absurd":
                absurd = bytes.fromhex(rng.choice(ABSURD))
                data[place : place + len(absurd)] = absurd
            case "repeat":
                data[place:place] = data[place : place + 20]
    return bytes(data)


@EACH_BODY
def test_every_cut_of_a_message_is_refused_or_reads_as_a_message(cls, version):
    whole = encode(cls(), version)
    for size in range(len(whole)):
        with pytest.raises(MalformedMessage, match=f"{cls.__name__} version {version}"):
            decode(cls, version, whole[:size])


@pytest.mark.parametrize("count", [2**31 - 2, 2**30, 10**6, 1000])
def test_a_count_beyond_the_bytes_left_is_refused_before_anything_is_read(count):
    old = count.to_bytes(4, "big") + b"\0" * 50
    with pytest.raises(MalformedMessage, match=f"{count} elements in the 50 bytes left"):
        decode(MetadataRequest, 4, old)


def metadata_of_empty_names(count: int) -> bytes:
    return count.to_bytes(4, "big") + b"\0\0" * count + b"\0"


def test_every_request_has_a_limit():
    assert REQUEST_LIMITS.keys() == APIS.keys()


def test_the_limits_are_those_of_the_document():
    text = (Path(__file__).parents[2] / "docs/protocol.md").read_text()
    table = text.partition("| API | elements | KiB |")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:4]] for line in table.splitlines()[2:]]
    told = {name: row[1:] for row in rows for name in row[0].split(", ")}
    for key, limit in REQUEST_LIMITS.items():
        row = told.get(APIS[key].name) or told["all others"]
        assert row == [str(limit.elements), str(limit.size_bytes >> 10)], APIS[key].name


def test_a_request_beyond_its_bytes_is_refused_at_once():
    frame = metadata_of_empty_names(8_000_000)
    began = time.process_time()
    with pytest.raises(LimitExceeded, match="16000005 bytes where 163840 are allowed"):
        decode(MetadataRequest, 4, frame)
    assert time.process_time() - began < 0.1


def test_the_client_id_in_front_of_a_request_does_not_count():
    body = encode(DescribeClusterRequest(), 1)
    limit = REQUEST_LIMITS[60].size_bytes
    frame = encode_request_header(60, 1, 1, "c" * 32_767) + body
    assert decode(DescribeClusterRequest, 1, frame, len(frame) - len(body)) == (
        DescribeClusterRequest()
    )
    with pytest.raises(LimitExceeded, match=f"{limit + 1} bytes where {limit} are allowed"):
        decode(DescribeClusterRequest, 1, bytes(20) + body.ljust(limit + 1, b"x"), 20)


def test_a_request_holds_as_many_elements_as_its_kind_may():
    most = REQUEST_LIMITS[3].elements
    assert len(decode(MetadataRequest, 4, metadata_of_empty_names(most)).topics or ()) == most
    with pytest.raises(LimitExceeded, match=f"more than {most} elements"):
        decode(MetadataRequest, 4, metadata_of_empty_names(most + 1))


def test_all_arrays_of_a_message_share_one_budget():
    # Topics with partitions that are none: each topic's own count is small.
    topic = b"\0\0" + (7).to_bytes(4, "big") + b"\0" * 28 * 7
    head = bytes.fromhex("ffffffff 00000000 00000000 7fffffff 00 00000000 ffffffff")
    whole = head + (16).to_bytes(4, "big") + topic * 16 + bytes(4)
    assert len(decode(FetchRequest, 9, whole).topics) == 16
    body = head + (17).to_bytes(4, "big") + topic * 17 + bytes(4)
    with pytest.raises(LimitExceeded, match="more than 128 elements"):
        decode(FetchRequest, 9, body)


def test_a_response_may_hold_far_more_than_a_request():
    names = bytes(4) + (10_000).to_bytes(4, "big") + bytes(8) * 10_000
    assert len(decode(MetadataResponse, 0, names).topics) == 10_000
    many = bytes(4) + (RESPONSE_ELEMENTS_MAX + 1).to_bytes(4, "big")
    with pytest.raises(LimitExceeded, match="more than 131072 elements"):
        decode(MetadataResponse, 0, many + bytes(8) * (RESPONSE_ELEMENTS_MAX + 1))


def test_many_unknown_tags_are_refused_and_some_are_read_over():
    body = bytes.fromhex("0000000000000000000000000000000000ffffffff010101")
    assert decode(FetchRequest, 17, body + b"\x64" + b"\x63\0" * 100).topics == ()
    tags = bytes.fromhex("c03e") + b"\x63\0" * 8_000
    with pytest.raises(LimitExceeded, match="more than 128 elements"):
        decode(FetchRequest, 17, body + tags)


KNOWN = st.sampled_from(
    [
        struct.pack(">hh", key, version)
        for key, spec in APIS.items()
        for version in (spec.min_version, spec.max_version)
    ]
)
"""API key and version of requests that are served."""
NO_CLIENT_ID = st.binary(min_size=4, max_size=4).map(
    lambda correlation_id: correlation_id + b"\xff\xff"
)


@MANY
@given(
    frame=st.binary(max_size=60)
    | st.builds(bytes.__add__, KNOWN, st.binary(max_size=60))
    | st.tuples(KNOWN, NO_CLIENT_ID, st.binary(max_size=60)).map(b"".join)
)
@example(frame=struct.pack(">hhihs", 18, 0, 1, 1, b"c"))
@example(frame=struct.pack(">hhihB", 18, 3, 1, -1, 0))
def test_random_request_headers_are_refused_or_read(frame):
    try:
        header, body_at = decode_request_header(frame)
    except MalformedMessage:
        return
    assert 10 <= body_at <= len(frame)
    assert isinstance(header.client_id, str)


@given(data=st.binary(max_size=40))
@example(data=bytes(4) + b"\1\7\2ab")
@examples(200)
def test_random_response_headers_are_refused_or_read(data):
    try:
        _, body_at = decode_response_header(52, 2, data)
    except MalformedMessage:
        return
    assert 5 <= body_at <= len(data)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0012",
        "7fff 0000 00000001 ffff",  # no such key
        "0034 0003 00000001 ffff 00",  # no such version
        "0001 0003 00000001 ffff",  # a version that is no longer spoken
        "0034 0002 00000001 0005 6161",  # the client id is cut
        "0034 0002 00000001 ffff",  # the tags are missing
        "0034 0002 00000001 ffff 01",
        "0034 0002 00000001 ffff 01 05 20 00",
        "0034 0002 00000001 ffff ffffffffff01",
        "0034 0002 00000001 ffff ffffff07",
        "0012 0063 00000001 ffff",  # an unknown ApiVersions has tags all the same
    ],
)
def test_headers_that_are_none_are_refused(text):
    with pytest.raises(MalformedMessage):
        decode_request_header(bytes.fromhex(text))


@pytest.mark.parametrize(("version", "tags"), [("0005", "00"), ("7fff", "00"), ("ffff", "")])
def test_an_api_versions_request_of_an_unknown_version_keeps_its_header(version, tags):
    frame = bytes.fromhex("0012" + version + "00000009 0001 71" + tags)
    header, body_at = decode_request_header(frame)
    assert (header.api_key, header.correlation_id, header.client_id) == (18, 9, "q")
    assert body_at == len(frame)


def test_tags_of_a_request_header_are_skipped():
    frame = bytes.fromhex("0034 0002 00000001 ffff 02 00 02 abcd 63 00") + b"body"
    assert frame[decode_request_header(frame)[1] :] == b"body"


def framed(*payloads: bytes) -> bytes:
    return b"".join(len(payload).to_bytes(4, "big") + payload for payload in payloads)


@given(
    payloads=st.lists(st.binary(min_size=1, max_size=40), max_size=8),
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=20),
)
@examples(200)
def test_frames_come_out_whole_however_the_stream_is_cut(payloads, sizes):
    stream = framed(*payloads)
    buffer = FrameBuffer(max_frame_bytes=100)
    found = []
    at = turn = 0
    while at < len(stream):
        size = sizes[turn % len(sizes)]
        buffer.feed(stream[at : at + size])
        found += buffer.frames()
        at, turn = at + size, turn + 1
    assert found == payloads
    assert buffer.bytes_held == 0


@pytest.mark.parametrize("length", [0, -1, -(2**31), 101, 2**31 - 1])
def test_a_length_that_is_no_length_is_refused_after_the_frames_before_it(length):
    buffer = FrameBuffer(max_frame_bytes=100)
    buffer.feed(framed(b"one", b"two") + length.to_bytes(4, "big", signed=True))
    assert buffer.frames() == [b"one", b"two"]
    with pytest.raises(MalformedMessage, match=f"a frame of {length} bytes; 1 to 100"):
        buffer.frames()


@pytest.mark.parametrize("more", [0, 1])
def test_a_request_may_be_as_large_as_its_kind_though_it_comes_in_pieces(more):
    limit = 300_000
    buffer = FrameBuffer(max_frame_bytes=1 << 30, limit_of=lambda key: limit)
    request = bytes(limit + more)
    buffer.feed(framed(request)[:100])
    if more:
        with pytest.raises(MalformedMessage, match=f"{limit} are allowed"):
            buffer.frames()
    else:
        assert buffer.frames() == []
        buffer.feed(framed(request)[100:])
        assert buffer.frames() == [request]


@pytest.mark.parametrize(
    ("key", "length", "allowed"),
    [(3, 300_000, 262_144), (52, 100_000_000, 262_144), (0, 20_000_000, 16 << 20)],
)
def test_a_request_too_large_for_its_kind_is_refused_before_it_is_whole(key, length, allowed):
    buffer = FrameBuffer(max_frame_bytes=1 << 30, limit_of=frame_bytes_max)
    head = struct.pack(">ih", length, key)
    for at in range(5):
        buffer.feed(head[at : at + 1])
        assert buffer.frames() == []
    buffer.feed(head[5:] + bytes(1000))
    with pytest.raises(MalformedMessage, match=f"api key {key}; {allowed} are allowed"):
        buffer.frames()


def test_a_large_produce_request_is_waited_for():
    buffer = FrameBuffer(max_frame_bytes=1 << 30, limit_of=frame_bytes_max)
    buffer.feed(framed(b"first") + struct.pack(">ih", 9_000_000, 0) + bytes(8_000_000))
    assert buffer.frames() == [b"first"]
    assert buffer.frames() == []
    buffer.feed(bytes(1_000_000))
    assert [len(each) for each in buffer.frames()] == [9_000_000]
    assert buffer.bytes_held == 2


@pytest.mark.parametrize("sizes", [[4000, 70_000], [1, 5, 4095, 65_536]])
def test_of_a_frame_that_is_cut_the_beginning_comes_when_all_of_it_was_fed(sizes):
    large = struct.pack(">h", 0) + bytes(range(250)) * 2000
    stream = framed(b"first", large, b"next", large, b"last")
    buffer = FrameBuffer(1 << 30, limit_of=lambda key: 300_000, cut=frozenset({0}))
    found, at, turn, held = [], 0, 0, 0
    while at < len(stream):
        size = sizes[turn % len(sizes)]
        buffer.feed(memoryview(stream)[at : at + size])
        at, turn = at + size, turn + 1
        while frames := buffer.frames():
            found += frames
            assert at >= len(framed(*(b"first", large, b"next", large, b"last")[: len(found)]))
        held = max(held, buffer.bytes_held)
    assert found == [b"first", large[:4096], b"next", large[:4096], b"last"]
    assert buffer.bytes_held == 0
    assert 4096 <= held < 300_000


def test_a_frame_of_the_largest_size_is_taken():
    buffer = FrameBuffer(max_frame_bytes=100)
    buffer.feed(framed(b"x" * 100))
    assert buffer.frames() == [b"x" * 100]


def test_a_large_frame_in_many_pieces_is_copied_a_bounded_number_of_times():
    payload = bytes(8 * 1024 * 1024)
    stream = framed(payload, b"next")
    buffer = FrameBuffer(max_frame_bytes=len(payload))
    found = []
    began = time.process_time()
    for at in range(0, len(stream), 512):
        buffer.feed(memoryview(stream)[at : at + 512])
        found += buffer.frames()
    assert found == [payload, b"next"]
    assert time.process_time() - began < 2


def test_single_bytes_do_not_pile_up_as_objects():
    buffer = FrameBuffer(max_frame_bytes=10_000)
    stream = framed(b"x" * 9_000)
    for at in range(8_000):
        buffer.feed(stream[at : at + 1])
        assert buffer.frames() == []
        assert len(buffer._chunks) <= 1025
    assert buffer.bytes_held == 8_000
