"""The producer state of a replica is a pure function of its log.

Source: docs/protocol, appends; KIP-98. It is kept while batches come and go; here it is made anew.
"""

from __future__ import annotations

from raft.types import ReplicaKey
from server.producer_state import ProducerState
from simulation.violation import Violation
from storage.log import Log

NAME = "the producer state follows from the log"


def check_producers(key: ReplicaKey, log: Log, producers: ProducerState) -> None:
    """Raise Violation unless a start would find the producer state that this process has."""
    if log.written_end_offset != log.log_end_offset:
        return
    anew = ProducerState()
    for header in log.scan_headers():
        anew.note(header)
    expected, found = anew.remembered(), producers.remembered()
    if expected != found:
        raise Violation(NAME, f"{key}: the log says {expected}, the process has {found}")
