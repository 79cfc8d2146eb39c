"""The leader's fetch purgatory: fetches that wait for records, or for a new high watermark.

A fetch is answered when there is something to say, and at its own time limit at the latest.
"""

from __future__ import annotations

from quorumd.raft.core import Core
from quorumd.raft.effects import FetchReply
from quorumd.raft.roles import Leader, ParkedFetch
from quorumd.raft.types import OffsetAndEpoch, SnapshotId

SPREAD_DELAY_MS = 5
"""How long voters that a commit does not need, and observers, wait for records that exist."""

ANNOUNCE_DELAY_MS = 5
"""How long a new high watermark waits for records to travel with, before it travels alone."""


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
            epoch=core.epoch,
            leader_id=core.local.id,
            leader_endpoints=core.config.endpoints,
            high_watermark=core.high_watermark,
            log_start_offset=core.log.start_offset,
            diverging=diverging,
            snapshot=snapshot,
            read_from=fetch.position.offset if more else None,
            read_to=core.log.end_offset,
        ),
    )


def park_fetch(core: Core, leader: Leader, reply_to: int, fetch: ParkedFetch) -> None:
    """Keep a fetch until there is something to say; a newer fetch of a replica ends its older one."""
    if fetch.replica is not None:
        for older, parked in list(leader.parked.items()):
            if parked.replica == fetch.replica:
                del leader.parked[older]
                reply_to_fetch(core, older, parked)
    leader.parked[reply_to] = fetch
    _hasten_if_behind(core, fetch)
    _note_earliest_due(leader)


def wake_fetches(core: Core, leader: Leader) -> None:
    """Answer parked fetches: there are records beyond their position now.

    As many voters as a commit needs get the records at once, those that came back last first: they are
    the fast ones. The rest get them a moment later, or with the next records, which thus find a voter
    that is free. Before the first voter set is committed every voter is needed.
    """
    electorate, is_bootstrapping = core.electorate, core.is_bootstrapping
    voters = electorate.keys
    missing = len(leader.parked) if is_bootstrapping else electorate.others_needed
    for reply_to, fetch in reversed(list(leader.parked.items())):
        if missing <= 0:
            break
        if is_bootstrapping or fetch.replica in voters:
            missing -= 1
            del leader.parked[reply_to]
            reply_to_fetch(core, reply_to, fetch)
    for fetch in leader.parked.values():
        fetch.due_ms = min(fetch.due_ms, core.now_ms + SPREAD_DELAY_MS)
    _note_earliest_due(leader)


def announce_high_watermark(core: Core, leader: Leader) -> None:
    """The high watermark has moved: parked fetches that do not know it are answered soon."""
    for fetch in leader.parked.values():
        _hasten_if_behind(core, fetch)
    _note_earliest_due(leader)


def expire_fetches(core: Core, leader: Leader) -> None:
    """Answer parked fetches whose time is up, or that have lacked something for long enough."""
    if leader.fetch_due_ms is None or core.now_ms < leader.fetch_due_ms:
        return
    for reply_to, fetch in list(leader.parked.items()):
        if core.now_ms >= fetch.due_ms:
            del leader.parked[reply_to]
            reply_to_fetch(core, reply_to, fetch)
    _note_earliest_due(leader)


def _hasten_if_behind(core: Core, fetch: ParkedFetch) -> None:
    """A replica that lacks the high watermark gets it soon, if no records take it along before."""
    known = fetch.high_watermark
    if core.high_watermark is not None and known is not None and known < core.high_watermark:
        fetch.due_ms = min(fetch.due_ms, core.now_ms + ANNOUNCE_DELAY_MS)


def _note_earliest_due(leader: Leader) -> None:
    earliest: int | None = None
    for fetch in leader.parked.values():
        if earliest is None or fetch.due_ms < earliest:
            earliest = fetch.due_ms
    leader.fetch_due_ms = earliest
