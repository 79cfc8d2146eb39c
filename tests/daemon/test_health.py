"""What a node says of itself while its quorum comes and goes, and what it does to greedy clients."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.error import HTTPError

import pytest
from prometheus_client.parser import text_string_to_metric_families

from quorumd.version import VERSION, form
from quorumd.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from quorumd.wire.messages.fetch import (
    FetchRequest,
    FetchRequestPartition,
    FetchRequestTopic,
    FetchResponse,
)
from quorumd.wire.messages.metadata import MetadataRequest
from tests.support.live_cluster import TOPIC, Cluster, running_cluster
from tests.support.load import Load, produce, produce_message
from tests.support.raw_client import Hungup, RawClient, frame, request

QUICK = {"quorum.fetch.timeout.ms": 600, "quorum.election.timeout.ms": 300}
API_VERSIONS, METADATA, FETCH = 18, 3, 1


def page(cluster: Cluster, node: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(cluster.http_url(node, path), timeout=2) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def metrics(cluster: Cluster, node: int) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Samples by name, as a Prometheus would read them."""
    status, text = page(cluster, node, "/metrics")
    assert status == 200
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


# -- health


@pytest.fixture(scope="module")
def quorum(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("quorum"), settings=QUICK) as cluster:
        yield cluster


@pytest.fixture
def restored(quorum: Cluster) -> Iterator[None]:
    """A test that failed half-way must not make the next one fail."""
    yield
    quorum.start()
    quorum.wait_ready()


@pytest.mark.usefixtures("restored")
def test_a_node_that_lost_its_quorum_lives_is_not_ready_and_says_why(quorum: Cluster) -> None:
    leader = quorum.wait_leader()
    others = [node for node in quorum.ids if node != leader]
    assert page(quorum, leader, "/readyz") == (200, "ready\n")
    assert quorum.status(leader)["problems"] == []
    for node in others:
        quorum.kill(node)
    quorum.wait_for(lambda: page(quorum, leader, "/readyz")[0] == 503, "not ready")
    # It stays that way, and alive, for as long as the others are away.
    deadline = time.monotonic() + 1.0
    while time.monotonic() < deadline:
        assert page(quorum, leader, "/livez")[0] == 200
        assert page(quorum, leader, "/readyz")[0] == 503
        time.sleep(0.05)
    text = page(quorum, leader, "/readyz")[1]
    assert "no leader is known" in text
    assert "1 of 3 voters seem to be up, a majority is needed" in text
    assert "; ".join(quorum.status(leader)["problems"]) == text.strip()
    assert not quorum.status(leader)["ready"]
    assert unreachable_at(quorum, leader) == others
    # A scrape works without a quorum, too.
    assert metrics(quorum, leader)["raft_manager_current_leader"][0][1] == -1
    quorum.start()
    quorum.wait_ready()
    assert page(quorum, leader, "/readyz")[0] == 200


def test_a_follower_that_is_left_alone_says_that_a_majority_is_missing(quorum: Cluster) -> None:
    """It knows the leader that has died, and nobody tells it of another one."""
    leader = quorum.wait_leader()
    left, other = (node for node in quorum.ids if node != leader)
    quorum.kill(leader)
    quorum.kill(other)
    text = "1 of 3 voters seem to be up, a majority is needed"
    quorum.wait_for(lambda: text in page(quorum, left, "/readyz")[1], "both missing")
    assert metrics(quorum, left)["quorumd_ready"][0][1] == 0
    quorum.start()
    quorum.wait_ready()


