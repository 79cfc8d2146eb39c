"""A `RaftNode` as a value and back: its state, without what makes no difference to any rule.

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
from quorumd.raft.core_parts import Backoff, InFlightRequest, UnconfirmedEnd
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


def _fates(
    kept: str = "", derived: str = "", constant: str = "", time: str = "", unread: str = ""
) -> dict[str, str]:
    """Fate of each field of a part; names are separated by spaces.

    Time: only delays follow from the field, and every delay is explored. Unread: within the scope no rule
    reads it.
    """
    fates = {
        "kept": kept,
        "derived": derived,
        "constant": constant,
        "time": time,
        "unread": unread,
    }
    return {name: fate for fate, names in fates.items() for name in names.split()}


def _all_fields(part: type, fate: str) -> dict[str, str]:
    """For a part whose fields all share a fate: often one that no replica has within the scope."""
    return {field.name: fate for field in fields(part)}


FIELDS: Mapping[type, Mapping[str, str]] = {
    RaftNode: _fates(kept="core", constant="_handlers"),
    Core: _fates(
        kept="epoch leader voted recorded_offset state known_leader log committed_offset high_watermark "
        "writes requests",
        derived="context _electorate bootstrap",
        constant="config local draw is_shutting_down is_disk_full was_removed cluster_id connections effects "
        "download failed_download witness kafka_log reassignment",
        time="now_ms election_attempts registration",
        unread="problem",
    ),
    core_parts.KnownLeader: _fates(
        kept="last_contact_ms has_refused has_ended unconfirmed_end",
        derived="endpoints",
        time="expected_until_ms",
        unread="high_watermark unconfirmed_endpoints older_epoch",
    ),
    core_parts.PeerConnections: _all_fields(core_parts.PeerConnections, "constant"),
    core_parts.Writes: _fates(kept="state log", derived="last", time="state_since_ms vote_took_ms"),
    core_parts.Requests: _fates(kept="in_flight backoffs", derived="last_id"),
    core_parts.InFlightRequest: _all_fields(core_parts.InFlightRequest, "kept"),
    core_parts.Backoff: _all_fields(core_parts.Backoff, "kept"),
    core_parts.UnconfirmedEnd: _fates(kept="epoch leader_id", time="successors"),
    core_parts.SnapshotDownload: _all_fields(core_parts.SnapshotDownload, "unread"),
    core_parts.FailedDownload: _all_fields(core_parts.FailedDownload, "unread"),
    core_parts.BootstrapState: _fates(
        derived="first_voters_are_known",
        constant="known_uuids foreign_leader",
        unread="heard_cluster_id",
    ),
    core_parts.EndpointRegistration: _fates(
        time="next_ms",
        constant="registered_in overwritten_at overwritten_ms overwritten_times elsewhere",
    ),
    core_parts.WitnessState: _all_fields(core_parts.WitnessState, "constant"),
    core_parts.KafkaLogState: _all_fields(core_parts.KafkaLogState, "constant"),
    core_parts.ReassignmentState: _all_fields(core_parts.ReassignmentState, "constant"),
    LogView: _fates(
        kept="synced_end_offset",
        derived="end_offset epoch_starts",
        constant="start_offset voter_entries snapshots",
    ),
    roles.Unattached: _all_fields(roles.Unattached, "time"),
    roles.Follower: _fates(kept="campaign_at_ms", time="fetch_deadline_ms"),
    roles.Prospective: _fates(kept="votes", time="deadline_ms"),
    roles.Candidate: _fates(kept="vote_write votes is_lost", time="deadline_ms is_contested"),
    roles.FetchProgress: _fates(
        kept="end_offset",
        time="begin_due_ms",
        unread="last_fetch_ms last_caught_up_ms last_heard_ms leader_end_at_last_fetch",
    ),
    roles.ParkedFetch: _fates(
        kept="replica position high_watermark", constant="not_before_ms", time="due_ms"
    ),
    roles.Leader: _fates(
        kept="epoch_start_offset progress parked",
        constant="heard_from changes transfer registered_observers moves",
        time="check_quorum_deadline_ms elected_at_ms fetch_due_ms next_begin_ms",
    ),
    roles.VoterChange: _all_fields(roles.VoterChange, "unread"),
    roles.Transfer: _all_fields(roles.Transfer, "unread"),
    roles.Resigned: _fates(kept="unacknowledged", time="election_deadline_ms successors"),
    roles.Observer: {},
    Driver: _fates(
        kept="node _held",
        derived="_completed_write",
        constant="_records _timer _now_ms _saved_write _stepping _is_stopped _waiting _perform",
        time="_armed_ms",
    ),
}


class Traffic(NamedTuple):
    """Messages that are explored; others are replaced by something that allows more, or left out.

    Without `pre_votes` every replica that asks for them is granted them at once: it may campaign whenever
    its timer runs out; and a replica that asks a leader or candidate for confirmation gets it at once.
    Without `discovery` only leaders get a Fetch; one at any other replica has no response. Without
    `resignation` no leader gives up by itself, and EndQuorumEpoch, a hint, never arrives.
    """

    pre_votes: bool
    discovery: bool
    resignation: bool


LEAST_TRAFFIC = Traffic(pre_votes=False, discovery=False, resignation=False)


class Retry(NamedTuple):
    """A peer that is not asked at present; `is_over` once its time is up, until a response comes."""

    place: Place
    kind: int
    is_repeated: bool
    """Kept for fetches at the leader: after a second failure others are asked for the leader."""
    is_over: bool


class NodeValue(NamedTuple):
    """All that a replica's rules remember, as far as it makes a difference. Replicas are places."""

    role: roles.Role
    epoch: int
    leader: Place | None
    voted: Place | None
    has_contact: bool
    leader_has_refused: bool
    unconfirmed_end: Place | None
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

    Contact with the leader matters only to a replica that grants a pre-vote, or asks for one.
    """
    core = node.core
    _check_constants(core, labels, records)
    # A leader has a majority, and this vote in its epoch is for that leader, not given or lost for good.
    return NodeValue(
        role=core.role,
        epoch=core.epoch,
        leader=labels.place(core.leader),
        voted=None if core.leader is not None else labels.place(core.voted),
        has_contact=core.has_leader_contact and traffic.pre_votes,
        leader_has_refused=core.known_leader.has_refused
        and (traffic.pre_votes or traffic.resignation),
        unconfirmed_end=_freeze_unconfirmed_end(core, labels),
        leader_has_ended=core.known_leader.has_ended and traffic.pre_votes,
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


def _freeze_unconfirmed_end(core: Core, labels: Labels) -> Place | None:
    end = core.known_leader.unconfirmed_end
    return None if end is None or end.epoch != core.epoch else labels.index(end.leader_id)


def _check_constants(core: Core, labels: Labels, records: Records) -> None:
    """Parts that the value leaves out are as `thaw` will make them again."""
    log = core.log
    assert core.local.id == labels.me
    assert (log.start_offset, log.end_offset) == (0, len(records)), "the log is what was written"
    assert tuple(log.epoch_starts) == epoch_starts(records), "the log's epochs are those written"
    assert log.voter_entries[1:] == [VOTERS_ENTRY], "the voters do not change"
    assert core.cluster_id == CLUSTER
    assert core.download is None, "there are no snapshots"
    nothing = (
        core.bootstrap.known_uuids,
        core.connections.unreachable,
        core.connections.refused_ms,
        core.bootstrap.foreign_leader,
        log.snapshots,
        core.effects,
    )
    assert not any(nothing), "learnt only while a quorum begins, or from events outside the scope"
    assert not any((core.is_shutting_down, core.is_bootstrapping, core.is_disk_full))
    assert core.context == (core.epoch, core.leader)
    assert not core.has_leader_contact or core.role is roles.Role.FOLLOWER
    assert core.leader is None or core.known_leader.endpoints == core.endpoints_of(core.leader)


def _freeze_requests(core: Core, labels: Labels) -> tuple[tuple[Slot, RequestBody], ...]:
    rows = {
        request_slot(item, labels): body_of(item.request)
        for item in core.requests.in_flight.values()
    }
    assert len(rows) == len(core.requests.in_flight), "one request of each kind to each replica"
    return tuple(sorted(rows.items()))


def request_slot(item: InFlightRequest | fx.SendRequest, labels: Labels) -> Slot:
    """The slot of a request in flight."""
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
    known = core.known_leader
    if core.leader is not None:
        known.endpoints = core.endpoints_of(core.leader)
    known.last_contact_ms = NOW_MS if value.has_contact else None
    known.has_refused = value.leader_has_refused
    ended = labels.key(value.unconfirmed_end)
    known.unconfirmed_end = None if ended is None else UnconfirmedEnd(core.epoch, ended.id, ())
    known.has_ended = value.leader_has_ended
    core.writes.last = last_write
    core.writes.state = value.state_write
    core.writes.log = deque(value.log_writes)
    core.requests.last_id = FIRST_REQUEST_ID
    for slot, body in value.in_flight:
        place, kind = place_and_kind(slot)
        request, to = request_of(kind, body, labels.me), labels.key(place)
        assert to is not None
        core.requests.in_flight[slot + 1] = InFlightRequest(to, request)
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
