"""Replicas with logs made by hand, for checkers to look at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from uuid import UUID

import pytest

from quorumd.raft.config import StoredState
from quorumd.raft.control import VotersRecord
from quorumd.raft.invariants import CapturedState
from quorumd.raft.log_view import LogView
from quorumd.raft.node import RaftNode
from quorumd.raft.roles import Role
from quorumd.raft.types import ReplicaKey, Voter, VoterSet
from simulation.checkers import Facts, Observation
from simulation.default_raft_config import default_raft_config
from simulation.history.facts import Change
from simulation.history.replica import Batch, Identity, Replica
from simulation.history.voter_history import NamedVoters
from simulation.violation import Violation

A, B, C, D = (ReplicaKey(i, UUID(int=i)) for i in range(1, 5))


@contextmanager
def violates(name: str) -> Iterator[None]:
    with pytest.raises(Violation) as raised:
        yield
    assert raised.value.violated == name


def batch(offset: int, epoch: int = 1, number: int | None = None) -> Batch:
    """One record; `number` tells batches apart, as a CRC does."""
    identity = Identity(offset if number is None else number, 0, -1, -1)
    return Batch(offset, offset + 1, epoch, identity)


def voters_of(*keys: ReplicaKey) -> VoterSet:
    return VoterSet.of(Voter(key, ()) for key in keys)


def node_of(local: ReplicaKey, *voters: ReplicaKey, is_witness: bool = False) -> RaftNode:
    config = default_raft_config(
        local,
        configured_voters=voters_of(*voters),
        is_bootstrap=True,
        is_witness=is_witness,
    )
    return RaftNode(config, StoredState(), LogView(), lambda n: 0)


class Sight:
    """Replicas with logs, and looks at them."""

    def __init__(self) -> None:
        self.facts = Facts()

    def replica(self, key: ReplicaKey, *log: Batch, synced: int | None = None) -> Replica:
        """Its log, of which the first `synced` batches are synced; None: all are."""
        replica = Replica(key, self.facts.committed_below, self.facts.voters.note)
        replica.log = list(log)
        replica.synced = replica.log[:synced]
        self.facts.replicas[key] = replica
        return replica

    def commit(self, *batches: Batch, epoch: int = 1) -> None:
        self.facts.committed += batches
        self.facts.commit_epochs += [epoch] * len(batches)

    def observation(
        self,
        replica: Replica,
        role: Role = Role.FOLLOWER,
        *,
        epoch: int = 1,
        committed: int = 0,
        before: CapturedState | None = None,
        node: RaftNode | None = None,
        start: int = 0,
        files: Sequence[str] = (),
        now_us: int = 0,
    ) -> Observation:
        leads = role in (Role.LEADER, Role.RESIGNED)
        now = CapturedState(
            role=role,
            epoch=epoch,
            leader=replica.key if leads else None,
            voted=replica.key if leads or role is Role.CANDIDATE else None,
            local=replica.key,
            is_voter=role is not Role.OBSERVER,
            log_start_offset=start,
            log_end_offset=max(start, replica.end_offset),
            synced_end_offset=max(start, replica.synced_end_offset),
            last_epoch=replica.log[-1].epoch if replica.log else 0,
            committed_offset=committed,
        )
        return Observation(
            replica, node or node_of(replica.key, A, B, C), now, before, files, now_us
        )

    def name(
        self, of: Batch, *keys: ReplicaKey, target: tuple[int, ...] | None = None
    ) -> NamedVoters:
        """This batch names these voters."""
        named = NamedVoters(of, VotersRecord(voters_of(*keys), "cluster", target), keys[0])
        self.facts.voters.named[of] = named
        return named

    def write(self, of: Batch) -> None:
        """A client has written this batch."""
        self.facts.records[of.identity] = []

    def change(self, replica: Replica) -> Change:
        """What the last voter set of its log changes."""
        found = (self.facts.voters.named.get(batch) for batch in reversed(replica.log))
        return self.facts.change_of(replica.log, next(named for named in found if named))
