"""Finding a leader: votes, pre-votes, announcements, resignations, and the hints in every answer.

Sources: KIP-595 (Vote, BeginQuorumEpoch, EndQuorumEpoch), KIP-996 (pre-vote), KIP-856 (keys; every
replica votes). Error names are Kafka's. Hostile or impossible requests get a top-level
UNKNOWN_SERVER_ERROR: they change nothing here, and no error that would end a Kafka peer is sent.
"""

from __future__ import annotations

from quorumd.raft import quorum
from quorumd.raft.core import (
    CAMPAIGN_DELAY_MS,
    EPOCH_LIMIT,
    EPOCH_STEP_LIMIT,
    LAST_EPOCH,
    REFUSAL_GRACE_MS,
    Core,
)
from quorumd.raft.effects import Peer, Reply, Vote, VoteReply
from quorumd.raft.errors import KafkaError
from quorumd.raft.events import (
    BeginQuorumEpochRequestReceived,
    ConnectionLost,
    ConnectionMade,
    ConnectionRefused,
    EndQuorumEpochRequestReceived,
    EndQuorumEpochResponseReceived,
    LeaderHint,
    VoteRequestReceived,
    VoteResponseReceived,
)
from quorumd.raft.leadership import become_leader
from quorumd.raft.outstanding import InFlightRequest
from quorumd.raft.roles import (
    Candidate,
    Follower,
    Leader,
    Observer,
    Prospective,
    Resigned,
    Unattached,
)
from quorumd.raft.transitions import Trigger
from quorumd.raft.types import Endpoint, OffsetAndEpoch, ReplicaKey

# -- learning epochs and leaders


def adopt(
    core: Core, epoch: int, leader_id: int | None, endpoints: tuple[Endpoint, ...]
) -> str | None:
    """Take over what a message says about epoch and leader. Returns why not, if it contradicts.

    Source: KIP-595, "We piggyback current leader and epoch information on all responses".
    """
    if is_out_of_reach(core, epoch):
        return f"epoch {epoch} is above the limit of {EPOCH_LIMIT}"
    if epoch < core.epoch:
        return None
    if leader_id == core.local.id:
        if epoch == core.epoch and core.leader is not None and core.leader.id == leader_id:
            return None
        return f"this replica is called the leader of epoch {epoch}, which it is not"
    if epoch == core.epoch and leader_id not in (None, core.leader_id) and core.leader is not None:
        return f"replica {leader_id} is called the leader of epoch {epoch}, which {core.leader} is"
    if leader_id is None:
        if epoch > core.epoch:
            core.become_unattached(Trigger.HIGHER_EPOCH, epoch, remaining_timeout_ms(core))
        return None
    endpoints = endpoints or core.endpoints_of(leader_id)
    if not endpoints:
        return f"nobody said where replica {leader_id}, leader of epoch {epoch}, can be reached"
    if epoch > core.epoch or core.leader is None:
        core.become_follower(Trigger.LEADER_LEARNT, epoch, core.key_of(leader_id), endpoints)
    elif len(endpoints) > len(core.leader_endpoints):
        core.leader_endpoints = endpoints
    return None


def is_out_of_reach(core: Core, epoch: int) -> bool:
    """True if this epoch is near the last possible one and was not come to by elections."""
    return epoch > max(EPOCH_LIMIT, min(core.epoch + EPOCH_STEP_LIMIT, LAST_EPOCH))


def remaining_timeout_ms(core: Core) -> int | None:
    """What is left of the election timer: a replica that bumps epochs must not keep others waiting."""
    match core.state:
        case Unattached(election_deadline_ms=deadline) | Resigned(election_deadline_ms=deadline):
            return max(0, deadline - core.now_ms)
        case Prospective(deadline_ms=deadline) | Candidate(deadline_ms=deadline):
            return max(0, deadline - core.now_ms)
    return None


