"""The library without asyncio: what it does, how it is interrupted, and that nothing is left out of it."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from types import FrameType, TracebackType
from typing import Any

import pytest

import quorumd
import quorumd.sync
from quorumd.client.coordination.tenure import LossEvent
from quorumd.sync import (
    Election,
    KeyValueView,
    Lock,
    Loss,
    QuorumClient,
    Registration,
    Transaction,
)
from quorumd.sync.loop_thread import LoopThread
from quorumd.wire.messages.produce import ProduceRequest
from quorumd.wire.records import build_batch
from quorumd.wire.schema import Message
from tests.quorumd.conftest import QuorumThread

WAIT_S = 20
TWINS: list[tuple[type, type, set[str]]] = [
    # The rest is for streams of records, raw batches and further connections.
    (
        QuorumClient,
        quorumd.QuorumClient,
        {"producer", "fetch_raw", "download_snapshot", "connector"},
    ),
    (KeyValueView, quorumd.KeyValueView, set()),
    (Transaction, quorumd.Transaction, {"close", "note_change"}),
    (Lock, quorumd.Lock, set()),
    (Election, quorumd.Election, set()),
    (Registration, quorumd.Registration, set()),
    (Loss, LossEvent, {"set", "clear"}),
]
"""A class, what it stands for, and what it leaves out."""


@pytest.fixture
def client(quorum: QuorumThread) -> Iterator[QuorumClient]:
    with QuorumClient(quorum.quorum.addresses) as opened:
        yield opened


def put(quorum: QuorumThread, key: bytes, value: bytes | None) -> None:
    """Somebody else writes."""
    batch = build_batch([quorumd.Record(timestamp=1, key=key, value=value)])
    quorum.call(lambda fake: fake.append(batch))


def one_more(value: bytes | None) -> bytes:
    return b"%d" % (int(value or b"0") + 1)


# --- what it does


def test_a_client_appends_and_reads(client: QuorumClient) -> None:
    records = [quorumd.Record(key=b"a", value=b"1"), quorumd.Record(key=b"b", value=b"2")]
    assert client.append(records) == [0, 1]
    with pytest.raises(quorumd.Conflict, match="b was written at offset 1"):
        client.append(records, if_unchanged_since=1)
    assert client.fetch(0).next_offset == 2
    assert [fetched.next_offset for fetched in client.read(0, 2)] == [2]
    assert client.list_offsets(quorumd.LATEST).offset == 2
    events = client.follow()
    assert any(isinstance(event, quorumd.BatchCommitted) for event in (next(events), next(events)))
    events.close()


def test_a_view_updates_and_transacts_and_functions_are_called_in_the_own_thread(
    quorum: QuorumThread, client: QuorumClient
) -> None:
    threads = set()

    def change(t: Transaction) -> bytes:
        threads.add(threading.get_ident())
        seats = t.update(b"seats", one_more) or b""
        if seats != b"6":
            put(quorum, b"seats", b"5")
        t.delete(b"absent")
        return seats

    with KeyValueView(client) as view:
        assert view.update(b"seats", one_more) == (b"1", 0)
        assert view.transact(change) == b"6"
        assert threads == {threading.get_ident()}
        assert [(key, entry.value) for key, entry in view.items()] == [(b"seats", b"6")]
        assert (len(view), view.problem) == (1, None)
        with view.transaction() as t:
            assert t.get(b"seats") == b"6"
            t.put(b"row", b"3")
        view.wait_for(t.offset or 0)
        entry = view.get(b"row")
        assert entry is not None
        assert (entry.value, t.offset, view.offset) == (b"3", entry.offset, entry.offset + 1)


def test_a_transaction_that_fails_or_meets_a_conflict_leaves_nothing(
    quorum: QuorumThread, client: QuorumClient
) -> None:
    def leave(t: Transaction) -> None:
        t.put(b"a", b"never")
        raise ZeroDivisionError

    def be_late(t: Transaction) -> None:
        t.put(b"a", b"never")
        put(quorum, b"a", b"theirs")

    async def be_async(t: Transaction) -> None:
        t.put(b"a", b"never")

    with KeyValueView(client) as view:
        with pytest.raises(ZeroDivisionError):
            view.transact(leave)
        with pytest.raises(quorumd.Conflict):
            view.transact(be_late, retry=quorumd.Retry(attempts_max=2))
        with pytest.raises(TypeError, match="is async: give a plain one"):
            view.transact(be_async)
    assert {record.value for record in quorum.quorum.records()} == {b"theirs"}


def test_many_threads_share_a_client(client: QuorumClient) -> None:
    with KeyValueView(client) as view:
        threads = [
            threading.Thread(target=lambda: [view.update(b"n", one_more) for _ in range(4)])
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        entry = view.get(b"n")
    assert entry is not None
    assert entry.value == b"16"


def test_a_change_takes_no_longer_than_it_may_be_tried_for(quorum: QuorumThread) -> None:
    async def hang(node_id: int, request: Message) -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    with (
        QuorumClient(quorum.quorum.addresses, timeout_ms=20_000) as client,
        KeyValueView(client) as view,
    ):
        quorum.call(lambda fake: fake.handlers.update({ProduceRequest: hang}))
        began_s = time.monotonic()
        with pytest.raises(quorumd.AppendFailed):
            view.update(b"n", lambda value: b"1", retry=quorumd.Retry(timeout_ms=300))
        assert time.monotonic() - began_s < 10


def test_a_lock_is_held_in_a_with_block_and_excludes_others(client: QuorumClient) -> None:
    with Lock(client, "jobs/nightly", ttl=10, comment="report") as lock:
        lock.check()
        assert lock.is_held
        assert not lock.lost.is_set()
        other = Lock(client, "jobs/nightly")
        with pytest.raises(quorumd.NotAcquired):
            other.acquire(wait_s=0)
        first = lock.token
    assert lock.lost.is_set()
    assert other.acquire() > first
    assert other.release()


def test_who_has_a_name_is_told_as_the_program_says(client: QuorumClient) -> None:
    fields = {"value": "v", "owner": "ann", "comment": "report"}
    with KeyValueView(client) as view, Registration(client, "web/1", ttl=30, **fields):
        view.wait_for(client.list_offsets(quorumd.LATEST).offset - 1)
        ((_, entry),) = [item for item in view.items() if b"web/1" in item[0]]
    told = json.loads(entry.value)
    assert {name: told[name] for name in (*fields, "ttl_ms")} == fields | {"ttl_ms": 30_000}


def test_one_leads_and_others_see_who(client: QuorumClient) -> None:
    with Election(client, "scheduler", value="here") as election:
        assert not election.lost.is_set()
        assert election.is_held
        leaders = Election(client, "scheduler").observe()
        # At first the client may not have read its own record.
        leader = next(filter(None, leaders))
        assert (leader.value, leader.token) == ("here", election.token)
        seen = Election(client, "scheduler").leader()
        assert seen is not None
        assert seen.token == election.token
        assert election.resign()
        assert next(leaders) is None
        leaders.close()
        assert election.campaign() > leader.token


def test_a_key_is_there_as_long_as_it_is_registered(client: QuorumClient) -> None:
    with KeyValueView(client, prefix=b"quorumd.registrations/") as view:
        with Registration(client, "web/1", value="here") as registration:
            assert not registration.replaced.is_set()
            view.wait_for(client.list_offsets(quorumd.LATEST).offset - 1)
            assert len(view) == 1
        view.wait_for(client.list_offsets(quorumd.LATEST).offset - 1)
        assert len(view) == 0


# --- how it ends


@pytest.mark.parametrize("what", ["wait_for", "lock"])
def test_ctrl_c_cancels_the_call_that_waits(
    client: QuorumClient, quorum: QuorumThread, what: str
) -> None:
    def interrupt() -> None:
        while quorum.quorum.end_offset < end_offset:
            time.sleep(0.01)
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    with KeyValueView(client) as view, Lock(client, "one"):
        end_offset = quorum.quorum.end_offset + (what == "lock")
        interrupter = threading.Thread(target=interrupt)
        interrupter.start()
        waiting = Lock(client, "one")
        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            view.wait_for(1000, timeout_ms=60_000) if what == "wait_for" else waiting.acquire()
        assert time.monotonic() - started < 20
        interrupter.join()
        # It has left the queue, and may ask again.
        with pytest.raises(quorumd.NotAcquired):
            waiting.acquire(wait_s=0)
    with Lock(client, "one"):
        pass


@pytest.mark.parametrize("is_started", [True, False])
def test_an_interruption_while_a_call_is_handed_over_leaves_nothing_behind(
    is_started: bool,
) -> None:
    class Interrupted(LoopThread):
        is_over = False

        def _submit(self, callback: Callable[[], None]) -> None:
            is_first, self.is_over = not self.is_over, True
            if is_started or not is_first:
                super()._submit(callback)
            if is_first:
                raise KeyboardInterrupt

    thread = Interrupted()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        thread.call(asyncio.sleep, 60)
    assert thread.run(lambda: len(asyncio.all_tasks())) == 2, "that of the thread, and this call's"
    thread.close(lambda: None)
    assert time.monotonic() - started < 20


class Entered:
    """A context, with the reasons for which it was left."""

    def __init__(self) -> None:
        self.reasons: list[BaseException | None] = []

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.reasons.append(error)


@pytest.mark.parametrize("is_started", [True, False])
def test_an_interruption_before_a_context_is_left_leaves_it(is_started: bool) -> None:
    free = threading.Event()

    def hold() -> None:
        free.wait()

    class Interrupted(LoopThread):
        submitted = 0

        def _submit(self, callback: Callable[[], None]) -> None:
            self.submitted += 1
            if self.submitted == 1:
                super()._submit(hold)
            if is_started or self.submitted > 1:
                super()._submit(callback)
            if self.submitted == 1:
                raise KeyboardInterrupt
            free.set()

    thread, context = Interrupted(), Entered()
    with pytest.raises(KeyboardInterrupt) as caught:
        thread.leave(context, None)
    assert context.reasons == [None if is_started else caught.value]
    thread.close(lambda: None)


class Interruption:
    """In the line with this number, of those that a thread comes to, a function is called; as by a signal."""

    def __init__(self, number: int, handler: Callable[[], object]) -> None:
        self.left, self._handler = number, handler

    def __call__(self, frame: FrameType, event: str, _: object) -> Interruption:
        if event == "line":
            self.left -= 1
            if not self.left:
                self._handler()
        return self


@pytest.mark.parametrize("what", ["run", "close"])
@pytest.mark.parametrize("handler", ["run", "close"])
def test_a_handler_of_a_signal_may_use_what_it_interrupts(what: str, handler: str) -> None:
    """In whichever line it comes."""

    def use(thread: LoopThread, what: str) -> None:
        with suppress(RuntimeError):
            if what == "run":
                assert thread.run(lambda: 7) == 7
            else:
                thread.close(lambda: None)
            done.append(what)

    def interrupted(thread: LoopThread, interruption: Interruption) -> None:
        sys.settrace(interruption)
        use(thread, what)
        sys.settrace(None)
        ended.set()

    for number in count(1):
        thread, ended = LoopThread(), threading.Event()
        done: list[str] = []
        interruption = Interruption(number, partial(use, thread, handler))
        threading.Thread(target=interrupted, args=(thread, interruption), daemon=True).start()
        assert ended.wait(WAIT_S), f"it hangs in line {number}"
        thread.close(lambda: None)
        is_last = interruption.left > 0
        assert len(done) == 2 - is_last or "close" in (what, handler)
        if is_last:
            break
    assert number > 20


@pytest.mark.parametrize(("what", "first"), [("make", 1), ("close", 2)])
def test_an_interruption_leaves_no_thread(what: str, first: int) -> None:
    """In whichever line it comes, while a client is made or closed; behind the `try:` of `close`."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    def interrupted(use: Callable[[], object], interruption: Interruption) -> None:
        with suppress(KeyboardInterrupt):
            sys.settrace(partial(in_own_lines, interruption))
            use()
        sys.settrace(None)

    def in_own_lines(
        interruption: Interruption, frame: FrameType, event: str, argument: object
    ) -> Interruption | None:
        is_own = frame.f_code.co_filename == inspect.getfile(LoopThread)
        return interruption(frame, event, argument) if is_own else None

    for number in count(first):
        made: list[LoopThread] = []

        def make(made: list[LoopThread] = made) -> None:
            made.append(LoopThread())

        if what == "close":
            make()
        interruption = Interruption(number, interrupt)
        use = make if what == "make" else partial(made[0].close, int)
        user = threading.Thread(target=interrupted, args=(use, interruption))
        user.start()
        user.join()
        is_last = interruption.left > 0
        if is_last and what == "make":
            made[0].close(int)
        deadline = time.monotonic() + WAIT_S
        while any(
            each.is_alive() and each.name == "quorumd.sync" for each in threading.enumerate()
        ):
            assert time.monotonic() < deadline, f"a thread is left by what came in line {number}"
            time.sleep(0.001)
        if is_last:
            break
    assert number > 8


