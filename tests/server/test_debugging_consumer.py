"""Replica -2, Kafka's debugging consumer: any replica answers it from its own log, and none counts it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from quorumd.server.model.topic import METADATA
from quorumd.server.net.inbound_request import InboundRequest
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.fetch import (
    FetchRequest,
    FetchRequestPartition,
    FetchRequestReplicaState,
    FetchRequestTopic,
    FetchResponse,
)
from quorumd.wire.messages.list_offsets import (
    ListOffsetsRequest,
    ListOffsetsRequestPartition,
    ListOffsetsRequestTopic,
    ListOffsetsResponse,
    ListOffsetsResponsePartition,
)
from tests.server.test_fetch import consumer, offsets, only
from tests.server.test_replicas import alone
from tests.support.asking import TOPIC, ask
from tests.support.consuming import BATCH_BYTES, FETCH, LIST_OFFSETS, RECORDS, Bench, with_bench
from tests.support.serving import run

DEBUGGING = -2
VERSIONS = (4, 11, 12, 14, 15, 18)
FOLLOWER: dict[str, Any] = {"is_leader": False, "has_committed_in_epoch": False, "leader_id": 2}
LONG_MS = 60_000


def named(version: int, replica_id: int = DEBUGGING) -> dict[str, Any]:
    """The replica id where this version has it."""
    if version < 15:
        return {"replica_id": replica_id}
    return {"replica_state": FetchRequestReplicaState(replica_id=replica_id)}


def debugging(offset: int = 0, *, version: int = 11, **fields: Any) -> FetchRequest:
    return consumer(offset, version=version, **named(version), **fields)


# -- Fetch


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("is_cached", [True, False])
def test_a_follower_shows_what_it_knows_to_be_committed(
    tmp_path: Path, version: int, is_cached: bool
) -> None:
    async def work(at: Bench) -> None:
        row = only(await at.fetch(debugging(3, version=version), version))
        assert (row.error_code, offsets(row)) == (0, [3, 4, 5, 6, 7])
        assert (row.high_watermark, row.last_stable_offset) == (8, 8)

    with_bench(tmp_path, work, is_cached=is_cached, committed_offset=8, **FOLLOWER)


def test_a_leader_shows_it_too_before_it_has_committed_anything_itself(tmp_path: Path) -> None:
    async def work(at: Bench) -> None:
        row = only(await at.fetch(debugging(6)))
        assert (row.error_code, offsets(row), row.high_watermark) == (0, [6, 7], 8)

    with_bench(tmp_path, work, committed_offset=8, has_committed_in_epoch=False)


def spoil(folder: Path) -> None:
    """The first batch of the log."""
    (path,) = folder.glob("*.log")
    with path.open("r+b") as file:
        file.write(bytes(BATCH_BYTES))


def test_damage_that_it_finds_is_no_damage_for_the_node(tmp_path: Path) -> None:
    """It looks for damage, and goes on behind it."""

    async def work(at: Bench) -> None:
        spoil(tmp_path)
        assert only(await at.fetch(debugging(0))).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert offsets(only(await at.fetch(debugging(1))))[0] == 1

    with_bench(tmp_path, work, is_cached=False)


@pytest.mark.parametrize("replica_id", [-1, -3, -(2**31), 7])
@pytest.mark.parametrize("version", [11, 18])
def test_any_other_number_is_a_consumer_as_before(
    tmp_path: Path, version: int, replica_id: int
) -> None:
    async def work(at: Bench) -> None:
        message = consumer(3, version=version, **named(version, replica_id))
        row = only(await at.fetch(message, version))
        assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    with_bench(tmp_path, work, **FOLLOWER)


def test_a_follower_that_knows_of_nothing_committed_shows_nothing(tmp_path: Path) -> None:
    async def work(at: Bench) -> None:
        row = only(await at.fetch(debugging(0, max_wait_ms=LONG_MS)))
        assert (row.error_code, offsets(row), row.high_watermark) == (0, [], 0)

    with_bench(tmp_path, work, committed_offset=0, **FOLLOWER)


@pytest.mark.parametrize("offset", [-(2**63), -1, 1, 9, RECORDS, RECORDS + 1, 2**63 - 1])
def test_offsets_outside_its_own_bounds_are_refused(tmp_path: Path, offset: int) -> None:
    async def work(at: Bench) -> None:
        row = only(await at.fetch(debugging(offset)))
        assert row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert (row.high_watermark, row.records) == (-1, b"")

    with_bench(tmp_path, work, committed_offset=8, log_start_offset=2, **FOLLOWER)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"epoch": 4}, 74),
        ({"epoch": 6}, 75),
        ({"epoch": 5}, 0),
        ({"isolation_level": 2}, -1),
        ({"max_bytes": -1}, -1),
        ({"partition_max_bytes": -(2**31)}, -1),
        ({"index": 1}, 3),
        ({"topic": "x"}, 3),
    ],
)
def test_whatever_else_is_wrong_is_an_error_as_for_consumers(
    tmp_path: Path, fields: dict[str, Any], code: int
) -> None:
    async def work(at: Bench) -> None:
        assert only(await at.fetch(debugging(3, **fields))).error_code == code

    with_bench(tmp_path, work, **FOLLOWER)


def test_there_are_no_sessions_either(tmp_path: Path) -> None:
    async def work(at: Bench) -> None:
        answer = await at.fetch(debugging(3, session_id=7, session_epoch=1))
        assert answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND

    with_bench(tmp_path, work, **FOLLOWER)


@pytest.mark.parametrize(
    ("limits", "count"),
    [
        ({"partition_max_bytes": 2**31 - 1, "max_bytes": 2**31 - 1}, RECORDS),
        ({"partition_max_bytes": BATCH_BYTES * 2}, 2),
        ({"partition_max_bytes": 0, "max_bytes": 0}, 1),
    ],
)
def test_byte_limits_hold_and_one_whole_batch_comes_in_any_case(
    tmp_path: Path, limits: dict[str, int], count: int
) -> None:
    async def work(at: Bench) -> None:
        assert offsets(only(await at.fetch(debugging(0, **limits)))) == list(range(count))

    with_bench(tmp_path, work, is_cached=False, **FOLLOWER)


@pytest.mark.parametrize("is_leader", [True, False])
@pytest.mark.parametrize(
    "fields",
    [{"offset": RECORDS}, {"offset": RECORDS - 1, "min_bytes": 1 << 20}],
    ids=["at the end", "too few bytes"],
)
def test_it_never_waits(tmp_path: Path, fields: dict[str, int], is_leader: bool) -> None:
    async def work(at: Bench) -> None:
        row = only(await at.fetch(debugging(**fields, max_wait_ms=LONG_MS)))
        assert offsets(row) == list(range(fields["offset"], RECORDS))
        assert not at.handler._parked

    with_bench(tmp_path, work, is_leader=is_leader)


@pytest.mark.pure
def test_what_is_being_read_when_leadership_ends_is_answered(tmp_path: Path) -> None:
    async def work(at: Bench) -> None:
        original = at.handler.fetch

        def fetch(request: InboundRequest, message: FetchRequest) -> None:
            original(request, message)
            at.partition.is_leader = False
            at.handler.on_leadership_lost()

        at.handler.fetch = fetch  # type: ignore[method-assign] # the moment matters
        assert offsets(only(await at.fetch(debugging(5)))) == [5, 6, 7, 8, 9]

    with_bench(tmp_path, work, is_cached=False)


# -- ListOffsets


async def listed(
    at: Bench, timestamp: int, version: int = 11, replica_id: int = DEBUGGING
) -> ListOffsetsResponsePartition:
    topics = (
        ListOffsetsRequestTopic(
            name=TOPIC, partitions=(ListOffsetsRequestPartition(timestamp=timestamp),)
        ),
    )
    message = ListOffsetsRequest(replica_id=replica_id, topics=topics)
    answer = cast(ListOffsetsResponse, await ask(at.client, LIST_OFFSETS, version, message))
    return answer.topics[0].partitions[0]


@pytest.mark.parametrize("version", [1, 4, 11])
def test_a_follower_lists_the_bounds_of_its_own_log(tmp_path: Path, version: int) -> None:
    async def work(at: Bench) -> None:
        assert [(await listed(at, each, version)).offset for each in (-2, -1)] == [2, 8]
        assert (await listed(at, -1, version, -1)).error_code == 6
        if version >= 4:
            assert (await listed(at, -1, version)).leader_epoch == 5

    with_bench(tmp_path, work, committed_offset=8, log_start_offset=2, **FOLLOWER)


@pytest.mark.parametrize(("timestamp", "offset"), [(0, 0), (1045, 5), (1071, -1), (-3, 7)])
def test_a_follower_finds_offsets_by_time_in_what_is_committed(
    tmp_path: Path, timestamp: int, offset: int
) -> None:
    async def work(at: Bench) -> None:
        row = await listed(at, timestamp)
        assert (row.error_code, row.offset) == (0, offset)

    with_bench(tmp_path, work, committed_offset=8, **FOLLOWER)


# -- it is no replica


@pytest.mark.parametrize("version", [12, 14, 15, 17, 18])
@pytest.mark.parametrize("partitions", [(0,), (0, 5)])
def test_it_is_never_taken_for_a_replica(
    tmp_path: Path, version: int, partitions: tuple[int, ...]
) -> None:
    """What a replica says of itself would make it wait here, for records that are not committed."""

    async def work() -> None:
        async with alone(tmp_path) as at:
            client = await at.connect()
            end = at.partition.view.log_end_offset
            rows = tuple(
                FetchRequestPartition(
                    partition=index,
                    fetch_offset=end,
                    last_fetched_epoch=at.partition.view.leader_epoch,
                    partition_max_bytes=1 << 20,
                )
                for index in partitions
            )
            name = TOPIC if version < 13 else ""
            topic = FetchRequestTopic(topic=name, topic_id=METADATA.topic_id, partitions=rows)
            message = FetchRequest(
                max_wait_ms=LONG_MS, min_bytes=1, topics=(topic,), **named(version)
            )
            answer = cast(FetchResponse, await ask(client, FETCH, version, message))
            found = [row.error_code for row in answer.responses[0].partitions]
            assert (answer.error_code, found) == (0, [0, 3][: len(partitions)])
            assert not at.partition.view.observer_statuses()

    run(work())
