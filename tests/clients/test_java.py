"""Kafka's console producer, console consumer and ProducerPerformance use a live quorum."""

from __future__ import annotations

import random
import re
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.clients.conftest import SMALL_SEGMENTS, UNHURRIED
from tests.clients.jvm import (
    CONSUMER,
    PERFORMANCE,
    TOOLS,
    Command,
    Line,
    Running,
    console_consumer,
    console_producer,
    lines_of,
    producer_arguments,
    run_all,
)
from tests.support.commands import quorumctl
from tests.support.live_cluster import TOPIC, Cluster

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
SOON_S = 30.0
"""Half of the time for which Java clients try again what they may."""
MAX_BATCH_BYTES = 1 << 20
BATCH_AND_RECORD_BYTES = 100
NO_LOSS = {"retries": 1000, "delivery_timeout_ms": 60_000}
PACE_S = 0.01


@pytest.fixture(scope="module")
def settings() -> Mapping[str, object]:
    """Without an election that no test has made: Kafka's tools write of each that they see to stderr."""
    return SMALL_SEGMENTS | UNHURRIED


def read(cluster: Cluster, offset: str | int, count: int) -> list[Line]:
    (done,) = run_all([console_consumer(cluster, offset, count)])
    assert done.returncode == 0, done.stderr
    return lines_of(done.stdout)


def test_what_the_console_producer_writes_the_console_consumer_reads(cluster: Cluster) -> None:
    begin = cluster.wait_converged()
    texts = {
        (codec, idempotent): [f"{codec}-{idempotent}-{i}" * (i + 1) for i in range(30)]
        for codec, idempotent in (*((codec, "true") for codec in CODECS), ("none", "false"))
    }
    commands = [
        console_producer(cluster, lines, codec=codec, enable_idempotence=idempotent)
        for (codec, idempotent), lines in texts.items()
    ]
    for done in run_all(commands):
        assert (done.returncode, done.stderr) == (0, "")

    count = sum(map(len, texts.values()))
    found = read(cluster, begin, count)
    for (codec, idempotent), lines in texts.items():
        mine = [line.value for line in found if line.value.startswith(f"{codec}-{idempotent}-")]
        assert mine == lines
    log = cluster.records(cluster.wait_leader())
    assert [line.offset for line in found] == [r.offset for r in log if r.offset >= begin]


def test_what_quorumctl_packs_the_console_consumer_reads(cluster: Cluster, tmp_path: Path) -> None:
    begin = cluster.wait_converged()
    # Of more than 64 KiB: lz4 makes one block of less.
    lines = [f"line-{i}-" * 30 for i in range(1000)]
    path = tmp_path / "lines"
    path.write_text("".join(f"{line}\n" for line in lines))
    batch_bytes = 1 << 19
    for codec in CODECS:
        done = quorumctl(
            *("append", "--bootstrap-server", cluster.bootstrap, "--file", path),
            *("--compression", codec, "--batch-bytes", batch_bytes),
        )
        assert done.code == 0, done.text
    found = read(cluster, begin, len(CODECS) * len(lines))
    assert [line.value for line in found] == lines * len(CODECS)


def test_reading_begins_where_the_console_consumer_says(cluster: Cluster) -> None:
    lines = [f"line-{i}" for i in range(20)]
    (done,) = run_all([console_producer(cluster, lines, codec="lz4")])
    assert done.returncode == 0
    log = cluster.records(cluster.wait_leader())
    first = next(r.offset for r in log if r.value == b"line-0")
    earliest, offset = run_all(
        [console_consumer(cluster, "earliest", 1), console_consumer(cluster, first + 7, 13)]
    )
    (line,) = lines_of(earliest.stdout)
    assert (line.offset, line.value.encode()) == (log[0].offset, log[0].value)
    assert [line.value for line in lines_of(offset.stdout)] == lines[7:]

    # The time between two records, then the records after it: what --offset has no word for.
    by_time = ("--bootstrap-server", cluster.bootstrap, "--topic", TOPIC, "--time")
    newest = max(r.timestamp for r in log)
    shell = Command(f"{TOOLS}.GetOffsetShell", (*by_time, str(newest)))
    (done,) = run_all([shell])
    assert done.returncode == 0, done.stderr
    expected = next(r.offset for r in log if r.timestamp >= newest)
    assert done.stdout.strip() == f"{TOPIC}:0:{expected}"