def test_a_call_after_close_says_so(quorum: QuorumThread) -> None:
    client = QuorumClient(quorum.quorum.addresses)
    view = KeyValueView(client)
    view.__enter__()
    client.close()
    client.close()
    for call in (lambda: client.list_offsets(quorumd.LATEST), lambda: view.get(b"a")):
        with pytest.raises(RuntimeError, match="the client is closed"):
            call()
    assert not any(thread.name == "quorumd.sync" for thread in threading.enumerate())


def test_close_ends_the_calls_of_other_threads(client: QuorumClient) -> None:
    errors: list[BaseException] = []
    begun = threading.Event()

    def wait() -> None:
        with KeyValueView(client) as view:
            begun.set()
            try:
                view.wait_for(1000, timeout_ms=60_000)
            except RuntimeError as error:
                errors.append(error)
                raise

    def ended() -> None:
        with pytest.raises(RuntimeError):
            wait()

    thread = threading.Thread(target=ended)
    thread.start()
    begun.wait()
    client.close()
    thread.join()
    assert "closed" in str(errors[0])


def test_a_call_from_the_loop_itself_says_so(client: QuorumClient) -> None:
    def records() -> Iterator[quorumd.Record]:
        yield quorumd.Record(value=b"%d" % client.list_offsets(quorumd.LATEST).offset)

    with pytest.raises(RuntimeError, match="its own thread"):
        client.append(records())


