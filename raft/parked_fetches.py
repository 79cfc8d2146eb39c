"""The leader's fetch purgatory: fetches that wait for records, or for a new high watermark.

A fetch gets its response when there are records or a new high watermark, and at its time limit at the latest.
"""

from __future__ import annotations

from typing import Final

from quorumd.raft.core import Core
from quorumd.raft.effects import FetchReply
from quorumd.raft.roles import Leader, ParkedFetch
from quorumd.raft.types import OffsetAndEpoch, ReplicaKey, SnapshotId

SPREAD_DELAY_MS: Final = 5
"""Time that voters which a commit does not need, and observers, wait for records that exist."""

ANNOUNCE_DELAY_MS: Final = 5
"""Time that a new high watermark waits for records to travel with, before it travels alone."""

UNPACED_REPLICAS_MAX: Final = 16
"""With more replicas than these, observers fetch no more often than `observer_pause_ms` lets them."""


def observer_pause_ms(core: Core, leader: Leader, replica: ReplicaKey | None) -> int:
    """Least time in ms that a fetch waits, so that observers together fetch a thousand times a second.

    Voters do not wait. Every fetch costs the leader as much as some records do, and under load there is
    always something new: a hundred observers would take most of its time.
    """
    replicas = len(leader.progress)
    if replicas <= UNPACED_REPLICAS_MAX or replica is None or replica in core.electorate.keys:
        return 0
    return replicas


def reply_to_fetch(
    core: Core,
    reply_to: int,
    fetch: ParkedFetch,
    diverging: OffsetAndEpoch | None = None,
    snapshot: SnapshotId | None = None,
) -> None:
    """Everything from the fetch's position up to the log end, committed or not.

    If the logs diverge: no record, but where the fetcher's last epoch, or the one before it, ends here
    (KIP-595, Fetch request handling, step 3); or the snapshot to fetch first (KIP-630).
    """
    if fetch.position.offset < core.log.start_offset:
        snapshot = core.log.snapshot
    goes_on = diverging is None and snapshot is None
    more = goes_on and fetch.position.offset < core.log.end_offset
    core.reply(
        reply_to,
        FetchReply(
            core.epoch,
            core.local.id,
            core.config.endpoints,
            None,
            None,
            core.high_watermark,
            core.log.start_offset,
            diverging,
            snapshot,
            fetch.position.offset if more else None,
            core.log.end_offset,
        ),
    )


def park_fetch(core: Core, leader: Leader, reply_to: int, fetch: ParkedFetch) -> None:
    """Keep a fetch until there is something to say; a newer fetch of a replica ends its older one."""
    parked, replica = leader.parked, fetch.replica
    if replica is not None:
        for older, other in parked.items():
            if other.replica == replica:
                del parked[older]
                reply_to_fetch(core, older, other)
                break
    parked[reply_to] = fetch
    _hasten_if_behind(core, fetch)
    _note_earliest_due(leader)


def wake_fetches(core: Core, leader: Leader) -> None:
    """Reply to parked fetches: there are records beyond their position now.

    As many voters as a commit needs get the records at once, those that came back last first: they are
    the fast ones. The rest get them a moment later, or with the next records, which thus find a voter
    that is free. Before the first voter set is committed every voter is needed.
    """
    parked = leader.parked
    if not parked:
        return
    electorate, is_bootstrapping = core.electorate, core.is_bootstrapping
    voters = electorate.keys
    missing = len(parked) if is_bootstrapping else electorate.others_needed
    for reply_to, fetch in reversed(list(parked.items())):
        if missing <= 0:
            break
        if is_bootstrapping or fetch.replica in voters:
            missing -= 1
            del parked[reply_to]
            reply_to_fetch(core, reply_to, fetch)
    latest = core.now_ms + SPREAD_DELAY_MS
    for fetch in parked.values():
        if fetch.due_ms > latest:
            fetch.due_ms = min(fetch.due_ms, max(latest, fetch.not_before_ms))
    _note_earliest_due(leader)


def announce_high_watermark(core: Core, leader: Leader) -> None:
    """The high watermark has moved: parked fetches that do not know it get a reply soon."""
    if leader.parked:
        for fetch in leader.parked.values():
            _hasten_if_behind(core, fetch)
        _note_earliest_due(leader)


def expire_fetches(core: Core, leader: Leader) -> None:
    """Reply to parked fetches that are due: see `ParkedFetch.due_ms`."""
    for reply_to, fetch in list(leader.parked.items()):
        if core.now_ms >= fetch.due_ms:
            del leader.parked[reply_to]
            reply_to_fetch(core, reply_to, fetch)
    _note_earliest_due(leader)


def _hasten_if_behind(core: Core, fetch: ParkedFetch) -> None:
    """A replica that lacks the high watermark gets it soon, unless records take it along before."""
    known, committed = fetch.high_watermark, core.high_watermark
    if committed is not None and known is not None and known < committed:
        soon = max(core.now_ms + ANNOUNCE_DELAY_MS, fetch.not_before_ms)
        fetch.due_ms = min(fetch.due_ms, soon)


def _note_earliest_due(leader: Leader) -> None:
    earliest: int | None = None
    for fetch in leader.parked.values():
        if earliest is None or fetch.due_ms < earliest:
            earliest = fetch.due_ms
    leader.fetch_due_ms = earliest
