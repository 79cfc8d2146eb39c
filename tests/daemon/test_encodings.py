"""Live quorums whose messages are not the usual ones: names as long as they may be, and what a release
to come may write."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from quorumd.wire.codec import decode
from quorumd.wire.headers import (
    decode_request_header,
    decode_response_header,
    encode_request_header,
    encode_response_header,
)
from quorumd.wire.registry import APIS
from tests.support.live_cluster import Cluster
from tests.support.load import Load
from tests.support.ports import free_ports
from tests.wire.encodings import Unusual, written

LONG_CLUSTER_ID = "c" * 249
# 127.0.0.1 with the 253 bytes that a host name may have, in labels of at most 63.
LONG_HOST = ".".join(("0x" + "7f".zfill(61), "0".zfill(63), "0".zfill(63), "1".zfill(61)))
API_VERSIONS, PRODUCE, FETCH = 18, 0, 1


class LongNamed(Cluster):
    """Nodes at a host with the longest name there can be."""

    def address(self, node: int) -> str:
        return f"{LONG_HOST}:{self.port(node)}"


def test_a_quorum_with_the_longest_names_elects_commits_and_fails_over(folder: Path) -> None:
    cluster = LongNamed(folder)
    try:
        cluster.format(cluster_id=LONG_CLUSTER_ID)
        cluster.start()
        cluster.wait_ready()
        assert_works(cluster)
        assert cluster.status(1)["cluster_id"] == LONG_CLUSTER_ID
    finally:
        cluster.kill_all()


def assert_works(cluster: Cluster) -> None:
    """Records are committed, also after the leader was killed, and a node catches up by what it fetches."""
    with Load(cluster) as load:
        load.wait_progress()
        leader = cluster.wait_leader()
        cluster.kill(leader)
        load.wait_progress()
        cluster.start(leader)
        cluster.wait_ready()
        load.wait_progress()
    cluster.assert_same_logs()
    load.assert_nothing_lost()


# -- what a release to come may write


class Rewriter:
    """Stands before a node's listener and writes all it can of what passes in an unusual encoding."""

    def __init__(self, port: int, behind: int) -> None:
        self._behind = behind
        self._server = socket.create_server(("127.0.0.1", port))
        self._sockets: list[socket.socket] = [self._server]
        self.seen: set[int] = set()
        """Api keys of the requests that were written anew."""
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for open_socket in list(self._sockets):
            with contextlib.suppress(OSError):
                open_socket.shutdown(socket.SHUT_RDWR)
            open_socket.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                self._sockets.append(client)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:
            asked: dict[int, tuple[int, int]] = {}
            with socket.create_connection(("127.0.0.1", self._behind)) as node:
                self._sockets.append(node)
                threading.Thread(target=self._pump, args=(node, client, asked), daemon=True).start()
                for frame in frames(client):
                    node.sendall(with_length(self._request(frame, asked)))

    def _pump(
        self, node: socket.socket, client: socket.socket, asked: Mapping[int, tuple[int, int]]
    ) -> None:
        with contextlib.suppress(OSError):
            for frame in frames(node):
                client.sendall(with_length(self._response(frame, asked)))
            client.shutdown(socket.SHUT_RDWR)

    def _request(self, frame: bytes, asked: dict[int, tuple[int, int]]) -> bytes:
        (key, version, correlation_id, client_id), at = decode_request_header(frame)
        asked[correlation_id] = key, version
        self.seen.add(key)
        message = decode(APIS[key].request, version, frame, at)
        header = encode_request_header(key, version, correlation_id, client_id)
        return header + written(message, version, Unusual())

    def _response(self, frame: bytes, asked: Mapping[int, tuple[int, int]]) -> bytes:
        (correlation_id,) = struct.unpack_from(">i", frame)
        key, version = asked[correlation_id]
        _, at = decode_response_header(key, version, frame)
        message = decode(APIS[key].response, version, frame, at)
        header = encode_response_header(key, version, correlation_id)
        return header + written(message, version, Unusual())


def frames(connection: socket.socket) -> Iterator[bytes]:
    """Frames without their lengths, until the other side is gone."""
    stream = connection.makefile("rb")
    while len(length := stream.read(4)) == 4:
        size = int.from_bytes(length, "big")
        frame = stream.read(size)
        if len(frame) < size:
            return
        yield frame


def with_length(frame: bytes) -> bytes:
    return struct.pack(">i", len(frame)) + frame


class Rewritten(Cluster):
    """Nodes that nobody, peers and clients, reaches but through a `Rewriter`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        behind = free_ports(len(self.ids))
        self._behind = dict(zip(self.ids, behind, strict=True))
        self.rewriters = [Rewriter(self.port(node), self._behind[node]) for node in self.ids]

    def write_config(self, node: int, changes: Mapping[str, object] | None = None) -> None:
        super().write_config(
            node,
            {
                "listeners": f"CONTROLLER://127.0.0.1:{self._behind[node]}",
                "advertised.listeners": f"CONTROLLER://{self.address(node)}",
                **(changes or {}),
            },
        )


def test_a_quorum_works_when_every_message_is_written_in_another_way(folder: Path) -> None:
    cluster = Rewritten(folder)
    try:
        cluster.format()
        cluster.start()
        cluster.wait_ready()
        assert_works(cluster)
        assert {API_VERSIONS, PRODUCE, FETCH} <= set.union(*(x.seen for x in cluster.rewriters))
    finally:
        cluster.kill_all()
        for rewriter in cluster.rewriters:
            rewriter.close()
