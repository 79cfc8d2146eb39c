"""DescribeLogDirs: the one directory of a node, and the one partition if it was asked for."""

from __future__ import annotations

import pytest

from quorumd.server.model.topic import METADATA
from quorumd.server.requests.describe_log_dirs import describe_log_dirs
from quorumd.wire.codec import decode, encode
from quorumd.wire.messages.describe_log_dirs import (
    DescribeLogDirsRequest,
    DescribeLogDirsRequestTopic,
    DescribeLogDirsResponse,
)


@pytest.mark.parametrize("version", range(1, 6))
@pytest.mark.parametrize(
    ("topic", "partitions", "is_found"),
    [
        (None, (), True),
        (METADATA.name, (0,), True),
        (METADATA.name, (1, 0), True),
        (METADATA.name, (1,), False),
        ("other", (0,), False),
    ],
)
def test_the_log_is_described_if_it_was_asked_for(
    version: int, topic: str | None, partitions: tuple[int, ...], is_found: bool
) -> None:
    asked = (
        () if topic is None else (DescribeLogDirsRequestTopic(topic=topic, partitions=partitions),)
    )
    request = DescribeLogDirsRequest(topics=None if topic is None else asked)
    answer = describe_log_dirs(request, "/var/lib/quorumd", METADATA, 4711)
    (result,) = decode(DescribeLogDirsResponse, version, encode(answer, version)).results
    assert (result.error_code, result.log_dir) == (0, "/var/lib/quorumd")
    assert (result.total_bytes, result.usable_bytes) == (-1, -1)
    rows = [
        (found.name, row.partition_index, row.partition_size, row.offset_lag, row.is_future_key)
        for found in result.topics
        for row in found.partitions
    ]
    assert rows == ([(METADATA.name, 0, 4711, 0, False)] if is_found else [])
