"""Compressed batches of producers are unpacked a few at a time: what is held of all of them has a bound.

What two kilobytes unpack to is up to their sender, and so is how much of it a codec has to hold.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from quorumd.server.net.inbound_request import WAITS
from quorumd.server.net.turns import STEPS_AT_ONCE
from quorumd.wire.batch_header import CODEC_MASK, BatchHeader
from quorumd.wire.conditions import KeyedBatch, Keys, read_keyed

UNPACKINGS_MAX: Final = 2
"""Each holds PAYLOAD_BYTES_MAX in a window of its codec, and HELD_BYTES_MAX, at the most
(`wire.packed_records`)."""


class Unpackings:
    """The unpackings of a process that are under way."""

    def __init__(self) -> None:
        self._under_way = 0

    def read_keyed(
        self, header: BatchHeader, data: bytes, keys: Keys | None, timestamp_deltas: range
    ) -> Generator[bool | None, None, KeyedBatch | None]:
        """As `wire.conditions.read_keyed`. A step is WAITS while too many others are under way."""
        steps = read_keyed(header, data, keys, timestamp_deltas)
        if not header.attributes & CODEC_MASK:
            return (yield from steps)
        # Nearly all are done at once. Those that wait for their turn start over, and hold nothing until then.
        try:
            for _ in range(STEPS_AT_ONCE + 1):  # the end of so many steps is seen behind the last
                next(steps)
        except StopIteration as end:
            known: KeyedBatch | None = end.value
            return known
        if self._under_way >= UNPACKINGS_MAX:
            steps.close()
            while self._under_way >= UNPACKINGS_MAX:
                yield WAITS
            steps = read_keyed(header, data, keys, timestamp_deltas)
        self._under_way += 1
        try:
            return (yield from steps)
        finally:
            self._under_way -= 1
