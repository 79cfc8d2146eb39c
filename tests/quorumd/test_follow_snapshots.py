"""A follower that loads a snapshot, against nodes on real sockets that fail in its midst."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any, cast

import pytest

from quorumd import (
    LeaderChanged,
    LogReplaced,
    QuorumClient,
    QuorumLost,
    Record,
    SnapshotLoaded,
)
from quorumd.client.download import CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, SnapshotDownloader
from quorumd.client.errors import ConnectionFailed, NotSupported
from quorumd.client.leader import LeaderFinder, RetriableError
from quorumd.client.timing import TRY_TIMEOUT_MS, Deadline
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.fetch import (
    FetchRequest,
    FetchResponse,
    FetchResponseCurrentLeader,
    FetchResponsePartition,
    FetchResponseSnapshotId,
    FetchResponseTopic,
)
from quorumd.wire.messages.fetch_snapshot import (
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    FetchSnapshotResponsePartition,
    FetchSnapshotResponseSnapshotId,
    FetchSnapshotResponseTopic,
)
from quorumd.wire.metadata_topic import TOPIC
from quorumd.wire.records import build_batch
from quorumd.wire.schema import Message
from tests.quorumd.fake_quorum import FakeQuorum
from tests.quorumd.followed import (
    Events,
    committed,
    elect,
    follow,
    put,
    take_snapshot,
    until_snapshot,
)
from tests.quorumd.snapshots import TIME_MS, snapshot_bytes

BROKER_HEARTBEAT = 63
"""Asked of Kafka's active controller: no quorumd node of a quorumd log offers it."""


def test_the_newest_snapshot_comes_first_with_the_records_as_they_were_in_the_log() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient, events: Events) -> None:
        assert await anext(events) == LeaderChanged(1, 1)
        loaded = await anext(events)
        assert isinstance(loaded, SnapshotLoaded)
        assert (loaded.id, str(loaded.id)) == ((2, 1), "2-1")
        assert loaded.size_bytes == len(quorum.snapshots[2, 1])
        assert loaded.last_contained_log_timestamp == TIME_MS
        expected = [
            Record(0, TIME_MS - 1, b"k%d" % number, b"v" * 50, (("h", b"x"),))
            for number in range(10)
        ]
        assert list(loaded.records()) == expected
        assert list(loaded.records()) == expected
        assert await committed(events, 1) == [(2, [b"c"])]

    def prepare(quorum: FakeQuorum) -> None:
        put(quorum, b"a")
        take_snapshot(quorum, 3)
        put(quorum, b"b")
        take_snapshot(quorum)
        put(quorum, b"c")

    follow(story, prepare=prepare)


@pytest.mark.long
def test_a_snapshot_larger_than_memory_allows_is_spooled_to_a_file_that_is_gone_afterwards() -> (
    None
):
    async def story(quorum: FakeQuorum, client: QuorumClient, events: Events) -> None:
        loaded = await until_snapshot(events)
        assert loaded.size_bytes > 2 << 20
        assert sum(1 for _ in loaded.records()) == 30_000
        put(quorum, b"c")
        await committed(events, 1)
        with pytest.raises(ValueError, match="closed file"):
            next(loaded.records())

    def prepare(quorum: FakeQuorum) -> None:
        put(quorum, b"a")
        take_snapshot(quorum, 30_000)
        quorum.piece_bytes = 100_000

    follow(story, prepare=prepare)


@pytest.mark.parametrize("piece_bytes", [1, 60, 61, 100, 1000])
def test_pieces_may_begin_and_end_anywhere(piece_bytes: int) -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient, events: Events) -> None:
        assert len(list((await until_snapshot(events)).records())) == 4

    def prepare(quorum: FakeQuorum) -> None:
        put(quorum, b"a")
        take_snapshot(quorum, 4)
        quorum.piece_bytes = piece_bytes

    follow(story, prepare=prepare)


def positions(quorum: FakeQuorum) -> list[tuple[int, int]]:
    """End offset and position of each piece that was asked for."""
    return [
        (asked.snapshot_id.end_offset, asked.position)
        for _, request in quorum.requests
        if isinstance(request, FetchSnapshotRequest)
        for asked in request.topics[0].partitions
    ]


