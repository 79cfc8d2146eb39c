"""A leader that hands over has a successor that has everything, on its disk.

Judged when the response arrives: nothing is appended any more then. Source: docs/protocol, leadership
transfer; Ongaro's dissertation, 3.10.
"""

from __future__ import annotations

from quorumd.raft.node import RaftNode
from quorumd.raft.roles import Resigned
from simulation.history.facts import Facts
from simulation.violation import Violation

NAME = "a successor has everything"


def check_handed_over(facts: Facts, node: RaftNode) -> None:
    """Raise Violation unless the first successor of this leader, which has just resigned, has its log."""
    state = node.core.state
    if not isinstance(state, Resigned) or not state.successors:
        return
    successor = facts.replicas.get(state.successors[0])
    has = 0 if successor is None else successor.synced_end_offset
    if has < node.log_end_offset and state.successors[0] not in facts.excused:
        raise Violation(
            NAME,
            f"{node.local} hands epoch {node.epoch} over to {state.successors[0]}, which has everything"
            f" below {has}; its own log ends at {node.log_end_offset}",
        )
