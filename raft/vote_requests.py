"""Vote: a replica asks for this one's vote or pre-vote.

This replica handles the request in these steps:

1. It must name this cluster, if any, and not hold impossible values.
2. One of an older epoch is refused. A later epoch is taken over, unless this replica leads or has contact
   with a leader, or would not campaign for a lack of a leader: an observer, or one that is far behind.
3. It must be meant for this replica, if it says for which one it is.
4. A pre-vote is granted if this replica has no contact with a leader; a vote if it knows no leader of this
   epoch and has not voted in it, or for the same candidate. In either case the other log must end with a
   later epoch, or be at least as long.
5. A vote is on disk before the response leaves. A refused pre-vote is a reason to campaign.

Sources: KIP-595 (Vote request handling), KIP-996 (pre-vote), KIP-856 (keys; every replica votes). A hostile
or impossible request gets a top-level UNKNOWN_SERVER_ERROR: it changes nothing here, and no error that would
end a Kafka peer is sent.
"""

from __future__ import annotations

from quorumd.raft.bootstrap import learn_voter
from quorumd.raft.campaign_delays import after_vote_synced
from quorumd.raft.core import Core
from quorumd.raft.effects import VoteReply
from quorumd.raft.errors import KafkaError
from quorumd.raft.events import VoteRequestReceived
from quorumd.raft.leader_discovery import (
    EPOCH_STEP_LIMIT,
    adopt,
    ask,
    is_foreign,
    is_out_of_reach,
)
from quorumd.raft.pre_vote import campaign_against, grants_pre_vote
from quorumd.raft.roles import Leader, Unattached
from quorumd.raft.vote_rules import is_up_to_date, may_vote
from quorumd.raft.witness import consider_witness_leadership


def on_vote_requested(core: Core, event: VoteRequestReceived) -> None:
    """KIP-595, Vote request handling; KIP-996; KIP-856 lifts the check of the asker's membership.

    Errors: INCONSISTENT_CLUSTER_ID and UNKNOWN_SERVER_ERROR (top level), FENCED_LEADER_EPOCH,
    BROKER_NOT_AVAILABLE (top level: a candidate backs off), INVALID_VOTER_KEY.
    """
    candidate = event.candidate
    if is_foreign(core, event.cluster_id):
        core.report(f"vote request of {candidate} refused: cluster {event.cluster_id}")
        return _reply_to_vote(
            core, event.reply_to, False, top_level=KafkaError.INCONSISTENT_CLUSTER_ID
        )
    last_epoch_limit = event.epoch if event.pre_vote else event.epoch - 1
    if (
        candidate.id < 0
        or core.is_local(candidate)
        or event.last.offset < 0
        or not 0 <= event.last.epoch <= last_epoch_limit
        or is_out_of_reach(core, event.epoch)
    ):
        core.report(f"vote request of {candidate} refused: impossible values ({event})")
        return _reply_to_vote(
            core, event.reply_to, False, top_level=KafkaError.UNKNOWN_SERVER_ERROR
        )
    if event.epoch < core.epoch:
        return _reply_to_vote(core, event.reply_to, False, error=KafkaError.FENCED_LEADER_EPOCH)
    if event.epoch > core.epoch:
        if not _may_take_epoch(core, event):
            return _reply_to_vote(
                core, event.reply_to, False, top_level=KafkaError.BROKER_NOT_AVAILABLE
            )
        adopt(core, event.epoch, None, ())
    if event.voter is not None and not core.is_local(event.voter):
        return _reply_to_vote(core, event.reply_to, False, error=KafkaError.INVALID_VOTER_KEY)
    learn_voter(core, candidate, event.cluster_id)
    granted = grants_pre_vote(core, event) if event.pre_vote else _grants_vote(core, event)
    if core.config.is_witness:
        consider_witness_leadership(core, event)
    if event.pre_vote and not granted:
        campaign_against(core, candidate)
    elif not granted and isinstance(core.state, Unattached) and not core.witness.must_lead:
        # Others may have voted for it: that they know no leader yet means nothing.
        core.state.leaderless_voters = None
    return _reply_to_vote(core, event.reply_to, granted)


def _may_take_epoch(core: Core, event: VoteRequestReceived) -> bool:
    """One request of any process must not depose a leader (Ongaro's dissertation, 4.2.3).

    A candidate that won its pre-votes has a majority without contact. A leader asks the candidate: it may be
    stuck in a later epoch. A replica that need not be fast asks it, too, instead of believing it.
    """
    is_far = event.epoch > core.epoch + EPOCH_STEP_LIMIT
    if isinstance(core.state, Leader) or (not core.is_led and (is_far or not core.is_voter)):
        ask(core, event.candidate)
        return False
    return not core.is_led


def _grants_vote(core: Core, event: VoteRequestReceived) -> bool:
    """At most one vote an epoch, on disk before the response (KIP-595, step 3 and 4)."""
    if core.voted is not None:
        return core.voted.id == event.candidate.id and core.voted.uuid in (
            None,
            event.candidate.uuid,
        )
    if core.leader is not None or not may_vote(core) or not is_up_to_date(core, event.last):
        return False
    core.voted = event.candidate
    core.persist()
    if isinstance(core.state, Unattached):
        core.state.election_deadline_ms = core.now_ms + core.random_election_timeout_ms()
        core.state.vote_write = core.writes.state
    return True


def on_write_completed(core: Core, state: Unattached, write: int) -> None:
    """A vote that was given is on disk: the candidate has time from now on to take office."""
    if state.vote_write is not None and write >= state.vote_write:
        state.vote_write = None
        state.election_deadline_ms = max(state.election_deadline_ms, after_vote_synced(core))


def _reply_to_vote(
    core: Core,
    reply_to: int,
    granted: bool,
    error: KafkaError | None = None,
    top_level: KafkaError | None = None,
) -> None:
    core.reply(reply_to, VoteReply(**core.reply_fields(error, top_level), granted=granted))
