"""The producer state of a replica is a pure function of its log.

Source: docs/protocol, appends; KIP-98. It is kept while batches come and go; here it is made anew.
"""

from __future__ import annotations

from collections.abc import Iterable

from quorumd.raft.types import ReplicaKey
from quorumd.server.model.producer_state import ProducerState
from simulation.history.replica import Batch
from simulation.violation import Violation

NAME = "the producer state follows from the log"


def check_producers(key: ReplicaKey, log: Iterable[Batch], producers: ProducerState) -> None:
    """Raise Violation unless the producer state of this process is what all its batches make."""
    anew = ProducerState()
    for batch in log:
        identity = batch.identity
        if identity.producer_id >= 0:
            last_offset = batch.end_offset - 1
            anew.append(
                identity.producer_id,
                identity.producer_epoch,
                identity.base_sequence,
                batch.base_offset,
                last_offset,
            )
    expected, found = anew.remembered(), producers.remembered()
    if expected != found:
        raise Violation(NAME, f"{key}: the log says {expected}, the process has {found}")
