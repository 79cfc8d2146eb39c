"""DescribeLogDirs: what a node keeps in which directory (KIP-113, 827).

Source: Apache Kafka 4.4, DescribeLogDirsRequest.json and DescribeLogDirsResponse.json.
"""

from __future__ import annotations

from quorumd.wire.schema import BOOL, INT16, INT32, INT64, STRING, Message, Struct, array, field


class DescribeLogDirsRequestTopic(Struct):
    topic: str = field(STRING)
    partitions: tuple[int, ...] = array(INT32)


class DescribeLogDirsRequest(Message, api_key=35, versions="1-5", flexible="2+"):
    topics: tuple[DescribeLogDirsRequestTopic, ...] | None = array(
        DescribeLogDirsRequestTopic, nullable="0+"
    )


class DescribeLogDirsResponsePartition(Struct):
    partition_index: int = field(INT32)
    partition_size: int = field(INT64)
    offset_lag: int = field(INT64)
    is_future_key: bool = field(BOOL)


class DescribeLogDirsResponseTopic(Struct):
    name: str = field(STRING)
    partitions: tuple[DescribeLogDirsResponsePartition, ...] = array(
        DescribeLogDirsResponsePartition
    )


class DescribeLogDirsResponseResult(Struct):
    """`total_bytes` and `usable_bytes` are of the volume, -1 if unknown."""

    error_code: int = field(INT16)
    log_dir: str = field(STRING)
    topics: tuple[DescribeLogDirsResponseTopic, ...] = array(DescribeLogDirsResponseTopic)
    total_bytes: int = field(INT64, versions="4+", default=-1, ignorable=True)
    usable_bytes: int = field(INT64, versions="4+", default=-1, ignorable=True)
    is_cordoned: bool = field(BOOL, versions="5+", ignorable=True)


class DescribeLogDirsResponse(Message, api_key=35, versions="1-5", flexible="2+"):
    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16, versions="3+", ignorable=True)
    results: tuple[DescribeLogDirsResponseResult, ...] = array(DescribeLogDirsResponseResult)
