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
from quorumd.wire.unpacked_size import check_unpacked_size

UNPACKINGS_MAX: Final = 2
"""Each holds SEARCHED_BYTES_MAX of a window, and HELD_BYTES_MAX, at the most (`wire.conditions`)."""


class Unpackings:
    """Those of a process that are under way."""

    def __init__(self) -> None:
        self._under_way = 0

    def read_keyed(
        self, header: BatchHeader, data: bytes, keys: Keys | None
    ) -> Generator[bool | None, None, KeyedBatch | None]:
        """As `wire.conditions.read_keyed`. A step is WAITS while too many others are under way.

        Raises RefusedBatch, too, for a batch that unpacks to too much.
        """
        if not header.attributes & CODEC_MASK:
            return (yield from read_keyed(header, data, keys))
        steps = _unpack(header, data, keys)
        # Nearly all are done at once. Others start over when it is their turn, and hold nothing until then.
        try:
            for _ in range(STEPS_AT_ONCE):
                next(steps)
        except StopIteration as end:
            known: KeyedBatch | None = end.value
            return known
        steps.close()
        while self._under_way >= UNPACKINGS_MAX:
            yield WAITS
        self._under_way += 1
        try:
            return (yield from _unpack(header, data, keys))
        finally:
            self._under_way -= 1


def _unpack(
    header: BatchHeader, data: bytes, keys: Keys | None
) -> Generator[None, None, KeyedBatch | None]:
    yield from check_unpacked_size(header, data)
    return (yield from read_keyed(header, data, keys))
