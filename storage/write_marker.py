"""The marker behind the last batch of each write to the active segment: what of the file is synced.

It lies in the zeros written ahead, is written together with the batches before it, and the next write
replaces all of it, being longer. All that is written between two syncs is one group, and every marker
in it names the byte where the group begins: everything below that was durable before.

    17 bytes  zeros: a reader of batches finds an end here, as in the zeros written ahead
    uint64    byte of the file where the group begins
    uint64    byte of the file where its data ends, which is where this marker begins
    uint32    CRC32C of everything above
    4 bytes   "GEND": not a zero at the end, so that it is found from behind
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from crc32c import crc32c

LEADING_ZEROS: Final = 17
_FIELDS: Final = Struct(f">{LEADING_ZEROS}xQQ")
_END: Final = Struct(">I4s")
_MAGIC: Final = b"GEND"
MARKER_BYTES: Final = _FIELDS.size + _END.size


def build_marker(group_start: int, position: int) -> bytes:
    """The marker that goes to byte `position` of a file that is synced below byte `group_start`."""
    fields = _FIELDS.pack(group_start, position)
    return fields + _END.pack(crc32c(fields), _MAGIC)


def read_marker(data: bytes, position: int) -> int | None:
    """The byte where the group begins if `data` is the marker for `position`, else None."""
    if len(data) != MARKER_BYTES:
        return None
    group_start, _ = _FIELDS.unpack_from(data)
    return group_start if data == build_marker(group_start, position) else None
