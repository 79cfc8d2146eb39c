"""How many of clients' reads are under way, which one is next, and which are made no more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from quorumd.server.disk.log_reader import LogReader
from quorumd.server.requests.client_reads import UNDER_WAY_MAX, ClientReads
from tests.server.test_fetch import Bench, consumer, only, with_bench

Finish = Callable[[int | BaseException], None]


@dataclass
class Client:
    is_open: bool = True


@dataclass
class Disk:
    """What was begun, and what was handed over."""

    begun: list[Finish] = field(default_factory=list)
    done: list[int | BaseException] = field(default_factory=list)


def test_so_many_are_under_way_and_the_next_when_one_is_handed_over() -> None:
    reads, disk = ClientReads(), Disk()
    for _ in range(UNDER_WAY_MAX + 2):
        reads.add(Client(), disk.begun.append, disk.done.append)
    assert len(disk.begun) == UNDER_WAY_MAX
    disk.begun[1](7)
    assert disk.done == [7]
    assert len(disk.begun) == UNDER_WAY_MAX + 1
    error = OSError("EIO")
    disk.begun[0](error)
    assert disk.done == [7, error]
    assert len(disk.begun) == UNDER_WAY_MAX + 2
    for number, finish in enumerate(disk.begun[2:]):
        finish(number)
    reads.add(Client(), disk.begun.append, disk.done.append)
    assert len(disk.begun) == UNDER_WAY_MAX + 3


def test_nothing_is_read_for_a_client_that_is_gone() -> None:
    reads, disk = ClientReads(), Disk()
    clients = [Client() for _ in range(UNDER_WAY_MAX + 5)]
    for client in clients:
        reads.add(client, disk.begun.append, disk.done.append)
    for client in clients[:-1]:
        client.is_open = False
    disk.begun[0](1)
    assert len(disk.begun) == UNDER_WAY_MAX + 1
    disk.begun[-1](2)
    assert disk.done == [1, 2], "those that are under way are handed over"


def test_one_that_fails_to_be_taken_gives_its_place_back() -> None:
    reads, disk = ClientReads(), Disk()

    def fail(outcome: int | BaseException) -> None:
        raise ValueError(outcome)

    for _ in range(UNDER_WAY_MAX + 1):
        reads.add(Client(), disk.begun.append, fail)
    with pytest.raises(ValueError, match="3"):
        disk.begun[0](3)
    assert len(disk.begun) == UNDER_WAY_MAX + 1


@pytest.mark.pure
def test_consumers_that_ask_together_are_read_for_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixty that begin at the start of a log, by TLS, had held the loop for two seconds, and 800 MB."""
    under_way, most = 0, 0
    original = LogReader.read

    def read(
        reader: LogReader, offset: int, size: int, end: int, done: Callable[..., None]
    ) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)

        def finished(outcome: bytes | BaseException) -> None:
            nonlocal under_way
            under_way -= 1
            done(outcome)

        original(reader, offset, size, end, finished)

    async def work(at: Bench) -> None:
        monkeypatch.setattr(LogReader, "read", read)
        others = [
            Bench(at.served, await at.served.connect(), at.handler, at.log) for _ in range(20)
        ]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(other.fetch(consumer(5))) for other in others]
        assert all(only(task.result()).error_code == 0 for task in tasks)
        assert under_way == 0
        assert most == UNDER_WAY_MAX

    with_bench(tmp_path, work, is_cached=False)
