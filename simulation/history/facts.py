"""Facts of a run by now: appends of clients, committed batches, requested voter changes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from quorumd.raft.types import ReplicaKey
from quorumd.wire.records import Record
from simulation.history.appends import Append
from simulation.history.replica import Batch, Identity, Replica
from simulation.history.voter_change_requests import VoterChangeRequest
from simulation.history.voter_history import NamedVoters, VoterHistory


class Change(NamedTuple):
    """A leader has appended a voter set behind a `former` one; None: it is the first of its log.

    `is_first` if it may replace the former one just like that: no client has written anything yet, and the
    ids of the voters are the same (KIP-856, bootstrapping).
    """

    named: NamedVoters
    former: NamedVoters | None
    is_first: bool

    @property
    def added(self) -> list[ReplicaKey]:
        """Voters that the former set did not have."""
        former = () if self.former is None else self.former.keys
        return [key for key in self.named.keys if key not in former]

    @property
    def removed(self) -> list[ReplicaKey]:
        """Voters of the former set that this one does not have."""
        former = () if self.former is None else self.former.keys
        return [key for key in former if key not in self.named.keys]


class Heard(NamedTuple):
    """When a replica last got a Fetch response, and the epoch and the machine of the leader that sent it."""

    at_us: int
    epoch: int
    host: str


@dataclass(slots=True)
class Facts:
    """Facts that the checkers share. `committed` grows and never changes otherwise."""

    replicas: dict[ReplicaKey, Replica] = field(default_factory=dict)
    committed: list[Batch] = field(default_factory=list)
    records: dict[Identity, list[Record]] = field(default_factory=dict)
    """Records that clients have put into their batches."""
    appends: list[Append] = field(default_factory=list)
    """All batches that clients have tried to append."""
    commit_epochs: list[int] = field(default_factory=list)
    """The epoch in which each of `committed` was first known to be committed."""
    excused: set[ReplicaKey] = field(default_factory=set)
    """Replicas whose disk was damaged behind their back: what they lost is no fault of the code."""
    change_requests: list[VoterChangeRequest] = field(default_factory=list)
    """All requests for changes of the voter set, or of the leader."""
    contacts: dict[ReplicaKey, int] = field(default_factory=dict)
    """When a leader last had a request of this replica for records; µs."""
    up_since: dict[ReplicaKey, int] = field(default_factory=dict)
    """When the process of this replica began that runs now; µs."""
    begun_epochs: set[int] = field(default_factory=set)
    """Epochs that replicas have begun, or had on disk when they started."""
    forged_epochs: set[int] = field(default_factory=set)
    """Epochs of forged votes that reached a replica without a leader."""
    heard: dict[ReplicaKey, Heard] = field(default_factory=dict)
    """Of each process that follows a leader on a connection that has not been lost or refused since."""
    is_undisturbed: bool = True
    late_epoch: int = -1
    """The last one that a leader has yielded to, and that a replica had from a time with faults."""
    """No fault has any effect now, nor has had for a while."""
    voters: VoterHistory = field(init=False)

    def __post_init__(self) -> None:
        self.voters = VoterHistory(self.committed)

    @property
    def committed_end_offset(self) -> int:
        """Exclusive end of the committed history."""
        return self.committed[-1].end_offset if self.committed else 0

    def change_of(self, log: Sequence[Batch], named: NamedVoters) -> Change:
        """The change that a voter set makes in this log, which holds it."""
        before = [batch for batch in log if batch.end_offset <= named.batch.base_offset]
        earlier = (self.voters.named.get(batch) for batch in reversed(before))
        former = next((found for found in earlier if found is not None), None)
        if former is None:
            return Change(named, None, True)
        has_same_ids = {key.id for key in former.keys} == {key.id for key in named.keys}
        is_written = any(batch.identity in self.records for batch in before)
        return Change(named, former, has_same_ids and not is_written)

    def committed_below(self, end_offset: int) -> list[Batch]:
        """The committed batches that end at `end_offset` or before."""
        return self.committed[: bisect_right(self.committed, end_offset, key=_end_of)]


def _end_of(batch: Batch) -> int:
    return batch.end_offset
