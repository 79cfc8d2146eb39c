"""How the links to other nodes end: with a node, or with the leader that was asked for a change."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import cast
from uuid import UUID

import pytest

from quorumd.raft.types import ReplicaKey, Voter
from quorumd.server.model.peer_calls import CallbackCall, PeerListener
from quorumd.server.model.runtime import Runtime
from quorumd.server.net.inbound_request import InboundRequest, RequestConnection
from quorumd.server.peers.client_changes import ClientChanges
from quorumd.server.translate.voter_changes import REMOVE_VOTER
from tests.server.test_outbound import FETCH, FakeLink, Sender, at, key
from tests.support.serving import run


def change() -> InboundRequest:
    body = (b"header|body", len(b"header|"), 0)
    return InboundRequest(cast(RequestConnection, None), REMOVE_VOTER, 0, 1, *body)


def test_no_link_outlives_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor one on which a change is waited for that a client has asked for."""
    sender = Sender(Voter(key(1), at("here")), Voter(key(2), at("two")))
    sender.lead(key(2), "two")
    closed: list[FakeLink] = []

    async def close(link: FakeLink) -> None:
        closed.append(link)

    monkeypatch.setattr(FakeLink, "close", close)
    sender.outbound.forward(change(), lambda: None, wait_ms=1000)
    sender.link(key(2))
    sender.ask(key(2), FETCH)
    assert len(sender.links) == 3

    async def end() -> None:
        await sender.outbound.close()

    run(end())
    assert {id(link) for link in closed} == {id(link) for link in sender.links}


class Link(FakeLink):
    """What waits on it fails with it, as on a real one."""

    def discard(self) -> None:
        if not self.is_discarded:
            self.is_discarded = True
            for call in self.calls:
                call.failed("the link is closed", None)


def test_a_leader_that_was_followed_by_another_has_some_time_to_respond_to_a_change() -> None:
    """It may have made the change; or it hangs, and its clients would wait for minutes."""
    links: list[Link] = []
    heard: list[tuple[str, str]] = []

    def open_channel(leader: ReplicaKey) -> Link:
        links.append(Link(addresses=list, listener=cast(PeerListener, None)))
        return links[-1]

    timers: list[tuple[float, Callable[[], None]]] = []
    clock = SimpleNamespace(
        monotonic_s=lambda: 100.0, call_at=lambda at_s, call: timers.append((at_s, call))
    )
    changes = ClientChanges(open_channel, cast(Runtime, clock), grace_ms=2000)

    def ask(name: str, leader: ReplicaKey) -> None:
        call = CallbackCall(
            api_key=REMOVE_VOTER,
            max_version=0,
            build=lambda version, correlation_id: b"",
            responded=lambda *response: heard.append((name, "response")),
            failed=lambda reason, error: heard.append((name, reason)),
            timeout_ms=60_000,
        )
        changes.ask(leader, call)

    ask("done", key(2))
    ask("hangs", key(2))
    ask("of the next", key(3))
    changes.on_leader(key(3))
    changes.on_leader(key(3))
    assert not heard
    links[0].calls.pop().responded(0, b"", 0, ("two", 1), True)
    assert {at_s for at_s, _ in timers} == {102.0}
    for _, call in timers:
        call()
    assert heard == [("done", "response"), ("hangs", "the link is closed")]
    assert [link.is_discarded for link in links] == [True, True, False]
    assert changes.take_channels() == [links[2]]


@pytest.mark.parametrize(("asked", "count"), [(key(3), 0), (ReplicaKey(3, UUID(int=99)), 1)])
def test_another_disk_under_the_id_of_the_leader_is_another_leader(
    asked: ReplicaKey, count: int
) -> None:
    timers: list[float] = []
    clock = SimpleNamespace(
        monotonic_s=lambda: 100.0, call_at=lambda at_s, call: timers.append(at_s)
    )
    changes = ClientChanges(
        lambda leader: Link(addresses=list, listener=cast(PeerListener, None)),
        cast(Runtime, clock),
        grace_ms=2000,
    )
    call = CallbackCall(
        api_key=REMOVE_VOTER,
        max_version=0,
        build=lambda version, correlation_id: b"",
        responded=lambda *response: None,
        failed=lambda reason, error: None,
        timeout_ms=60_000,
    )
    changes.ask(asked, call)
    changes.on_leader(key(3))
    assert timers == [102.0] * count
