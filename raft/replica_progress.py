"""What a leader knows of every other replica: how far its log is on disk, and when it fetched.

FetchProgress is kept by id and storage id (KIP-856). Source: KIP-595, Fetch request handling.
"""

from __future__ import annotations

from typing import Final

from quorumd.raft.check_quorum import note_heard
from quorumd.raft.config import OBSERVER_FORGOTTEN_MS
from quorumd.raft.core import Core
from quorumd.raft.roles import FetchProgress, Leader
from quorumd.raft.types import ReplicaKey

MAX_OBSERVERS: Final = 1000
"""More replicas than these are served, but not kept account of."""


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
    """Start to keep account of a replica; observers that fell silent make room."""
    progress, voters = FetchProgress(last_heard_ms=core.now_ms), core.electorate.keys
    if replica not in voters and len(leader.progress) >= MAX_OBSERVERS:
        return progress
    for key, known in list(leader.progress.items()):
        fetched = known.last_fetch_ms
        is_silent = fetched is not None and fetched + OBSERVER_FORGOTTEN_MS < core.now_ms
        if is_silent and key not in voters:
            del leader.progress[key]
    leader.progress[replica] = progress
    return progress


def note_log_regression(core: Core, leader: Leader, replica: ReplicaKey, end_offset: int) -> None:
    """Say so if a replica has less than it had."""
    progress = leader.progress.get(replica)
    if progress is not None and end_offset < progress.end_offset:
        core.report(log_regression(replica, progress.end_offset, end_offset))


def log_regression(replica: ReplicaKey, acknowledged: int, end_offset: int) -> str:
    """What to say of a replica that has less than it had on disk earlier in this epoch."""
    return (
        f"replica {replica} fetches from offset {end_offset} after it acknowledged everything below "
        f"{acknowledged}: unless that was an old request, its directory is an older copy, or a copy of "
        "it runs elsewhere. Stop it, and format a new directory for it."
    )


def progress_of(leader: Leader, voter: ReplicaKey) -> FetchProgress | None:
    """What is known of a voter; one known by id alone is whoever fetched last under that id."""
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
