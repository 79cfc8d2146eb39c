"""How a client's connections are made: each address its share of the time, and keys as they are in files."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import threading
import time
from pathlib import Path
from typing import Any, cast

import pytest

from quorumd import PeerSpeaksPlaintext, Security
from quorumd.client import connector, name_lookups
from quorumd.client.connection import ClientConnection
from quorumd.client.connector import Connector
from quorumd.client.errors import ConnectionFailed
from quorumd.client.name_lookups import NameLookups
from quorumd.raft.types import Address
from quorumd.security.errors import CertificateProblem
from tests.support.client_files import ClientFiles

WHERE = Address("node", 9093)


@pytest.fixture
def files(tmp_path: Path) -> ClientFiles:
    return ClientFiles(tmp_path)


def secured(files: ClientFiles) -> Connector:
    keys = {name: str(value) for name, value in files.client_keys().items()}
    return Connector("a-client", Security.from_pairs(keys, "here"))


def test_a_name_is_looked_up_anew_once_its_addresses_were_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Hosts move. Who asks meanwhile gets the same outcome, unless that is of a loop that has ended."""
    asked: list[str] = []
    may_answer = threading.Event()

    def found(address: Address, flags: int) -> list[Any]:
        if flags:
            raise socket.gaierror("no number")
        assert may_answer.wait(20)
        asked.append(address.host)
        return [(socket.AF_INET, (f"10.0.0.{len(asked)}", address.port))]

    monkeypatch.setattr(name_lookups, "_found", found)
    names = NameLookups()

    async def given_up() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await names.addresses_of(WHERE)

    async def work() -> None:
        asking = [asyncio.create_task(names.addresses_of(WHERE)) for _ in range(2)]
        await asyncio.sleep(0)
        may_answer.set()
        async with asyncio.timeout(20):
            first, second = await asyncio.gather(*asking)
            assert first == second
            assert await names.addresses_of(WHERE) != first

    asyncio.run(given_up())
    asyncio.run(work())


def test_each_address_of_a_host_has_its_share_of_the_time_that_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first ones may be silent."""
    shares: list[float] = []

    class Names:
        async def addresses_of(self, address: Address) -> list[Any]:
            return [(socket.AF_INET, (f"10.0.0.{number}", 1)) for number in range(3)]

    async def connect(family: Any, where: Any, timeout_s: float) -> socket.socket:
        shares.append(timeout_s)
        raise OSError("refused")

    monkeypatch.setattr(connector, "_connected_to", connect)
    with pytest.raises(OSError, match="refused"):
        asyncio.run(connector._connected(cast(NameLookups, Names()), WHERE, 600.0))
    assert [round(share / 100) for share in shares] == [2, 3, 6]


def test_who_tries_whether_plaintext_is_spoken_leaves_no_connection(
    files: ClientFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []

    class Made:
        def close(self) -> None:
            closed.append("closed")

    async def dialled(*_: object) -> ClientConnection:
        return cast(ClientConnection, Made())

    async def work() -> CertificateProblem | None:
        made = secured(files)
        try:
            return await made._mistaken(WHERE, 1.0)
        finally:
            made.close()

    monkeypatch.setattr(connector, "_dialled", dialled)
    assert isinstance(asyncio.run(work()), PeerSpeaksPlaintext)
    assert closed == ["closed"]


def test_files_that_cannot_be_used_are_named_until_they_can(
    files: ClientFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems = [None, CertificateProblem("the key is not the certificate's"), None]

    async def work() -> list[str]:
        made = secured(files)
        keys = made._keys
        assert keys is not None
        read, stamps = keys._read, iter(range(9))

        def read_next() -> Any:
            problem = problems.pop(0)
            if problem is not None:
                raise problem
            return read()

        monkeypatch.setattr(keys, "_read", read_next)
        monkeypatch.setattr(keys, "_present_stamp", lambda: (next(stamps),))
        found = []
        for _ in range(3):
            await keys.ready()
            found.append(keys.stale)
        made.close()
        return found

    first, second, third = asyncio.run(work())
    assert (first, third) == ("", "")
    assert second == "with the files as they were before: the key is not the certificate's"


def test_a_file_that_was_just_written_may_be_written_again_at_the_same_time(
    files: ClientFiles,
) -> None:
    """Times of modification are coarse: only a file that has rested for a while is known by its own."""
    made = secured(files)
    keys = made._keys
    assert keys is not None
    paths = (keys._tls.ssl_keystore_location, keys._tls.ssl_truststore_location)
    for age_s, is_known in ((3600, True), (0, False)):
        for path in paths:
            assert path is not None
            at = time.time() - age_s
            os.utime(path, (at, at))
        assert (keys._present_stamp() == keys._present_stamp()) is is_known
    made.close()


def test_a_file_in_another_one_s_place_is_another_one_though_time_and_size_are_the_same(
    files: ClientFiles, tmp_path: Path
) -> None:
    """As `cp -p` and `mv` make it."""
    made = secured(files)
    keys = made._keys
    assert keys is not None
    assert keys._tls.ssl_keystore_location is not None
    path = Path(keys._tls.ssl_keystore_location)
    for each in (keys._tls.ssl_keystore_location, keys._tls.ssl_truststore_location):
        assert each is not None
        os.utime(each, (1_000_000, 1_000_000))
    before = keys._present_stamp()
    copy = tmp_path / "copy"
    shutil.copy2(path, copy)
    copy.replace(path)
    assert keys._present_stamp() != before
    made.close()


@pytest.mark.parametrize("took_it", [0, 1, 2])
def test_of_several_addresses_the_one_that_took_the_connection_says_what_failed(
    took_it: int,
) -> None:
    """Others of the same host may be ones where nobody listens."""
    found = [(socket.AF_INET, (f"10.0.0.{number}", 1)) for number in range(3)]

    async def attempt(family: object, where: tuple[Any, ...], share_s: float) -> None:
        if where == found[took_it][1]:
            raise ConnectionFailed("closed the connection at once", is_mute=True)
        raise OSError(f"refused at {where[0]}")

    with pytest.raises(ConnectionFailed, match="at once"):
        asyncio.run(connector._at_each(found, 60.0, attempt))


def test_who_was_closed_says_so_and_begins_no_thread(files: ClientFiles) -> None:
    made = secured(files)
    made.close()
    with pytest.raises(ConnectionFailed, match="the client was closed"):
        asyncio.run(made.connect(WHERE, 1.0))
