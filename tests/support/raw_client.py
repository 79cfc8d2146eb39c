"""A client of one TCP connection that says exactly what a test wants, true or not."""

from __future__ import annotations

import socket
import ssl
import struct
from types import TracebackType
from typing import Self, TypeVar

from quorumd.wire.codec import decode, encode
from quorumd.wire.headers import decode_response_header, encode_request_header
from quorumd.wire.schema import Message

TIMEOUT_S = 5.0
CLIENT_ID = "tests"

M = TypeVar("M", bound=Message)


class Hungup(Exception):
    """The node closed the connection instead of responding."""


def request(
    key: int, version: int, message: Message, correlation_id: int = 1, client_id: str = CLIENT_ID
) -> bytes:
    """A request without its length."""
    header = encode_request_header(key, version, correlation_id, client_id)
    return header + encode(message, version)


def frame(content: bytes) -> bytes:
    """Length and content."""
    return struct.pack(">i", len(content)) + content


class RawClient:
    """Blocking; every wait ends after `timeout_s`. With `tls` it speaks that."""

    def __init__(
        self, port: int, timeout_s: float = TIMEOUT_S, tls: ssl.SSLContext | None = None
    ) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self._socket = tls.wrap_socket(self._socket, server_hostname="127.0.0.1")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        """These bytes as they are."""
        self._socket.sendall(data)

    def ask(self, key: int, version: int, message: Message, answer: type[M]) -> M:
        """Send a request and decode the answer. Raises Hungup."""
        self.send(frame(request(key, version, message)))
        return self.answer(key, version, answer)

    def answer(self, key: int, version: int, answer: type[M]) -> M:
        """The next answer. Raises Hungup."""
        data = self.read_frame()
        _, at = decode_response_header(key, version, data)
        return decode(answer, version, data, at)

    def read_frame(self) -> bytes:
        """The next frame without its length. Raises Hungup."""
        return self._read(int.from_bytes(self._read(4), "big"))

    def wait_hungup(self) -> bytes:
        """Everything that comes until the node closes. Raises TimeoutError if it does not."""
        parts = []
        try:
            while part := self._socket.recv(65536):
                parts.append(part)
        except ConnectionError:
            pass
        return b"".join(parts)

    def _read(self, size: int) -> bytes:
        parts = []
        while size:
            try:
                part = self._socket.recv(size)
            except ConnectionError as error:
                raise Hungup(str(error)) from error
            if not part:
                raise Hungup("closed")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)
