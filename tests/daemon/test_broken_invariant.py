"""A node in whose callbacks something goes wrong that nothing expects."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from quorumd.wire.messages.produce import (
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
)
from quorumd.wire.metadata_topic import TOPIC
from quorumd.wire.records import Record, build_batch
from tests.support.live_cluster import Cluster
from tests.support.raw_client import RawClient, frame, request

FAULTY_NODE = """
import builtins
import sys
from pathlib import Path
from quorumd.config.load import load
from quorumd.server.net.listeners import Listeners
from quorumd.server.run import run_node

def fails(listeners, loop):
    raise getattr(builtins, sys.argv[2])(sys.argv[3])

Listeners._sweep = fails
raise SystemExit(run_node(load(Path(sys.argv[1]), {})))
"""


@pytest.mark.parametrize(
    ("error", "text", "reason"),
    [
        ("KeyError", "an invariant is broken", "it is a bug, please report it"),
        ("RuntimeError", "an invariant is broken", "it is a bug, please report it"),
        ("RuntimeError", "can't start new thread", "this process may not have more memory"),
        ("MemoryError", "", "this process may not have more memory"),
    ],
)
def test_an_error_in_a_callback_ends_the_node_with_a_report(
    folder: Path, error: str, text: str, reason: str
) -> None:
    cluster = Cluster(folder, size=1, settings={"connections.max.idle.ms": 1000})
    cluster.format()
    node = [sys.executable, "-c", FAULTY_NODE, str(cluster.config_path(1)), error, text]
    ended = subprocess.run(node, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 1, ended.stderr
    report = ended.stderr.partition(" FATAL node ")[2]
    assert reason in report
    assert ("it is a bug" in report) == (text == "an invariant is broken")
    assert "Traceback" in report
    assert f"{error}{': ' if text else ''}" in report
    assert text in report


FAULTY_APPEND = """
import sys
from pathlib import Path
from quorumd.config.load import load
from quorumd.server.model.metrics import Metrics
from quorumd.server.run import run_node

def fails(metrics, sizes):
    if sizes == [int(sys.argv[2])]:
        raise KeyError("an invariant is broken")

Metrics.observe_batches = fails
raise SystemExit(run_node(load(Path(sys.argv[1]), {})))
"""


@pytest.mark.pure
@pytest.mark.parametrize("codec", [0, 4])
def test_an_error_after_a_batch_has_changed_state_ends_the_node(folder: Path, codec: int) -> None:
    cluster = Cluster(folder, size=1)
    cluster.format()
    broken = build_batch([Record(value=b"one that fails")] * 3, codec=codec)
    node = [sys.executable, "-c", FAULTY_APPEND, str(cluster.config_path(1)), str(len(broken))]
    with subprocess.Popen(node, stderr=subprocess.PIPE, text=True) as process:
        try:
            cluster.wait_for(lambda: cluster.is_ready(1) or None, "the node is ready")
            with RawClient(cluster.port(1)) as client:
                for data in (build_batch([Record(value=b"good")]),) * 2:
                    client.send(produced(data))
                    client.read_frame()
                client.send(produced(broken))
                _, report = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 1, report
    assert "FATAL node  a rule of the quorum is broken; this is a bug, please report it" in report
    assert "KeyError: 'an invariant is broken'" in report


def produced(data: bytes) -> bytes:
    partition = ProduceRequestPartition(index=0, records=data)
    topic = ProduceRequestTopic(name=TOPIC, partition_data=(partition,))
    message = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=(topic,))
    return frame(request(0, 9, message))
