"""Locks of real processes that are killed, stopped and cut off, on a quorum that loses its leaders."""

from __future__ import annotations

import asyncio
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path

import pytest

from quorumd import LATEST, KeyValueView, Lock, QuorumClient, Record, list_claims
from quorumd.client.coordination.claim_record import claim_record_of
from quorumd.testing import LocalQuorum
from tests.support.forked import die_with_parent
from tests.support.live_cluster import Cluster

pytestmark = pytest.mark.timeout(300)

LINE_S = 40.0


class Holder:
    """A process of `tests.clients.holder`, and what it has printed."""

    def __init__(self, servers: str, name: str, ttl: float, mode: str) -> None:
        self.lines: list[list[str]] = []
        self._rest = b""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.clients.holder", servers, name, str(ttl), mode],
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
            preexec_fn=die_with_parent,
        )

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    def wait(self) -> int:
        """The exit code."""
        return self._process.wait(LINE_S)

    def next(self, word: str) -> list[str]:
        """The next line that begins with this word."""
        deadline = time.monotonic() + LINE_S
        while time.monotonic() < deadline:
            for line in self.read(1.0):
                if line[0] == word:
                    return line
        raise AssertionError(f"the holder does not say {word}: {self.lines[-5:]}")

    def read(self, wait_s: float = 0.0) -> list[list[str]]:
        """What it has said since."""
        assert self._process.stdout is not None
        file = self._process.stdout.fileno()
        found = []
        while select.select([file], [], [], wait_s)[0]:
            data = os.read(file, 1 << 16)
            if not data:
                break
            *whole, self._rest = (self._rest + data).split(b"\n")
            found += [line.decode().split() for line in whole]
            wait_s = 0.0
        self.lines += found
        return found

    def last_write_s(self) -> float:
        """When it last held the lock, as far as it was read; 0 before."""
        return max((float(line[2]) for line in self.lines if line[0] == "write"), default=0.0)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextmanager
def holders(
    servers: str, name: str, ttl: float, mode: str, count: int = 1
) -> Iterator[list[Holder]]:
    started = [Holder(servers, name, ttl, mode) for _ in range(count)]
    try:
        yield started
    finally:
        for each in started:
            each.close()


def with_client(servers: str, story: Callable[[QuorumClient], Awaitable[None]]) -> None:
    async def run() -> None:
        async with QuorumClient(servers, timeout_ms=30_000) as client:
            await story(client)

    asyncio.run(run())


def test_a_killed_holder_is_followed_when_its_ttl_is_over(cluster: Cluster) -> None:
    with holders(cluster.bootstrap, "killed", 2, "keep") as (holder,):
        _, token = holder.next("has")

        async def story(client: QuorumClient) -> None:
            waiting = asyncio.create_task(Lock(client, "killed").acquire())
            async with KeyValueView(client, prefix=b"quorumd.locks.queue/killed/") as view:
                while not len(view):
                    await view.wait_for(view.offset)
            holder.send(signal.SIGKILL)
            began = time.monotonic()
            assert await waiting > int(token)
            assert 1.0 < time.monotonic() - began < 10

        with_client(cluster.bootstrap, story)


def test_a_stopped_process_does_not_believe_when_it_goes_on(cluster: Cluster) -> None:
    with holders(cluster.bootstrap, "stopped", 1, "keep") as (holder,):
        _, token = holder.next("has")
        holder.next("write")
        holder.send(signal.SIGSTOP)

        async def story(client: QuorumClient) -> None:
            async with Lock(client, "stopped") as lock:
                holder.read()
                assert lock.token > int(token)
                holder.send(signal.SIGCONT)
                # A request that was under way may end; then it looks at its clock.
                for _ in range(50):
                    said = await asyncio.to_thread(holder.read, 1.0)
                    assert not [line for line in said if line[0] == "write"]
                    if ["gone"] in said:
                        break
                else:
                    raise AssertionError("it was told that it has lost the lock")

        with_client(cluster.bootstrap, story)


@pytest.mark.parametrize("mode", ["keep", "sync"])
def test_a_process_that_is_terminated_gives_it_back_and_ends_of_the_signal(
    cluster: Cluster, mode: str
) -> None:
    with holders(cluster.bootstrap, "terminated", 60, mode) as (holder,):
        holder.next("has")
        holder.send(signal.SIGTERM)
        assert holder.wait() == -signal.SIGTERM

        async def story(client: QuorumClient) -> None:
            assert await list_claims(client, prefix="terminated") == []

        with_client(cluster.bootstrap, story)


