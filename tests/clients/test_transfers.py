"""Three client libraries move money between accounts while leaders are killed and paused.

Each transfer reads three accounts and writes two: one batch, with the condition that none of the three has
changed. Audits read all accounts in a transaction of the library's. QUORUM_TRANSFER_SECONDS=60 runs longer.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import groupby
from typing import NamedTuple

import pytest

from quorumd.client import (
    Conflict,
    KeyValueView,
    QuorumClient,
    QuorumError,
    Record,
    Transaction,
)
from simulation.checkers.conditions import check_conditions
from simulation.checkers.linearizable import check_linearizable
from simulation.history.appends import Append, Refusal, Wanted
from simulation.history.facts import Facts
from simulation.history.replica import Batch, Identity
from simulation.violation import Violation
from tests.clients.conditional_writers import (
    ANSWER_S,
    REFUSED,
    UNKNOWN,
    Library,
    Pair,
    by_kafka_python,
    by_librdkafka,
)
from tests.clients.log_reader import LogReader
from tests.support.live_cluster import Cluster

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.timeout(300),
]

SECONDS = float(os.environ.get("QUORUM_TRANSFER_SECONDS", "6"))
FAULT_EVERY_S = 3.0
ACCOUNTS = [b"account/%02d" % i for i in range(20)]
EACH = 100
WORKERS_EACH = 2
LIBRARIES: dict[str, Library] = {"kafka-python": by_kafka_python, "librdkafka": by_librdkafka}


class Transfer(NamedTuple):
    """From one account to another; a third one says how much."""

    source: bytes
    target: bytes
    guide: bytes

    def pairs(self, balance_of: Callable[[bytes], int], token: str) -> list[Pair]:
        """The new balances, marked with the token."""
        amount = 1 + balance_of(self.guide) % 7
        return [
            (self.source, b"%d %s" % (balance_of(self.source) - amount, token.encode())),
            (self.target, b"%d %s" % (balance_of(self.target) + amount, token.encode())),
        ]


def balance_in(value: bytes | None) -> int:
    return int((value or b"").split()[0])


def token_in(record: Record) -> str:
    return (record.value or b"").decode().partition(" ")[2]


class Audit(NamedTuple):
    """A transaction that has only read, and what."""

    append: Append
    balances: dict[bytes, int]


class Book:
    """What was tried, by token: each try is an append of its own. And what the log was in the end."""

    def __init__(self) -> None:
        self.appends: dict[str, Append] = {}
        self.transfers: dict[str, Transfer] = {}
        self.audits: list[Audit] = []
        self._lock = threading.Lock()

    def begin(self, worker: str, transfer: Transfer, since: int, count: int = 2) -> str:
        """A token for a try that begins now."""
        with self._lock:
            number = len(self.appends)
            token = f"{worker}-{number}"
            append = Append(worker, Identity(0, 0, 0, number), count, False, now_us())
            append.wanted = Wanted(since, transfer)
            self.appends[token] = append
            self.transfers[token] = transfer
        return token

    def end(self, token: str, outcome: int) -> None:
        """The last record's offset, REFUSED or UNKNOWN."""
        append = self.appends[token]
        if outcome == REFUSED:
            append.refusal = Refusal(now_us(), None, 0)
        elif outcome != UNKNOWN:
            append.acknowledged_us, append.offset = now_us(), outcome - append.record_count + 1


def now_us() -> int:
    return time.monotonic_ns() // 1000


class Teller:
    """Transfers with bare headers, as fast as it can, in a thread of its own."""

    def __init__(self, name: str, library: Library, bank: Bank) -> None:
        self._name = name
        self._library = library
        self._bank = bank
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        draw, bank = random.Random(self._name), self._bank
        with self._library(bank.servers) as write:
            while not bank.is_over.is_set():
                newest, since = bank.reader.know()
                transfer = Transfer(*draw.sample(ACCOUNTS, 3))
                token = bank.book.begin(self._name, transfer, since)
                pairs = transfer.pairs(lambda key: balance_in(newest[key]), token)  # noqa: B023 (it is called at once)
                outcome = write(pairs, since, [transfer.guide])
                bank.book.end(token, outcome)
                bank.reader.wait_beyond(since if outcome < 0 else outcome)


