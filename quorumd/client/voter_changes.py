"""The requests that change the voters or the leader, sent until the leader responds that the change is done.

The leader responds when the change is committed. Meanwhile the client describes the quorum on another
connection, reports what the leader waits for, and closes the connection to a deposed leader. Sending a
request again is safe.
Source: KIP-853 (AddRaftVoter, RemoveRaftVoter), KIP-455 (AlterPartitionReassignments).
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from quorumd.client.client import QuorumClient
from quorumd.client.connection import ClientConnection
from quorumd.client.description import PendingQuorumChange, QuorumDescription, ReplicaState
from quorumd.client.error_messages import LEADER_MOVED, explain
from quorumd.client.errors import (
    ChangeRefused,
    ChangeTimedOut,
    ConnectionFailed,
    QuorumError,
    QuorumUnavailable,
    error_code,
)
from quorumd.client.leader import LeaderFinder, RetriableError
from quorumd.client.security import Security
from quorumd.client.timing import Deadline, RetryBackoff
from quorumd.raft.types import Address, Endpoint, ReplicaKey
from quorumd.security.errors import CertificateProblem
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.add_raft_voter import (
    AddRaftVoterRequest,
    AddRaftVoterRequestListener,
    AddRaftVoterResponse,
)
from quorumd.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsRequestPartition,
    AlterPartitionReassignmentsRequestTopic,
    AlterPartitionReassignmentsResponse,
)
from quorumd.wire.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from quorumd.wire.messages.take_snapshot import TakeSnapshotRequest
from quorumd.wire.messages.transfer_leader import TransferLeaderRequest, TransferLeaderResponse
from quorumd.wire.metadata_topic import PARTITION, TOPIC
from quorumd.wire.schema import ZERO_UUID

POLL_S = 0.25
DESCRIBE_TIMEOUT_MS = 5_000
# The leader's timeout is so much shorter than the client's, so that its reason arrives.
_RESPONSE_MARGIN_MS = 500
_LOOK_TIMEOUT_S = 3.0
_KAFKA_ASKED_IN_VAIN = "API_VERSIONS returned an error"
"""A Kafka leader asks a voter at the endpoint of the request for its kraft.version, before it adds it."""

NO_REPLICA = ReplicaKey(-1)
ADD, REMOVE, REASSIGN, TRANSFER = "add", "remove", "reassign", "transfer"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeProgress:
    """The condition that a change waits for, and for how long (ms, -1: unknown).

    `quorum` is None while no leader can be reached: `waits_for` is the reason then.
    """

    quorum: QuorumDescription | None
    waits_for: str
    waiting_ms: int = -1


OnChangeProgress = Callable[[ChangeProgress], None]


class ChangeReply(NamedTuple):
    """A node's error code and message for a change, and its epoch (-1: not in the response)."""

    code: int
    message: str | None
    epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumChange(ABC):
    """A change of the voters or of the leader, and the request for it.

    `goal` completes "could not ...". `kind` and `key` are as in PendingQuorumChange.
    """

    kind: ClassVar[str]
    goal: str
    key: ReplicaKey = NO_REPLICA

    @property
    def done_codes(self) -> frozenset[ErrorCode]:
        """Error codes which say that the change has been made before."""
        return frozenset()

    @abstractmethod
    async def send(self, connection: ClientConnection, timeout_ms: int) -> ChangeReply:
        """Sends the request to a node, which has `timeout_ms` for it. Raises ConnectionFailed."""

    def is_done(self, quorum: QuorumDescription) -> bool:
        """False if the quorum shows that it has not been made, whatever the code may mean."""
        return True

    def contradiction(self, quorum: QuorumDescription, reason: str) -> str:
        """The reason why it is not made, where one of `done_codes` came and the quorum shows otherwise."""
        return reason

    def is_about(self, pending: PendingQuorumChange) -> bool:
        """True if this is what the leader calls `pending`."""
        return pending.kind == self.kind and pending.key == self.key


