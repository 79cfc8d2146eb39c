"""A `RaftNode` as a value and back: what it remembers, without what no rule can tell apart.

`freeze` after `thaw` is the identity. Two nodes with the same value behave alike for ever within the
scope, so a value stands for all histories that lead to it: requests are numbered by their slot, writes
from the last one that is on disk, replicas by their place. Of a time only one thing is kept: whether it is
over. `FIELDS` says of every field of the core what becomes of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, NamedTuple

from quorumd.raft import core_parts, roles
from quorumd.raft import effects as fx
from quorumd.raft.config import StoredState
from quorumd.raft.core import Core
from quorumd.raft.core_parts import Backoff, EndClaim, InFlightRequest
from quorumd.raft.log_view import LogView
from quorumd.raft.node import RaftNode
from quorumd.raft.types import OffsetAndEpoch, ReplicaKey
from quorumd.server.partition.driver import Driver
from simulation.exhaustive.labels import CLUSTER, CONFIGS, VOTERS_ENTRY, Labels, Place
from simulation.exhaustive.messages import (
    FETCH,
    Records,
    RequestBody,
    Slot,
    body_of,
    epoch_starts,
    kind_of,
    place_and_kind,
    request_of,
    slot_of,
)

NOW_MS = 1_000_000
LATER_MS = NOW_MS + 100_000
"""When every timer that runs is due, unless the exploration lets it run out."""
FIRST_REQUEST_ID = 1000
STALE_REPLIES = 100
"""A `reply_to` from here on belongs to a request that its sender has given up."""

KEPT, DERIVED, CONSTANT, TIME, UNREAD = "kept", "derived", "constant", "time", "unread"
"""What becomes of a field. TIME: only delays follow from it, and every delay is explored. UNREAD: within
the scope no rule reads it."""


def _each_field(part: type, fate: str) -> dict[str, str]:
    """For a part that no replica has within the scope, or one whose fields all share a fate."""
    return {field.name: fate for field in fields(part)}


FIELDS: Mapping[type, Mapping[str, str]] = {
    RaftNode: {"core": KEPT, "_handlers": CONSTANT},
    Core: {
        "config": CONSTANT,
        "local": CONSTANT,
        "draw": CONSTANT,
        "now_ms": TIME,
        "leader_contact_ms": CONSTANT,
        "epoch": KEPT,
        "leader": KEPT,
        "voted": KEPT,
        "recorded_offset": KEPT,
        "state": KEPT,
        "context": DERIVED,
        "leader_endpoints": DERIVED,
        "last_contact_ms": KEPT,
        "leader_expected_until_ms": TIME,
        "leader_refused": KEPT,
        "end_claim": KEPT,
        "leader_has_ended": KEPT,
        "claimed_endpoints": UNREAD,
        "election_attempts": TIME,
        "is_shutting_down": CONSTANT,
        "was_removed": CONSTANT,
        "log": KEPT,
        "_electorate": DERIVED,
        "committed_offset": KEPT,
        "high_watermark": KEPT,
        "next_record_ms": CONSTANT,
        "leader_high_watermark": UNREAD,
        "cluster_id": CONSTANT,
        "problem": UNREAD,
        "unreachable": CONSTANT,
        "refused_ms": CONSTANT,
        "effects": CONSTANT,
        "writes": KEPT,
        "requests": KEPT,
        "download": CONSTANT,
        "failed_download": CONSTANT,
        "bootstrap": DERIVED,
        "registration": TIME,
        "witness": CONSTANT,
        "handed_over_at": CONSTANT,
    },
    core_parts.Writes: {"last": DERIVED, "state": KEPT, "log": KEPT},
    core_parts.Requests: {
        "last_id": DERIVED,
        "in_flight": KEPT,
        "busy": DERIVED,
        "backoffs": KEPT,
    },
    core_parts.InFlightRequest: {"to": KEPT, "request": KEPT},
    core_parts.Backoff: {"attempts": KEPT, "retry_at_ms": KEPT},
    core_parts.EndClaim: {"epoch": KEPT, "leader_id": KEPT, "successors": TIME},
    core_parts.SnapshotDownload: _each_field(core_parts.SnapshotDownload, UNREAD),
    core_parts.FailedDownload: _each_field(core_parts.FailedDownload, UNREAD),
    core_parts.BootstrapState: {
        "first_voters_are_known": DERIVED,
        "known_uuids": CONSTANT,
        "heard_cluster_id": UNREAD,
        "foreign_leader": CONSTANT,
    },
    core_parts.EndpointRegistration: {"next_ms": TIME, "registered_in": CONSTANT},
    core_parts.WitnessState: _each_field(core_parts.WitnessState, CONSTANT),
    LogView: {
        "start_offset": CONSTANT,
        "end_offset": DERIVED,
        "synced_end_offset": KEPT,
        "epoch_starts": DERIVED,
        "voter_entries": CONSTANT,
        "snapshots": CONSTANT,
    },
    roles.Unattached: {"election_deadline_ms": TIME, "leaderless_voters": TIME},
    roles.Follower: {"fetch_deadline_ms": TIME, "campaign_at_ms": KEPT},
    roles.Prospective: {"deadline_ms": TIME, "votes": KEPT},
    roles.Candidate: {
        "deadline_ms": TIME,
        "vote_write": KEPT,
        "votes": KEPT,
        "is_lost": KEPT,
        "is_contested": TIME,
    },
    roles.FetchProgress: {
        "end_offset": KEPT,
        "last_fetch_ms": UNREAD,
        "last_caught_up_ms": UNREAD,
        "last_heard_ms": UNREAD,
        "leader_end_at_last_fetch": UNREAD,
        "begin_due_ms": TIME,
    },
    roles.ParkedFetch: {
        "replica": KEPT,
        "position": KEPT,
        "due_ms": TIME,
        "high_watermark": KEPT,
        "not_before_ms": CONSTANT,
    },
    roles.Leader: {
        "epoch_start_offset": KEPT,
        "check_quorum_deadline_ms": TIME,
        "elected_at_ms": TIME,
        "progress": KEPT,
        "heard_from": CONSTANT,
        "parked": KEPT,
        "fetch_due_ms": TIME,
        "next_begin_ms": TIME,
        "changes": CONSTANT,
        "transfer": CONSTANT,
        "registered_observers": CONSTANT,
    },
    roles.VoterChange: _each_field(roles.VoterChange, UNREAD),
    roles.Transfer: _each_field(roles.Transfer, UNREAD),
    roles.Resigned: {"election_deadline_ms": TIME, "unacknowledged": KEPT, "successors": TIME},
    roles.Observer: {},
    Driver: {
        "node": KEPT,
        "_records": CONSTANT,
        "_timer": CONSTANT,
        "_now_ms": CONSTANT,
        "_completed_write": DERIVED,
        "_held": KEPT,
        "_armed_ms": TIME,
        "_stepping": CONSTANT,
        "_is_stopped": CONSTANT,
        "_waiting": CONSTANT,
        "_perform": CONSTANT,
    },
}


class Traffic(NamedTuple):
    """Which messages are explored, and which are replaced by something that allows more, or left out.

    Without `pre_votes` every replica that asks for them is granted them at once: it may campaign whenever
    its timer runs out; and who asks a leader or candidate whether it was right hears at once that it was.
    Without `discovery` only leaders get a Fetch; one at anybody else has no answer. Without `resignation`
    no leader gives up by itself, and EndQuorumEpoch, a hint, never arrives.
    """

    pre_votes: bool
    discovery: bool
    resignation: bool


LEAST_TRAFFIC = Traffic(pre_votes=False, discovery=False, resignation=False)


class Retry(NamedTuple):
    """A peer that is not asked at present; `is_over` once its time is up, until an answer comes."""

    place: Place
    kind: int
    is_repeated: bool
    """Kept for fetches at the leader: after a second failure others are asked for the leader."""
    is_over: bool


class NodeValue(NamedTuple):
    role: roles.Role
    epoch: int
    leader: Place | None
    voted: Place | None
    has_contact: bool
    leader_refused: bool
    end_claim: Place | None
    """Of the leader that this epoch's EndQuorumEpoch named."""
    leader_has_ended: bool
    committed_offset: int
    recorded_offset: int
    high_watermark: int | None
    role_detail: tuple[Any, ...]
    in_flight: tuple[tuple[Slot, RequestBody], ...]
    retries: tuple[Retry, ...]
    state_write: int
    log_writes: tuple[tuple[int, int], ...]
    synced_end_offset: int


