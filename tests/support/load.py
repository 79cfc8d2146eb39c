"""Writers that append to a live quorum and remember what was acknowledged, to hold the quorum to it."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple, Self

from quorumd.wire.errors import MalformedMessage
from quorumd.wire.messages.produce import (
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
    ProduceResponse,
    ProduceResponsePartition,
)
from quorumd.wire.records import Record, build_batch
from tests.support.live_cluster import TOPIC, Cluster
from tests.support.raw_client import Hungup, RawClient

PRODUCE, PRODUCE_VERSION = 0, 9
TRY_S = 3.0
SETTLED_S = 30.0
PAUSE_S = 0.002
RETRY_S = 0.01

_load_numbers = itertools.count(1)


class Acknowledged(NamedTuple):
    offset: int
    value: bytes


def produce_message(values: Sequence[bytes], timeout_ms: int = 2000) -> ProduceRequest:
    """One batch of records with these values, timestamped now."""
    now = int(time.time() * 1000)
    batch = build_batch([Record(value=value, timestamp=now) for value in values])
    return produce_of(batch, timeout_ms)


def produce_of(batch: bytes | None, timeout_ms: int = 2000) -> ProduceRequest:
    """A request that appends these bytes as they are."""
    partition = ProduceRequestPartition(index=0, records=batch)
    topic = ProduceRequestTopic(name=TOPIC, partition_data=(partition,))
    return ProduceRequest(acks=-1, timeout_ms=timeout_ms, topic_data=(topic,))


def produce(client: RawClient, message: ProduceRequest) -> ProduceResponsePartition:
    """What became of it. Raises Hungup."""
    answer = client.ask(PRODUCE, PRODUCE_VERSION, message, ProduceResponse)
    return answer.responses[0].partition_responses[0]


class Load:
    """Writers with a connection each, one record at a time, at whichever node leads.

    A record whose fate is not known is not sent again, so nothing is in the log twice. Use it in `with`.
    """

    def __init__(self, cluster: Cluster, *, writers: int = 4, value_bytes: int = 20) -> None:
        self.acknowledged: list[Acknowledged] = []
        self.refusals: list[tuple[int, str | None]] = []
        """Error codes that were answered, with their texts."""
        self.failures = 0
        """Tries without an acknowledgement, refused ones included."""
        self._settled: set[int] = set()
        self._cluster = cluster
        self._name = f"load {next(_load_numbers)}"
        self.value_bytes = value_bytes
        """The size of the next values; may be changed at any time."""
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._write, args=(number,)) for number in range(writers)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def wait_settled(self) -> None:
        """Return when every writer has found the leader."""
        deadline = time.monotonic() + SETTLED_S
        while len(self._settled) < len(self._threads):
            assert time.monotonic() < deadline, f"{self._settled} of {len(self._threads)} write"
            time.sleep(0.005)

    def stop(self) -> None:
        """Let the tries under way end."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def wait_progress(self, records: int = 20, timeout_s: float = 30.0) -> None:
        """Return when so many more records are acknowledged."""
        wanted = len(self.acknowledged) + records
        deadline = time.monotonic() + timeout_s
        while len(self.acknowledged) < wanted:
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"no progress in {timeout_s} s; last answers: {self.refusals[-3:]}\n"
                    f"{self._cluster.logs()}"
                )
            time.sleep(0.005)

    def assert_nothing_lost(self, *nodes: int) -> None:
        """Every acknowledged record is where it was acknowledged, in the logs of these nodes' disks."""
        checked = nodes or tuple(self._cluster.running())
        assert checked, "no node runs"
        for node in checked:
            found = {record.offset: record.value for record in self._cluster.records(node)}
            lost = [one for one in self.acknowledged if found.get(one.offset) != one.value]
            assert not lost, f"node {node} lost {len(lost)} acknowledged records: {lost[:5]}"
            times = Counter(found.values())
            doubled = [one for one in self.acknowledged if times[one.value] != 1]
            assert not doubled, f"records are twice on node {node}: {doubled[:5]}"

    # -- a writer

    def _write(self, number: int) -> None:
        client: RawClient | None = None
        nodes = list(self._cluster.ids)
        at = number
        count = 0
        while not self._stopping.is_set():
            try:
                if client is None:
                    client = RawClient(self._cluster.port(nodes[at % len(nodes)]), TRY_S)
                count += 1
                value = f"{self._name}-{number}-{count}-".encode().ljust(self.value_bytes, b".")
                answer = produce(client, produce_message([value]))
            except (OSError, Hungup, MalformedMessage):
                answer = None
            if answer is not None and answer.error_code == 0:
                self.acknowledged.append(Acknowledged(answer.base_offset, value))
                self._settled.add(number)
                self._stopping.wait(PAUSE_S)
                continue
            self.failures += 1
            if answer is not None:
                self.refusals.append((answer.error_code, answer.error_message))
            if client is not None:
                client.close()
                client = None
            at += 1
            self._stopping.wait(RETRY_S)
        if client is not None:
            client.close()
