"""Zig-zag varints at many places at once.

What `quorumd.wire.varints` reads one by one, with the same limits: 5 bytes for 32 bits, 10 for 64, bits
beyond the width dropped. A place beyond the data is read as if it were the last byte, so nothing outside is
touched; the caller has to check afterwards that no place ran past its end.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from quorumd.pipeline.parse.arrays import Bools, Bytes, Int64s

_MORE = 127


class PairTable(NamedTuple):
    """By the first two bytes of a varint, low byte first: its value, and how many bytes it has.

    0 bytes for one that has more than two.
    """

    values: npt.NDArray[np.int16]
    sizes: npt.NDArray[np.int8]


@functools.cache
def pair_table() -> PairTable:
    """Made when it is first needed."""
    pair = np.arange(1 << 16)
    low, high = pair & 0xFF, pair >> 8
    raw = np.where(low <= _MORE, low, low & _MORE | high << 7)
    sizes = np.where(low <= _MORE, 1, np.where(high <= _MORE, 2, 0))
    return PairTable(((raw >> 1) ^ -(raw & 1)).astype(np.int16), sizes.astype(np.int8))


def pairs_of(data: Bytes) -> npt.NDArray[np.uint16]:
    """The two bytes at every place but the last one, as a view."""
    return np.ndarray((max(len(data) - 1, 0),), "<u2", buffer=data, strides=(1,))


def read_varints(data: Bytes, at: Int64s, bits: int, bad: Bools) -> tuple[Int64s, Int64s]:
    """The varint at each place, and the place behind it. `bad` is set where one goes on for too long."""
    table = pair_table()
    last = len(data) - 2
    pairs = pairs_of(data)[np.minimum(at, last)] if last >= 0 else np.zeros(len(at), np.uint16)
    values = table.values[pairs].astype(np.int64)
    sizes = table.sizes[pairs]
    behind = at + sizes
    is_long = (sizes == 0) | (at > last)
    if is_long.any():
        rows = np.flatnonzero(is_long)
        wrong = np.zeros(len(rows), np.bool_)
        values[rows], behind[rows] = _read_long(data, at[rows], bits, wrong)
        bad[rows] |= wrong
    return values, behind


def _read_long(data: Bytes, at: Int64s, bits: int, bad: Bools) -> tuple[Int64s, Int64s]:
    """Byte by byte, of any size."""
    value = np.zeros(len(at), np.uint64)
    at = at.copy()
    rows = np.arange(len(at))
    for shift in range(0, bits, 7):
        byte = data.take(at[rows], mode="clip")
        at[rows] += 1
        value[rows] |= (byte & np.uint8(_MORE)).astype(np.uint64) << np.uint64(shift)
        rows = rows[byte > _MORE]
        if not len(rows):
            break
    bad[rows] = True
    if bits == 32:
        value &= np.uint64((1 << 32) - 1)
    sign = (value & np.uint64(1)).view(np.int64)
    return (value >> np.uint64(1)).view(np.int64) ^ -sign, at
