"""State of idempotent producers: a pure function of the log.

Per producer id the epoch and the last five batches; at most 10,000 ids, the one whose last batch is
oldest goes first. Truncation takes back exactly what the truncated batches did. Every replica keeps the
same state, also one that begins with a snapshot, so deduplication survives leader changes and restarts.
Source: KIP-98, as Kafka applies it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from quorumd.wire.batch_header import BatchHeader
from quorumd.wire.control_records import ProducerStatesBatch, ProducerStatesProducer

REMEMBERED_BATCHES = 5
REMEMBERED_PRODUCERS = 10_000
REMEMBERED_UNDOS = 2**16
"""Batches that can be taken back: more than a leader lets clients append beyond what is committed."""
SEQUENCE_END: Final = 2**31
"""Sequences count from 0 to 2^31 - 1 and start over."""


class Batch(NamedTuple):
    """First and last sequence, and the offsets that they got; all inclusive."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int


class ProducerStateEntry(NamedTuple):
    """One producer id: its epoch and its last batches, the newest last."""

    epoch: int
    batches: tuple[Batch, ...]


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The batch was appended before, at these offsets (inclusive)."""

    base_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class Refused:
    """`error` names a Kafka error code."""

    error: str
    message: str


def last_sequence(first: int, record_count: int) -> int:
    """Sequence of the last of `record_count` records, wrapping from 2^31 - 1 to 0."""
    return (first + record_count - 1) % SEQUENCE_END


class ProducerState:
    """See the module's docstring. Not aware of which batches are committed, except to forget undos."""

    def __init__(self) -> None:
        self._producers: dict[int, ProducerStateEntry] = {}
        self._undo: deque[
            tuple[int, int, ProducerStateEntry | None, tuple[int, ProducerStateEntry] | None]
        ] = deque()
        self._committed_offset = 0
        self._forgotten_offset = -1

    def __len__(self) -> int:
        return len(self._producers)

    def remembered(self) -> dict[int, ProducerStateEntry]:
        """The entry of each producer id now; a copy."""
        return dict(self._producers)

    def to_snapshot(self) -> tuple[ProducerStatesProducer, ...]:
        """All of it, for a snapshot that ends where the log does; the one to go first comes first."""
        return tuple(
            ProducerStatesProducer(
                producer_id=producer_id,
                epoch=producer.epoch,
                batches=tuple(
                    ProducerStatesBatch(
                        first_sequence=batch.first_sequence,
                        last_sequence=batch.last_sequence,
                        base_offset=batch.base_offset,
                        last_offset=batch.last_offset,
                    )
                    for batch in producer.batches
                ),
            )
            for producer_id, producer in self._producers.items()
        )

    def load(self, producers: Iterable[ProducerStatesProducer]) -> None:
        """Replaces everything by what a snapshot says; the batches behind its end have to be noted anew.

        What it stands for is committed, so it is never taken back.
        """
        self._producers = {
            producer.producer_id: ProducerStateEntry(
                producer.epoch,
                tuple(
                    Batch(
                        batch.first_sequence,
                        batch.last_sequence,
                        batch.base_offset,
                        batch.last_offset,
                    )
                    for batch in producer.batches
                ),
            )
            for producer in producers
        }
        self._undo.clear()
        self._forgotten_offset = -1

    def check(
        self, producer_id: int, epoch: int, first_sequence: int, record_count: int
    ) -> Duplicate | Refused | None:
        """The reason not to append a batch: a duplicate or an error; None to append it.

        Errors: INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER.
        """
        known = self._producers.get(producer_id)
        if epoch < 0:
            return Refused("INVALID_PRODUCER_EPOCH", f"producer {producer_id} has no epoch")
        if known is None:
            return None
        if epoch < known.epoch:
            return Refused(
                "INVALID_PRODUCER_EPOCH",
                f"producer {producer_id} has epoch {known.epoch}, this batch {epoch}",
            )
        if epoch > known.epoch:
            if first_sequence == 0:
                return None
            return Refused(
                "OUT_OF_ORDER_SEQUENCE_NUMBER",
                f"producer {producer_id} begins epoch {epoch} at sequence {first_sequence}, not 0",
            )
        last = last_sequence(first_sequence, record_count)
        for batch in known.batches:
            if batch.first_sequence == first_sequence and batch.last_sequence == last:
                return Duplicate(batch.base_offset, batch.last_offset)
        expected = (known.batches[-1].last_sequence + 1) % SEQUENCE_END
        if first_sequence == expected:
            return None
        return Refused(
            "OUT_OF_ORDER_SEQUENCE_NUMBER",
            f"producer {producer_id} sent sequence {first_sequence}, expected {expected}",
        )

    def append(
        self, producer_id: int, epoch: int, first_sequence: int, base_offset: int, last_offset: int
    ) -> None:
        """A batch of this producer is in the log now, committed or not."""
        known = self._producers.pop(producer_id, None)
        evicted: tuple[int, ProducerStateEntry] | None = None
        if known is None and len(self._producers) >= REMEMBERED_PRODUCERS:
            oldest = next(iter(self._producers))
            evicted = (oldest, self._producers.pop(oldest))
        last = last_sequence(first_sequence, last_offset - base_offset + 1)
        batch = Batch(first_sequence, last, base_offset, last_offset)
        earlier = known.batches if known is not None and known.epoch == epoch else ()
        batches = (*earlier, batch)[-REMEMBERED_BATCHES:]
        self._producers[producer_id] = ProducerStateEntry(epoch, batches)
        if base_offset >= self._committed_offset:
            self._undo.append((base_offset, producer_id, known, evicted))
            if len(self._undo) > REMEMBERED_UNDOS:
                self._forgotten_offset = self._undo.popleft()[0]

    def note(self, header: BatchHeader) -> None:
        """This batch of the log is there now; batches without a producer don't matter."""
        if header.producer_id >= 0 and not header.is_control:
            self.append(
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                header.base_offset,
                header.last_offset,
            )

    def truncate(self, end_offset: int) -> bool:
        """Take back every batch from `end_offset` on.

        Returns False if more went than is remembered: everything is forgotten then, and the batches
        below `end_offset` have to be noted anew.
        """
        if end_offset <= self._forgotten_offset:
            self._producers.clear()
            self._undo.clear()
            self._forgotten_offset = -1
            return False
        if not self._undo or self._undo[-1][0] < end_offset:
            return True
        while self._undo and self._undo[-1][0] >= end_offset:
            _, producer_id, known, evicted = self._undo.pop()
            del self._producers[producer_id]
            if known is not None:
                self._producers[producer_id] = known
            if evicted is not None:
                self._producers[evicted[0]] = evicted[1]
        by_age = sorted(self._producers.items(), key=lambda item: item[1].batches[-1].last_offset)
        self._producers = dict(by_age)
        return True

    def commit(self, offset: int) -> None:
        """Everything below `offset` is committed and will never be taken back."""
        self._committed_offset = offset
        while self._undo and self._undo[0][0] < offset:
            self._undo.popleft()
