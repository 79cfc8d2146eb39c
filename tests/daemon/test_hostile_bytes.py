"""Bytes that are no requests, at a live quorum under load: one connection ends, and nobody else notices."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial

import pytest

from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from quorumd.wire.records import Record, build_batch
from quorumd.wire.registry import APIS
from tests.support.live_cluster import Cluster
from tests.support.load import PRODUCE, PRODUCE_VERSION, Load, produce, produce_message, produce_of
from tests.support.raw_client import Hungup, RawClient, frame, request

pytestmark = pytest.mark.usefixtures("harmless")

API_VERSIONS = 18
LIMIT_BYTES = 100 * 2**20
SEED = 20_261_120


def follower_of(quorum: Cluster) -> int:
    leader = quorum.wait_leader()
    return next(node for node in quorum.ids if node != leader)


def targets(quorum: Cluster) -> tuple[int, int]:
    """The leader and a follower."""
    leader = quorum.wait_leader()
    return leader, next(node for node in quorum.ids if node != leader)


def sent_to(port: int, data: bytes) -> bytes:
    """What a node answers before it closes the connection on which this came."""
    with RawClient(port) as client:
        try:
            client.send(data)
        except ConnectionError:
            return b""
        return client.wait_hungup()


def is_logged_since(quorum: Cluster, node: int, begun: int, texts: Sequence[str]) -> bool:
    """A new line of a node's log has all these texts; the lines of what other tests sent may be late."""
    lines = quorum.output(node)[begun:].splitlines()
    return any(all(text in line for text in texts) for line in lines)


def assert_closed_and_named(quorum: Cluster, node: int, data: bytes, *texts: str) -> None:
    """These bytes close their connection, and a line of the log has all these texts.

    Lines that strangers cause are limited: after a test that caused many, the first may be left out.
    """
    for _ in range(10):
        begun = len(quorum.output(node))
        assert sent_to(quorum.port(node), data) == b""
        try:
            quorum.wait_for(
                partial(is_logged_since, quorum, node, begun, texts),
                f"{texts} in the log",
                1.0,
            )
        except AssertionError:
            continue
        return
    raise AssertionError(f"no line with {texts} in the log of node {node}")


@pytest.mark.parametrize("length", [-1, 0, LIMIT_BYTES + 1, 2**31 - 1])
def test_a_frame_of_an_absurd_length_closes_its_connection_and_is_named(
    quorum: Cluster, length: int
) -> None:
    for node in targets(quorum):
        data = struct.pack(">i", length) + b"x" * 64
        assert_closed_and_named(quorum, node, data, "why=malformed", f"a frame of {length} bytes")


def test_an_http_request_on_the_wrong_port_closes_its_connection(quorum: Cluster) -> None:
    node, _ = targets(quorum)
    data = b"GET /status HTTP/1.1\r\nHost: x\r\n\r\n"
    assert_closed_and_named(quorum, node, data, "connection closed", "malformed")


def test_random_bytes_by_the_hundred_close_their_own_connections_only(quorum: Cluster) -> None:
    rng = random.Random(SEED)
    for node in targets(quorum):
        for _ in range(60):
            content = rng.randbytes(rng.choice((1, 7, 8, 30, 200, 5000)))
            data = frame(content) if rng.random() < 0.7 else content
            with RawClient(quorum.port(node)) as client:
                client.send(data)
                if rng.random() < 0.3:
                    client.wait_hungup() if data == frame(content) else client.close()


def test_known_requests_with_random_bodies_are_refused_or_answered(quorum: Cluster) -> None:
    rng = random.Random(SEED)
    for node in targets(quorum):
        for spec in APIS.values():
            for _ in range(6):
                version = rng.randint(spec.min_version, spec.max_version)
                head = struct.pack(">hhih", spec.key, version, 1, -1) + b"\0"
                body = rng.randbytes(rng.choice((0, 3, 20, 400)))
                with RawClient(quorum.port(node)) as client:
                    client.send(frame(head + body))