# --- that it is complete


@pytest.mark.parametrize(("twin", "original", "left_out"), TWINS)
def test_nothing_is_left_out(twin: type, original: type, left_out: set[str]) -> None:
    def names(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    assert names(original) - names(twin) - {"companion"} == left_out
    own_attributes = {"twin", "timeout_ms", "since", "offset", "name", "ttl"}
    assert names(twin) - names(original) - own_attributes == set()


@pytest.mark.parametrize(("twin", "original"), [each[:2] for each in TWINS[:2] + TWINS[3:6]])
def test_they_are_made_alike(twin: type, original: type) -> None:
    assert [str(each) for each in parameters(twin)] == [str(each) for each in parameters(original)]


def parameters(kind: Any) -> list[inspect.Parameter]:
    return list(inspect.signature(kind).parameters.values())


def test_methods_have_the_signature_and_documentation_of_what_they_call() -> None:
    for name in ("append", "fetch", "follow", "list_offsets"):
        own, other = getattr(QuorumClient, name), getattr(quorumd.QuorumClient, name)
        assert inspect.signature(own) == inspect.signature(other)
        assert own.__doc__ == other.__doc__


TYPED = """
from collections.abc import Generator
from typing import assert_type
from quorumd import KeyValueEntry, LogEvent, Record
from quorumd.client import Claimant
from quorumd.sync import Election, KeyValueView, Lock, QuorumClient, Transaction

def use(client: QuorumClient, view: KeyValueView, lock: Lock, t: Transaction) -> None:
    assert_type(client.append([Record()], if_unchanged_since=1, timeout_ms=5), list[int])
    assert_type(client.follow(from_offset=3), Generator[LogEvent, None, None])
    assert_type(view.get(b"k"), KeyValueEntry | None)
    assert_type(view.items(), list[tuple[bytes, KeyValueEntry]])
    assert_type(view.transact(lambda t: 1), int)
    assert_type(t.get(b"k"), bytes | None)
    assert_type(lock.acquire(wait_s=1), int)
    assert_type(lock.lost.is_set(), bool)
    assert_type(Election(client, "name").leader(), Claimant | None)
    client.append([b"no record"])
    client.append(if_unchanged=3)
    view.get("text")
    lock.acquire(wait="1")
"""


@pytest.mark.long
def test_the_types_are_known_to_those_who_use_it() -> None:
    options = ["--strict", "--config-file=", "--ignore-missing-imports", "--follow-imports=silent"]
    command = [sys.executable, "-m", "mypy", *options, "-c", TYPED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    lines = [line for line in done.stdout.splitlines() if ": error: " in line]
    expected = ["list-item", "call-arg", "arg-type", "call-arg"]
    assert [line.rpartition("[")[2].rstrip("]") for line in lines] == expected, done.stdout
