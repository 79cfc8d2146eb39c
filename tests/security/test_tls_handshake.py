"""The limits of one handshake: how many steps it may take, and how much may come before and during them."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest

from quorumd.security.credentials import Credentials
from quorumd.security.errors import CertificateProblem
from quorumd.security.tls_handshake import (
    HANDSHAKE_BYTES_MAX,
    HELD_BYTES_MAX,
    STEPS_MAX,
    TlsHandshake,
)
from quorumd.security.tls_records import RECORD_BYTES
from tests.support.certificates import Certificates


class Waiting(Executor):
    """Takes steps, and none is ever begun."""

    def submit(self, *_: Any, **__: Any) -> Future[Any]:
        return Future()


@pytest.fixture
def handshake(tmp_path: Path) -> TlsHandshake:
    """A server's."""
    config = Certificates(tmp_path).config("node", "localhost")
    return TlsHandshake(Credentials(config, is_server=True), None)


def record_of(size: int) -> bytes:
    return b"\x16\x03\x03" + size.to_bytes(2, "big") + bytes(size)


@pytest.mark.parametrize(
    ("size", "taken"), [(1, STEPS_MAX), (RECORD_BYTES, HANDSHAKE_BYTES_MAX // RECORD_BYTES)]
)
def test_a_handshake_has_so_many_steps_and_bytes(
    handshake: TlsHandshake, size: int, taken: int
) -> None:
    for _ in range(taken):
        handshake.received += record_of(size)
        assert handshake.begin_step(Waiting()) is not None
        handshake.end_step()
    handshake.received += record_of(size)
    with pytest.raises(CertificateProblem, match="more than a TLS handshake takes"):
        handshake.begin_step(Waiting())


def test_what_comes_during_a_step_is_held_up_to_a_limit_and_forgotten_at_the_end(
    handshake: TlsHandshake,
) -> None:
    handshake.received += record_of(1)
    step = handshake.begin_step(Waiting())
    assert step is not None
    handshake.received += bytes(HELD_BYTES_MAX)
    assert not handshake.is_full
    handshake.received += b"x"
    assert handshake.is_full
    handshake.cancel()
    assert step.cancelled()
    assert not handshake.received