def every_cut(data: bytes) -> Iterator[bytes]:
    for size in range(8, len(data), max(1, len(data) // 25)):
        yield data[:size]


def test_a_request_cut_anywhere_closes_its_connection(quorum: Cluster) -> None:
    whole = request(PRODUCE, PRODUCE_VERSION, produce_message([b"never appended"]))
    for node in targets(quorum):
        for cut in every_cut(whole):
            answer = b""
            with RawClient(quorum.port(node)) as client:
                client.send(frame(cut))
                try:
                    answer = client.read_frame()
                except Hungup:
                    continue
            # Only the records were cut, and the request says so itself: refused, not appended.
            assert answer, len(cut)


def test_half_a_frame_and_silence_hold_nobody_up(quorum: Cluster, load: Load) -> None:
    whole = frame(request(PRODUCE, PRODUCE_VERSION, produce_message([b"never appended"])))
    with ExitStack() as stack:
        for node in targets(quorum):
            for size in (1, 3, 4, 10, len(whole) - 1):
                stack.enter_context(RawClient(quorum.port(node))).send(whole[:size])
        load.wait_progress(100)


@pytest.mark.parametrize(
    "count", [b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\x0f", b"\xff\xff\x03"]
)
def test_an_absurd_count_is_refused_before_anything_is_allocated(
    quorum: Cluster, count: bytes
) -> None:
    """An array of up to 2^31 topics in a Metadata request of a few bytes."""
    for node in targets(quorum):
        head = struct.pack(">hhih", 3, 12, 1, -1) + b"\0"
        with RawClient(quorum.port(node)) as client:
            client.send(frame(head + count + b"\0" * 8))
            # 2^32-1 is null, which asks for all topics; the others are no counts of 8 bytes.
            if count.endswith(b"\x0f"):
                assert client.read_frame()
            else:
                assert client.wait_hungup() == b""


@pytest.mark.parametrize(
    ("key", "version", "text"),
    [
        (9999, 0, "9999"),
        (-1, 0, "-1"),
        (52, 3, "Vote has versions 0 to 2, not 3"),
        (0, 99, "Produce has versions 3 to 13, not 99"),
        (1, -1, "Fetch has versions 4 to 18, not -1"),
        (61, 0, "61"),
    ],
)
def test_an_unknown_key_or_version_closes_its_connection_and_is_named(
    quorum: Cluster, key: int, version: int, text: str
) -> None:
    node, _ = targets(quorum)
    data = frame(struct.pack(">hhih", key, version, 1, -1) + b"\0")
    assert_closed_and_named(quorum, node, data, "why=unsupported", text)


def test_an_unknown_version_of_api_versions_is_answered_with_what_is_known(quorum: Cluster) -> None:
    with RawClient(quorum.port(follower_of(quorum))) as client:
        client.send(frame(struct.pack(">hhih", API_VERSIONS, 77, 5, -1) + b"\0"))
        answer = client.answer(API_VERSIONS, 0, ApiVersionsResponse)
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
        known = {entry.api_key: entry.max_version for entry in answer.api_keys}
        assert known[API_VERSIONS] == 5
        # The connection lives on: the client asks again in a version that was named.
        message = ApiVersionsRequest(client_software_name="t", client_software_version="1")
        assert not client.ask(API_VERSIONS, 4, message, ApiVersionsResponse).error_code


def test_what_came_before_unreadable_bytes_is_answered(quorum: Cluster) -> None:
    message = ApiVersionsRequest(client_software_name="t", client_software_version="1")
    with RawClient(quorum.port(follower_of(quorum))) as client:
        client.send(frame(request(API_VERSIONS, 4, message)) + struct.pack(">i", -5))
        assert not client.answer(API_VERSIONS, 4, ApiVersionsResponse).error_code
        assert client.wait_hungup() == b""


# -- records


def corrupted(batch: bytes) -> bytes:
    return batch[:-1] + bytes([batch[-1] ^ 1])


def with_bytes(at: int, data: bytes) -> Callable[[bytes], bytes]:
    return lambda batch: batch[:at] + data + batch[at + len(data) :]


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (corrupted, ErrorCode.CORRUPT_MESSAGE),
        (lambda batch: batch[:-9], ErrorCode.INVALID_RECORD),
        (lambda batch: batch[:30], ErrorCode.INVALID_RECORD),
        (with_bytes(8, struct.pack(">i", 2**31 - 1)), ErrorCode.INVALID_RECORD),
        (with_bytes(8, struct.pack(">i", -7)), ErrorCode.CORRUPT_MESSAGE),
        (with_bytes(57, struct.pack(">i", 2**30)), ErrorCode.CORRUPT_MESSAGE),
        (lambda batch: b"", ErrorCode.INVALID_RECORD),
        (lambda batch: batch + batch, ErrorCode.INVALID_RECORD),
    ],
    ids=["crc", "cut", "header only", "huge size", "negative size", "count", "empty", "two"],
)
def test_a_damaged_batch_is_refused_by_the_leader_and_not_appended(
    quorum: Cluster, damage: Callable[[bytes], bytes], error: ErrorCode
) -> None:
    batch = damage(build_batch([Record(value=b"never appended"), Record(value=b"neither")]))
    with RawClient(quorum.port(quorum.wait_leader())) as client:
        answer = produce(client, produce_of(batch))
        assert ErrorCode(answer.error_code) is error, answer.error_message
        assert answer.error_message
        assert not produce(client, produce_message([b"the connection works on"])).error_code


def test_a_connection_reset_in_the_middle_of_its_request_is_forgotten(
    quorum: Cluster, load: Load
) -> None:
    whole = frame(request(PRODUCE, PRODUCE_VERSION, produce_message([b"x" * 100_000])))
    for _ in range(30):
        with socket.create_connection(("127.0.0.1", quorum.port(quorum.wait_leader()))) as peer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.sendall(whole[: len(whole) // 2])
    load.wait_progress(50)
