"""No consumer sees what is not committed, whatever it tells of the records that it has read before."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from quorumd.server.model.topic import METADATA
from quorumd.wire.messages.fetch import (
    FetchRequest,
    FetchRequestPartition,
    FetchRequestTopic,
    FetchResponse,
)
from tests.support.live_cluster import TOPIC, Cluster, running_cluster
from tests.support.live_snapshots import put
from tests.support.load import PRODUCE, PRODUCE_VERSION, produce_message
from tests.support.raw_client import RawClient, frame, request

READING = f"""
import json, sys
import kafka, kafka.errors

server, end = sys.argv[1], int(sys.argv[2])
partition = kafka.TopicPartition({TOPIC!r}, 0)
consumer = kafka.KafkaConsumer(bootstrap_servers=server, group_id=None, max_partition_fetch_bytes=500)
consumer.assign([partition])
consumer.seek(partition, 0)
found, polls_at_end = [], 0
while polls_at_end < 8:
    try:
        for batch in consumer.poll(200).values():
            found += [record.offset for record in batch]
    except kafka.errors.KafkaConnectionError:
        continue
    polls_at_end += consumer.position(partition) >= end
print(json.dumps(found))
"""
FETCH = 1
VALUE = b"not committed"


@pytest.fixture(scope="module")
def lone_leader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, int, int]]:
    """Cluster, leader, and the offset of a record that only the leader has; it leads for a minute."""
    settings = {"quorum.fetch.timeout.ms": 60_000}
    with running_cluster(tmp_path_factory.mktemp("quorum"), settings=settings) as cluster:
        put(cluster, 50)
        cluster.wait_converged()
        leader = cluster.wait_leader()
        end = cluster.status(leader)["log_end_offset"]
        for node in cluster.ids:
            if node != leader:
                cluster.kill(node)
        with RawClient(cluster.port(leader)) as client:
            client.send(frame(request(PRODUCE, PRODUCE_VERSION, produce_message([VALUE], 60_000))))
            cluster.wait_for(
                lambda: any(record.value == VALUE for record in cluster.records(leader)), "append"
            )
            assert cluster.status(leader)["high_watermark"] == end
            yield cluster, leader, end


@pytest.mark.parametrize("max_bytes", [1 << 20, 1])
@pytest.mark.parametrize("partition_max_bytes", [1 << 20, 0])
@pytest.mark.parametrize("names_cluster", [False, True])
@pytest.mark.parametrize("version", range(12, 19))
def test_a_consumer_that_tells_the_epoch_of_its_last_record_is_no_replica(
    lone_leader: tuple[Cluster, int, int],
    version: int,
    *,
    names_cluster: bool,
    partition_max_bytes: int,
    max_bytes: int,
) -> None:
    """As kafka-python does from its second fetch on."""
    cluster, leader, end = lone_leader
    status = cluster.status(leader)
    epoch, cluster_id = status["epoch"], status["cluster_id"] if names_cluster else None
    for offset in (end - 1, end):
        asked = FetchRequestPartition(
            partition=0,
            fetch_offset=offset,
            current_leader_epoch=epoch,
            last_fetched_epoch=epoch,
            partition_max_bytes=partition_max_bytes,
        )
        name = TOPIC if version < 13 else ""
        topic = FetchRequestTopic(topic=name, topic_id=METADATA.topic_id, partitions=(asked,))
        message = FetchRequest(
            cluster_id=cluster_id,
            max_wait_ms=100,
            min_bytes=1,
            max_bytes=max_bytes,
            topics=(topic,),
        )
        with RawClient(cluster.port(leader)) as client:
            row = client.ask(FETCH, version, message, FetchResponse).responses[0].partitions[0]
        assert (row.error_code, row.high_watermark) == (0, end)
        assert VALUE not in (row.records or b"")


def test_kafka_python_reads_on_from_what_it_has_read_and_sees_committed_records_only(
    lone_leader: tuple[Cluster, int, int],
) -> None:
    """In a process of its own: it leaves its sockets open, and raises when it looks for the dead nodes."""
    cluster, leader, end = lone_leader
    command = [sys.executable, "-W", "ignore", "-c", READING, cluster.address(leader), str(end)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) == 50
    assert found[-1] == end - 1
