"""How the links to other nodes end with a node."""

from __future__ import annotations

from typing import cast

import pytest

from quorumd.raft.types import Voter
from quorumd.server.net.inbound_request import InboundRequest, RequestConnection
from quorumd.server.translate.voter_changes import REMOVE_VOTER
from tests.server.test_outbound import FETCH, FakeLink, Sender, at, key
from tests.support.serving import run


def test_no_link_outlives_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor one on which a change is waited for that a client has asked for."""
    sender = Sender(Voter(key(1), at("here")), Voter(key(2), at("two")))
    sender.lead(key(2), "two")
    closed: list[FakeLink] = []

    async def close(link: FakeLink) -> None:
        closed.append(link)

    monkeypatch.setattr(FakeLink, "close", close)
    body = (b"header|body", len(b"header|"), 0)
    change = InboundRequest(cast(RequestConnection, None), REMOVE_VOTER, 0, 1, *body)
    sender.outbound.forward(change, lambda: None, wait_ms=1000)
    sender.link(key(2))
    sender.ask(key(2), FETCH)
    assert len(sender.links) == 3

    async def end() -> None:
        await sender.outbound.close()

    run(end())
    assert {id(link) for link in closed} == {id(link) for link in sender.links}
