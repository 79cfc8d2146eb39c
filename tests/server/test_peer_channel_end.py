"""What a link to a peer makes of a connection that is lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from quorumd.raft.types import Address
from quorumd.security.errors import CertificateProblem
from quorumd.server.model.metrics import Metrics
from quorumd.server.model.peer_calls import PeerListener
from quorumd.server.peers.peer_channel import RECONNECT_MAX_MS, TcpPeerChannel
from tests.support.serving import run

AT = Address("two", 9093)


class Listener:
    """What it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def on_connection_lost(self) -> None:
        self.told.append("lost")

    def on_unreachable(self, address: Address, error: BaseException) -> None:
        self.told.append(f"{address}: {error}")

    def elsewhere(self) -> Sequence[Address]:
        return []


def channel_with(listener: Listener, *, is_trusted: bool = True) -> TcpPeerChannel:
    """A link whose connection has just been made."""
    made = TcpPeerChannel(
        "replica 2", lambda: [AT], "c", "1", cast(PeerListener, listener), 1000, Metrics()
    )
    made._address, made._is_trusted = AT, is_trusted
    made._made_at = made._loop.time()
    return made


@pytest.mark.parametrize(("failures", "kept"), [(0, 1), (1, 1), (5, 5)])
def test_one_that_was_of_no_use_does_not_make_the_next_try_sooner(failures: int, kept: int) -> None:
    async def work() -> None:
        channel = channel_with(Listener())
        channel._failures = failures
        channel.on_lost(None)
        assert channel._failures == kept
        channel._made_at -= RECONNECT_MAX_MS / 1000 + 0.1
        channel.on_lost(None)
        assert channel._failures == 0, "that one was in use for a while"

    run(work())


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (None, ["lost"]),
        (ConnectionResetError("reset"), ["lost"]),
        (
            CertificateProblem("its certificate was revoked"),
            ["lost", "two:9093: its certificate was revoked"],
        ),
    ],
)
def test_a_certificate_that_ended_a_connection_is_told(
    error: Exception | None, told: list[str]
) -> None:
    async def work() -> None:
        listener = Listener()
        channel_with(listener).on_lost(error)
        assert listener.told == told

    run(work())


def test_who_was_not_known_to_be_the_peer_is_not_lost() -> None:
    async def work() -> None:
        listener = Listener()
        channel_with(listener, is_trusted=False).on_lost(None)
        assert listener.told == []

    run(work())
