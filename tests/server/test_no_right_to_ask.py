"""A Kafka peer that answers CLUSTER_AUTHORIZATION_FAILED, of which Kafka's own processes die."""

from __future__ import annotations

from collections import Counter

import pytest

from quorumd.raft.effects import Effect, Halt, SendRequest
from quorumd.raft.events import RequestFailed, TimerFired, WriteCompleted
from quorumd.raft.types import Address, Voter
from quorumd.server.model.peer_calls import PeerCall
from quorumd.wire.codec import encode
from quorumd.wire.error_codes import ErrorCode
from tests.server.test_outbound import FETCH_VERSION, Sender, at, fetch_answer, key, vote_answer

DENIED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
FETCH_KEY, VOTE_KEY = 1, 52
A_MINUTE_MS = 60_000
VERSIONS = {FETCH_KEY: FETCH_VERSION, VOTE_KEY: 2}


def answer(call: PeerCall, error: int, *, of_partition: bool) -> None:
    """Answer a Fetch or a Vote with this error, at top level or for the partition."""
    make = fetch_answer if call.api_key == FETCH_KEY else vote_answer
    inside, outside = (error, 0) if of_partition else (0, error)
    version = VERSIONS[call.api_key]
    call.responded(
        version, encode(make(inside, -1, top_level=outside), version), 0, ("two", 1), True
    )


@pytest.mark.parametrize("of_partition", [False, True])
def test_a_peer_that_denies_the_right_to_ask_is_asked_again(of_partition: bool) -> None:
    """For a minute: votes and fetches go on, nothing ends, and the words are for /status."""
    sender = Sender(Voter(key(1), at("here")), Voter(key(2), at("two")), Voter(key(3), at("three")))
    node, asked = sender.node, Counter[int]()
    now_ms = 0
    # What it asked when it started went nowhere.
    for lost in list(node.core.requests.in_flight):
        node.step(RequestFailed(request_id=lost, reason="no link yet"), now_ms)

    def carry_out(effects: list[Effect]) -> None:
        assert not any(isinstance(effect, Halt) for effect in effects)
        for effect in effects:
            if isinstance(effect, SendRequest):
                sender.outbound.send_request(effect)

    while now_ms < A_MINUTE_MS:
        deadline_ms = node.next_deadline_ms()
        assert deadline_ms is not None, "it goes on by itself"
        now_ms = max(now_ms, deadline_ms)
        carry_out(node.step(TimerFired(), now_ms))
        carry_out(node.step(WriteCompleted(node.core.writes.last), now_ms))
        for link in sender.links:
            while link.calls:
                call = link.calls.pop()
                asked[call.api_key] += 1
                answer(call, DENIED, of_partition=of_partition)
        while sender.events:
            carry_out(node.step(sender.events.pop(0), now_ms))
    assert asked[FETCH_KEY] > 5
    assert asked[VOTE_KEY] > 5
    said = sender.outbound.links.warnings()
    assert {text.partition(" refuses")[0] for text in said} >= {"node 2", "node 3"}
    assert all("CLUSTER_AUTHORIZATION_FAILED" in text for text in said)


def test_a_peer_that_answers_again_is_not_complained_of() -> None:
    sender = Sender(Voter(key(1), at("here")), Voter(key(2), at("two")))
    for error, warnings in ((DENIED, 1), (0, 0)):
        sender.outbound.links.note_response(
            "node 2", (error and "CLUSTER_AUTHORIZATION_FAILED") or None, Address("two", 1), "c"
        )
        assert len(sender.outbound.links.warnings()) == warnings
