"""Configuration that a replica starts with, and the quorum state on disk."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from quorumd.raft.types import Endpoint, ReplicaKey, VoterSet

OBSERVER_FORGOTTEN_MS: Final = 300_000
"""An observer that has been silent for this long is not listed any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftConfig:
    """The configuration of a replica. Times are ms.

    `configured_voters` is quorum.voters, matched by id; empty if there is none. Where there is one, only
    its ids may vote, and each of them does (KIP-856). `formatted_voters` are those that a new quorum was
    formatted with. `is_bootstrap` is True for a directory that was formatted as part of a new quorum:
    only then may this replica campaign, vote or count before the log names the voters. `new_cluster_id`
    is used if it becomes the first leader of a quorum that has no cluster id. A witness does not lead,
    but for a moment where no other voter can. `auto_join` lets it take the place of a voter under its id
    whose disk was lost, unless `was_removed` says that this very replica was removed on purpose.
    `is_kafka_log` says that the log is that of a real Kafka quorum: this replica copies it and never
    writes, because one record that Kafka does not know ends every node that fetches it. It votes there as
    a witness only.
    """

    local: ReplicaKey
    fetch_timeout_ms: int
    election_timeout_ms: int
    election_backoff_max_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    is_witness: bool
    auto_join: bool
    snapshot_bytes_per_s: int | None
    """Limit of the rate at which a snapshot is copied from the leader; None: no limit."""
    endpoints: tuple[Endpoint, ...] = ()
    configured_voters: VoterSet = field(default_factory=VoterSet)
    formatted_voters: VoterSet = field(default_factory=VoterSet)
    bootstrap_servers: int = 0
    is_bootstrap: bool = False
    cluster_id: str | None = None
    new_cluster_id: str = ""
    was_removed: bool = False
    is_kafka_log: bool = False

    @property
    def leader_contact_ms(self) -> int:
        """Time in ms for which a response of the leader counts as contact.

        A Kafka voter misses the leader at the same moment as a witness beside it. If the witness refused
        the voter then, the voter would ask again only after another fetch timeout: a witness is a
        quarter ahead.
        """
        is_early = self.is_kafka_log and self.is_witness
        return self.fetch_timeout_ms * 3 // 4 if is_early else self.fetch_timeout_ms

    @property
    def initial_voters(self) -> VoterSet:
        """The voters until the log names them."""
        return self.formatted_voters if len(self.formatted_voters) else self.configured_voters


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredState:
    """The quorum state on disk: quorum-state.json."""

    epoch: int = 0
    leader: ReplicaKey | None = None
    voted: ReplicaKey | None = None
    applied_offset: int = 0
