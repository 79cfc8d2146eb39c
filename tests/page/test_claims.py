"""Who holds names, as a node's page tells it: by a process that reads the node's files while it is asked."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import shlex
import signal
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from quorumd import Lock, QuorumClient, Registration
from quorumd.config.tls import ClientAuth, TlsConfig
from quorumd.config.tls_port import HTTP, TlsPort
from quorumd.server.page import claims
from quorumd.server.page.claims import ClaimsReport
from quorumd.server.page.source import claims_withheld
from tests.support.live_cluster import Cluster, running_cluster

PATIENCE_S = 20.0


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The directory of a node that has an empty log."""
    folder = tmp_path / "__cluster_metadata-0"
    folder.mkdir()
    (folder / f"{0:020d}.log").touch()
    return tmp_path


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await work()

    uvloop.run(limited())


def run_with_report(log: Path, work: Callable[[ClaimsReport], Awaitable[None]]) -> None:
    """The report is closed in any case: uvloop's end waits for a process that is left, for ever."""

    async def reporting() -> None:
        report = ClaimsReport(log)
        try:
            await work(report)
        finally:
            await report.close()

    run(reporting)


async def until(report: ClaimsReport, is_wanted: Callable[[Mapping[str, Any]], bool]) -> None:
    """Asks as a page does, until a response is so."""
    for _ in range(1000):
        if is_wanted(await report.newest(0)):
            return
        await asyncio.sleep(0.02)
    raise AssertionError("no such response in 20 s")


def readers_of(folder: Path) -> list[int]:
    """The processes that read these files."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"quorumd.cli.claims_reader" in words and str(folder).encode() in words:
            found.append(int(process.name))
    return found


def wait_gone(folder: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while readers_of(folder):
        assert time.monotonic() < deadline, "it reads on"
        time.sleep(0.01)


@pytest.mark.long
def test_the_process_runs_only_while_somebody_asks(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "IDLE_S", 3.0)

    async def work(report: ClaimsReport) -> None:
        assert readers_of(log) == []
        await until(report, lambda found: found.get("offset") == 0)
        (reader,) = readers_of(log)
        for _ in range(4):
            await asyncio.sleep(1.0)
            await report.newest(0)
        assert readers_of(log) == [reader]
        await asyncio.to_thread(wait_gone, log)
        await until(report, lambda found: found.get("offset") == 0)
        await report.close()
        assert readers_of(log) == []

    run_with_report(log, work)


def test_many_who_look_ask_once(log: Path) -> None:
    async def work(report: ClaimsReport) -> None:
        await asyncio.gather(*(report.newest(0) for _ in range(50)))
        assert len(readers_of(log)) == 1
        await until(report, lambda found: found.get("offset") == 0)
        report_s = time.monotonic()
        for _ in range(200):
            await report.newest(0)
        assert time.monotonic() - report_s < 0.9, "each of them is answered from what is known"
        await report.close()

    run_with_report(log, work)


@pytest.mark.long
def test_a_process_that_was_killed_is_said_and_replaced(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pipe is closed, by which uvloop raises another error than asyncio."""
    monkeypatch.setattr(claims, "FRESH_S", 0.0)

    async def work(report: ClaimsReport) -> None:
        await until(report, lambda found: found.get("offset") == 0)
        (reader,) = readers_of(log)
        os.kill(reader, signal.SIGKILL)
        await asyncio.to_thread(wait_gone, log)
        await asyncio.sleep(0.2)
        await until(report, lambda found: "has failed" in found.get("problem", ""))
        await until(report, lambda found: found.get("offset") == 0)
        await report.close()

    run_with_report(log, work)


