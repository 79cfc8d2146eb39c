"""The hardest legal requests, on one connection and on many: the leader's epoch and commits go on."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.headers import encode_request_header
from quorumd.wire.messages.produce import (
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
    ProduceResponse,
)
from quorumd.wire.metadata_topic import TOPIC, TOPIC_ID
from quorumd.wire.records import Record, build_batch
from quorumd.wire.registry import APIS
from quorumd.wire.request_limits import REQUEST_LIMITS
from tests.server.worst_requests import WorstRequest, produce, worst_batches, worst_requests
from tests.support.live_cluster import Cluster
from tests.support.raw_client import RawClient, frame, request

pytestmark = pytest.mark.usefixtures("harmless")

PRODUCE, FETCH, LIST_OFFSETS, METADATA, DESCRIBE_CONFIGS = 0, 1, 2, 3, 32
WAIT_S = 60
QUESTIONS = (LIST_OFFSETS, METADATA, 10, 18, 23, DESCRIBE_CONFIGS, 35, 46, 55, 60)
"""APIs whose response is the same again."""


def hardest() -> Iterator[WorstRequest]:
    """The five APIs that cost most: each at its limit, in its newest version."""
    newest = {FETCH: 18, LIST_OFFSETS: 11, METADATA: 13, DESCRIBE_CONFIGS: 4}
    made = worst_requests(lambda key: REQUEST_LIMITS[key].elements if key in newest else 0)
    for worst in made:
        if worst.version == newest[worst.api_key] and not worst.name.endswith(("tags", "long")):
            yield worst
    # Of no use to anybody, which is found out at its last record: the log need not hold it.
    yield produce(9, [dict(worst_batches())["a record too many"]])


def sent(worst: WorstRequest) -> bytes:
    return frame(encode_request_header(worst.api_key, worst.version, 1, "worst") + worst.body)


def flood(port: int, data: bytes, count: int) -> None:
    """Send all at once, and read as many answers."""
    client = RawClient(port, timeout_s=WAIT_S)
    with client, ThreadPoolExecutor(1) as sender:
        sending = sender.submit(client.send, data)
        for _ in range(count):
            client.read_frame()
        sending.result()


@pytest.mark.parametrize(("connections", "rounds"), [(1, 20), (20, 1)])
def test_the_worst_requests_disturb_nobody(quorum: Cluster, connections: int, rounds: int) -> None:
    requests = [sent(worst) for worst in hardest()] * rounds
    port = quorum.port(quorum.wait_leader())
    with ThreadPoolExecutor(connections) as clients:
        floods = [
            clients.submit(flood, port, b"".join(requests), len(requests))
            for _ in range(connections)
        ]
        for each in floods:
            each.result()


def test_a_client_may_have_the_longest_id_there_is(quorum: Cluster) -> None:
    with RawClient(quorum.port(quorum.wait_leader())) as client:
        for key in QUESTIONS:
            spec, responses = APIS[key], []
            asked = spec.request()
            for client_id in ("c", "c" * 32_767):
                client.send(frame(request(key, spec.max_version, asked, client_id=client_id)))
                responses.append(client.read_frame())
            assert responses[0] == responses[1], spec.name


@pytest.mark.parametrize("version", [3, 12, 13])
def test_a_produce_request_beyond_its_limit_is_answered_and_the_next_one_too(
    quorum: Cluster, version: int
) -> None:
    leader = quorum.wait_leader()
    named = {"topic_id": TOPIC_ID} if version >= 13 else {"name": TOPIC}

    def asked(records: bytes, acks: int = -1) -> ProduceRequest:
        partition = ProduceRequestPartition(index=0, records=records)
        topic = ProduceRequestTopic(partition_data=(partition,), **named)
        return ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=(topic,))

    with RawClient(quorum.port(leader), timeout_s=WAIT_S) as client:
        for records in (bytes(17 << 20), bytes(90 << 20), build_batch([Record(value=b"small")])):
            answer = client.ask(PRODUCE, version, asked(records), ProduceResponse)
            (topic,) = answer.responses
            (partition,) = topic.partition_responses
            assert {field: getattr(topic, field) for field in named} == named
            is_large = len(records) > 1 << 20
            assert partition.error_code == (ErrorCode.MESSAGE_TOO_LARGE if is_large else 0)
        # Who awaits no answer is told by the end of the connection.
        client.send(frame(request(PRODUCE, version, asked(bytes(17 << 20), acks=0))))
        assert client.wait_hungup() == b""


def test_a_produce_request_beyond_what_any_request_may_have_closes_its_connection(
    quorum: Cluster,
) -> None:
    with RawClient(quorum.port(quorum.wait_leader())) as client:
        client.send(struct.pack(">ihh", (100 << 20) + 1, PRODUCE, 9))
        assert client.wait_hungup() == b""
