"""Requests of the rules to other replicas: which channel, which bytes, and back as events.

Each peer has a channel for fetches, which may wait long for their response, and one for elections, which must
not wait behind them. What clients ask of the leader through this node has channels of its own: one for
responses that come at once, and one for each change: it may take long, and responses come in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum, auto
from functools import partial
from typing import Final, Protocol

from quorumd.raft.effects import (
    AddVoter,
    BeginQuorumEpoch,
    EndQuorumEpoch,
    Fetch,
    FetchSnapshot,
    Peer,
    RemoveVoter,
    SendRequest,
    UpdateVoter,
    Vote,
)
from quorumd.raft.events import Event, RequestFailed
from quorumd.raft.node import RaftNode
from quorumd.raft.types import Address, ReplicaKey
from quorumd.server.model.kafka_drift import KafkaDrift
from quorumd.server.model.logs import Logger
from quorumd.server.model.metrics import Metrics
from quorumd.server.model.peer_calls import CallbackCall, StaleRequest
from quorumd.server.model.runtime import PeerChannel, Runtime
from quorumd.server.model.topic import TopicPartition
from quorumd.server.net.connection_slots import client_id_of
from quorumd.server.net.inbound_request import InboundRequest
from quorumd.server.peers.client_changes import ClientChanges
from quorumd.server.peers.fetch_call import FETCH, FETCH_VERSION_MAX, FetchCall, Fetching
from quorumd.server.peers.forwarded_request import ForwardedRequest
from quorumd.server.peers.peer_addresses import RESPONSES, PeerAddresses
from quorumd.server.peers.peer_channel import request_frame
from quorumd.server.peers.peer_links import SHOWN_ERRORS, PeerLink, PeerLinks
from quorumd.server.translate import elections, voter_changes
from quorumd.server.translate.elections import BEGIN_QUORUM_EPOCH, END_QUORUM_EPOCH, VOTE
from quorumd.server.translate.fetch import (
    FETCH_BATCHES_MAX,
    FETCH_MAX_BYTES,
    FetchRequestFrames,
    fetch_response_received,
    next_max_bytes,
)
from quorumd.server.translate.fetched_batches import FetchedBatches
from quorumd.server.translate.snapshot import snapshot_request, snapshot_response_received
from quorumd.server.translate.unknown_records import finalized_levels, unknown_records
from quorumd.wire.errors import UnsupportedVersion
from quorumd.wire.schema import Message

LOG: Final = Logger("peers")

FORWARDED_BYTES_MAX: Final = 8 << 20
"""So much of clients' requests waits for the leader's responses; what is more is not forwarded."""
FORWARDED_BYTES_MIN: Final = FORWARDED_BYTES_MAX // 256
"""Bytes that each request counts for at least: all may fail together."""

FETCH_SNAPSHOT: Final = 59
CHANGES: Final = (voter_changes.ADD_VOTER, voter_changes.REMOVE_VOTER, voter_changes.UPDATE_VOTER)
MAX_VERSIONS: Final = {
    FETCH: FETCH_VERSION_MAX,
    VOTE: 2,
    BEGIN_QUORUM_EPOCH: 1,
    END_QUORUM_EPOCH: 1,
    FETCH_SNAPSHOT: 1,
    voter_changes.ADD_VOTER: 1,
    voter_changes.REMOVE_VOTER: 0,
    voter_changes.UPDATE_VOTER: 0,
}


@dataclass(frozen=True, slots=True)
class OutboundSettings:
    """Settings of all channels of a node. `listener` is the name of the peers' listener.

    `fetch_wait_ms` is how long a fetch may wait for records at the leader.
    """

    listener: str
    software_version: str
    request_timeout_ms: int
    fetch_wait_ms: int
    bootstrap_servers: tuple[Address, ...]


class Use(IntEnum):
    """The purpose of a channel to a peer."""

    FETCHES = auto()
    ELECTIONS = auto()
    CLIENTS = auto()
    CHANGES = auto()


# To look up a member of an enum costs as much as several calls.
_FETCHES: Final = Use.FETCHES
_ELECTIONS: Final = Use.ELECTIONS


class FetchedData(Protocol):
    """Keeps the bytes of responses, under a token, until the rules decide on them."""

    def hold_fetched(self, token: int, fetched: FetchedBatches) -> None: ...
    def hold_chunk(self, token: int, data: bytes) -> None:
        """A chunk of a snapshot."""


class Outbound(Fetching):
    """Sends one partition's requests. `handle` takes the events that come of them."""

    def __init__(
        self,
        topic: TopicPartition,
        settings: OutboundSettings,
        node: RaftNode,
        fetched: FetchedData,
        metrics: Metrics,
        handle: Callable[[Event], None],
        runtime: Runtime,
        drift: KafkaDrift,
    ) -> None:
        self._drift = drift
        self._topic = topic
        self._settings = settings
        self._fetched = fetched
        self._metrics = metrics
        self._handle = handle
        self._make_channel = runtime.peer_channel
        self.node = node
        self._is_kafka_log = node.config.is_kafka_log
        self.addresses = PeerAddresses(
            node, settings.listener, settings.bootstrap_servers, self.on_peer_connected
        )
        self.links = PeerLinks()
        self._client_id = client_id_of(node.local.id)
        self._fetch_frames = FetchRequestFrames(
            topic, self._client_id, node.local, settings.fetch_wait_ms
        )
        self._fetch_timeout_ms = settings.request_timeout_ms + settings.fetch_wait_ms
        self._channels: dict[tuple[Peer, Use], PeerChannel] = {}
        self._fetched_from: Peer | None = None
        self._fetch_channel: PeerChannel | None = None
        """To `_fetched_from`; one of `_channels`, whose keys are hashed by Python."""
        self._changes = ClientChanges(
            lambda leader: self._open(leader, Use.CHANGES), runtime, settings.request_timeout_ms
        )
        self._forwarded_bytes = 0
        self._max_bytes = FETCH_MAX_BYTES
        """Of the next fetch."""
        self._is_closed = False

    def prepare(self, peers: Sequence[ReplicaKey]) -> None:
        """Connect to these ahead of the first request, so that an election need not wait for it."""
        if self._is_closed:
            return
        self._discard_other_peers(None)
        for peer in peers:
            self._channel(peer, Use.ELECTIONS)

    def close(self) -> Awaitable[object]:
        """Give all channels up; nothing is sent from now on. Waits for what they have begun."""
        self._is_closed = True
        channels = [*self._channels.values(), *self._changes.take_channels()]
        self._channels = {}
        self._fetch_channel = None
        return asyncio.gather(*(channel.close() for channel in channels))

    def on_role(self) -> None:
        """A role, or a leader, is new."""
        leader = self.node.leader
        if leader is not None:
            self._changes.on_leader(leader)

    def is_behind(self, replica_id: int) -> bool:
        """A voter, or the leader, has said by certificate that its own links are plaintext still."""
        is_one = replica_id in self.links.behind
        return is_one and self.addresses.is_voter_or_leader(replica_id)

    def on_peer_connected(self, replica_id: int) -> None:
        """Its process runs: channels that wait before they connect to it again connect now."""
        for (peer, _), channel in self._channels.items():
            if isinstance(peer, ReplicaKey) and peer.id == replica_id:
                channel.wake()

    def _discard_other_peers(self, wanted: Peer | None) -> None:
        """Give up the channels of replicas that neither vote nor lead any more, nor are `wanted` now.

        A voter whose storage id has become known is another peer than the one known by its id alone.
        """
        node = self.node
        known = {wanted, node.leader, *node.voters.keys}
        for peer, use in list(self._channels):
            if isinstance(peer, ReplicaKey) and peer not in known:
                self._channels.pop((peer, use)).discard()
                self._fetch_channel = None
                is_one = self.addresses.is_voter_or_leader(peer.id)
                self.links.forget(self._in_words(peer), None if is_one else peer.id)

    def _channel(self, peer: Peer, use: Use) -> PeerChannel:
        channel = self._channels.get((peer, use))
        if channel is None:
            self._discard_other_peers(peer)
            channel = self._channels[peer, use] = self._open(peer, use)
        return channel

    def _open(self, peer: Peer, use: Use) -> PeerChannel:
        channel = self._make_channel(
            self._name(peer),
            partial(self.addresses.own, peer),
            self._client_id,
            self._settings.software_version,
            self._link(peer, use),
            self._settings.request_timeout_ms,
            self._metrics,
        )
        channel.open()
        return channel

    def _link(self, peer: Peer, use: Use) -> PeerLink:
        # Only requests that say whom they are meant for may go to addresses that are not the peer's own.
        may_search = use is Use.ELECTIONS
        return PeerLink(
            peer,
            self._in_words(peer),
            may_search,
            self.addresses,
            self.links,
            self._handle,
            self._drift if self._is_kafka_log else None,
        )

    def _name(self, peer: Peer) -> str:
        return f"replica {peer}" if isinstance(peer, ReplicaKey) else self._in_words(peer)

    def _in_words(self, peer: Peer) -> str:
        """The node, in words for operators."""
        if isinstance(peer, ReplicaKey):
            return f"node {peer.id}"
        return f"bootstrap server {self._settings.bootstrap_servers[peer.index]}"

    # -- sending

    def send_request(self, effect: SendRequest) -> None:
        """Send it; a response, or the failure to get one, comes back as an event."""
        if self._is_closed:
            return
        request, to, request_id = effect.request, effect.to, effect.request_id
        if isinstance(request, Fetch):
            fetch = FetchCall(self, request, request_id, to, self._fetch_timeout_ms)
            channel = self._fetch_channel
            if channel is None or to is not self._fetched_from:
                self._fetched_from = to
                self._fetch_channel = channel = self._channel(to, _FETCHES)
            channel.call(fetch)
            return
        assert isinstance(to, ReplicaKey), "only fetches go to bootstrap servers"
        key, message = self._message(request, to)
        build: Callable[[int, int], bytes] = partial(self._frame, key, message)
        if isinstance(request, (AddVoter, RemoveVoter)):
            build = partial(self._registration_frame, request, build)
        call = CallbackCall(
            api_key=key,
            max_version=MAX_VERSIONS[key],
            build=build,
            responded=partial(self.on_response, key, request_id, to),
            failed=partial(self.on_failure, request_id),
            timeout_ms=self._settings.request_timeout_ms,
        )
        self._channel(to, _FETCHES if key == FETCH_SNAPSHOT else _ELECTIONS).call(call)

    def fetch_frame(self, request: Fetch, version: int, correlation_id: int) -> bytes:
        return self._fetch_frames.of(
            request, version, correlation_id, self.node.cluster_id, self._max_bytes
        )

    def _frame(self, key: int, message: Message, version: int, correlation_id: int) -> bytes:
        return request_frame(key, message, version, correlation_id, self._client_id)

    def _registration_frame(
        self,
        request: AddVoter | RemoveVoter,
        build: Callable[[int, int], bytes],
        version: int,
        correlation_id: int,
    ) -> bytes:
        """The request names no epoch: a leader could not see that the voters have changed since.

        Raises StaleRequest if they have.
        """
        if self.node.registration_request != request:
            raise StaleRequest("the voters have changed while this waited for a connection")
        return build(version, correlation_id)

    def _message(
        self,
        request: Vote
        | BeginQuorumEpoch
        | EndQuorumEpoch
        | FetchSnapshot
        | UpdateVoter
        | AddVoter
        | RemoveVoter,
        to: ReplicaKey,
    ) -> tuple[int, Message]:
        node, topic = self.node, self._topic
        if isinstance(request, (UpdateVoter, AddVoter, RemoveVoter)):
            return voter_changes.change_request(request, node.cluster_id, node.local)
        if isinstance(request, Vote):
            return VOTE, elections.vote_request(request, topic, node.cluster_id, node.local, to)
        if isinstance(request, BeginQuorumEpoch):
            return BEGIN_QUORUM_EPOCH, elections.begin_request(
                request, topic, node.cluster_id, node.local, to, node.config.endpoints
            )
        if isinstance(request, FetchSnapshot):
            message = snapshot_request(request, topic, node.cluster_id, node.local)
            return FETCH_SNAPSHOT, message
        return END_QUORUM_EPOCH, elections.end_request(
            request, topic, node.cluster_id, node.config.endpoints
        )

    def forward(
        self,
        request: InboundRequest,
        otherwise: Callable[[], None],
        *,
        lost: Callable[[], None] | None = None,
        reshape: Callable[[bytes, int], bytes] | None = None,
        wait_ms: int = 0,
    ) -> None:
        """Let the leader respond to a client's request; `otherwise` is called if it was not asked.

        `lost`, or else `otherwise`, is called if it was asked and its response does not come: it may have
        been done, or be done yet. So it is if this node has come to lead while the request waited for a
        connection. `reshape` makes the client's response of the leader's, by its frame and the place of its
        body there. `wait_ms` is how long the leader may take beyond the usual time, on a link of its own.

        Not all clients follow to another node: Kafka's admin client asks the same one again until its
        time is over.
        """
        leader = self.node.leader
        if leader is None or leader == self.node.local or self._is_closed:
            otherwise()
            return
        size_bytes = max(len(request.frame), FORWARDED_BYTES_MIN)
        is_full = self._forwarded_bytes + size_bytes > FORWARDED_BYTES_MAX
        if is_full or (wait_ms and self._changes.is_full):
            otherwise()
            return
        forwarded = ForwardedRequest(request, self._client_id, reshape)
        self._forwarded_bytes += size_bytes

        def responded(
            version: int, frame: bytes, at: int, address: Address, is_trusted: bool
        ) -> None:
            self._forwarded_bytes -= size_bytes
            forwarded.respond(version, frame, at)

        def failed(reason: str, error: str | None) -> None:
            self._forwarded_bytes -= size_bytes
            is_too_late = forwarded.is_sent or self.node.is_leader
            (lost if lost is not None and is_too_late else otherwise)()

        call = CallbackCall(
            api_key=request.api_key,
            max_version=request.api_version,
            build=forwarded.frame,
            responded=responded,
            failed=failed,
            timeout_ms=self._settings.request_timeout_ms + wait_ms,
        )
        if wait_ms:
            self._changes.ask(leader, call)
        else:
            self._channel(leader, Use.CLIENTS).call(call)

    def ask_leader(
        self,
        message: Message,
        version: int,
        responded: Callable[[bytes, int], None],
        failed: Callable[[str], None],
    ) -> None:
        """A question of this node itself: `responded(frame, body position)` or `failed(reason)` is called
        once, the former with a response in this version."""
        leader, key = self.node.leader, message.wire_spec.api_key
        assert key is not None, "requests have one"
        if leader is None or leader == self.node.local or self._is_closed:
            failed("no other leader is known")
            return

        def build(known: int, correlation_id: int) -> bytes:
            if known != version:
                raise UnsupportedVersion(f"the leader does not know version {version}")
            return self._frame(key, message, version, correlation_id)

        call = CallbackCall(
            api_key=key,
            max_version=version,
            build=build,
            responded=lambda known, frame, at, address, is_trusted: responded(frame, at),
            failed=lambda reason, error: failed(reason),
            timeout_ms=self._settings.request_timeout_ms,
        )
        self._channel(leader, Use.CLIENTS).call(call)

    # -- responses

    def on_response(
        self,
        key: int,
        request_id: int,
        to: Peer,
        version: int,
        frame: bytes,
        at: int,
        address: Address,
        is_trusted: bool,
    ) -> bool | None:
        try:
            event = self._event(key, request_id, version, frame, at)
        except ValueError as error:  # what wire raises, InvalidRequestShape, and invalid values
            LOG.warning("invalid response", peer=self._name(to), reason=str(error))
            event = RequestFailed(request_id=request_id, reason=str(error))
        links = self.links
        if isinstance(event, RESPONSES) and (
            event.error in SHOWN_ERRORS or links.may_forget_problems
        ):
            cluster_id = self.node.cluster_id
            links.note_response(self._in_words(to), event.error, address, cluster_id)
        addresses, heard = self.addresses, event
        if not is_trusted and addresses.refuses_for_leader(to, event):
            heard = RequestFailed(request_id=request_id, reason="another node may have responded")
        self._handle(heard)
        addresses.note(to, event)
        names_receiver = key in (VOTE, BEGIN_QUORUM_EPOCH) and version > 0
        return addresses.is_from(to, address, event, names_receiver=names_receiver)

    def on_failure(self, request_id: int, reason: str, error: str | None) -> None:
        self._handle(RequestFailed(request_id=request_id, reason=reason, error=error))

    def _event(self, key: int, request_id: int, version: int, frame: bytes, at: int) -> Event:
        topic, listener = self._topic, self._settings.listener
        if key == FETCH:
            response = fetch_response_received(version, frame, at, topic, request_id, listener)
            fetched = response.fetched
            if fetched is not None:
                if self._is_kafka_log:
                    data = bytes(fetched.chunk.data)
                    self._drift.note_records(unknown_records(data), finalized_levels(data))
                self._fetched.hold_fetched(request_id, fetched)
                if self._max_bytes < FETCH_MAX_BYTES or fetched.count == FETCH_BATCHES_MAX:
                    self._max_bytes = next_max_bytes(self._max_bytes, fetched)
            return response.event
        if key == FETCH_SNAPSHOT:
            event, data = snapshot_response_received(
                version, frame, at, topic, request_id, listener
            )
            self._fetched.hold_chunk(request_id, data)
            return event
        if key in CHANGES:
            return voter_changes.change_response_received(
                key, version, frame, at, request_id, listener
            )
        return elections.election_response_received(
            key, version, frame, at, topic, request_id, listener
        )
