"""Copying the log by Fetch, seen from both ends.

Sources: KIP-595 (Fetch request and response handling, log reconciliation, leader discovery), KIP-856
(progress is kept by id and storage id).
"""

from __future__ import annotations

from itertools import pairwise

from quorumd.raft import quorum
from quorumd.raft.bootstrap import note_storage_id
from quorumd.raft.campaign import on_pre_vote_unsupported, on_vote_failed
from quorumd.raft.check_quorum import note_alive, note_heard
from quorumd.raft.commitment import commit
from quorumd.raft.control import VotersRecord
from quorumd.raft.core import Core
from quorumd.raft.core_parts import InFlightRequest
from quorumd.raft.effects import (
    AppendFetched,
    BootstrapServer,
    Fetch,
    FetchSnapshot,
    Halt,
    Peer,
    Vote,
)
from quorumd.raft.errors import KafkaError
from quorumd.raft.events import (
    FetchedRecords,
    FetchRequestReceived,
    FetchResponseReceived,
    FetchSnapshotResponseReceived,
    RequestFailed,
)
from quorumd.raft.high_watermark import advance_high_watermark
from quorumd.raft.leader_discovery import absorb, is_foreign, on_leaderless_voter
from quorumd.raft.log_changes import refuse_to_drop, truncate
from quorumd.raft.parked_fetches import park_fetch, reply_to_fetch
from quorumd.raft.replica_progress import note_log_regression, note_progress
from quorumd.raft.role_changes import follow_voter_set, move_to
from quorumd.raft.roles import Follower, Leader, Observer, ParkedFetch, Prospective, Unattached
from quorumd.raft.snapshots import (
    abandon_download,
    is_downloading,
    offer,
    request_chunk,
    take_chunk,
)
from quorumd.raft.transitions import Trigger
from quorumd.raft.types import OffsetAndEpoch, ReplicaKey

# -- the leader's end


def on_fetch_requested(core: Core, event: FetchRequestReceived) -> None:
    """KIP-595, Fetch request handling.

    Errors: INCONSISTENT_CLUSTER_ID and UNKNOWN_SERVER_ERROR (top level), FENCED_LEADER_EPOCH,
    UNKNOWN_LEADER_EPOCH, NOT_LEADER_OR_FOLLOWER. Epoch and leader go with every one of them.
    """
    if is_foreign(core, event.cluster_id):
        core.report(f"fetch of {event.replica} refused: cluster {event.cluster_id}")
        return core.refuse_fetch(event.reply_to, None, KafkaError.INCONSISTENT_CLUSTER_ID)
    position = event.position
    if (
        (event.replica is not None and core.is_local(event.replica))
        or position.offset < 0
        or not 0 <= position.epoch <= max(event.epoch, 0)
        or event.max_wait_ms < 0
    ):
        core.report(f"fetch of {event.replica} refused: impossible values ({event})")
        return core.refuse_fetch(event.reply_to, None, KafkaError.UNKNOWN_SERVER_ERROR)
    note_alive(core, event.replica)
    if event.epoch < core.epoch:
        return core.refuse_fetch(event.reply_to, KafkaError.FENCED_LEADER_EPOCH)
    if event.epoch > core.epoch:
        return core.refuse_fetch(event.reply_to, KafkaError.UNKNOWN_LEADER_EPOCH)
    leader = core.state
    if not isinstance(leader, Leader):
        return core.refuse_fetch(event.reply_to, KafkaError.NOT_LEADER_OR_FOLLOWER)
    fetch = ParkedFetch(
        event.replica, position, core.now_ms + event.max_wait_ms, event.high_watermark
    )
    snapshot = core.log.snapshot_for(position)
    if snapshot is not None:
        if event.replica is not None:
            note_log_regression(core, leader, event.replica, position.offset)
            note_heard(core, leader, event.replica)
        return reply_to_fetch(core, event.reply_to, fetch, snapshot=snapshot)
    if not core.log.contains(position):
        return reply_to_fetch(core, event.reply_to, fetch, core.log.diverging_from(position))
    if event.replica is not None:
        note_progress(core, leader, event.replica, position.offset)
        if core.is_bootstrapping:
            note_storage_id(core, leader, event.replica, event.cluster_id)
        advance_high_watermark(core, leader)
    if position.offset < core.log.end_offset or event.max_wait_ms == 0:
        reply_to_fetch(core, event.reply_to, fetch)
    else:
        park_fetch(core, leader, event.reply_to, fetch)
    return None


