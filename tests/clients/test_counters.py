"""Three client libraries increment the same counters, each if it is unchanged, while leaders are killed."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import NamedTuple

import pytest

from quorumd.client import Conflict, QuorumClient, QuorumError, Record
from tests.clients.conditional_writers import (
    ANSWER_S,
    REFUSED,
    UNKNOWN,
    Library,
    Pair,
    Write,
    by_kafka_python,
    by_librdkafka,
)
from tests.clients.log_reader import LogReader
from tests.support.live_cluster import Cluster

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.timeout(300),
]

SECONDS = 12.0
KILL_EVERY_S = 2.0
KEYS = [b"counter/%d" % i for i in range(3)]
WORKERS_EACH = 2


class Seen(NamedTuple):
    """A record of a counter: the number, and who wrote it."""

    offset: int
    number: int
    token: str


def seen_in(record: Record) -> Seen:
    number, token = (record.value or b"").decode().split()
    return Seen(record.offset, int(number), token)


@contextmanager
def by_quorumd(servers: str) -> Iterator[Write]:
    with asyncio.Runner() as runner:
        client = QuorumClient(servers, timeout_ms=int(ANSWER_S * 1000))

        def write(pairs: Sequence[Pair], since: int, named: Iterable[bytes] = ()) -> int:
            records = [Record(key=key, value=value) for key, value in pairs]
            try:
                return runner.run(
                    client.append(records, if_unchanged_since=since, also_unchanged=named)
                )[-1]
            except Conflict:
                return REFUSED
            except QuorumError:
                return UNKNOWN

        try:
            yield write
        finally:
            client.close()


class Worker:
    """Increments any of the counters, as fast as it can, until it is told to stop."""

    def __init__(
        self, name: str, library: Library, reader: LogReader, servers: str, stop: threading.Event
    ) -> None:
        self.name = name
        self.outcomes: dict[str, int] = {}
        self._library = library
        self._reader = reader
        self._servers = servers
        self._stop = stop
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        draw = random.Random(self.name)
        with self._library(self._servers) as write:
            while not self._stop.is_set():
                key = draw.choice(KEYS)
                newest, since = self._reader.know()
                number = int(newest.get(key, b"0").split()[0])
                token = f"{self.name}-{len(self.outcomes)}"
                outcome = write([(key, f"{number + 1} {token}".encode())], since)
                self.outcomes[token] = outcome
                # The reader is behind: what refused this one is not read yet.
                self._reader.wait_beyond(since if outcome < 0 else outcome)


def kill_leaders(cluster: Cluster, until: float) -> int:
    killed = 0
    while time.monotonic() < until:
        victim = cluster.wait_leader()
        cluster.kill(victim)
        killed += 1
        time.sleep(KILL_EVERY_S / 2)
        cluster.start(victim)
        cluster.wait_ready(victim)
        time.sleep(KILL_EVERY_S / 2)
    return killed


def test_no_increment_is_lost_and_none_is_made_twice(cluster: Cluster) -> None:
    libraries: dict[str, Library] = {
        "quorumd": by_quorumd,
        "kafka-python": by_kafka_python,
        "librdkafka": by_librdkafka,
    }
    stop = threading.Event()
    with closing(LogReader(cluster.bootstrap)) as reader:
        workers = [
            Worker(f"{name}{i}", library, reader, cluster.bootstrap, stop)
            for name, library in libraries.items()
            for i in range(WORKERS_EACH)
        ]
        try:
            killed = kill_leaders(cluster, time.monotonic() + SECONDS)
        finally:
            stop.set()
            for worker in workers:
                worker.thread.join()
        end_offset = cluster.wait_converged()
        while reader.know()[1] < end_offset:
            reader.wait_beyond(end_offset - 1)
    judge(reader, workers)
    assert killed >= 3


def judge(reader: LogReader, workers: list[Worker]) -> None:
    """Each counter counts one by one; what is in the log is what the libraries say."""
    found: dict[str, int] = {}
    histories = {key: [seen_in(r) for r in reader.records if r.key == key] for key in KEYS}
    for key, history in histories.items():
        assert [seen.number for seen in history] == list(range(1, len(history) + 1)), key
        found |= {seen.token: seen.offset for seen in history}
    assert len(found) == sum(map(len, histories.values())), "no record is there twice"
    kinds: Counter[tuple[str, str]] = Counter()
    for worker in workers:
        for token, outcome in worker.outcomes.items():
            what = {REFUSED: "refused", UNKNOWN: "unknown"}.get(outcome, "done")
            kinds[worker.name[:-1], what] += 1
            if outcome == REFUSED:
                assert token not in found, token
            elif outcome != UNKNOWN:
                assert found.get(token) == outcome, token
    print(dict(kinds))
    for library in ("quorumd", "kafka-python", "librdkafka"):
        assert kinds[library, "done"] > 20, kinds
        assert kinds[library, "refused"], kinds
