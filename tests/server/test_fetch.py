"""Consumers' Fetch, on real sockets against a real log: what is read, and how long is waited."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest

from quorumd.raft.log_view import LogView
from quorumd.server.disk.log_reader import LogReader
from quorumd.server.model.topic import METADATA
from quorumd.server.net.connection import Connection
from quorumd.server.net.connection_limits import MAX_IN_FLIGHT_BYTES
from quorumd.server.net.connection_state import ConnectionState
from quorumd.server.net.inbound_request import InboundRequest
from quorumd.server.requests import fetch as consume
from quorumd.storage.errors import OffsetNotInLog
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.fetch import (
    FetchRequest,
    FetchRequestPartition,
    FetchRequestTopic,
    FetchResponse,
    FetchResponseCurrentLeader,
    FetchResponsePartition,
)
from quorumd.wire.records import iter_headers
from tests.support.asking import TOPIC, question
from tests.support.consuming import BATCH_BYTES, RECORDS, Bench, until, with_bench

VERSIONS = range(4, 19)
LONG_MS = 60_000


def consumer(
    offset: int = 0,
    *,
    version: int = 11,
    index: int = 0,
    topic: str = TOPIC,
    topic_id: UUID = METADATA.topic_id,
    epoch: int = -1,
    last_epoch: int = -1,
    partition_max_bytes: int = 1 << 20,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    **fields: Any,
) -> FetchRequest:
    asked = FetchRequestPartition(
        partition=index,
        fetch_offset=offset,
        current_leader_epoch=epoch,
        last_fetched_epoch=last_epoch,
        partition_max_bytes=partition_max_bytes,
    )
    name = topic if version < 13 else ""
    wanted = FetchRequestTopic(topic=name, topic_id=topic_id, partitions=(asked,))
    return FetchRequest(max_wait_ms=max_wait_ms, min_bytes=min_bytes, topics=(wanted,), **fields)


def only(response: FetchResponse) -> FetchResponsePartition:
    (topic,) = response.responses
    (partition,) = topic.partitions
    return partition


def offsets(partition: FetchResponsePartition) -> list[int]:
    return [header.base_offset for _, header in iter_headers(partition.records or b"")]


# -- Fetch


@pytest.mark.parametrize("is_cached", [True, False])
@pytest.mark.parametrize("version", VERSIONS)
def test_a_consumer_gets_what_is_committed(tmp_path: Path, version: int, is_cached: bool) -> None:
    async def work(at: Bench) -> None:
        row = only(await at.fetch(consumer(3, version=version), version))
        assert row.error_code == 0
        assert offsets(row) == [3, 4, 5, 6, 7]
        assert (row.high_watermark, row.last_stable_offset) == (8, 8)

    with_bench(tmp_path, work, is_cached=is_cached, committed_offset=8)


@pytest.mark.parametrize("isolation", [0, 1])
def test_both_isolation_levels_read_the_same(tmp_path: Path, isolation: int) -> None:
    async def work(at: Bench) -> None:
        row = only(await at.fetch(consumer(isolation_level=isolation)))
        assert offsets(row) == list(range(RECORDS))

    with_bench(tmp_path, work)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "odd", [{"isolation_level": 2}, {"max_bytes": -1}, {"partition_max_bytes": -1}]
)
def test_values_that_make_no_sense_are_an_error_in_every_version(
    tmp_path: Path, version: int, odd: dict[str, int]
) -> None:
    async def work(at: Bench) -> None:
        row = only(await at.fetch(consumer(version=version, **odd), version))
        assert row.error_code == ErrorCode.UNKNOWN_SERVER_ERROR

    with_bench(tmp_path, work)


@pytest.mark.parametrize("is_cached", [True, False])
@pytest.mark.parametrize(
    ("limits", "count"),
    [
        ({"partition_max_bytes": BATCH_BYTES * 2}, 2),
        ({"partition_max_bytes": BATCH_BYTES * 3 - 1}, 2),
        ({"max_bytes": BATCH_BYTES}, 1),
        ({"partition_max_bytes": 1}, 1),
        ({"max_bytes": 0}, 1),
        ({"partition_max_bytes": 0, "max_bytes": 0}, 1),
    ],
)
def test_no_more_bytes_than_asked_for_but_one_whole_batch(
    tmp_path: Path, limits: dict[str, int], count: int, is_cached: bool
) -> None:
    async def work(at: Bench) -> None:
        assert len(offsets(only(await at.fetch(consumer(2, **limits))))) == count

    with_bench(tmp_path, work, is_cached=is_cached)


@pytest.mark.parametrize(
    ("session", "code"),
    [
        ((7, 1), 70),
        ((7, 0), 0),
        ((7, -1), 0),
        ((0, 5), 70),
        ((0, 0), 0),
        ((0, -1), 0),
        ((0, -2), 70),
    ],
)
def test_there_are_no_sessions(tmp_path: Path, session: tuple[int, int], code: int) -> None:
    """Epochs 0 and -1 ask for everything, whatever the session was before (KIP-227)."""

    async def work(at: Bench) -> None:
        message = consumer(session_id=session[0], session_epoch=session[1])
        answer = await at.fetch(message)
        assert (answer.error_code, answer.session_id) == (code, 0)
        assert code or offsets(only(answer)) == list(range(RECORDS))

    with_bench(tmp_path, work)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_without_topics_is_answered(tmp_path: Path, version: int) -> None:
    async def work(at: Bench) -> None:
        answer = await at.fetch(FetchRequest(max_wait_ms=LONG_MS, min_bytes=1), version)
        assert (answer.error_code, answer.responses) == (0, ())

    with_bench(tmp_path, work)


@pytest.mark.parametrize(
    ("asked", "version", "code"),
    [
        ({"topic": "x"}, 12, 3),
        ({"topic_id": UUID(int=5)}, 13, 100),
        ({"index": 1}, 12, 3),
        ({"index": 1}, 13, 3),
        ({"offset": -1}, 11, 1),
        ({"offset": RECORDS + 1}, 11, 1),
        ({"epoch": 4}, 11, 74),
        ({"epoch": 6}, 11, 75),
        ({"epoch": 5}, 11, 0),
        ({"epoch": -7}, 11, 0),
        ({"topic": "another", "isolation_level": 2}, 11, 3),
    ],
)
def test_what_is_not_there_has_its_error(
    tmp_path: Path, asked: dict[str, Any], version: int, code: int
) -> None:
    async def work(at: Bench) -> None:
        assert only(await at.fetch(consumer(version=version, **asked), version)).error_code == code

    with_bench(tmp_path, work)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("epoch", "code"), [(-1, 6), (5, 6)])
def test_who_does_not_lead_names_the_leader_where_the_version_can(
    tmp_path: Path, version: int, epoch: int, code: int
) -> None:
    async def work(at: Bench) -> None:
        answer = await at.fetch(consumer(version=version, epoch=epoch), version)
        row = only(answer)
        assert (row.error_code, row.high_watermark) == (code, -1)
        if version >= 12:
            assert (row.current_leader.leader_id, row.current_leader.leader_epoch) == (2, 5)
        if version >= 16:
            (node,) = answer.node_endpoints
            assert (node.node_id, node.host, node.port) == (2, "leader.example", 9092)

    with_bench(tmp_path, work, is_leader=False, has_committed_in_epoch=False, leader_id=2)


@pytest.mark.parametrize("version", VERSIONS)
def test_without_a_leader_none_is_named_and_no_epoch(tmp_path: Path, version: int) -> None:
    """librdkafka warns of each response that names leader -1 in an epoch."""

    async def work(at: Bench) -> None:
        answer = await at.fetch(consumer(version=version), version)
        row = only(answer)
        assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert row.current_leader == FetchResponseCurrentLeader()
        assert answer.node_endpoints == ()

    with_bench(tmp_path, work, is_leader=False, has_committed_in_epoch=False, leader_id=None)


def test_a_fenced_consumer_is_told_who_leads(tmp_path: Path) -> None:
    async def work(at: Bench) -> None:
        answer = await at.fetch(consumer(version=16, epoch=4), 16)
        assert only(answer).current_leader.leader_id == 1
        assert answer.node_endpoints[0].host == "leader.example"

    with_bench(tmp_path, work)


# -- consumers that tell the epoch of the last record that they have read (KIP-320, KIP-595)


@pytest.mark.parametrize("version", range(12, 19))
def test_a_consumer_whose_last_record_is_in_the_log_reads_on(tmp_path: Path, version: int) -> None:
    async def work(at: Bench) -> None:
        row = only(await at.fetch(consumer(3, version=version, last_epoch=5), version))
        assert (row.error_code, row.diverging_epoch.end_offset) == (0, -1)
        assert offsets(row) == [3, 4, 5, 6, 7]

    with_bench(tmp_path, work, committed_offset=8)


def test_a_consumer_that_has_read_an_epoch_to_its_end_reads_on(tmp_path: Path) -> None:
    async def work(at: Bench) -> None:
        row = only(await at.fetch(consumer(5, version=12, last_epoch=4), 12))
        assert (row.error_code, row.diverging_epoch.end_offset) == (0, -1)
        assert offsets(row) == [5, 6, 7, 8, 9]

    with_bench(tmp_path, work)


@pytest.mark.parametrize("version", [12, 18])
@pytest.mark.parametrize("last_epoch", [0, 3])
def test_a_consumer_whose_last_record_is_not_in_the_log_is_told_where_it_parts(
    tmp_path: Path, version: int, last_epoch: int
) -> None:
    """Epoch 4 begins at offset 0: a record of an earlier epoch was never committed here."""

    async def work(at: Bench) -> None:
        row = only(await at.fetch(consumer(3, version=version, last_epoch=last_epoch), version))
        assert row.error_code == 0
        assert (row.diverging_epoch.epoch, row.diverging_epoch.end_offset) == (last_epoch, 0)
        assert not row.records

    with_bench(tmp_path, work)


def test_one_whose_epoch_this_log_never_had_parts_from_it_even_where_an_epoch_begins(
    tmp_path: Path,
) -> None:
    async def work(at: Bench) -> None:
        row = only(await at.fetch(consumer(5, version=12, last_epoch=5), 12))
        assert (row.diverging_epoch.epoch, row.diverging_epoch.end_offset) == (4, 5)
        assert not row.records

    log_view = LogView(end_offset=RECORDS, epoch_starts=[(4, 0), (6, 5)])
    with_bench(tmp_path, work, log_view=log_view, leader_epoch=6)


def test_an_epoch_that_is_still_to_come_is_out_of_range(tmp_path: Path) -> None:
    async def work(at: Bench) -> None:
        row = only(await at.fetch(consumer(3, version=12, last_epoch=6), 12))
        assert row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert not row.records

    with_bench(tmp_path, work)


# -- waiting


def test_a_fetch_at_the_end_waits_for_the_next_commit(tmp_path: Path) -> None:
    async def work(at: Bench) -> None:
        await at.parked(consumer(RECORDS, max_wait_ms=LONG_MS))
        at.append()
        assert offsets(only(await at.answer())) == [RECORDS]
        assert not at.handler._parked

    with_bench(tmp_path, work)


@pytest.mark.parametrize("is_cached", [True, False])
def test_no_more_is_read_for_a_connection_than_so_many_bytes_before_it_is_answered(
    tmp_path: Path, is_cached: bool
) -> None:
    async def work(at: Bench) -> None:
        await at.parked(consumer(RECORDS, max_wait_ms=LONG_MS))
        connection = cast(Connection, at.handler._parked[0].request.connection)
        few = MAX_IN_FLIGHT_BYTES // consume.FETCH_BYTES_MAX
        for _ in range(50):
            await at.client.send(question(1, 11, consumer(partition_max_bytes=1)))
        await until(lambda: connection.state is ConnectionState.PAUSED)
        assert connection.in_flight <= few
        at.append()
        assert offsets(only(await at.answer())) == [RECORDS]
        for _ in range(50):
            assert offsets(only(await at.answer())) == [0]
        assert (connection.in_flight, connection.in_flight_bytes) == (0, 0)
        await until(lambda: connection.state is ConnectionState.OPEN)

    with_bench(tmp_path, work, is_cached=is_cached)


def test_a_fetch_waits_at_most_as_long_as_it_asked(tmp_path: Path) -> None:
    async def work(at: Bench) -> None:
        started = asyncio.get_running_loop().time()
        row = only(await at.fetch(consumer(RECORDS, max_wait_ms=50)))
        assert (row.error_code, offsets(row)) == (0, [])
        assert 0.045 <= asyncio.get_running_loop().time() - started < 1

    with_bench(tmp_path, work)


def test_no_fetch_waits_longer_than_any_client_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consume, "WAIT_MS_MAX", 50)

    async def work(at: Bench) -> None:
        row = only(await at.fetch(consumer(RECORDS, max_wait_ms=2**31 - 1)))
        assert (row.error_code, offsets(row)) == (0, [])

    with_bench(tmp_path, work)


def test_a_short_wait_is_not_held_up_by_a_long_one_that_came_before(tmp_path: Path) -> None:
    async def work(at: Bench) -> None:
        await at.parked(consumer(RECORDS, max_wait_ms=LONG_MS))
        others = [Bench(at.served, await at.served.connect(), at.handler, at.log) for _ in range(2)]
        started = asyncio.get_running_loop().time()
        fetches = [
            other.fetch(consumer(RECORDS, max_wait_ms=wait_ms))
            for other, wait_ms in zip(others, (20, 60), strict=True)
        ]
        assert [offsets(only(each)) for each in await asyncio.gather(*fetches)] == [[], []]
        assert asyncio.get_running_loop().time() - started < 1

    with_bench(tmp_path, work)


@pytest.mark.parametrize(
    "fields",
    [
        {"max_wait_ms": 0},
        {"max_wait_ms": -5},
        {"min_bytes": 0},
        {"min_bytes": -1},
        {"max_bytes": 0},
    ],
)
def test_who_asks_for_nothing_more_is_answered_at_once(
    tmp_path: Path, fields: dict[str, int]
) -> None:
    async def work(at: Bench) -> None:
        message = consumer(RECORDS, **{"max_wait_ms": LONG_MS, **fields})
        assert offsets(only(await at.fetch(message))) == []

    with_bench(tmp_path, work)


def test_min_bytes_are_waited_for(tmp_path: Path) -> None:
    async def work(at: Bench) -> None:
        await at.parked(consumer(RECORDS - 1, min_bytes=BATCH_BYTES * 2 + 1, max_wait_ms=LONG_MS))
        at.append()
        await until(lambda: len(at.handler._parked) == 1)
        at.append()
        assert offsets(only(await at.answer())) == [RECORDS - 1, RECORDS, RECORDS + 1]

    with_bench(tmp_path, work)


@pytest.mark.parametrize("is_cached", [True, False])
def test_what_there_is_comes_when_the_time_for_min_bytes_is_over(
    tmp_path: Path, is_cached: bool
) -> None:
    async def work(at: Bench) -> None:
        message = consumer(RECORDS - 1, min_bytes=1 << 20, max_wait_ms=20)
        assert offsets(only(await at.fetch(message))) == [RECORDS - 1]

    with_bench(tmp_path, work, is_cached=is_cached)


@pytest.mark.parametrize("offset", [0, RECORDS - 1])
@pytest.mark.parametrize("limit", ["partition_max_bytes", "max_bytes"])
def test_min_bytes_beyond_max_bytes_are_met_by_max_bytes(
    tmp_path: Path, limit: str, offset: int
) -> None:
    async def work(at: Bench) -> None:
        limits: dict[str, Any] = {"min_bytes": 1 << 20, limit: BATCH_BYTES, "max_wait_ms": LONG_MS}
        assert offsets(only(await at.fetch(consumer(offset, **limits)))) == [offset]

    with_bench(tmp_path, work)


@pytest.mark.parametrize("is_cached", [True, False])
@pytest.mark.parametrize("limit", ["partition_max_bytes", "max_bytes"])
def test_no_wait_for_min_bytes_while_more_is_committed_than_one_response_holds(
    tmp_path: Path, limit: str, is_cached: bool
) -> None:
    """The next batch does not fit: however much is committed behind it, a response holds no more."""

    async def work(at: Bench) -> None:
        size = BATCH_BYTES * 3 - 1
        limits: dict[str, Any] = {limit: size, "min_bytes": size, "max_wait_ms": LONG_MS}
        assert offsets(only(await at.fetch(consumer(0, **limits)))) == [0, 1]

    with_bench(tmp_path, work, is_cached=is_cached)


@pytest.mark.pure
def test_no_wait_for_min_bytes_above_what_any_response_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consume, "FETCH_BYTES_MAX", BATCH_BYTES * 3 - 1)

    async def work(at: Bench) -> None:
        message = consumer(0, min_bytes=BATCH_BYTES * 4, max_wait_ms=LONG_MS)
        assert offsets(only(await at.fetch(message))) == [0, 1]

    with_bench(tmp_path, work)


def test_no_wait_for_min_bytes_behind_what_is_on_disk_alone(tmp_path: Path) -> None:
    """A read from disk ends with its segment."""

    async def work(at: Bench) -> None:
        message = consumer(0, min_bytes=BATCH_BYTES * 5, max_wait_ms=LONG_MS)
        assert offsets(only(await at.fetch(message))) == [0, 1, 2]

    with_bench(tmp_path, work, is_cached=False, segment_bytes=BATCH_BYTES * 3)


def test_before_the_epoch_has_committed_a_fetch_waits(tmp_path: Path) -> None:
    async def work(at: Bench) -> None:
        await at.parked(consumer(3, max_wait_ms=LONG_MS))
        at.partition.has_committed_in_epoch = True
        at.handler.on_high_watermark()
        assert offsets(only(await at.answer()))[0] == 3

    with_bench(tmp_path, work, has_committed_in_epoch=False)


def test_an_odd_offset_that_waits_for_the_epoch_harms_no_other_fetch(tmp_path: Path) -> None:
    async def work(at: Bench) -> None:
        await at.parked(consumer(-1, max_wait_ms=200))
        other = Bench(at.served, await at.served.connect(), at.handler, at.log)
        assert only(await other.fetch(consumer(1 << 40, max_wait_ms=200))).high_watermark == -1
        assert offsets(only(await at.answer())) == []

    with_bench(tmp_path, work, has_committed_in_epoch=False)


def test_what_waits_when_leadership_ends_is_sent_to_the_new_leader(tmp_path: Path) -> None:
    async def work(at: Bench) -> None:
        await at.parked(consumer(RECORDS, version=16, max_wait_ms=LONG_MS), 16)
        at.partition.is_leader, at.partition.leader_id = False, 3
        at.handler.on_leadership_lost()
        row = only(await at.answer(16))
        assert (row.error_code, row.current_leader.leader_id) == (6, 3)

    with_bench(tmp_path, work)


@pytest.mark.pure
def test_what_is_being_read_when_leadership_ends_does_not_wait_for_more(tmp_path: Path) -> None:
    async def work(at: Bench) -> None:
        seen: list[InboundRequest] = []
        original = at.handler.fetch

        def fetch(request: InboundRequest, message: FetchRequest) -> None:
            seen.append(request)
            original(request, message)
            at.partition.is_leader = False
            at.handler.on_leadership_lost()

        at.handler.fetch = fetch  # type: ignore[method-assign] # the moment matters
        answer = await at.fetch(consumer(5, min_bytes=1 << 20, max_wait_ms=LONG_MS))
        assert seen
        assert only(answer).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    with_bench(tmp_path, work, is_cached=False)


@pytest.mark.pure
def test_what_is_deleted_or_cut_off_before_it_is_read_is_no_failure_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(_: LogReader, offset: int, size: int, end: int, done: Callable[..., None]) -> None:
        done(OffsetNotInLog(offset, 7, 10))

    async def work(at: Bench) -> None:
        monkeypatch.setattr(LogReader, "read", read)
        assert only(await at.fetch(consumer(5))).error_code == ErrorCode.OFFSET_OUT_OF_RANGE

    with_bench(tmp_path, work, is_cached=False)


def test_a_fetch_whose_connection_is_gone_does_not_wait_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consume, "SWEEP_S", 0.02)

    async def work(at: Bench) -> None:
        await at.parked(consumer(RECORDS, max_wait_ms=2**31 - 1))
        at.client.reset()
        await until(lambda: not at.handler._parked)

    with_bench(tmp_path, work)


def test_a_connection_that_several_fetches_wait_on_does_not_outlive_its_client_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consume, "WAIT_MS_MAX", 200)

    async def work(at: Bench) -> None:
        await at.parked(consumer(RECORDS, max_wait_ms=2**31 - 1))
        connection = cast(Connection, at.handler._parked[0].request.connection)
        for _ in range(10):
            await at.client.send(question(1, 11, consumer(RECORDS, max_wait_ms=2**31 - 1)))
        await until(lambda: connection.state is ConnectionState.PAUSED)
        at.client.close()  # behind this, the node reads nothing that would say so
        await until(lambda: connection.state is ConnectionState.CLOSED)

    with_bench(tmp_path, work)


def test_more_fetches_than_may_wait_are_answered_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consume, "PARKED_MAX", 1)

    async def work(at: Bench) -> None:
        await at.parked(consumer(RECORDS, max_wait_ms=LONG_MS))
        other = Bench(at.served, await at.served.connect(), at.handler, at.log)
        row = only(await other.fetch(consumer(RECORDS, max_wait_ms=LONG_MS)))
        assert (row.error_code, offsets(row)) == (0, [])

    with_bench(tmp_path, work)


@pytest.mark.parametrize("is_one_topic", [True, False])
def test_of_the_same_partition_twice_the_last_is_answered(
    tmp_path: Path, is_one_topic: bool
) -> None:
    """As in Kafka, which keeps one for each partition."""

    async def work(at: Bench) -> None:
        topics = consumer(1 << 40).topics + consumer(2).topics
        if is_one_topic:
            partitions = topics[0].partitions + topics[1].partitions
            topics = (dataclasses.replace(topics[0], partitions=partitions),)
        answer = await at.fetch(FetchRequest(max_wait_ms=0, min_bytes=1, topics=topics))
        row = only(answer)
        assert (row.error_code, offsets(row)) == (0, list(range(2, RECORDS)))

    with_bench(tmp_path, work)
