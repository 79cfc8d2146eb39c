"""The verdict on a chaos run: the checkers of the simulator, on the histories of real clients.

Each record counts as a batch of its own. The committed log is that of the replicas after the run. Below the
start of the longest one, where nodes have deleted what they have in snapshots, it is what readers saw.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from chaos.history import (
    ACKNOWLEDGED,
    END,
    FAILED,
    INVOKED,
    READ,
    SESSION,
    TROUBLE,
    lines_of,
)
from quorumd.storage.reader import LogFile, find_files
from quorumd.wire.records import iter_records
from simulation.checkers.acknowledged import Acknowledged
from simulation.checkers.linearizable import check_linearizable
from simulation.checkers.reads import Reads
from simulation.history.appends import Append
from simulation.history.facts import Facts
from simulation.history.replica import Batch, Identity
from simulation.violation import Violation

Read = tuple[int, bytes]
"""Offset and value of a record."""

NS_PER_US = 1000
FRESH = "no end is told below what was acknowledged or read before"
SAME = "all replicas hold the same"


class Known(NamedTuple):
    """From `at_ns` on some client knows that the log reaches `offset` (exclusive)."""

    at_ns: int
    offset: int


@dataclass(slots=True)
class Counts:
    """Numbers of one client's calls, by outcome."""

    invoked: int = 0
    acknowledged: int = 0
    failed: int = 0
    read: int = 0
    troubles: int = 0
    errors: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Verdict:
    """Result of a run. `gaps` are the longest times without an acknowledgement: (ns, begin in ns)."""

    violations: list[str] = field(default_factory=list)
    clients: dict[str, Counts] = field(default_factory=dict)
    records: int = 0
    unchecked: int = 0
    """Acknowledged appends that nodes have deleted, behind a snapshot, before any reader saw them."""
    gaps: list[tuple[int, int]] = field(default_factory=list)


def check_run(histories: Sequence[Path], replicas: Sequence[Path]) -> Verdict:
    """Of the files that clients wrote, named after them, and the storage directories of all nodes."""
    verdict = Verdict()
    logs = [list(records_of(path)) for path in replicas]
    names = [path.stem for path in histories]
    clients = [_Client(path, names) for path in histories]
    verdict.clients = {client.name: client.counts for client in clients}
    facts = Facts()
    longest = max(logs, key=len)
    start_offset = longest[0][0] if longest else 0
    seen = _seen_below(start_offset, clients)
    facts.committed = [seen[offset] for offset in sorted(seen)]
    facts.committed += [_batch(*record, names) for record in longest]
    verdict.records = len(facts.committed)
    appends = [append for client in clients for append in client.appends.values()]
    facts.appends = [
        append
        for append in appends
        if append.offset is None or append.offset >= start_offset or append.offset in seen
    ]
    verdict.unchecked = len(appends) - len(facts.appends)
    for check in _checks(replicas, logs, facts, clients):
        try:
            check()
        except Violation as violation:
            verdict.violations.append(str(violation))
    verdict.gaps = _gaps(facts.appends)
    return verdict


def _seen_below(offset: int, clients: Iterable[_Client]) -> dict[int, Batch]:
    """Batches that readers got from below this offset."""
    read = (batch for client in clients for _, _, batches in client.reads for batch in batches)
    seen: dict[int, Batch] = {}
    for batch in read:
        if batch.base_offset < offset:
            seen.setdefault(batch.base_offset, batch)
    return seen


def _checks(
    replicas: Sequence[Path], logs: Sequence[list[Read]], facts: Facts, clients: Sequence[_Client]
) -> Iterator[Callable[[], None]]:
    yield partial(_check_same, replicas, logs)
    acknowledged, reads = Acknowledged(facts), Reads(facts)
    yield partial(acknowledged.on_end, facts.appends)
    yield partial(check_linearizable, facts.appends, facts.committed)
    for append in facts.appends:
        if append.offset is not None:
            yield partial(acknowledged.on_acknowledged, append)
    for client in clients:
        for session, offset, batches in client.reads:
            yield partial(reads.on_read, session, offset, batches)
    known = _rising(known for client in clients for known in client.known)
    for client in clients:
        for begun_ns, end in client.ends:
            yield partial(_check_fresh, client.name, begun_ns, end, known)


def records_of(storage: Path) -> Iterator[Read]:
    """The records that clients wrote, as a storage directory has them."""
    files: Iterable[LogFile] = find_files(storage)
    for file in files:
        if file.path.suffix != ".log":
            continue
        for batch in file.batches():
            if not batch.header.is_control:
                for record in iter_records(batch.data):
                    yield record.offset, record.value or b""


