"""What the connections of a node share: why one is closed, and what the log says of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from quorumd.server.model.logs import RateLimit
from quorumd.server.net.connection_state import CloseReason
from quorumd.wire.errors import MalformedMessage, UnsupportedVersion
from tests.server.bare_connection import At


@pytest.fixture
def at() -> Iterator[At]:
    loop = asyncio.new_event_loop()
    yield At(loop)
    loop.close()


def test_a_version_that_is_not_known_is_counted_by_name_and_other_bytes_are_not(at: At) -> None:
    group = at.group
    assert group.closing_reason(MalformedMessage("cut short")) is CloseReason.MALFORMED
    assert group.metrics.unknown == {}
    error = UnsupportedVersion("api 99, version 7")
    assert group.closing_reason(error) is CloseReason.UNSUPPORTED
    assert dict(group.metrics.unknown) == {"request: api 99, version 7": 1}


def test_the_log_says_how_many_lines_it_has_left_out(
    at: At, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter((0, None, 7))
    monkeypatch.setattr(RateLimit, "take", lambda self: next(answers))
    with caplog.at_level("WARNING"):
        for _ in range(3):
            at.group.log(at.connection, "connection closed", why="a test")
    fields = [each.__dict__["quorumd_fields"] for each in caplog.records]
    assert [each.get("lines_suppressed") for each in fields] == [None, 7]
