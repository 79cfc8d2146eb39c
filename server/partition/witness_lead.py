"""Lead of a witness over all voters but Kafka's leader, asked of that leader while it lives.

Records that only the leader and the witness hold are safe as long as both of them are: the metrics of
Kafka's nodes show a voter that is down, and not that records depend on the witness. Source: KIP-595,
DescribeQuorum.
"""

from __future__ import annotations

from typing import Final

from quorumd.raft.node import RaftNode
from quorumd.raft.roles import Role
from quorumd.server.model.metrics import Metrics
from quorumd.server.model.peer_calls import AskLeader
from quorumd.server.model.runtime import Runtime
from quorumd.server.model.topic import TopicPartition
from quorumd.server.partition.runtime_timer import RuntimeTimer
from quorumd.wire.codec import decode
from quorumd.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartition,
    DescribeQuorumRequestTopic,
    DescribeQuorumResponse,
    DescribeQuorumResponsePartition,
)

VERSION: Final = 0
FETCH_TIMEOUTS: Final = 2
"""Between two requests. Records committed at one of them, other live voters have at the next."""


class WitnessLead:
    """Keeps `Metrics.witness_ahead_records`, as long as this witness of a Kafka log follows a leader."""

    def __init__(
        self,
        node: RaftNode,
        ask_leader: AskLeader,
        runtime: Runtime,
        metrics: Metrics,
        topic: TopicPartition,
    ) -> None:
        self._is_wanted = node.config.is_kafka_log and node.config.is_witness
        self._committed: int | None = None
        self._node = node
        self._ask_leader = ask_leader
        self._runtime = runtime
        self._metrics = metrics
        self._timer = RuntimeTimer(runtime, self._ask)
        partition = DescribeQuorumRequestPartition(partition_index=topic.index)
        asked = DescribeQuorumRequestTopic(topic_name=topic.name, partitions=(partition,))
        self._request = DescribeQuorumRequest(topics=(asked,))

    def on_role(self) -> None:
        """A role, or a leader, is new: the progress of the others is not known."""
        self._metrics.witness_ahead_records = 0
        self._committed = None
        self._ask_later()

    def close(self) -> None:
        """Ask no more."""
        self._is_wanted = False
        self._timer.cancel()

    def _ask_later(self) -> None:
        if self._is_wanted and self._node.role is Role.FOLLOWER:
            wait_ms = FETCH_TIMEOUTS * self._node.config.fetch_timeout_ms
            self._timer.set(self._runtime.monotonic_ms() + wait_ms)

    def _ask(self) -> None:
        if self._node.role is Role.FOLLOWER:
            self._ask_leader(
                self._request, VERSION, self._responded, lambda reason: self._ask_later()
            )

    def _responded(self, frame: bytes, body_at: int) -> None:
        self._ask_later()
        try:
            response = decode(DescribeQuorumResponse, VERSION, frame, body_at)
        except ValueError:
            return
        for topic in response.topics:
            for partition in topic.partitions:
                if not partition.error_code and partition.leader_epoch == self._node.epoch:
                    self._note(partition)

    def _note(self, described: DescribeQuorumResponsePartition) -> None:
        """Compare the high watermark of the last response with the log ends of the others now."""
        known = (described.leader_id, self._node.local.id)
        others = [
            voter.log_end_offset
            for voter in described.current_voters
            if voter.replica_id not in known
        ]
        committed, self._committed = self._committed, described.high_watermark
        if committed is not None and others:
            missing = committed - max(0, *others)
            self._metrics.witness_ahead_records = max(0, missing)
