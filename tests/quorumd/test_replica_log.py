"""The log of one replica: what it is asked, and what it may respond."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from quorumd.client.client import EARLIEST, LATEST
from quorumd.client.connection import ClientConnection
from quorumd.client.errors import ConnectionFailed
from quorumd.client.replica_log import DEBUGGING_CONSUMER, ReplicaBounds, ReplicaLog
from quorumd.wire.messages.list_offsets import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsResponsePartition,
    ListOffsetsResponseTopic,
)
from quorumd.wire.metadata_topic import TOPIC


class Node:
    """A connection to a node whose log has these bounds."""

    def __init__(self, bounds: dict[int, int]) -> None:
        self.bounds = bounds
        self.asked: list[ListOffsetsRequest] = []

    async def request(
        self, message: ListOffsetsRequest, _: type[ListOffsetsResponse], *, timeout_s: float
    ) -> ListOffsetsResponse:
        assert timeout_s == 2.5
        self.asked.append(message)
        partition = ListOffsetsResponsePartition(
            partition_index=0,
            error_code=0,
            timestamp=-1,
            offset=self.bounds[message.topics[0].partitions[0].timestamp],
            leader_epoch=4,
        )
        topic = ListOffsetsResponseTopic(name=TOPIC, partitions=(partition,))
        return ListOffsetsResponse(throttle_time_ms=0, topics=(topic,))


def bounds_of(node: Node) -> ReplicaBounds:
    return asyncio.run(ReplicaLog(cast(ClientConnection, node), 2.5).bounds())


def test_it_is_asked_as_kafkas_debugging_consumer_asks_with_its_time_in_ms() -> None:
    node = Node({EARLIEST: 3, LATEST: 70})
    assert bounds_of(node) == (3, 70, 4)
    assert [(each.replica_id, each.timeout_ms) for each in node.asked] == [
        (DEBUGGING_CONSUMER, 2500),
        (DEBUGGING_CONSUMER, 2500),
    ]


@pytest.mark.parametrize("bounds", [{EARLIEST: -1, LATEST: 70}, {EARLIEST: 3, LATEST: -1}])
def test_an_offset_that_no_log_has_is_refused(bounds: dict[int, int]) -> None:
    with pytest.raises(ConnectionFailed, match="begins or ends at -1"):
        bounds_of(Node(bounds))


def test_a_log_that_begins_at_0_and_has_nothing_is_one() -> None:
    assert bounds_of(Node({EARLIEST: 0, LATEST: 0})) == (0, 0, 4)
