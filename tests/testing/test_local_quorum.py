"""`LocalQuorum`: real nodes, what is done to them, and that nothing of them stays."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import quorumd
from quorumd.testing import AsyncLocalQuorum, LocalQuorum, LocalQuorumError, host_client
from quorumd.testing.host_client import HostClient
from quorumd.testing.node_pages import status_at

WAIT_S = 40.0
FETCH_TIMEOUT_MS = 20_000
PATIENT = {"quorum.fetch.timeout.ms": FETCH_TIMEOUT_MS}
"""Who notices a lost leader by this timeout alone takes longer than a test may."""


def append(servers: str, value: bytes, timeout_ms: int = 30_000) -> int:
    """The offset of a committed record."""

    async def run() -> int:
        async with quorumd.QuorumClient(servers, timeout_ms=timeout_ms) as client:
            (offset,) = await client.append([quorumd.Record(value=value)])
            return offset

    return asyncio.run(run())


def values(servers: str) -> list[bytes | None]:
    """Of all records."""

    async def run() -> list[bytes | None]:
        async with quorumd.QuorumClient(servers) as client:
            fetched = await client.fetch(0)
            return [record.value for batch in fetched.batches for record in batch.records]

    return asyncio.run(run())


def wait_until(look: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_gone(pid: int) -> bool:
    """Ended, and waited for by whoever is its parent then; perhaps nobody does that in a container."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.fixture(scope="module")
def three() -> Iterator[LocalQuorum]:
    with LocalQuorum(3) as quorum:
        yield quorum


@pytest.fixture
def healthy(three: LocalQuorum) -> Iterator[LocalQuorum]:
    yield three
    three.restore()


def test_three_nodes_take_records_and_know_each_other(healthy: LocalQuorum) -> None:
    offset = append(healthy.servers, b"one")
    assert values(healthy.servers)[-1] == b"one"
    assert len(healthy.servers.split(",")) == 3
    assert [healthy.status(node)["ready"] for node in healthy.ids] == [True] * 3
    assert healthy.status(healthy.leader())["high_watermark"] > offset
    assert all((healthy.folder(node) / "meta.properties").exists() for node in healthy.ids)


def test_a_quorum_of_one_has_no_links() -> None:
    with LocalQuorum(1) as quorum:
        append(quorum.servers, b"one")
        assert quorum.leader() == 1
        quorum.partition({1})
        quorum.heal()
        quorum.restart(1)
        assert values(quorum.servers) == [b"one"]


def test_a_killed_leader_is_followed_by_another_one_at_once() -> None:
    with LocalQuorum(3, settings=PATIENT) as quorum:
        append(quorum.servers, b"before")
        killed = quorum.kill_leader()
        began = time.monotonic()
        assert quorum.leader() != killed
        assert time.monotonic() - began < FETCH_TIMEOUT_MS / 2000, (
            "links refuse as a dead node does"
        )
        append(quorum.servers, b"behind")
        assert killed not in quorum.running
        assert quorum.status(killed) == {}
        quorum.restart(killed)
        assert quorum.running == (1, 2, 3)
        assert values(quorum.server(quorum.leader())) == [b"before", b"behind"]


def test_a_paused_leader_is_replaced_and_finds_its_way_back(healthy: LocalQuorum) -> None:
    paused = healthy.leader()
    healthy.pause(paused)
    assert paused not in healthy.running
    assert healthy.leader() != paused
    append(healthy.servers, b"without it")
    healthy.resume(paused)
    # It may take itself for the leader, and be ready, until it hears of the epoch that follows.
    wait_until(lambda: healthy.status(paused)["role"] == "follower")
    healthy.wait_ready(paused)


def test_an_orderly_stop_hands_over_and_a_paused_node_can_be_stopped(healthy: LocalQuorum) -> None:
    stopped = healthy.leader()
    healthy.pause(stopped)
    healthy.stop(stopped)
    healthy.stop(stopped)  # It is down.
    assert healthy.leader() != stopped
    assert "stopped" in (healthy.folder(stopped).parent / f"node-{stopped}.log").read_text()


def test_a_leader_that_is_cut_off_commits_nothing_and_the_others_go_on(
    healthy: LocalQuorum,
) -> None:
    cut = healthy.leader()
    others = set(healthy.ids) - {cut}
    healthy.partition({cut}, others)
    wait_until(lambda: healthy.leader() != cut)
    offset = append(",".join(map(healthy.server, sorted(others))), b"of the majority")
    assert healthy.status(cut)["high_watermark"] <= offset, "a client sees what it still serves"
    wait_until(lambda: not healthy.status(cut)["ready"])
    assert all(healthy.status(node)["ready"] for node in others)
    healthy.heal()
    healthy.wait_ready()
    wait_until(lambda: bool(healthy.status(cut)["high_watermark"] > offset))


