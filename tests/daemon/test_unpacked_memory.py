"""Small batches that unpack to much, on many connections at once: the node's memory hardly grows."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from quorumd.wire.headers import encode_request_header
from tests.server.worst_requests import produce, worst_compressed
from tests.support.live_cluster import running_cluster
from tests.support.raw_client import RawClient, frame

CONNECTIONS = 24
WAIT_S = 60
GROWN_MAX_MB = 250


@pytest.mark.parametrize("name", ["gzip", "lz4", "large lz4 blocks", "snappy", "zstd"])
def test_batches_that_unpack_to_much_take_little_memory(folder: Path, name: str) -> None:
    worst = produce(9, [dict(worst_compressed())[name]])
    data = frame(encode_request_header(worst.api_key, worst.version, 1, "worst") + worst.body)
    with running_cluster(folder, size=1) as cluster, contextlib.ExitStack() as stack:
        port, pid = cluster.port(cluster.wait_leader()), cluster.pid(1)
        clients = [
            stack.enter_context(RawClient(port, timeout_s=WAIT_S)) for _ in range(CONNECTIONS)
        ]
        before = peak_mb(pid)
        for client in clients:
            client.send(data)
        for client in clients:
            client.read_frame()
        assert peak_mb(pid) - before < GROWN_MAX_MB


def peak_mb(pid: int) -> float:
    """The most memory that a process has had so far."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024
