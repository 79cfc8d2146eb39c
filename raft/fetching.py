"""A follower or observer fetches from its leader, or from all peers until it finds one.

Sources: KIP-595 (Fetch response handling, log reconciliation, leader discovery).
"""

from __future__ import annotations

from itertools import pairwise

from quorumd.raft.commitment import commit
from quorumd.raft.control import VotersRecord
from quorumd.raft.core import Core
from quorumd.raft.core_parts import InFlightRequest
from quorumd.raft.effects import AppendFetched, BootstrapServer, Fetch, FetchSnapshot, Peer, Probe
from quorumd.raft.events import (
    DiskSpaceChanged,
    FetchedRecords,
    FetchResponseReceived,
    FetchSnapshotResponseReceived,
)
from quorumd.raft.leader_discovery import absorb, on_leaderless_voter
from quorumd.raft.role_changes import follow_voter_set, move_to
from quorumd.raft.roles import Follower, Observer, Prospective, Unattached
from quorumd.raft.snapshot_download import accept_offer, is_downloading, request_chunk, take_chunk
from quorumd.raft.transitions import Trigger
from quorumd.raft.truncation import refuse_to_drop, truncate
from quorumd.raft.types import OffsetAndEpoch, ReplicaKey


def send_fetches(core: Core) -> None:
    """One fetch at the leader at any time; without a leader, one at every peer that may know it.

    A replica without a leader thus fetches from any known voter before its first election timeout.
    """
    leader = core.leader
    if leader is not None:
        _send_fetch(core, leader)
        if core.is_disk_full:
            _probe_if_due(core, leader)
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
        if core.leader is None or not key.matches(core.leader):
            _send_fetch(core, key)
    for index in range(core.config.bootstrap_servers):
        _send_fetch(core, BootstrapServer(index=index))


def _send_fetch(core: Core, to: Peer) -> None:
    """A fetch acknowledges the whole log, so it leaves after everything so far is on disk.

    While a snapshot is copied, and until it has been verified, it only keeps in touch.
    """
    if core.download is not None and to == core.leader and is_downloading(core):
        request_chunk(core, to)
    elif core.can_send(to, Fetch):
        known = -1 if core.high_watermark is None else core.high_watermark
        fetch = Fetch(core.epoch, core.log.end, known)
        core.send(to, fetch, after=core.writes.last)


def on_disk_space_changed(core: Core, event: DiskSpaceChanged) -> None:
    """A follower whose records find no space cannot fetch until they do."""
    core.is_disk_full = event.is_full


def probe_due_ms(core: Core) -> int | None:
    """When a replica whose disk is full probes its leader; None: it need not.

    A follower whose records find no space would hold a leader for dead that lacks nothing.
    """
    state = core.state
    if not core.writes.log or not isinstance(state, Follower):
        return None
    assert core.leader is not None, "it follows one"
    if not core.can_send(core.leader, Probe):
        return None
    return state.fetch_deadline_ms - core.config.fetch_timeout_ms // 2


def _probe_if_due(core: Core, leader: ReplicaKey) -> None:
    due_ms = probe_due_ms(core)
    if due_ms is None or core.now_ms < due_ms:
        return
    end = core.log.prefix_end(core.log.synced_end_offset)
    known = -1 if core.high_watermark is None else core.high_watermark
    core.send(leader, Probe(core.epoch, end, known), after=core.writes.state)


def on_fetch_response(core: Core, event: FetchResponseReceived) -> None:
    """KIP-595, Fetch response handling: a new leader, a place to truncate to, or records."""
    request = core.take(event.request_id)
    if request is None:
        return
    is_leaderless = event.hint.leader_id is None and event.hint.epoch == core.epoch
    if event.error is not None and is_leaderless and isinstance(request.to, ReplicaKey):
        on_leaderless_voter(core, request.to)
    if not absorb(core, request, event.error, event.hint):
        return
    leader = core.leader
    if leader is None or event.hint.leader_id != leader.id:
        core.report(f"fetch response of {request.to} ignored: it does not lead")
        core.back_off(request)
        return
    _note_contact(core)
    fetch = request.request
    assert isinstance(fetch, Fetch), "a Fetch response belongs to a Fetch request"
    if isinstance(fetch, Probe):
        return
    if not core.log.ends_at(fetch.position):
        # The leader got two fetches, by its key and as a bootstrap server. A response about a former end of
        # the log must not cut, extend or commit the present one.
        return
    snapshot, diverging = event.snapshot, event.diverging
    if snapshot is not None and core.log.contains(snapshot.position):
        # The leader's log begins there, and has not what follows here: to copy it would change nothing.
        diverging = snapshot.position
        snapshot = None
    if snapshot is not None:
        accept_offer(core, request, snapshot)
        return
    if core.download is not None:
        core.drop_download()
    if diverging is not None:
        _truncate(core, request, diverging)
        return
    core.problem = None
    if event.records is not None and not _append(core, request, event.records):
        return
    if event.high_watermark is not None:
        core.known_leader.high_watermark = event.high_watermark
        commit(core, min(core.log.end_offset, event.high_watermark))


def on_fetch_snapshot_response(core: Core, event: FetchSnapshotResponseReceived) -> None:
    """A chunk of a snapshot; it keeps the leader alive as records do."""
    if take_chunk(core, event):
        _note_contact(core)


def _note_contact(core: Core) -> None:
    """The leader responded: it is alive and leads, unless it has said that it has resigned.

    That its process seemed to be gone is not enough: it may have moved, and be refused at its old address.
    """
    known, unreachable = core.known_leader, core.connections.unreachable
    if known.has_ended and known.has_refused:
        return
    known.has_ended = False
    known.last_contact_ms = core.now_ms
    known.expected_until_ms = 0
    known.has_refused = False
    core.election_attempts = 0
    if unreachable and core.leader is not None:
        unreachable.discard(core.leader.id)
    deadline = core.now_ms + core.config.fetch_timeout_ms
    if isinstance(core.state, Follower):
        core.state.fetch_deadline_ms = deadline
        core.state.campaign_at_ms = None
    elif isinstance(core.state, Prospective):
        move_to(core, Trigger.LEADER_RESPONDED, Follower(deadline))


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
            core.writes.next_of_log(records.end_offset),
            records.token,
            records.base_offset,
            records.end_offset,
        )
    )
    if records.control:
        _take_voters(core, records)
    return True


def _take_voters(core: Core, records: FetchedRecords) -> None:
    """The voter sets among fetched records count from now on, committed or not."""
    named = [(at, record) for at, record in records.control if isinstance(record, VotersRecord)]
    for offset, record in named:
        core.log.add_voters(offset, record)
    if named:
        follow_voter_set(core)


def _continues(core: Core, records: FetchedRecords) -> bool:
    """True if the runs of epochs ascend from the log's last one up to the leader's at most."""
    log, epochs = core.log, records.epochs
    end_offset = log.end_offset
    if records.base_offset != end_offset or not epochs or epochs[0][1] != end_offset:
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
