"""Limits of everything that may happen."""

from __future__ import annotations

from dataclasses import dataclass

from simulation.exhaustive.frozen import LEAST_TRAFFIC, Traffic
from simulation.exhaustive.messages import Records

FIRST_EPOCH = 1
BASE: Records = ((FIRST_EPOCH, 0), (FIRST_EPOCH, 0))
"""Records of every log at the start, synced and committed; the second record names the voters."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The bounds of an exploration; the package's docstring says what each of them means."""

    epochs: int = 2
    appends: int = 1
    in_flight: int = 3
    losses: int = 2
    crashes: int = 1
    has_leader: bool = True
    traffic: Traffic = LEAST_TRAFFIC

    @property
    def last_epoch(self) -> int:
        """The highest epoch that can have a leader."""
        return FIRST_EPOCH + self.epochs