def test_a_download_goes_on_at_its_position_when_the_leader_is_killed() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient, events: Events) -> None:
        is_first = [True]

        def kill(node: int, request: Message, response: Message) -> Message | None:
            is_third = isinstance(request, FetchSnapshotRequest) and len(positions(quorum)) == 3
            if is_third and is_first:
                is_first.clear()
                elect(quorum, 2)
                return None
            return response

        quorum.before_answer = kill
        loaded = await until_snapshot(events)
        assert len(list(loaded.records())) == 10
        asked = positions(quorum)
        assert asked[:4] == [(1, 0), (1, 300), (1, 600), (1, 600)]
        assert asked == sorted(asked)
        # Another epoch: the new leader was asked for it before the piece.
        fetched_from = [node for node, request in quorum.requests if _is_replica_fetch(request)]
        assert fetched_from == [1, 1, 2]

    def prepare(quorum: FakeQuorum) -> None:
        put(quorum, b"a")
        take_snapshot(quorum)
        quorum.piece_bytes = 300

    follow(story, prepare=prepare)


def _is_replica_fetch(request: Message) -> bool:
    return (
        isinstance(request, FetchRequest)
        and request.topics[0].partitions[0].last_fetched_epoch >= 0
    )


def failing(error: ErrorCode, *, top_level: bool) -> Callable[[Message, Message], Message]:
    def fail(request: Message, response: Message) -> Message:
        assert isinstance(response, FetchSnapshotResponse)
        if top_level:
            return FetchSnapshotResponse(error_code=error)
        (topic,) = response.topics
        partition = replace(topic.partitions[0], error_code=error, size=0, unaligned_records=b"")
        return replace(response, topics=(replace(topic, partitions=(partition,)),))

    return fail


@pytest.mark.parametrize(
    ("error", "top_level"),
    [
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, False),
        (ErrorCode.FENCED_LEADER_EPOCH, False),
        (ErrorCode.UNKNOWN_LEADER_EPOCH, False),
        (ErrorCode.SNAPSHOT_NOT_FOUND, False),
        (ErrorCode.POSITION_OUT_OF_RANGE, False),
        (ErrorCode.UNKNOWN_SERVER_ERROR, True),
    ],
)
def test_after_an_error_the_leader_is_asked_again_which_snapshot_to_load(
    error: ErrorCode, top_level: bool
) -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient, events: Events) -> None:
        def answer(node: int, request: Message, response: Message) -> Message:
            is_second = isinstance(request, FetchSnapshotRequest) and len(positions(quorum)) == 2
            return failing(error, top_level=top_level)(request, response) if is_second else response

        quorum.before_answer = answer
        assert len(list((await until_snapshot(events)).records())) == 10
        fetches = [_is_replica_fetch(request) for _, request in quorum.requests]
        assert fetches.count(True) == 3
        begins_anew = error in (
            ErrorCode.SNAPSHOT_NOT_FOUND,
            ErrorCode.POSITION_OUT_OF_RANGE,
            ErrorCode.UNKNOWN_SERVER_ERROR,
        )
        assert positions(quorum)[2] == (1, 0 if begins_anew else 300)

    def prepare(quorum: FakeQuorum) -> None:
        put(quorum, b"a")
        take_snapshot(quorum)
        quorum.piece_bytes = 300

    follow(story, prepare=prepare)


def test_a_kafka_controller_is_not_asked_for_a_position_that_ends_it() -> None:
    """What comes first says the size: nothing behind the first 2^31 bytes may be asked for."""

    async def run() -> None:
        async with FakeQuorum() as quorum:
            put(quorum, b"a")
            take_snapshot(quorum)
            quorum.piece_bytes = 300
            quorum.offered = (*quorum.offered, BROKER_HEARTBEAT)

            def answer(node: int, request: Message, response: Message) -> Message:
                if not isinstance(response, FetchSnapshotResponse):
                    return response
                (topic,) = response.topics
                partition = replace(topic.partitions[0], size=2**31 + 1)
                return replace(response, topics=(replace(topic, partitions=(partition,)),))

            quorum.before_answer = answer
            async with (
                QuorumClient(quorum.addresses) as client,
                aclosing(client.follow()) as events,
            ):
                with pytest.raises(NotSupported, match="would end the controller"):
                    await until_snapshot(events)
            assert positions(quorum) == [(1, 0)]

    asyncio.run(run())


