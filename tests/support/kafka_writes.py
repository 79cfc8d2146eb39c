"""Metadata writes to real Kafka controllers, for tests: client quotas, which need no broker."""

from __future__ import annotations

import socket
import struct
import threading

from tests.support.kafka_quorum import KafkaQuorum

ANSWER_S = 1.0
PAUSE_S = 0.01

_KEY, _VERSION = 49, 1


def alter_quota(port: int, user: str) -> bool:
    """True if this controller acknowledges, as the active one, a quota for this user."""
    frame = struct.pack(">hhih", _KEY, _VERSION, 1, -1) + b"\0" + _body(user)
    try:
        with socket.create_connection(("127.0.0.1", port), ANSWER_S) as connection:
            connection.settimeout(ANSWER_S)
            connection.sendall(struct.pack(">i", len(frame)) + frame)
            answer = connection.recv(1000)
    except OSError:
        return False
    # Length, correlation id, tags, throttle time, number of entries and one; then the first entry's error.
    return len(answer) > 15 and answer[13] == 2 and answer[14:16] == b"\0\0"


def _body(user: str) -> bytes:
    """AlterClientQuotas of one entity with one operation."""

    def text(value: str) -> bytes:
        return bytes([len(value) + 1]) + value.encode()

    entity = b"\2" + text("user") + text(user) + b"\0"
    operation = b"\2" + text("consumer_byte_rate") + struct.pack(">d?", 1e6, False) + b"\0"
    return b"\2" + entity + operation + b"\0" + b"\0" + b"\0"


class MetadataWriter:
    """Writes one record after the other to whoever is the active controller, from a thread of its own.

    `acknowledged` are the names that each such record holds, in order.
    """

    def __init__(self, quorum: KafkaQuorum, name: str) -> None:
        self.acknowledged: list[str] = []
        self._quorum = quorum
        self._name = name
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._is_stopped.set()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        ports = [each.port for each in self._quorum.controllers.values()]
        number = 0
        while not self._is_stopped.wait(PAUSE_S):
            number += 1
            user = f"{self._name}-{number}."
            for port in list(ports):
                if alter_quota(port, user):
                    self.acknowledged.append(user)
                    ports.remove(port)
                    ports.insert(0, port)
                    break
