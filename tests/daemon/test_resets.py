"""Clients that reset their connections at any moment, thousands of times, on every kind of listener."""

from __future__ import annotations

import contextlib
import random
import select
import socket
import ssl
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from quorumd.wire.messages.fetch import FetchRequest, FetchRequestPartition, FetchRequestTopic
from quorumd.wire.messages.list_offsets import (
    ListOffsetsRequest,
    ListOffsetsRequestPartition,
    ListOffsetsRequestTopic,
)
from quorumd.wire.messages.metadata import MetadataRequest
from quorumd.wire.messages.produce import (
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
)
from quorumd.wire.metadata_topic import TOPIC, TOPIC_ID
from quorumd.wire.records import Record, build_batch
from tests.support.hello_storm import hello
from tests.support.https_cluster import HttpsCluster
from tests.support.live_cluster import Cluster, running
from tests.support.raw_client import frame, request

SEED = 20_261_207
COUNT = 1_500
"""Connections to each listener."""
UNTIL_RESET_S = 0.004
AT_ONCE = struct.pack("ii", 1, 0)
PAGES = ("/", "/livez", "/metrics", "/page.json", "/readyz", "/status", "/nothing")


@pytest.fixture(params=["plaintext", "TLS"])
def node(folder: Path, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """One node whose listener and pages are both plaintext, or both TLS."""
    is_tls = request.param == "TLS"
    with running(HttpsCluster(folder) if is_tls else Cluster(folder, size=1)) as cluster:
        yield cluster


def kafka_requests() -> list[bytes]:
    """Some that are answered at once, some later, from the disk or by another thread."""
    partition = ProduceRequestPartition(index=0, records=build_batch([Record(value=b"x" * 900)]))
    produced = ProduceRequestTopic(name=TOPIC, partition_data=(partition,))
    listed = ListOffsetsRequestPartition(partition_index=0, timestamp=1)
    made = [frame(request(3, 12, MetadataRequest(topics=None)))]
    for acks in (0, 1, -1):
        asked = ProduceRequest(acks=acks, timeout_ms=100, topic_data=(produced,))
        made.append(frame(request(0, 9, asked)))
    for offset in (0, 1 << 40):
        wanted = FetchRequestPartition(
            partition=0, fetch_offset=offset, partition_max_bytes=1 << 20
        )
        topics = (FetchRequestTopic(topic_id=TOPIC_ID, partitions=(wanted,)),)
        made.append(frame(request(1, 15, FetchRequest(max_wait_ms=2, min_bytes=1, topics=topics))))
    listing = ListOffsetsRequest(
        topics=(ListOffsetsRequestTopic(name=TOPIC, partitions=(listed,)),)
    )
    return [*made, frame(request(2, 7, listing))]


def http_requests() -> list[bytes]:
    return [f"GET {page} HTTP/1.1\r\nHost: x\r\n\r\n".encode() for page in PAGES]


def reset_connections(port: int, requests: list[bytes], tls: ssl.SSLContext | None) -> None:
    """Ask for something, often for some of it alone, and reset the connection at any moment."""
    rng = random.Random(SEED)
    first = hello()
    for _ in range(COUNT):
        said = b"".join(rng.choices(requests, k=rng.choice((1, 1, 1, 5))))
        if rng.random() < 0.3:
            said = said[: rng.randrange(len(said))]
        with (
            contextlib.suppress(ConnectionError, ssl.SSLError),
            socket.create_connection(("127.0.0.1", port), 10) as raw,
        ):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
            # To the end of this time, or only until something comes.
            waits_s, awaited = rng.random() * UNTIL_RESET_S, rng.choice(([], [raw]))
            if tls is None:
                raw.sendall(said)
                if rng.random() < 0.1:
                    raw.shutdown(socket.SHUT_WR)
                select.select(awaited, [], [], waits_s)
            elif rng.random() < 0.3:
                raw.sendall(first[: rng.randrange(1, 2 * len(first))])
                select.select(awaited, [], [], waits_s)
            else:
                with tls.wrap_socket(raw, server_hostname="127.0.0.1") as client:
                    client.sendall(said)
                    select.select([client] if awaited else [], [], [], waits_s)


@pytest.mark.parametrize("kind", ["Kafka", "HTTP"])
@pytest.mark.timeout(300)
def test_connections_that_are_reset_at_any_moment_end_no_node(node: Cluster, kind: str) -> None:
    pid = node.pid(1)
    is_kafka = kind == "Kafka"
    port = node.port(1) if is_kafka else int(node.http_url(1, "").rpartition(":")[2])
    requests = kafka_requests() if is_kafka else http_requests()
    tls = node.context(has_certificate=True) if isinstance(node, HttpsCluster) else None
    reset_connections(port, requests, tls)
    node.wait_ready()
    assert node.status(1)["pid"] == pid
    assert "a bug" not in node.output(1)
