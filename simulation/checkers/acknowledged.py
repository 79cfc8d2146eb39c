"""Each acknowledged record is in the committed log, exactly once, at the offset of the response.

A refused or timed-out append may be there or not, but not twice. Source: the promise of docs/protocol,
appends; KIP-98 for idempotence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from simulation.history.appends import Append
from simulation.history.facts import Facts
from simulation.violation import Violation

NAME = "acknowledged appends are present exactly once"
FENCED = "a fenced producer appends nothing"


class Acknowledged:
    """Checked at every acknowledgement, and at the end."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._at: dict[int, int] = {}
        self._indexed = 0

    def on_acknowledged(self, append: Append) -> None:
        committed = self._facts.committed
        for at in range(self._indexed, len(committed)):
            self._at[committed[at].base_offset] = at
        self._indexed = len(committed)
        assert append.offset is not None, "acknowledged at an offset"
        at_offset = self._at.get(append.offset)
        if at_offset is None:
            raise Violation(
                NAME,
                f"{append.client} gets offset {append.offset}; the committed log ends at"
                f" {self._facts.committed_end_offset}",
            )
        if committed[at_offset].identity != append.identity:
            raise Violation(
                NAME,
                f"{append.client} gets offset {append.offset} for {append.identity}; there is"
                f" {committed[at_offset]} with {committed[at_offset].identity}",
            )

    def on_end(self, appends: Sequence[Append]) -> None:
        counts = Counter(batch.identity for batch in self._facts.committed)
        for append in appends:
            count = counts[append.identity]
            if count > 1 or (append.offset is not None and count != 1):
                raise Violation(
                    NAME,
                    f"{append.client}'s batch {append.identity}, acknowledged at offset {append.offset}, is"
                    f" {count} times in the committed log",
                )
            if count and append.is_fenced:
                raise Violation(
                    FENCED,
                    f"{append.client}'s batch {append.identity} is in the committed log, though it was sent"
                    " after one of a later epoch had been acknowledged",
                )
