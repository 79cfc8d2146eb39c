"""Produce requests that wait, and their batches: for the end of the turn, then for the high watermark."""

from __future__ import annotations

from dataclasses import dataclass, field

from quorumd.server.net.inbound_request import InboundRequest
from quorumd.wire.batch_header import BatchHeader
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.fast import FastProduce
from quorumd.wire.messages.produce import (
    ProduceRequestTopic,
)


@dataclass(slots=True)
class PartitionResult:
    """What one partition of a Produce request gets."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    record_index: int | None = None
    base_offset: int = -1


@dataclass(slots=True)
class PendingProduce:
    """A Produce request on its way: answered when no partition is waited for any more."""

    request: InboundRequest
    acks: int
    deadline: float
    fast: FastProduce | None = None
    topics: tuple[ProduceRequestTopic, ...] = ()
    results: dict[tuple[int, int], PartitionResult] = field(default_factory=dict)
    unanswered: int = 0
    """Partitions without a result."""


class PendingBatch:
    """One batch between its arrival and its answer. Offsets are inclusive and exclusive as named."""

    __slots__ = (
        "appended_bytes",
        "at",
        "base_offset",
        "data",
        "done",
        "end_offset",
        "header",
        "pending",
        "since",
    )

    def __init__(
        self, pending: PendingProduce, at: tuple[int, int], data: bytes, header: BatchHeader
    ) -> None:
        self.pending = pending
        self.at = at
        self.data = data
        self.header = header
        self.base_offset = -1
        self.end_offset = -1
        self.appended_bytes = 0
        self.since = 0.0
        self.done = False