def test_a_consumer_of_the_latest_sees_only_what_comes(cluster: Cluster, tmp_path: Path) -> None:
    (done,) = run_all([console_producer(cluster, ["before"])])
    assert done.returncode == 0
    end = cluster.wait_converged()
    with ExitStack() as stack:
        consumer = _running(stack, tmp_path, "consumer", console_consumer(cluster, "latest", None))
        producer = _running(stack, tmp_path, "producer", console_producer(cluster, []))
        for i in range(1000):
            producer.feed(f"after-{i}")
            time.sleep(PACE_S)
            if len(found := lines_of(consumer.out)) >= 5:
                break
        assert producer.finish() == 0
    first = int(found[0].value.removeprefix("after-"))
    assert [line.value for line in found] == [f"after-{first + i}" for i in range(len(found))]
    assert found[0].offset >= end


def test_the_largest_batch_is_taken_and_a_larger_one_refused(cluster: Cluster) -> None:
    noise = random.Random(11).randbytes(MAX_BATCH_BYTES // 2 + 1000).hex()
    largest = noise[: MAX_BATCH_BYTES - BATCH_AND_RECORD_BYTES]
    begin = cluster.wait_converged()
    limit = {"max_request_size": 4 * MAX_BATCH_BYTES}
    taken, plain, refused = run_all(
        console_producer(cluster, [text], **limit, enable_idempotence=idempotent)
        for text, idempotent in ((largest, "true"), (largest, "false"), (noise, "true"))
    )
    assert (taken.returncode, taken.stderr) == (0, "")
    assert (plain.returncode, plain.stderr) == (0, "")
    assert "RecordTooLargeException" in refused.stderr
    assert [line.value for line in read(cluster, begin, 2)] == [largest] * 2


def test_a_condition_that_is_not_met_is_refused_once_and_the_reason_is_seen(
    cluster: Cluster,
) -> None:
    since = cluster.wait_converged()
    condition = f"quorumd.if-unchanged-since:{since}"
    sent = produce_requests(cluster)
    lines = [f"{condition}\tkey\ttaken"], [f"{condition}\tkey\tnever"]
    first, again, plain, both = (
        with_headers(console_producer(cluster, text, enable_idempotence=idempotent))
        for text, idempotent in (
            (lines[0], "true"),
            (lines[1], "true"),
            (lines[1], "false"),
            ([f"{condition}\tother\tnever", "a:b\tkey\tnever"], "true"),
        )
    )
    (taken,) = run_all([first])
    assert (taken.returncode, taken.stderr) == (0, "")
    why = f"conflicts: its key was written at offset {since}, and must not have been since {since}"
    for refused, index in zip(run_all([again, plain, both]), (0, 0, 1), strict=True):
        text = f"InvalidRecordException: Record {index} {why}. The key is 'key'."
        assert refused.stderr.count(text) == 1
    assert produce_requests(cluster) - sent == 4, "none was sent again"
    log = [record for record in cluster.records(cluster.wait_leader()) if record.offset >= since]
    assert [(record.key, record.value) for record in log] == [(b"key", b"taken")]


def with_headers(command: Command) -> Command:
    """Each line is headers, key and value, with tabs between them."""
    reader = ("--reader-property", "parse.key=true", "--reader-property", "parse.headers=true")
    return command._replace(arguments=(*command.arguments, *reader))


def produce_requests(cluster: Cluster) -> int:
    """How many the leader has had."""
    url = cluster.http_url(cluster.wait_leader(), "/metrics")
    with urllib.request.urlopen(url) as answer:
        found = re.search(r'requests_total\{api="Produce"\} (\d+)', answer.read().decode())
    assert found is not None
    return int(found[1])


def test_nothing_acknowledged_is_lost_when_leaders_are_killed(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Two leaders get SIGKILL while three Java producers write and a Java consumer reads."""
    begin = cluster.wait_converged()
    performance = ("--num-records", "2000", "--throughput", "500", "--payload-monotonic")
    producers = {
        "idempotent": console_producer(cluster, [], **NO_LOSS),
        "plain": console_producer(cluster, [], **NO_LOSS, enable_idempotence="false"),
        "performance": Command(PERFORMANCE, (*producer_arguments(cluster), *performance)),
    }
    sent: dict[str, list[bytes]] = {"idempotent": [], "plain": []}
    with ExitStack() as stack:
        consumer = _running(stack, tmp_path, "consumer", console_consumer(cluster, begin, None))
        running = {
            name: _running(stack, tmp_path, name, command) for name, command in producers.items()
        }
        for step in _leaders_die(cluster, begin):
            for name, lines in sent.items():
                lines.append(f"{name}-{step}".encode())
                running[name].feed(lines[-1].decode())
            time.sleep(PACE_S)
        for name, producer in running.items():
            assert producer.finish() == 0, producer.err
            assert "Error when sending" not in producer.err, name
        assert "2000 records sent" in running["performance"].out

        cluster.start()
        cluster.wait_ready()
        cluster.assert_same_logs()
        log = [r for r in cluster.records(cluster.wait_leader()) if r.offset >= begin]
        cluster.wait_for(lambda: len(lines_of(consumer.out)) >= len(log), "the consumer")
        read_through = [(line.offset, line.value.encode()) for line in lines_of(consumer.out)]

    values = [record.value or b"" for record in log]
    assert [value for value in values if value.startswith(b"idempotent-")] == sent["idempotent"]
    assert {value for value in values if value.startswith(b"plain-")} == set(sent["plain"])
    assert [int(value) for value in values if value.isdigit()] == list(range(2000))
    assert read_through == [(record.offset, record.value) for record in log]


def _leaders_die(cluster: Cluster, begin: int) -> Iterator[int]:
    """Steps of writing, with the death of two leaders between them; the first one waits for writers."""
    step = 0

    def are_writing() -> bool:
        values = [r.value or b"" for r in cluster.records(victim) if r.offset >= begin]
        kinds = {b"digits" if value.isdigit() else value.partition(b"-")[0] for value in values}
        return len(kinds) == 3

    victim = cluster.wait_leader()
    while not are_writing():
        yield step
        step += 1
    cluster.kill(victim)
    for _ in range(100):
        yield (step := step + 1)
    successor = cluster.wait_leader()
    cluster.start(victim)
    cluster.wait_ready(victim)
    cluster.kill(successor)
    for _ in range(100):
        yield (step := step + 1)


def start_java(cluster: Cluster) -> None:
    """So that what is timed is a client, and not the JVM before it."""
    (done,) = run_all([console_producer(cluster, ["before"])])
    assert done.returncode == 0, done.stderr


def test_a_consumer_that_asks_for_a_group_is_told_at_once(cluster: Cluster) -> None:
    servers = ("--bootstrap-server", cluster.bootstrap, "--topic", TOPIC)
    consumers = [
        Command(CONSUMER, servers),
        Command(CONSUMER, (*servers, "--command-property", "group.protocol=consumer")),
        Command(f"{TOOLS}.ConsumerPerformance", (*servers, "--num-records", "1")),
    ]
    start_java(cluster)
    since = time.monotonic()
    for command, done in zip(consumers, run_all(consumers), strict=True):
        assert "GroupAuthorizationException" in done.stdout + done.stderr, command
    assert time.monotonic() - since < SOON_S


def test_a_transactional_producer_is_told_at_once(cluster: Cluster) -> None:
    arguments = ("--num-records", "1", "--throughput", "-1", "--record-size", "9")
    command = Command(
        PERFORMANCE, (*producer_arguments(cluster), *arguments, "--transactional-id", "writer")
    )
    start_java(cluster)
    since = time.monotonic()
    (done,) = run_all([command])
    assert "TransactionalIdAuthorizationException" in done.stdout + done.stderr
    assert time.monotonic() - since < SOON_S


def _running(stack: ExitStack, folder: Path, name: str, command: Command) -> Running:
    return stack.enter_context(closing(Running(folder, name, command)))
