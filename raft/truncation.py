"""Truncation and reset: a replica drops a diverging tail, or its whole log for a snapshot.

No replica drops what it knows to be committed, and a leader drops nothing.
"""

from __future__ import annotations

from quorumd.raft.commitment import commit
from quorumd.raft.control import VotersRecord
from quorumd.raft.core import Core
from quorumd.raft.core_parts import InFlightRequest
from quorumd.raft.effects import PersistRemoval, ResetLog, TruncateLog
from quorumd.raft.invariants import require
from quorumd.raft.role_changes import follow_voter_set
from quorumd.raft.roles import Leader
from quorumd.raft.types import SnapshotId


def truncate(core: Core, end_offset: int) -> None:
    """Drop a diverging tail. A leader never truncates, no replica below what it knows committed."""
    require(not isinstance(core.state, Leader), "a leader truncates its log")
    require(
        end_offset >= core.kept_offset,
        f"truncation to {end_offset} below the committed offset {core.committed_offset}",
    )
    changed = core.log.truncate(end_offset)
    core.writes.truncate_log(end_offset)
    write = core.writes.next_of_log(end_offset)
    core.effects.append(TruncateLog(write=write, end_offset=end_offset))
    if changed:
        follow_voter_set(core)


def reset_log(core: Core, snapshot: SnapshotId, voters: VotersRecord | None) -> None:
    """Go on behind a verified snapshot. A leader never does, and what is committed stays."""
    require(not isinstance(core.state, Leader), "a leader resets its log")
    require(
        snapshot.end_offset >= core.kept_offset,
        f"snapshot {snapshot} ends below the committed offset {core.committed_offset}",
    )
    require(not core.log.contains(snapshot.position), f"the log holds all of snapshot {snapshot}")
    had_voted = core.committed_voters.record.voters.find(core.local) is not None
    core.log.reset(snapshot, voters)
    core.writes.reset_log(snapshot.end_offset)
    write = core.writes.next_of_log(snapshot.end_offset)
    core.effects.append(ResetLog(write=write, snapshot=snapshot))
    follow_voter_set(core)
    commit(core, snapshot.end_offset)
    if had_voted and not core.electorate.has_local and not core.was_removed:
        core.was_removed = True
        core.effects.append(PersistRemoval())


def refuse_to_drop(core: Core, request: InFlightRequest, demand: str) -> None:
    """The leader demands what would drop committed records; `demand` completes "leader 2 ..."."""
    core.problem = (
        f"leader {core.leader} of epoch {core.epoch} {demand}, but everything below "
        f"{core.kept_offset} is committed: its log is not the one this replica knows. Nothing was "
        "dropped. Check whether the other voters lost their disks, and keep this one: it may hold the only "
        "copy."
    )
    core.report(core.problem)
    core.back_off(request)