def test_first_voters_that_were_not_formatted_as_such_say_what_is_missing(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    for node in cluster.ids:
        cluster.write_config(node)
        cluster.format_one(node)
    try:
        cluster.start()
        text = "this directory was formatted without --bootstrap"
        cluster.wait_for(lambda: text in page(cluster, 1, "/readyz")[1], "what is missing")
    finally:
        cluster.kill_all()


def test_a_node_whose_peers_have_no_address_does_not_take_them_for_up(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, size=1)
    others = "2@no-such-host.invalid:9093,3@nor-this.invalid:9093"
    cluster.write_config(1, {"quorum.voters": f"1@{cluster.address(1)},{others}"})
    cluster.format_one(1, "--bootstrap")
    try:
        cluster.start()
        cluster.wait_for(
            lambda: "1 of 3 voters seem to be up" in page(cluster, 1, "/readyz")[1], "both missing"
        )
        text = page(cluster, 1, "/readyz")[1]
        assert "node 2 at no-such-host.invalid:9093: " in text
        assert "node 3 at nor-this.invalid:9093: " in text
    finally:
        cluster.kill_all()


def test_status_says_which_quorumd_runs(quorum: Cluster) -> None:
    for node in quorum.ids:
        status = quorum.status(node)
        assert (status["version"], status["form"]) == (VERSION, form())


def test_to_be_asked_to_look_at_certificates_harms_no_node_without_them(quorum: Cluster) -> None:
    pids = {node: quorum.pid(node) for node in quorum.ids}
    for pid in pids.values():
        os.kill(pid, signal.SIGHUP)
    for node, pid in pids.items():
        quorum.wait_for(
            lambda at=node: "no keys and certificates to read" in quorum.output(at), "its line"
        )
        assert quorum.is_ready(node)
        assert quorum.pid(node) == pid


def test_all_metrics_that_operators_were_promised_are_there(quorum: Cluster) -> None:
    with Load(quorum) as load:
        load.wait_progress(50)
    leader = quorum.wait_leader()
    quorum.assert_same_logs()
    states = {}
    for node in quorum.ids:
        found = metrics(quorum, node)
        for name in (
            "current_leader",
            "current_epoch",
            "current_vote",
            "log_end_offset",
            "log_end_epoch",
            "high_watermark",
            "current_state",
            "number_unknown_voter_connections",
            "fetch_records_rate",
            "append_records_rate",
            "poll_idle_ratio_avg",
            "number_of_voters",
            "number_of_possible_voters",
            "pending_add_voter",
            "pending_remove_voter",
        ):
            assert f"raft_manager_{name}" in found, (node, name)
        assert found["raft_manager_current_leader"][0][1] == leader
        assert found["raft_manager_number_of_voters"][0][1] == 3
        states[node] = [
            labels["state"] for labels, value in found["raft_manager_current_state"] if value == 1
        ]
    assert states.pop(leader) == ["leader"]
    assert set(map(tuple, states.values())) == {("follower",)}
    at_leader = metrics(quorum, leader)
    for name in ("commit_latency_avg", "commit_latency_max"):
        assert at_leader[f"raft_manager_{name}"][0][1] > 0
    assert any("lag" in name for name in at_leader)
    for kind in ("count", "sum"):
        assert at_leader[f"quorumd_batch_bytes_{kind}"][0][1] > 0
    for name in ("commit", "fsync", "requests", "elections", "build_info"):
        assert any(key.startswith("quorumd_") and name in key for key in at_leader), name


def unreachable_at(cluster: Cluster, node: int) -> list[int]:
    return [voter["id"] for voter in cluster.status(node)["voters"] if voter["unreachable"]]


def test_a_voter_that_comes_last_to_a_new_quorum_is_reachable_for_all(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, size=3)
    try:
        cluster.format()
        cluster.start(1, 2)
        cluster.wait_for(lambda: unreachable_at(cluster, 1) == [3] or None, "node 3 to be missed")
        time.sleep(2)  # now a lost link is tried anew only once a second
        cluster.start(3)
        cluster.wait_ready()
        for node in cluster.ids:
            cluster.wait_for(lambda n=node: not unreachable_at(cluster, n) or None, "all", 0.7)
    finally:
        cluster.kill_all()


def test_an_idle_leader_stays_in_office_however_short_the_fetch_timeout(tmp_path: Path) -> None:
    settings = {"quorum.fetch.timeout.ms": 300, "quorum.election.timeout.ms": 300}
    with running_cluster(tmp_path, settings=settings) as cluster:
        for _ in range(5):  # a busy machine may keep a node waiting for as long: then once more
            cluster.wait_converged()
            leader = cluster.wait_leader()
            epoch = cluster.status(leader)["epoch"]
            time.sleep(2)
            if stayed := cluster.status(leader)["epoch"] == epoch:
                break
        assert stayed


# -- limits


OF_LISTENER = "listener.name.controller.max.connections.per.ip"


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One node with small limits."""
    settings = {
        "max.connections": 16,
        "connections.max.idle.ms": 1000,
        f"{OF_LISTENER}.overrides": "127.0.0.4:1",
    }
    folder = tmp_path_factory.mktemp("narrow")
    with running_cluster(folder, size=1, settings=settings) as cluster:
        yield cluster


def ask_versions(client: RawClient) -> None:
    message = ApiVersionsRequest(client_software_name="t", client_software_version="1")
    assert client.ask(API_VERSIONS, 4, message, ApiVersionsResponse).error_code == 0


def test_a_connection_above_the_limit_is_closed_and_the_others_work_on(narrow: Cluster) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(narrow.port(1))) for _ in range(16)]
        for client in clients:
            ask_versions(client)
        with RawClient(narrow.port(1)) as one_more:
            one_more.send(frame(request(METADATA, 12, MetadataRequest(topics=None))))
            assert one_more.wait_hungup() == b""
        narrow.wait_for(lambda: "too many connections" in narrow.output(1), "a log line")
        narrow.wait_logged(1, "max.connections=16")
        for client in clients:
            ask_versions(client)
        refused = metrics(narrow, 1)
        assert any("refused" in name and rows[0][1] >= 1 for name, rows in refused.items())
        clients[0].close()
        narrow.wait_for(lambda: try_to_connect(narrow), "room for one more")


def test_a_listener_has_limits_of_its_own(narrow: Cluster) -> None:
    at = ("127.0.0.1", narrow.port(1))
    with (
        socket.create_connection(at, 5, ("127.0.0.4", 0)) as first,
        socket.create_connection(at, 5, ("127.0.0.4", 0)) as second,
    ):
        second.settimeout(5)
        assert second.recv(1) == b""
        narrow.wait_logged(1, f"{OF_LISTENER}=1")
        first.sendall(frame(request(METADATA, 12, MetadataRequest(topics=None))))
        assert first.recv(4)


def try_to_connect(cluster: Cluster) -> bool:
    try:
        with RawClient(cluster.port(1)) as client:
            ask_versions(client)
    except (Hungup, OSError):
        return False
    return True


def test_idle_connections_are_closed_and_parked_fetches_are_not_idle(narrow: Cluster) -> None:
    end = narrow.status(1)["high_watermark"]
    asked = FetchRequestPartition(fetch_offset=end, partition_max_bytes=1 << 20)
    message = FetchRequest(
        max_wait_ms=2500, min_bytes=1, topics=(FetchRequestTopic(topic=TOPIC, partitions=(asked,)),)
    )
    with RawClient(narrow.port(1)) as idle, RawClient(narrow.port(1)) as parked:
        ask_versions(idle)
        begun = time.monotonic()
        parked.send(frame(request(FETCH, 11, message)))
        assert idle.wait_hungup() == b""
        assert 0.9 < time.monotonic() - begun < 2.4
        answer = parked.answer(FETCH, 11, FetchResponse)
        assert time.monotonic() - begun > 2.4
        assert answer.responses[0].partitions[0].error_code == 0
    text = "nothing was asked for connections.max.idle.ms"
    narrow.wait_for(lambda: text in narrow.output(1), "a log line")
    lines = [line for line in narrow.output(1).splitlines() if text in line]
    assert all(" INFO " in line for line in lines), "it happens to every client that has a pool"


def test_a_client_that_does_not_read_its_answers_holds_up_nobody(quorum: Cluster) -> None:
    """It is not read from any more, and its answers do not fill the memory."""
    leader = quorum.wait_leader()
    before = memory_bytes(quorum.pid(leader))
    data = frame(request(METADATA, 12, MetadataRequest(topics=None))) * 2000
    with socket.create_connection(("127.0.0.1", quorum.port(leader))) as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.settimeout(0.5)

        def flood() -> None:
            try:
                for _ in range(500):
                    deaf.sendall(data)
            except OSError:
                return

        flooding = threading.Thread(target=flood)
        flooding.start()
        with Load(quorum) as load:
            load.wait_progress(300)
        flooding.join()
        assert memory_bytes(quorum.pid(leader)) - before < 48 << 20


def memory_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


def test_a_thousand_idle_connections_cost_little(folder: Path) -> None:
    settings = {"max.connections": 1500}
    with running_cluster(folder, size=1, settings=settings) as cluster, ExitStack() as stack:
        pid = cluster.pid(1)
        with RawClient(cluster.port(1)) as client:
            produce(client, produce_message([b"warm"]))
        before = memory_bytes(pid)
        for _ in range(900):
            stack.enter_context(RawClient(cluster.port(1)))
        with RawClient(cluster.port(1)) as client:
            started = time.monotonic()
            for _ in range(50):
                assert produce(client, produce_message([b"x"])).error_code == 0
            took_s = time.monotonic() - started
        assert memory_bytes(pid) - before < 30 << 20
        assert took_s < 2.0
        used = cpu_s(pid)
        time.sleep(1.0)
        assert cpu_s(pid) - used < 0.2


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


# -- names and addresses


def test_a_voter_whose_name_does_not_resolve_yet_disturbs_nobody(folder: Path) -> None:
    """Two of three are enough; attempts are spaced, and the name is asked for again each time."""
    cluster = Cluster(folder, settings=QUICK)
    try:
        cluster.format()
        for node in (1, 2):
            path = cluster.config_path(node)
            known = path.read_text()
            voter = f"3@127.0.0.1:{cluster.port(3)}"
            assert voter in known
            path.write_text(known.replace(voter, f"3@not-there-yet.invalid:{cluster.port(3)}"))
        cluster.start(1, 2)
        # The quorum is new: it needs every voter once, and says which one is missing.
        leader = cluster.wait_leader()
        missing = "this quorum is new and waits for voter 3 to be seen once"
        cluster.wait_for(lambda: missing in page(cluster, leader, "/readyz")[1], "voter 2 seen")
        failures = connect_failures(cluster, leader)
        time.sleep(1.0)
        assert connect_failures(cluster, leader) - failures < 30
        # It is found by its own address as soon as it shows itself.
        cluster.start(3)
        cluster.wait_ready()
        with Load(cluster) as load:
            load.wait_progress()
    finally:
        cluster.kill_all()


def connect_failures(cluster: Cluster, node: int) -> float:
    rows = [rows for name, rows in metrics(cluster, node).items() if "connect_failures" in name]
    assert rows
    return sum(value for _, value in rows[0])


@pytest.mark.usefixtures("restored")
def test_a_voter_that_is_away_for_long_is_asked_ever_less(quorum: Cluster) -> None:
    leader = quorum.wait_leader()
    away = next(node for node in quorum.ids if node != leader)
    quorum.kill(away)
    with Load(quorum) as load:
        load.wait_progress(50)
        time.sleep(1.5)
        failures = connect_failures(quorum, leader)
        time.sleep(2.0)
        tries = connect_failures(quorum, leader) - failures
        # Two links, about one try a second each once they back off.
        assert tries <= 10
        quorum.start(away)
        quorum.wait_ready(away)


HARDLY_READ = """
import sys
from pathlib import Path
from quorumd.config.load import load
from quorumd.server.model import logs
from quorumd.server.run import run_node

logs.BACKLOG_MAX = 1
raise SystemExit(run_node(load(Path(sys.argv[1]), {})))
"""


def test_log_lines_that_nobody_reads_are_dropped_and_counted(folder: Path) -> None:
    cluster = Cluster(folder, size=1)
    cluster.format()
    reading, writing = os.pipe()
    try:
        os.set_blocking(writing, False)
        with suppress(BlockingIOError):
            while True:
                os.write(writing, bytes(4096))
        os.set_blocking(writing, True)
        node = [sys.executable, "-c", HARDLY_READ, str(cluster.config_path(1))]
        with subprocess.Popen(node, stderr=writing) as process:
            try:
                cluster.wait_for(lambda: cluster.is_ready(1) or None, "the node is ready")
                ((_, dropped),) = metrics(cluster, 1)["quorumd_log_lines_dropped_total"]
            finally:
                process.kill()
    finally:
        os.close(reading)
        os.close(writing)
    assert dropped > 0
