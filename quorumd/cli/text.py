"""Text of bytes, times and tables: exact for programs, legible and safe for people.

Nothing that comes out of a log may move the cursor or colour the terminal: control characters are
shown as escapes. Knows neither click nor rich.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from quorumd.raft.types import uuid_to_text

if TYPE_CHECKING:
    from quorumd.client.errors import QuorumUnavailable
    from quorumd.raft.types import ReplicaKey
    from quorumd.security.errors import CertificateProblem

NULL = "<null>"
OUTAGE_OVER = "the quorum can be read again"

_SHORT_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def printable(data: str | bytes | None) -> str:
    """One line of printable text; bytes that are no UTF-8 and control characters become escapes."""
    if data is None:
        return NULL
    text = data if isinstance(data, str) else data.decode("utf-8", "surrogateescape")
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(map(_escaped, text))


def _escaped(character: str) -> str:
    if character in _SHORT_ESCAPES:
        return _SHORT_ESCAPES[character]
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    if character.isprintable():
        return character
    return (
        f"\\x{code:02x}"
        if code < 0x100
        else f"\\u{code:04x}"
        if code < 0x10000
        else f"\\U{code:08x}"
    )


def jsonable(data: str | bytes | None) -> str | dict[str, str] | None:
    """Text as it is, null as null, and bytes that are no UTF-8 as {"base64": "..."}."""
    if data is None or isinstance(data, str):
        return data
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode("ascii")}


def fields_as_json(record: Any) -> dict[str, Any]:
    """The fields of a dataclass for JSON, all the way down: uuids in Kafka's text form, tuples as lists."""
    fields: dict[str, Any] = _for_json(dataclasses.asdict(record))
    return fields


def _for_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _for_json(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_for_json(each) for each in value]
    return uuid_to_text(value) if isinstance(value, UUID) else value


def key_as_dict(key: ReplicaKey) -> dict[str, Any]:
    """A replica key for programs; `replica_uuid` is None if the storage id is not known."""
    return {
        "replica_id": key.id,
        "replica_uuid": None if key.uuid is None else uuid_to_text(key.uuid),
    }


def to_json(value: Any) -> str:
    """One line of JSON, keys in the given order, characters beyond ASCII left as they are."""
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": "))


def timestamp_text(timestamp_ms: int) -> str:
    """UTC with milliseconds; a number that is no time stays a number."""
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    if timestamp_ms < 0:
        return str(timestamp_ms)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{timestamp_ms % 1000:03d}Z"


def now_text() -> str:
    """The time of this moment, as `timestamp_text` says it."""
    return timestamp_text(int(time.time() * 1000))


def duration_text(seconds: float) -> str:
    """A span of time in the unit that suits it."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 600:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min"


def bytes_text(size_bytes: float) -> str:
    """A size with a binary unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size_bytes) < 1024 or unit == "GiB":
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    raise AssertionError("the last unit takes everything")


def counted(count: int, singular: str) -> str:
    """`1 record`, `1,200 records`, `2 batches`."""
    if count == 1:
        return f"1 {singular}"
    return f"{count:,} {singular}{'es' if singular.endswith(('ch', 's')) else 's'}"


def outage_text(error: QuorumUnavailable | CertificateProblem) -> str:
    """The message of a command that keeps retrying without a leader."""
    attempts = getattr(error, "attempts", None)
    if attempts is None:
        reasons = " ".join(str(error).split())
    else:
        reasons = "; ".join(f"{address}: {reason}" for address, reason in attempts.items())
    return f"no leader can be reached ({reasons}); still trying"


def unreadable_text(first_offset: int, last_offset: int, problem: str) -> str:
    """The message for offsets (inclusive) of a batch that no reader can unpack."""
    return (
        f"offsets {first_offset} to {last_offset} can't be read by any client: their producer sent a "
        f"batch that does not unpack ({problem})"
    )


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns of equal width, two spaces apart, nothing behind the last one."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
