"""Changes of the voters that clients asked of this node, on their way to the leader.

Each has a connection of its own, which ends with it: a change may take long, and responses come in order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from quorumd.raft.types import Address, ReplicaKey
from quorumd.server.model.peer_calls import CallbackCall, PeerCall
from quorumd.server.model.runtime import PeerChannel, Runtime

CHANGES_MAX: Final = 16
"""So many changes wait for the leader; for one more its client gets the leader's address instead."""


class ClientChanges:
    """The changes that wait for a leader's response. Belongs to the event loop's thread."""

    def __init__(
        self, open_channel: Callable[[ReplicaKey], PeerChannel], runtime: Runtime, grace_ms: int
    ) -> None:
        """A leader that is followed by another one has `grace_ms` to respond yet: it may have made the
        change, and resigned because of it."""
        self._open_channel = open_channel
        self._runtime = runtime
        self._grace_s = grace_ms / 1000
        self._asked: dict[PeerChannel, ReplicaKey] = {}
        """The leader that each change was sent to."""

    @property
    def is_full(self) -> bool:
        return len(self._asked) >= CHANGES_MAX

    def ask(self, leader: ReplicaKey, call: PeerCall) -> None:
        """Send a change; `call` hears what came of it."""
        channel = self._open_channel(leader)
        self._asked[channel] = leader

        def responded(
            version: int, frame: bytes, at: int, address: Address, is_trusted: bool
        ) -> None:
            call.responded(version, frame, at, address, is_trusted)
            self._end(channel)

        def failed(reason: str, error: str | None) -> None:
            call.failed(reason, error)
            self._end(channel)

        asked = CallbackCall(
            call.api_key, call.max_version, call.build, responded, failed, call.timeout_ms
        )
        channel.call(asked)

    def on_leader(self, leader: ReplicaKey) -> None:
        """This replica leads; changes that another one was asked for fail unless it responds soon."""
        for channel, asked in self._asked.items():
            if asked != leader:
                until_s = self._runtime.monotonic_s() + self._grace_s
                self._runtime.call_at(until_s, partial(self._end, channel))

    def take_channels(self) -> list[PeerChannel]:
        """All channels, which the caller is to close."""
        channels, self._asked = list(self._asked), {}
        return channels

    def _end(self, channel: PeerChannel) -> None:
        if self._asked.pop(channel, None) is not None:
            channel.discard()
