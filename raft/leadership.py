"""What the one leader of an epoch does: append, count, announce itself, and give up.

Sources: KIP-595 (LeaderChangeRecord, extra condition on commitment, BeginQuorumEpoch, leader progress
timeout, EndQuorumEpoch), KIP-856 (bootstrapping, high watermark).
"""

from __future__ import annotations

from quorumd.raft import quorum
from quorumd.raft.config import OBSERVER_FORGOTTEN_MS
from quorumd.raft.control import (
    KRaftVersionRecord,
    LeaderChangeRecord,
    RaftControlRecord,
    VotersRecord,
)
from quorumd.raft.core import Core
from quorumd.raft.effects import (
    AppendClient,
    AppendControl,
    BeginQuorumEpoch,
    EndQuorumEpoch,
    FetchReply,
)
from quorumd.raft.errors import KafkaError, Refusal
from quorumd.raft.events import AppendRequested, ResignationRequested
from quorumd.raft.roles import Candidate, Leader, ParkedFetch, Progress, Prospective, Resigned
from quorumd.raft.transitions import Trigger
from quorumd.raft.types import OffsetAndEpoch, ReplicaKey, SnapshotId, Voter, VoterSet

SPREAD_DELAY_MS = 5
"""How long voters that a commit does not need, and observers, wait for records that exist."""
ANNOUNCE_DELAY_MS = 5
"""How long a new high watermark waits for records to travel with, before it travels alone."""

MAX_OBSERVERS = 1000
"""More replicas than these are served, but not kept account of."""


def become_leader(core: Core, granting: tuple[ReplicaKey, ...]) -> None:
    """Take office: leadership on disk, then LeaderChangeRecord as the first record of the epoch.

    The high watermark is unknown until a record of this epoch is on a majority (KIP-595).
    """
    core.leader, core.leader_endpoints = core.local, core.config.endpoints
    core.high_watermark = None
    core.election_attempts = 0
    core.drop_download()
    core.persist()
    leader = Leader(
        epoch_start_offset=core.log.end_offset,
        check_quorum_deadline_ms=core.now_ms + check_quorum_ms(core),
        elected_at_ms=core.now_ms,
    )
    core.move_to(Trigger.VOTES_WON, leader)
    change = LeaderChangeRecord(core.local, core.voters.keys, granting)
    append_control(core, leader, (change,))
    write_first_voters(core)


def check_quorum_ms(core: Core) -> int:
    """1.5 x the fetch timeout: a follower that missed one fetch has time to make it good."""
    return core.config.fetch_timeout_ms * 3 // 2


# -- appending


def append_control(core: Core, leader: Leader, records: tuple[RaftControlRecord, ...]) -> None:
    """Append control records as one batch; a voter set counts from now on, committed or not."""
    base = core.log.end_offset
    core.log.append(base + len(records), ((core.epoch, base),))
    for at, record in enumerate(records):
        if isinstance(record, VotersRecord):
            core.log.add_voters(base + at, record)
            core.announce_voters()
            leader.heard_from.intersection_update(core.other_voters())
            leader.next_begin_ms = core.now_ms
    core.effects.append(
        AppendControl(
            write=core.next_log_write(), base_offset=base, epoch=core.epoch, records=records
        )
    )
    wake_fetches(core, leader)


def append_refusal(core: Core) -> Refusal | None:
    """Why this replica takes no clients' batches now; None if it does."""
    leader = core.state
    if not isinstance(leader, Leader) or core.is_shutting_down:
        return Refusal(KafkaError.NOT_LEADER_OR_FOLLOWER, "this replica does not lead")
    if leader.transfer is not None:
        return Refusal(KafkaError.NOT_LEADER_OR_FOLLOWER, "leadership is being handed over")
    if core.config.is_witness and core.other_voters():
        return Refusal(
            KafkaError.NOT_LEADER_OR_FOLLOWER, "a witness leads only until another voter can"
        )
    if core.is_bootstrapping:
        return Refusal(KafkaError.NOT_ENOUGH_REPLICAS, bootstrap_obstacle(core))
    return None


def on_append_requested(core: Core, event: AppendRequested) -> None:
    """Clients' batches get the next offsets and the present epoch.

    They come only where `append_refusal` is None: anything else is a broken invariant.
    """
    assert append_refusal(core) is None, "batches of clients were taken that must be refused"
    leader = core.state
    assert isinstance(leader, Leader), "nobody else appends"
    base = core.log.end_offset
    core.log.append(base + event.record_count, ((core.epoch, base),))
    core.effects.append(
        AppendClient(
            write=core.next_log_write(), base_offset=base, epoch=core.epoch, token=event.token
        )
    )
    wake_fetches(core, leader)


# -- followers' fetches