def test_a_snapshot_that_vanishes_in_the_middle_is_given_up_for_the_newer_one() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient, events: Events) -> None:
        def replace_it(node: int, request: Message, response: Message) -> Message:
            if isinstance(request, FetchSnapshotRequest) and len(positions(quorum)) == 2:
                put(quorum, b"b")
                quorum.snapshots.clear()
                take_snapshot(quorum, 5)
            return response

        quorum.before_answer = replace_it
        loaded = await until_snapshot(events)
        assert loaded.id == (2, 1)
        assert len(list(loaded.records())) == 5
        assert positions(quorum)[:4] == [(1, 0), (1, 300), (1, 600), (2, 0)]

    def prepare(quorum: FakeQuorum) -> None:
        put(quorum, b"a")
        take_snapshot(quorum)
        quorum.piece_bytes = 300

    follow(story, prepare=prepare)


def test_a_reader_that_the_logs_start_has_overtaken_loads_the_newer_snapshot() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient, events: Events) -> None:
        put(quorum, b"a")
        await committed(events, 1)
        for node in quorum.nodes.values():
            await node.stop()
        for value in (b"b", b"c", b"d"):
            put(quorum, value)
        take_snapshot(quorum)
        put(quorum, b"e")
        for node in quorum.nodes.values():
            await node.start()
        assert (await until_snapshot(events)).id == (4, 1)
        assert await committed(events, 1) == [(4, [b"e"])]

    follow(story)


def test_records_of_an_older_epoch_do_not_continue_a_snapshot() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient, events: Events) -> None:
        assert (await until_snapshot(events)).id == (2, 2)
        quorum.epoch = 1
        put(quorum, b"x")
        with pytest.raises(LogReplaced, match=r"from offset 2, epoch 2: .* offset 2, epoch 1"):
            await committed(events, 1)

    def prepare(quorum: FakeQuorum) -> None:
        put(quorum, b"a")
        quorum.elect(2)
        put(quorum, b"b")
        take_snapshot(quorum)

    follow(story, prepare=prepare)


@pytest.mark.long
def test_a_download_that_took_so_long_that_the_log_has_moved_on_again_is_followed_by_another() -> (
    None
):
    async def story(quorum: FakeQuorum, client: QuorumClient, events: Events) -> None:
        put(quorum, b"a")
        await committed(events, 1)
        put(quorum, b"b")
        size = len(take_snapshot(quorum, 200))
        quorum.piece_bytes = 10

        def move_on(node: int, request: Message, response: Message) -> Message:
            asked = positions(quorum)
            if asked and asked[-1] == (2, (size - 1) // 10 * 10):
                quorum.before_answer = None
                put(quorum, b"c")
                take_snapshot(quorum, 1)
            return response

        quorum.before_answer = move_on
        loop = asyncio.get_running_loop()
        started = loop.time()
        assert (await until_snapshot(events)).id == (2, 1)
        assert loop.time() > started + 0.2
        assert (await until_snapshot(events)).id == (3, 1)

    follow(story, timeout_ms=200)


@pytest.mark.parametrize("seed", range(6))
def test_whatever_fails_the_same_snapshot_arrives(seed: int) -> None:
    chance = random.Random(seed)

    def disturb(quorum: FakeQuorum, response: Message) -> Message | None:
        if chance.random() < 0.05:
            elect(quorum, chance.randint(1, 3))
        return None if chance.random() < 0.1 else response

    async def story(quorum: FakeQuorum, client: QuorumClient, events: Events) -> None:
        quorum.before_answer = lambda node, request, response: disturb(quorum, response)
        loaded = await until_snapshot(events)
        assert len(list(loaded.records())) == 60

    def prepare(quorum: FakeQuorum) -> None:
        put(quorum, b"a")
        take_snapshot(quorum, 60)
        quorum.piece_bytes = 500

    follow(story, prepare=prepare)


def damaged(kind: str) -> bytes:
    contents = {b"a": (b"1", 0), b"b": (b"2", 0)}
    good = snapshot_bytes(contents, records_per_batch=1)
    at = good.index(b"quorumd.offset")
    return {
        "a flipped bit": good[:at] + b"Q" + good[at + 1 :],
        "no footer": snapshot_bytes(contents, has_footer=False),
        "no header": snapshot_bytes(contents)[len(snapshot_bytes({}, has_footer=False)) :],
        "another epoch": snapshot_bytes(contents, epoch=7),
        "something behind the footer": good + build_batch([Record(value=b"x")], epoch=1),
        "an impossible size": good[:8] + b"\x7f\xff\xff\xff" + good[12:],
        "no batches": b"\xff" * 500,
    }[kind]


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("a flipped bit", "the CRC does not match"),
        ("no footer", "it ends without a footer"),
        ("no header", "a batch with offset 1 where 0 must follow"),
        ("another epoch", "a batch of epoch 7 in a snapshot of epoch 1"),
        ("something behind the footer", "a batch behind the footer"),
        ("an impossible size", "a batch of 2147483659 bytes"),
        ("no batches", "magic is -1"),
    ],
)
def test_a_damaged_snapshot_is_never_handed_out(kind: str, reason: str) -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient, events: Events) -> None:
        quorum.snapshots[1, 1] = damaged(kind)
        while not isinstance(event := await anext(events), QuorumLost):
            assert not isinstance(event, SnapshotLoaded)
        assert f"sent a damaged snapshot 1-1: {reason}" in str(event.error)
        # It may have been damaged on its way: the next try is as good as the first.
        quorum.snapshots[1, 1] = snapshot_bytes({b"a": (b"1", 0)})
        assert [record.key for record in (await until_snapshot(events)).records()] == [b"a"]

    def prepare(quorum: FakeQuorum) -> None:
        put(quorum, b"a")

    follow(story, prepare=prepare, timeout_ms=2000)


