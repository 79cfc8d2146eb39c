"""Where requests to other replicas go, and whose answer it was that came."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from quorumd.raft.config import StoredState
from quorumd.raft.control import VotersRecord
from quorumd.raft.effects import (
    BeginQuorumEpoch,
    BootstrapServer,
    EndQuorumEpoch,
    Fetch,
    Peer,
    RemoveVoter,
    SendRequest,
    Vote,
)
from quorumd.raft.events import (
    ConnectionLost,
    ConnectionMade,
    ConnectionRefused,
    Event,
    FetchResponseReceived,
    RequestFailed,
)
from quorumd.raft.log_view import LogView, VoterEntry
from quorumd.raft.node import RaftNode
from quorumd.raft.roles import Leader
from quorumd.raft.types import Address, Endpoint, OffsetAndEpoch, ReplicaKey, Voter, VoterSet
from quorumd.server.model.kafka_drift import KafkaDrift
from quorumd.server.model.metrics import Metrics
from quorumd.server.model.peer_calls import PeerCall, PeerListener, StaleRequest
from quorumd.server.model.runtime import Runtime
from quorumd.server.model.topic import METADATA
from quorumd.server.net.inbound_request import InboundRequest, RequestConnection
from quorumd.server.peers.client_changes import CHANGES_MAX
from quorumd.server.peers.outbound import (
    FORWARDED_BYTES_MAX,
    FetchedData,
    Outbound,
    OutboundSettings,
    Use,
)
from quorumd.server.translate.fetch import FETCH_BATCHES_MAX, FETCH_MAX_BYTES
from quorumd.server.translate.voter_changes import REMOVE_VOTER
from quorumd.wire.batch_header import stamp
from quorumd.wire.codec import decode, encode
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.headers import decode_request_header
from quorumd.wire.messages.begin_quorum_epoch import (
    BeginQuorumEpochResponse,
    BeginQuorumEpochResponsePartition,
    BeginQuorumEpochResponseTopic,
)
from quorumd.wire.messages.end_quorum_epoch import (
    EndQuorumEpochResponse,
    EndQuorumEpochResponsePartition,
    EndQuorumEpochResponseTopic,
)
from quorumd.wire.messages.fetch import (
    FetchRequest,
    FetchResponse,
    FetchResponseCurrentLeader,
    FetchResponseNodeEndpoint,
    FetchResponsePartition,
    FetchResponseTopic,
)
from quorumd.wire.messages.vote import (
    VoteResponse,
    VoteResponseNodeEndpoint,
    VoteResponsePartition,
    VoteResponseTopic,
)
from quorumd.wire.records import Record, build_batch
from quorumd.wire.schema import Message
from simulation.default_raft_config import default_raft_config

BOOTSTRAP: tuple[Address, ...] = (("b1", 1), ("b2", 2), ("here", 1))
EPOCH = 5
FETCH_VERSION = 18


def key(replica_id: int, disk: int = 0) -> ReplicaKey:
    return ReplicaKey(replica_id, UUID(int=replica_id * 10 + disk + 1))


def at(host: str, port: int = 1, name: str = "CONTROLLER") -> tuple[Endpoint, ...]:
    return (Endpoint(name, host, port), Endpoint("CLIENTS", "never", 1))


@dataclass(eq=False)
class FakeLink:
    """A link that never connects; the test answers."""

    addresses: Callable[[], Sequence[Address]]
    listener: PeerListener
    calls: list[PeerCall] = field(default_factory=list)

    def open(self) -> None: ...

    is_discarded: bool = False
    is_awake: bool = False

    def wake(self) -> None:
        self.is_awake = True

    def discard(self) -> None:
        self.is_discarded = True

    async def close(self) -> None: ...
    def call(self, call: PeerCall) -> None:
        self.calls.append(call)


class Sender:
    """An Outbound of replica 1 in a quorum whose log names `voters`."""

    def __init__(
        self, *voters: Voter, configured: Sequence[Voter] = (), auto_join: bool = False
    ) -> None:
        self.events: list[Event] = []
        self.links: list[FakeLink] = []
        config = default_raft_config(
            key(1),
            endpoints=at("here"),
            configured_voters=VoterSet.of(configured),
            bootstrap_servers=len(BOOTSTRAP),
            auto_join=auto_join,
        )
        self.node = RaftNode(config, StoredState(epoch=EPOCH), LogView(), lambda bound: bound // 2)
        if voters:
            record = VotersRecord(VoterSet.of(voters), "cluster")
            self.node.core.log.voter_entries.append(VoterEntry(0, record))
        self.node.start(0)
        settings = OutboundSettings("CONTROLLER", "1.0", 1000, 500, BOOTSTRAP)
        self.outbound = Outbound(
            METADATA,
            settings,
            self.node,
            cast(FetchedData, None),  # nothing that is fetched here has records
            Metrics(),
            self.events.append,
            cast(Runtime, SimpleNamespace(peer_channel=self._make_link)),
            KafkaDrift(Metrics()),
        )

    def _make_link(
        self,
        name: str,
        addresses: Callable[[], Sequence[Address]],
        client_id: str,
        software_version: str,
        listener: PeerListener,
        connect_timeout_ms: int,
        metrics: Metrics,
    ) -> FakeLink:
        self.links.append(FakeLink(addresses, listener))
        return self.links[-1]

    def lead(self, leader: ReplicaKey, host: str | None) -> None:
        self.node.core.leader = leader
        self.node.core.known_leader.endpoints = () if host is None else at(host)

    def link(self, peer: Peer, use: Use = Use.ELECTIONS) -> FakeLink:
        link = self.outbound._channel(peer, use)
        assert isinstance(link, FakeLink)
        return link

    def ask(
        self, peer: Peer, request: Any, address: Address = ("two", 1), *, is_trusted: bool = True
    ) -> Callable[[int, Message], bool | None]:
        """Send a request; what comes back takes version and answer, and says whose answer it was."""
        self.outbound.send_request(SendRequest(request_id=1, to=peer, request=request, after=0))
        link = next(link for link in self.links if link.calls)
        call = link.calls[-1]
        return lambda version, answer: call.responded(
            version, encode(answer, version), 0, address, is_trusted
        )


FETCH = Fetch(epoch=EPOCH, position=OffsetAndEpoch(0, 0), high_watermark=-1)
VOTE = Vote(epoch=EPOCH, last=OffsetAndEpoch(0, 0), pre_vote=False)
BEGIN = BeginQuorumEpoch(epoch=EPOCH)
END = EndQuorumEpoch(epoch=EPOCH, leader_id=1, successors=())


def fetch_answer(
    error: int,
    leader: int,
    host: str = "",
    *,
    top_level: int = 0,
    epoch: int = EPOCH,
    records: bytes = b"",
) -> FetchResponse:
    partition = FetchResponsePartition(
        error_code=error,
        current_leader=FetchResponseCurrentLeader(leader_id=leader, leader_epoch=epoch),
        records=records,
    )
    topic = FetchResponseTopic(topic_id=METADATA.topic_id, partitions=(partition,))
    nodes = (FetchResponseNodeEndpoint(node_id=leader, host=host, port=1),) if host else ()
    return FetchResponse(error_code=top_level, responses=(topic,), node_endpoints=nodes)


def vote_answer(
    error: int, leader: int = -1, host: str = "", *, top_level: int = 0
) -> VoteResponse:
    partition = VoteResponsePartition(error_code=error, leader_id=leader, leader_epoch=EPOCH)
    topic = VoteResponseTopic(topic_name=METADATA.name, partitions=(partition,))
    nodes = (VoteResponseNodeEndpoint(node_id=leader, host=host, port=1),) if host else ()
    return VoteResponse(error_code=top_level, topics=(topic,), node_endpoints=nodes)


def begin_answer(error: int) -> BeginQuorumEpochResponse:
    partition = BeginQuorumEpochResponsePartition(error_code=error, leader_epoch=EPOCH)
    topic = BeginQuorumEpochResponseTopic(topic_name=METADATA.name, partitions=(partition,))
    return BeginQuorumEpochResponse(topics=(topic,))


def end_answer(error: int) -> EndQuorumEpochResponse:
    partition = EndQuorumEpochResponsePartition(error_code=error, leader_epoch=EPOCH)
    topic = EndQuorumEpochResponseTopic(topic_name=METADATA.name, partitions=(partition,))
    return EndQuorumEpochResponse(topics=(topic,))


# -- where to


def test_a_voter_is_tried_as_logged_as_configured_and_elsewhere() -> None:
    sender = Sender(
        Voter(key(1), at("here")),
        Voter(key(2), at("logged")),
        configured=(Voter(ReplicaKey(1), at("here")), Voter(ReplicaKey(2), at("configured"))),
    )
    link = sender.link(key(2))
    assert link.addresses() == [("logged", 1), ("configured", 1)]
    assert link.listener.elsewhere() == [("b1", 1), ("b2", 2)], "never itself"


def test_a_leader_is_tried_first_where_it_says_that_it_is() -> None:
    sender = Sender(Voter(key(1), at("here")), Voter(key(2), at("logged")))
    link = sender.link(key(2), Use.FETCHES)
    sender.lead(key(2), "new")
    assert link.addresses() == [("new", 1), ("logged", 1)]
    sender.lead(key(3), "new")
    assert link.addresses() == [("logged", 1)]
    assert link.listener.elsewhere() == [], "a fetch does not say whom it is meant for"


def test_two_disks_under_one_id_are_each_tried_at_their_own_address() -> None:
    sender = Sender(
        Voter(key(1), at("here")), Voter(key(2, 0), at("lost")), Voter(key(2, 1), at("new"))
    )
    assert sender.link(key(2, 0)).addresses() == [("lost", 1)]
    assert sender.link(key(2, 1)).addresses() == [("new", 1)]
    sender.lead(ReplicaKey(2), None)
    assert sender.link(ReplicaKey(2)).addresses() == [("lost", 1), ("new", 1)]


def test_the_nodes_own_address_is_not_one_of_another_replica() -> None:
    """Two voters have exchanged their addresses, and the log does not know it yet."""
    sender = Sender(
        Voter(key(1), at("there")),
        Voter(key(2), at("here")),
        configured=(Voter(ReplicaKey(1), at("here")), Voter(ReplicaKey(2), at("there"))),
    )
    assert sender.link(key(2)).addresses() == [("there", 1)]


def test_a_bootstrap_server_is_at_its_address() -> None:
    sender = Sender(Voter(key(1), at("here")), Voter(key(2), at("logged")))
    link = sender.link(BootstrapServer(index=1), Use.FETCHES)
    assert (link.addresses(), link.listener.elsewhere()) == ([("b2", 2)], [])
    assert sender.link(BootstrapServer(index=2), Use.FETCHES).addresses() == [], "that is itself"


def test_a_leader_is_looked_for_where_other_replicas_say_that_it_is() -> None:
    """The rules have its address from an old log, and keep to it as long as it leads."""
    sender = Sender(Voter(key(1), at("here")), Voter(key(2), at("old")), Voter(key(3), at("three")))
    sender.lead(key(2), "old")
    answered = sender.ask(key(3), FETCH)
    answered(FETCH_VERSION, fetch_answer(ErrorCode.NOT_LEADER_OR_FOLLOWER, 2, "new"))
    assert sender.link(key(2)).addresses() == [("old", 1), ("new", 1)]
    for host in ("a", "b", "c", "d", "e"):
        answered(FETCH_VERSION, fetch_answer(ErrorCode.NOT_LEADER_OR_FOLLOWER, 2, host))
    hosts = [host for host, _ in sender.link(key(2)).addresses()]
    assert hosts == ["old", "e", "d", "c", "b"], "the newest of many"
    sender.node.core.epoch += 1
    assert sender.link(key(2)).addresses() == [("old", 1)], "what was said of another epoch is void"


def test_what_is_said_of_another_leader_than_the_present_one_is_not_remembered() -> None:
    sender = Sender(Voter(key(1), at("here")), Voter(key(2), at("old")), Voter(key(3), at("three")))
    sender.lead(key(2), "old")
    sender.ask(key(3), VOTE)(2, vote_answer(0, 3, "new"))
    assert sender.link(key(2)).addresses() == [("old", 1)]
    assert sender.link(key(3)).addresses() == [("three", 1)]


def test_a_bootstrap_server_that_answers_as_the_leader_shows_where_the_leader_is() -> None:
    sender = Sender(Voter(key(1), at("here")), Voter(key(2), at("old")))
    sender.lead(key(2), "old")
    answered = sender.ask(BootstrapServer(index=0), FETCH)
    answered(FETCH_VERSION, fetch_answer(ErrorCode.NOT_LEADER_OR_FOLLOWER, 2))
    assert sender.link(key(2)).addresses() == [("old", 1)]
    answered(FETCH_VERSION, fetch_answer(0, 2))
    assert sender.link(key(2)).addresses() == [("old", 1), ("b1", 1)]


def test_the_next_fetch_asks_for_as_many_bytes_as_were_taken_of_many_small_batches() -> None:
    sender = Sender(Voter(key(1), at("here")), Voter(key(2), at("two")))
    sender.lead(key(2), "two")
    held: list[int] = []
    hold = SimpleNamespace(hold_fetched=lambda token, fetched: held.append(len(fetched.chunk.data)))
    sender.outbound._fetched = cast(FetchedData, hold)

    def asked_bytes() -> int:
        frame = sender.links[-1].calls[-1].build(FETCH_VERSION, 1)
        _, body_at = decode_request_header(frame[4:])
        return decode(FetchRequest, FETCH_VERSION, frame[4:], body_at).max_bytes

    one = build_batch([Record(value=b"v")])
    records = b"".join(stamp(one, offset, EPOCH) for offset in range(3 * FETCH_BATCHES_MAX))
    answer = fetch_answer(0, 2, records=records)
    answered = sender.ask(key(2), FETCH)
    assert asked_bytes() == FETCH_MAX_BYTES
    answered(FETCH_VERSION, answer)
    sender.ask(key(2), FETCH)
    assert asked_bytes() == held[0] == FETCH_BATCHES_MAX * len(one)


@pytest.mark.parametrize(
    ("is_sent", "leads", "told"),
    [(False, False, "answered here"), (True, False, "lost"), (False, True, "lost")],
)
def test_what_the_leader_was_asked_for_is_not_done_here_as_well(
    is_sent: bool, leads: bool, told: str
) -> None:
    sender = Sender(Voter(key(1), at("here")), Voter(key(2), at("two")))
    sender.lead(key(2), "two")
    heard: list[str] = []
    body = (b"header|body", len(b"header|"), 0)
    sender.outbound.forward(
        InboundRequest(cast(RequestConnection, None), REMOVE_VOTER, 0, 1, *body),
        lambda: heard.append("answered here"),
        lost=lambda: heard.append("lost"),
        wait_ms=1000,
    )
    call = sender.links[-1].calls[-1]
    if is_sent:
        assert call.build(0, 7).endswith(b"body")
    if leads:
        sender.node.core.state = Leader(0, 0)
    call.failed("the connection was lost", None)
    assert heard == [told]


def test_each_change_of_a_client_has_a_connection_of_its_own_while_it_waits() -> None:
    sender = Sender(Voter(key(1), at("here")), Voter(key(2), at("two")))
    sender.lead(key(2), "two")
    heard: list[int] = []

    def ask(number: int) -> FakeLink:
        body = (b"header|body", len(b"header|"), 0)
        request = InboundRequest(cast(RequestConnection, None), REMOVE_VOTER, 0, number, *body)
        sender.outbound.forward(request, lambda: heard.append(number), wait_ms=1000)
        return sender.links[-1]

    links = [ask(number) for number in range(CHANGES_MAX)]
    assert len({id(link) for link in links}) == CHANGES_MAX
    assert all(link.addresses() == [("two", 1)] for link in links)
    assert links[0].calls[0].timeout_ms == 1000 + 1000
    ask(99)
    assert heard == [99]
    links[3].calls[0].failed("the connection was lost", None)
    assert (heard, links[3].is_discarded, links[4].is_discarded) == ([99, 3], True, False)
    assert ask(100) not in links


@pytest.mark.parametrize(("size_bytes", "count"), [(FORWARDED_BYTES_MAX // 4, 4), (11, 256)])
def test_so_much_waits_for_a_leader_that_does_not_respond_and_no_more(
    size_bytes: int, count: int
) -> None:
    """Small ones count for more than they have: all may fail together."""
    sender = Sender(Voter(key(1), at("here")), Voter(key(2), at("two")))
    sender.lead(key(2), "two")
    refused: list[int] = []

    def ask(number: int) -> None:
        frame = b"header|" + bytes(size_bytes - 7)
        responding = SimpleNamespace(send=lambda request, buffers: None)
        connection = cast(RequestConnection, responding)
        request = InboundRequest(connection, REMOVE_VOTER, 0, number, frame, len(b"header|"), 0)
        sender.outbound.forward(request, lambda: refused.append(number))

    for number in range(count + 2):
        ask(number)
    assert refused == [count, count + 1]
    calls = sender.links[-1].calls
    calls[0].failed("the connection was lost", None)
    calls[1].responded(0, b"response", 0, ("two", 1), True)
    for number in range(1000, 1003):
        ask(number)
    assert refused == [count, count + 1, 0, 1002]


def test_a_response_may_be_made_anew_for_the_client() -> None:
    sender = Sender(Voter(key(1), at("here")), Voter(key(2), at("two")))
    sender.lead(key(2), "two")
    sent: list[bytes] = []
    responding = SimpleNamespace(send=lambda request, buffers: sent.append(b"".join(buffers)))
    body = (b"header|body", len(b"header|"), 0)
    request = InboundRequest(cast(RequestConnection, responding), REMOVE_VOTER, 0, 7, *body)
    sender.outbound.forward(
        request, lambda: None, reshape=lambda frame, body_at: frame[body_at:] * 2
    )
    sender.links[-1].calls[-1].responded(0, b"head|yes", 5, ("two", 1), True)
    assert sent == [(4 + 1 + 6).to_bytes(4, "big") + (7).to_bytes(4, "big") + b"\0yesyes"]


def test_what_a_replica_wanted_of_the_leader_is_not_sent_when_it_wants_it_no_more() -> None:
    """No leader could tell that the request is old."""
    both = (Voter(key(1), at("here")), Voter(key(1, 1), at("twin")))
    sender = Sender(*both, Voter(key(2), at("two")), auto_join=True)
    sender.lead(key(2), "two")
    removal = RemoveVoter(key=key(1, 1))
    sender.outbound.send_request(SendRequest(request_id=1, to=key(2), request=removal, after=0))
    (call,) = sender.link(key(2)).calls
    assert call.build(0, 7)
    record = VotersRecord(VoterSet.of([Voter(key(1, 1), at("twin"))]), "cluster")
    sender.node.core.log.voter_entries.append(VoterEntry(1, record))
    with pytest.raises(StaleRequest, match="the voters have changed"):
        call.build(0, 8)


# -- whose answer

ITSELF, SOMEBODY_ELSE, UNTOLD = True, False, None


@pytest.mark.parametrize(
    ("version", "answer", "verdict"),
    [
        (2, vote_answer(0), ITSELF),
        (1, vote_answer(0), ITSELF),
        (0, vote_answer(0), UNTOLD),
        (2, vote_answer(ErrorCode.INVALID_VOTER_KEY), SOMEBODY_ELSE),
        (2, vote_answer(ErrorCode.FENCED_LEADER_EPOCH), UNTOLD),
        (2, vote_answer(0, top_level=ErrorCode.INCONSISTENT_CLUSTER_ID), SOMEBODY_ELSE),
        (2, vote_answer(0, top_level=ErrorCode.UNKNOWN_SERVER_ERROR), UNTOLD),
    ],
)
def test_an_answer_to_a_vote_shows_who_gave_it(
    version: int, answer: VoteResponse, verdict: bool | None
) -> None:
    sender = Sender(Voter(key(1), at("here")), Voter(key(2), at("two")))
    assert sender.ask(key(2), VOTE)(version, answer) is verdict


@pytest.mark.parametrize(
    ("version", "error", "verdict"),
    [
        (1, 0, ITSELF),
        (0, 0, UNTOLD),
        (1, ErrorCode.INVALID_VOTER_KEY, SOMEBODY_ELSE),
        (1, ErrorCode.FENCED_LEADER_EPOCH, UNTOLD),
    ],
)
def test_an_answer_to_an_announcement_shows_who_gave_it(
    version: int, error: int, verdict: bool | None
) -> None:
    sender = Sender(Voter(key(1), at("here")), Voter(key(2), at("two")))
    assert sender.ask(key(2), BEGIN)(version, begin_answer(error)) is verdict


def test_an_answer_to_the_end_of_an_epoch_does_not_show_who_gave_it() -> None:
    sender = Sender(Voter(key(1), at("here")), Voter(key(2), at("two")))
    assert sender.ask(key(2), END)(1, end_answer(0)) is UNTOLD


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (fetch_answer(0, 2), ITSELF),
        (fetch_answer(ErrorCode.NOT_LEADER_OR_FOLLOWER, 2), SOMEBODY_ELSE),
        (fetch_answer(ErrorCode.NOT_LEADER_OR_FOLLOWER, 3), UNTOLD),
        (fetch_answer(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1), SOMEBODY_ELSE),
        (fetch_answer(ErrorCode.FENCED_LEADER_EPOCH, 2), UNTOLD),
        (fetch_answer(ErrorCode.NOT_LEADER_OR_FOLLOWER, 3, epoch=EPOCH - 1), SOMEBODY_ELSE),
        (fetch_answer(ErrorCode.UNKNOWN_LEADER_EPOCH, -1, epoch=EPOCH - 1), SOMEBODY_ELSE),
        (fetch_answer(ErrorCode.NOT_LEADER_OR_FOLLOWER, 3, epoch=EPOCH + 1), UNTOLD),
    ],
)
def test_who_is_not_the_leader_is_known_by_its_answer_to_a_fetch(
    answer: FetchResponse, verdict: bool | None
) -> None:
    sender = Sender(Voter(key(1), at("here")), Voter(key(2), at("two")), Voter(key(3), at("three")))
    sender.lead(key(2), "new")
    assert sender.ask(key(2), FETCH)(FETCH_VERSION, answer) is verdict


@pytest.mark.parametrize("named", [2, -1])
def test_a_leader_with_one_address_is_not_given_up_because_it_resigns(named: int) -> None:
    sender = Sender(Voter(key(1), at("here")), Voter(key(2), at("two")))
    sender.lead(key(2), "two")
    answer = fetch_answer(ErrorCode.NOT_LEADER_OR_FOLLOWER, named)
    assert sender.ask(key(2), FETCH)(FETCH_VERSION, answer) is UNTOLD


@pytest.mark.parametrize("named", [2, -1])
def test_only_from_where_the_leader_was_found_its_refusal_is_its_own(named: int) -> None:
    sender = Sender(Voter(key(1), at("here")), Voter(key(2), at("two")), Voter(key(3), at("three")))
    sender.lead(key(2), "two")
    answer = fetch_answer(ErrorCode.NOT_LEADER_OR_FOLLOWER, named)
    ask = partial(sender.ask, key(2), FETCH, address=("three", 1))
    assert ask(is_trusted=False)(FETCH_VERSION, answer) is SOMEBODY_ELSE
    assert isinstance(sender.events[-1], RequestFailed)
    ask(is_trusted=True)(FETCH_VERSION, answer)
    assert isinstance(sender.events[-1], FetchResponseReceived)


@pytest.mark.parametrize(("named", "epoch"), [(3, EPOCH), (2, EPOCH + 1), (-1, EPOCH + 1)])
def test_news_of_an_epoch_or_a_leader_counts_wherever_it_comes_from(named: int, epoch: int) -> None:
    sender = Sender(Voter(key(1), at("here")), Voter(key(2), at("two")), Voter(key(3), at("three")))
    sender.lead(key(2), "two")
    answer = fetch_answer(ErrorCode.NOT_LEADER_OR_FOLLOWER, named, epoch=epoch)
    sender.ask(key(2), FETCH, address=("three", 1), is_trusted=False)(FETCH_VERSION, answer)
    assert isinstance(sender.events[-1], FetchResponseReceived)


def test_who_answers_at_an_address_that_the_leader_has_left_is_somebody_else() -> None:
    """The connection is older than what is known now."""
    sender = Sender(Voter(key(1), at("here")), Voter(key(2), at("two")))
    sender.lead(key(2), "two")
    answer = fetch_answer(ErrorCode.UNKNOWN_LEADER_EPOCH, -1, epoch=EPOCH - 1)
    verdict = sender.ask(key(2), FETCH, address=("left", 1))(FETCH_VERSION, answer)
    assert verdict is SOMEBODY_ELSE


def test_a_bootstrap_server_is_whoever_answers() -> None:
    sender = Sender(Voter(key(1), at("here")), Voter(key(2), at("two")))
    sender.lead(key(2), "new")
    assert sender.ask(BootstrapServer(index=0), FETCH)(FETCH_VERSION, fetch_answer(0, 2)) is UNTOLD


# -- who is there


def test_a_voters_process_is_known_by_its_link() -> None:
    sender = Sender(Voter(key(1), at("here")), Voter(key(2), at("two")))
    for peer in (key(2), BootstrapServer(index=0)):
        sender.link(peer).listener.on_connection_lost()
        sender.link(peer).listener.on_connection_refused()
        sender.link(peer).listener.on_connection_made("")
    assert sender.events == [ConnectionLost(id=2), ConnectionRefused(id=2), ConnectionMade(id=2)]


def test_a_replicas_address_is_the_one_at_which_it_was_reached_last() -> None:
    sender = Sender(Voter(key(1), at("here")), Voter(key(2), at("v2")), Voter(key(3), at("v3")))
    addresses = sender.outbound.addresses
    for ip in ("10.0.0.9", "10.0.0.2"):
        addresses.note_ip(key(2), ip)
    addresses.note_ip(BootstrapServer(index=0), "10.0.0.3")
    found = {
        (replica_id, ip)
        for replica_id in (2, 3)
        for ip in ("10.0.0.2", "10.0.0.3", "10.0.0.9")
        if addresses.is_ip_of(replica_id, ip)
    }
    assert found == {(2, "10.0.0.2")}


def test_a_replica_that_connects_is_connected_to_at_once() -> None:
    sender = Sender(Voter(key(1), at("here")), Voter(key(2), at("two")), Voter(key(3), at("three")))
    two = [sender.link(key(2), use) for use in (Use.ELECTIONS, Use.FETCHES)]
    other = [sender.link(key(3)), sender.link(BootstrapServer(index=0))]
    sender.outbound.addresses.on_peer_connected(2)
    assert [link.is_awake for link in (*two, *other)] == [True, True, False, False]


def test_a_lost_disk_that_is_gone_does_not_depose_the_new_one_under_its_id() -> None:
    sender = Sender(
        Voter(key(1), at("here")), Voter(key(2, 0), at("lost")), Voter(key(2, 1), at("new"))
    )
    lost, new = sender.link(key(2, 0)).listener, sender.link(key(2, 1)).listener
    lost.on_connection_refused()
    new.on_connection_refused()
    assert sender.events == [], "nobody knows which of the two is meant"
    sender.lead(key(2, 1), "new")
    lost.on_connection_refused()
    lost.on_connection_made("")
    assert sender.events == []
    new.on_connection_refused()
    assert sender.events == [ConnectionRefused(id=2)]


def test_a_leader_known_by_its_id_alone_is_no_other_than_the_voter_under_it() -> None:
    sender = Sender(Voter(key(1), at("here")), Voter(key(2), at("two")))
    sender.lead(ReplicaKey(2), "two")
    sender.link(key(2)).listener.on_connection_refused()
    assert sender.events == [ConnectionRefused(id=2)]
