"""A partition and its quorum, as this node sees them now: a read-only view.

Responses to clients, metrics and status pages are made from it. Reading it changes nothing and needs no lock
on the event loop's thread. Knows no message and no file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from quorumd.raft.types import Endpoint, OffsetAndEpoch, ReplicaKey, SnapshotId, Voter, VoterSet
from quorumd.server.model.topic import TopicPartition


class ReplicaStatus(NamedTuple):
    """Progress of one replica, as the leader sees it: `raft.status.ReplicaProgress` in wall-clock time.

    `log_end_offset` is exclusive, -1 if the replica has not fetched in this epoch. Times are Unix
    milliseconds of this node's clock, never in its future; -1 is never. The leader's own times are now.
    """

    key: ReplicaKey
    log_end_offset: int
    last_fetch_ms: int = -1
    last_caught_up_ms: int = -1


class PendingChange(NamedTuple):
    """A change of voters or leader that waits; `key` is None where it is about several replicas, or any."""

    kind: str
    """add, remove, reassign or transfer."""
    key: ReplicaKey | None
    waiting_ms: int
    """-1 for a reassignment: it goes on without a request."""
    waits_for: str


class PartitionView(Protocol):
    """The partition as this node sees it now. Offsets are exclusive ends, except the log's start.

    Properties cost little; methods build their result. Nothing is copied before it is asked for.
    """

    @property
    def topic(self) -> TopicPartition: ...

    @property
    def cluster_id(self) -> str | None:
        """None until the cluster id is known to be committed."""

    @property
    def local(self) -> ReplicaKey:
        """This node."""

    @property
    def role(self) -> str:
        """The replica's role in lower case, as in `quorumd.raft.roles.Role`."""

    def wall_ms(self) -> int:
        """Now, as Unix milliseconds: the clock of all times that are shown here."""

    # -- the leader

    @property
    def leader_id(self) -> int | None:
        """The leader of `leader_epoch`, None if unknown. This node may know itself as leader.

        None also on a leader that has resigned: clients cannot write to it.
        """

    @property
    def leader_epoch(self) -> int: ...

    @property
    def leader_endpoints(self) -> tuple[Endpoint, ...]:
        """All listeners of the leader, also of one outside the voter set; empty if unknown."""

    @property
    def is_leader(self) -> bool: ...

    @property
    def has_committed_in_epoch(self) -> bool:
        """True on a leader whose high watermark has passed the start of its epoch: reads are safe."""

    @property
    def voted_id(self) -> int | None:
        """The id voted for in this epoch, a leader's or candidate's own included; None if none."""

    # -- the log

    @property
    def log_start_offset(self) -> int: ...

    @property
    def log_end_offset(self) -> int:
        """Exclusive, synced or not."""

    @property
    def log_end_epoch(self) -> int:
        """Epoch of the last record, 0 in an empty log."""

    @property
    def high_watermark(self) -> int:
        """Exclusive end of what is committed, -1 if it is not known in this epoch."""

    @property
    def committed_offset(self) -> int:
        """Everything below is known to be committed, also in an earlier epoch; it never goes back."""

    def end_offset_for(self, epoch: int) -> OffsetAndEpoch:
        """Largest epoch not above `epoch`, and its end."""

    @property
    def snapshot_end_offset(self) -> int:
        """Of the newest snapshot, -1 if there is none."""

    @property
    def snapshot_copy_ratio(self) -> float:
        """Part of a snapshot that has been copied from the leader, 0 to 1; -1 if none is copied."""

    def write_age_s(self) -> float:
        """Seconds that the write or the sync under way has taken so far; 0 if none is."""

    # -- the voters

    @property
    def voters(self) -> VoterSet:
        """The latest voter set, committed or not. Endpoints carry the names of the listeners."""

    @property
    def committed_voters(self) -> VoterSet:
        """The latest voter set that is known to be committed; `voters`, unless a change is under way."""

    @property
    def target_voters(self) -> tuple[int, ...] | None:
        """Ids that a reassignment is on its way to; None if there is none."""

    @property
    def is_kafka_log(self) -> bool:
        """The log is that of a real Kafka quorum, which this node observes, or votes in as a witness."""

    @property
    def is_witness(self) -> bool:
        """This node votes, and leads only where no other voter can."""

    @property
    def obstacles(self) -> tuple[str, ...]:
        """Reasons why this witness must not become a voter of the Kafka quorum, in words; empty of others."""

    @property
    def offers_vote(self) -> bool:
        """This witness of a Kafka quorum votes, or may become a voter."""

    @property
    def is_ahead(self) -> bool:
        """This witness holds records that no other voter within reach has."""

    @property
    def missing_records(self) -> int:
        """Offsets that the leader knows to be committed and this node has not yet; 0 on the leader."""

    @property
    def kraft_version(self) -> int:
        """The feature level in force: 1 once a KRaftVersion record of level 1 is in the log, else 0."""

    @property
    def kraft_version_offset(self) -> int:
        """A committed offset that the level is known from, -1 if none."""

    @property
    def is_adding_voter(self) -> bool: ...

    @property
    def is_removing_voter(self) -> bool: ...

    @property
    def unknown_voter_connections(self) -> int:
        """Voters that no address is known for."""

    def pending_changes(self) -> tuple[PendingChange, ...]:
        """Voter changes that were asked for and are not committed yet; empty if this node does not lead."""

    # -- the replicas

    def in_sync_ids(self) -> tuple[int, ...]:
        """Voters that fetched within the fetch timeout, the leader among them, ascending.

        On a node that does not lead: the voters that it does not know to be gone; none without a leader.
        """

    def voter_statuses(self) -> tuple[ReplicaStatus, ...]:
        """One per voter key, in the order of the voter set; empty on a node that does not lead."""

    def observer_statuses(self) -> tuple[ReplicaStatus, ...]:
        """Replicas outside the voter set heard of lately, ascending; empty if this node does not lead."""

    def observer_endpoints(self) -> tuple[Voter, ...]:
        """Observers that have said where they are reached; empty if this node does not lead."""


class CopyProgress(NamedTuple):
    """A replica has `position` of the `size_bytes` of a snapshot."""

    snapshot: SnapshotId
    position: int
    size_bytes: int


class SnapshotWork(NamedTuple):
    """A leader's work on snapshots: the replicas that copy one, and the one that it builds."""

    copies: Mapping[ReplicaKey, CopyProgress]
    build_end_offset: int = -1
    """-1 if none is built."""
    build_ratio: float = 0.0
