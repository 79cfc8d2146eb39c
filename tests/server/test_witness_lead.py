"""What a witness asks Kafka's leader of the other voters, and what its metric says then."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

import pytest

from quorumd.raft.node import RaftNode
from quorumd.raft.roles import Role
from quorumd.server.model.metrics import Metrics
from quorumd.server.model.runtime import Runtime
from quorumd.server.model.topic import METADATA
from quorumd.server.partition.witness_lead import FETCH_TIMEOUTS, VERSION, WitnessLead
from quorumd.wire.codec import encode
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.describe_quorum import (
    DescribeQuorumResponse,
    DescribeQuorumResponsePartition,
    DescribeQuorumResponseReplica,
    DescribeQuorumResponseTopic,
)
from tests.raft.harness import follower
from tests.server.leader_questions import NodeClock, Question, Questions

EPOCH = 3


def described(
    high_watermark: int, epoch: int = EPOCH, error: ErrorCode = ErrorCode.NONE, **ends: int
) -> bytes:
    """The leader's response: replica 2 leads, this one is replica 1; `ends` are of `v1`, `v2` and so on."""
    partition = DescribeQuorumResponsePartition(
        partition_index=0,
        error_code=error,
        leader_id=2,
        leader_epoch=epoch,
        high_watermark=high_watermark,
        current_voters=tuple(
            DescribeQuorumResponseReplica(replica_id=int(name[1:]), log_end_offset=end)
            for name, end in ends.items()
        ),
    )
    topic = DescribeQuorumResponseTopic(topic_name=METADATA.name, partitions=(partition,))
    return encode(DescribeQuorumResponse(topics=(topic,)), VERSION)


@dataclass
class Witness:
    """A witness that has just found its leader."""

    clock: NodeClock = field(default_factory=NodeClock)
    metrics: Metrics = field(default_factory=Metrics)
    asked: Questions = field(default_factory=lambda: Questions(VERSION))

    def __post_init__(self) -> None:
        bench = follower(4, is_witness=True, is_kafka_log=True)
        assert (bench.node.role, bench.node.epoch) == (Role.FOLLOWER, EPOCH)
        self.interval_s = FETCH_TIMEOUTS * bench.node.config.fetch_timeout_ms / 1000
        runtime = cast(Runtime, self.clock)
        self.lead = WitnessLead(bench.node, self.asked, runtime, self.metrics, METADATA)
        self.lead.on_role()

    def asks(self) -> Question:
        """What is to be called with the response to the next question, or without one."""
        self.clock.move_to(self.clock.now + self.interval_s)
        return self.asked.pop()

    def hears(self, response: bytes) -> int:
        """What the metric says after this response to the next question."""
        self.asks().responded(response, 0)
        return self.metrics.witness_ahead_records


def test_what_was_committed_at_the_last_question_and_no_other_voter_has_now_is_told() -> None:
    witness = Witness()
    assert witness.hears(described(10, v1=10, v2=10, v3=4, v4=-1)) == 0, "it may be on its way"
    assert witness.hears(described(20, v1=20, v2=20, v3=4, v4=-1)) == 6
    assert witness.hears(described(30, v1=30, v2=30, v3=4, v4=19)) == 1, "one other has it"
    assert witness.hears(described(30, v1=30, v2=30, v3=4, v4=30)) == 0
    assert witness.hears(described(30, v1=30, v2=30)) == 0, "there are no others"


def test_where_nobody_else_has_anything_all_that_is_committed_is_ahead() -> None:
    witness = Witness()
    witness.hears(described(10, v1=10, v2=10, v3=-1))
    assert witness.hears(described(10, v1=10, v2=10, v3=-1)) == 10


def test_who_follows_no_more_asks_nobody() -> None:
    witness = Witness()
    witness.lead._node = cast(RaftNode, SimpleNamespace(role=Role.PROSPECTIVE))
    witness.clock.move_to(witness.clock.now + witness.interval_s)
    assert not witness.asked


def test_a_new_leader_begins_without_a_figure() -> None:
    witness = Witness()
    witness.hears(described(10, v1=10, v2=10, v3=4))
    assert witness.hears(described(10, v1=10, v2=10, v3=4)) == 6
    witness.lead.on_role()
    assert witness.metrics.witness_ahead_records == 0
    assert witness.hears(described(10, v1=10, v2=10, v3=4)) == 0
    assert witness.hears(described(10, v1=10, v2=10, v3=4)) == 6


@pytest.mark.parametrize(
    "response",
    [
        described(99, epoch=EPOCH - 1, v1=99, v2=99, v3=4),
        described(99, error=ErrorCode.NOT_LEADER_OR_FOLLOWER, v1=99, v2=99, v3=4),
        b"no response",
    ],
    ids=["of a former epoch", "an error", "no response"],
)
def test_what_is_not_this_leaders_word_changes_nothing_and_is_asked_again(response: bytes) -> None:
    witness = Witness()
    witness.hears(described(10, v1=10, v2=10, v3=4))
    assert witness.hears(response) == 0
    assert witness.hears(described(10, v1=10, v2=10, v3=4)) == 6


def test_without_a_response_it_asks_again_until_it_is_closed() -> None:
    witness = Witness()
    witness.asks().failed("no connection")
    failed = witness.asks().failed
    witness.lead.close()
    failed("no connection")
    witness.clock.move_to(witness.clock.now + witness.interval_s)
    assert not witness.asked
