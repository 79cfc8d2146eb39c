"""Transactions on a key-value view: what was read is unchanged when what is written takes effect.

Optimistic: nothing is locked, and the leader judges the condition when the batch gets its offset
(docs/protocol.md, "Append if unchanged").
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeVar

from quorumd.client.errors import Conflict, OffsetNotReached
from quorumd.client.timing import Deadline, RetryBackoff, limit_ms, whole_ms
from quorumd.wire.records import Record

T = TypeVar("T")
Changes = TypeVar("Changes")

_BACKOFF_MIN_MS: Final = 2
_BACKOFF_MAX_MS: Final = 250
_ONLY_READ: Final = Record(value=b"quorumd: a transaction that only read")


@dataclass(frozen=True, slots=True)
class Retry:
    """Limits for a change that meets conflicts: the attempts, and the time of all of them.

    `attempts_max` None: as often as the time permits. `timeout_ms` None: the client's. What comes first
    ends it, with the last Conflict.
    """

    attempts_max: int | None = None
    timeout_ms: int | None = None

    def __post_init__(self) -> None:
        if self.attempts_max is not None and self.attempts_max < 1:
            raise ValueError(f"attempts_max is {self.attempts_max}: at least one is needed")
        if self.timeout_ms is not None and whole_ms(self.timeout_ms) < 1:
            raise ValueError(f"timeout_ms is {self.timeout_ms}: at least 1 ms is needed")


RETRY_DEFAULT: Final = Retry()


class Updated(NamedTuple):
    """The new value of a key, None if it was deleted, and the offset of its record."""

    value: bytes | None
    offset: int


class Transaction:
    """Reads and changes of keys that take effect at one moment, or not at all. Made by KeyValueView.

    What it reads is the map of all records below `since`, however long it takes. `offset` is that of its
    last record once it is committed, and None before, or if it neither read nor changed anything.
    """

    def __init__(self, since: int, read: Callable[[bytes], bytes | None]) -> None:
        self.since = since
        self.offset: int | None = None
        self._read = read
        self._read_keys: dict[bytes, None] = {}
        self._changes: dict[bytes, bytes | None] = {}
        self._changed_by_others: dict[bytes, int] = {}
        self._is_open = True

    def get(self, key: bytes) -> bytes | None:
        """The key's value, None if it has none; what this transaction has set counts.

        Raises Conflict if the key has changed since the transaction began, and ValueError for a key that
        the view leaves out.
        """
        self._check_open()
        if key in self._changes:
            return self._changes[key]
        value = self._read(key)
        self._read_keys[key] = None
        if (offset := self._changed_by_others.get(key)) is not None:
            raise Conflict(key, offset, since=self.since)
        return value

    def put(self, key: bytes, value: bytes) -> None:
        """Sets the key, if the transaction is committed. A key that was not read must be unchanged, too."""
        self._check_open()
        self._changes[key] = value

    def delete(self, key: bytes) -> None:
        """Deletes the key, if the transaction is committed; as `put`."""
        self._check_open()
        self._changes[key] = None

    def update(self, key: bytes, function: Callable[[bytes | None], bytes | None]) -> bytes | None:
        """Sets the key to what `function` makes of its value, and returns that; None deletes it."""
        value = self._changes[key] = result_of(function, self.get(key))
        return value

    def note_change(self, key: bytes, offset: int) -> None:
        """The map has moved on: a key was written at `offset` by another client."""
        self._changed_by_others[key] = offset

    def close(self) -> tuple[list[Record], list[bytes]]:
        """Ends it. The records to append, and the other keys that must be unchanged; both may be empty.

        One that has only read appends a record without a key: else its reads might be stale.
        """
        self._is_open = False
        records = [Record(key=key, value=value) for key, value in self._changes.items()]
        if self._read_keys and not records:
            records = [_ONLY_READ]
        return records, [key for key in self._read_keys if key not in self._changes]

    def _check_open(self) -> None:
        if not self._is_open:
            raise RuntimeError("the transaction is over: begin another one")


def result_of(function: Callable[[Changes], T], transaction: Changes) -> T:
    """Calls the function with the transaction. Raises TypeError for an async one: nothing of it would run."""
    result = function(transaction)
    if isinstance(result, Coroutine):
        result.close()
        raise TypeError(
            "the function of a transaction is async: give a plain one, or use view.transaction()"
        )
    return result


class FollowedView(Protocol):
    """The part of KeyValueView that transactions use."""

    async def wait_for(self, offset: int, *, timeout_ms: int) -> None: ...


class Attempts:
    """Counts the tries of a change, and says when there is to be no other."""

    def __init__(self, retry: Retry, timeout_ms: int) -> None:
        self._left = retry.attempts_max
        self._deadline = Deadline(limit_ms(retry.timeout_ms, timeout_ms))
        self._backoff = RetryBackoff(_BACKOFF_MIN_MS, _BACKOFF_MAX_MS)

    def remaining_ms(self) -> int:
        """Milliseconds left, at least 1."""
        return max(self._deadline.remaining_ms(), 1)

    async def wait(self, view: FollowedView, conflict: Conflict) -> None:
        """Until a further try has a chance: the view has that write. Raises `conflict` if there is none."""
        if self._left is not None:
            self._left -= 1
        pause_s = self._backoff.next_s()
        if self._left == 0 or pause_s >= self._deadline.remaining_s():
            raise conflict
        await asyncio.sleep(pause_s)
        try:
            await view.wait_for(conflict.offset, timeout_ms=self.remaining_ms())
        except OffsetNotReached as error:
            raise conflict from error
