"""The key-value view of the log: the newest value of each key, up to date.

A record with a key sets the key, one with a null value deletes it; records without a key do not count.
`KeyValueMap` applies one event after the other; `KeyValueView` keeps such a map up to date.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from types import TracebackType
from typing import NamedTuple, Self, TypeVar

from quorumd.client.client import LATEST, QuorumClient
from quorumd.client.errors import Conflict, OffsetNotReached, QuorumError, QuorumUnavailable
from quorumd.client.events import (
    BatchCommitted,
    LogEvent,
    QuorumLost,
    QuorumRestored,
    SnapshotLoaded,
)
from quorumd.client.reading import RECORDS_AT_A_TIME
from quorumd.client.timing import Deadline, limit_ms
from quorumd.client.transaction import (
    RETRY_DEFAULT,
    Attempts,
    Retry,
    Transaction,
    Updated,
    result_of,
)
from quorumd.security.errors import CertificateProblem

T = TypeVar("T")


class KeyValueEntry(NamedTuple):
    """A value, with offset and timestamp (ms since 1970) of the record that set it."""

    value: bytes
    offset: int
    timestamp: int


class KeyChange(NamedTuple):
    """A key that was set, or deleted (value None), at `offset`; `timestamp` is ms since 1970.

    If a key is missing from a newly loaded snapshot, its deletion has the snapshot's last offset.
    """

    key: bytes
    value: bytes | None
    offset: int
    timestamp: int


class KeyValueMap:
    """The keys and values after the events so far, of the keys for which `key_filter` is true.

    By default these are all keys. Do not modify `entries`. `offset` is exclusive: all committed records
    below it are applied. `on_change` is called with each change when it is applied.
    """

    def __init__(
        self,
        *,
        key_filter: Callable[[bytes], bool] | None = None,
        on_change: Callable[[KeyChange], None] | None = None,
    ) -> None:
        self.entries: dict[bytes, KeyValueEntry] = {}
        self.offset = 0
        self.on_change = on_change
        self._applied_count = 0
        """Of records, since it last yielded."""
        self._key_filter = key_filter or (lambda key: True)

    async def apply(self, event: LogEvent) -> None:
        """Applies one event. Yields to other tasks while it reads a snapshot; the map changes at the end.

        Also after so many records, for those of a whole response come at once.
        """
        if isinstance(event, BatchCommitted):
            self._apply_batch(event)
            self._applied_count += len(event.records)
            if self._applied_count >= RECORDS_AT_A_TIME:
                self._applied_count = 0
                await asyncio.sleep(0)
        elif isinstance(event, SnapshotLoaded):
            await self._apply_snapshot(event)

    def _apply_batch(self, batch: BatchCommitted) -> None:
        for record in batch.records:
            key, value = record.key, record.value
            if key is None or not self._key_filter(key):
                continue
            if value is not None:
                self.entries[key] = KeyValueEntry(value, record.offset, record.timestamp)
            elif self.entries.pop(key, None) is None:
                continue
            if self.on_change is not None:
                self.on_change(KeyChange(key, value, record.offset, record.timestamp))
        self.offset = batch.next_offset

    async def _apply_snapshot(self, snapshot: SnapshotLoaded) -> None:
        entries: dict[bytes, KeyValueEntry] = {}
        for count, record in enumerate(snapshot.records(), 1):
            key, value = record.key, record.value
            if key is not None and value is not None and self._key_filter(key):
                entry = KeyValueEntry(value, record.offset, record.timestamp)
                known = self.entries.get(key)
                # Equal values are kept in memory once.
                entries[key] = known if known is not None and _is_same(known, entry) else entry
            if count % RECORDS_AT_A_TIME == 0:
                await asyncio.sleep(0)
        former, self.entries = self.entries, entries
        self.offset = snapshot.id.end_offset
        if self.on_change is not None:
            for change in _differences(former, entries, snapshot):
                self.on_change(change)


def _is_same(one: KeyValueEntry, other: KeyValueEntry) -> bool:
    """True if both were set by the same record."""
    return one.offset == other.offset and one.value == other.value


def _differences(
    former: dict[bytes, KeyValueEntry],
    present: dict[bytes, KeyValueEntry],
    snapshot: SnapshotLoaded,
) -> list[KeyChange]:
    """The changes between two states of the map, by offset."""
    deleted_at = (snapshot.id.end_offset - 1, snapshot.last_contained_log_timestamp)
    changes = [KeyChange(key, None, *deleted_at) for key in former if key not in present]
    for key, entry in present.items():
        known = former.get(key)
        if known is None or not _is_same(known, entry):
            changes.append(KeyChange(key, *entry))
    return sorted(changes, key=lambda change: change.offset)


class _ViewLeft(RuntimeError):
    """The view is not kept up to date any more."""


class KeyValueView:
    """A key-value map of the committed log, kept up to date inside `async with`.

        async with QuorumClient("localhost:9093") as client, KeyValueView(client) as view:
            (offset,) = await client.append([Record(key=b"color", value=b"blue")])
            await view.wait_for(offset)
            print(view.get(b"color"))

    Entering returns when all records that were committed by then are applied; it raises as
    QuorumClient.follow does, and QuorumUnavailable. Later reads may be slightly stale; `problem` is set
    while the view cannot be updated. Memory is that of the keys that begin with `prefix` and their values.
    A view that is entered again reads all anew. One that was left stays as it is: it can be read, and waits
    for nothing and changes nothing.
    """

    def __init__(self, client: QuorumClient, *, prefix: bytes = b"") -> None:
        if not isinstance(prefix, bytes):
            raise TypeError(f"the prefix of a view is of type {type(prefix).__name__}: give bytes")
        self._client = client
        self._prefix = prefix
        self._transactions: set[Transaction] = set()
        self._map = self._new_map()
        self._moved = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None
        self._problem: QuorumUnavailable | CertificateProblem | None = None
        self._error: Exception | None = None
        self._was_entered = False

    def _new_map(self) -> KeyValueMap:
        return KeyValueMap(key_filter=lambda key: key.startswith(self._prefix))

    async def __aenter__(self) -> Self:
        if self._task is not None:
            raise RuntimeError("this view is entered already: make another one")
        self._map, self._problem, self._error = self._new_map(), None, None
        self._was_entered = True
        self._task = asyncio.create_task(self._follow())
        try:
            end_offset = (await self._client.list_offsets(LATEST)).offset
            async with self._moved:
                await self._moved.wait_for(
                    lambda: self._error or self._problem or self.offset >= end_offset
                )
            if self._problem is not None:
                raise self._problem
            self._check()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stop()

    @property
    def offset(self) -> int:
        """Exclusive: all committed records below it are applied."""
        return self._map.offset

    @property
    def problem(self) -> QuorumUnavailable | CertificateProblem | None:
        """The reason why the view is not updated at the moment; None while it is."""
        return self._problem

    def __len__(self) -> int:
        return len(self._map.entries)

    def get(self, key: bytes) -> KeyValueEntry | None:
        """The key's value and the offset that set it; None if the key has no value.

        Raises the error that ended the view, if there was one: it would never change again. RuntimeError
        if it was never entered, and knows nothing.
        """
        self._check()
        if not isinstance(key, bytes | bytearray | memoryview):
            raise TypeError(f"a key is of type {type(key).__name__}: give bytes")
        return self._map.entries.get(bytes(key))

    def items(self, prefix: bytes = b"") -> list[tuple[bytes, KeyValueEntry]]:
        """The keys that begin with `prefix`, ascending by bytes. Raises as `get` does."""
        self._check()
        return sorted(item for item in self._map.entries.items() if item[0].startswith(prefix))

    async def wait_for(self, offset: int, *, timeout_ms: int | None = None) -> None:
        """Returns when the record at `offset` and all before it are applied.

        With the offset that `append` returned, the next `get` reads that write. Raises OffsetNotReached
        after `timeout_ms` (default: the client's), RuntimeError if the view is left before, and as `get`.
        """
        self._check_inside()
        most_ms = limit_ms(timeout_ms, self._client.timeout_ms)
        try:
            async with asyncio.timeout(most_ms / 1000), self._moved:
                await self._moved.wait_for(
                    lambda: self._error or self._task is None or self.offset > offset
                )
        except TimeoutError:
            raise OffsetNotReached(offset, self.offset, most_ms) from self._problem
        if self.offset <= offset:
            self._check_inside()

    @asynccontextmanager
    async def transaction(self, *, timeout_ms: int | None = None) -> AsyncIterator[Transaction]:
        """Reads and changes of keys that take effect together, strictly serializable, or not at all.

            async with view.transaction() as t:
                seats = int(t.get(b"seats") or b"0")
                t.put(b"seats", b"%d" % (seats - 1))
                t.put(b"seats/row-3", b"taken")

        Leaving appends the changes as one batch, at most log.max.batch.bytes, and returns when they are
        committed and the view has them. Raises Conflict if a key that was read, one without a value
        included, or is written, was written after the transaction began, by whomever: nothing is appended
        then. The same if the body raises something. Raises AppendFailed, whose `unknown_count` says
        whether the changes may be there, though. `timeout_ms` bounds leaving.
        """
        self._check_inside()
        transaction = Transaction(self.offset, self._value_of)
        self._transactions.add(transaction)
        self._map.on_change = self._note_change
        try:
            yield transaction
        finally:
            records, also_unchanged = transaction.close()
            self._transactions.discard(transaction)
            if not self._transactions:
                self._map.on_change = None
        if not records:
            return
        most_ms = limit_ms(timeout_ms, self._client.timeout_ms)
        deadline = Deadline(most_ms)
        offsets = await self._client.append(
            records,
            if_unchanged_since=transaction.since,
            also_unchanged=also_unchanged,
            timeout_ms=most_ms,
        )
        transaction.offset = offsets[-1]
        # The change is committed, even if the view does not get there in time.
        with suppress(QuorumError, CertificateProblem, _ViewLeft):
            await self.wait_for(offsets[-1], timeout_ms=deadline.remaining_ms())

    async def transact(
        self, function: Callable[[Transaction], T], *, retry: Retry = RETRY_DEFAULT
    ) -> T:
        """Calls `function` with a transaction, again after each conflict; returns what it returned.

            def take_seat(t: quorumd.Transaction) -> None:
                t.put(b"seats", b"%d" % (int(t.get(b"seats") or b"0") - 1))

            await view.transact(take_seat)

        The function is called anew each time, so it must have no other effects. Raises as `transaction`
        does, Conflict only if `retry` permits no further try.
        """
        attempts = Attempts(retry, self._client.timeout_ms)
        while True:
            try:
                async with self.transaction(timeout_ms=attempts.remaining_ms()) as transaction:
                    return result_of(function, transaction)
            except Conflict as conflict:
                await attempts.wait(self, conflict)

    async def update(
        self,
        key: bytes,
        function: Callable[[bytes | None], bytes | None],
        *,
        retry: Retry = RETRY_DEFAULT,
    ) -> Updated:
        """Sets the key to what `function` makes of its value; None is: it has none, and delete it.

            value, offset = await view.update(b"hits", lambda hits: b"%d" % (int(hits or b"0") + 1))

        Nobody's change is lost: as `transact`, which it is, for one key.
        """

        def change(transaction: Transaction) -> tuple[Transaction, bytes | None]:
            return transaction, transaction.update(key, function)

        transaction, value = await self.transact(change, retry=retry)
        assert transaction.offset is not None, "it has changed a key"
        return Updated(value, transaction.offset)

    def _value_of(self, key: bytes) -> bytes | None:
        entry = self.get(key)
        if not key.startswith(self._prefix):
            raise ValueError(
                f"{key!r} is not in this view: it has keys that begin with {self._prefix!r}"
            )
        return None if entry is None else entry.value

    def _note_change(self, change: KeyChange) -> None:
        for transaction in self._transactions:
            transaction.note_change(change.key, change.offset)

    def _check(self) -> None:
        if not self._was_entered:
            raise RuntimeError("this view was not entered: use it in `with` or `async with`")
        if self._error is not None:
            raise self._error

    def _check_inside(self) -> None:
        self._check()
        if self._task is None:
            raise _ViewLeft("this view was left, and learns nothing more: enter it again")

    async def _follow(self) -> None:
        try:
            async with aclosing(self._client.follow(waits_for_leader=True)) as events:
                async for event in events:
                    await self._map.apply(event)
                    if isinstance(event, QuorumLost):
                        self._problem = event.error
                    elif isinstance(event, QuorumRestored):
                        self._problem = None
                    await self._notify()
        except Exception as error:
            self._error = error
            await self._notify()

    async def _notify(self) -> None:
        async with self._moved:
            self._moved.notify_all()

    async def _stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await self._notify()
            await asyncio.gather(task, return_exceptions=True)
