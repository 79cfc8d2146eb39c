"""Thousands of handshakes, at the leader of three nodes: some that nobody ends, some that come and go.

`HANDSHAKES=20000` in the environment makes more of the latter than the suite does.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

import pytest

from quorumd.server.net.connection_slots import NEW_MAX
from quorumd.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from quorumd.wire.registry import API_VERSIONS_KEY
from tests.architecture.source_tree import ROOT
from tests.support.hello_storm import hello
from tests.support.live_cluster import running
from tests.support.niceness import before_others
from tests.support.raw_client import RawClient
from tests.support.secure_cluster import Appending, SecureCluster
from tests.support.serving import request_frame

CLIENT = "127.0.0.8"
MANY = 16
"""Addresses of strangers, where these are not all at one; CLIENT is none of them."""
COUNT = 2_000
MEMORY_MAX_MB = 150
"""What a node may take more than before: 1,024 places, each with the buffers of a handshake."""

APPENDS = 1_500
"""Of so many the slowest hundredth is more than a moment's, and a storm lasts longer than they take."""
PASSES_MAX = 5
AT_ONCE, ROUNDS_MAX = 200, 25
PAUSE_MAX_S = 0.05
"""Five times what a prototype needed, and less than a third of what it needed without threads."""
ASKING = ApiVersionsRequest(client_software_name="t", client_software_version="1")
HANDSHAKE_RECORD = b"\x16"
HANDSHAKES = int(os.environ.get("HANDSHAKES", "2000"))
WARM = 1000
"""After so many no more memory is taken."""
LEFT_MAX_MB = 2
"""So much more a node may take after those: a leak of 100 bytes each is seen with 20,000."""


class Calm(NamedTuple):
    """What nodes needed before the first storm: memory, and time for the slowest hundredth of the appends."""

    memory_mb: dict[int, float]
    p99_ms: float


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureCluster]:
    """For all storms: none of them may leave anything behind that the next one meets."""
    with running(SecureCluster(tmp_path_factory.mktemp("storms") / "cluster")) as made:
        yield made


@pytest.fixture(scope="module")
def calm(cluster: SecureCluster) -> Calm:
    with cluster.secure_client() as appending:
        appending.wait_progress(APPENDS + 50, timeout_s=60)
        memory_mb = {node: resident_mb(cluster.pid(node)) for node in cluster.ids}
    cluster.assert_same_logs()
    appending.assert_nothing_lost(cluster)
    return Calm(memory_mb, p99_ms(appending, 50))


