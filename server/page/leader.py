"""The leader's report of the quorum: it alone knows how far the others are, and what is waited for.

This node asks with DescribeQuorum, over its own connection to the leader, for requests of the page, and at
most once in ASK_AGAIN_S however many there are. On the leader the same report is made without a request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from quorumd.server.model.topic import METADATA
from quorumd.server.page.source import PageSource
from quorumd.server.requests.describe_quorum import describe_quorum
from quorumd.wire.codec import decode
from quorumd.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartition,
    DescribeQuorumRequestTopic,
    DescribeQuorumResponse,
    DescribeQuorumResponseNode,
    DescribeQuorumResponsePartition,
)

ASK_AGAIN_S: Final = 0.5
RESPONSE_WAIT_S: Final = 0.4
"""A request for the page waits no longer: an older response will do."""
VERSION: Final = 2

_REQUEST: Final = DescribeQuorumRequest(
    topics=(
        DescribeQuorumRequestTopic(
            topic_name=METADATA.name,
            partitions=(DescribeQuorumRequestPartition(partition_index=METADATA.index),),
        ),
    )
)


class LeaderReport(NamedTuple):
    """The newest response of the present leader, if there is one, and why there is no newer one.

    What is older than two fetch timeouts is no response any more.
    """

    partition: DescribeQuorumResponsePartition | None
    nodes: tuple[DescribeQuorumResponseNode, ...]
    age_s: float
    problem: str


class LeaderView:
    """Belongs to the event loop's thread."""

    def __init__(self, source: PageSource, clock_s: Callable[[], float]) -> None:
        """`clock_s` never goes back."""
        self._source = source
        self._view = source.view
        self._clock_s = clock_s
        self._asking: asyncio.Future[None] | None = None
        self._asked_s = -ASK_AGAIN_S
        self._asked: tuple[int, int] | None = None
        self._response: (
            tuple[DescribeQuorumResponsePartition, tuple[DescribeQuorumResponseNode, ...]] | None
        ) = None
        self._responded_s = 0.0
        self._problem = ""

    async def report(self) -> LeaderReport:
        """Never fails, and takes RESPONSE_WAIT_S at most."""
        view, leader_id = self._view, self._source.leader_id()
        if view.is_leader:
            work = self._source.snapshot_work()
            self._take(describe_quorum(view, _REQUEST, VERSION, "", is_own=True, work=work))
        elif leader_id is not None:
            self._begin_if_due((leader_id, view.leader_epoch))
            if self._asking is not None:
                await asyncio.wait([self._asking], timeout=RESPONSE_WAIT_S)
        return self._latest_report()

    def _latest_report(self) -> LeaderReport:
        leader_id, response = self._source.leader_id(), self._response
        if leader_id is None:
            return LeaderReport(None, (), 0.0, "")
        age_s = self._clock_s() - self._responded_s
        if response is not None and age_s * 1000 < 2 * self._source.fetch_timeout_ms:
            partition, nodes = response
            said_by = partition.leader_id, partition.leader_epoch
            if said_by == (leader_id, self._view.leader_epoch):
                return LeaderReport(partition, nodes, age_s, self._problem)
        return LeaderReport(None, (), 0.0, self._problem)

    def _begin_if_due(self, leader: tuple[int, int]) -> None:
        """A new leader is asked at once, though a request to the last one may be in flight."""
        now_s = self._clock_s()
        is_busy = self._asking is not None or now_s < self._asked_s + ASK_AGAIN_S
        if leader == self._asked and is_busy:
            return
        self._asked, self._asked_s, self._problem = leader, now_s, ""
        asking = self._asking = asyncio.get_running_loop().create_future()

        def end(problem: str) -> None:
            asking.set_result(None)
            if self._asking is asking:
                self._asking, self._problem = None, problem

        def responded(frame: bytes, body_at: int) -> None:
            try:
                problem = self._take(decode(DescribeQuorumResponse, VERSION, frame, body_at))
            except ValueError as error:
                problem = f"the leader's response is invalid: {error}"
            end(problem)

        self._source.ask_leader(_REQUEST, VERSION, responded, end)

    def _take(self, response: DescribeQuorumResponse) -> str:
        """Keep a response, or say why not."""
        partitions = [part for topic in response.topics for part in topic.partitions]
        if len(partitions) != 1:
            return f"the leader describes {len(partitions)} partitions, not one"
        (partition,) = partitions
        if partition.error_code:
            return partition.error_message or f"error {partition.error_code}"
        self._response = partition, response.nodes
        self._responded_s, self._problem = self._clock_s(), ""
        return ""
