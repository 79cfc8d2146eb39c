"""What reads a log for clients and replicas: a client's search keeps no replica waiting."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from quorumd.server.disk.log_reader import LogReader
from quorumd.storage.errors import DamagedLog, DiskFailed
from quorumd.storage.filesystem import RealFileSystem
from quorumd.storage.log import Log
from tests.storage.helpers import append, batch, open_log, undamaged
from tests.support.serving import run


def test_a_search_keeps_no_read_waiting(tmp_path: Path) -> None:
    async def work() -> None:
        log = open_log(RealFileSystem(), tmp_path)
        append(log, batch(0), 0, 1)
        reader = LogReader(log, undamaged)
        goes_on, loop = threading.Event(), asyncio.get_running_loop()
        found: asyncio.Future[object] = loop.create_future()
        read: asyncio.Future[object] = loop.create_future()
        reader.look_up(lambda: goes_on.wait(5), found.set_result)
        reader.read(0, 1, 1, read.set_result)
        assert await read == batch(0)
        assert not found.done()
        goes_on.set()
        assert await found is True
        reader.close()

    run(work())


@pytest.mark.parametrize("way", ["run", "look_up"])
def test_what_goes_wrong_is_handed_over(tmp_path: Path, way: str) -> None:
    async def work() -> None:
        reader = LogReader(open_log(RealFileSystem(), tmp_path), undamaged)
        outcome: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        getattr(reader, way)(lambda: 1 // 0, outcome.set_result)
        assert isinstance(await outcome, ZeroDivisionError)
        reader.close()

    run(work())


@pytest.mark.pure
@pytest.mark.parametrize(
    "error",
    [
        DamagedLog("flipped", path=Path("x.log"), offset=7),
        DiskFailed("EIO", path=Path("x"), remedy="-"),
    ],
)
def test_what_cannot_be_read_is_told_before_the_read_gets_its_result(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        told: list[object] = []
        reader = LogReader(open_log(RealFileSystem(), tmp_path), told.append)
        is_done = asyncio.Event()

        def find(*_: int) -> bytes:
            raise error

        monkeypatch.setattr(Log, "read", find)

        def done(outcome: object) -> None:
            told.append(outcome)
            is_done.set()

        reader.read(0, 1, 1, done)
        await is_done.wait()
        assert told == [error, error]
        reader.close()

    run(work())
