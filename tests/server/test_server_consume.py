"""Consumers, on real sockets against a real log: Fetch, ListOffsets, OffsetForLeaderEpoch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar, cast
from uuid import UUID

import pytest

from raft.log_view import LogView
from server import consume
from server.consume import ConsumeHandler
from server.log_reader import LogReader
from server.translate import METADATA
from server.transport import InboundRequest
from storage.filesystem import RealFileSystem
from storage.log import Log
from tests.support.asking import TOPIC, InMemoryPartition, answer_to, ask, question
from tests.support.serving import Client, Parking, Served, run, serving
from wire.codec import decode
from wire.error_codes import ErrorCode
from wire.messages.fetch import (
    FetchRequest,
    FetchRequestPartition,
    FetchRequestTopic,
    FetchResponse,
    FetchResponsePartition,
)
from wire.messages.list_offsets import (
    ListOffsetsRequest,
    ListOffsetsRequestPartition,
    ListOffsetsRequestTopic,
    ListOffsetsResponse,
    ListOffsetsResponsePartition,
)
from wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochRequestPartition,
    OffsetForLeaderEpochRequestTopic,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderEpochResponsePartition,
)
from wire.records import Record, build_batch, iter_headers
from wire.registry import APIS

FETCH, LIST_OFFSETS, EPOCH_END = 1, 2, 23
VERSIONS = range(4, 19)
RECORDS = 10
"""In the log, each a batch; the first five are of epoch 4, the others of the leader's epoch 5."""
LONG_MS = 60_000

M = TypeVar("M")


def one_batch(offset: int) -> bytes:
    epoch = 4 if offset < 5 else 5
    record = Record(timestamp=1000 + offset * 10, key=b"k", value=b"x" * 100)
    return build_batch([record], base_offset=offset, epoch=epoch)


BATCH_BYTES = len(one_batch(0))


class Bench:
    def __init__(self, served: Served, client: Client, handler: ConsumeHandler, log: Log) -> None:
        self.served = served
        self.client = client
        self.handler = handler
        self.log = log
        self.partition = cast(InMemoryPartition, handler._target)

    async def fetch(self, message: FetchRequest, version: int = 11) -> FetchResponse:
        return cast(FetchResponse, await ask(self.client, FETCH, version, message))

    async def parked(self, message: FetchRequest, version: int = 11, count: int = 1) -> None:
        """Send it, and see it wait."""
        await self.client.send(question(FETCH, version, message))
        await until(lambda: len(self.handler._parked) == count)

    async def answer(self, version: int = 11) -> FetchResponse:
        return cast(FetchResponse, await answer_to(self.client, FETCH, version))

    def append(self) -> None:
        offset = self.log.log_end_offset
        data = one_batch(offset)
        self.log.append(data, offset, offset + 1)
        self.log.write(data, offset, offset + 1)
        self.partition.committed_offset = offset + 1
        self.handler.on_high_watermark()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(0.001)


def with_bench(
    folder: Path,
    work: Callable[[Bench], Coroutine[Any, Any, None]],
    *,
    is_cached: bool = True,
    **settings: Any,
) -> None:
    log = Log.open(
        RealFileSystem(),
        folder,
        segment_bytes=1 << 20,
        tail_cache_bytes=1 << 20 if is_cached else 0,
        index_interval_bytes=1,
    )
    for offset in range(RECORDS):
        data = one_batch(offset)
        log.append(data, offset, offset + 1)
        log.write(data, offset, offset + 1)

    async def whole() -> None:
        view = LogView(end_offset=RECORDS, epoch_starts=[(4, 0), (5, 5)])
        values = {"committed_offset": RECORDS, "log_end_offset": RECORDS, "view": view, **settings}
        reader = LogReader(log)
        handler = ConsumeHandler(InMemoryPartition(**values), log, reader)

        def dispatch(request: InboundRequest) -> None:
            spec = APIS[request.api_key]
            message = decode(spec.request, request.api_version, request.frame, request.body_at)
            if isinstance(message, FetchRequest):
                handler.fetch(request, message)
            elif isinstance(message, ListOffsetsRequest):
                handler.list_offsets(request, message)
            else:
                assert isinstance(message, OffsetForLeaderEpochRequest)
                handler.offset_for_leader_epoch(request, message)

        async with serving(Parking(dispatch)) as served:
            await work(Bench(served, await served.connect(), handler, log))
        handler.close()
        reader.close()

    try:
        run(whole())
    finally:
        log.close()


def consumer(
    offset: int = 0,
    *,
    version: int = 11,
    index: int = 0,
    topic: str = TOPIC,
    topic_id: UUID = METADATA.topic_id,
    epoch: int = -1,
    partition_max_bytes: int = 1 << 20,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    **fields: Any,
) -> FetchRequest:
    asked = FetchRequestPartition(
        partition=index,
        fetch_offset=offset,
        current_leader_epoch=epoch,
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
    [((7, 1), 70), ((7, 0), 70), ((7, -1), 70), ((0, 5), 70), ((0, 0), 0), ((0, -1), 0)],
)
def test_there_are_no_sessions(tmp_path: Path, session: tuple[int, int], code: int) -> None:
    async def work(at: Bench) -> None:
        message = consumer(session_id=session[0], session_epoch=session[1])
        answer = await at.fetch(message)
        assert (answer.error_code, answer.session_id) == (code, 0)

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


def test_a_fenced_consumer_is_told_who_leads(tmp_path: Path) -> None:
    async def work(at: Bench) -> None:
        answer = await at.fetch(consumer(version=16, epoch=4), 16)
        assert only(answer).current_leader.leader_id == 1
        assert answer.node_endpoints[0].host == "leader.example"

    with_bench(tmp_path, work)