@pytest.mark.long
def test_a_line_that_is_too_slow_for_large_pieces_gets_small_ones() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient, events: Events) -> None:
        quorum.before_answer = lambda node, request, response: (
            None
            if isinstance(request, FetchSnapshotRequest) and request.max_bytes > 100_000
            else response
        )
        assert sum(1 for _ in (await until_snapshot(events)).records()) == 10_000

    def prepare(quorum: FakeQuorum) -> None:
        put(quorum, b"a")
        take_snapshot(quorum, 10_000)

    follow(story, prepare=prepare)


@pytest.mark.long
def test_a_leader_that_sends_nothing_of_its_snapshot_is_not_asked_for_ever_without_a_pause() -> (
    None
):
    async def story(quorum: FakeQuorum, client: QuorumClient, events: Events) -> None:
        quorum.piece_bytes = 0
        while not isinstance(event := await anext(events), QuorumLost):
            pass
        assert "sent nothing at position 0 of" in str(event.error)
        assert len(positions(quorum)) < 50

    def prepare(quorum: FakeQuorum) -> None:
        put(quorum, b"a")
        take_snapshot(quorum)

    follow(story, prepare=prepare, timeout_ms=2000)


def test_the_epoch_is_learnt_from_the_leader_where_nobody_else_says_it() -> None:
    async def run() -> None:
        async with FakeQuorum(offered=(0, 1, 2, 18, 22, 55, 59, 60)) as quorum:
            quorum.epoch = 7
            put(quorum, b"a")
            take_snapshot(quorum)
            async with (
                QuorumClient(quorum.addresses, timeout_ms=1000) as client,
                aclosing(client.follow()) as events,
            ):
                assert await anext(events) == LeaderChanged(1, 7)
                assert (await until_snapshot(events)).id == (1, 7)

    asyncio.run(run())


def test_the_progress_of_a_download_is_told_in_bytes() -> None:
    seen: list[tuple[int, int]] = []

    async def run() -> None:
        async with FakeQuorum() as quorum:
            put(quorum, b"a")
            size = len(take_snapshot(quorum))
            quorum.piece_bytes = 500
            async with (
                QuorumClient(quorum.addresses) as client,
                aclosing(
                    client.follow(on_progress=lambda done, total: seen.append((done, total)))
                ) as events,
            ):
                await until_snapshot(events)
            assert seen == [(min(done, size), size) for done in range(500, size + 500, 500)]

    asyncio.run(run())