class _Client:
    """The history of one client, from its file."""

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        self.name = path.stem
        self._names = names
        self._session = 0
        self._position = 0
        self.counts = Counts()
        self.appends: dict[int, Append] = {}
        self.reads: list[tuple[str, int, list[Batch]]] = []
        """Session, the offset that was asked for, and what came."""
        self.ends: list[tuple[int, int]] = []
        """Questions for the log's end: when asked, and what was told."""
        self.known: list[Known] = []
        for line in lines_of(path):
            self._take(line)

    def _take(self, line: list[Any]) -> None:
        kind, at_ns, *rest = line
        counts = self.counts
        if kind == INVOKED:
            counts.invoked += 1
            identity = Identity(0, 0, self._names.index(self.name), rest[0])
            append = Append(self.name, identity, 1, True, at_ns // NS_PER_US)
            self.appends[rest[0]] = append
        elif kind == ACKNOWLEDGED:
            counts.acknowledged += 1
            append = self.appends[rest[0]]
            append.acknowledged_us, append.offset = at_ns // NS_PER_US + 1, rest[1]
            self.known.append(Known(at_ns, rest[1] + 1))
        elif kind == FAILED:
            counts.failed += 1
            self._count_error(rest[1])
        elif kind == SESSION:
            self._session += 1
            self._position = rest[0]
        elif kind == READ:
            self._take_read(at_ns, rest[0])
        elif kind == END:
            begun_ns, _, end = rest
            self.ends.append((begun_ns, end))
            self.known.append(Known(at_ns, end))
        elif kind == TROUBLE:
            counts.troubles += 1
            self._count_error(rest[0])

    def _take_read(self, at_ns: int, records: list[tuple[int, str]]) -> None:
        self.counts.read += len(records)
        batches = [_batch(offset, value.encode(), self._names) for offset, value in records]
        self.reads.append((f"{self.name}, session {self._session}", self._position, batches))
        self._position = batches[-1].end_offset
        self.known.append(Known(at_ns, self._position))

    def _count_error(self, text: str) -> None:
        kind = text.partition(":")[0]
        self.counts.errors[kind] = self.counts.errors.get(kind, 0) + 1


def _batch(offset: int, value: bytes, names: Sequence[str]) -> Batch:
    # Clients don't see epochs: they are left out of the comparison.
    return Batch(offset, offset + 1, -1, _identity(value, names))


def _identity(value: bytes, names: Sequence[str]) -> Identity:
    name, _, number = value.decode(errors="replace").partition("/")
    if name not in names or not number.isdigit():
        return Identity(1, 0, -1, -1)
    return Identity(0, 0, names.index(name), int(number))


def _check_same(replicas: Sequence[Path], logs: Sequence[list[Read]]) -> None:
    """From the start of each log on: nodes delete what they have in a snapshot, each at its own time."""
    longest = max(logs, key=len)
    of = replicas[logs.index(longest)]
    for path, log in zip(replicas, logs, strict=True):
        expected = longest[bisect_left(longest, log[0]) :] if log else longest
        if log != expected:
            pairs = enumerate(zip(expected, log, strict=False))
            shorter = min(len(expected), len(log))
            at = next((index for index, (a, b) in pairs if a != b), shorter)
            raise Violation(
                SAME,
                f"{of} has {len(expected):,} records from the start of {path} on, which has"
                f" {len(log):,}; they differ from record {at:,} on",
            )


def _check_fresh(name: str, begun_ns: int, end: int, known: Sequence[Known]) -> None:
    at = bisect_left(known, Known(begun_ns, 0))
    if at and end < known[at - 1].offset:
        raise Violation(
            FRESH, f"{name} is told {end}, when {known[at - 1].offset} was known already"
        )


def _rising(known: Iterable[Known]) -> list[Known]:
    """By time, and each with the highest offset that was known by then."""
    found: list[Known] = []
    highest = 0
    for each in sorted(known):
        highest = max(highest, each.offset)
        found.append(Known(each.at_ns, highest))
    return found


def _gaps(appends: Iterable[Append]) -> list[tuple[int, int]]:
    times = sorted(a.acknowledged_us for a in appends if a.acknowledged_us is not None)
    gaps = [((b - a) * NS_PER_US, a * NS_PER_US) for a, b in pairwise(times)]
    return sorted(gaps, reverse=True)[:10]
