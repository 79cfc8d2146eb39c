"""Difference of one voter set from the one before: the rule of `dump-log` and of the table `voter_sets`.

Source: KIP-853 (the log holds the whole voter set each time).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeVar

K = TypeVar("K")
V = TypeVar("V")


def voter_set_changes(
    before: Mapping[K, V], after: Mapping[K, V]
) -> list[tuple[Literal["REMOVE", "ADD", "UPDATE"], K]]:
    """The changes from one voter set to the next: removals, additions, voters with another value.

    The sets are by voter key; each kind of change is in the order of its set.
    """
    return [
        *(("REMOVE", key) for key in before if key not in after),
        *(("ADD", key) for key in after if key not in before),
        *(("UPDATE", key) for key in after if key in before and before[key] != after[key]),
    ]
