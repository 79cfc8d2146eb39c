"""Cases of fault, role and message that can occur, so that those that never have can be listed.

What a case means depends on the fault. One that hits messages or links counts the role of the sender
and the message that was hit: all that a process of that role sends. One that hits a machine counts
the role of its process and the message that it got last, for that is the moment it was hit at: all
that a process of that role may have just got. Machines that are down, and all that were there when a
partition began, count in sums only.

Of an operation, each response is a case, whichever node gives it; and each operation is a pair
with each fault that can begin while it is under way.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from quorumd.raft.roles import Role
from simulation.coverage import Case, Coverage, Pair
from simulation.faults import FAULTS, OPERATIONS

CLIENT, ANY_NODE = "client", "any node"
MESSAGE_FAULTS = (
    "loss",
    "reset",
    "duplicate",
    "partial frame",
    "delay",
    "reorder",
    "at a deadline",
)
PARTITIONS = (
    *("majority partition", "minority partition", "isolate one", "ring", "bridge", "one way"),
    *("flapping", "link by link", "firewalls"),
)

_ALL = frozenset(Role)
_VOTERS = _ALL - {Role.OBSERVER}
_FOLLOWING = frozenset({Role.FOLLOWER, Role.OBSERVER})
_CHANGES = ("AddRaftVoter", "RemoveRaftVoter", "AlterPartitionReassignments", "TransferLeader")
_CLIENTS_SEND = ("Produce", "Consumer fetch", *_CHANGES)
_SENDS: Mapping[str, frozenset[Role]] = {
    "Vote": frozenset({Role.PROSPECTIVE, Role.CANDIDATE}),
    "Vote response": _ALL,
    "BeginQuorumEpoch": frozenset({Role.LEADER}),
    "BeginQuorumEpoch response": _VOTERS,
    "EndQuorumEpoch": frozenset({Role.RESIGNED}),
    "EndQuorumEpoch response": _VOTERS,
    "Fetch": frozenset({Role.FOLLOWER, Role.OBSERVER, Role.UNATTACHED, Role.PROSPECTIVE}),
    "Fetch response": _ALL,
    "FetchSnapshot": _FOLLOWING,
    "FetchSnapshot response": _ALL,
    "UpdateRaftVoter": _FOLLOWING,
    "UpdateRaftVoter response": _ALL,
    "AddRaftVoter": _FOLLOWING,
    "RemoveRaftVoter": _FOLLOWING,
    "AlterPartitionReassignments": _ALL - {Role.LEADER, Role.CANDIDATE, Role.UNATTACHED},
    "Produce response": _ALL,
    "Consumer fetch response": _ALL,
    **{f"{change} response": _ALL for change in _CHANGES},
}
"""Roles that send a message; a node that does not lead responds with a refusal."""
_MAY_HAVE_GOT: Mapping[str, frozenset[Role]] = {
    "start": _ALL - {Role.CANDIDATE},
    "Vote": _ALL,
    "Vote response": _VOTERS,
    "BeginQuorumEpoch": _ALL,
    "BeginQuorumEpoch response": _VOTERS - {Role.CANDIDATE},
    "EndQuorumEpoch": _VOTERS,
    "EndQuorumEpoch response": _VOTERS - {Role.LEADER, Role.CANDIDATE},
    "Fetch": _ALL,
    "Fetch response": _ALL,
    "FetchSnapshot": _ALL,
    "FetchSnapshot response": _FOLLOWING,
    "UpdateRaftVoter": _ALL,
    "UpdateRaftVoter response": _FOLLOWING,
    "AddRaftVoter response": _FOLLOWING,
    "RemoveRaftVoter response": _FOLLOWING,
    "AlterPartitionReassignments response": _FOLLOWING,
    "Produce": _ALL,
    "Consumer fetch": _ALL,
    **dict.fromkeys(_CHANGES, _ALL),
}
"""Roles that may have got a message last; it may just have given the node this role."""


_ALWAYS = ("NONE", "NOT_LEADER_OR_FOLLOWER", "REQUEST_TIMED_OUT")
_RESPONSES: Mapping[str, tuple[str, ...]] = {
    "add voter": (*_ALWAYS, "DUPLICATE_VOTER", "INVALID_REQUEST"),
    "remove voter": (*_ALWAYS, "VOTER_NOT_FOUND", "INVALID_REQUEST"),
    "remove leader": (*_ALWAYS, "VOTER_NOT_FOUND", "INVALID_REQUEST"),
    "replace voter": (*_ALWAYS, "DUPLICATE_VOTER", "INVALID_REQUEST", "VOTER_NOT_FOUND"),
    "reassign": _ALWAYS,
    "reassign otherwise": (*_ALWAYS, "NO_REASSIGNMENT_IN_PROGRESS"),
    "transfer leader": (*_ALWAYS, "VOTER_NOT_FOUND", "ELIGIBLE_LEADERS_NOT_AVAILABLE"),
}
"""The responses that an operation can get."""


@cache
def possible_cases() -> tuple[Case, ...]:
    """All of them, in the order of FAULTS and OPERATIONS."""
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
            cases += [(fault, CLIENT, message) for message in _CLIENTS_SEND]
    cases += [
        (operation, ANY_NODE, response)
        for operation in OPERATIONS
        for response in _RESPONSES.get(operation, ())
    ]
    return tuple(cases)


def missing_cases(coverage: Coverage) -> list[Case]:
    """The possible cases that have not occurred."""
    seen = {(fault, message) for fault, _, message in coverage.cases}
    return [
        case
        for case in possible_cases()
        if not coverage.cases[case] and not (case[1] == ANY_NODE and (case[0], case[2]) in seen)
    ]


def possible_pairs() -> list[Pair]:
    """Operations, and faults that begin meanwhile."""
    return [(operation, fault) for operation in _RESPONSES for fault in FAULTS]


def missing_pairs(coverage: Coverage) -> list[Pair]:
    """The possible pairs that have not occurred."""
    return [pair for pair in possible_pairs() if not coverage.pairs[pair]]
