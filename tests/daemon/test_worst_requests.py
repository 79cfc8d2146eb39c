"""The hardest legal requests, on one connection and on many: the leader's epoch and commits go on."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from quorumd.wire.headers import encode_request_header
from quorumd.wire.request_limits import REQUEST_LIMITS
from tests.server.worst_requests import WorstRequest, produce, worst_batches, worst_requests
from tests.support.live_cluster import Cluster
from tests.support.raw_client import RawClient, frame

pytestmark = pytest.mark.usefixtures("harmless")

FETCH, LIST_OFFSETS, METADATA, DESCRIBE_CONFIGS = 1, 2, 3, 32
WAIT_S = 60


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
