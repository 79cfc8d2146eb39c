"""Which links to other nodes are kept, what becomes of those that are not, and what goes over them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from quorumd.raft.control import VotersRecord
from quorumd.raft.effects import BootstrapServer
from quorumd.raft.log_view import VoterEntry
from quorumd.raft.types import Address, Voter, VoterSet
from quorumd.server.model.peer_calls import HungUp
from quorumd.server.net.inbound_request import InboundRequest, RequestConnection
from quorumd.server.peers.outbound import FetchedData, Use
from quorumd.server.peers.peer_links import KafkaPeer
from quorumd.server.translate.fetch import FETCH_BATCHES_MAX, FETCH_MAX_BYTES
from quorumd.server.translate.voter_changes import ADD_VOTER
from quorumd.wire.batch_header import stamp
from quorumd.wire.codec import decode
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.errors import UnsupportedVersion
from quorumd.wire.headers import decode_request_header
from quorumd.wire.messages.api_versions import ApiVersionsResponse, ApiVersionsResponseApiKey
from quorumd.wire.messages.fetch import FetchRequest
from quorumd.wire.records import Record, build_batch
from quorumd.wire.registry import CONTROLLER_KEYS
from tests.server.test_outbound import (
    EPOCH,
    FETCH,
    FETCH_VERSION,
    VOTE,
    Sender,
    at,
    fetch_answer,
    key,
)

VOTERS = (Voter(key(1), at("here")), Voter(key(2), at("two")), Voter(key(3), at("three")))


def test_a_leader_that_does_not_vote_keeps_its_links() -> None:
    """As while it is removed: it leads until that is committed."""
    sender = Sender(*VOTERS)
    sender.lead(key(4), "four")
    of_leader = sender.link(key(4), Use.FETCHES)
    sender.link(key(2))
    assert not of_leader.is_discarded
    sender.lead(key(2), "two")
    sender.link(key(3))
    assert of_leader.is_discarded


def test_nothing_is_told_of_a_voter_that_was_removed() -> None:
    sender = Sender(*VOTERS)
    link, links = sender.link(key(3)), sender.outbound.links
    links.note_made("node 3", 3, is_behind=True)
    links.note_failed("node 3", Address("three", 1), TimeoutError())
    assert links.unreachable()
    record = VotersRecord(VoterSet.of(VOTERS[:2]), "cluster")
    sender.node.core.log.voter_entries.append(VoterEntry(1, record))
    sender.outbound.prepare([key(2)])
    assert link.is_discarded
    assert links.unreachable() == links.warnings() == []


def test_a_node_of_kafka_is_no_peer_of_a_quorumd_log() -> None:
    sender = Sender(*VOTERS)
    keys = tuple(
        ApiVersionsResponseApiKey(api_key=number, min_version=0, max_version=0)
        for number in CONTROLLER_KEYS
    )
    listener = sender.link(key(2)).listener
    listener.on_announced(ApiVersionsResponse())
    with pytest.raises(KafkaPeer):
        listener.on_announced(ApiVersionsResponse(api_keys=keys))


def test_what_a_leader_does_not_know_in_the_clients_version_is_not_passed_on() -> None:
    sender = Sender(*VOTERS)
    sender.lead(key(2), "two")
    request = InboundRequest(cast(RequestConnection, None), ADD_VOTER, 1, 1, b"header|body", 7, 0)
    sender.outbound.forward(request, lambda: None, wait_ms=1000)
    call = sender.links[-1].calls[-1]
    assert call.build(1, 7).endswith(b"body")
    with pytest.raises(UnsupportedVersion):
        call.build(0, 8)


def test_a_fetch_has_the_time_that_it_may_wait_for_records_beside_that_of_a_request() -> None:
    sender = Sender(*VOTERS)
    sender.ask(key(2), FETCH)
    sender.ask(key(3), VOTE)
    assert [link.calls[-1].timeout_ms for link in sender.links] == [1000 + 500, 1000]


def test_each_fetch_goes_to_whom_it_is_for() -> None:
    sender = Sender(*VOTERS)
    for voter in (key(2), key(3), key(2)):
        sender.ask(voter, FETCH)
    assert [len(sender.link(each, Use.FETCHES).calls) for each in (key(2), key(3))] == [2, 1]


def test_a_replica_that_comes_back_as_a_voter_is_fetched_from_over_a_new_link() -> None:
    sender, voter = Sender(*VOTERS), key(2)
    sender.ask(voter, FETCH)
    (former,) = sender.links
    for number, voters in enumerate(((VOTERS[0], VOTERS[2]), VOTERS), 1):
        record = VotersRecord(VoterSet.of(voters), "cluster")
        sender.node.core.log.voter_entries.append(VoterEntry(number, record))
        sender.outbound.prepare([])
    assert former.is_discarded
    sender.ask(voter, FETCH)
    assert len(former.calls) == 1
    assert len(sender.link(voter, Use.FETCHES).calls) == 1


def test_where_a_new_leader_is_counts_though_its_election_is_news() -> None:
    sender = Sender(*VOTERS)
    sender.lead(key(2), "two")
    sender.outbound._handle = lambda event: sender.lead(key(3), None)
    answered = sender.ask(key(2), FETCH)
    answered(FETCH_VERSION, fetch_answer(ErrorCode.NOT_LEADER_OR_FOLLOWER, 3, "moved"))
    assert sender.link(key(3)).addresses()[0] == ("moved", 1)


def test_where_a_former_leader_was_is_no_address_of_the_next() -> None:
    sender = Sender(*VOTERS)
    for replica_id, host in ((2, "moved"), (3, "away")):
        sender.lead(key(replica_id), None)
        sender.ask(key(replica_id), FETCH)(FETCH_VERSION, fetch_answer(0, replica_id, host))
        sender.outbound.links.forget(f"node {replica_id}")
    assert sender.link(key(3)).addresses() == [("away", 1), ("three", 1)]


def test_fetches_ask_for_more_again_when_batches_are_few() -> None:
    sender = Sender(*VOTERS)
    sender.lead(key(2), "two")
    sender.outbound._fetched = cast(
        FetchedData, SimpleNamespace(hold_fetched=lambda token, fetched: None)
    )
    one = build_batch([Record(value=b"v")])

    def ask(batches: int) -> int:
        """So many come; returns how many bytes were asked for."""
        answered = sender.ask(key(2), FETCH)
        frame = sender.links[-1].calls[-1].build(FETCH_VERSION, 1)
        _, body_at = decode_request_header(frame[4:])
        records = b"".join(stamp(one, offset, EPOCH) for offset in range(batches))
        answered(FETCH_VERSION, fetch_answer(0, 2, records=records))
        return decode(FetchRequest, FETCH_VERSION, frame[4:], body_at).max_bytes

    assert ask(FETCH_BATCHES_MAX) == FETCH_MAX_BYTES
    small = FETCH_BATCHES_MAX * len(one)
    assert ask(1) == small
    assert ask(1) == 2 * small
    assert ask(1) == 4 * small


def test_of_two_disks_under_one_id_the_one_that_stays_has_its_links_in_plaintext_still() -> None:
    """What is said by certificate is said of the id."""
    sender = Sender(*VOTERS, Voter(key(3, 1), at("new")))
    lost, links = sender.link(key(3)), sender.outbound.links
    links.note_made("node 3", 3, is_behind=True)
    record = VotersRecord(VoterSet.of((*VOTERS[:2], Voter(key(3, 1), at("new")))), "cluster")
    sender.node.core.log.voter_entries.append(VoterEntry(1, record))
    sender.outbound.prepare([key(2)])
    assert lost.is_discarded
    assert sender.outbound.is_behind(3)


def test_who_is_no_voter_and_does_not_lead_is_not_behind() -> None:
    sender = Sender(*VOTERS)
    for replica_id in (3, 4):
        sender.outbound.links.note_made(f"node {replica_id}", replica_id, is_behind=True)
    assert (sender.outbound.is_behind(3), sender.outbound.is_behind(4)) == (True, False)
    assert not sender.outbound.is_behind(2)


def test_a_peer_that_responds_has_hung_up_by_accident() -> None:
    sender = Sender(*VOTERS)
    sender.lead(key(2), "two")
    links = sender.outbound.links
    links.note_failed("node 2", Address("two", 1), HungUp())
    assert links.unreachable()
    sender.ask(key(2), FETCH)(FETCH_VERSION, fetch_answer(0, 2))
    assert links.unreachable() == []


def test_what_was_said_of_the_leader_of_another_epoch_is_forgotten_when_there_is_news() -> None:
    sender = Sender(*VOTERS)
    sender.lead(key(2), "two")
    answered = sender.ask(key(3), FETCH)
    answered(FETCH_VERSION, fetch_answer(ErrorCode.NOT_LEADER_OR_FOLLOWER, 2, "a"))
    sender.node.core.epoch += 1
    later = fetch_answer(ErrorCode.NOT_LEADER_OR_FOLLOWER, 2, "b", epoch=EPOCH + 1)
    answered(FETCH_VERSION, later)
    assert [host for host, _ in sender.link(key(2)).addresses()] == ["two", "b"]


def test_what_a_bootstrap_server_said_is_heard_again_of_a_replica() -> None:
    """Where it is itself counts then, and not what it says."""
    sender = Sender(*VOTERS)
    sender.lead(key(2), "two")
    sender.ask(BootstrapServer(index=0), FETCH)(FETCH_VERSION, fetch_answer(0, 2, "new"))
    assert [host for host, _ in sender.link(key(2)).addresses()] == ["two", "b1"]
    sender.outbound.addresses.note(key(3), sender.events[-1])
    assert [host for host, _ in sender.link(key(2)).addresses()] == ["two", "new", "b1"]
