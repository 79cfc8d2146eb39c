"""The ids of replicas as one of them sees them, and the values that all replicas of the scope share.

The three replicas stand in a circle. Seen from any of them, 0 is the replica itself, 1 the next one and 2
the one before: a *place*. `Labels` gives each place an id, so that the real core can run on it.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from quorumd.raft.control import VotersRecord
from quorumd.raft.log_view import VoterEntry
from quorumd.raft.types import Endpoint, ReplicaKey, Voter, VoterSet
from simulation.default_raft_config import default_raft_config

CLUSTER = "cluster"
IDS = (1, 2, 3)
SIZE = len(IDS)

Place = int


_KEYS = {i: ReplicaKey(i, UUID(int=1000 + i)) for i in IDS}
_ENDPOINTS = {i: (Endpoint("CONTROLLER", f"host{i}", 9093),) for i in IDS}


def key_of(replica_id: int) -> ReplicaKey:
    """The key of the replica under this id."""
    return _KEYS[replica_id]


def endpoints_of(replica_id: int) -> tuple[Endpoint, ...]:
    """The endpoints of the replica under this id."""
    return _ENDPOINTS[replica_id]


VOTERS = VoterSet.of(Voter(key_of(i), endpoints_of(i)) for i in IDS)
VOTERS_ENTRY = VoterEntry(1, VotersRecord(VOTERS, CLUSTER))
"""The record at offset 1 of every log names the voters."""

CONFIGS = {
    i: default_raft_config(key_of(i), endpoints=endpoints_of(i), cluster_id=CLUSTER) for i in IDS
}


class Labels(NamedTuple):
    """The id at each place."""

    me: int
    next: int
    previous: int

    def key(self, place: Place | None) -> ReplicaKey | None:
        """The key of the replica at a place."""
        return None if place is None else key_of(self[place])

    def place(self, key: ReplicaKey | None) -> Place | None:
        """The place of a replica."""
        return None if key is None else self.place_of_id(key.id)

    def place_of_id(self, replica_id: int | None) -> Place | None:
        """The place of the replica under this id."""
        return None if replica_id is None else self.index(replica_id)


def labels_at(position: int) -> Labels:
    """The labels of the replica at this position of the circle: 0 is replica 1, and so on."""
    return Labels(*(IDS[(position + place) % SIZE] for place in range(SIZE)))


ALL_LABELS = (
    Labels(1, 2, 3),
    Labels(1, 3, 2),
    Labels(2, 3, 1),
    Labels(2, 1, 3),
    Labels(3, 1, 2),
    Labels(3, 2, 1),
)


def mirrored(place: Place) -> Place:
    """The same replica in the circle seen from behind."""
    return -place % SIZE
