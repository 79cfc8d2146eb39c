"""TakeSnapshot: an operator wants a snapshot of what is committed now, on the node that is asked.

A request of this project's own: Kafka has none.
"""

from __future__ import annotations

from quorumd.wire.schema import INT16, INT32, INT64, STRING, Message, field


class TakeSnapshotRequest(Message, api_key=20002, versions="0", flexible="0+"):
    timeout_ms: int = field(INT32)


class TakeSnapshotResponse(Message, api_key=20002, versions="0", flexible="0+"):
    """The newest snapshot of the node, -1 if it has none."""

    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    end_offset: int = field(INT64, default=-1)
    epoch: int = field(INT32, default=-1)
    size_bytes: int = field(INT64, default=-1)