def absorb(core: Core, request: InFlightRequest, error: str | None, hint: LeaderHint) -> bool:
    """Learn from an answer's epoch, leader and error. True if its content is to be looked at."""
    to = request.to
    if hint.epoch < core.epoch or error == KafkaError.UNKNOWN_LEADER_EPOCH:
        core.report(f"answer of {to} ignored: epoch {hint.epoch}, own epoch {core.epoch}")
        core.back_off(request)
        return False
    leader_id = None if core.leader is None else core.leader.id
    is_news = (
        hint.epoch != core.epoch
        or hint.leader_id != leader_id
        or len(hint.endpoints) > len(core.leader_endpoints)
    )
    if error is None and not is_news and not core.backoffs:
        return True
    before = core.context
    named = hint.leader_id
    if named == core.local.id and hint.epoch == core.epoch and named != leader_id:
        # Who answers takes this replica for the leader that it is not any more: no news, and no reason
        # to disregard a vote that comes along.
        named = None
    contradiction = adopt(core, hint.epoch, named, hint.endpoints)
    if contradiction is not None:
        core.report(f"answer of {to} ignored: {contradiction}")
        core.back_off(request)
        return False
    if core.context != before:
        return False
    if error is not None:
        core.back_off(request)
        return False
    if core.backoffs:
        core.backoffs.pop((to, type(request.request)), None)
    return True


# -- being asked


def _answered(
    core: Core, error: KafkaError | None = None, top_level: KafkaError | None = None
) -> Reply:
    return Reply(
        epoch=core.epoch,
        leader_id=core.leader_id,
        leader_endpoints=core.leader_endpoints_for_answers(),
        error=error,
        top_level_error=top_level,
    )


def _answer_vote(
    core: Core,
    reply_to: int,
    granted: bool,
    error: KafkaError | None = None,
    top_level: KafkaError | None = None,
) -> None:
    core.answer(
        reply_to,
        VoteReply(
            epoch=core.epoch,
            leader_id=core.leader_id,
            leader_endpoints=core.leader_endpoints_for_answers(),
            error=error,
            top_level_error=top_level,
            granted=granted,
        ),
    )


def is_foreign(core: Core, cluster_id: str | None) -> bool:
    """True if the message names another cluster; not to name one is allowed (KIP-595)."""
    return cluster_id is not None and core.cluster_id is not None and cluster_id != core.cluster_id


