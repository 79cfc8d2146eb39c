"""Processes that hold something: what a forked child makes of it, and SIGTERM, also when nothing can be given
back any more."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import cast

import pytest

from quorumd.client.coordination import termination as module
from quorumd.client.coordination.termination import Releasable, Termination
from tests.quorumd.conftest import QuorumThread

pytestmark = pytest.mark.long


def ran(script: str, quorum: QuorumThread, *arguments: str) -> tuple[int, str]:
    """Exit code of the script, and what it wrote to stderr."""
    command = [sys.executable, "-W", "error", "-c", script, quorum.quorum.addresses, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stderr


FORKED = """
import os, signal, sys, time
from quorumd.client.coordination import termination
from quorumd.sync import Lock, QuorumClient

termination.END_WITHIN_S = 600.0  # nothing is left to that

def terminated(work):
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        with work():
            os.write(writes, b"x")
            time.sleep(20)
        os._exit(0)
    os.read(reads, 1)
    os.kill(child, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM

class Nothing:
    def __enter__(self): ...
    def __exit__(self, *_): ...

def own_lock():
    return Lock(QuorumClient(sys.argv[1]), "own", ttl=80000)

with QuorumClient(sys.argv[1]) as client:
    with Lock(client, "a") as lock:
        terminated(Nothing)
        terminated(own_lock)
        assert lock.is_held
    Lock(client, "own").acquire(wait_s=0)
"""


def test_a_forked_child_ends_of_it_and_leaves_what_its_parent_holds(quorum: QuorumThread) -> None:
    assert ran(FORKED, quorum) == (0, "")


HELD_BY_THE_PARENT = """
import asyncio, os, sys, time
import quorumd

async def in_the_child(held):
    assert not held.is_held
    assert held.lost.is_set()
    assert await held.lost.wait()
    try:
        held.check()
    except quorumd.LockLost:
        pass
    else:
        raise AssertionError
    assert not await (held.release if isinstance(held, quorumd.Lock) else held.resign)()

def run_to_its_end(coroutine):
    # The loop is its parent's, and shares what that waits with.
    try:
        while True:
            coroutine.send(None)
    except StopIteration:
        pass

async def main():
    async with quorumd.QuorumClient(sys.argv[1]) as client:
        async with getattr(quorumd, sys.argv[2])(client, "a", ttl=600) as held:
            child = os.fork()
            if not child:
                status = 1
                try:
                    run_to_its_end(in_the_child(held))
                    status = 0
                finally:
                    os._exit(status)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            held.check()
            assert not held.lost.is_set()
            await client.append([quorumd.Record(value=b"x")])

asyncio.run(main())
"""


@pytest.mark.parametrize("what", ["Lock", "Election"])
def test_a_forked_child_holds_nothing_of_its_parents_and_gives_nothing_back(
    quorum: QuorumThread, what: str
) -> None:
    assert ran(HELD_BY_THE_PARENT, quorum, what) == (0, "")
    place = b"quorumd.locks/a" if what == "Lock" else b"quorumd.elections/a"
    assert [(each.key, each.value is None) for each in quorum.quorum.records()] == [
        (place, False),
        (None, False),
        (place, True),
    ]


UNRELEASED = """
import asyncio, os, signal, sys, time
import quorumd, quorumd.sync

async def acquire():
    async with quorumd.QuorumClient(sys.argv[1]) as client:
        await quorumd.Lock(client, "a", ttl=60).acquire()

def in_a_loop_that_is_closed():
    asyncio.run(acquire())

def in_a_thread_that_has_ended():
    with quorumd.sync.QuorumClient(sys.argv[1]) as client:
        quorumd.sync.Lock(client, "a", ttl=60).acquire()

def in_a_loop_that_stands_still():
    asyncio.new_event_loop().run_until_complete(acquire())

globals()[sys.argv[2]]()
try:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(30)
except Exception as error:
    print("out of nowhere:", repr(error), file=sys.stderr)
"""


@pytest.mark.parametrize(
    "where",
    ["in_a_loop_that_is_closed", "in_a_thread_that_has_ended", "in_a_loop_that_stands_still"],
)
def test_what_cannot_be_given_back_any_more_keeps_no_process_alive(
    quorum: QuorumThread, where: str
) -> None:
    assert ran(UNRELEASED, quorum, where) == (-signal.SIGTERM, "")


ENDS_BY_ITSELF = """
import asyncio, os, signal, sys
import quorumd

async def acquire():
    client = quorumd.QuorumClient(sys.argv[1])
    await quorumd.Lock(client, "a", ttl=60).acquire()

loop = asyncio.new_event_loop()  # it stands still from now on, so that nothing is given back
loop.run_until_complete(acquire())
os.kill(os.getpid(), signal.SIGTERM)
sys.stderr.flush()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sys.exit(7)
"""


def test_who_ends_by_itself_after_sigterm_waits_for_nothing(quorum: QuorumThread) -> None:
    begun_s = time.monotonic()
    code, _ = ran(ENDS_BY_ITSELF, quorum)
    assert code == 7
    assert time.monotonic() - begun_s < module.END_WITHIN_S


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows where a process would end of SIGTERM; no signal and no timer is real."""
    found: list[str] = []
    monkeypatch.setattr(module, "_end", lambda: found.append("ended"))
    monkeypatch.setattr(module.threading, "Timer", lambda after_s, act: SimpleNamespace(start=list))
    monkeypatch.setattr(module.signal, "signal", lambda number, handler: None)
    return found


def test_a_signal_before_the_end_of_a_fork_gives_nothing_of_the_parent_s_back(
    ends: list[str],
) -> None:
    async def hold() -> None:
        termination = Termination()
        termination.guard(cast(Releasable, object()))
        termination._pid = -1  # of the parent
        termination._on_sigterm(signal.SIGTERM, None)
        task = asyncio.current_task()
        assert task is not None
        await asyncio.sleep(0)
        assert not task.cancelling()

    asyncio.run(hold())
    assert ends == ["ended"]


def test_what_is_held_in_a_loop_that_is_closed_does_not_hold_up_the_end(ends: list[str]) -> None:
    termination = Termination()

    async def hold() -> None:
        termination.guard(cast(Releasable, object()))

    asyncio.run(hold())
    termination._on_sigterm(signal.SIGTERM, None)
    assert ends == ["ended"]