def test_what_is_cut_takes_the_place_of_what_was_cut_before(healthy: LocalQuorum) -> None:
    first, second, third = healthy.ids
    healthy.partition({first})
    healthy.partition({second})
    wait_until(lambda: not healthy.status(second)["ready"])
    healthy.wait_ready(first, third)
    with pytest.raises(ValueError, match="node 1 is on two sides: name each node once"):
        healthy.partition({1}, {1, 2})


def test_nodes_that_are_not_there_are_named(healthy: LocalQuorum) -> None:
    with pytest.raises(ValueError, match="there is no node 4: this quorum has 1 to 3"):
        healthy.kill(4)
    with pytest.raises(ValueError, match="there is no node 0"):
        healthy.partition({0})
    healthy.kill(2)
    healthy.kill(2)
    with pytest.raises(LocalQuorumError, match=r"node 2 is down: restart\(2\) starts it"):
        healthy.pause(2)
    with pytest.raises(LocalQuorumError, match="this quorum runs already"):
        healthy.__enter__()
    with pytest.raises(ValueError, match="a quorum has one node at least"):
        LocalQuorum(0)
    with pytest.raises(LocalQuorumError, match="use it within `with`"):
        LocalQuorum(1).kill(1)


def test_without_any_node_nobody_is_waited_for() -> None:
    with LocalQuorum(1) as quorum:
        quorum.kill_leader()
        with pytest.raises(LocalQuorumError, match=r"no node runs: restart\(1\) starts node 1"):
            quorum.leader()


def test_a_node_that_ends_by_itself_is_told_with_its_log(healthy: LocalQuorum) -> None:
    pid = healthy.status(2)["pid"]
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(LocalQuorumError, match="node 2 ended by itself, exit code -9") as caught:
        wait_until(lambda: not healthy.wait_ready(2))
    assert "-- quorumd node 2, down" in str(caught.value)
    assert "log opened" in str(caught.value)


@pytest.mark.parametrize("value", ["soon", "2000 # soon"])
def test_a_wrong_setting_is_told_as_the_node_tells_it(value: str) -> None:
    wrong = LocalQuorum(1, settings={"quorum.fetch.timeout.ms": value})
    with (
        pytest.raises(LocalQuorumError, match=r"exit code 2[^$]+quorum\.fetch\.timeout\.ms"),
        wrong,
    ):
        pass


def test_a_majority_that_is_not_there_is_waited_for_in_vain() -> None:
    with LocalQuorum(3) as quorum:
        quorum._timeout_s = 1.0  # Not enough for the start, perhaps.
        for node in (1, 2):
            quorum.kill(node)
        wait_until(lambda: not quorum.status(3)["ready"])
        with pytest.raises(LocalQuorumError, match="Do enough nodes run") as caught:
            quorum.wait_ready()
        assert "-- quorumd node 1, down" in str(caught.value)


def fail() -> None:
    with LocalQuorum(1):
        raise KeyError("of a test")


def test_an_exception_has_what_the_nodes_logged_and_leaves_nothing() -> None:
    before = {path.name for path in Path("/tmp").glob("quorumd-test-*")}
    with pytest.raises(KeyError) as caught:
        fail()
    (note,) = caught.value.__notes__
    assert "-- quorumd node 1, running" in note
    assert 'reason="a majority voted"' in note
    assert {path.name for path in Path("/tmp").glob("quorumd-test-*")} <= before


def test_nothing_of_a_quorum_stays_behind() -> None:
    with LocalQuorum(3) as quorum:
        pids = [quorum.status(node)["pid"] for node in quorum.ids]
        folder, servers = quorum.folder(1).parent, quorum.servers.split(",")
    assert all(map(is_gone, pids))
    assert not folder.exists()
    for server in servers:
        host, _, port = server.partition(":")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)), 1)


def test_the_port_of_a_node_that_is_down_is_kept_for_it(healthy: LocalQuorum) -> None:
    healthy.kill(3)
    port = int(healthy.server(3).partition(":")[2])
    taken = set()
    with suppress(OSError):  # A process may not have so many files.
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(500)]
        taken = {each.getsockname()[1] for each in sockets}
        for each in sockets:
            each.close()
    assert port not in taken