def test_a_temporary_directory_without_room_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: object, size: int) -> None:
        raise OSError(28, "No space left on device")

    async def story(quorum: FakeQuorum, client: QuorumClient, events: Events) -> None:
        monkeypatch.setattr("tempfile.SpooledTemporaryFile.write", full)
        with pytest.raises(Exception, match=r"can't be stored in .*No space left.* TMPDIR"):
            await until_snapshot(events)

    def prepare(quorum: FakeQuorum) -> None:
        put(quorum, b"a")
        take_snapshot(quorum)

    follow(story, prepare=prepare)


class Answers:
    """The leader, who gives the answers of a test to what it is asked."""

    address = "the leader"
    epoch = 3

    def __init__(self, answer: Callable[[Message], Message]) -> None:
        self.answer = answer
        self.asked: list[Message] = []
        self.waits_s: list[float] = []

    async def at_leader(self, goal: str, deadline: Deadline, act: Any) -> Any:
        return await act(self)

    def version_for(self, request_type: type[Message]) -> int:
        return 17

    def offers(self, request_type: type[Message]) -> bool:
        return False

    async def request(self, message: Message, _: type[Message], *, timeout_s: float) -> Message:
        self.asked.append(message)
        self.waits_s.append(timeout_s)
        return self.answer(message)


def offering(**fields: Any) -> FetchResponse:
    """The answer to a Fetch of a leader in epoch 3 whose snapshot is 50-2."""
    partition = FetchResponsePartition(
        partition_index=0,
        high_watermark=100,
        current_leader=FetchResponseCurrentLeader(leader_id=1, leader_epoch=3),
        snapshot_id=FetchResponseSnapshotId(end_offset=50, epoch=2),
        **{"error_code": 0, **fields},
    )
    return FetchResponse(responses=(FetchResponseTopic(topic=TOPIC, partitions=(partition,)),))


def downloading(answer: Callable[[Message], Message]) -> tuple[Answers, SnapshotDownloader]:
    leader = Answers(answer)
    return leader, SnapshotDownloader(cast(LeaderFinder, leader), timeout_ms=60_000)


def test_a_snapshot_that_ends_where_its_reader_is_brings_nothing() -> None:
    leader, download = downloading(lambda request: offering())
    assert asyncio.run(download.newest_above(50)) is None
    assert [type(each) for each in leader.asked] == [FetchRequest]


def test_a_piece_of_another_place_than_was_asked_for_is_not_taken() -> None:
    def skip(request: Message) -> Message:
        if isinstance(request, FetchRequest):
            return offering()
        piece = FetchSnapshotResponsePartition(
            index=0,
            error_code=0,
            snapshot_id=FetchSnapshotResponseSnapshotId(end_offset=50, epoch=2),
            size=1000,
            position=1,
            unaligned_records=bytes(10),
        )
        topic = FetchSnapshotResponseTopic(name=TOPIC, partitions=(piece,))
        return FetchSnapshotResponse(throttle_time_ms=0, error_code=0, topics=(topic,))

    _, download = downloading(skip)
    with pytest.raises(ConnectionFailed, match="sent position 1 instead of 0"):
        asyncio.run(download.newest_above(49))
    download.close()


def test_pieces_have_a_least_size_and_each_the_time_of_a_try() -> None:
    def fail(request: Message) -> Message:
        if isinstance(request, FetchRequest):
            return offering()
        raise ConnectionFailed("closed the connection")

    leader, download = downloading(fail)
    for _ in range(10):
        with pytest.raises(ConnectionFailed):
            asyncio.run(download.newest_above(49))
    download.close()
    sizes = [each.max_bytes for each in leader.asked if isinstance(each, FetchSnapshotRequest)]
    assert sizes[:3] == [CHUNK_BYTES_MAX, CHUNK_BYTES_MAX // 2, CHUNK_BYTES_MAX // 4]
    assert sizes[-2:] == [CHUNK_BYTES_MIN, CHUNK_BYTES_MIN]
    assert set(leader.waits_s) == {TRY_TIMEOUT_MS / 1000}


def test_an_epoch_that_is_refused_and_named_again_is_not_asked_with_for_ever() -> None:
    refused = int(ErrorCode.FENCED_LEADER_EPOCH)

    def refuse_twice(request: Message) -> Message:
        assert len(leader.asked) < 3
        return offering(error_code=refused)

    leader, download = downloading(refuse_twice)
    with pytest.raises(RetriableError):
        asyncio.run(download.newest_above(0))
    assert len(leader.asked) == 1
