"""A client's request on its way to the leader."""

from __future__ import annotations

from typing import cast

from quorumd.server.net.inbound_request import InboundRequest, RequestConnection
from quorumd.server.peers.forwarded_request import ForwardedRequest

REMOVE_VOTER = 81


def test_a_request_that_loses_its_frame_while_it_waits_is_forwarded_whole() -> None:
    frame = b"header|body"
    request = InboundRequest(
        cast(RequestConnection, None), REMOVE_VOTER, 0, 1, frame, frame.index(b"b"), 0
    )
    forwarded = ForwardedRequest(request, "node", None)
    request.frame = b""  # its connection is gone
    assert forwarded.frame(0, 5).endswith(b"node\0body")
    assert forwarded.is_sent
