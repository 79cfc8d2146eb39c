"""One change of the voters, asked of the leader until it answers that it is done.

The leader answers late: when the change is committed. Meanwhile this side watches the quorum on another
connection, says what the leader waits for, and leaves a leader that is deposed. To ask again is safe.
Source: KIP-853 (AddRaftVoter, RemoveRaftVoter), KIP-455 (AlterPartitionReassignments).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from quorumd.client.addresses import Address
from quorumd.client.client import QuorumClient
from quorumd.client.connection import Connection
from quorumd.client.description import PendingChange, QuorumDescription
from quorumd.client.error_messages import LEADER_MOVED, explain
from quorumd.client.errors import (
    ChangeRefused,
    ChangeTimedOut,
    ConnectionFailed,
    QuorumError,
    QuorumUnavailable,
    error_code,
)
from quorumd.client.leader import PARTITION, TOPIC, LeaderFinder, TryAgain
from quorumd.client.timing import Backoff, Deadline
from quorumd.raft.types import Endpoint, ReplicaKey
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
from quorumd.wire.messages.transfer_leader import TransferLeaderRequest, TransferLeaderResponse

POLL_S = 0.25
LOOK_TIMEOUT_MS = 5_000
# The leader gives up so much earlier than the asker, so that its reason arrives.
_ANSWER_MARGIN_MS = 500

ZERO_UUID = UUID(int=0)
NOBODY = ReplicaKey(-1)
ADD, REMOVE, REASSIGN, TRANSFER = "add", "remove", "reassign", "transfer"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeProgress:
    """What a change waits for, in words; `waiting_ms` is for how long, -1 if that is not told.

    `quorum` is None while no leader can be reached: then `waits_for` says why.
    """

    quorum: QuorumDescription | None
    waits_for: str
    waiting_ms: int = -1


OnProgress = Callable[[ChangeProgress], None]


class Answer(NamedTuple):
    """What a node said to a request for a change, and in which epoch (-1: it did not say)."""

    code: int
    message: str | None
    epoch: int = -1


Ask = Callable[[Connection, int], Awaitable[Answer]]
"""Sends the request to a node, which has so much time (ms) for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What is asked for: `goal` completes "could not ...", `kind` and `key` are as in PendingChange.

    `is_done` are errors which say that somebody has done it before.
    """

    goal: str
    kind: str
    ask: Ask
    key: ReplicaKey = NOBODY
    is_done: frozenset[ErrorCode] = frozenset()

    def is_about(self, pending: PendingChange) -> bool:
        """True if this is what the leader calls `pending`."""
        return pending.kind == self.kind and pending.key == self.key


class Changer:
    """Has changes made by the leader of one quorum, and describes it meanwhile."""

    def __init__(self, bootstrap: Sequence[Address], *, client_id: str, timeout_ms: int) -> None:
        self._watching = QuorumClient(bootstrap, client_id=client_id, timeout_ms=timeout_ms)
        self._finder = LeaderFinder(bootstrap, client_id=client_id)
        self._newest_epoch = -1

    def close(self) -> None:
        """Closes all connections. What the leader was asked for it may still do."""
        self._watching.close()
        self._finder.close()

    async def describe(self, deadline: Deadline) -> QuorumDescription:
        """The leader's view of the quorum, and never that of a leader before one that was seen."""
        while True:
            quorum = await self._watching.describe_quorum(timeout_ms=deadline.remaining_ms())
            if quorum.leader_epoch >= self._newest_epoch:
                self._newest_epoch = quorum.leader_epoch
                return quorum
            await asyncio.sleep(POLL_S)

    async def make(
        self, change: Change, deadline: Deadline, on_progress: OnProgress | None = None
    ) -> ErrorCode:
        """Returns when the leader has committed the change: NONE, or one of `change.is_done`.

        Raises ChangeRefused, ChangeTimedOut, QuorumUnavailable, NotSupported.
        """
        reasons: list[str] = []

        def heard(progress: ChangeProgress) -> None:
            reasons[:] = [progress.waits_for]
            if on_progress is not None:
                on_progress(progress)

        watch = asyncio.create_task(self._watch(change, heard))
        try:
            return await self._ask(change, deadline)
        except QuorumUnavailable as error:
            if not any(reasons):
                raise
            raise ChangeTimedOut(change.goal, deadline.timeout_ms, reasons[0]) from error
        finally:
            watch.cancel()
            with suppress(asyncio.CancelledError):
                await watch

    async def ask_once(self, change: Change, deadline: Deadline) -> Answer:
        """The answer of whoever seems to lead now. Raises ConnectionFailed, QuorumUnavailable."""
        connection = await self._finder.connection(change.goal, deadline)
        try:
            answer = await change.ask(connection, _for_server_ms(deadline))
        except ConnectionFailed as error:
            self._finder.forget(connection.address, str(error))
            raise
        reason = answer.message or explain(error_code(answer.code))
        if error_code(answer.code) in LEADER_MOVED:
            self._finder.not_now(connection.address, TryAgain(reason))
        elif answer.code:
            self._finder.not_now(connection.address, TryAgain(reason, stay=True))
        return answer

    async def pause(self, change: Change, deadline: Deadline, backoff: Backoff) -> None:
        """Waits before the next try. Raises QuorumUnavailable if the time is up then."""
        await self._finder.pause(change.goal, deadline, backoff)

    async def _ask(self, change: Change, deadline: Deadline) -> ErrorCode:
        backoff = Backoff()
        while True:
            with suppress(ConnectionFailed):
                answer = await self.ask_once(change, deadline)
                error = error_code(answer.code)
                reason = answer.message or explain(error)
                if not error or error in change.is_done:
                    return error
                if error is ErrorCode.REQUEST_TIMED_OUT:
                    if deadline.remaining_ms() <= _ANSWER_MARGIN_MS:
                        raise ChangeTimedOut(change.goal, deadline.timeout_ms, reason)
                elif error not in LEADER_MOVED:
                    raise ChangeRefused(change.goal, reason, error)
            await self.pause(change, deadline, backoff)

    async def _watch(self, change: Change, heard: OnProgress) -> None:
        begun_in = self._newest_epoch
        while True:
            try:
                quorum = await self.describe(Deadline(LOOK_TIMEOUT_MS))
            except QuorumUnavailable as error:
                heard(ChangeProgress(quorum=None, waits_for=error.summary))
            except QuorumError as error:
                heard(ChangeProgress(quorum=None, waits_for=str(error)))
            else:
                if 0 <= begun_in < quorum.leader_epoch:
                    self._leave_all_but(quorum)
                begun_in = quorum.leader_epoch
                heard(_progress(change, quorum))
            await asyncio.sleep(POLL_S)

    def _leave_all_but(self, quorum: QuorumDescription) -> None:
        """A deposed leader that hangs would not answer for as long as the asker has time."""
        connection = self._finder.open_connection
        at = () if quorum.leader is None else quorum.leader.endpoints
        if connection is not None and connection.address not in [
            Address(each.host, each.port) for each in at
        ]:
            self._finder.forget(connection.address, f"node {quorum.leader_id} leads now")


