"""Three client libraries move money between accounts while leaders are killed and paused.

QUORUM_TRANSFER_SECONDS=60 runs longer, QUORUM_TRANSFER_WORKERS=17 with so many workers of each library.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import groupby

import pytest

from quorumd.client import QuorumClient, Record
from simulation.checkers.conditions import check_conditions
from simulation.checkers.linearizable import check_linearizable
from simulation.history.appends import Wanted
from simulation.history.facts import Facts
from simulation.history.replica import Batch, Identity
from simulation.violation import Violation
from tests.clients.conditional_writers import ANSWER_S, REFUSED
from tests.clients.log_reader import LogReader
from tests.clients.tellers import (
    ACCOUNTS,
    EACH,
    LIBRARIES,
    Book,
    Tellers,
    Transfer,
    balance_in,
    token_in,
)
from tests.support.live_cluster import Cluster

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.timeout(300),
]

SECONDS = float(os.environ.get("QUORUM_TRANSFER_SECONDS", "6"))
FAULT_EVERY_S = 3.0
WORKERS_EACH = int(os.environ.get("QUORUM_TRANSFER_WORKERS", "2"))


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
        tellers = [Tellers(library, cluster.bootstrap, WORKERS_EACH) for library in LIBRARIES]
        book = Book()
        try:
            wait_for_all(reader)
            faults = disturb(cluster, time.monotonic() + SECONDS)
        finally:
            for each in tellers:
                each.stop()
            for each in tellers:
                book.add(each.end())
        end_offset = cluster.wait_converged()
        while reader.know()[1] < end_offset:
            reader.wait_beyond(end_offset - 1)
    judge(book, reader.records)
    assert sum(map(balance_in, reader.know()[0].values())) == EACH * len(ACCOUNTS)
    assert min(faults["killed"], faults["paused"]) > 0, faults
    counts = counted(book)
    print(dict(counts), dict(faults), f"{end_offset} offsets")
    for library in LIBRARIES:
        assert counts[library, "done"] > SECONDS, counts
    assert counts["audit", "done"]


def wait_for_all(reader: LogReader) -> None:
    """Until each library has written."""
    deadline = time.monotonic() + ANSWER_S
    while not {token_in(r).rstrip("-0123456789") for r in reader.records if r.key} >= set(
        LIBRARIES
    ):
        assert time.monotonic() < deadline, "a library does not write"
        reader.wait_beyond(reader.know()[1])


def counted(book: Book) -> Counter[tuple[str, str]]:
    counts: Counter[tuple[str, str]] = Counter()
    for append in book.appends.values():
        known = "done" if append.offset is not None else "refused" if append.refusal else "unknown"
        counts[append.client.rstrip("0123456789"), known] += 1
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
