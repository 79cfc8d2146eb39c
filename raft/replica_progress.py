"""A leader's knowledge of every other replica: how far its log is on disk, and when it fetched.

There is a `FetchProgress` for each id and storage id (KIP-856). Source: KIP-595, Fetch request handling.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from quorumd.raft.check_quorum import note_heard
from quorumd.raft.config import OBSERVER_FORGOTTEN_MS
from quorumd.raft.core import Core
from quorumd.raft.roles import FetchProgress, Leader
from quorumd.raft.types import ReplicaKey

MAX_OBSERVERS: Final = 1000
"""So many replicas are kept account of, and so many observers may say where they are reached."""


def note_progress(core: Core, leader: Leader, replica: ReplicaKey, end_offset: int) -> None:
    """A fetch acknowledges everything before its offset; caught up means: up to the log end."""
    now, end = core.now_ms, core.log.end_offset
    progress = leader.progress.get(replica) or _new_progress(core, leader, replica)
    if end_offset >= end:
        progress.last_caught_up_ms = now
    elif end_offset >= progress.leader_end_at_last_fetch:
        progress.last_caught_up_ms = progress.last_fetch_ms
    if end_offset < progress.end_offset:
        core.report(log_regression(replica, progress.end_offset, end_offset))
    progress.end_offset = end_offset
    progress.last_fetch_ms = progress.last_heard_ms = now
    progress.leader_end_at_last_fetch = end
    voter = note_heard(core, leader, replica)
    if voter is not None:
        if voter is not replica:
            progress = leader.progress.setdefault(voter, progress)
        progress.begin_due_ms = now + core.config.fetch_timeout_ms // 2


def _new_progress(core: Core, leader: Leader, replica: ReplicaKey) -> FetchProgress:
    """Start to keep account of a replica; observers that fell silent make room.

    Anybody can fetch under any key. Where as many are known as may be, the observer that has been silent for
    longest goes, so that one that fetches is never kept out; one whose addition is asked for stays.
    """
    progress, known = FetchProgress(last_heard_ms=core.now_ms), leader.progress
    stays = {change.voter.key for change in leader.changes if change.voter is not None}
    stays.update(core.electorate.keys)
    latest_ms = core.now_ms - OBSERVER_FORGOTTEN_MS
    silent = [key for key, each in known.items() if _heard_ms(each) < latest_ms]
    for key in silent:
        if key not in stays:
            del known[key]
    if replica not in stays and len(known) >= MAX_OBSERVERS:
        by_silence = sorted(known.items(), key=lambda item: _heard_ms(item[1]))
        del known[next(key for key, _ in by_silence if key not in stays)]
    known[replica] = progress
    return progress


def longest_silent(leader: Leader, replicas: Iterable[ReplicaKey]) -> ReplicaKey:
    """The replica, of at least one, that the leader has not heard from for longest."""
    return min(replicas, key=lambda key: _heard_ms(leader.progress.get(key)))


def _heard_ms(known: FetchProgress | None) -> int:
    """When the leader heard from a replica last; before all times if it never did."""
    return -1 if known is None or known.last_heard_ms is None else known.last_heard_ms


def note_log_regression(core: Core, leader: Leader, replica: ReplicaKey, end_offset: int) -> None:
    """Say so if a replica has less than it had."""
    progress = leader.progress.get(replica)
    if progress is not None and end_offset < progress.end_offset:
        core.report(log_regression(replica, progress.end_offset, end_offset))


def log_regression(replica: ReplicaKey, acknowledged: int, end_offset: int) -> str:
    """Warning about a replica that has less than it had on disk earlier in this epoch."""
    return (
        f"replica {replica} fetches from offset {end_offset} after it acknowledged everything below "
        f"{acknowledged}: unless that was an old request, its directory is an older copy, or a copy of "
        "it runs elsewhere. Stop it, and format a new directory for it."
    )


def progress_of(leader: Leader, voter: ReplicaKey) -> FetchProgress | None:
    """Progress of a voter. One known by id alone is the replica that fetched last under that id."""
    exact = leader.progress.get(voter)
    if voter.uuid is not None:
        return exact
    best = exact
    for key, progress in leader.progress.items():
        if key.id == voter.id and (
            best is None or (progress.last_fetch_ms or -1) > (best.last_fetch_ms or -1)
        ):
            best = progress
    return best


def synced_end_offset(core: Core, leader: Leader, voter: ReplicaKey) -> int:
    """The exclusive end of what this voter has on disk, -1 if that is not known."""
    if core.is_local(voter):
        return core.log.synced_end_offset
    progress = progress_of(leader, voter)
    return -1 if progress is None else progress.end_offset
