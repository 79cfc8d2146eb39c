"""`quorumctl append`: how options shape the batches, and what is certain of an append that ended early."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable

import pytest

from quorumd.cli.append import AppendJob, LineFormat
from quorumd.cli.options import Target, to_ms
from quorumd.client.addresses import parse_addresses
from quorumd.client.errors import AppendFailed
from quorumd.wire.messages.produce import ProduceRequest
from quorumd.wire.records import BatchHeader, read_header
from quorumd.wire.schema import Message
from tests.quorumd.conftest import Done, QuorumThread
from tests.quorumd.fake_quorum import FakeQuorum

Run = Callable[..., Done]
PLAIN = LineFormat(key=None, key_separator=None, null_value=None, headers=())


def headers(quorum: QuorumThread) -> list[BatchHeader]:
    return [read_header(batch) for batch in quorum.quorum.log]


def with_job(
    story: Callable[[FakeQuorum, AppendJob], Awaitable[None]], *, timeout_ms: int = 5000
) -> None:
    async def run() -> None:
        async with FakeQuorum() as quorum:
            target = Target(parse_addresses(quorum.addresses), None)
            async with asyncio.timeout(20):
                await story(quorum, AppendJob(target, PLAIN, timeout_ms=timeout_ms))

    asyncio.run(run())


def leave_unanswered(quorum: FakeQuorum) -> asyncio.Event:
    """No append is answered, though each is done; set when one has come."""
    came = asyncio.Event()

    def before_answer(_: int, request: Message, answer: Message) -> Message | None:
        if not isinstance(request, ProduceRequest):
            return answer
        came.set()
        return None

    quorum.before_answer = before_answer
    return came


def test_a_batch_is_as_large_as_it_may_be_and_all_are_counted(
    quorum: QuorumThread, quorumctl: Run
) -> None:
    quorumctl("append", "before")
    done = quorumctl("append", "--batch-bytes", "1", "--output", "json", "a", "b", "c")
    counts = json.loads(done.out)
    assert (counts["records"], counts["first_offset"], counts["last_offset"]) == (3, 1, 3)
    assert len(headers(quorum)) == 4
    quorumctl("append", "a", "b", "c")
    assert headers(quorum)[-1].record_count == 3


def test_batches_are_compressed_and_numbered_as_the_options_say(
    quorum: QuorumThread, quorumctl: Run
) -> None:
    for codec, name in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        assert quorumctl("append", "--compression", name, "x" * 1000).code == 0
        assert headers(quorum)[-1].codec == codec
        assert headers(quorum)[-1].producer_id >= 0
    quorumctl("append", "--no-idempotent", "x")
    assert headers(quorum)[-1].producer_id == -1


def test_a_line_is_appended_before_the_next_one_is_there() -> None:
    async def story(quorum: FakeQuorum, job: AppendJob) -> None:
        source, into = os.pipe()
        appending = asyncio.create_task(job.append_stream(source))
        for line in (b"one\n", b"two\n"):
            os.write(into, line)
            await quorum.appended.wait()
        os.write(into, b"three")
        os.close(into)
        await appending
        os.close(source)
        assert (job.count, job.first_offset, job.last_offset) == (3, 0, 2)

    with_job(story)


def test_what_was_sent_and_not_answered_may_be_in_the_log_and_is_counted() -> None:
    async def story(quorum: FakeQuorum, job: AppendJob) -> None:
        leave_unanswered(quorum)
        with pytest.raises(AppendFailed):
            await job.append_lines([b"one", b"two"])
        assert job.acknowledged_text() == "0 records acknowledged; 2 records more may be in the log"

    with_job(story, timeout_ms=300)


def test_so_it_is_where_a_person_ends_it() -> None:
    async def story(quorum: FakeQuorum, job: AppendJob) -> None:
        came = leave_unanswered(quorum)
        appending = asyncio.create_task(job.append_lines([b"one"]))
        await came.wait()
        appending.cancel()
        await asyncio.wait([appending])
        assert job.acknowledged_text() == "0 records acknowledged; 1 record more may be in the log"

    with_job(story)


@pytest.mark.parametrize(("seconds", "ms"), [(0.0001, 1), (0.5, 500), (1.0006, 1001), (10, 10_000)])
def test_a_time_to_wait_is_at_least_a_millisecond(seconds: float, ms: int) -> None:
    assert to_ms(seconds) == ms