@dataclass(frozen=True, slots=True, kw_only=True)
class AddVoterChange(QuorumChange):
    """AddRaftVoter: `key` votes, and is reached at `endpoints`."""

    kind = ADD
    cluster_id: str
    endpoints: tuple[Endpoint, ...]

    @property
    def done_codes(self) -> frozenset[ErrorCode]:
        return frozenset({ErrorCode.DUPLICATE_VOTER})

    def is_done(self, quorum: QuorumDescription) -> bool:
        """A Kafka controller means the id by this code: another storage id has the vote then."""
        return self.key in {voter.key for voter in quorum.voters}

    def contradiction(self, quorum: QuorumDescription, reason: str) -> str:
        """Kafka knows no two voters of one id, so the old one goes first."""
        same_id = [voter.key for voter in quorum.voters if voter.key.id == self.key.id]
        if not same_id:
            return reason
        number = self.key.id
        return (
            f"{same_id[0]} votes, and Kafka has one voter of an id. Take its vote first: "
            f"`quorumctl remove-voter --replica-id {number}`; then `quorumctl add-voter` with --endpoint "
            "gives the new one a vote"
        )

    async def send(self, connection: ClientConnection, timeout_ms: int) -> ChangeReply:
        request = AddRaftVoterRequest(
            cluster_id=self.cluster_id or None,
            timeout_ms=timeout_ms,
            voter_id=self.key.id,
            voter_directory_id=self.key.uuid or ZERO_UUID,
            listeners=tuple(
                AddRaftVoterRequestListener(name=at.name, host=at.host, port=at.port)
                for at in self.endpoints
            ),
        )
        response = await connection.request(
            request, AddRaftVoterResponse, timeout_s=_timeout_s(timeout_ms)
        )
        message = response.error_message
        if message and _KAFKA_ASKED_IN_VAIN in message:
            at = ", ".join(f"{each.name}://{each.host}:{each.port}" for each in self.endpoints)
            message = f"the leader asks the new voter at {at}, and gets no response ({message})"
        return ChangeReply(response.error_code, message)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveVoterChange(QuorumChange):
    """RemoveRaftVoter: `key` does not vote any more; `force` skips the leader's safety checks."""

    kind = REMOVE
    cluster_id: str
    force: bool = False

    @property
    def done_codes(self) -> frozenset[ErrorCode]:
        return frozenset({ErrorCode.VOTER_NOT_FOUND})

    def is_done(self, quorum: QuorumDescription) -> bool:
        """The code says of the only voter, too, that it is not removed."""
        return self.key not in {voter.key for voter in quorum.voters}

    async def send(self, connection: ClientConnection, timeout_ms: int) -> ChangeReply:
        request = RemoveRaftVoterRequest(
            cluster_id=self.cluster_id or None,
            voter_id=self.key.id,
            voter_directory_id=self.key.uuid or ZERO_UUID,
            timeout_ms=timeout_ms,
            force=self.force,
        )
        response = await connection.request(
            request, RemoveRaftVoterResponse, timeout_s=_timeout_s(timeout_ms)
        )
        return ChangeReply(response.error_code, response.error_message)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignmentChange(QuorumChange):
    """AlterPartitionReassignments: the voters become `target`; None cancels a reassignment."""

    kind = REASSIGN
    target: tuple[int, ...] | None

    @property
    def done_codes(self) -> frozenset[ErrorCode]:
        if self.target is None:
            return frozenset({ErrorCode.NO_REASSIGNMENT_IN_PROGRESS})
        return frozenset()

    async def send(self, connection: ClientConnection, timeout_ms: int) -> ChangeReply:
        partition = AlterPartitionReassignmentsRequestPartition(
            partition_index=PARTITION, replicas=self.target
        )
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=timeout_ms,
            topics=(AlterPartitionReassignmentsRequestTopic(name=TOPIC, partitions=(partition,)),),
        )
        response = await connection.request(
            request, AlterPartitionReassignmentsResponse, timeout_s=_timeout_s(timeout_ms)
        )
        partitions = [each for topic in response.responses for each in topic.partitions]
        if response.error_code or not partitions:
            return ChangeReply(response.error_code, response.error_message)
        code, message = partitions[0].error_code, partitions[0].error_message
        if error_code(code) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            message = (
                "Kafka leads this quorum, and changes its voters one at a time: `quorumctl add-voter` and "
                "`remove-voter`"
            )
        return ChangeReply(code, message)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderTransferChange(QuorumChange):
    """TransferLeader: the voter `to` leads; None lets the leader choose."""

    kind = TRANSFER
    cluster_id: str
    to: ReplicaKey | None

    async def send(self, connection: ClientConnection, timeout_ms: int) -> ChangeReply:
        request = TransferLeaderRequest(
            cluster_id=self.cluster_id or None,
            to_id=-1 if self.to is None else self.to.id,
            to_directory_id=ZERO_UUID if self.to is None else self.to.uuid or ZERO_UUID,
            timeout_ms=timeout_ms,
        )
        response = await connection.request(
            request, TransferLeaderResponse, timeout_s=_timeout_s(timeout_ms)
        )
        return ChangeReply(response.error_code, response.error_message, response.leader_epoch)


