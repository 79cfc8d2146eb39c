"""What the tests ask of a Kafka client, whoever wrote it: a claim is made once for all of them.

A producer remembers what became of each record; a consumer has found its position when it is opened.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

CLIENT_BYTES_MAX = 4 << 20
"""The clients' own limit of a message, above the server's."""
WINDOW = 200
READ_S = 30.0


class Consumed(NamedTuple):
    """A record as a consumer got it."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class Timestamp(NamedTuple):
    """Begin at the first record that is not older."""

    ms: int


EARLIEST, LATEST = "earliest", "latest"
Start = str | int | Timestamp
Settings = Mapping[str, Any]


class Producer(Protocol):
    """Sends without waiting for answers, but never has more than WINDOW records under way."""

    def send(
        self,
        value: bytes,
        *,
        key: bytes | None = None,
        timestamp_ms: int | None = None,
        headers: tuple[tuple[str, bytes], ...] = (),
    ) -> None: ...

    def finish(self) -> list[int | Exception]:
        """What became of each record: its offset, or what the client raised. Closes the producer."""


class Consumer(Protocol):
    """Reads partition 0, without a group."""

    def read(self, count: int) -> list[Consumed]:
        """The next so many records; fewer if they don't come in time."""

    def close(self) -> None: ...


class Client(Protocol):
    """One client library."""

    def producer(
        self, servers: str, *, idempotent: bool = False, codec: str | None = None
    ) -> Producer: ...

    def consumer(self, servers: str, start: Start) -> Consumer: ...

    def join_group(self, servers: str) -> None:
        """Subscribe as a member of a group, and read; raises what the client raises."""

    def begin_transactions(self, servers: str) -> None:
        """As a transactional producer; raises what the client raises."""


class Outcomes:
    """What became of records, noted by whatever thread learns it."""

    def __init__(self) -> None:
        self._by_index: dict[int, int | Exception] = {}
        self._sent = 0
        self._changed = threading.Condition()

    def next_index(self) -> int:
        """An index for the next record, as soon as few enough are under way."""
        with self._changed:
            room = self._changed.wait_for(
                lambda: self._sent - len(self._by_index) < WINDOW, timeout=READ_S
            )
            assert room, f"{WINDOW} records without an answer for {READ_S} s"
            self._sent += 1
            return self._sent - 1

    def note(self, index: int, outcome: int | Exception) -> None:
        with self._changed:
            self._by_index[index] = outcome
            self._changed.notify_all()

    def all(self) -> list[int | Exception]:
        """Every outcome in the order of sending, waited for."""
        with self._changed:
            complete = self._changed.wait_for(
                lambda: len(self._by_index) == self._sent, timeout=READ_S
            )
            assert complete, f"{self._sent - len(self._by_index)} records were never answered"
            return [self._by_index[index] for index in range(self._sent)]
