"""The transition table: which role follows which, on what, and whose rule that is.

A pair that is not in the table cannot happen; trying it is a broken invariant. Where the table says
unattached or follower, a replica outside the voter set becomes an observer instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from quorumd.raft.roles import Role


class Trigger(StrEnum):
    """The reason why a role ends."""

    HIGHER_EPOCH = "a higher epoch was seen, its leader is not known"
    LEADER_LEARNT = "the leader of the epoch was learnt"
    ELECTION_TIMEOUT = "no leader was found in time"
    LEADER_SILENT = "the leader is silent or gone"
    LEADER_RESPONDED = "the leader responded to a fetch"
    PRE_VOTES_WON = "a majority would vote"
    PRE_VOTES_UNSUPPORTED = "a voter does not know pre-vote"
    PRE_VOTES_LOST = "no majority would vote, no leader is known"
    PRE_VOTES_LOST_TO_LEADER = "no majority would vote, the leader is known"
    CANDIDACY_OVER = "no majority voted in time"
    VOTES_WON = "a majority voted"
    QUORUM_LOST = "a majority has not fetched for too long"
    RESIGNATION = "resignation was asked for"
    REMOVED = "it was removed from the voters, which is committed"
    RESIGNATION_OVER = "no other voter took over in time"
    JOINED_VOTERS = "the voter set contains this replica now"
    JOINED_VOTERS_WITH_LEADER = "the voter set contains this replica now, the leader is known"
    LEFT_VOTERS = "the voter set does not contain this replica any more"


R, T = Role, Trigger

TRANSITIONS: Mapping[tuple[Role, Trigger], Role] = MappingProxyType(
    {
        # KIP-595, common rules: every role gives way to a higher epoch.
        (R.UNATTACHED, T.HIGHER_EPOCH): R.UNATTACHED,
        (R.FOLLOWER, T.HIGHER_EPOCH): R.UNATTACHED,
        (R.PROSPECTIVE, T.HIGHER_EPOCH): R.UNATTACHED,
        (R.CANDIDATE, T.HIGHER_EPOCH): R.UNATTACHED,
        (R.LEADER, T.HIGHER_EPOCH): R.UNATTACHED,
        (R.RESIGNED, T.HIGHER_EPOCH): R.UNATTACHED,
        (R.OBSERVER, T.HIGHER_EPOCH): R.OBSERVER,
        # KIP-595, BeginQuorumEpoch and leader hints in responses.
        (R.UNATTACHED, T.LEADER_LEARNT): R.FOLLOWER,
        (R.FOLLOWER, T.LEADER_LEARNT): R.FOLLOWER,
        (R.PROSPECTIVE, T.LEADER_LEARNT): R.FOLLOWER,
        (R.CANDIDATE, T.LEADER_LEARNT): R.FOLLOWER,
        (R.LEADER, T.LEADER_LEARNT): R.FOLLOWER,
        (R.RESIGNED, T.LEADER_LEARNT): R.FOLLOWER,
        (R.OBSERVER, T.LEADER_LEARNT): R.OBSERVER,
        # KIP-996: pre-vote before an election.
        (R.UNATTACHED, T.ELECTION_TIMEOUT): R.PROSPECTIVE,
        (R.FOLLOWER, T.LEADER_SILENT): R.PROSPECTIVE,
        (R.PROSPECTIVE, T.LEADER_RESPONDED): R.FOLLOWER,
        (R.PROSPECTIVE, T.PRE_VOTES_WON): R.CANDIDATE,
        (R.PROSPECTIVE, T.PRE_VOTES_UNSUPPORTED): R.CANDIDATE,
        (R.PROSPECTIVE, T.PRE_VOTES_LOST): R.UNATTACHED,
        (R.PROSPECTIVE, T.PRE_VOTES_LOST_TO_LEADER): R.FOLLOWER,
        # KIP-595, Vote response handling; gridlocked elections.
        (R.CANDIDATE, T.CANDIDACY_OVER): R.PROSPECTIVE,
        (R.CANDIDATE, T.VOTES_WON): R.LEADER,
        # KIP-595, leader progress timeout; EndQuorumEpoch.
        (R.LEADER, T.QUORUM_LOST): R.RESIGNED,
        (R.LEADER, T.RESIGNATION): R.RESIGNED,
        (R.RESIGNED, T.RESIGNATION_OVER): R.UNATTACHED,
        # KIP-856, RemoveVoter request handling, step 7.
        (R.LEADER, T.REMOVED): R.RESIGNED,
        # KIP-856: the voter set counts as soon as its record is in the log, and truncation reverts it.
        (R.OBSERVER, T.JOINED_VOTERS): R.UNATTACHED,
        (R.OBSERVER, T.JOINED_VOTERS_WITH_LEADER): R.FOLLOWER,
        (R.UNATTACHED, T.LEFT_VOTERS): R.OBSERVER,
        (R.FOLLOWER, T.LEFT_VOTERS): R.OBSERVER,
        (R.PROSPECTIVE, T.LEFT_VOTERS): R.OBSERVER,
        (R.CANDIDATE, T.LEFT_VOTERS): R.OBSERVER,
    }
)