def test_it_is_kept_through_the_loss_of_a_leader(cluster: Cluster) -> None:
    async def story(client: QuorumClient) -> None:
        async with Lock(client, "leader", ttl=10) as lock:
            victim = await asyncio.to_thread(cluster.wait_leader)
            await asyncio.to_thread(cluster.kill, victim)
            await asyncio.sleep(11)
            lock.check()
            await asyncio.to_thread(cluster.start, victim)

    with_client(cluster.bootstrap, story)


def is_renewal(record: Record) -> bool:
    """The name or a place in the queue was this claim's before."""
    if record.value is None:
        return False
    claim = claim_record_of(record.value)
    return claim.token is not None or (
        b".queue/" in (record.key or b"") and claim.queued is not None
    )


def test_of_ten_thousand_that_wait_each_release_lets_one_act(cluster: Cluster) -> None:
    waiters, followed = 10_000, 200
    queue = b"quorumd.locks.queue/many/"

    async def story(client: QuorumClient) -> None:
        tokens: list[int] = []
        all_followed = asyncio.Event()

        async def work() -> None:
            async with Lock(client, "many", ttl=60) as lock:
                tokens.append(lock.token)
                if len(tokens) > followed:
                    all_followed.set()
                    await asyncio.Event().wait()

        first = Lock(client, "many", ttl=60)
        await first.acquire()
        tasks: list[asyncio.Task[None]] = []
        try:
            async with KeyValueView(client, prefix=queue) as view:
                tasks += [asyncio.create_task(work()) for _ in range(waiters)]
                while len(view) < waiters:
                    await view.wait_for(view.offset)
                begin = view.offset
                await first.release()
                await all_followed.wait()
                await view.wait_for(tokens[-1])
                assert len(view) == waiters - len(tokens)
            assert tokens == sorted(tokens)
            # One deletion, and one acquisition of two records, each. The first in the queue renews its place.
            written = [
                record
                async for fetched in client.read(begin, tokens[-1])
                for record in fetched.records
                if record.offset < tokens[-1] and not is_renewal(record)
            ]
            assert len(written) < 3 * len(tokens) + 10
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    with_client(cluster.bootstrap, story)


def test_a_fenced_register_never_goes_back() -> None:
    """20 processes; some are killed, some stopped for longer than the ttl; leaders are cut off or killed."""
    draw = random.Random(7)
    with LocalQuorum(nodes=3) as quorum:
        with holders(quorum.servers, "fenced", 1, "again", 20) as running:
            stopped: list[tuple[float, Holder]] = []
            began = time.monotonic()
            faults = cycle(["cut off", "killed"])
            due, is_whole = began + 5, True
            while time.monotonic() < began + 25:
                time.sleep(0.12)
                for each in running:
                    each.read()
                fate = draw.random()
                if fate < 0.03:
                    draw.choice(running).send(signal.SIGKILL)
                elif fate < 0.13:
                    holder = max(running, key=Holder.last_write_s)
                    holder.send(signal.SIGSTOP)
                    stopped.append((time.monotonic() + draw.uniform(0.5, 3.0), holder))
                for at, each in list(stopped):
                    if time.monotonic() >= at:
                        each.send(signal.SIGCONT)
                        stopped.remove((at, each))
                if time.monotonic() > due:
                    due += 2.5
                    if not is_whole:
                        quorum.restore()
                    elif next(faults) == "killed":
                        quorum.kill_leader()
                    else:
                        quorum.partition({quorum.leader()})
                    is_whole = not is_whole
            quorum.restore()
            for each in running:
                each.read()
            judge(running)
        with_client(quorum.servers, judge_register)


def judge(running: list[Holder]) -> None:
    """Tokens are unique, and in the order of the moments at which their holders held the lock."""
    tokens = [int(line[1]) for each in running for line in each.lines if line[0] == "has"]
    assert len(tokens) == len(set(tokens))
    assert len(tokens) > 8
    held = sorted(
        (float(line[2]), int(line[1]))
        for each in running
        for line in each.lines
        if line[0] == "write"
    )
    assert [token for _, token in held] == sorted(token for _, token in held)
    lost = sum(line[0] == "gone" for each in running for line in each.lines)
    print(f"{len(tokens)} holders, {len(held)} moments, {lost} times lost")
    assert lost


async def judge_register(client: QuorumClient) -> None:
    """What arrives late is refused by the token alone."""
    register = late = accepted = 0
    end_offset = (await client.list_offsets(LATEST)).offset
    async for fetched in client.read(0, end_offset):
        for record in fetched.records:
            if record.key != b"register":
                continue
            token = int(record.value or b"")
            if token < register:
                late += 1
            else:
                accepted += 1
                register = token
    print(f"{accepted} writes, {late} came late: without the token they would have gone back")
    assert accepted > 8
