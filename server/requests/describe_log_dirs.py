"""DescribeLogDirs: the one directory of a node, for `kafka-log-dirs`. Source: KIP-113, KIP-827."""

from __future__ import annotations

from quorumd.server.model.topic import TopicPartition
from quorumd.wire.messages.describe_log_dirs import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResponsePartition,
    DescribeLogDirsResponseResult,
    DescribeLogDirsResponseTopic,
)


def describe_log_dirs(
    request: DescribeLogDirsRequest, log_dir: str, topic: TopicPartition, size_bytes: int
) -> DescribeLogDirsResponse:
    """Size of the partition's log, if it was asked for. The disk is not asked: `/metrics` has its size."""
    is_asked = request.topics is None or any(
        asked.topic == topic.name and topic.index in asked.partitions for asked in request.topics
    )
    partition = DescribeLogDirsResponsePartition(
        partition_index=topic.index, partition_size=size_bytes
    )
    found = DescribeLogDirsResponseTopic(name=topic.name, partitions=(partition,))
    result = DescribeLogDirsResponseResult(log_dir=log_dir, topics=(found,) if is_asked else ())
    return DescribeLogDirsResponse(results=(result,))
