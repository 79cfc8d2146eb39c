"""A response to an operator is true: an added voter is in a committed set, a removed one out of it.

Source: KIP-856, AddVoter and RemoveVoter (the response comes when the change is committed); KIP-642 for the
target of a reassignment.
"""

from __future__ import annotations

from simulation.history.facts import Facts
from simulation.history.voter_change_requests import VoterChangeKind, VoterChangeRequest
from simulation.history.voter_history import NamedVoters
from simulation.violation import Violation

NAME = "an acknowledged change is committed"


def check_acknowledged(facts: Facts, request: VoterChangeRequest) -> None:
    """Raise Violation unless this was so at some moment between the request and the response."""
    sets = facts.voters.committed[max(0, request.sets_before - 1) :]
    first_ids = tuple(sorted(key.id for key in facts.voters.first))
    if (
        not request.sets_before
        and request.kind is VoterChangeKind.REASSIGN
        and request.target in (None, first_ids)
    ):
        return
    if request.kind is not VoterChangeKind.TRANSFER and not any(
        _fulfils(named, request) for named in sets
    ):
        raise Violation(
            NAME,
            f"an operator that wants to {request} gets no error; the sets of that time are"
            f" {'; '.join(_described(named) for named in sets) or 'none'}",
        )


def _fulfils(named: NamedVoters, request: VoterChangeRequest) -> bool:
    match request.kind:
        case VoterChangeKind.ADD:
            return request.key in named.keys
        case VoterChangeKind.REMOVE:
            return request.key not in named.keys
    target = named.record.target
    is_reached = request.target == named.record.voters.ids and target is None
    return target == request.target or is_reached


def _described(named: NamedVoters) -> str:
    target = "" if named.record.target is None else f" on the way to {named.record.target}"
    return f"{', '.join(map(str, named.keys))}{target} at {named.batch}"
