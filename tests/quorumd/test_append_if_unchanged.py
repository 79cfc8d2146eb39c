"""`QuorumClient.append` with a condition: conflicts, being sent back to read, and answers that are lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, cast

import pytest

from quorumd.client import AppendFailed, Conflict, QuorumClient, Record
from quorumd.client.conditional import TOKEN, append_if_unchanged
from quorumd.client.errors import RequestRefused
from quorumd.client.events import BatchCommitted, LogEvent
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.fetch import FetchRequest
from quorumd.wire.messages.produce import ProduceRequest
from quorumd.wire.records import build_batch
from quorumd.wire.schema import Message
from tests.quorumd.fake_quorum import FakeQuorum
from tests.quorumd.snapshots import snapshot_bytes

CONFLICT = "Record 0 conflicts: its key was written at offset"


def run(work: Callable[[FakeQuorum, QuorumClient], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        async with FakeQuorum() as quorum, QuorumClient(quorum.addresses) as client:
            await asyncio.wait_for(work(quorum, client), 20)

    asyncio.run(whole())


def put(quorum: FakeQuorum, *keys: bytes) -> None:
    for key in keys:
        quorum.append(build_batch([Record(timestamp=1, key=key, value=b"v")]))


def lose_answers(quorum: FakeQuorum, count: int, *, elects: bool) -> None:
    """So many Produce requests are served and not answered; then, perhaps, another node leads."""

    def before_answer(_: int, request: Message, answer: Message) -> Message | None:
        nonlocal count
        if not isinstance(request, ProduceRequest) or not count:
            return answer
        count -= 1
        if elects:
            quorum.elect(2)
        return None

    quorum.before_answer = before_answer


def test_records_are_appended_as_one_batch_with_their_condition() -> None:
    async def work(quorum: FakeQuorum, client: QuorumClient) -> None:
        put(quorum, b"a")
        big = [Record(key=b"%d" % i, value=bytes(300_000)) for i in range(3)]
        assert await client.append(big, if_unchanged_since=1, also_unchanged=[b"a"]) == [1, 2, 3]
        assert len(quorum.log) == 2
        first, second = list(quorum.records())[1:3]
        (name, token) = first.headers[2]
        assert first.headers[:2] == (
            ("quorumd.if-unchanged-since", b"1"),
            ("quorumd.key", b"a"),
        )
        assert (name, len(token or b"")) == (TOKEN, 16)
        assert second.headers == ()

    run(work)


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_conflict_names_the_key_and_its_offset(idempotent: bool) -> None:
    async def work(quorum: FakeQuorum, client: QuorumClient) -> None:
        await client.append([Record(key=b"w")], if_unchanged_since=0, idempotent=idempotent)
        put(quorum, b"a", b"b")
        with pytest.raises(Conflict, match="b was written at offset 2") as conflict:
            await client.append(
                [Record(key=b"x"), Record(key=b"b")], if_unchanged_since=1, idempotent=idempotent
            )
        assert (conflict.value.key, conflict.value.offset, conflict.value.since) == (b"b", 2, 1)
        with pytest.raises(Conflict) as conflict:
            await client.append(
                [Record(key=b"x")],
                if_unchanged_since=1,
                also_unchanged=[b"y", b"a"],
                idempotent=idempotent,
            )
        assert (conflict.value.key, conflict.value.offset) == (b"a", 1)
        assert quorum.end_offset == 3

    run(work)


def test_headers_of_the_first_record_are_kept_beside_the_condition() -> None:
    async def work(quorum: FakeQuorum, client: QuorumClient) -> None:
        headers = (("trace", b"7"), ("none", None))
        await client.append([Record(key=b"a", headers=headers)] * 2, if_unchanged_since=0)
        first, second = quorum.records()
        assert first.headers[:2] == second.headers == headers

    run(work)


def test_a_key_that_reads_like_the_leaders_words_does_not_change_the_offset() -> None:
    async def work(quorum: FakeQuorum, client: QuorumClient) -> None:
        put(quorum, b"a")
        await client.append([Record(key=b"w")], if_unchanged_since=1)
        key = b"jobs written at offset 99999999999, x"
        put(quorum, key)
        with pytest.raises(Conflict) as conflict:
            await client.append([Record(key=key)], if_unchanged_since=2)
        assert (conflict.value.key, conflict.value.offset) == (key, 2)

    run(work)


def test_a_condition_older_than_the_window_is_read_up_and_tried_again() -> None:
    async def work(quorum: FakeQuorum, client: QuorumClient) -> None:
        put(quorum, b"a", b"b", b"c")
        assert await client.append([Record(key=b"x")], if_unchanged_since=1) == [3]
        assert next(r for r in quorum.records() if r.key == b"x").headers[0][1] == b"3"
        quorum.judge.close()
        with pytest.raises(Conflict) as conflict:
            await client.append([Record(key=b"c")], if_unchanged_since=2)
        assert (conflict.value.key, conflict.value.offset, conflict.value.since) == (b"c", 2, 2)

    run(work)


def test_a_condition_older_than_the_log_is_compared_with_the_snapshot() -> None:
    async def work(quorum: FakeQuorum, client: QuorumClient) -> None:
        put(quorum, *(b"k%d" % i for i in range(6)))
        quorum.snapshots[6, 1] = snapshot_bytes({b"k1": (b"v", 1), b"k4": (b"v", 4)})
        quorum.log_start_offset = 6
        quorum.log = []
        with pytest.raises(Conflict) as conflict:
            await client.append([Record(key=b"gone")], if_unchanged_since=2)
        assert (conflict.value.key, conflict.value.offset) == (b"gone", 5)
        with pytest.raises(Conflict) as conflict:
            await client.append([Record(key=b"k4")], if_unchanged_since=2)
        assert (conflict.value.key, conflict.value.offset) == (b"k4", 4)
        assert await client.append([Record(key=b"k1")], if_unchanged_since=2) == [6]

    run(work)


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize("elects", [False, True])
def test_a_lost_answer_is_no_conflict_with_oneself(elects: bool, idempotent: bool) -> None:
    async def work(quorum: FakeQuorum, client: QuorumClient) -> None:
        put(quorum, b"a")
        lose_answers(quorum, 1, elects=elects)
        records = [Record(key=b"x"), Record(key=b"y")]
        offsets = await client.append(records, if_unchanged_since=1, idempotent=idempotent)
        assert offsets == [1, 2]
        assert [record.key for record in quorum.records()] == [b"a", b"x", b"y"]

    run(work)


def test_nor_one_at_a_leader_that_has_forgotten_the_producer() -> None:
    async def work(quorum: FakeQuorum, client: QuorumClient) -> None:
        put(quorum, b"a")

        def forget(_: int, request: Message, answer: Message) -> Message | None:
            if not isinstance(request, ProduceRequest) or not quorum.sequences:
                return answer
            quorum.sequences.clear()
            quorum.before_answer = None
            return None

        quorum.before_answer = forget
        assert await client.append([Record(key=b"x")], if_unchanged_since=1) == [1]
        assert [record.key for record in quorum.records()] == [b"a", b"x"]

    run(work)


@pytest.mark.parametrize("idempotent", [True, False])
def test_where_no_time_is_left_to_look_it_is_said_that_the_batch_may_be_there(
    idempotent: bool,
) -> None:
    async def work(quorum: FakeQuorum, client: QuorumClient) -> None:
        put(quorum, b"a")
        is_lost = False

        def lose(_: int, request: Message, answer: Message) -> Message | None:
            nonlocal is_lost
            if isinstance(request, ProduceRequest) and not is_lost:
                is_lost = True
                quorum.sequences.clear()
                return None
            return None if isinstance(request, FetchRequest) else answer

        quorum.before_answer = lose
        with pytest.raises(AppendFailed) as raised:
            await client.append(
                [Record(key=b"x")], if_unchanged_since=1, timeout_ms=1000, idempotent=idempotent
            )
        assert [record.key for record in quorum.records()] == [b"a", b"x"]
        assert raised.value.unknown_count == 1
        assert "1 record was sent without a response and may be in the log" in str(raised.value)

    run(work)


def test_a_conflict_at_the_first_try_is_believed_without_a_look_at_the_log() -> None:
    async def work(quorum: FakeQuorum, client: QuorumClient) -> None:
        await client.append([Record(key=b"w")], if_unchanged_since=0)
        put(quorum, b"x")
        with pytest.raises(Conflict):
            await client.append([Record(key=b"x")], if_unchanged_since=1)
        assert not any(isinstance(each, FetchRequest) for _, each in quorum.requests)

    run(work)


def test_what_else_is_refused_is_no_conflict() -> None:
    async def work(quorum: FakeQuorum, client: QuorumClient) -> None:
        with pytest.raises(AppendFailed, match="no offset above 0 is known"):
            await client.append([Record(key=b"x")], if_unchanged_since=5)
        quorum.refuse_produce = [ErrorCode.INVALID_RECORD]
        with pytest.raises(AppendFailed, match="fake INVALID_RECORD"):
            await client.append([Record(key=b"x")], if_unchanged_since=0)

    run(work)


def test_a_condition_that_is_none_is_not_sent() -> None:
    async def work(quorum: FakeQuorum, client: QuorumClient) -> None:
        record = Record(key=b"x")
        wrongs: list[dict[str, Any]] = [
            {"records": [record], "also_unchanged": [b"k"]},
            {"records": [record], "if_unchanged_since": -1},
            {"records": [record], "if_unchanged_since": 1.5},
            {"records": [record], "if_unchanged_since": "1"},
            {"records": [], "if_unchanged_since": 1, "also_unchanged": [b"k"]},
            {"records": [Record(value=b"v")], "if_unchanged_since": 1},
        ]
        for wrong in wrongs:
            with pytest.raises(ValueError, match=r"if_unchanged_since is|needs a record"):
                await client.append(**wrong)
        assert not any(isinstance(request, ProduceRequest) for _, request in quorum.requests)

    run(work)


def test_nor_one_after_being_sent_back_once_more_when_the_answer_was_lost() -> None:
    """The first leader reads to an offset before the batch, and the second try is answered at once."""
    sent: list[Record] = []
    refusals = [("Read again from offset 2: it is not remembered", True), (f"{CONFLICT} 2,", False)]

    class Client:
        async def append(self, records: list[Record], **_: Any) -> list[int]:
            sent.extend(records)
            said, was_sent_again = refusals.pop(0)
            refused = RequestRefused("append", ErrorCode.INVALID_RECORD, said)
            raise AppendFailed(
                said,
                acknowledged_count=0,
                last_offset=-1,
                unknown_count=1,
                was_sent_again=was_sent_again,
            ) from refused

        async def follow(self, *, from_offset: int) -> AsyncGenerator[LogEvent, None]:
            log = (Record(key=b"other", offset=1), sent[0]._replace(offset=2))
            for record in log[from_offset - 1 :]:
                yield BatchCommitted(record.offset, record.offset + 1, 1, 1, (record,))

    async def work() -> None:
        offsets = await append_if_unchanged(
            cast(QuorumClient, Client()),
            [Record(key=b"x")],
            1,
            (),
            timeout_ms=5000,
            idempotent=True,
        )
        assert offsets == [2]

    asyncio.run(work())
    assert not refusals