PROGRAM = """
import os, sys, time
from quorumd.testing import LocalQuorum

quorum = LocalQuorum(3)
quorum.__enter__()
if "fork" in sys.argv and not os.fork():
    time.sleep(60)  # Holds every file open that the other one has.
nodes = [quorum.status(node)["pid"] for node in quorum.ids]
print(quorum.folder(1).parent, *nodes, flush=True)
if "exit" not in sys.argv:
    time.sleep(60)
"""


@pytest.mark.parametrize("how", ["killed", "fork", "exit"])
def test_nothing_stays_of_a_process_that_is_killed_or_does_not_clean_up(how: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), how],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout is not None
            folder, *nodes = process.stdout.readline().split()
            if how != "exit":
                assert Path(folder).exists()
                assert not any(is_gone(int(pid)) for pid in nodes)
                process.kill()
            process.wait(WAIT_S)
            wait_until(lambda: not Path(folder).exists())
            assert all(is_gone(int(pid)) for pid in nodes)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def test_a_call_that_is_interrupted_does_not_confuse_the_next_ones() -> None:
    """As by Ctrl-C, or by a time limit of the test: the answer comes when nobody waits for it any more."""
    with LocalQuorum(2) as quorum:
        node, host = quorum._nodes[1], quorum._host
        assert host is not None
        assert quorum._control is not None
        quorum.kill(1)
        host.send(0, "run", **quorum._run_request(node, is_new=False))
        quorum._check_alive(quorum._nodes[2])  # Does not take the answer for its own.
        quorum._control.send(b"[]")
        quorum.partition({1})
        found: list[int] = []
        wait_until(lambda: bool(found.extend(pids_at(node.http_port)) or found))
    assert is_gone(found[0]), "nobody but the host knew of it"


def pids_at(port: int) -> list[int]:
    """Of the node with its pages there; none if there is none yet."""
    status = status_at(port)
    return [] if status is None else [status["pid"]]


def test_the_folder_of_temporary_files_may_have_any_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "a: ${b} # 'c' \"\U0001f600"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with LocalQuorum(1, settings={"quorum.auto.join": True}) as quorum:
        assert (quorum.folder(1) / "meta.properties").exists()
    assert [*tmp_path.rglob("*")] == [folder]


def test_nodes_get_an_environment_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(30):
        monkeypatch.setenv(f"LARGE_{number}", "x" * 10_000)
    with LocalQuorum(1) as quorum:
        append(quorum.servers, b"one")


def test_a_host_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_client, "END_S", 0.1)
    host = HostClient()
    os.kill(host._process.pid, signal.SIGSTOP)
    host._channel.shutdown(socket.SHUT_RDWR)
    with pytest.raises(LocalQuorumError, match="exit code -9"):
        host.ask("remove", folder="/nowhere")
    host.close()


def test_two_quorums_run_at_a_time_and_know_nothing_of_each_other() -> None:
    with LocalQuorum(1) as one, LocalQuorum(1) as other:
        append(one.servers, b"one")
        append(other.servers, b"other")
        assert (values(one.servers), values(other.servers)) == ([b"one"], [b"other"])


def test_the_async_twin_does_the_same() -> None:
    async def run() -> None:
        async with AsyncLocalQuorum(3) as quorum:
            async with quorumd.QuorumClient(quorum.servers, timeout_ms=30_000) as client:
                await client.append([quorumd.Record(value=b"one")])
                killed = await quorum.kill_leader()
                await client.append([quorumd.Record(value=b"two")])
            assert await quorum.leader() != killed
            await quorum.restart(killed)
            assert (await quorum.status(killed))["ready"]
            await quorum.partition({killed})
            await quorum.pause(killed)
            await quorum.resume(killed)
            await quorum.heal()
            await quorum.wait_ready()
            await quorum.stop(killed)
            await quorum.kill(killed)
            await quorum.restore()
            assert quorum.local.running == (1, 2, 3)
        assert quorum.local._nodes == {}

    asyncio.run(run())


@pytest.mark.parametrize("times", [1, 3])
def test_an_async_start_that_is_cancelled_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    quorum, done = AsyncLocalQuorum(3), []
    enter, leave = quorum.local.__enter__, quorum.local.__exit__

    def entered() -> None:
        enter()
        done.append("entered")

    def left(*reason: Any) -> None:
        done.append("left")
        leave(*reason)

    monkeypatch.setattr(quorum.local, "__enter__", entered)
    monkeypatch.setattr(quorum.local, "__exit__", left)

    async def run() -> None:
        starting = asyncio.create_task(quorum.__aenter__())
        for _ in range(times):
            await asyncio.sleep(0)
            starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting

    asyncio.run(run())
    assert done == ["entered", "left"]
    with pytest.raises(LocalQuorumError, match="use it within `with`"):
        quorum.local.server(1)
