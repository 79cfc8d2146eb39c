"""The high watermark: what a majority has on disk is committed.

Sources: KIP-595 (Fetch request handling, step 4; extra condition on commitment), KIP-856 (bootstrapping).
"""

from __future__ import annotations

from quorumd.raft import quorum
from quorumd.raft.commitment import commit
from quorumd.raft.core import Core
from quorumd.raft.parked_fetches import announce_high_watermark
from quorumd.raft.roles import Leader


def advance_high_watermark(core: Core, leader: Leader) -> None:
    """Commit what a majority has synced, once that includes a record of this epoch.

    While the first voter set of the log is not committed, every voter must have synced it before
    anything is committed. Sources: KIP-595, Fetch request handling, step 4; KIP-856, bootstrapping.
    """
    electorate = core.electorate
    if electorate.entry.offset < 0 or core.high_watermark == core.log.end_offset:
        return
    progress = leader.progress
    offsets = []
    for key in electorate.others:
        known = progress.get(key)
        offsets.append(-1 if known is None else known.end_offset)
    if electorate.has_local:
        offsets.append(core.log.synced_end_offset)
    offset = quorum.majority_end_offset(offsets)
    if offset <= leader.epoch_start_offset or offset <= (core.high_watermark or 0):
        return
    if core.is_bootstrapping and min(offsets) <= electorate.entry.offset:
        return
    commit(core, offset)
    announce_high_watermark(core, leader)