@asynccontextmanager
async def asked_always(
    report: ClaimsReport, log: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[int]:
    """Its process, of this number, has responded; each call asks it anew."""
    monkeypatch.setattr(claims, "FRESH_S", 0.0)
    await until(report, lambda found: found.get("offset") == 0)
    (reader,) = readers_of(log)
    yield reader
    await report.close()
    assert readers_of(log) == []


@pytest.mark.long
def test_one_that_is_killed_is_said_to_have_failed_and_the_next_one_reads(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(report: ClaimsReport) -> None:
        async with asked_always(report, log, monkeypatch) as reader:
            os.kill(reader, signal.SIGKILL)
            await until(report, lambda found: "has failed" in str(found.get("problem")))
            await until(report, lambda found: found.get("offset") == 0)

    run_with_report(log, work)


def test_the_command_to_try_is_one_that_a_shell_understands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "_PROGRAM", "quorumd.cli.no_such_module")
    directory = tmp_path / "a node's files"

    async def work(report: ClaimsReport) -> None:
        await until(report, lambda found: "problem" in found)
        command = str((await report.newest(0))["problem"]).partition("Try: ")[2]
        assert shlex.split(command)[-1] == str(directory)

    run_with_report(directory, work)


def test_one_that_hangs_holds_nobody_up_and_ends_with_the_node(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(report: ClaimsReport) -> None:
        async with asked_always(report, log, monkeypatch) as reader:
            os.kill(reader, signal.SIGSTOP)
            begun_s = time.monotonic()
            assert (await report.newest(0))["offset"] == 0
            assert (await report.newest(0))["offset"] == 0
            assert time.monotonic() - begun_s < 5 * claims.WAIT_S

    run_with_report(log, work)


def port(name: str, client_auth: ClientAuth) -> TlsPort:
    return TlsPort(name, f"listener.name.{name.lower()}.", TlsConfig(ssl_client_auth=client_auth))


@pytest.mark.parametrize(
    ("ports", "is_withheld"),
    [
        ((), False),
        ((port("CONTROLLER", ClientAuth.NONE),), False),
        ((port("CONTROLLER", ClientAuth.REQUIRED),), True),
        ((port("CONTROLLER", ClientAuth.NONE), port("CLIENTS", ClientAuth.REQUIRED)), True),
        ((port("CONTROLLER", ClientAuth.REQUIRED), port(HTTP, ClientAuth.REQUESTED)), True),
        ((port("CONTROLLER", ClientAuth.REQUIRED), port(HTTP, ClientAuth.REQUIRED)), False),
    ],
)
def test_a_page_for_everybody_does_not_show_what_needs_a_certificate(
    ports: tuple[TlsPort, ...], is_withheld: bool
) -> None:
    assert bool(claims_withheld(ports)) == is_withheld


@pytest.mark.long
@pytest.mark.parametrize("turns", range(4))
def test_one_that_is_just_being_started_is_not_left_behind(log: Path, turns: int) -> None:
    async def work(report: ClaimsReport) -> None:
        asking = asyncio.create_task(report.newest(0))
        for _ in range(turns):
            await asyncio.sleep(0)
        await report.close()
        assert await asking == {}
        assert readers_of(log) == []

    run_with_report(log, work)
    gc.collect()  # uvloop tells then of a process that it has forgotten


@pytest.fixture(scope="module")
def quorum(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("quorum"), observers=1) as cluster:
        yield cluster


def claims_at(quorum: Cluster, node: int) -> dict[str, Any]:
    with urllib.request.urlopen(quorum.http_url(node, "/claims.json"), timeout=5) as response:
        found: dict[str, Any] = json.load(response)
    return found


def test_every_node_shows_locks_and_registrations_until_they_are_given_back(
    quorum: Cluster,
) -> None:
    def shown(node: int, kind: str) -> list[str]:
        names = claims_at(quorum, node).get("names", {})
        return [each["name"] for each in names.get(kind, []) if each["holder"] is not None]

    def wait_shown(kind: str, wanted: list[str]) -> None:
        def all_show() -> bool | None:
            return all(shown(node, kind) == wanted for node in quorum.ids) or None

        quorum.wait_for(all_show, f"all nodes to show {wanted}", PATIENCE_S)

    async def work() -> None:
        async with QuorumClient(quorum.bootstrap) as client:
            async with (
                Registration(client, "api/1", value="10.0.0.1:80"),
                Lock(client, "jobs/nightly", comment="report"),
            ):
                await asyncio.to_thread(wait_shown, "registrations", ["api/1"])
                await asyncio.to_thread(wait_shown, "locks", ["jobs/nightly"])
                (found,) = claims_at(quorum, 1)["names"]["registrations"]
                assert found["holder"]["value"] == "10.0.0.1:80"
                assert found["holder"]["pid"] == os.getpid()
            await asyncio.to_thread(wait_shown, "registrations", [])
            await asyncio.to_thread(wait_shown, "locks", [])

    run(work)
    assert len(readers_of(quorum.storage_dir(1))) == 1
    quorum.kill(1)
    wait_gone(quorum.storage_dir(1))
    quorum.stop(2)
    wait_gone(quorum.storage_dir(2))
