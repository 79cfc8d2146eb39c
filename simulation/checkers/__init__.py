"""Properties that must hold, one a module, each with its source."""

from __future__ import annotations

from simulation.checkers.base import Checker, Observation
from simulation.checkers.begun_epochs import BegunEpochs
from simulation.checkers.caught_up import CaughtUp
from simulation.checkers.committed_prefix import CommittedPrefix
from simulation.checkers.contact import Contact
from simulation.checkers.duplicate_ids import DuplicateIds
from simulation.checkers.durability import Durability
from simulation.checkers.election_safety import ElectionSafety
from simulation.checkers.in_office import Undisturbed
from simulation.checkers.leader_completeness import LeaderCompleteness
from simulation.checkers.log_matching import LogMatching
from simulation.checkers.log_voters import LogVoters
from simulation.checkers.majority_synced import MajoritySynced
from simulation.checkers.monotonic import Monotonic
from simulation.checkers.one_change_at_a_time import OneChangeAtATime
from simulation.checkers.own_epoch import OwnEpoch
from simulation.checkers.permitted_voters import PermittedVoters
from simulation.checkers.requested_changes import RequestedChanges
from simulation.checkers.snapshots import Snapshots
from simulation.checkers.voter_sets import VoterSets
from simulation.checkers.votes import Votes
from simulation.checkers.witnesses import Witnesses
from simulation.history.facts import Facts

__all__ = ["Checker", "Facts", "Observation", "all_checkers"]

# The committed history comes first: others use it.
_KINDS: tuple[type[Checker], ...] = (
    Monotonic,
    CommittedPrefix,
    MajoritySynced,
    OwnEpoch,
    ElectionSafety,
    BegunEpochs,
    LeaderCompleteness,
    LogMatching,
    LogVoters,
    VoterSets,
    OneChangeAtATime,
    PermittedVoters,
    DuplicateIds,
    CaughtUp,
    RequestedChanges,
    Witnesses,
    Snapshots,
    Votes,
    Contact,
    Undisturbed,
    Durability,
)


def all_checkers(facts: Facts) -> list[Checker]:
    """One of each, with nothing seen yet."""
    return [kind(facts) for kind in _KINDS]
