"""Learning epochs and leaders: every message says which ones its sender knows.

What a response says is taken over: it comes from where its sender is known to be. Any process can send a
request: what it says is unconfirmed, and a reason to ask (`ask`).

Source: KIP-595, "We piggyback current leader and epoch information on all responses"; KIP-642, bootstrapping
procedure (voters that know no leader).
"""

from __future__ import annotations

from typing import Final

from quorumd.raft import quorum
from quorumd.raft.campaign_delays import campaign_soon
from quorumd.raft.core import Core
from quorumd.raft.core_parts import InFlightRequest
from quorumd.raft.effects import Peer, Request, Vote
from quorumd.raft.errors import KafkaError
from quorumd.raft.events import LeaderHint
from quorumd.raft.resignation import note_refusal
from quorumd.raft.role_changes import become_follower, become_unattached
from quorumd.raft.roles import Candidate, Prospective, Resigned, Unattached
from quorumd.raft.transitions import Trigger
from quorumd.raft.types import Endpoint, ReplicaKey

EPOCH_LIMIT: Final = 2**31 - 2**20
"""Above this, epochs are accepted in small steps only: a hostile request must not use them up."""

EPOCH_STEP_LIMIT: Final = 2**10
"""The largest step that is small. It leaves room for elections after any one hostile request."""

LAST_EPOCH: Final = 2**31 - 2
"""No campaign goes beyond this: the next epoch ends a real Kafka leader."""


def contradiction(
    core: Core, epoch: int, leader_id: int | None, endpoints: tuple[Endpoint, ...]
) -> str | None:
    """The reason why it cannot be that `leader_id` leads this epoch, which is not over; None if it can."""
    if is_out_of_reach(core, epoch):
        return f"epoch {epoch} is above the limit of {EPOCH_LIMIT}"
    if epoch == core.epoch and core.leader == core.local and leader_id == core.local.id:
        return None
    if leader_id == core.local.id and not _is_rival(core, endpoints):
        return f"this replica is called the leader of epoch {epoch}, which it is not"
    if epoch == core.epoch and leader_id not in (None, core.leader_id) and core.leader is not None:
        return f"replica {leader_id} is called the leader of epoch {epoch}, which {core.leader} is"
    return None


def adopt(
    core: Core, epoch: int, leader_id: int | None, endpoints: tuple[Endpoint, ...]
) -> str | None:
    """Take over what a response says about this epoch or a later one. Returns why not, if it contradicts.

    Source: KIP-595, "We piggyback current leader and epoch information on all responses".
    """
    reason = contradiction(core, epoch, leader_id, endpoints)
    if reason is not None:
        return reason
    if leader_id is None:
        if epoch > core.epoch:
            become_unattached(core, Trigger.HIGHER_EPOCH, epoch, _remaining_timeout_ms(core))
        return None
    if core.leader == core.local and epoch == core.epoch:
        return None
    leader = core.key_of(leader_id)
    known = core.endpoints_of(leader)
    if set(endpoints) < set(known):  # a response has the endpoint of one listener at the most
        endpoints = known
    if not endpoints:
        if epoch > core.epoch:
            become_unattached(core, Trigger.HIGHER_EPOCH, epoch, _remaining_timeout_ms(core))
        return f"no endpoint is known of replica {leader_id}, leader of epoch {epoch}"
    if epoch > core.epoch or core.leader is None:
        become_follower(core, Trigger.LEADER_LEARNT, epoch, leader, endpoints)
    elif len(endpoints) > len(core.known_leader.endpoints):
        core.known_leader.endpoints = endpoints
    return None


def _is_rival(core: Core, endpoints: tuple[Endpoint, ...]) -> bool:
    """True if another replica leads under this replica's id: messages name leaders by id alone.

    It has another storage id (KIP-856), and is reached elsewhere. A replica knows whether it leads itself.
    A Kafka node that leads under this replica's id is not followed: a FetchSnapshot under it would end it.
    """
    if core.config.is_kafka_log:
        return False
    at = endpoints or core.endpoints_of(core.key_of(core.local.id))
    return bool(set(at) - set(core.config.endpoints))