def draw(bound: int) -> int:
    """The random number of every election: neither the smallest nor the largest."""
    return bound // 2


# -- freezing


def freeze(
    node: RaftNode, labels: Labels, records: Records, completed: int, traffic: Traffic
) -> NodeValue:
    """The node's value; `records` are its log in memory, writes up to `completed` are on disk.

    Contact with the leader matters only to who grants a pre-vote, or asks for one.
    """
    core = node.core
    _check_constants(core, labels, records)
    # Who leads an epoch has a majority, and this vote in it is for that one, for nobody or lost for good.
    return NodeValue(
        role=core.role,
        epoch=core.epoch,
        leader=labels.place(core.leader),
        voted=None if core.leader is not None else labels.place(core.voted),
        has_contact=core.has_leader_contact and traffic.pre_votes,
        leader_refused=core.leader_refused and (traffic.pre_votes or traffic.resignation),
        end_claim=_freeze_claim(core, labels),
        leader_has_ended=core.leader_has_ended and traffic.pre_votes,
        committed_offset=core.committed_offset,
        recorded_offset=core.recorded_offset,
        high_watermark=core.high_watermark,
        role_detail=_freeze_role(core, labels, completed, traffic),
        in_flight=_freeze_requests(core, labels),
        retries=_freeze_retries(core, labels, traffic),
        state_write=max(0, core.writes.state - completed),
        log_writes=tuple((write - completed, end) for write, end in core.writes.log),
        synced_end_offset=core.log.synced_end_offset,
    )


