"""kafka-python, aiokafka and librdkafka write to a live quorum and read it, also while leaders die."""

from __future__ import annotations

import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from quorumd.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tests.clients.adapters import CLIENTS
from tests.clients.interface import (
    EARLIEST,
    LATEST,
    Client,
    Consumed,
    Producer,
    Start,
    Timestamp,
)
from tests.clients.kafka_python import KafkaAdminClient
from tests.clients.librdkafka import LibrdkafkaConsumer
from tests.support.live_cluster import TOPIC, Cluster

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

MAX_BATCH_BYTES = 1 << 20
BATCH_AND_RECORD_BYTES = 100
AT_ONCE_S = 5.0
RECORDS_THROUGH_DEATHS = 1_500


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> Client:
    return CLIENTS[request.param]


def offsets_of(outcomes: list[int | Exception]) -> list[int]:
    """The offsets of records that were all acknowledged."""
    offsets = []
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
        offsets.append(outcome)
    return offsets


def write(producer: Producer, values: list[bytes]) -> list[int]:
    for value in values:
        producer.send(value)
    return offsets_of(producer.finish())


def read(client: Client, cluster: Cluster, start: Start, count: int) -> list[Consumed]:
    consumer = client.consumer(cluster.bootstrap, start)
    try:
        return consumer.read(count)
    finally:
        consumer.close()


# -- producing


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("idempotent", [False, True])
def test_what_is_written_is_read_back_whole(
    cluster: Cluster, client: Client, idempotent: bool, codec: str | None
) -> None:
    producer = client.producer(cluster.bootstrap, idempotent=idempotent, codec=codec)
    time_ms = int(time.time() * 1000) - 60_000
    sent = []
    for i in range(50):
        key = None if i % 3 == 0 else b"key-%d" % i
        value, headers = b"value-%d " % i * (i + 1), (("number", b"%d" % i), ("empty", b""))
        producer.send(value, key=key, timestamp_ms=time_ms + i, headers=headers)
        sent.append((time_ms + i, key, value, headers))
    offsets = offsets_of(producer.finish())

    found = read(client, cluster, offsets[0], len(sent))
    assert [record.offset for record in found] == offsets
    assert [tuple(record[1:]) for record in found] == sent


@pytest.mark.parametrize("idempotent", [False, True])
def test_the_largest_batch_is_taken_and_a_larger_one_refused(
    cluster: Cluster, client: Client, idempotent: bool
) -> None:
    noise = random.Random(7).randbytes(MAX_BATCH_BYTES)
    largest = noise[: MAX_BATCH_BYTES - BATCH_AND_RECORD_BYTES]
    offsets = write(client.producer(cluster.bootstrap, idempotent=idempotent), [largest] * 3)
    assert [r.value for r in read(client, cluster, offsets[0], 3)] == [largest] * 3

    producer = client.producer(cluster.bootstrap, idempotent=idempotent)
    producer.send(noise)
    (outcome,) = producer.finish()
    assert isinstance(outcome, Exception)
    text = repr(outcome).upper()
    assert "MESSAGESIZETOOLARGE" in text or "MSG_SIZE_TOO_LARGE" in text


# -- consuming


def test_reading_begins_at_the_earliest_record(cluster: Cluster, client: Client) -> None:
    write(client.producer(cluster.bootstrap), [b"first"])
    (found,) = read(client, cluster, EARLIEST, 1)
    log = cluster.records(cluster.wait_leader())
    assert (found.offset, found.value) == (log[0].offset, log[0].value)


def test_reading_begins_behind_the_latest_record(cluster: Cluster, client: Client) -> None:
    write(client.producer(cluster.bootstrap), [b"before"])
    consumer = client.consumer(cluster.bootstrap, LATEST)
    offsets = write(client.producer(cluster.bootstrap), [b"after-1", b"after-2"])
    found = consumer.read(2)
    consumer.close()
    assert [(r.offset, r.value) for r in found] == list(
        zip(offsets, [b"after-1", b"after-2"], strict=True)
    )


def test_reading_begins_at_an_offset_within_a_batch(cluster: Cluster, client: Client) -> None:
    values = [b"%d" % i for i in range(40)]
    offsets = write(client.producer(cluster.bootstrap, codec="gzip"), values)
    found = read(client, cluster, offsets[17], 23)
    assert [(r.offset, r.value) for r in found] == list(zip(offsets[17:], values[17:], strict=True))


def test_reading_begins_at_a_timestamp(cluster: Cluster, client: Client) -> None:
    # Beyond every earlier record's time, and within what a node takes of the future.
    newest = max((r.timestamp for r in cluster.records(cluster.wait_leader())), default=0)
    start_ms = max(newest, int(time.time() * 1000)) + 1000
    producer = client.producer(cluster.bootstrap)
    for i in range(10):
        producer.send(b"%d" % i, timestamp_ms=start_ms + 10 * i)
    offsets = offsets_of(producer.finish())
    (found,) = read(client, cluster, Timestamp(start_ms + 35), 1)
    assert (found.offset, found.timestamp_ms, found.value) == (offsets[4], start_ms + 40, b"4")


# -- leaders die


