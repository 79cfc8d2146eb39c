"""Properties of all replicas together, which must hold in every state."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from quorumd.raft import quorum
from simulation.exhaustive.messages import Records


def check_logs(logs: Sequence[Records]) -> str | None:
    """Log matching: logs with equal epochs at one offset are equal up to it (Raft, figure 3)."""
    for one, other in combinations(logs, 2):
        for offset in range(min(len(one), len(other)) - 1, -1, -1):
            if one[offset][0] == other[offset][0] and one[: offset + 1] != other[: offset + 1]:
                return f"log matching: {one} and {other} differ below offset {offset}"
    return None


def check_disks(disks: Sequence[Records], committed: Records) -> str | None:
    """Committed records are on the disks of a majority, and stay there."""
    holders = sum(disk[: len(committed)] == committed for disk in disks)
    if holders < quorum.majority(len(disks)):
        return (
            f"high watermark: the committed {committed} is on the disks of {holders} replicas only"
        )
    return None
