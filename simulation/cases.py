"""Which cases of fault, role and message can occur, so that those that never have can be told.

What a case means depends on the fault. One that hits messages or links counts the role of the sender
and the message that was hit: all that a process of that role sends. One that hits a machine counts
the role of its process and the message that it got last, for that is the moment it was hit at: all
that a process of that role may have just got. Machines that are down, and whoever was there when a
partition began, count in sums only.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from raft.roles import Role
from simulation.coverage import Case, Coverage
from simulation.faults import FAULTS

CLIENT = "client"
MESSAGE_FAULTS = ("loss", "reset", "duplicate", "partial frame", "delay", "reorder")
PARTITIONS = (
    *("majority partition", "minority partition", "isolate one", "ring", "bridge", "one way"),
    *("flapping", "link by link"),
)

_ALL = frozenset(Role)
_VOTERS = _ALL - {Role.OBSERVER}
_SENDS: Mapping[str, frozenset[Role]] = {
    "Vote": frozenset({Role.PROSPECTIVE, Role.CANDIDATE}),
    "Vote answer": _ALL,
    "BeginQuorumEpoch": frozenset({Role.LEADER}),
    "BeginQuorumEpoch answer": _VOTERS,
    "EndQuorumEpoch": frozenset({Role.RESIGNED}),
    "EndQuorumEpoch answer": _VOTERS,
    "Fetch": frozenset({Role.FOLLOWER, Role.OBSERVER, Role.UNATTACHED, Role.PROSPECTIVE}),
    "Fetch answer": _ALL,
    "Produce answer": _ALL,
    "Consumer fetch answer": _ALL,
}
"""Who sends what; whoever is no leader answers with a refusal."""
_MAY_HAVE_GOT: Mapping[str, frozenset[Role]] = {
    "start": _ALL - {Role.CANDIDATE},
    "Vote": _ALL,
    "Vote answer": _VOTERS,
    "BeginQuorumEpoch": _ALL,
    "BeginQuorumEpoch answer": _VOTERS - {Role.CANDIDATE},
    "EndQuorumEpoch": _VOTERS,
    "EndQuorumEpoch answer": _VOTERS - {Role.LEADER, Role.CANDIDATE},
    "Fetch": _ALL,
    "Fetch answer": _ALL,
    "Produce": _ALL,
    "Consumer fetch": _ALL,
}
"""Who may have got what last; what has come may just have made it what it is."""


@cache
def possible_cases() -> tuple[Case, ...]:
    """All of them, in the order of FAULTS."""
    cases: list[Case] = []
    for fault in FAULTS:
        is_of_messages = fault in MESSAGE_FAULTS or fault in PARTITIONS
        table = _SENDS if is_of_messages else _MAY_HAVE_GOT
        cases += [
            (fault, str(role), message)
            for message, roles in table.items()
            for role in Role
            if role in roles
        ]
        if fault in MESSAGE_FAULTS:
            cases += [(fault, CLIENT, message) for message in ("Produce", "Consumer fetch")]
    return tuple(cases)


def missing_cases(coverage: Coverage) -> list[Case]:
    """Those that have not occurred."""
    return [case for case in possible_cases() if not coverage.cases[case]]