@pytest.mark.parametrize("idempotent", [False, True])
def test_nothing_acknowledged_is_lost_when_leaders_are_killed(
    cluster: Cluster, client: Client, idempotent: bool
) -> None:
    """Two leaders get SIGKILL while records are under way; a consumer reads through it all."""
    begin = cluster.wait_converged()
    consumer = client.consumer(cluster.bootstrap, begin)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(consumer.read, RECORDS_THROUGH_DEATHS)
        sent = [b"record-%d" % i for i in range(RECORDS_THROUGH_DEATHS)]
        outcomes = write_while_leaders_die(cluster, client, sent, idempotent)
        consumed = reading.result()
    consumer.close()
    offsets = offsets_of(outcomes)

    cluster.start()
    cluster.wait_ready()
    cluster.assert_same_logs()
    log = [r for r in cluster.records(cluster.wait_leader()) if r.offset >= begin]
    by_offset = {record.offset: record.value for record in log}
    assert [by_offset.get(offset) for offset in offsets] == sent
    values = [record.value for record in log]
    if idempotent:
        assert values == sent
    else:
        assert Counter(values).keys() == Counter(sent).keys()
    # Exactly the log, in its order, without a gap and without a repetition.
    seen = [(record.offset, record.value) for record in consumed]
    assert len(seen) == RECORDS_THROUGH_DEATHS
    assert seen == [(record.offset, record.value) for record in log][: len(seen)]


def write_while_leaders_die(
    cluster: Cluster, client: Client, values: list[bytes], idempotent: bool
) -> list[int | Exception]:
    """A third of the values, the leader's death, a third, its successor's death, the rest."""
    producer = client.producer(cluster.bootstrap, idempotent=idempotent)
    third = len(values) // 3
    victim = cluster.wait_leader()
    for i, value in enumerate(values):
        producer.send(value)
        if i == third:
            cluster.kill(victim)
        elif i == 2 * third:
            successor = cluster.wait_leader()
            assert successor != victim
            cluster.start(victim)
            cluster.wait_ready(victim)
            cluster.kill(successor)
    return producer.finish()


# -- what does not exist says so


def test_a_consumer_that_asks_for_a_group_is_told_at_once(cluster: Cluster, client: Client) -> None:
    since = time.monotonic()
    with pytest.raises(Exception, match=r"(?i)group_?authorization_?failed"):
        client.join_group(cluster.bootstrap)
    assert time.monotonic() - since < AT_ONCE_S


def test_a_transactional_producer_is_told_at_once(cluster: Cluster, client: Client) -> None:
    since = time.monotonic()
    with pytest.raises(Exception, match=r"(?i)transactional_?id_?authorization_?failed") as caught:
        client.begin_transactions(cluster.bootstrap)
    assert time.monotonic() - since < AT_ONCE_S, caught.value


def test_librdkafka_reads_what_is_assigned_after_one_word_about_groups(cluster: Cluster) -> None:
    """It asks for a coordinator whatever it needs one for; the error is an event, not the end."""
    offsets = write(CLIENTS["librdkafka"].producer(cluster.bootstrap), [b"1", b"2"])
    consumer = LibrdkafkaConsumer(cluster.bootstrap, {}, offsets[0])
    assert [r.value for r in consumer.read(2)] == [b"1", b"2"]
    later = write(CLIENTS["librdkafka"].producer(cluster.bootstrap), [b"3"])
    assert [r.offset for r in consumer.read(1)] == later
    assert consumer.group_errors <= 1
    since = time.monotonic()
    consumer.close()
    assert time.monotonic() - since < AT_ONCE_S


def test_kafka_pythons_admin_client_describes_the_quorum(cluster: Cluster) -> None:
    leader, end = cluster.wait_leader(), cluster.wait_converged()
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    try:
        described = admin.describe_metadata_quorum()
        nodes = admin.describe_cluster()["brokers"]
        topics = admin.list_topics()
    finally:
        admin.close()
    (partition,) = described["topics"][0]["partitions"]
    assert (partition["leader_id"], partition["high_watermark"]) == (leader, end)
    ends = {voter["replica_id"]: voter["log_end_offset"] for voter in partition["current_voters"]}
    assert ends == dict.fromkeys(cluster.ids, end)
    ports = {node["broker_id"]: node["port"] for node in nodes}
    assert ports == {node: cluster.port(node) for node in cluster.ids}
    assert topics == [TOPIC]


def test_every_node_gives_the_same_metadata(cluster: Cluster) -> None:
    leader = cluster.wait_leader()
    cluster.wait_converged()
    topics = (MetadataRequestTopic(name=TOPIC),)
    expected = (leader, cluster.ids, cluster.ids)
    for node in cluster.ids:

        def is_whole(node: int = node) -> bool | None:
            answer = cluster.ask(node, MetadataRequest(topics=topics), MetadataResponse, 12)
            assert answer is not None
            assert [broker.node_id for broker in answer.brokers] == list(cluster.ids)
            (partition,) = answer.topics[0].partitions
            found = (partition.leader_id, partition.replica_nodes, partition.isr_nodes)
            return found == expected or None

        # Connections to a node that was away a moment ago are made again within a second.
        cluster.wait_for(is_whole, f"node {node} to give {expected}", 5.0)
