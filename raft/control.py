"""The control records that the rules write and read, as plain values.

`quorumd.wire.control_records` has their bytes. Source: KIP-595 (LeaderChangeMessage), KIP-856 (voters).
"""

from __future__ import annotations

from dataclasses import dataclass

from quorumd.raft.types import ReplicaKey, VoterSet


@dataclass(frozen=True, slots=True)
class LeaderChangeRecord:
    """First record of every epoch: the leader, the voters, and those that voted for the leader."""

    leader: ReplicaKey
    voters: tuple[ReplicaKey, ...]
    granting: tuple[ReplicaKey, ...]


@dataclass(frozen=True, slots=True)
class KRaftVersionRecord:
    """The level of kraft.version from this offset on."""

    level: int


@dataclass(frozen=True, slots=True)
class VotersRecord:
    """The whole voter set from this offset on, and the cluster id if the log carries one.

    `target` are the ids that a reassignment is on its way to, None if there is none (KIP-642).
    """

    voters: VoterSet
    cluster_id: str | None = None
    target: tuple[int, ...] | None = None


RaftControlRecord = LeaderChangeRecord | KRaftVersionRecord | VotersRecord
