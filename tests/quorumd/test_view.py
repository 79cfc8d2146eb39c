"""The key-value view: what the log amounts to, kept up to date."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

import pytest

from quorumd import (
    BatchCommitted,
    KeyChange,
    KeyValueEntry,
    KeyValueMap,
    KeyValueView,
    NotSupported,
    OffsetNotReached,
    OffsetOutOfRange,
    QuorumClient,
    QuorumUnavailable,
    Record,
)
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.fetch import FetchRequest, FetchResponse
from quorumd.wire.records import build_batch
from quorumd.wire.schema import Message
from tests.quorumd.fake_quorum import FakeQuorum
from tests.quorumd.snapshots import TIME_MS, snapshot_bytes


def with_quorum(
    story: Callable[[FakeQuorum, QuorumClient], Awaitable[None]], *, timeout_ms: int = 5000
) -> None:
    async def run() -> None:
        async with (
            FakeQuorum() as quorum,
            QuorumClient(quorum.addresses, timeout_ms=timeout_ms) as client,
        ):
            await story(quorum, client)

    asyncio.run(run())


def batch(offset: int, *pairs: tuple[bytes | None, bytes | None]) -> BatchCommitted:
    records = tuple(Record(offset + at, 5, key, value) for at, (key, value) in enumerate(pairs))
    return BatchCommitted(offset, offset + len(pairs), 1, 5, records)


def applied(
    *batches: BatchCommitted, key_filter: Callable[[bytes], bool] | None = None
) -> KeyValueMap:
    view = KeyValueMap(key_filter=key_filter)

    async def run() -> None:
        for each in batches:
            await view.apply(each)

    asyncio.run(run())
    return view


# --- the rule


def test_the_newest_value_counts_null_deletes_and_records_without_a_key_are_passed_over() -> None:
    view = applied(
        batch(0, (b"a", b"1"), (None, b"x"), (b"b", b""), (b"", b"empty key")),
        batch(4, (b"a", b"2"), (b"b", None), (b"never there", None)),
    )
    assert view.entries == {b"a": KeyValueEntry(b"2", 4, 5), b"": KeyValueEntry(b"empty key", 3, 5)}
    assert view.offset == 7


def test_only_keys_that_are_wanted_take_memory() -> None:
    view = applied(batch(0, (b"a", b"1"), (b"b", b"2")), key_filter=lambda key: key == b"b")
    assert view.entries == {b"b": KeyValueEntry(b"2", 1, 5)}


@pytest.mark.parametrize("seed", range(10))
def test_the_map_is_that_of_a_dictionary_and_changes_lead_from_one_state_to_the_next(
    seed: int,
) -> None:
    chance = random.Random(seed)
    model: dict[bytes, bytes] = {}
    replayed: dict[bytes, bytes] = {}

    def replay(change: KeyChange) -> None:
        if change.value is None:
            del replayed[change.key]
        else:
            replayed[change.key] = change.value

    async def run() -> None:
        view = KeyValueMap(on_change=replay)
        offset = 0
        for _ in range(60):
            pairs: list[tuple[bytes | None, bytes | None]] = []
            for _ in range(chance.randint(1, 4)):
                key = b"%d" % chance.randint(0, 9)
                value = chance.choice([None, b"%d" % chance.randint(0, 99)])
                pairs.append((key, value))
                if value is None:
                    model.pop(key, None)
                else:
                    model[key] = value
            await view.apply(batch(offset, *pairs))
            offset = view.offset
            assert {key: entry.value for key, entry in view.entries.items()} == model == replayed

    asyncio.run(run())


# --- kept up to date


def test_a_view_holds_what_was_committed_before_and_what_comes() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        await client.append([Record(key=b"a/1", value=b"x"), Record(value=b"no key")])
        async with KeyValueView(client) as view:
            found = view.get(b"a/1")
            assert found is not None
            assert (found.value, found.offset, view.offset) == (b"x", 0, 2)
            (offset,) = await client.append([Record(key=b"a/0", value=b"y")])
            await view.wait_for(offset)
            await client.append([Record(key=b"b", value=b"z")])
            await view.wait_for(3)
            assert [key for key, _ in view.items()] == [b"a/0", b"a/1", b"b"]
            assert [key for key, _ in view.items(b"a/")] == [b"a/0", b"a/1"]
            assert view.get(b"nothing") is None
            assert len(view) == 3

    with_quorum(story)


def test_a_view_that_was_not_entered_does_not_say_that_a_key_has_no_value() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        await client.append([Record(key=b"a", value=b"1")])
        view = KeyValueView(client)
        for read in (lambda: view.get(b"a"), view.items):
            with pytest.raises(RuntimeError, match="this view was not entered"):
                read()
        for change in (lambda: view.wait_for(0), lambda: view.update(b"a", lambda value: value)):
            with pytest.raises(RuntimeError, match="this view was not entered"):
                await change()
        assert quorum.end_offset == 1
        async with view:
            pass
        entry = view.get(b"a")
        assert entry is not None
        assert entry.value == b"1"

    with_quorum(story)


@pytest.mark.parametrize("key", ["a", 5, None])
def test_a_key_that_is_no_bytes_is_refused_and_not_said_to_have_no_value(key: Any) -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        async with KeyValueView(client) as view:
            with pytest.raises(TypeError, match=r"a key is of type (str|int|NoneType): give bytes"):
                view.get(key)
            with pytest.raises(TypeError, match=r"a key is of type (str|int|NoneType): give bytes"):
                await view.update(key, lambda value: b"new")
        assert quorum.end_offset == 0

    with_quorum(story)


@pytest.mark.parametrize("prefix", ["a", None, 5])
def test_a_prefix_that_is_no_bytes_is_refused_at_once(prefix: Any) -> None:
    with pytest.raises(TypeError, match=r"the prefix of a view is of type (str|int|NoneType)"):
        KeyValueView(QuorumClient("127.0.0.1:1"), prefix=prefix)


def test_a_view_that_was_left_is_read_and_neither_changes_nor_waits() -> None:
    """It learns of no change: after one it had waited for its own until the timeout, for nothing."""

    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        view = KeyValueView(client)
        async with view:
            await view.update(b"a", lambda _: b"1")
            waiting = asyncio.create_task(view.wait_for(100, timeout_ms=60_000))
            await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="this view was left"):
            await waiting
        with pytest.raises(RuntimeError, match="this view was left"):
            await view.update(b"a", lambda _: b"2")
        with pytest.raises(RuntimeError, match="this view was left"):
            await view.wait_for(0)
        entry = view.get(b"a")
        assert entry is not None
        assert (entry.value, quorum.end_offset) == (b"1", 1)

    with_quorum(story)


def test_a_change_that_is_committed_as_its_view_is_left_returns() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        view = KeyValueView(client)
        async with view, view.transaction() as transaction:
            transaction.put(b"a", b"1")
            await view.__aexit__(None, None, None)
        assert transaction.offset == 0

    with_quorum(story)


def test_a_key_may_be_bytes_of_any_kind() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        await client.append([Record(key=bytearray(b"a"), value=b"1")])
        async with KeyValueView(client) as view:
            kinds: list[Any] = [bytearray(b"a"), memoryview(b"a"), memoryview(bytearray(b"a"))]
            assert [entry.value for key in kinds if (entry := view.get(key))] == [b"1"] * 3

    with_quorum(story)


def test_a_view_that_is_entered_again_does_not_go_back() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        # More than one response of the leader has.
        for number in range(10):
            blob = Record(key=b"blob", value=bytes(900_000))
            await client.append([Record(key=b"a", value=b"%d" % number), blob])
        view = KeyValueView(client)
        for _ in range(2):
            async with view:
                offset = view.offset
                with pytest.raises(RuntimeError, match="entered already: make another one"):
                    await view.__aenter__()
                for _ in range(200):
                    await asyncio.sleep(0)
                    assert (len(view), view.offset) == (2, offset)
                found = view.get(b"a")
                assert found is not None
                assert found.value == b"9"
        quorum.elect(0)
        with pytest.raises(QuorumUnavailable):
            await view.__aenter__()
        quorum.elect(1)
        async with view:
            assert view.problem is None

    with_quorum(story, timeout_ms=2000)


def test_a_view_of_a_prefix_holds_only_that() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        await client.append([Record(key=key, value=b"x") for key in (b"a/1", b"b/1")])
        async with KeyValueView(client, prefix=b"b/") as view:
            assert [key for key, _ in view.items()] == [b"b/1"]

    with_quorum(story)


def test_control_records_at_the_end_are_no_reason_to_wait() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        quorum.append(build_batch([Record(key=b"\0\0\0\2", value=b"x")], is_control=True))
        async with KeyValueView(client) as view:
            assert (view.offset, view.items()) == (1, [])

    with_quorum(story)


def test_a_view_begins_with_the_snapshot_and_goes_over_to_a_newer_one() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        quorum.append(build_batch([Record(key=b"z", value=b"z")] * 5))
        quorum.snapshots[5, 1] = snapshot_bytes({b"a": (b"1", 0), b"b": (b"2", 4)})
        quorum.log_start_offset = 5
        await client.append([Record(key=b"c", value=b"3")])
        async with KeyValueView(client) as view:
            seen = {key: entry[:2] for key, entry in view.items()}
            assert seen == {b"a": (b"1", 0), b"b": (b"2", 4), b"c": (b"3", 5)}
            assert view.get(b"a") == KeyValueEntry(b"1", 0, TIME_MS - 1)
            for node in quorum.nodes.values():
                await node.stop()
            quorum.append(build_batch([Record(key=b"a", value=None)] * 4))
            quorum.snapshots[10, 1] = snapshot_bytes({b"b": (b"2", 4), b"c": (b"4", 9)})
            quorum.log_start_offset = 10
            for node in quorum.nodes.values():
                await node.start()
            await view.wait_for(9)
            assert [(key, entry.value) for key, entry in view.items()] == [
                (b"b", b"2"),
                (b"c", b"4"),
            ]

    with_quorum(story)


def test_the_differences_between_two_snapshots_are_told_in_the_order_of_the_log() -> None:
    seen: list[KeyChange] = []

    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        quorum.append(build_batch([Record(key=b"z", value=b"z")] * 20))
        quorum.snapshots[5, 1] = snapshot_bytes({b"a": (b"1", 0), b"b": (b"2", 4), b"d": (b"5", 1)})
        view = KeyValueMap()
        async for event in client.follow():
            await view.apply(event)
            if view.offset == 5:
                view.on_change = seen.append
                quorum.snapshots[20, 1] = snapshot_bytes(
                    {b"b": (b"2", 9), b"c": (b"3", 7), b"d": (b"5", 1)}
                )
                quorum.log_start_offset = 20
            if view.offset == 20:
                break

    with_quorum(story)
    assert seen == [
        KeyChange(b"c", b"3", 7, TIME_MS - 1),
        KeyChange(b"b", b"2", 9, TIME_MS - 1),
        KeyChange(b"a", None, 19, TIME_MS),
    ]


@pytest.mark.parametrize("is_snapshot", [False, True])
def test_others_run_while_much_is_read(is_snapshot: bool) -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        keys = [b"%06d" % number for number in range(20_000)]
        if is_snapshot:
            quorum.append(build_batch([Record(value=b"z")]))
            contents = dict.fromkeys(keys, (b"v", 0))
            quorum.snapshots[1, 1] = snapshot_bytes(contents, records_per_batch=1000)
            quorum.log_start_offset = 1
        for first in range(0, 0 if is_snapshot else 20_000, 1000):
            named = keys[first : first + 1000]
            quorum.append(build_batch([Record(key=key, value=b"v") for key in named]))
        turns = 0
        read_in_turn: list[int] = []

        async def tick() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        def key_filter(key: bytes) -> bool:
            read_in_turn.append(turns)
            return True

        view = KeyValueMap(key_filter=key_filter)
        ticking = asyncio.create_task(tick())
        async with aclosing(client.follow()) as events:
            while len(view.entries) < 20_000:
                await view.apply(await anext(events))
        ticking.cancel()
        assert max(Counter(read_in_turn).values()) <= 2000

    with_quorum(story)


def test_a_record_that_does_not_come_is_waited_for_no_longer_than_asked() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        await client.append([Record(key=b"a", value=b"x")])
        async with KeyValueView(client) as view:
            with pytest.raises(OffsetNotReached, match=r"offset 7 was not reached within 0\.1 s"):
                await view.wait_for(7, timeout_ms=100)
            await view.wait_for(0, timeout_ms=100)

    with_quorum(story)


def test_an_outage_is_the_problem_of_a_view_until_it_is_over() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        await client.append([Record(key=b"a", value=b"x")])
        async with KeyValueView(client) as view:
            assert view.problem is None
            for node in quorum.nodes.values():
                await node.stop()
            with pytest.raises(OffsetNotReached) as raised:
                await view.wait_for(1, timeout_ms=800)
            assert view.problem is not None
            assert raised.value.__cause__ is view.problem
            assert view.get(b"a") is not None
            for node in quorum.nodes.values():
                await node.start()
            (offset,) = await client.append([Record(key=b"a", value=b"y")], timeout_ms=5000)
            await view.wait_for(offset, timeout_ms=5000)
            assert view.problem is None

    with_quorum(story, timeout_ms=300)


def test_a_view_that_cannot_go_on_says_so_instead_of_growing_old() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        await client.append([Record(key=b"a", value=b"x")])
        await client.append([Record(key=b"a", value=b"y")])
        async with KeyValueView(client) as view:
            quorum.log, quorum.end_offset = quorum.log[:1], 1
            with pytest.raises(OffsetOutOfRange):
                await view.wait_for(9, timeout_ms=5000)
            with pytest.raises(OffsetOutOfRange):
                async with view.transaction():
                    pass
            with pytest.raises(OffsetOutOfRange):
                view.get(b"a")
            with pytest.raises(OffsetOutOfRange):
                view.items()
        async with view:
            assert [(key, entry.value) for key, entry in view.items()] == [(b"a", b"x")]

    with_quorum(story, timeout_ms=300)


def test_a_view_of_nothing_that_can_be_reached_is_not_entered() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        quorum.leader_id = -1
        with pytest.raises(QuorumUnavailable):
            await KeyValueView(client).__aenter__()

    with_quorum(story, timeout_ms=200)


def test_a_quorum_that_is_lost_while_a_view_is_entered_is_an_error() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        await client.append([Record(key=b"a", value=b"x")])
        client.list_offsets = _far_away  # type: ignore[assignment,method-assign]  # an end that is never reached
        entering = asyncio.create_task(KeyValueView(client).__aenter__())
        await asyncio.wait([entering], timeout=0.3)
        for node in quorum.nodes.values():
            await node.stop()
        with pytest.raises(QuorumUnavailable):
            await entering

    with_quorum(story, timeout_ms=300)


def test_a_view_whose_entering_is_cancelled_reads_no_more_and_is_entered_again() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        asked = client.list_offsets
        client.list_offsets = _far_away  # type: ignore[assignment,method-assign]  # an end that is never reached
        view = KeyValueView(client)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await view.__aenter__()
        client.list_offsets = asked  # type: ignore[method-assign]  # as it was
        async with view:
            assert len(view) == 0

    with_quorum(story)


def test_an_outage_before_the_first_answer_to_its_reader_ends_no_view() -> None:
    """It is entered: the leader was reached, and there was nothing to read."""

    def refuse(_: int, request: Message, answer: Message) -> Message:
        is_read = isinstance(request, FetchRequest)
        return FetchResponse(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER) if is_read else answer

    async def story(quorum: FakeQuorum, client: QuorumClient) -> None:
        quorum.before_answer = refuse
        async with KeyValueView(client) as view:
            while view.problem is None:
                await asyncio.sleep(0.01)
                view.get(b"a")
            quorum.before_answer = None
            (offset,) = await client.append([Record(key=b"a", value=b"1")], timeout_ms=5000)
            await view.wait_for(offset, timeout_ms=5000)
            assert (len(view), view.problem) == (1, None)

    with_quorum(story, timeout_ms=300)


async def _far_away(timestamp: int) -> object:
    from quorumd import OffsetAndTimestamp

    return OffsetAndTimestamp(1000, -1)


def test_a_server_of_another_kind_is_refused() -> None:
    async def run() -> None:
        async with (
            FakeQuorum(offered=(18, 3, 2)) as quorum,
            QuorumClient(quorum.addresses) as client,
        ):
            quorum.append(build_batch([Record(value=b"x")]))
            with pytest.raises(NotSupported, match="does not offer Fetch"):
                await KeyValueView(client).__aenter__()

    asyncio.run(run())
