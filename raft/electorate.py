"""The meaning of a voter set for one replica."""

from __future__ import annotations

from dataclasses import dataclass

from quorumd.raft import quorum
from quorumd.raft.config import RaftConfig
from quorumd.raft.log_view import VoterEntry
from quorumd.raft.types import ReplicaKey, VoterSet


@dataclass(frozen=True, slots=True)
class Electorate:
    """The latest voter set as this replica sees it, worked out once for each set."""

    entry: VoterEntry
    voters: VoterSet
    keys: tuple[ReplicaKey, ...]
    others: tuple[ReplicaKey, ...]
    has_local: bool
    others_needed: int
    """Number of other voters that make a majority with this replica, if it votes."""
    has_moved: bool
    """This replica is reached elsewhere than the set says."""
    is_settled: bool
    """As a leader this replica has no reason to change the set by itself, or to leave."""

    @staticmethod
    def of(entry: VoterEntry, config: RaftConfig) -> Electorate:
        """Work it out for a voter set of the log, or of configuration."""
        voters, local = entry.record.voters, config.local
        others = tuple(key for key in voters.keys if not local.matches(key))
        own = voters.find(local)
        has_moved = own is not None and own.endpoints != (config.endpoints or own.endpoints)
        stays = own is not None and not has_moved and not config.is_witness
        return Electorate(
            entry,
            voters,
            voters.keys,
            others,
            own is not None,
            quorum.majority(len(voters)) - (own is not None),
            has_moved,
            not config.is_kafka_log
            and (entry.offset < 0 or (stays and entry.record.target is None)),
        )
