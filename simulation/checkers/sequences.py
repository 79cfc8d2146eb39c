"""The batches of an idempotent producer follow one another in the log: no gap, none twice, no way back.

The first one of each epoch has sequence 0, and no epoch of a producer comes after a later one. Source:
KIP-98, idempotent producer guarantees; KIP-360 for epochs.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulation.history.replica import Batch
from simulation.violation import Violation

NAME = "a producer's batches are in sequence"


def check_sequences(committed: Sequence[Batch]) -> None:
    """Raise Violation unless it is so in the committed log."""
    expected: dict[int, tuple[int, int]] = {}
    for batch in committed:
        identity = batch.identity
        if identity.producer_id < 0:
            continue
        epoch, sequence = expected.get(identity.producer_id, (-1, 0))
        if identity.producer_epoch > epoch:
            epoch, sequence = identity.producer_epoch, 0
        found = (identity.producer_epoch, identity.base_sequence)
        if found != (epoch, sequence):
            raise Violation(
                NAME,
                f"producer {identity.producer_id}: {batch} is sequence {found[1]} of its epoch {found[0]},"
                f" and sequence {sequence} of epoch {epoch} was next",
            )
        next_sequence = sequence + batch.end_offset - batch.base_offset
        expected[identity.producer_id] = (epoch, next_sequence)
