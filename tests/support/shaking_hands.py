"""A port at which there is TLS with a certificate of the test's, and nothing behind it."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def shaking_hands(store: Path, port: int = 0) -> Iterator[int]:
    """Listen there with this key and certificate; gives the port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(store)

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return  # it is closed
            with suppress(OSError), connection:
                connection.settimeout(10)
                with context.wrap_socket(connection, server_side=True) as secured:
                    secured.recv(1)

    with socket.create_server(("127.0.0.1", port)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