class ChangeClient:
    """Sends changes to the leader of one quorum, and describes the quorum meanwhile."""

    def __init__(
        self,
        bootstrap: Sequence[Address],
        *,
        client_id: str,
        timeout_ms: int,
        security: Security | None,
    ) -> None:
        self._watching = QuorumClient(
            bootstrap, client_id=client_id, timeout_ms=timeout_ms, security=security
        )
        self._finder = LeaderFinder(bootstrap, client_id=client_id, security=security)
        self._newest_epoch = -1

    def close(self) -> None:
        """Closes all connections. The leader may still complete a change that was requested."""
        self._watching.close()
        self._finder.close()

    async def describe(self, deadline: Deadline) -> QuorumDescription:
        """The leader's view of the quorum, never of an older epoch than before. Raises QuorumUnavailable."""
        while True:
            quorum = await self._watching.describe_quorum(timeout_ms=deadline.remaining_ms())
            if quorum.leader_epoch >= self._newest_epoch:
                self._newest_epoch = quorum.leader_epoch
                return quorum
            await asyncio.sleep(POLL_S)

    async def is_witness_beside_kafka(self, replica: ReplicaState, deadline: Deadline) -> bool:
        """True if a Kafka controller leads, and this replica is a node of quorumd: it never leads for good.

        Raises QuorumUnavailable.
        """
        leader = await self._finder.connection("ask the leader what it offers", deadline)
        if leader.offers(TransferLeaderRequest):
            return False
        for endpoint in replica.endpoints:
            address = Address(endpoint.host, endpoint.port)
            timeout_s = min(_LOOK_TIMEOUT_S, deadline.remaining_s())
            with suppress(QuorumError, CertificateProblem):
                asked = await self._watching.connector.connect(address, timeout_s)
                try:
                    return asked.offers(TakeSnapshotRequest)
                finally:
                    asked.close()
        return False

    async def make(
        self, change: QuorumChange, deadline: Deadline, on_progress: OnChangeProgress | None = None
    ) -> ErrorCode:
        """Returns when the leader has committed the change: NONE, or one of `change.done_codes`.

        Raises ChangeRefused, ChangeTimedOut, QuorumUnavailable, NotSupported.
        """
        reasons: list[str] = []

        def note(progress: ChangeProgress) -> None:
            reasons[:] = [progress.waits_for]
            if on_progress is not None:
                on_progress(progress)

        watch = asyncio.create_task(self._watch(change, note))
        try:
            return await self._send(change, deadline)
        except QuorumUnavailable as error:
            if not any(reasons):
                raise
            raise ChangeTimedOut(change.goal, deadline.timeout_ms, reasons[0]) from error
        finally:
            watch.cancel()
            with suppress(asyncio.CancelledError):
                await watch

    async def send_once(self, change: QuorumChange, deadline: Deadline) -> ChangeReply:
        """Sends the change once, to the presumed leader. Raises ConnectionFailed, QuorumUnavailable."""
        connection = await self._finder.connection(change.goal, deadline)
        try:
            reply = await change.send(connection, _for_server_ms(deadline))
        except ConnectionFailed as error:
            self._finder.find_again(connection.address, error)
            raise
        reason = reply.message or explain(error_code(reply.code))
        if error_code(reply.code) in LEADER_MOVED:
            self._finder.retry_later(connection.address, RetriableError(reason))
        elif reply.code:
            self._finder.retry_later(connection.address, RetriableError(reason, stay=True))
        return reply

    async def pause(self, change: QuorumChange, deadline: Deadline, backoff: RetryBackoff) -> None:
        """Waits before the next try. Raises QuorumUnavailable if the time is up then."""
        await self._finder.pause(change.goal, deadline, backoff)

    async def _send(self, change: QuorumChange, deadline: Deadline) -> ErrorCode:
        backoff = RetryBackoff()
        while True:
            with suppress(ConnectionFailed):
                reply = await self.send_once(change, deadline)
                error = error_code(reply.code)
                reason = reply.message or explain(error)
                if not error:
                    return error
                if error in change.done_codes:
                    quorum = await self.describe(deadline)
                    if change.is_done(quorum):
                        return error
                    reason = change.contradiction(quorum, reason)
                if error is ErrorCode.REQUEST_TIMED_OUT:
                    if deadline.remaining_ms() <= _RESPONSE_MARGIN_MS:
                        raise ChangeTimedOut(change.goal, deadline.timeout_ms, reason)
                elif error not in LEADER_MOVED:
                    raise ChangeRefused(change.goal, reason, error)
            await self.pause(change, deadline, backoff)

    async def _watch(self, change: QuorumChange, on_progress: OnChangeProgress) -> None:
        begun_in = self._newest_epoch
        while True:
            try:
                quorum = await self.describe(Deadline(DESCRIBE_TIMEOUT_MS))
            except QuorumUnavailable as error:
                on_progress(ChangeProgress(quorum=None, waits_for=error.summary))
            except (QuorumError, CertificateProblem) as error:
                on_progress(ChangeProgress(quorum=None, waits_for=str(error)))
            else:
                if 0 <= begun_in < quorum.leader_epoch:
                    self._leave_deposed_leader(quorum)
                begun_in = quorum.leader_epoch
                on_progress(_progress(change, quorum))
            await asyncio.sleep(POLL_S)

    def _leave_deposed_leader(self, quorum: QuorumDescription) -> None:
        """A deposed leader that hangs would not respond before the client's timeout."""
        connection = self._finder.open_connection
        at = () if quorum.leader is None else quorum.leader.endpoints
        if connection is not None and connection.address not in [
            Address(each.host, each.port) for each in at
        ]:
            self._finder.forget(connection.address, f"node {quorum.leader_id} leads now")


def _progress(change: QuorumChange, quorum: QuorumDescription) -> ChangeProgress:
    pending = [each for each in quorum.pending_changes if change.is_about(each)]
    if not pending:
        return ChangeProgress(quorum=quorum, waits_for="")
    text = pending[0].waits_for or "other changes that were asked for before"
    return ChangeProgress(quorum=quorum, waits_for=text, waiting_ms=pending[0].waiting_ms)


def _for_server_ms(deadline: Deadline) -> int:
    remaining_ms = deadline.remaining_ms()
    return max(1, remaining_ms - min(_RESPONSE_MARGIN_MS, remaining_ms // 4))


def _timeout_s(timeout_ms: int) -> float:
    return (timeout_ms + _RESPONSE_MARGIN_MS) / 1000