def _freeze_claim(core: Core, labels: Labels) -> Place | None:
    claim = core.end_claim
    return None if claim is None or claim.epoch != core.epoch else labels.index(claim.leader_id)


def _check_constants(core: Core, labels: Labels, records: Records) -> None:
    """What the value leaves out is as `thaw` will make it again."""
    log = core.log
    assert core.local.id == labels.me
    assert (log.start_offset, log.end_offset) == (0, len(records)), "the log is what was written"
    assert tuple(log.epoch_starts) == epoch_starts(records), "the log's epochs are those written"
    assert log.voter_entries[1:] == [VOTERS_ENTRY], "the voters do not change"
    assert core.cluster_id == CLUSTER
    assert core.download is None, "nobody takes snapshots"
    nothing = (
        core.bootstrap.known_uuids,
        core.unreachable,
        core.refused_ms,
        core.bootstrap.foreign_leader,
        log.snapshots,
        core.effects,
    )
    assert not any(nothing), "learnt only while a quorum begins, or from events outside the scope"
    assert not any((core.is_shutting_down, core.is_bootstrapping))
    assert core.context == (core.epoch, core.leader)
    assert not core.has_leader_contact or core.role is roles.Role.FOLLOWER
    assert core.leader is None or core.leader_endpoints == core.endpoints_of(core.leader)
    assert core.requests.busy == {
        (item.to, type(item.request)) for item in core.requests.in_flight.values()
    }


def _freeze_requests(core: Core, labels: Labels) -> tuple[tuple[Slot, RequestBody], ...]:
    rows = {
        request_slot(item, labels): body_of(item.request)
        for item in core.requests.in_flight.values()
    }
    assert len(rows) == len(core.requests.in_flight), "one request of each kind to each replica"
    return tuple(sorted(rows.items()))


def request_slot(item: InFlightRequest | fx.SendRequest, labels: Labels) -> Slot:
    assert isinstance(item.to, ReplicaKey)
    return slot_of(labels.place_of_id(item.to.id) or 0, kind_of(item.request))


def _freeze_retries(core: Core, labels: Labels, traffic: Traffic) -> tuple[Retry, ...]:
    """Left out is what can only delay a request that is under way, or one that no rule would send."""
    rows = []
    for (peer, request_type), backoff in core.requests.backoffs.items():
        assert isinstance(peer, ReplicaKey)
        kind = _TYPES.index(request_type)
        is_over = backoff.retry_at_ms <= core.now_ms
        repeats = backoff.attempts > 1 and (request_type, peer) == (fx.Fetch, core.leader)
        if request_type is fx.Vote:
            is_vain = not traffic.pre_votes and core.role is not roles.Role.CANDIDATE
        elif request_type is fx.Fetch:
            is_vain = is_over and not (repeats and traffic.discovery)
        else:
            is_vain = is_over or request_type is fx.BeginQuorumEpoch
        if not is_vain:
            rows.append(Retry(labels.index(peer.id), kind, repeats and traffic.discovery, is_over))
    return tuple(sorted(rows))


_TYPES: tuple[type[fx.Request], ...] = (
    fx.Vote,
    fx.Vote,
    fx.BeginQuorumEpoch,
    fx.EndQuorumEpoch,
    fx.Fetch,
)
"""By kind."""


def _freeze_role(core: Core, labels: Labels, completed: int, traffic: Traffic) -> tuple[Any, ...]:
    match core.state:
        case roles.Follower(campaign_at_ms=at):
            # Without contact a campaign may begin at any time: when exactly it was decided is no matter.
            has_contact = core.has_leader_contact and traffic.pre_votes
            return (at is not None or not has_contact,)
        case roles.Prospective(votes=votes):
            return (_freeze_votes(votes, labels),)
        case roles.Candidate(votes=votes, is_lost=is_lost, vote_write=write):
            return (_freeze_votes(votes, labels), is_lost, max(0, write - completed))
        case roles.Leader() as leader:
            assert not leader.heard_from, "one other voter is a majority"
            ends = {labels.index(key.id): row.end_offset for key, row in leader.progress.items()}
            parked = tuple(
                (
                    labels.place(fetch.replica),
                    reply < STALE_REPLIES,
                    *fetch.position,
                    fetch.high_watermark,
                )
                for reply, fetch in leader.parked.items()
            )
            return (leader.epoch_start_offset, tuple(sorted(ends.items())), parked)
        case roles.Resigned() if not traffic.resignation:
            return ((),)
        case roles.Resigned(unacknowledged=keys):
            return (tuple(sorted(labels.index(key.id) for key in keys)),)
    return ()