def ask(core: Core, named: ReplicaKey, endpoints: tuple[Endpoint, ...] = ()) -> None:
    """A request says that a replica leads, or knows a later epoch: ask that replica itself.

    Any process can send a request; a response comes from where the replica is known to be. The question
    is a pre-vote, which changes nothing there. It goes to the unconfirmed endpoints only while this
    replica has no leader, and if the known ones do not respond. What cannot be confirmed now comes again:
    leaders and candidates repeat their requests.
    """
    voter = next((key for key in core.other_voters() if key.matches(named)), None)
    to = named if voter is None else voter
    if to == core.local or (to.id == core.local.id and core.config.is_kafka_log):
        return  # a vote under its own id ends a Kafka node
    if endpoints and not core.is_led:
        core.known_leader.unconfirmed_endpoints = to.id, endpoints
    if voter is None and _is_stranger_asked(core):
        return
    if core.can_send(to, Vote):
        question = Vote(epoch=core.epoch, last=core.log.end, pre_vote=True)
        core.send(to, question, after=core.writes.state)


def _is_stranger_asked(core: Core) -> bool:
    """Replicas outside the voter set are asked one at a time: a request can name any number of them."""

    def is_stranger(peer: Peer, kind: type[Request]) -> bool:
        if kind is not Vote:
            return False
        assert isinstance(peer, ReplicaKey), "only fetches go to bootstrap servers"
        return core.voters.find(peer) is None

    backoffs = core.requests.backoffs
    for one in [one for one in backoffs if is_stranger(*one)]:
        if backoffs[one].retry_at_ms > core.now_ms:
            return True
        del backoffs[one]
    in_flight = core.requests.in_flight.values()
    return any(is_stranger(sent.to, type(sent.request)) for sent in in_flight)


def is_out_of_reach(core: Core, epoch: int) -> bool:
    """True if this epoch is near the last possible one and was not come to by elections."""
    return epoch > max(EPOCH_LIMIT, min(core.epoch + EPOCH_STEP_LIMIT, LAST_EPOCH))


def _remaining_timeout_ms(core: Core) -> int | None:
    """Rest of the election timer: a replica that bumps epochs must not keep others waiting."""
    match core.state:
        case Unattached(election_deadline_ms=deadline) | Resigned(election_deadline_ms=deadline):
            return max(0, deadline - core.now_ms)
        case Prospective(deadline_ms=deadline) | Candidate(deadline_ms=deadline):
            return max(0, deadline - core.now_ms)
    return None


def absorb(core: Core, request: InFlightRequest, error: str | None, hint: LeaderHint) -> bool:
    """Learn from a response's epoch, leader and error. True if the rest of the response counts."""
    to = request.to
    leader_id = None if core.leader is None else core.leader.id
    is_news = (
        hint.epoch != core.epoch
        or hint.leader_id != leader_id
        or len(hint.endpoints) > len(core.known_leader.endpoints)
    )
    if error is None and not is_news and not core.requests.backoffs:
        return True
    is_current = hint.epoch == core.epoch and hint.leader_id in (None, leader_id)
    if error == KafkaError.NOT_LEADER_OR_FOLLOWER and to == core.leader and is_current:
        note_refusal(core)
    if hint.epoch < core.epoch:
        core.known_leader.older_epoch = hint.epoch
        core.report(f"response of {to} ignored: epoch {hint.epoch}, own epoch {core.epoch}")
        core.back_off(request)
        return False
    before = core.context
    named = hint.leader_id
    is_own_id = named == core.local.id and hint.epoch == core.epoch
    if is_own_id and not _is_rival(core, hint.endpoints):
        # The sender takes this replica for the leader that it is not any more: no news, and no reason to
        # disregard a vote in the same response.
        named = None
    contradiction = adopt(core, hint.epoch, named, hint.endpoints)
    if contradiction is not None:
        core.report(f"response of {to} ignored: {contradiction}")
        core.back_off(request)
        return False
    if core.context != before:
        return False
    if error is not None:
        core.back_off(request)
        return False
    if core.requests.backoffs:
        core.requests.backoffs.pop((to, type(request.request)), None)
    return True


def is_foreign(core: Core, cluster_id: str | None) -> bool:
    """True if the message names another cluster; not to name one is allowed (KIP-595)."""
    return cluster_id is not None and core.cluster_id is not None and cluster_id != core.cluster_id


def on_leaderless_voter(core: Core, peer: ReplicaKey) -> None:
    """A voter knows no leader of this epoch either: once a majority says so, waiting is no use.

    But for a candidate of this epoch that has asked for votes: it may be about to lead. Source: KIP-642,
    bootstrapping procedure, step 6. Pre-vote makes it safe.
    """
    state = core.state
    if (
        not isinstance(state, Unattached)
        or state.leaderless_voters is None
        or core.voted is not None
    ):
        return
    if peer in state.leaderless_voters:
        return
    state.leaderless_voters.add(peer)
    agreeing = sum(key in state.leaderless_voters or core.is_local(key) for key in core.voters.keys)
    if quorum.is_won(agreeing, len(core.voters)):
        campaign_soon(core, state)
