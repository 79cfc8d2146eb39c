"""Updates and transactions of a view: all or nothing, on what was read, and again after a conflict."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable

import pytest

from quorumd import (
    AppendFailed,
    Conflict,
    KeyValueView,
    QuorumClient,
    Record,
    Retry,
    Transaction,
    Updated,
)
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.fetch import FetchResponse
from quorumd.wire.records import build_batch
from quorumd.wire.schema import Message
from tests.quorumd.fake_quorum import FakeQuorum
from tests.quorumd.snapshots import snapshot_bytes

Story = Callable[[FakeQuorum, QuorumClient, KeyValueView], Awaitable[None]]


def with_view(story: Story, *keys: bytes, prefix: bytes = b"") -> None:
    """These keys have the value `old`."""

    async def run() -> None:
        async with FakeQuorum() as quorum, QuorumClient(quorum.addresses) as client:
            put(quorum, *((key, b"old") for key in keys))
            async with asyncio.timeout(30), KeyValueView(client, prefix=prefix) as view:
                await story(quorum, client, view)

    asyncio.run(run())


def put(quorum: FakeQuorum, *pairs: tuple[bytes, bytes | None]) -> None:
    """Somebody else writes, a batch each."""
    for key, value in pairs:
        quorum.append(build_batch([Record(timestamp=1, key=key, value=value)]))


def stop_fetches(quorum: FakeQuorum) -> None:
    """No view learns anything any more."""

    def before_answer(_: int, request: Message, answer: Message) -> Message | None:
        return None if isinstance(answer, FetchResponse) else answer

    quorum.before_answer = before_answer


def one_more(value: bytes | None) -> bytes:
    return b"%d" % (int(value or b"0") + 1)


# --- update


def test_an_update_returns_value_and_offset_and_the_view_has_it() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient, view: KeyValueView) -> None:
        assert await view.update(b"n", one_more) == Updated(b"1", 1)
        assert await view.update(b"n", one_more) == (b"2", 2)
        entry = view.get(b"n")
        assert entry is not None
        assert entry[:2] == (b"2", 2)
        assert await view.update(b"old", lambda value: None) == Updated(None, 3)
        assert view.get(b"old") is None
        assert quorum.end_offset == 4

    with_view(story, b"old")


def test_no_increment_of_many_tasks_and_views_is_lost() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient, view: KeyValueView) -> None:
        async with KeyValueView(client) as other:
            changes = [each.update(b"n", one_more) for each in (view, other) for _ in range(8)]
            updated = await asyncio.gather(*changes)
        assert sorted(int(value or b"") for value, _ in updated) == list(range(1, 17))
        assert quorum.end_offset == 16

    with_view(story)


def test_a_function_that_fails_ends_the_update_and_nothing_is_written() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient, view: KeyValueView) -> None:
        with pytest.raises(ZeroDivisionError):
            await view.update(b"a", lambda value: b"%d" % (1 // 0))
        assert quorum.end_offset == 1

    with_view(story, b"a")


def test_an_async_function_is_refused_and_nothing_is_written() -> None:
    async def change(transaction: Transaction) -> None:
        transaction.put(b"a", b"new")

    async def story(quorum: FakeQuorum, client: QuorumClient, view: KeyValueView) -> None:
        with pytest.raises(
            TypeError, match=r"is async: give a plain one, or use view.transaction\(\)"
        ):
            await view.transact(change)
        with pytest.raises(TypeError, match="is async: give a plain one"):
            await view.update(b"a", change)  # type: ignore[arg-type]  # which mypy would tell
        assert quorum.end_offset == 1

    with_view(story, b"a")


# --- what a transaction reads


def test_a_transaction_reads_the_map_of_its_begin_or_nothing() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient, view: KeyValueView) -> None:
        async def body() -> None:
            async with view.transaction() as t:
                assert t.since == 3
                put(quorum, (b"a", b"new"), (b"b", None), (b"new", b"new"))
                await view.wait_for(5)
                assert t.get(b"c") == b"old"
                for at, key in enumerate((b"a", b"b", b"new"), 3):
                    with pytest.raises(Conflict) as conflict:
                        t.get(key)
                    assert (conflict.value.key, conflict.value.offset) == (key, at)
                t.put(b"d", b"never")

        with pytest.raises(Conflict):
            await body()
        assert quorum.end_offset == 6

    with_view(story, b"a", b"b", b"c")


def test_what_a_snapshot_brings_is_a_change_as_well() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient, view: KeyValueView) -> None:
        async with view.transaction() as t:
            for node in quorum.nodes.values():
                await node.stop()
            put(quorum, *((b"c", b"new") for _ in range(3)))
            quorum.snapshots[6, 1] = snapshot_bytes({b"a": (b"old", 0), b"c": (b"new", 5)})
            quorum.log_start_offset = 6
            for node in quorum.nodes.values():
                await node.start()
            await view.wait_for(5)
            for key in (b"b", b"c"):
                with pytest.raises(Conflict, match="at offset 5"):
                    t.get(key)
            assert t.get(b"a") == b"old"
            t.put(b"d", b"new")

    with pytest.raises(Conflict):
        with_view(story, b"a", b"b", b"c")


def test_a_transaction_sees_its_own_changes() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient, view: KeyValueView) -> None:
        async with view.transaction() as t:
            t.put(b"a", b"1")
            assert t.update(b"a", one_more) == b"2"
            t.delete(b"b")
            assert (t.get(b"a"), t.get(b"b")) == (b"2", None)
            assert view.get(b"b") is not None
        assert t.offset == view.offset - 1 == 3
        assert [(r.key, r.value) for r in quorum.records()][2:] == [(b"a", b"2"), (b"b", None)]

    with_view(story, b"a", b"b")


def test_a_key_that_the_view_leaves_out_may_be_written_and_not_read() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient, view: KeyValueView) -> None:
        async with view.transaction() as t:
            t.put(b"other", b"1")
            assert t.get(b"jobs/1") == b"old"
            with pytest.raises(ValueError, match="is not in this view"):
                t.get(b"elsewhere")
        assert list(quorum.records())[-1].key == b"other"

    with_view(story, b"jobs/1", prefix=b"jobs/")


# --- what a transaction writes


@pytest.mark.parametrize("changed", [b"read", b"absent", b"written", b"both"])
def test_a_key_that_somebody_else_writes_meanwhile_refuses_everything(changed: bytes) -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient, view: KeyValueView) -> None:
        async def body() -> None:
            async with view.transaction() as t:
                assert t.get(b"read") == b"old"
                assert t.get(b"absent") is None
                t.put(b"written", b"new")
                t.update(b"both", lambda value: b"new")
                put(quorum, (changed, b"theirs"))

        with pytest.raises(Conflict) as conflict:
            await body()
        assert (conflict.value.key, conflict.value.offset) == (changed, 3)
        assert quorum.end_offset == 4

    with_view(story, b"read", b"written", b"both")


def test_all_changes_are_one_batch() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient, view: KeyValueView) -> None:
        async with view.transaction() as t:
            for i in range(4):
                t.put(b"%d" % i, bytes(100_000))
        assert len(quorum.log) == 1

    with_view(story)


def test_what_was_only_read_must_be_unchanged_too() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient, view: KeyValueView) -> None:
        async with view.transaction():
            pass
        assert quorum.end_offset == 1
        async with view.transaction() as t:
            t.get(b"a")
        assert [record.key for record in quorum.records()] == [b"a", None]
        stop_fetches(quorum)
        put(quorum, (b"a", b"new"))
        with pytest.raises(Conflict):
            async with view.transaction() as t:
                assert t.get(b"a") == b"old"

    with_view(story, b"a")


def test_a_change_is_seen_by_a_transaction_that_outlives_another_one() -> None:
    seen: list[bytes | None] = []

    async def story(quorum: FakeQuorum, client: QuorumClient, view: KeyValueView) -> None:
        async def body() -> None:
            async with view.transaction() as t:
                seen.append(t.get(b"a"))
                async with view.transaction():
                    pass
                put(quorum, (b"b", b"new"))
                await view.wait_for(quorum.end_offset - 1)
                seen.append(t.get(b"b"))

        with pytest.raises(Conflict):
            await body()
        assert seen == [b"old"]

    with_view(story, b"a", b"b")


def test_a_body_that_fails_leaves_nothing_and_the_transaction_is_over() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient, view: KeyValueView) -> None:
        begun: list[Transaction] = []

        async def body() -> None:
            async with view.transaction() as t:
                begun.append(t)
                t.put(b"a", b"%d" % (1 // 0))

        with pytest.raises(ZeroDivisionError):
            await body()
        (over,) = begun
        assert quorum.end_offset == 1
        for use in (
            lambda: over.get(b"a"),
            lambda: over.put(b"a", b""),
            lambda: over.delete(b"a"),
        ):
            with pytest.raises(RuntimeError, match="over"):
                use()

    with_view(story, b"a")


def test_what_is_refused_for_another_reason_is_no_conflict() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient, view: KeyValueView) -> None:
        quorum.refuse_produce = [ErrorCode.INVALID_RECORD]
        with pytest.raises(AppendFailed, match="fake INVALID_RECORD"):
            await view.update(b"a", one_more)

    with_view(story)


# --- again


def test_a_transaction_is_tried_again_on_what_refused_it() -> None:
    seen = []

    async def story(quorum: FakeQuorum, client: QuorumClient, view: KeyValueView) -> None:
        def change(t: Transaction) -> bytes:
            seen.append((t.get(b"a"), t.get(b"b")))
            if len(seen) < 4:
                put(quorum, (b"a", b"%d" % len(seen)))
            t.put(b"b", b"mine")
            return b"done"

        assert await view.transact(change) == b"done"
        assert seen == [(value, b"old") for value in (b"old", b"1", b"2", b"3")]
        entry = view.get(b"b")
        assert entry is not None
        assert entry.value == b"mine"

    with_view(story, b"a", b"b")


@pytest.mark.parametrize("retry", [Retry(attempts_max=3), Retry(timeout_ms=300)])
def test_there_is_an_end_to_trying_again(retry: Retry) -> None:
    calls = 0

    async def story(quorum: FakeQuorum, client: QuorumClient, view: KeyValueView) -> None:
        def change(value: bytes | None) -> bytes:
            nonlocal calls
            calls += 1
            put(quorum, (b"a", b"theirs"))
            return b"mine"

        with pytest.raises(Conflict, match="a was written at offset"):
            await view.update(b"a", change, retry=retry)
        assert quorum.end_offset == calls
        assert calls == 3 if retry.attempts_max else calls > 1

    with_view(story)


def test_who_cannot_learn_of_the_change_does_not_try_again_for_ever() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient, view: KeyValueView) -> None:
        await view.update(b"n", one_more)
        stop_fetches(quorum)
        put(quorum, (b"a", b"theirs"))
        tries = 0

        def change(value: bytes | None) -> bytes:
            nonlocal tries
            tries += 1
            return b"mine"

        with pytest.raises(Conflict):
            await view.update(b"a", change, retry=Retry(timeout_ms=300))
        assert tries == 1

    with_view(story)


def test_what_is_committed_is_no_failure_though_the_view_learns_of_it_too_late() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient, view: KeyValueView) -> None:
        stop_fetches(quorum)
        async with asyncio.timeout(5):
            async with view.transaction(timeout_ms=300) as transaction:
                transaction.put(b"n", b"new")
        assert transaction.offset == 1
        assert [record.value for record in quorum.records()] == [b"old", b"new"]

    with_view(story, b"n")


def test_a_transaction_that_is_over_takes_no_memory() -> None:
    async def story(quorum: FakeQuorum, client: QuorumClient, view: KeyValueView) -> None:
        over = []
        for key in (b"n", b"m"):
            async with view.transaction() as transaction:
                transaction.put(key, b"new")
            over.append(weakref.ref(transaction))
            del transaction
        gc.collect()
        assert [each() for each in over] == [None, None]

    with_view(story, b"n")


@pytest.mark.parametrize("wrong", [{"attempts_max": 0}, {"timeout_ms": 0}])
def test_limits_that_permit_no_try_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least"):
        Retry(**wrong)


def test_a_key_that_is_read_and_changed_is_named_once() -> None:
    """A request has room for so many keys that must be unchanged."""
    transaction = Transaction(5, {b"a": b"1", b"b": b"2"}.get)
    assert (transaction.get(b"a"), transaction.get(b"c")) == (b"1", None)
    transaction.update(b"a", one_more)
    transaction.put(b"b", b"3")
    assert transaction.get(b"b") == b"3"
    records, unchanged = transaction.close()
    assert [(each.key, each.value) for each in records] == [(b"a", b"2"), (b"b", b"3")]
    assert unchanged == [b"c"]