def _freeze_votes(votes: Mapping[ReplicaKey, bool], labels: Labels) -> tuple[Any, ...]:
    return tuple(sorted((labels.index(key.id), granted) for key, granted in votes.items()))


# -- thawing


def thaw(value: NodeValue, labels: Labels, records: Records, last_write: int) -> RaftNode:
    """A node of this value. Its clock shows `NOW_MS`, write 0 is on disk, `last_write` is pending."""
    log = LogView(
        0, len(records), value.synced_end_offset, list(epoch_starts(records)), [VOTERS_ENTRY]
    )
    stored = StoredState(
        epoch=value.epoch,
        leader=labels.key(value.leader),
        voted=labels.key(value.voted),
        applied_offset=value.committed_offset,
    )
    node = RaftNode(CONFIGS[labels.me], stored, log, draw)
    core = node.core
    core.now_ms = NOW_MS
    core.recorded_offset = value.recorded_offset
    core.high_watermark = value.high_watermark
    core.context = (core.epoch, core.leader)
    if core.leader is not None:
        core.leader_endpoints = core.endpoints_of(core.leader)
    core.last_contact_ms = NOW_MS if value.has_contact else None
    core.leader_refused = value.leader_refused
    claimed = labels.key(value.end_claim)
    core.end_claim = None if claimed is None else EndClaim(core.epoch, claimed.id, ())
    core.leader_has_ended = value.leader_has_ended
    core.writes.last = last_write
    core.writes.state = value.state_write
    core.writes.log = deque(value.log_writes)
    core.requests.last_id = FIRST_REQUEST_ID
    for slot, body in value.in_flight:
        place, kind = place_and_kind(slot)
        request, to = request_of(kind, body, labels.me), labels.key(place)
        assert to is not None
        core.requests.in_flight[slot + 1] = InFlightRequest(to, request)
        core.requests.busy.add((to, type(request)))
    for retry in value.retries:
        peer = labels.key(retry.place)
        assert peer is not None
        due = NOW_MS if retry.is_over else LATER_MS
        core.requests.backoffs[peer, _TYPES[retry.kind]] = Backoff(1 + retry.is_repeated, due)
    core.state = _thaw_role(value, labels)
    return node


def _thaw_role(value: NodeValue, labels: Labels) -> roles.State:
    detail = value.role_detail
    match value.role:
        case roles.Role.UNATTACHED:
            return roles.Unattached(LATER_MS)
        case roles.Role.FOLLOWER:
            return roles.Follower(LATER_MS, LATER_MS if detail[0] else None)
        case roles.Role.PROSPECTIVE:
            return roles.Prospective(LATER_MS, _thaw_votes(detail[0], labels))
        case roles.Role.CANDIDATE:
            votes, is_lost, vote_write = detail
            return roles.Candidate(LATER_MS, vote_write, _thaw_votes(votes, labels), is_lost)
        case roles.Role.LEADER:
            return _thaw_leader(detail, labels)
        case roles.Role.RESIGNED:
            keys = [labels.key(place) for place in detail[0]]
            return roles.Resigned(LATER_MS, {key for key in keys if key is not None}, ())
    raise AssertionError("a voter never observes")


def _thaw_leader(detail: tuple[Any, ...], labels: Labels) -> roles.Leader:
    epoch_start_offset, ends, parked = detail
    leader = roles.Leader(epoch_start_offset, LATER_MS, next_begin_ms=LATER_MS)
    for place, end_offset in ends:
        key = labels.key(place)
        assert key is not None
        leader.progress[key] = roles.FetchProgress(end_offset, begin_due_ms=LATER_MS)
    for at, (place, is_wanted, offset, epoch, known) in enumerate(parked):
        reply = slot_of(place, FETCH) + 1 if is_wanted else STALE_REPLIES + at
        position = OffsetAndEpoch(offset, epoch)
        leader.parked[reply] = roles.ParkedFetch(labels.key(place), position, LATER_MS, known)
    if parked:
        leader.fetch_due_ms = LATER_MS
    return leader


def _thaw_votes(votes: tuple[Any, ...], labels: Labels) -> dict[ReplicaKey, bool]:
    return {key: granted for place, granted in votes if (key := labels.key(place)) is not None}
