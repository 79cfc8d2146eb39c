"""Requests of the rules to other replicas: which link, which bytes, and back as events.

Each peer has two links: one for fetches, which may wait long for their answer, and one for everything
else, which must not wait behind them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from raft.effects import (
    BeginQuorumEpoch,
    Bootstrap,
    EndQuorumEpoch,
    Fetch,
    FetchSnapshot,
    Peer,
    SendRequest,
    Vote,
)
from raft.events import Event, PeerReachable, PeerUnreachable, RequestFailed
from raft.node import RaftNode
from raft.types import Endpoint, ReplicaKey
from server import translate, translate_fetch, translate_snapshot
from server.host import LinkMaker, PeerLink
from server.logs import Logger
from server.metrics import Metrics
from server.peers import Call, request_frame
from server.recorder import Recorder
from server.translate import TopicPartition
from server.transport import InboundRequest
from wire.codec import decode
from wire.errors import UnsupportedVersion
from wire.headers import encode_request_header, encode_response_header
from wire.messages.begin_quorum_epoch import BeginQuorumEpochResponse
from wire.messages.end_quorum_epoch import EndQuorumEpochResponse
from wire.messages.vote import VoteResponse
from wire.schema import Message

LOG = Logger("peers")

FETCH, VOTE, BEGIN, END, FETCH_SNAPSHOT = 1, 52, 53, 54, 59
RESPONSES: dict[
    int, type[VoteResponse] | type[BeginQuorumEpochResponse] | type[EndQuorumEpochResponse]
] = {VOTE: VoteResponse, BEGIN: BeginQuorumEpochResponse, END: EndQuorumEpochResponse}
MAX_VERSIONS = {FETCH: 18, VOTE: 2, BEGIN: 1, END: 1, FETCH_SNAPSHOT: 1}


@dataclass(frozen=True, slots=True)
class OutboundSettings:
    """What all links of a node share. `listener` is the name of the peers' listener.

    `fetch_wait_ms` is how long a fetch may wait for records at the leader.
    """

    listener: str
    software_version: str
    request_timeout_ms: int
    fetch_wait_ms: int
    bootstrap_servers: tuple[tuple[str, int], ...]


class _PeerListener:
    """Tells the rules whether a voter's process is there."""

    def __init__(self, peer: Peer, handle: Callable[[Event], None]) -> None:
        self._peer = peer
        self._handle = handle

    def on_link_up(self) -> None:
        if isinstance(self._peer, ReplicaKey):
            self._handle(PeerReachable(id=self._peer.id))

    def on_link_refused(self) -> None:
        if isinstance(self._peer, ReplicaKey):
            self._handle(PeerUnreachable(id=self._peer.id))


