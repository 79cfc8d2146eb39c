"""Append if unchanged: one batch, appended whole only if no key of it was written since an offset.

The leader judges (docs/protocol.md, "Append if unchanged"). It may send the reader back: what was written
between the condition's offset and another is read here then, and the batch sent again with that offset. A
batch is recognised by a token, should its first response have been lost: a leader that it was sent to again
may not remember its producer.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from typing import Final, NamedTuple, Protocol

from quorumd.client.errors import (
    AppendFailed,
    Conflict,
    QuorumError,
    QuorumUnavailable,
    RequestRefused,
)
from quorumd.client.events import BatchCommitted, LogEvent, SnapshotLoaded
from quorumd.client.timing import Deadline
from quorumd.wire.conditions import IF_UNCHANGED_SINCE, NAMED_KEY
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.records import Record

TOKEN: Final = "quorumd.token"
"""A header by which a client finds its own batch in the log."""
NO_TIMESTAMP: Final = -1
"""A record's time is not known: Kafka's RecordBatch.NO_TIMESTAMP."""

_CONFLICT: Final = re.compile(
    r"(Record|Named key) (\d+) conflicts: its key was written at offset (\d+),"
)
_READ_AGAIN: Final = re.compile(r"Read again from offset (\d+): ")


class AppendingClient(Protocol):
    """The part of QuorumClient that conditional appends use."""

    async def append(
        self, records: Iterable[Record], *, whole: bool, timeout_ms: int, idempotent: bool
    ) -> list[int]: ...

    def follow(self, *, from_offset: int) -> AsyncGenerator[LogEvent, None]: ...


class ReadAgain(QuorumError):
    """The leader remembers no keys from before `end_offset`: read up to it, and decide anew."""

    def __init__(self, end_offset: int) -> None:
        self.end_offset = end_offset
        super().__init__(f"read again from offset {end_offset}, and decide anew")


class _Changes(NamedTuple):
    """Findings in a part of the log: the last record with one of the keys, and the offset of our token."""

    conflict: tuple[bytes, int] | None = None
    own_offset: int | None = None


async def append_if_unchanged(
    client: AppendingClient,
    records: Sequence[Record],
    since: int,
    named: Sequence[bytes],
    *,
    timeout_ms: int,
    idempotent: bool,
) -> list[int]:
    """The offsets of the records. Raises Conflict, AppendFailed."""
    deadline = Deadline(timeout_ms)
    token = uuid.uuid4().bytes
    may_be_there = False
    keys = {record.key for record in records if record.key is not None} | set(named)
    while True:
        batch = _with_headers(records, since, named, token)
        try:
            limit_ms = max(deadline.remaining_ms(), 1)
            return await client.append(
                batch, whole=True, timeout_ms=limit_ms, idempotent=idempotent
            )
        except AppendFailed as failed:
            refused = _refused_condition(failed)
            if refused is None:
                raise
            may_be_there = may_be_there or failed.was_sent_again
            conflict, end_offset = _named_in(refused, records, named)
            if conflict is None or may_be_there:
                changes = await _changes(client, since, end_offset, keys, token, deadline, failed)
                if changes.own_offset is not None:
                    return [changes.own_offset + i for i in range(len(records))]
                conflict = conflict or changes.conflict
            if conflict is not None:
                raise Conflict(*conflict, since=since) from failed
            since = end_offset


async def append_once(
    client: AppendingClient, records: Sequence[Record], since: int, *, timeout_ms: int
) -> list[int]:
    """The same without a token and without reading: one request, where no other client writes, too.

    For records by which their writer knows them again: after AppendFailed they may be in the log, and a
    Conflict may be with themselves. Where the leader's clock and this one differ too much, they have no
    timestamp. Raises Conflict, ReadAgain, AppendFailed.
    """
    batch = _with_headers(records, since, (), None)
    try:
        return await _append_whatever_the_time(client, batch, timeout_ms)
    except AppendFailed as failed:
        refused = _refused_condition(failed)
        if refused is None:
            raise
        conflict, end_offset = _named_in(refused, records, ())
        if conflict is None:
            raise ReadAgain(end_offset) from failed
        raise Conflict(*conflict, since=since) from failed


async def _append_whatever_the_time(
    client: AppendingClient, batch: list[Record], timeout_ms: int
) -> list[int]:
    try:
        return await client.append(batch, whole=True, timeout_ms=timeout_ms, idempotent=False)
    except AppendFailed as failed:
        if _refusal(failed, ErrorCode.INVALID_TIMESTAMP) is None:
            raise
    batch = [record._replace(timestamp=NO_TIMESTAMP) for record in batch]
    return await client.append(batch, whole=True, timeout_ms=timeout_ms, idempotent=False)


def _with_headers(
    records: Sequence[Record], since: int, named: Iterable[bytes], token: bytes | None
) -> list[Record]:
    headers = (
        (IF_UNCHANGED_SINCE, b"%d" % since),
        *((NAMED_KEY, key) for key in named),
        *(() if token is None else ((TOKEN, token),)),
    )
    first = records[0]
    return [first._replace(headers=(*first.headers, *headers)), *records[1:]]


def _refused_condition(failed: AppendFailed) -> str | None:
    """Text of the leader about a condition that is not met; None if it is something else."""
    refusal = _refusal(failed, ErrorCode.INVALID_RECORD)
    if refusal is None:
        return None
    said = refusal.server_message or ""
    return said if _CONFLICT.match(said) or _READ_AGAIN.match(said) else None


def _refusal(failed: AppendFailed, error: ErrorCode) -> RequestRefused | None:
    """The leader's refusal with this error; None if it is something else."""
    cause = failed.__cause__
    return cause if isinstance(cause, RequestRefused) and cause.error is error else None


def _named_in(
    refused: str, records: Sequence[Record], named: Sequence[bytes]
) -> tuple[tuple[bytes, int] | None, int]:
    """The key that was written and its offset, if it is named; and the end of what is to be read."""
    if (again := _READ_AGAIN.match(refused)) is not None:
        return None, int(again[1])
    found = _CONFLICT.match(refused)
    assert found is not None, "it is one of the two"
    where, index, offset = found[1], int(found[2]), int(found[3])
    key = records[index].key if where == "Record" else named[index]
    return (key or b"", offset), offset + 1


async def _changes(
    client: AppendingClient,
    since: int,
    end_offset: int,
    keys: set[bytes],
    token: bytes,
    deadline: Deadline,
    failed: AppendFailed,
) -> _Changes:
    """Reads the log from `since` to `end_offset`, which is committed. Raises AppendFailed without time.

    Where the log begins later, a snapshot says which keys are as they were: one that is gone counts as
    deleted at its end.
    """
    conflict: tuple[bytes, int] | None = None
    own_offset: int | None = None
    position = since
    try:
        async with (
            asyncio.timeout(deadline.remaining_s()),
            aclosing(client.follow(from_offset=since)) as events,
        ):
            async for event in events:
                match event:
                    case BatchCommitted(records=found):
                        position = event.next_offset
                    case SnapshotLoaded():
                        position = event.id.end_offset
                        found = tuple(r for r in event.records() if r.key in keys)
                        gone = keys - {record.key for record in found}
                        conflict = next(((key, position - 1) for key in gone), conflict)
                    case _:
                        continue
                for record in found:
                    if record.offset >= since and record.key in keys:
                        conflict = record.key, record.offset
                    if (TOKEN, token) in record.headers:
                        own_offset = record.offset
                if position >= end_offset:
                    break
    except (TimeoutError, QuorumUnavailable):
        raise failed from None
    return _Changes(conflict, own_offset)