def wake_fetches(core: Core, leader: Leader) -> None:
    """Answer parked fetches: there are records beyond their position now.

    As many voters as a commit needs get the records at once, those that came back last first: they are
    the fast ones. The rest get them a moment later, or with the next records, which thus find a voter
    that is free. Before the first voter set is committed everybody is needed.
    """
    voters = core.electorate.keys
    missing = core.electorate.majority - core.electorate.has_local
    if core.is_bootstrapping:
        missing = len(leader.parked)
    for reply_to, fetch in reversed(list(leader.parked.items())):
        if missing <= 0:
            break
        if core.is_bootstrapping or fetch.replica in voters:
            missing -= 1
            del leader.parked[reply_to]
            answer_fetch(core, reply_to, fetch)
    for fetch in leader.parked.values():
        fetch.due_ms = min(fetch.due_ms, core.now_ms + SPREAD_DELAY_MS)
    _note_earliest_due(leader)


def _note_earliest_due(leader: Leader) -> None:
    leader.fetch_due_ms = min((fetch.due_ms for fetch in leader.parked.values()), default=None)


def answer_fetch(
    core: Core,
    reply_to: int,
    fetch: ParkedFetch,
    diverging: OffsetAndEpoch | None = None,
    snapshot: SnapshotId | None = None,
) -> None:
    """Everything from the fetch's position up to the log end, committed or not.

    If the logs diverge: no record, but where the fetcher's last epoch, or the one before it, ends here
    (KIP-595, Fetch request handling, step 3); or the snapshot to fetch first (KIP-630).
    """
    if fetch.position.offset < core.log.start_offset:
        snapshot = core.log.snapshot
    goes_on = diverging is None and snapshot is None
    more = goes_on and fetch.position.offset < core.log.end_offset
    core.answer(
        reply_to,
        FetchReply(
            epoch=core.epoch,
            leader_id=core.local.id,
            leader_endpoints=core.config.endpoints,
            high_watermark=core.high_watermark,
            log_start_offset=core.log.start_offset,
            diverging=diverging,
            snapshot=snapshot,
            read_from=fetch.position.offset if more else None,
            read_to=core.log.end_offset,
        ),
    )


def park_fetch(core: Core, leader: Leader, reply_to: int, fetch: ParkedFetch) -> None:
    """Keep a fetch until there is something to say; a newer fetch of a replica ends its older one."""
    if fetch.replica is not None:
        for older, parked in list(leader.parked.items()):
            if parked.replica == fetch.replica:
                del leader.parked[older]
                answer_fetch(core, older, parked)
    leader.parked[reply_to] = fetch
    _hasten_if_behind(core, fetch)
    _note_earliest_due(leader)


def _hasten_if_behind(core: Core, fetch: ParkedFetch) -> None:
    """A replica that lacks the high watermark gets it soon, if no records take it along before."""
    known = fetch.high_watermark
    if core.high_watermark is not None and known is not None and known < core.high_watermark:
        fetch.due_ms = min(fetch.due_ms, core.now_ms + ANNOUNCE_DELAY_MS)


def announce_high_watermark(core: Core, leader: Leader) -> None:
    """The high watermark has moved: parked fetches that do not know it are answered soon."""
    for fetch in leader.parked.values():
        _hasten_if_behind(core, fetch)
    _note_earliest_due(leader)


def expire_fetches(core: Core, leader: Leader) -> None:
    """Answer parked fetches whose time is up, or that have lacked something for long enough."""
    if leader.fetch_due_ms is None or core.now_ms < leader.fetch_due_ms:
        return
    for reply_to, fetch in list(leader.parked.items()):
        if core.now_ms >= fetch.due_ms:
            del leader.parked[reply_to]
            answer_fetch(core, reply_to, fetch)
    _note_earliest_due(leader)


# -- what is known of other replicas


def note_progress(core: Core, leader: Leader, replica: ReplicaKey, end_offset: int) -> None:
    """A fetch acknowledges everything before its offset; caught up means: up to the log end."""
    now, end = core.now_ms, core.log.end_offset
    progress = leader.progress.get(replica) or _new_progress(core, leader, replica)
    if end_offset >= end:
        progress.last_caught_up_ms = now
    elif end_offset >= progress.leader_end_at_last_fetch:
        progress.last_caught_up_ms = progress.last_fetch_ms
    note_going_back(core, leader, replica, end_offset)
    progress.end_offset = end_offset
    progress.last_fetch_ms = now
    progress.leader_end_at_last_fetch = end
    voter = note_heard(core, leader, replica)
    if voter is not None:
        if voter is not replica:
            progress = leader.progress.setdefault(voter, progress)
        progress.begin_due_ms = now + core.config.fetch_timeout_ms // 2