# -- waiting


def test_a_fetch_at_the_end_waits_for_the_next_commit(tmp_path: Path) -> None:
    async def work(at: Bench) -> None:
        await at.parked(consumer(RECORDS, max_wait_ms=LONG_MS))
        at.append()
        assert offsets(only(await at.answer())) == [RECORDS]
        assert not at.handler._parked

    with_bench(tmp_path, work)


def test_a_fetch_waits_at_most_as_long_as_it_asked(tmp_path: Path) -> None:
    async def work(at: Bench) -> None:
        started = asyncio.get_running_loop().time()
        row = only(await at.fetch(consumer(RECORDS, max_wait_ms=50)))
        assert (row.error_code, offsets(row)) == (0, [])
        assert 0.045 <= asyncio.get_running_loop().time() - started < 1

    with_bench(tmp_path, work)


def test_a_short_wait_is_not_held_up_by_a_long_one_that_came_before(tmp_path: Path) -> None:
    async def work(at: Bench) -> None:
        await at.parked(consumer(RECORDS, max_wait_ms=LONG_MS))
        other = Bench(at.served, await at.served.connect(), at.handler, at.log)
        started = asyncio.get_running_loop().time()
        assert offsets(only(await other.fetch(consumer(RECORDS, max_wait_ms=20)))) == []
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


@pytest.mark.parametrize("is_cached", [True, False])
def test_min_bytes_are_waited_for(tmp_path: Path, is_cached: bool) -> None:
    async def work(at: Bench) -> None:
        await at.parked(consumer(RECORDS - 1, min_bytes=BATCH_BYTES * 2 + 1, max_wait_ms=LONG_MS))
        at.append()
        await until(lambda: len(at.handler._parked) == 1)
        at.append()
        assert offsets(only(await at.answer())) == [RECORDS - 1, RECORDS, RECORDS + 1]

    with_bench(tmp_path, work, is_cached=is_cached)


@pytest.mark.parametrize("is_cached", [True, False])
def test_what_there_is_comes_when_the_time_for_min_bytes_is_over(
    tmp_path: Path, is_cached: bool
) -> None:
    async def work(at: Bench) -> None:
        message = consumer(RECORDS - 1, min_bytes=1 << 20, max_wait_ms=20)
        assert offsets(only(await at.fetch(message))) == [RECORDS - 1]

    with_bench(tmp_path, work, is_cached=is_cached)


def test_min_bytes_beyond_max_bytes_are_met_by_max_bytes(tmp_path: Path) -> None:
    async def work(at: Bench) -> None:
        limits = {"min_bytes": 1 << 20, "max_bytes": BATCH_BYTES, "max_wait_ms": LONG_MS}
        assert len(offsets(only(await at.fetch(consumer(0, **limits))))) == 1

    with_bench(tmp_path, work)


def test_before_the_epoch_has_committed_a_fetch_waits(tmp_path: Path) -> None:
    async def work(at: Bench) -> None:
        await at.parked(consumer(3, max_wait_ms=LONG_MS))
        at.partition.has_committed_in_epoch = True
        at.handler.on_high_watermark()
        assert offsets(only(await at.answer()))[0] == 3

    with_bench(tmp_path, work, has_committed_in_epoch=False)


def test_an_odd_offset_that_waits_for_the_epoch_harms_no_other_fetch(tmp_path: Path) -> None:
    async def work(at: Bench) -> None:
        await at.parked(consumer(-1, max_wait_ms=30))
        other = Bench(at.served, await at.served.connect(), at.handler, at.log)
        assert only(await other.fetch(consumer(1 << 40, max_wait_ms=30))).high_watermark == -1
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


def test_a_fetch_whose_connection_is_gone_does_not_wait_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consume, "LOOK_AROUND_S", 0.02)

    async def work(at: Bench) -> None:
        await at.parked(consumer(RECORDS, max_wait_ms=2**31 - 1))
        at.client.close()
        await until(lambda: not at.handler._parked)

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


def test_the_same_partition_twice_is_answered_twice(tmp_path: Path) -> None:
    async def work(at: Bench) -> None:
        topics = consumer(1).topics + consumer(2).topics
        answer = await at.fetch(FetchRequest(max_wait_ms=0, min_bytes=1, topics=topics))
        assert [len(topic.partitions) for topic in answer.responses] == [1, 1]

    with_bench(tmp_path, work)


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


SPECIAL = {-1: (1, 8), -2: (1, 0), -3: (7, 7), -4: (8, 0), -5: (9, -1), -6: (11, 0)}


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


@pytest.mark.parametrize(
    ("timestamp", "found"),
    [(0, (0, 1000, 4)), (1045, (5, 1050, 5)), (1070, (7, 1070, 5)), (1071, (-1, -1, -1))],
)
def test_the_first_committed_record_from_a_time_on_is_found(
    tmp_path: Path, timestamp: int, found: tuple[int, int, int]
) -> None:
    async def work(at: Bench) -> None:
        row = await listed(at, timestamp)
        assert (row.error_code, row.offset, row.timestamp, row.leader_epoch) == (0, *found)

    with_bench(tmp_path, work, committed_offset=8)


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
    [(4, (4, 5)), (5, (5, 8)), (3, (3, 0)), (6, (-1, -1)), (-1, (-1, -1))],
)
def test_where_an_epoch_ends_is_bounded_by_what_is_committed(
    tmp_path: Path, version: int, epoch: int, found: tuple[int, int]
) -> None:
    async def work(at: Bench) -> None:
        row = await epoch_end(at, epoch, version=version)
        assert (row.error_code, row.leader_epoch, row.end_offset) == (0, *found)

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