def _progress(change: Change, quorum: QuorumDescription) -> ChangeProgress:
    pending = [each for each in quorum.pending_changes if change.is_about(each)]
    if not pending:
        return ChangeProgress(quorum=quorum, waits_for="")
    text = pending[0].waits_for or "other changes that were asked for before"
    return ChangeProgress(quorum=quorum, waits_for=text, waiting_ms=pending[0].waiting_ms)


def _for_server_ms(deadline: Deadline) -> int:
    remaining_ms = deadline.remaining_ms()
    return max(1, remaining_ms - min(_ANSWER_MARGIN_MS, remaining_ms // 4))


def _timeout_s(timeout_ms: int) -> float:
    return (timeout_ms + _ANSWER_MARGIN_MS) / 1000


def adding(cluster_id: str, key: ReplicaKey, endpoints: Sequence[Endpoint]) -> Ask:
    """AddRaftVoter."""

    async def ask(connection: Connection, timeout_ms: int) -> Answer:
        request = AddRaftVoterRequest(
            cluster_id=cluster_id or None,
            timeout_ms=timeout_ms,
            voter_id=key.id,
            voter_directory_id=key.uuid or ZERO_UUID,
            listeners=tuple(
                AddRaftVoterRequestListener(name=at.name, host=at.host, port=at.port)
                for at in endpoints
            ),
        )
        answer = await connection.request(
            request, AddRaftVoterResponse, timeout_s=_timeout_s(timeout_ms)
        )
        return Answer(answer.error_code, answer.error_message)

    return ask


def removing(cluster_id: str, key: ReplicaKey, force: bool) -> Ask:
    """RemoveRaftVoter."""

    async def ask(connection: Connection, timeout_ms: int) -> Answer:
        request = RemoveRaftVoterRequest(
            cluster_id=cluster_id or None,
            voter_id=key.id,
            voter_directory_id=key.uuid or ZERO_UUID,
            timeout_ms=timeout_ms,
            force=force,
        )
        answer = await connection.request(
            request, RemoveRaftVoterResponse, timeout_s=_timeout_s(timeout_ms)
        )
        return Answer(answer.error_code, answer.error_message)

    return ask


def reassigning(target: Sequence[int] | None) -> Ask:
    """AlterPartitionReassignments; None cancels."""

    async def ask(connection: Connection, timeout_ms: int) -> Answer:
        partition = AlterPartitionReassignmentsRequestPartition(
            partition_index=PARTITION, replicas=None if target is None else tuple(target)
        )
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=timeout_ms,
            topics=(AlterPartitionReassignmentsRequestTopic(name=TOPIC, partitions=(partition,)),),
        )
        answer = await connection.request(
            request, AlterPartitionReassignmentsResponse, timeout_s=_timeout_s(timeout_ms)
        )
        partitions = [each for topic in answer.responses for each in topic.partitions]
        if answer.error_code or not partitions:
            return Answer(answer.error_code, answer.error_message)
        return Answer(partitions[0].error_code, partitions[0].error_message)

    return ask


def transferring(cluster_id: str, to: ReplicaKey | None) -> Ask:
    """TransferLeader; None lets the leader choose."""

    async def ask(connection: Connection, timeout_ms: int) -> Answer:
        request = TransferLeaderRequest(
            cluster_id=cluster_id or None,
            to_id=-1 if to is None else to.id,
            to_directory_id=ZERO_UUID if to is None else to.uuid or ZERO_UUID,
            timeout_ms=timeout_ms,
        )
        answer = await connection.request(
            request, TransferLeaderResponse, timeout_s=_timeout_s(timeout_ms)
        )
        return Answer(answer.error_code, answer.error_message, answer.leader_epoch)

    return ask
