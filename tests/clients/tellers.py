"""Tellers: workers of three client libraries that move money between accounts, each library in a process.

Each transfer reads three accounts and writes two: one batch, with the condition that none of the three has
changed. Audits read all accounts in a transaction of the library's.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from multiprocessing.connection import Connection
from typing import NamedTuple, Protocol

from quorumd.client import Conflict, KeyValueView, QuorumClient, QuorumError, Record, Transaction
from simulation.history.appends import Append, Refusal, Wanted
from simulation.history.replica import Identity
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

ACCOUNTS = [b"account/%02d" % i for i in range(20)]
EACH = 100
OWN = "quorumd"
BARE: dict[str, Library] = {"kafka-python": by_kafka_python, "librdkafka": by_librdkafka}
"""Those that set the headers by themselves."""
LIBRARIES = (*BARE, OWN)


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


class Written(NamedTuple):
    """The contents of a book."""

    appends: dict[str, Append]
    transfers: dict[str, Transfer]
    audits: list[Audit]


class Book:
    """What was tried, by token: each try is an append of its own. `source` is that of no other book."""

    def __init__(self, source: int = 3) -> None:
        self._source = source
        self.appends: dict[str, Append] = {}
        self.transfers: dict[str, Transfer] = {}
        self.audits: list[Audit] = []
        self._lock = threading.Lock()

    def begin(self, worker: str, transfer: Transfer, since: int, count: int = 2) -> str:
        """A token for a try that begins now."""
        with self._lock:
            number = len(self.appends)
            token = f"{worker}-{number}"
            append = Append(worker, Identity(self._source, 0, 0, number), count, False, now_us())
            append.wanted = Wanted(since, transfer)
            self.appends[token] = append
            self.transfers[token] = transfer
        return token

    def add(self, written: Written) -> None:
        """What another process has tried."""
        self.appends |= written.appends
        self.transfers |= written.transfers
        self.audits += written.audits

    def end(self, token: str, outcome: int) -> None:
        """The last record's offset, REFUSED or UNKNOWN."""
        append = self.appends[token]
        if outcome == REFUSED:
            append.refusal = Refusal(now_us(), None, 0)
        elif outcome != UNKNOWN:
            append.acknowledged_us, append.offset = now_us(), outcome - append.record_count + 1


def now_us() -> int:
    return time.monotonic_ns() // 1000


class Tellers:
    """A process with some workers of one library, from now until `end`."""

    def __init__(self, library: str, servers: str, workers: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._is_over = context.Event()
        self._written, written = context.Pipe(duplex=False)
        self._process = context.Process(
            target=_run, args=(library, servers, workers, self._is_over, written), daemon=True
        )
        self._process.start()
        written.close()

    def stop(self) -> None:
        """Nothing is begun from now on."""
        self._is_over.set()

    def end(self) -> Written:
        """What they have tried. Raises EOFError if one of them has failed."""
        try:
            written = self._written.recv()
            assert isinstance(written, Written)
            return written
        finally:
            self._written.close()
            self._process.join()


class IsOver(Protocol):
    """An event, of this process or of several."""

    def is_set(self) -> bool: ...


def _run(
    library: str, servers: str, workers: int, is_over: IsOver, written: Connection[Written]
) -> None:
    book = Book(source=3 + LIBRARIES.index(library))
    if library == OWN:
        asyncio.run(_transfer_and_audit(servers, workers, is_over, book))
    else:
        _transfer_with_headers(library, servers, workers, is_over, book)
    written.send(Written(book.appends, book.transfers, book.audits))


def _transfer_with_headers(
    library: str, servers: str, workers: int, is_over: IsOver, book: Book
) -> None:
    """As fast as they can, each in a thread of its own."""
    with closing(LogReader(servers)) as reader, ThreadPoolExecutor(workers) as threads:

        def work(name: str) -> None:
            draw = random.Random(name)
            with BARE[library](servers) as write:
                while not is_over.is_set():
                    newest, since = reader.know()
                    if len(newest) < len(ACCOUNTS):
                        reader.wait_beyond(since)
                        continue
                    transfer = Transfer(*draw.sample(ACCOUNTS, 3))
                    token = book.begin(name, transfer, since)
                    pairs = transfer.pairs(lambda key: balance_in(newest[key]), token)  # noqa: B023 (it is called at once)
                    outcome = write(pairs, since, [transfer.guide])
                    book.end(token, outcome)
                    reader.wait_beyond(since if outcome < 0 else outcome)

        for _ in threads.map(work, [f"{library}{i}" for i in range(workers)]):
            pass


async def _transfer_and_audit(servers: str, workers: int, is_over: IsOver, book: Book) -> None:
    """By the library's transactions, each in a task."""
    async with (
        QuorumClient(servers, timeout_ms=int(ANSWER_S * 1000)) as client,
        KeyValueView(client) as view,
        asyncio.TaskGroup() as tasks,
    ):
        for i in range(workers):
            tasks.create_task(_transfer(f"{OWN}{i}", view, is_over, book))
        tasks.create_task(_audit(view, is_over, book))


async def _transfer(name: str, view: KeyValueView, is_over: IsOver, book: Book) -> None:
    draw = random.Random(name)
    while not is_over.is_set():
        transfer = Transfer(*draw.sample(ACCOUNTS, 3))
        tried: list[tuple[str, Transaction]] = []

        def move(
            t: Transaction,
            transfer: Transfer = transfer,
            tried: list[tuple[str, Transaction]] = tried,
        ) -> None:
            if tried:
                book.end(tried[-1][0], REFUSED)
            tried.append((book.begin(name, transfer, t.since), t))
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
        book.end(tried[-1][0], outcome)


async def _audit(view: KeyValueView, is_over: IsOver, book: Book) -> None:
    draw = random.Random("audit")
    while not is_over.is_set():
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
        book.audits.append(Audit(append, balances))
