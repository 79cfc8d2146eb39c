"""One voter's address answers for another cluster: that alone must not end a node."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from quorumd.wire.codec import encode
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.headers import decode_request_header, encode_response_header
from quorumd.wire.messages.api_versions import ApiVersionsResponse, ApiVersionsResponseApiKey
from quorumd.wire.messages.fetch import FetchResponse, FetchResponseNodeEndpoint
from quorumd.wire.messages.vote import VoteResponse
from quorumd.wire.registry import APIS, CONTROLLER_KEYS
from quorumd.wire.schema import Message
from tests.support.live_cluster import Cluster
from tests.support.load import Load
from tests.support.raw_client import frame

FETCH, API_VERSIONS, VOTE = 1, 18, 52
LIAR = 3
CLUSTER_ID = "tests-cluster"


class Liar:
    """Answers 104 to whatever it is asked, and calls itself the leader."""

    def __init__(self, port: int) -> None:
        self.lies = 0
        self._port = port
        self._connections: list[socket.socket] = []
        self._server = socket.create_server(("127.0.0.1", port))
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join()
        for connection in self._connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            self._connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream:
            try:
                while size := stream.read(4):
                    request = stream.read(int.from_bytes(size, "big"))
                    connection.sendall(self._answer(request))
            except OSError:
                return

    def _answer(self, request: bytes) -> bytes:
        header, _ = decode_request_header(request)
        version = header.api_version
        foreign = int(ErrorCode.INCONSISTENT_CLUSTER_ID)
        answer: Message
        if header.api_key == API_VERSIONS:
            keys = (
                ApiVersionsResponseApiKey(
                    api_key=key, min_version=spec.min_version, max_version=spec.max_version
                )
                for key, spec in APIS.items()
                if key not in CONTROLLER_KEYS
            )
            answer = ApiVersionsResponse(api_keys=tuple(keys))
        elif header.api_key == FETCH:
            self.lies += 1
            at = FetchResponseNodeEndpoint(node_id=LIAR, host="127.0.0.1", port=self._port)
            answer = FetchResponse(error_code=foreign, node_endpoints=(at,))
        else:
            answer = VoteResponse(error_code=foreign)
        head = encode_response_header(header.api_key, version, header.correlation_id)
        return frame(head + encode(answer, version))


@contextmanager
def lying(port: int) -> Iterator[Liar]:
    liar = Liar(port)
    try:
        yield liar
    finally:
        liar.close()


@pytest.mark.parametrize("is_first", [True, False], ids=["before the others", "beside the others"])
def test_one_lying_voter_does_not_end_a_node(cluster: Cluster, is_first: bool) -> None:
    """Neither a node that has heard nobody else, nor one that finds its quorum beside the liar."""
    with lying(cluster.port(LIAR)) as liar:
        if is_first:
            cluster.start(4)
            cluster.wait_for(lambda: liar.lies > 3, "lies")
        else:
            cluster.start(1, 2)
            cluster.start(4)
            cluster.wait_for(lambda: liar.lies > 0, "a lie")
        if is_first:
            text = f"belongs to another cluster than {CLUSTER_ID}"
            cluster.wait_for(lambda: text in cluster.output(4), "a log line")
            assert cluster.status(4)["problems"]
            assert not cluster.status(4)["ready"]
        pid = cluster.pid(4)
    # The liar goes, the quorum comes: the same process joins it.
    cluster.start()
    cluster.wait_ready()
    assert cluster.pid(4) == pid
    with Load(cluster) as load:
        load.wait_progress()
    cluster.assert_same_logs()


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Formatted with a cluster id, node 4 as an observer; nothing runs."""
    cluster = Cluster(tmp_path_factory.mktemp("liar") / "cluster", observers=1)
    try:
        cluster.format(cluster_id=CLUSTER_ID)
        yield cluster
    finally:
        cluster.kill_all()
