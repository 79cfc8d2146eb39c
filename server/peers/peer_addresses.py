"""The addresses of other replicas, from log, leader and configuration; and which replica has responded there.

The log may name addresses that a voter has left, and that another one has taken. Vote and BeginQuorumEpoch
name the replica that they are meant for, so that another one refuses them: INVALID_VOTER_KEY.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from quorumd.raft.effects import BootstrapServer, Peer
from quorumd.raft.errors import KafkaError
from quorumd.raft.events import (
    BeginQuorumEpochResponseReceived,
    EndQuorumEpochResponseReceived,
    Event,
    FetchResponseReceived,
    FetchSnapshotResponseReceived,
    LeaderHint,
    RequestFailed,
    VoterChangeResponseReceived,
    VoteResponseReceived,
)
from quorumd.raft.node import RaftNode
from quorumd.raft.types import Address, Endpoint, ReplicaKey
from quorumd.server.translate.common import endpoint_on

HINTING: Final = (
    FetchResponseReceived,
    BeginQuorumEpochResponseReceived,
    VoterChangeResponseReceived,
    EndQuorumEpochResponseReceived,
    FetchSnapshotResponseReceived,
    VoteResponseReceived,
)
"""Responses that say where the leader is; the first one is by far the most frequent."""
RESPONSES: Final = (*HINTING, RequestFailed)
HEARD_MAX: Final = 4
"""Newest addresses of the leader that are remembered."""


class PeerAddresses:
    """As one node knows them. `listener` is the name of the peers' listener."""

    def __init__(
        self,
        node: RaftNode,
        listener: str,
        bootstrap_servers: Sequence[Address],
        on_peer_connected: Callable[[int], None],
    ) -> None:
        """`on_peer_connected` is called with the id of a replica that has connected to this node."""
        self.on_peer_connected = on_peer_connected
        self._node = node
        self._listener = listener
        self._bootstrap_servers = bootstrap_servers
        self._ips: dict[Peer, str] = {}
        self._heard: list[Address] = []
        self._heard_of: tuple[int, int | None] = (-1, None)
        self._noted: LeaderHint | None = None
        """Hint that was remembered last, unless of a bootstrap server. Equal hints are one object, mostly."""

    def own(self, peer: Peer) -> list[Address]:
        """A peer's own addresses, the best first: as a leader is heard of, as logged, as configured."""
        if isinstance(peer, BootstrapServer):
            return self._without_local([self._bootstrap_servers[peer.index]])
        node = self._node
        found: list[Address] = []
        if node.leader is not None and node.leader.matches(peer):
            found += self._on_listener(node.leader_endpoints)
            if self._heard_of == (node.epoch, node.leader_id):
                found += self._heard
        for voter in node.voters:
            if voter.key.matches(peer):
                found += self._on_listener(voter.endpoints)
        found += self._on_listener(node.config.configured_voters.endpoints_of(peer.id))
        return self._without_local(found)

    def elsewhere(self, peer: Peer) -> list[Address]:
        """Further addresses of a voter, for when it is at none of its own.

        Last, the address that a BeginQuorumEpoch names: while this node has a leader, such an address
        counts for nothing.
        """
        if isinstance(peer, BootstrapServer):
            return []
        unconfirmed = self._on_listener(self._node.unconfirmed_endpoints_of(peer.id))
        return self._without_local([*self._bootstrap_servers, *unconfirmed])

    def note_ip(self, peer: Peer, ip: str) -> None:
        """A peer was reached there."""
        self._ips[peer] = ip

    def is_voters_ip(self, ip: str) -> bool:
        """True if a replica that votes or leads now was reached there last."""
        return any(
            known == ip and isinstance(peer, ReplicaKey) and self.is_voter_or_leader(peer.id)
            for peer, known in self._ips.items()
        )

    def is_ip_of(self, replica_id: int, ip: str) -> bool:
        """True if this replica was reached there last."""
        return any(
            known == ip and isinstance(peer, ReplicaKey) and peer.id == replica_id
            for peer, known in self._ips.items()
        )

    def is_voter_or_leader(self, replica_id: int) -> bool:
        """As logged, as configured, or as the leader is known."""
        node = self._node
        configured = node.config.configured_voters.ids
        ids = node.voters.ids
        return replica_id == node.leader_id or replica_id in ids or replica_id in configured

    def _on_listener(self, endpoints: Sequence[Endpoint]) -> list[Address]:
        at = endpoint_on(endpoints, self._listener)
        return [] if at is None else [Address(at.host, at.port)]

    def _without_local(self, addresses: Sequence[Address]) -> list[Address]:
        local = [Address(at.host, at.port) for at in self._node.config.endpoints]
        return [address for address in dict.fromkeys(addresses) if address not in local]

    def speaks_for_its_id(self, peer: ReplicaKey) -> bool:
        """True if what is known of this replica's process may be said of its id.

        Where two storage ids stand under one, only the leader's may: that a lost disk is gone must not
        depose its successor.
        """
        node = self._node
        namesakes = [key for key in node.voters.keys if key.id == peer.id]
        if node.leader is not None and node.leader.id == peer.id:
            namesakes.append(node.leader)
        return node.leader == peer or all(key.matches(peer) for key in namesakes)

    def note(self, to: Peer, event: Event) -> None:
        """Remember where a response places the leader. The rules keep the first place, which may be
        what a restarted replica found in its log."""
        if not isinstance(event, HINTING) or event.hint is None:
            return
        if event.hint is self._noted and isinstance(to, ReplicaKey):
            return  # as with nearly every fetch
        heard = self._on_listener(event.hint.endpoints)
        if (
            isinstance(to, BootstrapServer)
            and isinstance(event, FetchResponseReceived)
            and event.error is None
        ):
            heard = self.own(to)
        of = (self._node.epoch, self._node.leader_id)
        if heard and of == (event.hint.epoch, event.hint.leader_id):
            former = self._heard if self._heard_of == of else []
            self._heard = list(dict.fromkeys((*heard, *former)))[:HEARD_MAX]
            self._heard_of = of
            self._noted = None if isinstance(to, BootstrapServer) else event.hint

    def refuses_for_leader(self, to: Peer, event: Event) -> bool:
        """True if this says that the leader leads no more, unless it comes from another node.

        The leader says so when it has resigned, and so does every other replica, which names the leader. From
        an address where the leader has not been found it must not be taken for the leader's word.
        """
        return (
            isinstance(event, HINTING)
            and event.error == KafkaError.NOT_LEADER_OR_FOLLOWER
            and isinstance(to, ReplicaKey)
            and self._node.leader == to
            and event.hint is not None
            and event.hint.epoch == self._node.epoch
            and event.hint.leader_id in (None, to.id)
        )

    def is_from(
        self, to: Peer, address: Address, event: Event, *, names_receiver: bool
    ) -> bool | None:
        """True if this peer responded at this address, False if not, None if that is not known.

        A response to a request that does not name its receiver distinguishes only the leader from other
        replicas, which know no later epoch than its own. It proves an address wrong only if there is another
        one: a leader that resigns responds like others.
        """
        if not isinstance(to, ReplicaKey) or not isinstance(event, RESPONSES):
            return None
        if (
            isinstance(event, FetchResponseReceived)
            and event.error is None
            and event.hint.leader_id == to.id
        ):
            return True
        hint = None if isinstance(event, RequestFailed) else event.hint
        is_said_to_lead = hint is not None and hint.leader_id == to.id
        is_foreign = event.error == KafkaError.INCONSISTENT_CLUSTER_ID
        if names_receiver:
            if event.error == KafkaError.INVALID_VOTER_KEY or is_foreign:
                return False
            return True if event.error is None and hint is not None else None
        of_leader = hint if self._node.leader == to else None
        is_behind = of_leader is not None and of_leader.epoch < self._node.epoch
        knows_nobody = of_leader is not None and of_leader.leader_id is None
        is_refusal = event.error == KafkaError.NOT_LEADER_OR_FOLLOWER
        is_other = is_behind or (is_refusal and (is_said_to_lead or knows_nobody))
        has_choice = any(other != address for other in self.own(to))
        return False if (is_other or is_foreign) and has_choice else None
