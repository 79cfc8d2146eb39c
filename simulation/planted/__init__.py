"""Deliberate breakages of the production code, each with the properties of which one must be violated.

They test the simulator: a breakage that it does not find within a few seeds is a hole in its faults or
its checkers. `PLANTED` has them all by name; `PlantedBug.applied` breaks the code for as long as a block
lasts.
"""

from simulation.planted import clients, conditions, disk, membership, replication, snapshots, votes
from simulation.planted.table import PLANTED, PlantedBug

__all__ = [
    "PLANTED",
    "PlantedBug",
    "clients",
    "conditions",
    "disk",
    "membership",
    "replication",
    "snapshots",
    "votes",
]