class OwnTellers:
    """Transfers and audits by the library's transactions: tasks of one loop, in a thread of its own."""

    def __init__(self, bank: Bank) -> None:
        self._bank = bank
        self.thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self.thread.start()

    async def _run(self) -> None:
        timeout_ms = int(ANSWER_S * 1000)
        async with (
            QuorumClient(self._bank.servers, timeout_ms=timeout_ms) as client,
            asyncio.TaskGroup() as tasks,
        ):
            for i in range(WORKERS_EACH):
                tasks.create_task(self._transfer(f"quorumd{i}", client))
            tasks.create_task(self._audit(client))

    async def _transfer(self, name: str, client: QuorumClient) -> None:
        draw, bank = random.Random(name), self._bank
        async with KeyValueView(client) as view:
            while not bank.is_over.is_set():
                transfer = Transfer(*draw.sample(ACCOUNTS, 3))
                tried: list[tuple[str, Transaction]] = []

                def move(
                    t: Transaction,
                    transfer: Transfer = transfer,
                    tried: list[tuple[str, Transaction]] = tried,
                ) -> None:
                    if tried:
                        bank.book.end(tried[-1][0], REFUSED)
                    tried.append((bank.book.begin(name, transfer, t.since), t))
                    pairs = transfer.pairs(lambda key: balance_in(t.get(key)), tried[-1][0])
                    for key, value in pairs:
                        t.put(key, value)

                try:
                    await view.transact(move)
                    outcome = tried[-1][1].offset
                    assert outcome is not None, "it has written"
                except Conflict:
                    outcome = REFUSED
                except QuorumError:
                    outcome = UNKNOWN
                bank.book.end(tried[-1][0], outcome)

    async def _audit(self, client: QuorumClient) -> None:
        draw, bank = random.Random("audit"), self._bank
        async with KeyValueView(client) as view:
            while not bank.is_over.is_set():
                # One of all accounts rarely comes through; what it reads is right even so.
                keys = draw.sample(ACCOUNTS, draw.choice((2, len(ACCOUNTS))))
                begun_us = now_us()
                balances: dict[bytes, int] = {}
                try:
                    async with view.transaction() as t:
                        for key in keys:
                            balances[key] = balance_in(t.get(key))
                            # Others' changes reach the view meanwhile.
                            await asyncio.sleep(0.0002)
                        if len(keys) == len(ACCOUNTS):
                            assert sum(balances.values()) == EACH * len(ACCOUNTS), "of one moment"
                except Conflict as conflict:
                    await view.wait_for(conflict.offset)
                    continue
                except QuorumError:
                    continue
                assert t.offset is not None
                identity = Identity(1, 0, 0, t.offset)
                append = Append("audit", identity, 1, False, begun_us, now_us(), t.offset)
                append.wanted = Wanted(t.since, tuple(keys))
                bank.book.audits.append(Audit(append, balances))


class Bank(NamedTuple):
    """What all tellers share."""

    servers: str
    book: Book
    reader: LogReader
    is_over: threading.Event


def disturb(cluster: Cluster, until: float) -> Counter[str]:
    """Leaders are killed and paused in turn."""
    done: Counter[str] = Counter()
    while time.monotonic() < until:
        victim = cluster.wait_leader()
        kind = "paused" if done["killed"] > done["paused"] else "killed"
        done[kind] += 1
        if kind == "paused":
            cluster.suspend(victim)
            cluster.wait_leader(other_than=victim)
            time.sleep(FAULT_EVERY_S / 6)
            cluster.resume(victim)
        else:
            cluster.kill(victim)
            time.sleep(FAULT_EVERY_S / 6)
            cluster.start(victim)
            cluster.wait_ready(victim)
        time.sleep(FAULT_EVERY_S / 2)
    return done


async def deposit(servers: str) -> None:
    async with QuorumClient(servers) as client:
        records = [Record(key=key, value=b"%d deposit" % EACH) for key in ACCOUNTS]
        await client.append(records, if_unchanged_since=0)


def test_no_money_is_lost_and_the_history_is_strictly_serializable(cluster: Cluster) -> None:
    asyncio.run(deposit(cluster.bootstrap))
    with closing(LogReader(cluster.bootstrap)) as reader:
        bank = Bank(cluster.bootstrap, Book(), reader, threading.Event())
        while len(reader.know()[0]) < len(ACCOUNTS):
            reader.wait_beyond(reader.know()[1])
        tellers: list[Teller | OwnTellers] = [
            Teller(f"{name}{i}", library, bank)
            for name, library in LIBRARIES.items()
            for i in range(WORKERS_EACH)
        ]
        tellers.append(OwnTellers(bank))
        try:
            faults = disturb(cluster, time.monotonic() + SECONDS)
        finally:
            bank.is_over.set()
            for teller in tellers:
                teller.thread.join()
        end_offset = cluster.wait_converged()
        while reader.know()[1] < end_offset:
            reader.wait_beyond(end_offset - 1)
    judge(bank.book, reader.records)
    assert sum(map(balance_in, reader.know()[0].values())) == EACH * len(ACCOUNTS)
    assert min(faults["killed"], faults["paused"]) > 0, faults
    counts = counted(bank.book)
    print(dict(counts), dict(faults), f"{end_offset} offsets")
    for library in (*LIBRARIES, "quorumd"):
        assert counts[library, "done"] > SECONDS, counts
    assert counts["audit", "done"]


