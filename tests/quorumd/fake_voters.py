"""Membership for the fake quorum: the test says who votes, who observes, and what the leader waits for.

No consensus and no rule: a change is made at once, or when the test lets it, or refused as the test says.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from quorumd.raft.types import Endpoint, ReplicaKey, uuid_to_text
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse
from quorumd.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    AlterPartitionReassignmentsResponsePartition,
    AlterPartitionReassignmentsResponseTopic,
)
from quorumd.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeQuorumResponseCommittedVoter,
    DescribeQuorumResponseListener,
    DescribeQuorumResponseNode,
    DescribeQuorumResponsePartition,
    DescribeQuorumResponsePendingChange,
    DescribeQuorumResponseReplica,
    DescribeQuorumResponseTopic,
)
from quorumd.wire.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from quorumd.wire.messages.transfer_leader import TransferLeaderRequest, TransferLeaderResponse
from quorumd.wire.schema import Message
from tests.quorumd.fake_quorum import TOPIC, FakeQuorum

ZERO = UUID(int=0)
LONG_MS = 60_000
BEHIND = "replica 4 is 312 records behind"


def uuid_of(replica_id: int, disk: int = 0) -> UUID:
    """The storage id of the so-many-eth disk of a replica."""
    return UUID(int=(disk + 1 << 64) + replica_id)


def uuid_text(replica_id: int, disk: int = 0) -> str:
    return uuid_to_text(uuid_of(replica_id, disk))


def key_of(replica_id: int, disk: int = 0) -> ReplicaKey:
    return ReplicaKey(replica_id, uuid_of(replica_id, disk))


def pending(kind: str, key: ReplicaKey, waits_for: str) -> DescribeQuorumResponsePendingChange:
    assert key.uuid is not None
    return DescribeQuorumResponsePendingChange(
        kind=kind,
        replica_id=key.id,
        replica_directory_id=key.uuid,
        waiting_ms=12_000,
        waits_for=waits_for,
    )


def lose_first_answer(quorum: FakeQuorum, to: type[Message]) -> None:
    """The change is made, but the connection breaks before the answer."""
    losses = [to]

    def lose(node_id: int, request: Message, response: Message) -> Message | None:
        if losses and isinstance(request, losses[0]):
            losses.clear()
            return None
        return response

    quorum.before_answer = lose


@dataclass(slots=True)
class FakeVoters:
    """Voters 1 to 3, and no observers, on a fake quorum.

    `silent_ms` is how long ago a replica fetched (0 if it is not in there), `died_at_ms` when it did last,
    `lag` how far it is behind.
    `refusals` are given before anything is done, one each time. While `gate` is closed, a change waits.
    `at_look` is what happens when the quorum is described for the so-many-eth time.
    """

    quorum: FakeQuorum
    voters: list[ReplicaKey] = field(default_factory=lambda: [key_of(1), key_of(2), key_of(3)])
    observers: list[ReplicaKey] = field(default_factory=list)
    silent_ms: dict[ReplicaKey, int] = field(default_factory=dict)
    died_at_ms: dict[ReplicaKey, int] = field(default_factory=dict)
    lag: dict[ReplicaKey, int] = field(default_factory=dict)
    untold: set[ReplicaKey] = field(default_factory=set)
    committed: list[ReplicaKey] | None = None
    target: tuple[int, ...] | None = None
    pending: list[DescribeQuorumResponsePendingChange] = field(default_factory=list)
    refusals: list[tuple[ErrorCode, str]] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    elect_on_transfer: int | None = None
    high_watermark: int = 0
    looks: int = 0
    at_look: dict[int, Callable[[], object]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gate.set()
        self.quorum.offered += (45, 80, 81, 20001)
        self.quorum.handlers.update(
            {
                DescribeQuorumRequest: self._describe,
                AddRaftVoterRequest: self._add,
                RemoveRaftVoterRequest: self._remove,
                AlterPartitionReassignmentsRequest: self._reassign,
                TransferLeaderRequest: self._transfer,
            }
        )

    @property
    def voter_ids(self) -> list[int]:
        return sorted(key.id for key in self.voters)

    def replace_disk(self, replica_id: int) -> None:
        """A voter is dead, and another replica observes in its place."""
        self.silent_ms[key_of(replica_id)] = LONG_MS
        self.observers.append(key_of(replica_id, 1))

    async def _describe(
        self, node_id: int, request: DescribeQuorumRequest
    ) -> DescribeQuorumResponse:
        """Whoever is asked, it is the leader's answer, as with quorumd."""
        self.looks += 1
        self.at_look.pop(self.looks, lambda: None)()
        quorum = self.quorum
        keys = [*self.voters, *self.observers]
        # One look at the clock: replicas that are silent for as long fetched at the same time.
        now_ms = int(time.time() * 1000)
        partition = DescribeQuorumResponsePartition(
            leader_id=quorum.leader_id,
            leader_epoch=quorum.epoch,
            high_watermark=self.high_watermark,
            current_voters=tuple(self._replica(key, now_ms) for key in self.voters),
            observers=tuple(self._replica(key, now_ms) for key in self.observers),
            committed_voters=None
            if self.committed is None
            else tuple(
                DescribeQuorumResponseCommittedVoter(
                    replica_id=key.id, replica_directory_id=key.uuid or ZERO
                )
                for key in self.committed
            ),
            target_voters=self.target,
            pending_changes=tuple(self.pending) or None,
        )
        return DescribeQuorumResponse(
            topics=(DescribeQuorumResponseTopic(topic_name=TOPIC, partitions=(partition,)),),
            nodes=tuple(
                DescribeQuorumResponseNode(
                    node_id=key.id,
                    directory_id=key.uuid or ZERO,
                    listeners=(self._listener(key),),
                )
                for key in keys
                if key not in self.untold
            ),
        )

    def _replica(self, key: ReplicaKey, now_ms: int) -> DescribeQuorumResponseReplica:
        fetched_ms = now_ms - self.silent_ms.get(key, 0)
        fetched_ms = min(fetched_ms, self.died_at_ms.get(key, fetched_ms))
        return DescribeQuorumResponseReplica(
            replica_id=key.id,
            replica_directory_id=key.uuid or ZERO,
            log_end_offset=max(0, self.quorum.end_offset - self.lag.get(key, 0)),
            last_fetch_timestamp=fetched_ms,
            last_caught_up_timestamp=fetched_ms,
        )

    def _listener(self, key: ReplicaKey) -> DescribeQuorumResponseListener:
        node = self.quorum.nodes.get(key.id)
        port = 20_000 + key.id if node is None else node.port
        return DescribeQuorumResponseListener(name="CONTROLLER", host="127.0.0.1", port=port)

    async def _add(self, node_id: int, request: AddRaftVoterRequest) -> AddRaftVoterResponse:
        key = ReplicaKey(request.voter_id, request.voter_directory_id)
        at = [Endpoint(each.name, each.host, each.port) for each in request.listeners]
        self.asked.append(f"add {key} at {', '.join(f'{e.name}://{e.host}:{e.port}' for e in at)}")
        error, message = await self._refusal(node_id)
        if not error and key in self.voters:
            error, message = ErrorCode.DUPLICATE_VOTER, f"replica {key} is a voter already"
        elif not error:
            self.voters.append(key)
            self.observers = [other for other in self.observers if other != key]
        return AddRaftVoterResponse(error_code=error, error_message=message)

    async def _remove(
        self, node_id: int, request: RemoveRaftVoterRequest
    ) -> RemoveRaftVoterResponse:
        key = ReplicaKey(request.voter_id, request.voter_directory_id)
        self.asked.append(f"remove {key}{' by force' if request.force else ''}")
        error, message = await self._refusal(node_id)
        if not error and key not in self.voters:
            error, message = ErrorCode.VOTER_NOT_FOUND, f"replica {key} is not a voter"
        elif not error and len(self.voters) == 1:
            error, message = ErrorCode.VOTER_NOT_FOUND, f"{key} is the only voter"
        elif not error:
            self.voters.remove(key)
            self.observers.append(key)
            if key.id == self.quorum.leader_id:
                self.quorum.elect(self.voters[0].id)
        return RemoveRaftVoterResponse(error_code=error, error_message=message)

    async def _reassign(
        self, node_id: int, request: AlterPartitionReassignmentsRequest
    ) -> AlterPartitionReassignmentsResponse:
        wanted = request.topics[0].partitions[0].replicas
        self.asked.append(f"reassign {wanted}")
        error, message = await self._refusal(node_id)
        if not error:
            self.target = wanted
        partition = AlterPartitionReassignmentsResponsePartition(
            error_code=error, error_message=message
        )
        topic = AlterPartitionReassignmentsResponseTopic(name=TOPIC, partitions=(partition,))
        return AlterPartitionReassignmentsResponse(responses=(topic,))

    async def _transfer(
        self, node_id: int, request: TransferLeaderRequest
    ) -> TransferLeaderResponse:
        self.asked.append(f"transfer to {request.to_id}")
        error, message = await self._refusal(node_id)
        epoch = self.quorum.epoch
        if not error:
            others = [key.id for key in self.voters if key.id != self.quorum.leader_id]
            wanted = request.to_id if request.to_id >= 0 else others[0]
            self.quorum.elect(wanted if self.elect_on_transfer is None else self.elect_on_transfer)
        return TransferLeaderResponse(
            error_code=error, error_message=message, leader_id=node_id, leader_epoch=epoch
        )

    async def _refusal(self, node_id: int) -> tuple[ErrorCode, str | None]:
        await self.gate.wait()
        if node_id != self.quorum.leader_id:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, f"replica {node_id} does not lead"
        return self.refusals.pop(0) if self.refusals else (ErrorCode.NONE, None)
