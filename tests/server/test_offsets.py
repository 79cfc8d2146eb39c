"""ListOffsets and OffsetForLeaderEpoch, on real sockets against a real log."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from quorumd.server.net.connection_state import CloseReason
from quorumd.storage.errors import DiskFailed
from quorumd.storage.log import Log
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.list_offsets import (
    ListOffsetsRequest,
    ListOffsetsRequestPartition,
    ListOffsetsRequestTopic,
    ListOffsetsResponse,
    ListOffsetsResponsePartition,
)
from quorumd.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochRequestPartition,
    OffsetForLeaderEpochRequestTopic,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderEpochResponsePartition,
)
from tests.support.asking import TOPIC, ask, question
from tests.support.consuming import (
    BATCH_BYTES,
    EPOCH_END,
    LIST_OFFSETS,
    RECORDS,
    Bench,
    one_batch,
    until,
    with_bench,
)

# -- ListOffsets


async def listed(
    at: Bench, timestamp: int, version: int = 11, *, times: int = 1, **fields: Any
) -> ListOffsetsResponsePartition:
    epoch = fields.pop("epoch", -1)
    name = fields.pop("name", TOPIC)
    asked = ListOffsetsRequestPartition(timestamp=timestamp, current_leader_epoch=epoch)
    topics = (ListOffsetsRequestTopic(name=name, partitions=(asked,) * times),)
    message = ListOffsetsRequest(replica_id=-1, topics=topics, **fields)
    answer = cast(ListOffsetsResponse, await ask(at.client, LIST_OFFSETS, version, message))
    return answer.topics[0].partitions[0]


SPECIAL = {-1: (1, 8), -2: (1, 0), -3: (7, 7), -4: (8, 0), -5: (9, -1), -6: (11, -1)}


@pytest.mark.parametrize("version", range(1, 12))
@pytest.mark.parametrize("timestamp", [*SPECIAL, -7, -(2**63)])
def test_special_timestamps_mean_something_from_their_version_on(
    tmp_path: Path, timestamp: int, version: int
) -> None:
    async def work(at: Bench) -> None:
        row = await listed(at, timestamp, version)
        since, offset = SPECIAL.get(timestamp, (99, -1))
        if version < since:
            assert row.error_code == ErrorCode.UNSUPPORTED_VERSION
            return
        assert (row.error_code, row.offset) == (0, offset)
        assert row.timestamp == (1070 if timestamp == -3 else -1)
        if version >= 4 and offset >= 0:
            assert row.leader_epoch == 5
        if offset < 0:
            assert row.leader_epoch == -1

    with_bench(tmp_path, work, committed_offset=8)


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize(
    ("timestamp", "found"),
    [(0, (0, 1000, 4)), (1045, (5, 1050, 5)), (1070, (7, 1070, 5)), (1071, (-1, -1, -1))],
)
def test_the_first_committed_record_from_a_time_on_is_found(
    tmp_path: Path, timestamp: int, found: tuple[int, int, int], version: int
) -> None:
    async def work(at: Bench) -> None:
        row = await listed(at, timestamp, version)
        offset, time_ms, epoch = found
        assert (row.error_code, row.offset, row.timestamp) == (0, offset, time_ms)
        assert row.leader_epoch == (epoch if version >= 4 else -1)

    with_bench(tmp_path, work, committed_offset=8)


def test_no_record_is_found_below_a_log_start_whose_deletion_is_queued(tmp_path: Path) -> None:
    async def work(at: Bench) -> None:
        row = await listed(at, 1000)
        assert (row.error_code, row.offset, row.timestamp) == (0, 4, 1040)

    with_bench(tmp_path, work, segment_bytes=2 * BATCH_BYTES, log_start_offset=4)


@pytest.mark.parametrize("timestamp", [-3, 1100])
def test_a_record_is_found_that_is_committed_before_it_is_on_this_disk(
    tmp_path: Path, timestamp: int
) -> None:
    async def work(at: Bench) -> None:
        at.log.append(one_batch(RECORDS), RECORDS, RECORDS + 1)
        row = await listed(at, timestamp)
        assert (row.error_code, row.offset, row.timestamp) == (0, RECORDS, 1100)

    with_bench(tmp_path, work, committed_offset=RECORDS + 1)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"epoch": 4}, 74),
        ({"epoch": -2}, 74),
        ({"epoch": 6}, 75),
        ({"name": "x"}, 3),
        ({"isolation_level": 2}, -1),
        ({"isolation_level": 1}, 0),
        ({"times": 2}, 42),
    ],
)
@pytest.mark.parametrize("timestamp", [-1, 1000])
def test_list_offsets_refuses(
    tmp_path: Path, timestamp: int, fields: dict[str, Any], code: int
) -> None:
    async def work(at: Bench) -> None:
        assert (await listed(at, timestamp, **fields)).error_code == code

    with_bench(tmp_path, work)


@pytest.mark.parametrize(("version", "code"), [(1, 5), (4, 5), (5, 78), (11, 78)])
def test_list_offsets_before_the_epoch_has_committed(
    tmp_path: Path, version: int, code: int
) -> None:
    async def work(at: Bench) -> None:
        assert (await listed(at, -1, version)).error_code == code

    with_bench(tmp_path, work, has_committed_in_epoch=False)


def test_list_offsets_on_another_node_than_the_leader(tmp_path: Path) -> None:
    async def work(at: Bench) -> None:
        assert (await listed(at, -1)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    with_bench(tmp_path, work, is_leader=False)


@pytest.mark.pure
def test_a_disk_that_cannot_be_read_is_no_log_without_such_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(log: Log, timestamp: int, *rest: Any, **more: Any) -> Any:
        raise DiskFailed("an I/O error", path=tmp_path, remedy="replace the disk")

    monkeypatch.setattr(Log, "offset_for_timestamp", fail)

    async def work(at: Bench) -> None:
        row = await listed(at, 1045)
        assert (row.error_code, row.offset) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)

    with_bench(tmp_path, work, committed_offset=8)


# -- OffsetForLeaderEpoch


async def epoch_end(
    at: Bench, epoch: int, *, current: int = -1, replica: int = -1, version: int = 4
) -> OffsetForLeaderEpochResponsePartition:
    asked = OffsetForLeaderEpochRequestPartition(current_leader_epoch=current, leader_epoch=epoch)
    topics = (OffsetForLeaderEpochRequestTopic(topic=TOPIC, partitions=(asked,)),)
    message = OffsetForLeaderEpochRequest(replica_id=replica, topics=topics)
    answer = await ask(at.client, EPOCH_END, version, message)
    return cast(OffsetForLeaderEpochResponse, answer).topics[0].partitions[0]


@pytest.mark.parametrize("version", [2, 3, 4])
@pytest.mark.parametrize(
    ("epoch", "found"),
    [(4, (4, 5)), (5, (5, 8)), (3, (3, 0)), (0, (0, 0)), (6, (-1, -1)), (-1, (-1, -1))],
)
def test_where_an_epoch_ends_is_bounded_by_what_is_committed(
    tmp_path: Path, version: int, epoch: int, found: tuple[int, int]
) -> None:
    async def work(at: Bench) -> None:
        row = await epoch_end(at, epoch, version=version)
        assert (row.error_code, row.leader_epoch, row.end_offset) == (0, *found)

    with_bench(tmp_path, work, committed_offset=8)


@pytest.mark.parametrize("replica", [0, 1])
def test_a_replica_of_any_id_learns_where_an_epoch_ends_that_is_not_committed(
    tmp_path: Path, replica: int
) -> None:
    async def work(at: Bench) -> None:
        of_consumer = await epoch_end(at, 5)
        of_replica = await epoch_end(at, 5, replica=replica)
        assert of_consumer.end_offset == 8 < of_replica.end_offset

    with_bench(tmp_path, work, committed_offset=8)


@pytest.mark.parametrize(("current", "code"), [(4, 74), (6, 75), (5, 0)])
def test_where_an_epoch_ends_is_told_to_those_of_the_same_epoch(
    tmp_path: Path, current: int, code: int
) -> None:
    async def work(at: Bench) -> None:
        assert (await epoch_end(at, 4, current=current)).error_code == code

    with_bench(tmp_path, work)


@pytest.mark.parametrize(("settings", "code"), [({"is_leader": False}, 6), ({}, 78)])
def test_where_an_epoch_ends_is_told_by_a_leader_that_knows(
    tmp_path: Path, settings: dict[str, Any], code: int
) -> None:
    async def work(at: Bench) -> None:
        assert (await epoch_end(at, 4)).error_code == code

    with_bench(tmp_path, work, has_committed_in_epoch=False, **settings)


@pytest.mark.pure
def test_look_ups_of_a_client_that_is_gone_are_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each may take a third of a second of the one thread that makes them."""
    began, go_on = threading.Event(), threading.Event()
    made: list[int] = []
    real = Log.offset_for_timestamp

    def slow(log: Log, timestamp: int, *rest: Any, **more: Any) -> Any:
        made.append(timestamp)
        began.set()
        assert go_on.wait(10)
        return real(log, timestamp, *rest, **more)

    monkeypatch.setattr(Log, "offset_for_timestamp", slow)

    async def work(at: Bench) -> None:
        gone = await at.served.connect()
        for number in range(40):
            partition = ListOffsetsRequestPartition(timestamp=number)
            topics = (ListOffsetsRequestTopic(name=TOPIC, partitions=(partition,)),)
            message = ListOffsetsRequest(replica_id=-1, topics=topics)
            await gone.send(question(LIST_OFFSETS, 7, message))
        await until(began.is_set)
        (connection,) = (each for each in at.served.listeners.connections if each.in_flight)
        await until(lambda: connection.in_flight == 16)
        await asyncio.sleep(0.05)
        assert connection.in_flight == 16, "it has its share under way"
        connection.abort(CloseReason.IDLE, "it was idle for too long")
        await until(lambda: not connection.is_open)
        go_on.set()
        assert (await listed(at, 1045)).offset == 5
        assert made == [0, 1045]

    with_bench(tmp_path, work, committed_offset=8)