@contextmanager
def storm(port: int, count: int, kind: str, addresses: int = 1) -> Iterator[None]:
    """So many handshakes of strangers at so many addresses, all begun, until the end of it."""
    program = [sys.executable, "-m", "tests.support.hello_storm"]
    command = [*program, str(port), str(count), kind, str(addresses)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == f"{count} connected\n"
        try:
            yield
        finally:
            process.stdin.close()
            process.wait(30)


def resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def p99_ms(appending: Appending, begin: int) -> float:
    taken = sorted(appending.latencies_s[begin:])
    return 1e3 * taken[int(len(taken) * 0.99)]


def new_ones(cluster: SecureCluster, node: int) -> int:
    """Connections that have sent no request yet."""
    found = cluster.status(node)["connections"]["new"]
    assert isinstance(found, int)
    return found


@pytest.mark.parametrize(
    ("kind", "addresses"),
    [("whole", 1), ("whole", MANY), ("half", 1), ("half", MANY), ("drip", 1), ("stuffed", 1)],
)
def test_handshakes_of_strangers_disturb_nobody_and_end_in_time(
    cluster: SecureCluster,
    calm: Calm,
    kind: str,
    addresses: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    leader = cluster.wait_leader()
    epoch = cluster.status(leader)["epoch"]
    with cluster.secure_client() as appending:
        appending.wait_progress(50)
        begin = len(appending.latencies_s)
        with storm(cluster.secure_ports[leader], COUNT, kind, addresses):
            appending.wait_progress(APPENDS, timeout_s=60)
            stormy = p99_ms(appending, begin)
            assert new_ones(cluster, leader) <= NEW_MAX
            grown = resident_mb(cluster.pid(leader)) - calm.memory_mb[leader]
            cluster.wait_for(lambda: new_ones(cluster, leader) == 0 or None, "all are ended")
            appending.wait_progress(20)
    with capsys.disabled():
        print(
            f"\n{COUNT} x {kind} of {addresses}: p99 {calm.p99_ms:.1f} -> {stormy:.1f} ms "
            f"(x {stormy / calm.p99_ms:.1f}), "
            f"slowest {1e3 * max(appending.latencies_s[begin:]):.0f} ms, memory +{grown:.0f} MB"
        )
    assert grown < MEMORY_MAX_MB
    assert cluster.leader() == leader
    assert cluster.status(leader)["epoch"] == epoch, "nobody was elected"
    appending.assert_nothing_lost(cluster)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("addresses", [1, MANY])
def test_a_storm_that_goes_on_keeps_no_client_of_another_address_out(
    cluster: SecureCluster, addresses: int
) -> None:
    leader = cluster.wait_leader()
    cluster.authority.store("passer-by")
    context = cluster.client_context("passer-by")
    port = cluster.secure_ports[leader]

    def comes_by() -> bool:
        """False if it has to wait too long. Raises if it is turned away."""
        try:
            with (
                socket.create_connection(("127.0.0.1", port), 5, (CLIENT, 0)) as raw,
                context.wrap_socket(raw, server_hostname="127.0.0.1") as tls,
            ):
                tls.sendall(request_frame(7, key=18, version=0, tags=b""))
                assert tls.recv(4)
        except TimeoutError:
            return False
        return True

    with storm(port, 1_500, "again", addresses):
        # One round is enough: other processes only add to the time that it takes.
        assert any(all(comes_by() for _ in range(10)) for _ in range(PASSES_MAX))


def pause_s(node: RawClient, strangers: list[socket.socket], said: bytes) -> float:
    """The longest time that a node leaves a client waiting while it answers hellos that come all at once.

    A request is on its way whenever there is none: so it is also how long its event loop does nothing else.
    """
    for stranger in strangers:
        stranger.sendall(said)
    longest, unanswered = 0.0, strangers
    while unanswered:
        begun = time.monotonic()
        node.ask(API_VERSIONS_KEY, 4, ASKING, ApiVersionsResponse)
        longest = max(longest, time.monotonic() - begun)
        answered, _, _ = select.select(unanswered, [], [], 0)
        unanswered = [each for each in unanswered if each not in answered]
    return longest


def test_hellos_that_come_all_at_once_are_no_pause_of_the_event_loop(
    cluster: SecureCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the event loop these handshakes would take it 0.1 to 0.2 s. One time with less is enough: other
    processes only add to it."""
    leader = cluster.wait_leader()
    found = []
    with before_others(cluster.pid(leader), os.getpid()), RawClient(cluster.port(leader)) as node:
        for _ in range(ROUNDS_MAX):
            with ExitStack() as stack:
                strangers = [
                    stack.enter_context(
                        socket.create_connection(
                            ("127.0.0.1", cluster.secure_ports[leader]), 10, (CLIENT, 0)
                        )
                    )
                    for _ in range(AT_ONCE)
                ]
                cluster.wait_for(lambda: new_ones(cluster, leader) >= AT_ONCE or None, "all are in")
                found.append(pause_s(node, strangers, hello()))
                assert all(each.recv(1) == HANDSHAKE_RECORD for each in strangers)
            cluster.wait_for(lambda: new_ones(cluster, leader) == 0 or None, "all are gone")
            if found[-1] < PAUSE_MAX_S:
                break
    with capsys.disabled():
        shown = ", ".join(f"{1e3 * each:.1f}" for each in found)
        print(f"\n{AT_ONCE} hellos at once: the event loop pauses for {shown} ms at most")
    assert found[-1] < PAUSE_MAX_S


def shake_hands(cluster: SecureCluster, node: int, count: int) -> None:
    """Connect so often, one after the other and by turns in all ways that end differently, and hang up."""
    newer, older = (cluster.client_context("passer-by") for _ in range(2))
    older.maximum_version = ssl.TLSVersion.TLSv1_2
    nobody = ssl.create_default_context(cafile=str(cluster.authority.trust))
    for context, _ in zip(cycle((newer, older, nobody)), range(count), strict=False):
        with (
            socket.create_connection(("127.0.0.1", cluster.secure_ports[node]), 10) as raw,
            context.wrap_socket(raw, server_hostname="127.0.0.1") as tls,
        ):
            if context is nobody:
                with pytest.raises(
                    ssl.SSLError, match=r"CERTIFICATE_REQUIRED|certificate required"
                ):
                    tls.recv(1)


@pytest.mark.timeout(600)
def test_handshakes_that_come_and_go_leave_no_memory_behind(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of nodes of its own: a storm leaves free memory behind, where a leak would not be seen."""
    with running(SecureCluster(folder)) as cluster:
        leader = cluster.wait_leader()
        cluster.authority.store("passer-by")
        shake_hands(cluster, leader, WARM)
        before = resident_mb(cluster.pid(leader))
        shake_hands(cluster, leader, HANDSHAKES)
        left = resident_mb(cluster.pid(leader)) - before
        assert cluster.leader() == leader
    with capsys.disabled():
        print(f"\n{HANDSHAKES} handshakes: memory {before:.1f} MB, {left:+.1f} MB")
    assert left < LEFT_MAX_MB
