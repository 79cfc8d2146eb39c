"""An observer copies from Kafka in every Fetch version from the newest down to what Kafka 3.9 speaks.

A proxy in front of a real controller answers ApiVersions as an older one would.
"""

from __future__ import annotations

import socket
import struct
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from quorumd.wire.codec import decode, encode
from quorumd.wire.headers import decode_response_header, encode_response_header
from quorumd.wire.messages.api_versions import ApiVersionsResponse
from quorumd.wire.registry import API_VERSIONS_KEY, APIS
from tests.support.kafka_controller import running_controller
from tests.support.kafka_jars import requires_java
from tests.support.kafka_observer import observing
from tests.support.kafka_quorum import wait_same_batches
from tests.support.live_cluster import describe_quorum_at
from tests.support.ports import free_port

FETCH = 1
OF_QUORUMD = 3
"""The version of ApiVersions that quorumd asks with; Kafka's own nodes ask with 4."""


class OlderKafka:
    """Listens on a port of its own, and passes everything on, but for the versions of Fetch."""

    def __init__(self) -> None:
        self.port = free_port()
        self.upstream = 0
        self.newest = APIS[FETCH].max_version
        self.fetches: set[int] = set()
        """The versions that were asked with."""
        self._server = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:  # `close`
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.upstream))
            except (
                OSError
            ):  # the controller asks itself at this address before it is known where it is
                client.close()
                continue
            asked: list[tuple[int, int]] = []
            for pump in (self._pass_requests, self._pass_responses):
                threading.Thread(target=pump, args=(client, server, asked), daemon=True).start()

    def _pass_requests(
        self, client: socket.socket, server: socket.socket, asked: list[tuple[int, int]]
    ) -> None:
        with client.makefile("rb") as frames:
            while frame := _next_frame(frames.read):
                key, version = struct.unpack_from(">hh", frame)
                if key == FETCH:
                    self.fetches.add(version)
                asked.append((key, version))
                server.sendall(struct.pack(">i", len(frame)) + frame)
        server.close()

    def _pass_responses(
        self, client: socket.socket, server: socket.socket, asked: list[tuple[int, int]]
    ) -> None:
        with server.makefile("rb") as frames:
            while frame := _next_frame(frames.read):
                if asked.pop(0) == (API_VERSIONS_KEY, OF_QUORUMD):
                    frame = self._as_older(frame)
                client.sendall(struct.pack(">i", len(frame)) + frame)
        client.close()

    def _as_older(self, frame: bytes) -> bytes:
        correlation_id, at = decode_response_header(API_VERSIONS_KEY, OF_QUORUMD, frame)
        answer = decode(ApiVersionsResponse, OF_QUORUMD, frame, at)
        keys = tuple(
            replace(key, max_version=self.newest) if key.api_key == FETCH else key
            for key in answer.api_keys
        )
        header = encode_response_header(API_VERSIONS_KEY, OF_QUORUMD, correlation_id)
        return header + encode(replace(answer, api_keys=keys), OF_QUORUMD)


def _next_frame(read: object) -> bytes:
    """Empty at the end."""
    assert callable(read)
    try:
        return bytes(read(int.from_bytes(read(4), "big")))
    except OSError:
        return b""


@requires_java
@pytest.mark.timeout(240)
def test_an_observer_fetches_in_every_version_down_to_that_of_kafka_3_9(tmp_path: Path) -> None:
    older = OlderKafka()
    at = f"127.0.0.1:{older.port}"
    extra = {"advertised.listeners": f"CONTROLLER://{at}"}
    try:
        with running_controller(tmp_path / "kafka", extra=extra) as controller:
            older.upstream = controller.port
            for version in (18, 17):
                older.newest, older.fetches = version, set()
                with observing(tmp_path / f"{version}", at, node_id=version) as observer:
                    seen = describe_quorum_at(controller.port)
                    assert seen is not None
                    observer.wait_committed(seen.high_watermark + 2)
                    assert older.fetches == {version}
                    end = observer.status()["high_watermark"]
                    wait_same_batches(observer.log_folder, controller.log_folder, end)
    finally:
        older.close()