# -- the follower's end


def on_fetch_response(core: Core, event: FetchResponseReceived) -> None:
    """KIP-595, Fetch response handling: a new leader, a place to truncate to, or records."""
    request = core.take(event.request_id)
    if request is None:
        return
    is_vacant = event.hint.leader_id is None and event.hint.epoch == core.epoch
    if event.error is not None and is_vacant and isinstance(request.to, ReplicaKey):
        on_leaderless_voter(core, request.to)
    if not absorb(core, request, event.error, event.hint):
        return
    if core.leader is None or event.hint.leader_id != core.leader_id:
        core.report(f"fetch answer of {request.to} ignored: it does not lead")
        core.back_off(request)
        return
    _note_contact(core)
    fetch = request.request
    assert isinstance(fetch, Fetch), "a fetch answers a Fetch request"
    if fetch.position != core.log.end:
        # The leader was asked twice, by its key and as a bootstrap server. What it said of a former
        # end of the log must not cut, extend or commit the present one.
        return
    snapshot, diverging = event.snapshot, event.diverging
    if snapshot is not None and core.log.contains(snapshot):
        # The leader's log begins there, and has not what follows here: to copy it would change nothing.
        snapshot, diverging = None, snapshot
    if snapshot is not None:
        offer(core, request, snapshot)
        return
    core.drop_download()
    if diverging is not None:
        _truncate(core, request, diverging)
        return
    core.problem = None
    if event.records is not None and not _append(core, request, event.records):
        return
    if event.high_watermark is not None:
        commit(core, min(core.log.end_offset, event.high_watermark))


def on_fetch_snapshot_response(core: Core, event: FetchSnapshotResponseReceived) -> None:
    """A chunk of a snapshot; it keeps the leader alive as records do."""
    if take_chunk(core, event):
        _note_contact(core)


def _note_contact(core: Core) -> None:
    """The leader answered: it is alive, whatever was thought before, unless it has resigned."""
    if core.leader_has_ended:
        return
    core.last_contact_ms = core.now_ms
    core.election_attempts = 0
    if core.leader is not None:
        core.unreachable.discard(core.leader.id)
    deadline = core.now_ms + core.config.fetch_timeout_ms
    if isinstance(core.state, Prospective):
        move_to(core, Trigger.LEADER_ANSWERED, Follower(deadline))
    elif isinstance(core.state, Follower):
        core.state.fetch_deadline_ms = deadline
        core.state.campaign_at_ms = None


def _truncate(core: Core, request: InFlightRequest, diverging: OffsetAndEpoch) -> None:
    """Cut what diverges from the leader's log, but nothing that is known to be committed."""
    end_offset = core.log.truncation_point(diverging)
    if end_offset < core.kept_offset:
        refuse_to_drop(core, request, f"asks to drop records from {end_offset} on")
    elif end_offset == core.log.end_offset:
        core.report(f"leader {core.leader} asks to truncate to the present end {end_offset}")
        core.back_off(request)
    else:
        truncate(core, end_offset)


def _append(core: Core, request: InFlightRequest, records: FetchedRecords) -> bool:
    """Append fetched batches. Returns False if they do not continue the log."""
    log = core.log
    if not _continues(core, records):
        core.report(
            f"records of {request.to} ignored: {records.base_offset} to {records.end_offset} of epochs "
            f"{records.epochs} do not continue a log that ends at {log.end_offset} in epoch "
            f"{log.last_epoch}"
        )
        core.back_off(request)
        return False
    log.append(records.end_offset, records.epochs)
    core.effects.append(
        AppendFetched(
            write=core.writes.next_of_log(core.log.end_offset),
            token=records.token,
            base_offset=records.base_offset,
            end_offset=records.end_offset,
        )
    )
    named = [(at, record) for at, record in records.control if isinstance(record, VotersRecord)]
    for offset, record in named:
        log.add_voters(offset, record)
    if named:
        follow_voter_set(core)
    return True


