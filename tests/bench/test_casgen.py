"""The generator of conditional writes names the newest version that it knows, and counts what succeeded.

The server is this test's: it judges each write by the version that it names.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import socketserver
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from bench.run_beside import generator

pytestmark = pytest.mark.skipif(
    shutil.which("cc") is None and shutil.which("gcc") is None, reason="no C compiler"
)
TOPIC = b"__cluster_metadata"
INVALID_RECORD = 87
BAD_VERSION = -103
NODE_EXISTS = -110
CREATE, EXISTS, SET_DATA = 1, 3, 5


class Server(socketserver.ThreadingTCPServer):
    """Answers requests behind their length, one at a time; `written` counts what was accepted of each key."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Connection)
        self.lock = threading.Lock()
        self.written: dict[bytes, int] = {}
        self.refused = 0

    def answer(self, request: bytes, connection: Connection) -> bytes:
        raise NotImplementedError


class Connection(socketserver.StreamRequestHandler):
    server: Server
    requests = 0

    def handle(self) -> None:
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            while head := self.rfile.read(4):
                request = self.rfile.read(int.from_bytes(head, "big"))
                with self.server.lock:
                    answer = self.server.answer(request, self)
                self.requests += 1
                self.wfile.write(struct.pack(">I", len(answer)) + answer)
        except OSError:
            return


class Quorum(Server):
    """Produce v8: the newest offset of each key is compared."""

    def __init__(self) -> None:
        super().__init__()
        self.newest: dict[bytes, int] = {}
        self.end_offset = 7

    def answer(self, request: bytes, connection: Connection) -> bytes:
        assert struct.unpack_from(">hh", request) == (0, 8)
        found = re.search(rb"(c\d{4}).*quorumd\.if-unchanged-since.(\d+)$", request, re.DOTALL)
        assert found is not None, request
        key, since = found[1], int(found[2])
        error, offset, said = 0, self.end_offset, b""
        if self.newest.get(key, -1) >= since:
            error, offset = INVALID_RECORD, -1
            said = b"Record 0 conflicts: its key was written at offset %d, and" % self.newest[key]
            self.refused += 1
        else:
            self.newest[key] = offset
            self.end_offset += 1
            self.written[key] = self.written.get(key, 0) + 1
        head = struct.pack(">ih", 1, len(TOPIC)) + TOPIC + struct.pack(">iih", 1, 0, error)
        errors = struct.pack(">iih", 1, 0, len(said)) + said if said else struct.pack(">i", 0)
        return request[4:8] + head + struct.pack(">qqq", offset, -1, 0) + errors + bytes(6)


class ZooKeeper(Server):
    """Sessions, `create`, `exists` and `setData`."""

    def __init__(self) -> None:
        super().__init__()
        self.versions: dict[bytes, int] = {}

    def answer(self, request: bytes, connection: Connection) -> bytes:
        if not connection.requests:
            return struct.pack(">iiqi", 0, 30000, 1, 16) + bytes(16)
        xid, code, size = struct.unpack_from(">iii", request)
        path, rest = request[12 : 12 + size], request[12 + size :]
        error = 0
        if code == CREATE:
            error = NODE_EXISTS if path in self.versions else 0
            self.versions.setdefault(path, 0)
        elif code == SET_DATA:
            (version,) = struct.unpack(">i", rest[-4:])
            if version == self.versions[path]:
                self.versions[path] += 1
                self.written[path] = self.written.get(path, 0) + 1
            else:
                error = BAD_VERSION
                self.refused += 1
        else:
            assert code == EXISTS
        stat = struct.pack(">qqqqiiiqiiq", 1, 1, 1, 1, self.versions[path], 0, 0, 0, 100, 0, 1)
        return struct.pack(">iqi", xid, 1, error) + (b"" if error or code == CREATE else stat)


SERVERS = {"quorumd": Quorum, "zookeeper": ZooKeeper}


@contextmanager
def running(protocol: str) -> Iterator[Server]:
    with SERVERS[protocol]() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def run(protocol: str, server: Server, *words: str) -> dict[str, Any]:
    command = [str(generator(with_etcd=False)), "--protocol", protocol, "--warmup", "0"]
    command += ["--port", str(server.server_address[1]), "--seconds", "0.2", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.live
@pytest.mark.parametrize("protocol", SERVERS)
def test_who_is_alone_with_its_key_is_never_refused(protocol: str) -> None:
    with running(protocol) as server:
        result = run(protocol, server, "--clients", "3")
        assert len(server.written) == 3
        assert server.refused == result["refused_per_s"] == result["sent_back"] == 0
        # What was under way at the end was written and not counted.
        assert 0 <= sum(server.written.values()) - result["writes"] <= 3
        assert result["writes"] > 3


@pytest.mark.live
@pytest.mark.parametrize("protocol", SERVERS)
def test_who_is_refused_learns_the_newest_version_and_tries_again(protocol: str) -> None:
    with running(protocol) as server:
        result = run(protocol, server, "--clients", "3", "--one-key")
        (written,) = server.written.values()
        assert 0 <= written - result["writes"] <= 3
        assert result["writes"] > 3
        assert server.refused > 0
        assert result["refused_per_s"] * result["seconds"] == pytest.approx(
            server.refused, rel=0.01, abs=4
        )


@pytest.mark.live
@pytest.mark.parametrize("protocol", SERVERS)
def test_at_a_rate_writes_are_due_whether_others_are_answered_or_not(protocol: str) -> None:
    with running(protocol) as server:
        result = run(protocol, server, "--clients", "3", "--rate", "500")
        # ZooKeeper's clients write once before they wait for what is due.
        assert result["writes"] + result["unanswered"] == pytest.approx(
            500 * result["seconds"], abs=5
        )
        assert server.refused == 0


@pytest.mark.live
def test_at_a_rate_a_write_that_waits_for_a_free_client_has_waited() -> None:
    with running("quorumd") as server:
        answer = server.answer

        def slowly(request: bytes, connection: Connection) -> bytes:
            time.sleep(0.02)
            return answer(request, connection)

        server.answer = slowly  # type: ignore[method-assign]  # a node that is slow
        result = run("quorumd", server, "--clients", "1", "--rate", "500", "--seconds", "0.4")
    # 20 are answered of 200 that were due; the last of them has waited nine tenths of the time.
    assert result["writes"] <= 20 < 150 < result["unanswered"]
    assert result["max_ms"] > 300
    assert result["p50_ms"] > 100
