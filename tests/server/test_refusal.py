"""Requests that are refused as a whole: from which size on a Produce request is too large."""

from __future__ import annotations

from typing import cast

import pytest

from quorumd.config.errors import BadValue
from quorumd.config.keys import KEYS
from quorumd.server.requests.refusal import too_large
from quorumd.wire.codec import encode
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.framing import HEAD_BYTES
from quorumd.wire.messages.produce import (
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
)
from quorumd.wire.request_limits import REQUEST_LIMITS, frame_bytes_max

PRODUCE, FETCH = 0, 1
MOST = frame_bytes_max(PRODUCE) - HEAD_BYTES
"""So many bytes of records have room in a request, whatever else is in its beginning."""


def beginning(size_bytes: int, acks: int = 1) -> bytes:
    """The beginning of a request of version 8 that announces so many bytes of records."""
    partition = ProduceRequestPartition(index=0, records=b"records")
    topic = ProduceRequestTopic(name="t", partition_data=(partition,))
    body = encode(ProduceRequest(acks=acks, timeout_ms=1, topic_data=(topic,)), 8)
    length = (7).to_bytes(4, "big") + b"records"
    assert body.endswith(length)
    return body.removesuffix(length) + size_bytes.to_bytes(4, "big")


@pytest.mark.parametrize(("size_bytes", "is_refused"), [(MOST, False), (MOST + 1, True)])
def test_what_has_room_in_a_request_is_not_too_large(size_bytes: int, is_refused: bool) -> None:
    found = too_large(PRODUCE, 8, beginning(size_bytes), 0)
    assert (found is not None) is is_refused
    if found is not None:
        (topic,) = found.responses
        (partition,) = topic.partition_responses
        assert partition.error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert (topic.name, partition.index) == ("t", 0)


def test_who_wants_no_response_or_asks_for_something_else_gets_none() -> None:
    assert too_large(PRODUCE, 8, beginning(MOST + 1, acks=0), 0) is None
    assert too_large(FETCH, 8, beginning(MOST + 1), 0) is None


def test_a_request_may_have_the_largest_batch_that_can_be_configured_twice() -> None:
    largest = KEYS["log.max.batch.bytes"].parse(str(8 << 20))
    with pytest.raises(BadValue):
        KEYS["log.max.batch.bytes"].parse(str((8 << 20) + 1))
    assert REQUEST_LIMITS[PRODUCE].size_bytes == 2 * cast(int, largest)
