"""What a node asks its leader, and a clock that goes on when a test says so."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from quorumd.wire.schema import Message
from tests.server.produce_bench import Clock


class NodeClock(Clock):
    """For what sets timers on the clock in milliseconds."""

    draw = staticmethod(Random(7).randrange)

    def monotonic_ms(self) -> int:
        return int(self.now * 1000)


class Question(NamedTuple):
    """A request to the leader; one of the two is called once."""

    message: Message
    responded: Callable[[bytes, int], None]
    failed: Callable[[str], None]


class Questions(list[Question]):
    """Takes questions, all in this version, in place of `Outbound.ask_leader`."""

    def __init__(self, version: int) -> None:
        super().__init__()
        self._version = version

    def __call__(
        self,
        message: Message,
        version: int,
        responded: Callable[[bytes, int], None],
        failed: Callable[[str], None],
    ) -> None:
        assert version == self._version
        self.append(Question(message, responded, failed))
