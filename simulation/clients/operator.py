"""Operators: they ask for changes of the voter set and of the leader, at any node, again and again.

Each has a list of requests and goes on to the next when one is fulfilled. A response that says that nothing
can be done, now or ever, ends it; where it may help, the operator asks again, and of the leader that was
named, until its patience is at an end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from quorumd.raft.roles import Role
from quorumd.server.translate.common import uuid_or_zero
from quorumd.server.translate.voter_changes import (
    ADD_VOTER,
    ALTER_REASSIGNMENTS,
    REMOVE_VOTER,
    TRANSFER,
)
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
from quorumd.wire.metadata_topic import TOPIC
from quorumd.wire.schema import Message
from simulation.checkers.acknowledged_changes import check_acknowledged
from simulation.clients.client import Client
from simulation.cluster import Cluster
from simulation.history.risk import Risk
from simulation.history.voter_change_requests import VoterChangeKind, VoterChangeRequest
from simulation.scheduler import MS, SECOND
from simulation.violation import Violation

DONE = "done"
PATIENCE_US = 6 * SECOND
_API_OF = {
    VoterChangeKind.ADD: (ADD_VOTER, 1),
    VoterChangeKind.REMOVE: (REMOVE_VOTER, 0),
    VoterChangeKind.REASSIGN: (ALTER_REASSIGNMENTS, 1),
    VoterChangeKind.TRANSFER: (TRANSFER, 0),
}
_FULFILLED = {
    VoterChangeKind.ADD: ErrorCode.DUPLICATE_VOTER,
    VoterChangeKind.REMOVE: ErrorCode.VOTER_NOT_FOUND,
}
"""Errors which say that the change is made already: perhaps an earlier response was lost."""
_ONLY = "is the only voter"
_LATER = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
    }
)


@dataclass(frozen=True, slots=True)
class ChangeResponse:
    """A response to a change; leader id and epoch are -1 if it does not name them."""

    error: ErrorCode
    leader_id: int = -1
    leader_epoch: int = -1
    message: str = ""


class Operator(Client):
    """See the module's docstring. `operation` names what this one is about."""

    def __init__(
        self,
        cluster: Cluster,
        risk: Risk,
        name: str,
        random: Random,
        operation: str,
        requests: Sequence[VoterChangeRequest],
    ) -> None:
        super().__init__(cluster, name, random)
        self._risk = risk
        self.operation = operation
        self._requests = list(requests)
        self._request: VoterChangeRequest | None = None
        self._give_up_us = 0

    @property
    def is_busy(self) -> bool:
        """True while a request is not fulfilled, refused or given up."""
        return self._request is not None

    def start(self) -> None:
        self._give_up_us = self.env.scheduler.now_us + PATIENCE_US
        self._next()

    def _next(self) -> None:
        self._request = self._requests.pop(0) if self._requests else None
        if self._request is not None:
            self.later(self._request.pause_us, self._begin)

    def _begin(self) -> None:
        facts, request = self.env.facts, self._request
        assert request is not None, "begun with a request"
        if self.is_stopping or not self._risk.may_request(request):
            self._request = None
            return
        request.sets_before = len(facts.voters.committed)
        facts.change_requests.append(request)
        self._send()

    def _send(self) -> None:
        request = self._request
        assert request is not None, "sent for a request"
        request.sent += 1
        self.env.trace.note(self.name, f"wants to {request}, asks {self.target}")
        self.ask(
            *_API_OF[request.kind],
            self._message(request),
            self._on_response,
            self._on_failure,
            is_repeatable=False,
        )

    def _message(self, request: VoterChangeRequest) -> Message:
        key, timeout_ms = request.key, self.random.choice([50, 300, 1000])
        if request.kind is VoterChangeKind.REASSIGN:
            partition = AlterPartitionReassignmentsRequestPartition(
                partition_index=0, replicas=request.target
            )
            topic = AlterPartitionReassignmentsRequestTopic(name=TOPIC, partitions=(partition,))
            return AlterPartitionReassignmentsRequest(timeout_ms=timeout_ms, topics=(topic,))
        if request.kind is VoterChangeKind.TRANSFER:
            return TransferLeaderRequest(
                to_id=-1 if key is None else key.id,
                to_directory_id=uuid_or_zero(None if key is None else key.uuid),
                timeout_ms=timeout_ms,
            )
        assert key is not None, "a replica is added or removed"
        if request.kind is VoterChangeKind.REMOVE:
            return RemoveRaftVoterRequest(
                voter_id=key.id, voter_directory_id=uuid_or_zero(key.uuid), timeout_ms=timeout_ms
            )
        return AddRaftVoterRequest(
            timeout_ms=timeout_ms,
            voter_id=key.id,
            voter_directory_id=uuid_or_zero(key.uuid),
            listeners=tuple(
                AddRaftVoterRequestListener(name=at.name, host=at.host, port=at.port)
                for at in self.cluster.address_map.listeners_of(key)
            ),
        )

    def _on_response(self, frame: bytes) -> None:
        request = self._request
        assert request is not None, "a response belongs to a request"
        request.responses += 1
        response = self._decoded(request.kind, frame)
        role = self.cluster.role_of(self.target)
        self.env.coverage.count(self.operation, role, response.error.name)
        self.env.trace.note(self.name, f"gets {response.error.name} for: {request}")
        self.on_response(request, response)

    def on_response(self, request: VoterChangeRequest, response: ChangeResponse) -> None:
        """Go on to the next request, ask again, or give up."""
        if self._is_fulfilled(request, response):
            request.outcome = DONE
            self.on_fulfilled(request, response.leader_id, response.leader_epoch)
            self._next()
        elif response.error in _LATER or self.random.random() < 0.3:
            self.change_target(response.leader_id)
            self._again(response.error.name)
        else:
            self.end(response.error.name)

    def on_fulfilled(self, request: VoterChangeRequest, leader_id: int, leader_epoch: int) -> None:
        """The leader of this epoch says that it is done."""
        if not self.env.observer.is_watching:
            return
        check_acknowledged(self.env.facts, request)
        to = request.key
        if request.kind is VoterChangeKind.TRANSFER and (to is None or to.id != leader_id):
            self._check_handed_over(leader_id, leader_epoch)

    def _check_handed_over(self, leader_id: int, epoch: int) -> None:
        for machine in self.cluster.machines:
            node = None if machine.process is None else machine.process.node
            if node is not None and node.role is Role.LEADER and node.epoch == epoch:
                raise Violation(
                    "a leader that handed over does not lead",
                    f"node {leader_id} has, and {machine.host} leads epoch {epoch}",
                )

    def _is_fulfilled(self, request: VoterChangeRequest, response: ChangeResponse) -> bool:
        """Before the log names the voters it is not known which replicas are none; the only one stays."""
        if response.error is ErrorCode.NONE:
            return True
        is_so_already = response.error is _FULFILLED.get(request.kind)
        return bool(request.sets_before) and is_so_already and _ONLY not in response.message

    def _decoded(self, kind: VoterChangeKind, frame: bytes) -> ChangeResponse:
        api = _API_OF[kind]
        if kind is VoterChangeKind.REASSIGN:
            found = self.decode_response(AlterPartitionReassignmentsResponse, *api, frame)
            return ChangeResponse(ErrorCode(found.responses[0].partitions[0].error_code))
        response: AddRaftVoterResponse | RemoveRaftVoterResponse | TransferLeaderResponse
        if kind is VoterChangeKind.ADD:
            response = self.decode_response(AddRaftVoterResponse, *api, frame)
        elif kind is VoterChangeKind.REMOVE:
            response = self.decode_response(RemoveRaftVoterResponse, *api, frame)
        else:
            response = self.decode_response(TransferLeaderResponse, *api, frame)
        return ChangeResponse(
            ErrorCode(response.error_code),
            response.leader_id,
            response.leader_epoch,
            response.error_message or "",
        )

    def _on_failure(self) -> None:
        self.change_target()
        self._again("no response")

    def _again(self, why: str) -> None:
        if self.is_stopping or self.env.scheduler.now_us > self._give_up_us:
            self.end(why)
        else:
            self.later(self.random.randrange(10 * MS, 200 * MS), self._send_again)

    def _send_again(self) -> None:
        if self.is_stopping:
            self.end("stopped")
        else:
            self._send()

    def end(self, why: str) -> None:
        """Give up: no further request is made."""
        assert self._request is not None, "ended with a request"
        self._request.outcome = why
        self._request = None
        self._requests.clear()