def counted(book: Book) -> Counter[tuple[str, str]]:
    counts: Counter[tuple[str, str]] = Counter()
    for append in book.appends.values():
        known = "done" if append.offset is not None else "refused" if append.refusal else "unknown"
        counts[append.client[:-1], known] += 1
    counts["audit", "done"] = len(book.audits)
    return counts


def judge(book: Book, records: list[Record]) -> None:
    """The log is the order: it agrees with the clock, with every condition, and with every value read."""
    facts = Facts()
    facts.appends = [*book.appends.values(), *(audit.append for audit in book.audits)]
    facts.committed, facts.records = committed(book, records)
    at = {batch.identity: batch for batch in facts.committed}
    for append in facts.appends:
        if append.offset is not None:
            found = at.get(append.identity)
            assert found is not None, f"{append} is not in the log"
            assert found.base_offset == append.offset, append
            assert found.end_offset == append.offset + append.record_count, append
    check_conditions(facts)
    check_linearizable(facts.appends, facts.committed)
    check_values(book, facts)


def committed(
    book: Book, records: list[Record]
) -> tuple[list[Batch], dict[Identity, list[Record]]]:
    """Records with the same token are a batch, wherever they stand."""
    audits = {audit.append.offset: audit.append.identity for audit in book.audits}
    batches: list[Batch] = []
    contents: dict[Identity, list[Record]] = {}
    for token, group in groupby(records, lambda r: token_in(r) if r.key else str(r.offset)):
        found = list(group)
        first, last = found[0].offset, found[-1].offset
        if token in book.appends:
            identity = book.appends[token].identity
        else:
            identity = audits.get(first, Identity(2, 0, -1, first))
        assert identity not in contents, f"{token} is there twice, or in parts"
        batches.append(Batch(first, last + 1, -1, identity))
        contents[identity] = found
    return batches, contents


def check_values(book: Book, facts: Facts) -> None:
    """Each transfer wrote, and each audit read, what the log before it makes of the accounts.

    Raise Violation.
    """
    read = {audit.append.identity: audit.balances for audit in book.audits}
    tokens = {append.identity: token for token, append in book.appends.items()}
    balances: dict[bytes, int] = {}
    for batch in facts.committed:
        found = [(r.key or b"", r.value or b"") for r in facts.records[batch.identity] if r.key]
        if (token := tokens.get(batch.identity)) is not None:
            expected = book.transfers[token].pairs(balances.__getitem__, token)
            if found != expected:
                raise Violation("reads are of one moment", f"{token}: {found}, not {expected}")
        seen = read.get(batch.identity, {})
        if seen.items() - balances.items():
            raise Violation("reads are of one moment", f"an audit at {batch} saw {seen}")
        balances |= {key: balance_in(value) for key, value in found}


# --- the judge, itself


def sound() -> Iterator[tuple[Book, list[Record]]]:
    """Two transfers, one behind the other."""
    book, balances = Book(), dict.fromkeys(ACCOUNTS, EACH)
    records = [
        Record(offset=i, key=key, value=b"%d deposit" % EACH) for i, key in enumerate(ACCOUNTS)
    ]
    for i in range(2):
        transfer = Transfer(*ACCOUNTS[i : i + 3])
        token = book.begin("t", transfer, len(records))
        for key, value in transfer.pairs(balances.__getitem__, token):
            records.append(Record(offset=len(records), key=key, value=value))
            balances[key] = balance_in(value)
        book.end(token, len(records) - 1)
    yield book, records


def stale_read(book: Book) -> None:
    book.appends["t-1"].wanted = Wanted(20, book.transfers["t-1"])


def refused_and_there(book: Book) -> None:
    book.end("t-0", REFUSED)


def against_the_clock(book: Book) -> None:
    book.appends["t-0"].invoked_us = (book.appends["t-1"].acknowledged_us or 0) + 1


def other_guide(book: Book) -> None:
    book.transfers["t-1"] = Transfer(ACCOUNTS[1], ACCOUNTS[2], ACCOUNTS[0])


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (stale_read, "was written at"),
        (refused_and_there, "was refused, and is in the log"),
        (against_the_clock, "was only called at"),
        (other_guide, "reads are of one moment"),
    ],
)
def test_the_judge_finds(spoil: Callable[[Book], None], message: str) -> None:
    for book, records in sound():
        judge(book, records)
        spoil(book)
        with pytest.raises(Violation, match=message):
            judge(book, records)
