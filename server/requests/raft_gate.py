"""Raft requests that count where nodes have certificates: in a node's name, only those of that node.

One table for all requests. What is refused closes its connection: CLUSTER_AUTHORIZATION_FAILED would end an
Apache Kafka process. Neither the client id of a header nor the name of a client's software gives a right.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from quorumd.server.model.metrics import Metrics
from quorumd.server.model.node_rights import NodeRights, shown
from quorumd.server.net.connection_slots import replica_of
from quorumd.server.net.inbound_request import InboundRequest
from quorumd.wire.codec import decode
from quorumd.wire.fast.fetch_request import FastFetch
from quorumd.wire.headers import decode_request_header
from quorumd.wire.messages.begin_quorum_epoch import BeginQuorumEpochRequest
from quorumd.wire.messages.end_quorum_epoch import EndQuorumEpochRequest
from quorumd.wire.messages.fetch_snapshot import FetchSnapshotRequest
from quorumd.wire.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest
from quorumd.wire.messages.update_raft_voter import UpdateRaftVoterRequest
from quorumd.wire.messages.vote import VoteRequest
from quorumd.wire.registry import APIS

REMEMBERED_S: Final = 60.0
"""Time for which a refusal is shown: a node tries again in much less."""
REMEMBERED_MAX: Final = 16

SpeakersOf = Callable[[InboundRequest], Iterable[int]]


def _candidates(request: InboundRequest) -> Iterable[int]:
    message = decode(VoteRequest, request.api_version, request.frame, request.body_at)
    return [each.replica_id for topic in message.topics for each in topic.partitions]


def _begun_leaders(request: InboundRequest) -> Iterable[int]:
    message = decode(BeginQuorumEpochRequest, request.api_version, request.frame, request.body_at)
    return [each.leader_id for topic in message.topics for each in topic.partitions]


def _ended_leaders(request: InboundRequest) -> Iterable[int]:
    message = decode(EndQuorumEpochRequest, request.api_version, request.frame, request.body_at)
    return [each.leader_id for topic in message.topics for each in topic.partitions]


def _snapshot_replica(request: InboundRequest) -> Iterable[int]:
    """A client, which says that it is none, may copy a snapshot, too."""
    message = decode(FetchSnapshotRequest, request.api_version, request.frame, request.body_at)
    return [message.replica_id] if message.replica_id >= 0 else ()


def _epoch_reader(request: InboundRequest) -> Iterable[int]:
    """A replica learns of records that are not committed; a consumer names none."""
    version = request.api_version
    message = decode(OffsetForLeaderEpochRequest, version, request.frame, request.body_at)
    return [message.replica_id] if message.replica_id >= 0 else ()


def _updated_voter(request: InboundRequest) -> Iterable[int]:
    message = decode(UpdateRaftVoterRequest, request.api_version, request.frame, request.body_at)
    return [message.voter_id]


def _sending_node(request: InboundRequest) -> Iterable[int]:
    """An operator's change does not come in a node's name, unless a node forwards it or asks for itself.

    A node does both under its own client id, which every client could write.
    """
    header, _ = decode_request_header(request.frame)
    replica_id = replica_of(header.client_id)
    return () if replica_id is None else [replica_id]


SPEAKERS: Final[Mapping[int, SpeakersOf | None]] = MappingProxyType(
    {
        0: None,
        # `Dispatch` separates replicas' from consumers', and calls `admits_fetch`: it is the most frequent.
        1: None,
        2: None,
        3: None,
        10: None,
        18: None,
        22: None,
        23: _epoch_reader,
        32: None,
        35: None,
        45: _sending_node,
        46: None,
        52: _candidates,
        53: _begun_leaders,
        54: _ended_leaders,
        55: None,
        56: None,
        57: None,
        58: None,
        59: _snapshot_replica,
        60: None,
        62: None,
        63: None,
        67: None,
        70: None,
        73: None,
        80: _sending_node,
        81: _sending_node,
        82: _updated_voter,
        20001: None,
        20002: None,
    }
)
"""The replicas in whose name a request speaks, by api key: one line for each, for all versions. None: a
request never speaks for a replica."""


@dataclass(slots=True)
class _Refusal:
    text: str
    remedy: str
    count: int
    at_s: float


class RaftGate:
    """Checks raft requests of a node whose links are TLS."""

    def __init__(
        self,
        rights: NodeRights,
        is_behind: Callable[[int], bool],
        takes_nodes: Callable[[str], bool],
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`is_behind` says of a node that its links are plaintext still, as it has said by certificate.

        `takes_nodes` says of a TLS listener, by name, that a certificate it takes may be a node's.
        """
        self._rights = rights
        self._is_behind = is_behind
        self._takes_nodes = takes_nodes
        self._metrics = metrics
        self._clock = clock
        self._refusals: dict[tuple[str, int], _Refusal] = {}
        """By principal and replica id, the last one last."""

    def admits(self, request: InboundRequest) -> bool:
        """False for a request in the name of a node that did not send it; the connection is closed then.

        Raises MalformedMessage.
        """
        speakers_of = SPEAKERS[request.api_key]
        if speakers_of is None:
            return True
        return all(self.admits_replica(request, replica_id) for replica_id in speakers_of(request))

    def admits_fetch(self, request: InboundRequest, asked: FastFetch) -> bool:
        """As `admits`, for a replica's fetch.

        A client asks so for the newest snapshot: from offset 0, for one byte. It may, for no more than the
        log's first batch comes with the response, which is a control record.
        """
        if asked.replica_id < 0 and asked.fetch_offset == 0 and asked.max_bytes == 1:
            return True
        return self.admits_replica(request, asked.replica_id)

    def admits_replica(self, request: InboundRequest, replica_id: int) -> bool:
        """As `admits`, for a request that is known to be this replica's; below 0 it does not say which."""
        connection, rights = request.connection, self._rights
        if connection.identity is None:
            if replica_id >= 0 and self._is_behind(replica_id):
                return True
            principal, why = "", "in plaintext, where nodes speak TLS"
            remedy = "If that is a node, make its TLS listener the first of its listeners"
        elif self._takes_nodes(connection.listener.name):
            principal = connection.principal
            if replica_id < 0:
                if rights.is_node(principal):
                    return True
            elif rights.may_speak_for(principal, replica_id):
                return True
            why = f"by {shown(principal)}, who may not"
            key, permitted = rights.rule_for(replica_id)
            remedy = f"By {key} node {replica_id} is {permitted}" if replica_id >= 0 else ""
        else:
            principal = connection.principal
            why = (
                f"by {shown(principal)} on listener {connection.listener.name}, which takes no node"
            )
            remedy = (
                "That listener trusts CAs that the first one does not, or maps names by other rules. If that "
                "is a node, have it connect to the first listener"
            )
        self._metrics.count_ignored("raft request in another node's name")
        whose = f"node {replica_id}" if replica_id >= 0 else "a node"
        reason = f"{APIS[request.api_key].name} in the name of {whose} {why}"
        self._remember((principal, replica_id), reason, remedy)
        request.close(reason)
        return False

    def _remember(self, at: tuple[str, int], text: str, remedy: str) -> None:
        before = self._refusals.pop(at, None)
        count = 0 if before is None or self._is_old(before) else before.count
        self._refusals[at] = _Refusal(text, remedy, count + 1, self._clock())
        if len(self._refusals) > REMEMBERED_MAX:
            del self._refusals[next(iter(self._refusals))]

    def _is_old(self, refusal: _Refusal) -> bool:
        return self._clock() - refusal.at_s > REMEMBERED_S

    def warnings(self) -> list[str]:
        """Refusals of the last minute, in words."""
        return [self._in_words(each) for each in self._refusals.values() if not self._is_old(each)]

    def _in_words(self, refusal: _Refusal) -> str:
        times = "once," if refusal.count == 1 else f"{refusal.count} times, last"
        ago_s = round(self._clock() - refusal.at_s)
        text = f"refused {times} {ago_s} s ago: {refusal.text}"
        return f"{text}. {refusal.remedy}" if refusal.remedy else text
