"""A list of holders and waiting clients, for people; and a lock taken away by them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from quorumd.client.client import QuorumClient
from quorumd.client.coordination.claim_record import ClaimRecord, claim_record_of
from quorumd.client.coordination.keys import ClaimKind, Place, check_name, place_of
from quorumd.client.errors import Conflict
from quorumd.client.view import KeyValueEntry, KeyValueView
from quorumd.wire.records import Record


class Claimant(NamedTuple):
    """One who holds a name, or waits for it, as its record says.

    `since` is when it began to hold or to wait, in UTC by its own wall clock; `written_ms` the time of its
    newest record, ms since 1970 by the same clock, -1 if that was too far from the leader's: who holds a
    name, or is the first to wait for it, writes one at every third of the ttl. `token` is -1 for who waits.
    """

    owner: str
    host: str
    pid: int
    comment: str
    since: str
    written_ms: int
    ttl_ms: int
    token: int
    value: str


class ClaimedName(NamedTuple):
    """A name with its holder, None if there is none, and those who wait, in the order of the queue."""

    name: str
    holder: Claimant | None
    waiters: tuple[Claimant, ...]


async def list_claims(
    client: QuorumClient, kind: ClaimKind = ClaimKind.LOCK, *, prefix: str = ""
) -> list[ClaimedName]:
    """The names of this kind that begin with `prefix`, ascending, as of now.

    A holder that has died stands there until its ttl is over and another process waits for the name, or
    deletes the claim. Raises as KeyValueView.
    """
    async with KeyValueView(client, prefix=f"quorumd.{kind.value}".encode()) as view:
        return claimed_names(view.items(), kind, prefix=prefix)


def claimed_names(
    entries: Iterable[tuple[bytes, KeyValueEntry]], kind: ClaimKind, *, prefix: str = ""
) -> list[ClaimedName]:
    """The names of this kind among keys and their values that begin with `prefix`, ascending."""
    holders: dict[str, Claimant] = {}
    queues: dict[str, list[tuple[int, Claimant]]] = {}
    for key, entry in entries:
        place = place_of(key)
        if place is None or place.kind is not kind or not place.name.startswith(prefix):
            continue
        if place.claim:
            waiting = queues.setdefault(place.name, [])
            at = claim_record_of(entry.value).place(entry.offset)
            waiting.append((at, _claimant(entry)._replace(token=-1)))
        else:
            holders[place.name] = _claimant(entry)
    return [
        ClaimedName(
            name, holders.get(name), tuple(each for _, each in sorted(queues.get(name, [])))
        )
        for name in sorted(holders.keys() | queues.keys())
    ]


def _claimant(entry: KeyValueEntry) -> Claimant:
    return claimant_of(claim_record_of(entry.value), entry.offset, entry.timestamp)


def claimant_of(record: ClaimRecord, offset: int, timestamp_ms: int) -> Claimant:
    """The holder with this record."""
    return Claimant(
        owner=record.owner,
        host=record.host,
        pid=record.pid,
        comment=record.comment,
        since=record.since,
        written_ms=timestamp_ms,
        ttl_ms=record.ttl_ms,
        token=offset if record.token is None else record.token,
        value=record.value,
    )


async def force_unlock(
    client: QuorumClient, name: str, token: int, kind: ClaimKind = ClaimKind.LOCK
) -> bool:
    """Takes a name away from the holder that has this token; False if that one has it no more.

    The holder learns of it when it reads the log: until then it goes on, beside the next one. Only where
    tokens are checked nothing comes of that.
    """
    place = Place(kind, check_name(name))
    while True:
        async with KeyValueView(client, prefix=place.key) as view:
            entry = view.get(place.key)
            if entry is None or _claimant(entry).token != token:
                return False
            since = view.offset
        try:
            await client.append([Record(key=place.key, value=None)], if_unchanged_since=since)
        except Conflict:
            continue
        return True
