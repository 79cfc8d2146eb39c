"""Produce requests that wait, and their batches: for the end of the turn, then for the high watermark."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from math import inf

from quorumd.server.model.conditions import BatchIdentity
from quorumd.server.net.inbound_request import InboundRequest
from quorumd.wire.batch_header import BatchHeader
from quorumd.wire.conditions import KeyedBatch
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.fast import ProduceHead
from quorumd.wire.messages.produce import ProduceRequestTopic


@dataclass(slots=True)
class PartitionResult:
    """What one partition of a Produce request gets."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    record_index: int | None = None
    base_offset: int = -1


Results = Mapping[tuple[int, int], PartitionResult]
"""By the places of a topic in its request, and of a partition in its topic."""


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
    """One batch between its arrival and its answer.

    `whole` is the request that it is a part of, None if it is all of it; `at` is its place there.
    """

    __slots__ = (
        "at",
        "base_offset",
        "data",
        "has_response",
        "head",
        "header",
        "keyed",
        "request",
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
        """What the request has for this partition; once that is checked, the batch; then empty."""
        self.whole = whole
        self.at = at
        self.header: BatchHeader
        """Set once it is checked."""
        self.base_offset: int
        """Set once it has a place in the log."""
        self.has_response = False
        self.keyed: KeyedBatch | None = None
        """Its keys and its condition, if they were read."""

    def let_go(self) -> None:
        """Its place is known: neither its bytes nor its keys are needed any more."""
        self.data = b""
        self.keyed = None

    @property
    def is_conditional(self) -> bool:
        """True if it is to be appended only if its keys are unchanged."""
        return self.keyed is not None and self.keyed.condition is not None

    @property
    def identity(self) -> BatchIdentity | None:
        """What tells an idempotent producer's batch that is sent again; None if it has no producer id."""
        _, _, _, _, _, _, _, _, producer_id, producer_epoch, base_sequence, _ = self.header
        if producer_id < 0:
            return None
        digest = blake2b(self.data, digest_size=16).digest()
        return producer_id, producer_epoch, base_sequence, digest

    @property
    def end_offset(self) -> int:
        """Exclusive."""
        return self.base_offset + self.header.record_count

    @property
    def deadline(self) -> float:
        """On the clock of `InboundRequest.received_ns`, in seconds."""
        return self.request.received_ns / 1e9 + self.head.timeout_ms / 1000


class PendingAppend:
    """The batches of one append until they are committed, in the order of the log; or one duplicate.

    Or a batch that is refused for what stands below `end_offset`: to be told when that is committed.
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
        """What it counts for beyond the high watermark, 0 for a duplicate and for what is refused."""
        self.refusal = refusal
        self.sure_s = inf
        """When the refusal may be told, whatever is committed by then."""
        self.deadline: float | None = None
        """The first one of what is not answered, inf if all is; None until it is asked for."""

    def cut(self, offset: int) -> PendingAppend | None:
        """What of it ends at or below `offset`, and is no part of it any more; None if nothing does."""
        count = bisect_right(self.batches, offset, key=lambda batch: batch.end_offset)
        if not count:
            return None
        batches, self.batches = self.batches[:count], self.batches[count:]
        held_bytes = self.held_bytes * count // (count + len(self.batches))
        self.held_bytes -= held_bytes
        return PendingAppend(batches, self.since, batches[-1].end_offset, held_bytes)
