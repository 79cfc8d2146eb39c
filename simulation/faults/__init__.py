"""Everything that goes wrong, and what operators do, by name."""

from __future__ import annotations

from simulation.faults import clocks, disks, hostile, messages, partitions, processes
from simulation.faults.operations import OPERATIONS
from simulation.faults.registry import Act

FAULTS: dict[str, Act] = {
    **messages.FAULTS,
    **partitions.FAULTS,
    **processes.FAULTS,
    **clocks.FAULTS,
    **disks.FAULTS,
    **hostile.FAULTS,
}
ACTS: dict[str, Act] = FAULTS | OPERATIONS

__all__ = ["ACTS", "FAULTS", "OPERATIONS", "Act"]
