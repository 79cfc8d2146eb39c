"""Conditions of every vote and pre-vote: may this replica vote, and is the other log as good as its own?"""

from __future__ import annotations

from quorumd.raft.core import Core
from quorumd.raft.types import OffsetAndEpoch


def may_vote(core: Core) -> bool:
    """A directory that joins an existing quorum votes once its log names the voters.

    That of a Kafka quorum may never do so (kraft.version 0): then its witness, which configuration makes a
    voter, votes once it has committed records.
    """
    if core.log.voters_offset >= 0 or core.config.is_bootstrap:
        return True
    return core.is_voter and core.committed_offset > 0


def is_up_to_date(core: Core, last: OffsetAndEpoch) -> bool:
    """The later last epoch wins, then the longer log (KIP-595, Vote request handling)."""
    return (last.epoch, last.offset) >= (core.log.last_epoch, core.log.end_offset)
