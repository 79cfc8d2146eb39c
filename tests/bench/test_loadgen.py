"""The load generator sends what it says, counts what was acknowledged, and times a failover rightly.

The server is a thread of the test: it answers by the bytes alone and keeps every request.
"""

from __future__ import annotations

import json
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from crc32c import crc32c

from bench.common import loadgen

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(
        shutil.which("cc") is None and shutil.which("gcc") is None, reason="no C compiler"
    ),
]
TOPIC = b"__cluster_metadata"
HEAD = struct.Struct(">hhih7shhi")  # key, version, correlation, client id, transaction, acks, time
NOT_LEADER = 6

Answer = Callable[[int], int]


class Node:
    """A server of Produce v7; `error_of(request number)` is the code it answers with."""

    def __init__(self, error_of: Answer = lambda _: 0) -> None:
        self._error_of = error_of
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.requests: list[bytes] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._connections: list[socket.socket] = []
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
            self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream:
            try:
                while head := stream.read(4):
                    request = stream.read(int.from_bytes(head, "big"))
                    error = self._error_of(len(self.requests))
                    self.requests.append(request)
                    correlation = request[4:8]
                    name = struct.pack(">h", len(TOPIC)) + TOPIC
                    partition = struct.pack(">iihqqqi", 1, 0, error, 0, -1, 0, 0)
                    body = correlation + struct.pack(">i", 1) + name + partition
                    connection.sendall(struct.pack(">I", len(body)) + body)
            except OSError:
                return

    def stop(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
        for thread in self._threads:
            thread.join()


@pytest.fixture
def start() -> Iterator[Callable[..., Node]]:
    nodes: list[Node] = []

    def start_node(error_of: Answer = lambda _: 0) -> Node:
        nodes.append(Node(error_of))
        return nodes[-1]

    yield start_node
    for node in nodes:
        node.stop()


def run(*nodes: Node, **options: object) -> dict[str, Any]:
    ports = ",".join(str(node.port) for node in nodes)
    command = [str(loadgen()), "--ports", ports]
    for name, value in options.items():
        command += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_every_request_is_one_whole_batch_and_every_answer_is_counted(
    start: Callable[..., Node],
) -> None:
    node = start()
    result = run(node, clients=6, connections=2, records=3, value_bytes=50, warmup=0, seconds=0.2)
    # What was under way at the end was sent and not counted: at most one request of each client.
    assert 0 <= len(node.requests) - result["requests"] <= 6
    assert (result["errors"], result["lost"]) == (0, 0)
    assert result["records_per_s"] == pytest.approx(3 * result["requests_per_s"], rel=0.001)
    for request in node.requests[:50]:
        key, version, _, _, client_id, transaction, acks, _ = HEAD.unpack_from(request)
        assert (key, version, client_id, transaction, acks) == (0, 7, b"loadgen", -1, -1)
        batch = request[HEAD.size + 4 + 2 + len(TOPIC) + 4 + 4 :]
        size_bytes, _, length, _, magic, crc = struct.unpack_from(">iqiibI", batch)
        assert (size_bytes, magic) == (len(batch) - 4, 2)
        assert length == size_bytes - 12
        assert crc == crc32c(batch[25:])
        assert struct.unpack_from(">i", batch, 4 + 57) == (3,)


def test_an_error_is_counted_by_its_code_and_sends_the_client_to_the_next_node(
    start: Callable[..., Node],
) -> None:
    follower, leader = start(lambda _: NOT_LEADER), start()
    result = run(follower, leader, clients=1, warmup=0, seconds=0.2)
    assert result["errors_by_code"] == {str(NOT_LEADER): 1}
    assert len(follower.requests) == 1
    assert 0 <= len(leader.requests) - result["requests"] <= 1


def test_the_clock_of_a_failover_runs_from_the_signal_to_a_write_sent_after_it(
    start: Callable[..., Node],
) -> None:
    victim = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    ended: list[float] = []

    def error_of(_: int) -> int:
        """Refuses for 150 ms from the victim's death on, and waits a while for that each time."""
        if not ended:
            try:
                victim.wait(0.1)
                ended.append(time.monotonic())
            except subprocess.TimeoutExpired:
                return 0
        return NOT_LEADER if time.monotonic() < ended[0] + 0.15 else 0

    node = start(error_of)
    result = run(node, clients=1, warmup=0, seconds=0.2, kill_pid=victim.pid, retry_ms=5)
    victim.communicate()
    assert victim.returncode == -9
    assert result["clients_served"] == 1
    assert 150 <= result["all_clients_ms"] < 1000


def test_the_time_of_the_first_acknowledgement_is_on_the_clock_of_this_machine(
    start: Callable[..., Node],
) -> None:
    node = start()
    before_ns = time.monotonic_ns()
    first_ack_ns = run(node, until_first_ack=True)["first_ack_ns"]
    assert before_ns < first_ack_ns < time.monotonic_ns()


def test_by_number_it_sends_exactly_what_it_is_told_and_counts_what_is_refused(
    start: Callable[..., Node],
) -> None:
    node = start(lambda number: NOT_LEADER if number == 12 else 0)
    command = [str(loadgen()), "--ports", str(node.port), "--clients", "4", "--by-number"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdin is not None
        assert run.stdout is not None
        for number, refused, sent in ((10, "0", 10), (7, "1", 17), (1, "0", 18)):
            run.stdin.write(f"{number}\n")
            run.stdin.flush()
            assert run.stdout.readline().strip() == refused
            assert len(node.requests) == sent
        run.stdin.close()
        assert run.wait(30) == 0


def test_at_a_rate_requests_are_sent_whether_others_are_answered_or_not(
    start: Callable[..., Node],
) -> None:
    result = run(start(), clients=8, rate=200, warmup=0.1, seconds=0.5)
    due = 200 * result["seconds"]  # on a busy machine the generator measures for longer than asked
    assert due >= 100
    assert result["requests"] + result["unanswered"] == pytest.approx(due, abs=2)
    assert result["p50_ms"] < 50


def test_at_a_rate_who_waits_for_a_free_client_has_waited(start: Callable[..., Node]) -> None:
    """One client at a time, 20 ms each, 100 a second: the queue grows by half of what comes."""

    def slowly(_: int) -> int:
        time.sleep(0.02)
        return 0

    result = run(start(slowly), clients=1, rate=100, warmup=0, seconds=1)
    assert result["requests"] < 55
    due = 100 * result["seconds"]
    assert due >= 100
    assert result["requests"] + result["unanswered"] == pytest.approx(due, abs=2)
    # Answered ones waited up to half a second, those of the queue's end until the end.
    assert 300 < result["max_ms"] < 1100
    assert result["p50_ms"] > 150