class Outbound:
    """Sends one partition's requests. `handle` takes the events that come of them."""

    def __init__(
        self,
        topic: TopicPartition,
        settings: OutboundSettings,
        recorder: Recorder,
        metrics: Metrics,
        handle: Callable[[Event], None],
        make_link: LinkMaker,
    ) -> None:
        self._topic = topic
        self._settings = settings
        self._recorder = recorder
        self._metrics = metrics
        self._handle = handle
        self._make_link = make_link
        self._node: RaftNode | None = None
        self._client_id = ""
        self._links: dict[tuple[Peer, bool], PeerLink] = {}
        self._is_closed = False

    def attach(self, node: RaftNode) -> None:
        """The rules whose requests are sent; call before anything is."""
        self._node = node
        self._client_id = f"raft-client-{node.local.id}"

    @property
    def node(self) -> RaftNode:
        assert self._node is not None, "attached before anything is sent"
        return self._node

    def prepare(self, peers: Sequence[ReplicaKey]) -> None:
        """Connect to these ahead of the first request, so that an election need not wait for it."""
        if self._is_closed:
            return
        self._discard_strangers(None)
        for peer in peers:
            self._link(peer, is_fetch=False)

    async def close(self) -> None:
        """Give all links up; nothing is sent from now on."""
        self._is_closed = True
        links, self._links = list(self._links.values()), {}
        await asyncio.gather(*(link.close() for link in links))

    def _discard_strangers(self, wanted: Peer | None) -> None:
        """Give up the links of replicas that neither vote nor lead any more, nor are `wanted` now.

        A voter whose storage id has become known is another peer than the one known by its id alone.
        """
        node = self.node
        known = {wanted, node.leader, *node.voters.keys}
        for key in [key for key in self._links if isinstance(key[0], ReplicaKey)]:
            if key[0] not in known:
                self._links.pop(key).discard()

    def _link(self, peer: Peer, is_fetch: bool) -> PeerLink:
        link = self._links.get((peer, is_fetch))
        if link is None:
            self._discard_strangers(peer)
            link = self._make_link(
                self._name(peer),
                lambda: self._addresses(peer),
                self._client_id,
                self._settings.software_version,
                _PeerListener(peer, self._handle),
                self._settings.request_timeout_ms,
                self._metrics,
            )
            self._links[peer, is_fetch] = link
            link.open()
        return link

    def _name(self, peer: Peer) -> str:
        if isinstance(peer, Bootstrap):
            host, port = self._settings.bootstrap_servers[peer.index]
            return f"bootstrap server {host}:{port}"
        return f"replica {peer}"

    def _addresses(self, peer: Peer) -> list[tuple[str, int]]:
        """Where to try, the best first: as logged, then as configured."""
        if isinstance(peer, Bootstrap):
            return [self._settings.bootstrap_servers[peer.index]]
        node = self.node
        sources: list[tuple[Endpoint, ...]] = [
            node.endpoints_of(peer.id),
            node.config.configured_voters.endpoints_of(peer.id),
        ]
        found: list[tuple[str, int]] = []
        for endpoints in sources:
            at = translate.endpoint_on(endpoints, self._settings.listener)
            if at is not None and (at.host, at.port) not in found:
                found.append((at.host, at.port))
        return found

    # -- sending

    def send_request(self, effect: SendRequest) -> None:
        """Send it; an answer, or the failure to get one, comes back as an event."""
        if self._is_closed:
            return
        request, to, request_id = effect.request, effect.to, effect.request_id
        if isinstance(request, Fetch):
            key, build = FETCH, self._fetch_frame(request)
            timeout_ms = self._settings.request_timeout_ms + self._settings.fetch_wait_ms
        else:
            assert isinstance(to, ReplicaKey), "only fetches go to bootstrap servers"
            key, message = self._message(request, to)
            build = partial(self._frame, key, message)
            timeout_ms = self._settings.request_timeout_ms
        call = Call(
            api_key=key,
            max_version=MAX_VERSIONS[key],
            build=build,
            answered=partial(self._on_answer, key, request_id, to),
            failed=partial(self._on_failure, request_id),
            timeout_ms=timeout_ms,
        )
        self._link(to, is_fetch=key in (FETCH, FETCH_SNAPSHOT)).call(call)

    def _fetch_frame(self, request: Fetch) -> Callable[[int, int], bytes]:
        node = self.node

        def build(version: int, correlation_id: int) -> bytes:
            return translate_fetch.fetch_request_frame(
                request,
                self._topic,
                version,
                correlation_id,
                self._client_id,
                node.cluster_id,
                node.local,
                self._settings.fetch_wait_ms,
            )

        return build

    def _frame(self, key: int, message: Message, version: int, correlation_id: int) -> bytes:
        return request_frame(key, message, version, correlation_id, self._client_id)

    def _message(
        self, request: Vote | BeginQuorumEpoch | EndQuorumEpoch | FetchSnapshot, to: ReplicaKey
    ) -> tuple[int, Message]:
        node, topic = self.node, self._topic
        if isinstance(request, Vote):
            return VOTE, translate.vote_message(request, topic, node.cluster_id, node.local, to)
        if isinstance(request, BeginQuorumEpoch):
            return BEGIN, translate.begin_message(
                request, topic, node.cluster_id, node.local, to, node.config.endpoints
            )
        if isinstance(request, FetchSnapshot):
            message = translate_snapshot.snapshot_message(
                request, topic, node.cluster_id, node.local
            )
            return FETCH_SNAPSHOT, message
        return END, translate.end_message(request, topic, node.cluster_id)

    def forward(self, request: InboundRequest, otherwise: Callable[[], None]) -> None:
        """Let the leader answer a client's request; `otherwise` is called if it can't.

        Clients that are told to ask another node don't all do so: Kafka's admin client asks the same
        one again until its time is over.
        """
        leader = self.node.leader
        if leader is None or self.node.is_local(leader) or self._is_closed:
            otherwise()
            return
        asked = request.api_version
        body = request.frame[request.body_at :]

        def build(version: int, correlation_id: int) -> bytes:
            if version != asked:
                raise UnsupportedVersion(f"the leader does not know version {asked}")
            header = encode_request_header(
                request.api_key, version, correlation_id, self._client_id
            )
            return b"".join(((len(header) + len(body)).to_bytes(4, "big"), header, body))

        def answered(version: int, frame: bytes, at: int) -> None:
            header = encode_response_header(request.api_key, version, request.correlation_id)
            length = len(header) + len(frame) - at
            request.respond((length.to_bytes(4, "big") + header, memoryview(frame)[at:]))

        call = Call(
            api_key=request.api_key,
            max_version=asked,
            build=build,
            answered=answered,
            failed=lambda reason, error: otherwise(),
            timeout_ms=self._settings.request_timeout_ms,
        )
        self._link(leader, is_fetch=False).call(call)

    # -- being answered

    def _on_answer(
        self, key: int, request_id: int, to: Peer, version: int, frame: bytes, at: int
    ) -> None:
        try:
            event = self._event(key, request_id, version, frame, at)
        except ValueError as error:  # what wire raises, WrongShape, and values that make no sense
            LOG.warning("unusable answer", peer=self._name(to), reason=str(error))
            event = RequestFailed(request_id=request_id, reason=str(error))
        self._handle(event)

    def _on_failure(self, request_id: int, reason: str, error: str | None) -> None:
        self._handle(RequestFailed(request_id=request_id, reason=reason, error=error))

    def _event(self, key: int, request_id: int, version: int, frame: bytes, at: int) -> Event:
        listener = self._settings.listener
        if key == FETCH:
            fetched = translate_fetch.fetch_answered(version, frame, at, request_id, listener)
            if fetched.batches:
                self._recorder.hold_fetched(request_id, fetched.data, fetched.batches)
            return fetched.event
        if key == FETCH_SNAPSHOT:
            event, data = translate_snapshot.snapshot_answered(
                version, frame, at, request_id, listener
            )
            self._recorder.hold_piece(request_id, data)
            return event
        message = decode(RESPONSES[key], version, frame, at)
        return translate.raft_answered(message, request_id, listener)
