"""A request that fails ends its connection, behind the responses to earlier ones if that is possible."""

from __future__ import annotations

from typing import cast

import pytest

from quorumd.server.net.connection_state import CloseReason
from quorumd.server.net.inbound_request import NO_KEY, InboundRequest, RequestConnection, head_of
from quorumd.wire.errors import MalformedMessage


class Connection:
    """How it is closed, and why."""

    peer = "a test"

    def __init__(self) -> None:
        self.closed: list[tuple[str, CloseReason]] = []

    def send(self, request: InboundRequest, buffers: object) -> None: ...

    def close_behind(self, request: InboundRequest, closed: CloseReason, reason: str) -> None:
        self.closed.append(("behind", closed))

    def close(self, closed: CloseReason, reason: str) -> None:
        self.closed.append(("now", closed))


@pytest.mark.parametrize(
    ("error", "closed"),
    [
        (MalformedMessage("cut short"), CloseReason.MALFORMED),
        (KeyError("a bug"), CloseReason.FAILED),
    ],
)
@pytest.mark.parametrize("has_response", [False, True])
def test_a_request_that_fails_ends_its_connection(
    error: Exception, closed: CloseReason, has_response: bool
) -> None:
    connection = Connection()
    request = InboundRequest(cast(RequestConnection, connection), 3, 9, 1, b"", 0, 0)
    if has_response:
        request.respond((b"response",))
    request.fail(error)
    assert connection.closed == [("now" if has_response else "behind", closed)]


def test_a_head_of_just_its_size_is_read_and_a_shorter_one_is_none() -> None:
    frame = b"\0\x12\0\4\0\0\0\7"
    assert head_of(frame) == (18, 4, 7)
    assert head_of(frame[:-1]) == (NO_KEY, NO_KEY, 0)
