"""Produce requests that wait, and their batches: for the end of the turn, then for the high watermark."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from math import inf

from quorumd.server.model.conditions import BatchIdentity
from quorumd.server.net.inbound_request import InboundRequest
from quorumd.wire.batch_header import BatchHeader, read_header
from quorumd.wire.conditions import KeyedBatch
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.fast import ProduceHead
from quorumd.wire.messages.produce import ProduceRequestTopic


@dataclass(slots=True)
class PartitionResult:
    """The result of one partition of a Produce request."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    record_index: int | None = None
    base_offset: int = -1


Results = Mapping[tuple[int, int], PartitionResult]
"""By the index of a topic in its request, and of a partition in its topic."""


@dataclass(slots=True)
class PendingProduce:
    """A Produce request in its general form: its response is sent when every partition has a result."""

    request: InboundRequest
    acks: int
    topics: tuple[ProduceRequestTopic, ...]
    results: dict[tuple[int, int], PartitionResult] = field(default_factory=dict)
    partitions_left: int = 0
    """Partitions without a result."""


class PendingBatch:
    """One batch between its arrival and its response.

    `whole` is the request with several partitions that it is a part of, or None; `at` is its index there.
    """

    __slots__ = (
        "at",
        "base_offset",
        "data",
        "has_response",
        "head",
        "keyed",
        "max_timestamp",
        "producer_id",
        "record_count",
        "request",
        "size_bytes",
        "whole",
    )

    def __init__(
        self,
        request: InboundRequest,
        head: ProduceHead,
        data: bytes,
        whole: PendingProduce | None = None,
        at: tuple[int, int] = (0, 0),
    ) -> None:
        self.request = request
        self.head = head
        self.data = data
        """The request's records for this partition; once checked, the batch; empty once appended."""
        self.whole = whole
        self.at = at
        self.size_bytes: int
        self.max_timestamp: int
        self.producer_id: int
        self.record_count: int
        """These four of its header are set once it is checked."""
        self.base_offset: int
        """Set once the batch has its offsets."""
        self.has_response = False
        self.keyed: KeyedBatch | None = None
        """Its keys and its condition, if they were read."""

    def let_go(self) -> None:
        """Its place is known: neither its bytes nor its keys are needed any more."""
        self.data = b""
        self.keyed = None

    @property
    def header(self) -> BatchHeader:
        """All of its header, of which most batches need little; there as long as its bytes are."""
        return read_header(self.data)

    @property
    def is_conditional(self) -> bool:
        """True if it is to be appended only if its keys are unchanged."""
        return self.keyed is not None and self.keyed.condition is not None

    @property
    def identity(self) -> BatchIdentity | None:
        """Identifies an idempotent producer's batch that is sent again; None if it has no producer id."""
        if self.producer_id < 0:
            return None
        header = self.header
        digest = blake2b(self.data, digest_size=16).digest()
        return header.producer_id, header.producer_epoch, header.base_sequence, digest

    @property
    def end_offset(self) -> int:
        """Exclusive."""
        return self.base_offset + self.record_count

    @property
    def deadline(self) -> float:
        """On the clock of `InboundRequest.received_ns`, in seconds."""
        return self.request.received_ns / 1e9 + self.head.timeout_ms / 1000


class PendingAppend:
    """The batches of one append until they are committed, in the order of the log; or one duplicate.

    Or a batch that is refused for a record below `end_offset`: its response waits for that record's commit.
    """

    __slots__ = ("batches", "deadline", "end_offset", "held_bytes", "refusal", "since", "sure_s")

    def __init__(
        self,
        batches: list[PendingBatch],
        since: float,
        end_offset: int,
        held_bytes: int,
        refusal: PartitionResult | None = None,
    ) -> None:
        self.batches = batches
        self.since = since
        self.end_offset = end_offset
        """Exclusive."""
        self.held_bytes = held_bytes
        """Bytes beyond the high watermark, 0 for a duplicate and for a refused batch."""
        self.refusal = refusal
        self.sure_s = inf
        """From this time on the refusal may be sent, though the record is not committed."""
        self.deadline: float | None = None
        """The earliest of the batches without a response, inf if there is none; None until it is needed."""

    def cut(self, offset: int) -> PendingAppend | None:
        """Cut off and return the batches that end at or below `offset`; None if there are none."""
        count = bisect_right(self.batches, offset, key=lambda batch: batch.end_offset)
        if not count:
            return None
        batches, self.batches = self.batches[:count], self.batches[count:]
        held_bytes = self.held_bytes * count // (count + len(self.batches))
        self.held_bytes -= held_bytes
        return PendingAppend(batches, self.since, batches[-1].end_offset, held_bytes)