def note_alive(core: Core, replica: ReplicaKey | None) -> None:
    """Whatever this replica is answered: its disk is not lost."""
    leader = core.state
    if isinstance(leader, Leader) and replica is not None:
        known = leader.progress.get(replica)
        if known is not None:
            known.last_heard_ms = core.now_ms


def note_heard(core: Core, leader: Leader, replica: ReplicaKey) -> ReplicaKey | None:
    """A replica is there: enough voters that are keep the leader in office (KIP-595).

    Returns the voter that it is, if any.
    """
    voter = _voter_of(core, replica)
    if voter is None:
        return None
    note_alive(core, voter)
    leader.heard_from.add(voter)
    electorate = core.electorate
    if len(leader.heard_from) + electorate.has_local >= electorate.majority:
        leader.heard_from.clear()
        leader.check_quorum_deadline_ms = core.now_ms + check_quorum_ms(core)
    return voter


def note_going_back(core: Core, leader: Leader, replica: ReplicaKey, end_offset: int) -> None:
    """Say so if a replica has less than it had."""
    progress = leader.progress.get(replica)
    if progress is not None and end_offset < progress.end_offset:
        core.report(went_back(replica, progress.end_offset, end_offset))


def went_back(replica: ReplicaKey, acknowledged: int, end_offset: int) -> str:
    """What to say of a replica that has less than it had on disk earlier in this epoch."""
    return (
        f"replica {replica} fetches from offset {end_offset} after it acknowledged everything below "
        f"{acknowledged}: unless that was an old request, its directory is an older copy, or a copy of "
        "it runs elsewhere. Stop it, and format a new directory for it."
    )


def _voter_of(core: Core, replica: ReplicaKey) -> ReplicaKey | None:
    """The voter that a fetch counts for: the same key, or an id whose storage id nobody knows yet.

    A replica that does not say its storage id counts for no voter that has one.
    """
    keys = core.electorate.keys
    if replica in keys:
        return replica
    by_id = ReplicaKey(replica.id)
    return by_id if by_id in keys else None


def _new_progress(core: Core, leader: Leader, replica: ReplicaKey) -> Progress:
    """Start to keep account of a replica; observers that fell silent make room."""
    progress, voters = Progress(last_heard_ms=core.now_ms), core.electorate.keys
    if replica not in voters and len(leader.progress) >= MAX_OBSERVERS:
        return progress
    for key, known in list(leader.progress.items()):
        fetched = known.last_fetch_ms
        is_silent = fetched is not None and fetched + OBSERVER_FORGOTTEN_MS < core.now_ms
        if is_silent and key not in voters:
            del leader.progress[key]
    leader.progress[replica] = progress
    return progress


# -- commitment


def progress_of(leader: Leader, voter: ReplicaKey) -> Progress | None:
    """What is known of a voter; one known by id alone is whoever fetched last under that id."""
    exact = leader.progress.get(voter)
    if voter.uuid is not None:
        return exact
    best = exact
    for key, progress in leader.progress.items():
        if key.id == voter.id and (
            best is None or (progress.last_fetch_ms or -1) > (best.last_fetch_ms or -1)
        ):
            best = progress
    return best


def _end_offset_of(leader: Leader, voter: ReplicaKey) -> int:
    known = leader.progress.get(voter)
    return -1 if known is None else known.end_offset


def synced_end_offset(core: Core, leader: Leader, voter: ReplicaKey) -> int:
    """The exclusive end of what this voter has on disk, -1 if that is not known."""
    if core.is_local(voter):
        return core.log.synced_end_offset
    progress = progress_of(leader, voter)
    return -1 if progress is None else progress.end_offset


def advance_high_watermark(core: Core, leader: Leader) -> None:
    """Commit what a majority has synced, once that includes a record of this epoch.

    While the first voter set of the log is not committed, every voter must have synced it before
    anything is committed. Sources: KIP-595, Fetch request handling, step 4; KIP-856, bootstrapping.
    """
    if core.log.voters_offset < 0:
        return
    electorate = core.electorate
    offsets = [_end_offset_of(leader, key) for key in electorate.others]
    if electorate.has_local:
        offsets.append(core.log.synced_end_offset)
    if core.is_bootstrapping and min(offsets) <= core.log.voters_offset:
        return
    offset = quorum.majority_end_offset(offsets)
    if offset <= leader.epoch_start_offset or offset <= (core.high_watermark or 0):
        return
    core.commit(offset)
    announce_high_watermark(core, leader)


# -- the first voter set


def bootstrap_obstacle(core: Core) -> str:
    """Why clients cannot write yet, in words."""
    missing = [
        str(key.id)
        for key in core.voters.keys
        if key.uuid is None and not core.is_local(key) and key.id not in core.known_uuids
    ]
    if missing:
        return f"this quorum is new and waits for voter {', '.join(missing)} to be seen once"
    return "this quorum is new and waits until every voter has stored the first voter set"


