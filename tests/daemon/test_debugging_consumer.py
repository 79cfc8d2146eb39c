"""Replica -2 at live nodes under load: each shows its own log, never more than is committed, to anybody."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quorumd.server.model.topic import METADATA
from quorumd.wire.batch_header import BatchHeader, iter_headers
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.fetch import (
    FetchRequest,
    FetchRequestPartition,
    FetchRequestReplicaState,
    FetchRequestTopic,
    FetchResponse,
    FetchResponsePartition,
)
from quorumd.wire.messages.list_offsets import (
    ListOffsetsRequest,
    ListOffsetsRequestPartition,
    ListOffsetsRequestTopic,
    ListOffsetsResponse,
)
from tests.support.live_cluster import TOPIC, Cluster, running_cluster
from tests.support.live_snapshots import put
from tests.support.load import Load
from tests.support.raw_client import RawClient

FETCH, LIST_OFFSETS = 1, 2
DEBUGGING = -2
OFFSETS = (-(2**63), -2, -1, 2**31, 2**40, 2**63 - 1)


def asked(offset: int, version: int, partition_bytes: int, **fields: Any) -> FetchRequest:
    partition = FetchRequestPartition(
        fetch_offset=offset,
        partition_max_bytes=partition_bytes,
        last_fetched_epoch=fields.pop("last_fetched_epoch", -1),
    )
    topic = FetchRequestTopic(
        topic=TOPIC if version < 13 else "", topic_id=METADATA.topic_id, partitions=(partition,)
    )
    if version < 15:
        fields["replica_id"] = DEBUGGING
    else:
        fields["replica_state"] = FetchRequestReplicaState(replica_id=DEBUGGING)
    values = {"max_wait_ms": 60_000, "min_bytes": 1, "topics": (topic,), **fields}
    return FetchRequest(**values)


def fetch(
    client: RawClient,
    offset: int,
    version: int = 17,
    partition_bytes: int = 2**31 - 1,
    **fields: Any,
) -> FetchResponsePartition:
    message = asked(offset, version, partition_bytes, **fields)
    answer = client.ask(FETCH, version, message, FetchResponse)
    assert answer.error_code == 0
    return answer.responses[0].partitions[0]


def headers(row: FetchResponsePartition) -> list[BatchHeader]:
    return [header for _, header in iter_headers(row.records or b"")]


def bound(client: RawClient, timestamp: int) -> int:
    partition = ListOffsetsRequestPartition(timestamp=timestamp)
    topic = ListOffsetsRequestTopic(name=TOPIC, partitions=(partition,))
    message = ListOffsetsRequest(replica_id=DEBUGGING, topics=(topic,))
    answer = client.ask(LIST_OFFSETS, 7, message, ListOffsetsResponse)
    row = answer.topics[0].partitions[0]
    assert row.error_code == 0
    return row.offset


def whole_log(client: RawClient, end: int) -> bytes:
    """Everything below `end`, at most; in small pieces."""
    data, offset = b"", 0
    while offset < end:
        row = fetch(client, offset, partition_bytes=20_000)
        assert row.error_code == 0
        for position, header in iter_headers(row.records or b""):
            assert header.next_offset <= row.high_watermark
            assert header.base_offset == offset
            if header.base_offset < end:
                assert row.records is not None
                data += row.records[position : position + header.size_bytes]
            offset = header.next_offset
    return data


@pytest.mark.usefixtures("harmless")
def test_every_node_shows_its_own_log_up_to_what_it_knows_to_be_committed(
    quorum: Cluster, load: Load
) -> None:
    load.wait_progress()
    seen = []
    for node in quorum.ids:
        with RawClient(quorum.port(node)) as client:
            seen.append((bound(client, -2), bound(client, -1)))
    end = min(each[1] for each in seen)
    assert end > 0
    assert {each[0] for each in seen} == {0}
    logs = []
    for node in quorum.ids:
        with RawClient(quorum.port(node)) as client:
            logs.append(whole_log(client, end))
    assert len(set(logs)) == 1
    assert len(logs[0]) > 1000


@pytest.mark.usefixtures("harmless", "load")
@pytest.mark.parametrize("version", [4, 11, 12, 13, 14, 15, 17, 18])
def test_hostile_values_are_refused_and_harm_nobody(quorum: Cluster, version: int) -> None:
    for node in quorum.ids:
        with RawClient(quorum.port(node)) as client:
            end = bound(client, -1)
            for offset in OFFSETS:
                row = fetch(client, offset, version)
                assert row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
                assert not row.records
            for size in (-1, -(2**31)):
                assert fetch(client, 0, version, size).error_code == -1
                assert fetch(client, 0, version, max_bytes=size).error_code == -1
            for size in (0, 1):
                assert len(headers(fetch(client, 0, version, size))) == 1
            row = fetch(client, 0, version, min_bytes=2**31 - 1, max_wait_ms=2**31 - 1)
            assert headers(row)[-1].next_offset >= min(end, 1)
            assert fetch(client, 0, version, isolation_level=7).error_code == -1
            assert fetch(client, end, version).error_code == 0


@pytest.mark.usefixtures("harmless", "load")
@pytest.mark.parametrize("version", [12, 14, 15, 17, 18])
def test_who_claims_to_copy_the_log_is_no_replica_and_sees_no_more(
    quorum: Cluster, version: int
) -> None:
    for node in quorum.ids:
        with RawClient(quorum.port(node)) as client:
            for epoch in (0, 1, 2**31 - 1):
                row = fetch(client, 0, version, last_fetched_epoch=epoch)
                assert row.error_code == 0
                assert headers(row)[-1].next_offset <= row.high_watermark
    described = quorum.describe(quorum.wait_leader())
    assert described is not None
    assert [each.replica_id for each in described.observers] == []


def test_a_node_that_is_alone_shows_what_it_knew_and_nothing_uncommitted(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "quorum") as cluster:
        put(cluster, 200)
        end = cluster.wait_converged()
        cluster.stop_all()
        cluster.start(1)
        cluster.wait_for(lambda: cluster.status(1)["role"] != "leader", "node 1 up")
        with RawClient(cluster.port(1)) as client:
            known = bound(client, -1)
            assert known <= end
            row = fetch(client, 0)
            assert (row.error_code, row.high_watermark) == (0, known)
            assert all(header.next_offset <= known for header in headers(row))
            assert fetch(client, end + 1).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        cluster.start()
        cluster.wait_ready()
        cluster.wait_converged()  # A replica that is ready may still hear what was committed before.
        with RawClient(cluster.port(1)) as client:
            assert bound(client, -1) >= end
            assert len(whole_log(client, end)) >= 200 * 100
