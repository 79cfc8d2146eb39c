"""Messages and frames at the edges of what is permitted: the last that is read, the first that is not."""

from __future__ import annotations

import struct

import pytest

from quorumd.wire.codec import decode, encode
from quorumd.wire.errors import MalformedMessage
from quorumd.wire.framing import FRAMES_MAX, FrameBuffer
from quorumd.wire.headers import HEADER_TAGS_MAX, decode_request_header
from quorumd.wire.messages.describe_cluster import DescribeClusterRequest
from quorumd.wire.messages.fetch import FetchRequest
from quorumd.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from quorumd.wire.primitives import STRING_BYTES_MAX
from quorumd.wire.request_limits import REQUEST_LIMITS
from quorumd.wire.varints import encode_unsigned_varint
from tests.wire.test_hostile import framed

HEADER = bytes.fromhex("0034 0002 00000001 ffff")
"""Of a Vote request of version 2, up to its tags."""


def test_a_body_of_just_the_permitted_size_is_read() -> None:
    body = encode(DescribeClusterRequest(), 1).ljust(REQUEST_LIMITS[60].size_bytes, b"x")
    assert decode(DescribeClusterRequest, 1, body) == DescribeClusterRequest()


@pytest.mark.parametrize("version", [8, 9])
def test_the_longest_string_is_read_and_a_longer_one_is_not(version: int) -> None:
    request = MetadataRequest(topics=(MetadataRequestTopic(name="n" * STRING_BYTES_MAX),))
    body = encode(request, version)
    assert decode(MetadataRequest, version, body) == request
    if version >= 9:
        length = encode_unsigned_varint(STRING_BYTES_MAX + 1)
        longer = body.replace(length + b"n", encode_unsigned_varint(STRING_BYTES_MAX + 2) + b"nn")
        with pytest.raises(MalformedMessage, match=f"a string of {STRING_BYTES_MAX + 1} bytes"):
            decode(MetadataRequest, version, longer)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_tag_has_just_the_size_that_its_data_have(size: int) -> None:
    body = encode(FetchRequest(cluster_id="c"), 17)
    cut = body.removesuffix(b"\1\0\2\2c")
    assert cut != body
    tagged = cut + bytes((1, 0, size, 2)) + b"c".ljust(2, b"\0")
    if size == 2:
        assert decode(FetchRequest, 17, tagged).cluster_id == "c"
        return
    with pytest.raises(MalformedMessage, match="the size of a tag is not that of its data"):
        decode(FetchRequest, 17, tagged)


# -- headers


def test_a_header_may_have_so_many_tags_and_no_more() -> None:
    tags = b"\x63\0" * HEADER_TAGS_MAX
    frame = HEADER + encode_unsigned_varint(HEADER_TAGS_MAX) + tags
    assert decode_request_header(frame)[1] == len(frame)
    with pytest.raises(MalformedMessage, match="1001 tags in a header"):
        decode_request_header(HEADER + encode_unsigned_varint(HEADER_TAGS_MAX + 1) + tags + b"c\0")


def test_a_count_of_tags_below_zero_means_none() -> None:
    for count in (1 << 31, (1 << 31) + 1, (1 << 32) - 1):
        frame = HEADER + encode_unsigned_varint(count) + b"body"
        assert frame[decode_request_header(frame)[1] :] == b"body"
    with pytest.raises(MalformedMessage, match="2147483647 tags in a header"):
        decode_request_header(HEADER + encode_unsigned_varint((1 << 31) - 1) + b"body")


# -- frames


def test_so_many_frames_are_cut_at_once_and_the_others_later() -> None:
    buffer = FrameBuffer(max_frame_bytes=100)
    buffer.feed(framed(*(b"%03d" % n for n in range(2 * FRAMES_MAX + 1))))
    found = [len(buffer.frames()) for _ in range(4)]
    assert found == [FRAMES_MAX, FRAMES_MAX, 1, 0]


def test_nothing_is_held_any_more_of_a_frame_that_is_thrown_away() -> None:
    buffer = FrameBuffer(1 << 30, limit_of=lambda key: 300_000, cut=frozenset({0}))
    buffer.feed(struct.pack(">ih", 500_000, 0) + bytes(5_000))
    assert buffer.frames() == []
    assert buffer.bytes_held > 0
    buffer.clear()
    assert buffer.bytes_held == 0
