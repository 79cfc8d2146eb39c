"""Reads are prefixes of the committed log, and never go back within a session.

Source: docs/protocol, reads; Kafka's consumers see nothing above the high watermark.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from simulation.history.facts import Facts
from simulation.history.replica import Batch
from simulation.violation import Violation

NAME = "reads are prefixes of the committed log"


class Reads:
    """Checked whenever a consumer gets records."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def on_read(self, session: str, offset: int, batches: Sequence[Batch]) -> None:
        """A session asked for `offset` and got these."""
        committed = self._facts.committed
        at = bisect_right(committed, offset, key=lambda batch: batch.end_offset)
        if committed[at : at + len(batches)] != list(batches):
            raise Violation(
                NAME,
                f"{session} asked for {offset} and got {batches[0]} to {batches[-1]}; committed is"
                f" {', '.join(map(str, committed[at : at + len(batches)])) or 'nothing there'}",
            )
