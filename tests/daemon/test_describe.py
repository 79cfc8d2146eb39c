"""Whoever is asked for the state of the quorum, the answer is the leader's."""

from __future__ import annotations

from quorumd.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartition,
    DescribeQuorumRequestTopic,
    DescribeQuorumResponse,
)
from tests.support.live_cluster import TOPIC, Cluster
from tests.support.raw_client import RawClient

KEY = 55
REQUEST = DescribeQuorumRequest(
    topics=(
        DescribeQuorumRequestTopic(
            topic_name=TOPIC, partitions=(DescribeQuorumRequestPartition(partition_index=0),)
        ),
    )
)


def test_every_node_answers_with_what_the_leader_knows_in_every_version(quorum: Cluster) -> None:
    leader = quorum.wait_leader()
    for node in quorum.running():
        for version in range(3):
            with RawClient(quorum.port(node)) as client:
                answer = client.ask(KEY, version, REQUEST, DescribeQuorumResponse)
            (partition,) = answer.topics[0].partitions
            assert (partition.error_code, partition.leader_id) == (0, leader), node
            assert len(partition.current_voters) == 3