def write_first_voters(core: Core) -> None:
    """Name the voters in the log once each configured id has shown its storage id.

    Until that record is committed it may be replaced when an id turns up under another storage id:
    nothing can have been written under the old one. Source: KIP-856, bootstrapping.
    """
    leader = core.state
    configured = core.config.initial_voters
    if not isinstance(leader, Leader) or not core.is_bootstrapping or not len(configured):
        return
    first = core.log.voters_offset < 0
    if not first and all(
        synced_end_offset(core, leader, key) > core.log.voters_offset for key in core.voters.keys
    ):
        return
    named = [voter.key for voter in configured if voter.key.uuid is not None]
    keys = {key.id: key for key in (*core.known_uuids.values(), *named, core.local)}
    if any(voter.key.id not in keys for voter in configured):
        return
    voters = VoterSet.of(
        Voter(
            keys[voter.key.id],
            core.config.endpoints if voter.key.id == core.local.id else voter.endpoints,
        )
        for voter in configured
    )
    if not first and (voters.keys == core.voters.keys or voters.ids != core.voters.ids):
        return
    # A set that is replaced may be committed without this leader knowing it: its cluster id stays.
    logged = core.electorate.entry.record.cluster_id
    cluster_id = core.cluster_id or logged or core.heard_cluster_id or core.config.new_cluster_id
    record = VotersRecord(voters, cluster_id or None)
    append_control(core, leader, (KRaftVersionRecord(1), record) if first else (record,))


# -- announcing, and giving up


def announce_epoch(core: Core, leader: Leader) -> None:
    """BeginQuorumEpoch to every voter that has not fetched lately, the first at once (KIP-595)."""
    now = core.now_ms
    if now < leader.next_begin_ms:
        return
    interval_ms = core.config.fetch_timeout_ms // 2
    leader.next_begin_ms = now + interval_ms
    for key in core.other_voters():
        progress = leader.progress.setdefault(key, Progress(begin_due_ms=now))
        if now >= progress.begin_due_ms:
            progress.begin_due_ms = now + interval_ms
            if core.can_send(key, BeginQuorumEpoch):
                core.send(key, BeginQuorumEpoch(epoch=core.epoch), after=core.state_write)
        leader.next_begin_ms = min(leader.next_begin_ms, progress.begin_due_ms)


def expire_leadership(core: Core, leader: Leader) -> None:
    """Step down when a majority has been silent for too long (KIP-595, leader progress timeout)."""
    if core.now_ms >= leader.check_quorum_deadline_ms:
        if core.other_voters():
            resign(core, leader, Trigger.QUORUM_LOST)
        else:
            leader.check_quorum_deadline_ms = core.now_ms + check_quorum_ms(core)


def resign(core: Core, leader: Leader, trigger: Trigger, first: ReplicaKey | None = None) -> None:
    """Stop leading and tell the voters, `first` and the most up-to-date ones first in line."""
    others = core.other_voters()
    successors = quorum.preferred_successors(
        (key, synced_end_offset(core, leader, key)) for key in others
    )
    if first is not None:
        successors = (first, *(key for key in successors if key != first))
    deadline = core.now_ms + core.random_election_timeout_ms()
    core.move_to(trigger, Resigned(deadline, set(others), successors))


def on_resignation_requested(core: Core, event: ResignationRequested) -> None:
    """A leader hands over; a candidate that shuts down tells the others not to wait for it."""
    core.is_shutting_down = core.is_shutting_down or event.shutting_down
    state = core.state
    if isinstance(state, Leader) and core.other_voters():
        core.report(f"leadership is given away: {event.reason}")
        resign(core, state, Trigger.RESIGNATION)
    elif isinstance(state, (Candidate, Prospective)) and event.shutting_down:
        end = EndQuorumEpoch(epoch=core.epoch, leader_id=None, successors=())
        for key in core.other_voters():
            core.send(key, end, after=core.state_write)


def announce_end(core: Core, state: Resigned) -> None:
    """EndQuorumEpoch to every voter that has not acknowledged it."""
    end = EndQuorumEpoch(epoch=core.epoch, leader_id=core.local.id, successors=state.successors)
    for key in sorted(state.unacknowledged, key=lambda key: key.sort_key()):
        if core.can_send(key, EndQuorumEpoch):
            core.send(key, end, after=core.state_write)


def leader_deadline_ms(leader: Leader) -> int:
    """When the leader has something to do by itself."""
    deadline = min(leader.check_quorum_deadline_ms, leader.next_begin_ms)
    if leader.fetch_due_ms is not None and leader.fetch_due_ms < deadline:
        return leader.fetch_due_ms
    return deadline