def _continues(core: Core, records: FetchedRecords) -> bool:
    """True if the runs of epochs ascend from the log's last one up to the leader's at most."""
    log, epochs = core.log, records.epochs
    if records.base_offset != log.end_offset or not epochs or epochs[0][1] != log.end_offset:
        return False
    if len(epochs) > 1 and any(
        first >= second
        for run, after in pairwise(epochs)
        for first, second in zip(run, after, strict=True)
    ):
        return False
    return (
        epochs[0][0] >= log.last_epoch
        and epochs[-1][0] <= core.epoch
        and epochs[-1][1] < records.end_offset
    )


def on_request_failed(core: Core, event: RequestFailed) -> None:
    """No usable answer: try again after a backoff."""
    request = core.take(event.request_id)
    if request is None:
        return
    core.back_off(request)
    if isinstance(request.request, FetchSnapshot) and event.error is not None:
        # How a Kafka leader says that it has no such snapshot, or does not lead.
        abandon_download(core, f"{request.to} refuses: {event.reason}")
    if event.error == KafkaError.UNSUPPORTED_VERSION and isinstance(request.request, Vote):
        on_pre_vote_unsupported(core, request.to)
    elif isinstance(request.request, Vote):
        on_vote_failed(core)
    if event.error == KafkaError.INCONSISTENT_CLUSTER_ID and isinstance(request.request, Fetch):
        _note_foreign(core, request.to, event)


def _note_foreign(core: Core, to: Peer, event: RequestFailed) -> None:
    """Another cluster lives where this node was told to look.

    Fatal only if a majority of the configured voters says so and names one leader, that leader itself
    among them, before this directory ever fetched: one packet must not end a node (KIP-595, cluster
    bootstrapping, step 1).
    """
    core.report(f"{to} belongs to another cluster than {core.cluster_id}")
    if not isinstance(to, ReplicaKey) or event.leader_id is None or core.log.end_offset > 0:
        return
    core.bootstrap.foreign_leader[to.id] = event.leader_id
    ids = core.config.configured_voters.ids
    naming = sum(core.bootstrap.foreign_leader.get(voter) == event.leader_id for voter in ids)
    if event.leader_id in core.bootstrap.foreign_leader and quorum.is_won(naming, len(ids)):
        core.effects.append(
            Halt(
                reason=f"the quorum led by node {event.leader_id} is another cluster than "
                f"{core.cluster_id}, which this directory was formatted for. Check quorum.voters, or "
                "format a new directory for that cluster."
            )
        )


# -- sending


def send_fetches(core: Core) -> None:
    """One fetch at the leader at any time; without a leader, one at every peer that may know it.

    A replica without a leader thus fetches from any known voter before its first election timeout.
    """
    leader = core.leader
    if leader is not None and isinstance(core.state, (Follower, Observer, Prospective)):
        _send_fetch(core, leader)
        if core.requests.backoffs:
            failures = (
                core.requests.backoffs.get((leader, kind)) for kind in (Fetch, FetchSnapshot)
            )
            if any(failed is not None and failed.attempts > 1 for failed in failures):
                _discover(core)
    elif isinstance(core.state, (Unattached, Observer)):
        _discover(core)


def _discover(core: Core) -> None:
    for key in core.other_voters():
        if core.leader is None or key.id != core.leader.id:
            _send_fetch(core, key)
    for index in range(core.config.bootstrap_servers):
        _send_fetch(core, BootstrapServer(index=index))


def _send_fetch(core: Core, to: Peer) -> None:
    """A fetch acknowledges the whole log, so it leaves after everything so far is on disk.

    While a snapshot is copied, and until it has been verified, it only keeps in touch.
    """
    if to == core.leader and is_downloading(core):
        request_chunk(core, to)
        return
    if core.can_send(to, Fetch):
        known = -1 if core.high_watermark is None else core.high_watermark
        fetch = Fetch(epoch=core.epoch, position=core.log.end, high_watermark=known)
        core.send(to, fetch, after=core.writes.last)


def retry_deadline_ms(core: Core) -> int | None:
    """When a peer that backs off may be asked again."""
    return min(
        (
            backoff.retry_at_ms
            for backoff in core.requests.backoffs.values()
            if backoff.retry_at_ms > core.now_ms
        ),
        default=None,
    )