def on_vote_requested(core: Core, event: VoteRequestReceived) -> None:
    """KIP-595, Vote request handling; KIP-996; KIP-856 lifts the check of the asker's membership.

    Errors: INCONSISTENT_CLUSTER_ID and UNKNOWN_SERVER_ERROR (top level), FENCED_LEADER_EPOCH,
    INVALID_VOTER_KEY.
    """
    candidate = event.candidate
    if is_foreign(core, event.cluster_id):
        core.report(f"vote request of {candidate} refused: cluster {event.cluster_id}")
        return _answer_vote(
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
        return _answer_vote(core, event.reply_to, False, top_level=KafkaError.UNKNOWN_SERVER_ERROR)
    if event.epoch < core.epoch:
        return _answer_vote(core, event.reply_to, False, error=KafkaError.FENCED_LEADER_EPOCH)
    if event.epoch > core.epoch:
        adopt(core, event.epoch, None, ())
    if event.voter is not None and not core.is_local(event.voter):
        return _answer_vote(core, event.reply_to, False, error=KafkaError.INVALID_VOTER_KEY)
    learn_voter(core, candidate, event.cluster_id)
    granted = _grants_pre_vote(core, event) if event.pre_vote else _grants_vote(core, event)
    if core.config.is_witness:
        _weigh_standing_in(core, event)
    if event.pre_vote and not granted:
        _outbid(core, candidate)
    elif not granted and isinstance(core.state, Unattached) and not core.must_lead:
        # Others may have voted for it: that they know no leader yet means nothing.
        core.state.vacant = None
    return _answer_vote(core, event.reply_to, granted)


def learn_voter(core: Core, key: ReplicaKey, cluster_id: str | None) -> None:
    """Remember the uuid and the cluster id that a replica shows: a first leader needs both."""
    if key.uuid is not None and key.id in core.config.initial_voters.ids:
        core.known_uuids[key.id] = key
    if cluster_id is not None and core.heard_cluster_id is None and core.voters.find(key):
        core.heard_cluster_id = cluster_id


def _is_up_to_date(core: Core, last: OffsetAndEpoch) -> bool:
    """The later last epoch wins, then the longer log (KIP-595, Vote request handling)."""
    return (last.epoch, last.offset) >= (core.log.last_epoch, core.log.end_offset)


def _may_vote(core: Core) -> bool:
    """A directory that joins an existing quorum votes once its log names the voters."""
    return core.log.voters_offset >= 0 or core.config.is_bootstrap


def _grants_pre_vote(core: Core, event: VoteRequestReceived) -> bool:
    """A pre-vote changes nothing, so to grant one costs no safety (KIP-996)."""
    if isinstance(core.state, Leader) or not _may_vote(core):
        return False
    if isinstance(core.state, (Follower, Observer)) and core.has_leader_contact:
        return False
    return _is_up_to_date(core, event.last)


def _outbid(core: Core, asker: ReplicaKey) -> None:
    """A replica without leader asked, and was refused for its shorter log: better ask ourselves.

    The asker may have refused us while it still heard of its leader. Only a replica that has no leader
    either gets here with a role that campaigns.
    """
    state = core.state
    if isinstance(state, Prospective):
        for key in [key for key in state.votes if key.matches(asker) and not state.votes[key]]:
            del state.votes[key]
    elif isinstance(state, Follower) and not core.has_leader_contact:
        soon = core.now_ms + core.draw(CAMPAIGN_DELAY_MS)
        state.campaign_at_ms = min(state.election_deadline_ms, soon)
    elif isinstance(state, Unattached):
        _hurry(core, state)


def _weigh_standing_in(core: Core, event: VoteRequestReceived) -> None:
    """A witness leads where nobody else can: it refuses a candidate whose log lacks what it holds.

    If another one has asked that lacks nothing, that one shall win. It is given the time until all have
    missed the leader and it has asked them again, but no more: something may keep it from winning.
    """
    if core.has_leader_contact or not _may_vote(core):
        return
    if not _is_up_to_date(core, event.last):
        core.must_lead = core.must_lead or core.now_ms >= (core.others_turn_until_ms or 0)
    elif core.others_turn_until_ms is None:
        config = core.config
        patience_ms = 2 * config.election_timeout_ms + config.election_backoff_max_ms
        core.others_turn_until_ms = core.now_ms + config.fetch_timeout_ms + patience_ms
        core.must_lead = False


def may_campaign(core: Core) -> bool:
    """False for a witness, unless no other voter can win, or perhaps none knows that it is one."""
    if not core.config.is_witness or core.must_lead:
        return True
    committed = core.committed_voters.record.voters
    return any(all(map(core.is_local, voters.keys)) for voters in (core.voters, committed))


def _grants_vote(core: Core, event: VoteRequestReceived) -> bool:
    """At most one vote an epoch, on disk before the answer (KIP-595, step 3 and 4)."""
    if core.voted is not None:
        same = core.voted.id == event.candidate.id and core.voted.uuid in (
            None,
            event.candidate.uuid,
        )
        return same and not isinstance(core.state, Leader)
    if core.leader is not None or not _may_vote(core) or not _is_up_to_date(core, event.last):
        return False
    core.voted = event.candidate
    if isinstance(core.state, Unattached):
        core.state.election_deadline_ms = core.now_ms + core.random_election_timeout_ms()
    core.persist()
    return True


def on_quorum_epoch_begun(core: Core, event: BeginQuorumEpochRequestReceived) -> None:
    """KIP-595, BeginQuorumEpoch request handling.

    Errors: INCONSISTENT_CLUSTER_ID and UNKNOWN_SERVER_ERROR (top level), FENCED_LEADER_EPOCH,
    INVALID_VOTER_KEY. NOT_VOTER is never sent: a replica that is not a voter yet follows all the same.
    """
    refusal = _follow_sender(core, event.cluster_id, event.epoch, event.leader_id, event.endpoints)
    if refusal is not None:
        return core.answer(event.reply_to, refusal)
    if event.endpoints and event.leader_id == core.leader_id != core.local.id:
        # The leader itself knows best where it is; what others said may be where it was.
        core.leader_endpoints = event.endpoints
    if event.voter is not None and not core.is_local(event.voter):
        return core.answer(event.reply_to, _answered(core, KafkaError.INVALID_VOTER_KEY))
    return core.answer(event.reply_to, _answered(core))


def _follow_sender(
    core: Core,
    cluster_id: str | None,
    epoch: int,
    leader_id: int | None,
    endpoints: tuple[Endpoint, ...],
) -> Reply | None:
    """The checks that BeginQuorumEpoch and EndQuorumEpoch share. Returns the refusal, if any."""
    if is_foreign(core, cluster_id):
        core.report(f"request of leader {leader_id} refused: cluster {cluster_id}")
        return _answered(core, top_level=KafkaError.INCONSISTENT_CLUSTER_ID)
    if epoch < 0 or (leader_id is not None and leader_id < 0):
        return _answered(core, top_level=KafkaError.UNKNOWN_SERVER_ERROR)
    if epoch < core.epoch:
        return _answered(core, KafkaError.FENCED_LEADER_EPOCH)
    contradiction = adopt(core, epoch, leader_id, endpoints)
    if contradiction is not None:
        core.report(f"request of leader {leader_id} refused: {contradiction}")
        return _answered(core, top_level=KafkaError.UNKNOWN_SERVER_ERROR)
    return None


def on_quorum_epoch_ended(core: Core, event: EndQuorumEpochRequestReceived) -> None:
    """KIP-595, EndQuorumEpoch request handling: the best successor campaigns at once.

    Errors as for BeginQuorumEpoch. INCONSISTENT_VOTER_SET is never sent: a voter that the leader did
    not list waits longest instead.
    """
    refusal = _follow_sender(core, event.cluster_id, event.epoch, event.leader_id, event.endpoints)
    if refusal is not None:
        return core.answer(event.reply_to, refusal)
    if event.leader_id is None:
        if isinstance(core.state, Unattached):
            _hurry(core, core.state)
    elif core.leader_id == event.leader_id and not core.leader_has_ended:
        core.leader_has_ended = True
        if isinstance(core.state, Follower):
            core.state.fetch_deadline_ms = core.now_ms
            core.state.campaign_at_ms = core.now_ms + _successor_delay_ms(core, event.successors)
    return core.answer(event.reply_to, _answered(core))


def _successor_delay_ms(core: Core, successors: tuple[ReplicaKey, ...]) -> int:
    position = next((i for i, key in enumerate(successors) if core.is_local(key)), None)
    if not successors:  # a leader that restarted: anybody may try
        return core.draw(CAMPAIGN_DELAY_MS)
    config = core.config
    return quorum.successor_delay_ms(position, config.retry_backoff_ms, config.retry_backoff_max_ms)


# -- asking


def _campaign_after_silence(core: Core, state: Follower) -> None:
    """The fetch timeout is the same for all: a random delay keeps followers from colliding."""
    if state.campaign_at_ms is None:
        state.campaign_at_ms = core.now_ms + core.draw(CAMPAIGN_DELAY_MS)
    if not may_campaign(core):
        state.campaign_at_ms = core.now_ms + core.random_election_timeout_ms()
    elif core.now_ms >= state.campaign_at_ms:
        become_prospective(core, Trigger.LEADER_SILENT)


def become_prospective(core: Core, trigger: Trigger) -> None:
    """Ask every other voter whether it would vote (KIP-996)."""
    assert core.is_voter, "only voters campaign"
    own = core.voters.find(core.local)
    deadline = core.now_ms + core.random_election_timeout_ms()
    core.move_to(trigger, Prospective(deadline, {} if own is None else {own.key: True}))
    _count_votes(core)


def _become_candidate(core: Core, trigger: Trigger) -> None:
    """A new epoch, the own vote in it, on disk before anybody is asked (KIP-595, Vote)."""
    if core.epoch >= LAST_EPOCH:
        core.report(f"no election: epoch {core.epoch} is the last one")
        return lose_pre_votes(core)
    core.epoch += 1
    core.voted, core.leader, core.leader_endpoints = core.local, None, ()
    core.persist()
    deadline = core.now_ms + core.random_election_timeout_ms()
    core.move_to(trigger, Candidate(deadline, vote_write=core.state_write))
    return None


def on_own_vote_synced(core: Core) -> None:
    """Count the own vote: it is on disk now."""
    state = core.state
    own = core.voters.find(core.local)
    if isinstance(state, Candidate) and own and own.key not in state.votes:
        state.votes[own.key] = True
        _count_votes(core)


def lose_pre_votes(core: Core) -> None:
    """Go back, and try again after a random delay that doubles each time."""
    backoff = core.campaign_backoff_ms()
    if core.leader is None:
        core.move_to(Trigger.PRE_VOTES_LOST, Unattached(core.now_ms + backoff))
        return
    contact = core.last_contact_ms
    expires = core.now_ms if contact is None else contact + core.config.fetch_timeout_ms
    core.move_to(
        Trigger.PRE_VOTES_LOST_TO_LEADER, Follower(expires, campaign_at_ms=core.now_ms + backoff)
    )


def _count_votes(core: Core) -> None:
    state = core.state
    if not isinstance(state, (Prospective, Candidate)) or core.is_shutting_down:
        return None
    keys = core.electorate.keys
    votes = [state.votes[key] for key in keys if key in state.votes]
    granted = sum(votes)
    refused = len(votes) - granted
    if quorum.is_won(granted, len(core.voters)):
        if isinstance(state, Prospective):
            return _become_candidate(core, Trigger.PRE_VOTES_WON)
        return become_leader(core, tuple(key for key, yes in state.votes.items() if yes))
    if not refused:
        return None
    silent = sum(key not in state.votes and _is_absent(core, key) for key in keys)
    is_lost = quorum.is_lost(refused + silent, len(keys))
    if isinstance(state, Prospective):
        if is_lost:
            return lose_pre_votes(core)
        state.deadline_ms = min(state.deadline_ms, core.now_ms + REFUSAL_GRACE_MS)
    elif not state.is_lost and (is_lost or not state.is_doubtful):
        wait_ms = core.campaign_backoff_ms() + (0 if is_lost else REFUSAL_GRACE_MS)
        state.is_lost, state.is_doubtful = is_lost, True
        state.deadline_ms = min(state.deadline_ms, core.now_ms + wait_ms)
    return None


def _is_absent(core: Core, voter: ReplicaKey) -> bool:
    """True if this voter cannot be asked at present: one refusal more may decide against this round."""
    return voter.id in core.unreachable or (voter, Vote) in core.backoffs


def on_vote_failed(core: Core) -> None:
    """A voter could not be asked: with another one's refusal, that can end the round (KIP-595,
    gridlocked elections)."""
    _count_votes(core)


def on_vote_answered(core: Core, event: VoteResponseReceived) -> None:
    """KIP-595, Vote response handling; top-level refusals arrive as failed requests."""
    request = core.take(event.request_id)
    if request is None:
        return
    if not absorb(core, request, event.error, event.hint):
        if event.error is not None:
            on_vote_failed(core)
        return
    vote, state = request.request, core.state
    assert isinstance(vote, Vote), "a vote answers a Vote request"
    asked_as = Prospective if vote.pre_vote else Candidate
    if isinstance(state, (Prospective, Candidate)) and isinstance(state, asked_as):
        assert isinstance(request.to, ReplicaKey), "votes are asked of voters only"
        state.votes[request.to] = event.granted
        _count_votes(core)


def on_pre_vote_unsupported(core: Core, to: Peer) -> None:
    """A voter too old for pre-vote: campaign at once, as it would (KIP-996, compatibility)."""
    if isinstance(core.state, Prospective):
        core.report(f"voter {to} does not know pre-vote")
        _become_candidate(core, Trigger.PRE_VOTES_UNSUPPORTED)


def on_end_answered(core: Core, event: EndQuorumEpochResponseReceived) -> None:
    request = core.take(event.request_id)
    if request is None or not absorb(core, request, event.error, event.hint):
        return
    if isinstance(core.state, Resigned) and isinstance(request.to, ReplicaKey):
        core.state.unacknowledged.discard(request.to)


# -- signs of life


def _hurry(core: Core, state: Unattached) -> None:
    """Campaign soon, unless an earlier campaign failed and its backoff runs."""
    if core.election_attempts == 0:
        soon = core.now_ms + core.draw(CAMPAIGN_DELAY_MS)
        state.election_deadline_ms = min(state.election_deadline_ms, soon)


def on_vacancy(core: Core, peer: ReplicaKey) -> None:
    """A voter knows no leader of this epoch either: once a majority says so, nobody need wait.

    But for a candidate of this epoch that has asked for votes: it may be about to lead. Source: KIP-642,
    bootstrapping procedure, step 6. Pre-vote makes it safe.
    """
    state = core.state
    if not isinstance(state, Unattached) or state.vacant is None or core.voted is not None:
        return
    if peer.id in state.vacant:
        return
    state.vacant.add(peer.id)
    agreeing = sum(key.id in state.vacant or core.is_local(key) for key in core.voters.keys)
    if quorum.is_won(agreeing, len(core.voters)):
        _hurry(core, state)


def on_peer_unreachable(core: Core, event: ConnectionRefused) -> None:
    """The leader's process is gone: ask for pre-votes after a short random delay.

    Nobody forgets the leader on this event alone; only a silent leader has to be waited for. The same
    holds for a candidate that has this replica's vote.
    """
    core.unreachable.add(event.id)
    state = core.state
    if isinstance(state, Follower):
        if event.id == core.leader_id and state.campaign_at_ms is None:
            state.campaign_at_ms = core.now_ms + core.draw(CAMPAIGN_DELAY_MS)
    elif isinstance(state, Unattached) and core.voted is not None and core.voted.id == event.id:
        _hurry(core, state)


def on_peer_lost(core: Core, event: ConnectionLost) -> None:
    """A witness need not be sure: it only helps others to find out, and a late grant would triple the
    time that they take."""
    if core.config.is_witness:
        core.unreachable.add(event.id)


def on_peer_reachable(core: Core, event: ConnectionMade) -> None:
    """A process is there after all: ask it at once what is due, wait for a leader's silence as usual."""
    if event.id not in core.unreachable:
        return
    core.unreachable.discard(event.id)
    for peer, kind in list(core.backoffs):
        if isinstance(peer, ReplicaKey) and peer.id == event.id:
            del core.backoffs[peer, kind]
    state = core.state
    if isinstance(state, Follower) and event.id == core.leader_id and core.has_leader_contact:
        state.campaign_at_ms = None


# -- timers and sending


def expire(core: Core) -> None:
    """Act on the timer of the present role, if it has run out; none runs in a node that stops."""
    state, now = core.state, core.now_ms
    if core.is_shutting_down or isinstance(state, Observer):
        return
    if isinstance(state, Unattached) and now >= state.election_deadline_ms:
        if may_campaign(core):
            become_prospective(core, Trigger.ELECTION_TIMEOUT)
        else:
            state.election_deadline_ms = now + core.random_election_timeout_ms()
    elif isinstance(state, Follower) and now >= state.election_deadline_ms:
        _campaign_after_silence(core, state)
    elif isinstance(state, Prospective) and now >= state.deadline_ms:
        lose_pre_votes(core)
    elif isinstance(state, Candidate) and now >= state.deadline_ms:
        become_prospective(core, Trigger.CANDIDACY_OVER)
    elif isinstance(state, Resigned) and now >= state.election_deadline_ms:
        _end_resignation(core)


def _end_resignation(core: Core) -> None:
    """Nobody took over: take part in elections again, in an epoch that this replica did not lead."""
    if core.epoch < LAST_EPOCH:
        core.become_unattached(Trigger.RESIGNATION_OVER, core.epoch + 1, 0)
    elif isinstance(core.state, Resigned):
        core.state.election_deadline_ms = core.now_ms + core.random_election_timeout_ms()


def ask_for_votes(core: Core) -> None:
    """Send Vote to every voter that has not answered and can be asked now."""
    state = core.state
    if not isinstance(state, (Prospective, Candidate)) or core.is_shutting_down:
        return
    if isinstance(state, Candidate) and state.is_lost:
        return
    request = Vote(epoch=core.epoch, last=core.log.end, pre_vote=isinstance(state, Prospective))
    for key in core.other_voters():
        if key not in state.votes and core.can_send(key, Vote):
            core.send(key, request, after=core.state_write)


def election_deadline_ms(core: Core) -> int | None:
    """When `expire` has something to do."""
    state = core.state
    if core.is_shutting_down or isinstance(state, (Observer, Leader)):
        return None
    if isinstance(state, (Prospective, Candidate)):
        return state.deadline_ms
    return state.election_deadline_ms
