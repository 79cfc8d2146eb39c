"""Copying a snapshot by FetchSnapshot, seen from both ends; taking and cleaning.

A replica that has less than its leader's log starts with is offered the newest snapshot. It copies it
chunk by chunk, has it verified, and only then gives up its own log for it. Sources: KIP-595 (log
compaction and snapshots), KIP-630, KIP-856 (snapshots).
"""

from __future__ import annotations

from quorumd.raft.check_quorum import note_alive, note_heard
from quorumd.raft.core import Core
from quorumd.raft.core_parts import FailedDownload, InFlightRequest, SnapshotDownload
from quorumd.raft.effects import (
    DeleteLogPrefix,
    Fetch,
    FetchSnapshot,
    SnapshotReply,
    StoreSnapshotChunk,
    VerifySnapshot,
)
from quorumd.raft.errors import KafkaError
from quorumd.raft.events import (
    ChunkNotStored,
    FetchSnapshotRequestReceived,
    FetchSnapshotResponseReceived,
    LogDeletionRequested,
    SnapshotChunk,
    SnapshotTaken,
    SnapshotVerified,
)
from quorumd.raft.leader_discovery import absorb, is_foreign
from quorumd.raft.log_changes import refuse_to_drop, reset_log
from quorumd.raft.roles import Leader
from quorumd.raft.types import ReplicaKey, SnapshotId

CHUNK_BYTES = 2**20
"""What is asked for at a time: Kafka's own figure."""

DOWNLOAD_RETRY_MS = 1_000
DOWNLOAD_RETRY_MAX_MS = 10_000
"""How long a snapshot that was copied in vain is not copied again: at first, and at most."""

# -- the leader's end


def on_fetch_snapshot_requested(core: Core, event: FetchSnapshotRequestReceived) -> None:
    """FetchSnapshot request handling.

    Errors: INCONSISTENT_CLUSTER_ID and UNKNOWN_SERVER_ERROR (top level), FENCED_LEADER_EPOCH,
    UNKNOWN_LEADER_EPOCH, NOT_LEADER_OR_FOLLOWER, SNAPSHOT_NOT_FOUND. Whether the position is inside
    the file is not checked here. Source: KIP-630, FetchSnapshot request handling.
    """
    if is_foreign(core, event.cluster_id):
        core.report(f"snapshot for {event.replica} refused: cluster {event.cluster_id}")
        return _reply(core, event, top_level=KafkaError.INCONSISTENT_CLUSTER_ID)
    if event.replica is not None and core.is_local(event.replica):
        core.report(f"snapshot for {event.replica} refused: that is this replica")
        return _reply(core, event, top_level=KafkaError.UNKNOWN_SERVER_ERROR)
    note_alive(core, event.replica)
    if event.epoch < core.epoch:
        return _reply(core, event, KafkaError.FENCED_LEADER_EPOCH)
    if event.epoch > core.epoch:
        return _reply(core, event, KafkaError.UNKNOWN_LEADER_EPOCH)
    if not isinstance(core.state, Leader):
        return _reply(core, event, KafkaError.NOT_LEADER_OR_FOLLOWER)
    if event.snapshot not in core.log.snapshots:
        return _reply(core, event, KafkaError.SNAPSHOT_NOT_FOUND)
    if event.replica is not None:
        note_heard(core, core.state, event.replica)
    return _reply(core, event)


def _reply(
    core: Core,
    event: FetchSnapshotRequestReceived,
    error: KafkaError | None = None,
    top_level: KafkaError | None = None,
) -> None:
    core.reply(
        event.reply_to,
        SnapshotReply(
            epoch=core.epoch,
            leader_id=core.leader_id,
            leader_endpoints=core.leader_endpoints_for_replies(),
            error=error,
            top_level_error=top_level,
            snapshot=event.snapshot if error is None and top_level is None else None,
        ),
    )


# -- the follower's end


def offer(core: Core, request: InFlightRequest, snapshot: SnapshotId) -> None:
    """The leader says: this snapshot first. A copy that was begun goes on if it is the same one."""
    download = core.download
    if download is not None and download.context == core.context and download.is_complete:
        core.back_off(request)
        return
    if snapshot.offset < core.kept_offset:
        refuse_to_drop(core, request, f"offers a snapshot that ends at {snapshot.offset}")
        return
    if snapshot.epoch > core.epoch:
        core.report(f"snapshot {snapshot} of {request.to} ignored: it is of a later epoch")
        core.back_off(request)
        return
    if download is None or download.snapshot != snapshot:
        if _is_too_soon(core, snapshot):
            core.back_off(request)
            return
        core.drop_download()
        download = core.download = SnapshotDownload(snapshot, core.context)
        core.report(f"copying the snapshot that ends at {snapshot.offset} from {core.leader}")
    elif is_downloading(core):
        # The leader was asked as a bootstrap server, too: it has nothing new to say.
        core.back_off(request)
    download.context = core.context
    if download.is_complete:
        _verify(core, download)


def is_downloading(core: Core) -> bool:
    """True if chunks are asked for instead of records: the leader of now has offered them."""
    download = core.download
    return download is not None and download.context == core.context and not download.is_complete


def request_chunk(core: Core, leader: ReplicaKey) -> None:
    """Ask for the next chunk once the one before is stored and the bandwidth allows it."""
    download = core.download
    assert download is not None
    if core.now_ms < download.next_at_ms or (leader, Fetch) in core.requests.busy:
        return
    if core.can_send(leader, FetchSnapshot):
        chunk = FetchSnapshot(
            epoch=core.epoch,
            snapshot=download.snapshot,
            position=download.position,
            max_bytes=_chunk_bytes(core),
        )
        core.send(leader, chunk, after=max(download.stored_write, core.writes.state))


def _chunk_bytes(core: Core) -> int:
    """So little that the limit never keeps a follower silent for long."""
    limit = core.config.snapshot_bytes_per_s
    if limit is None:
        return CHUNK_BYTES
    return max(1, min(CHUNK_BYTES, limit * core.config.fetch_timeout_ms // 4000))


def take_chunk(core: Core, event: FetchSnapshotResponseReceived) -> bool:
    """FetchSnapshot response handling. Returns True if the leader is alive and answered."""
    request = core.take(event.request_id)
    if request is None:
        return False
    asked = request.request
    assert isinstance(asked, FetchSnapshot), "a chunk answers a FetchSnapshot request"
    download = core.download
    is_current = download is not None and download.snapshot == asked.snapshot
    if is_current and event.error in (
        KafkaError.SNAPSHOT_NOT_FOUND,
        KafkaError.POSITION_OUT_OF_RANGE,
    ):
        abandon_download(core, f"{request.to} answers {event.error}")
    if not absorb(core, request, event.error, event.hint):
        return False
    chunk = event.chunk
    if download is None or download is not core.download or not is_current or chunk is None:
        return True
    if not _fits(download, asked, chunk):
        abandon_download(core, f"{request.to} sent {chunk} for {asked}")
        core.back_off(request)
    elif not chunk.chunk_bytes:
        core.back_off(request)
    else:
        _store(core, download, chunk)
    return True


def _fits(download: SnapshotDownload, asked: FetchSnapshot, chunk: SnapshotChunk) -> bool:
    end = chunk.position + chunk.chunk_bytes
    return (
        chunk.snapshot == asked.snapshot
        and chunk.position == asked.position == download.position
        and download.size_bytes in (None, chunk.size_bytes)
        and end <= chunk.size_bytes
    )


def _store(core: Core, download: SnapshotDownload, chunk: SnapshotChunk) -> None:
    download.stored_write = core.writes.next()
    core.effects.append(
        StoreSnapshotChunk(
            write=download.stored_write,
            snapshot=download.snapshot,
            position=chunk.position,
            token=chunk.token,
        )
    )
    download.size_bytes = chunk.size_bytes
    download.position += chunk.chunk_bytes
    limit = core.config.snapshot_bytes_per_s
    if limit is not None:
        download.next_at_ms = core.now_ms + chunk.chunk_bytes * 1000 // limit
    if download.is_complete:
        _verify(core, download)


def _verify(core: Core, download: SnapshotDownload) -> None:
    core.effects.append(VerifySnapshot(snapshot=download.snapshot, after=download.stored_write))


def on_snapshot_verified(core: Core, event: SnapshotVerified) -> None:
    """Go on behind a sound snapshot, if that is still what this replica needs."""
    download = core.download
    if download is None or download.snapshot != event.snapshot or not download.is_complete:
        return
    if event.problem is not None:
        _note_failed_download(core, download, event.problem)
        return
    if download.context != core.context:
        # The leader of now has not offered it yet.
        return
    snapshot = event.snapshot
    if snapshot.offset < core.kept_offset or core.log.contains(snapshot):
        abandon_download(core, "this replica has got further by itself")
        return
    core.download = None
    reset_log(core, snapshot, event.voters)
    core.requests.backoffs.clear()


def on_chunk_not_stored(core: Core, event: ChunkNotStored) -> None:
    """The disk is full. What was copied must not take the space that votes and records need."""
    download = core.download
    if download is not None and download.snapshot == event.snapshot:
        _note_failed_download(core, download, event.problem)


def _note_failed_download(core: Core, download: SnapshotDownload, problem: str) -> None:
    """All of it, or as much as there is room for, was copied in vain: let time pass before the next try.

    Meanwhile the leader may find out that its file is damaged, or have a newer one.
    """
    attempts = 1
    last = core.failed_download
    if last is not None and (last.snapshot, last.context) == (download.snapshot, download.context):
        attempts += last.attempts
    pause_ms = min(DOWNLOAD_RETRY_MAX_MS, DOWNLOAD_RETRY_MS << min(attempts - 1, 10))
    core.failed_download = FailedDownload(
        download.snapshot, download.context, attempts, core.now_ms + pause_ms
    )
    core.problem = (
        f"the snapshot of leader {core.leader} that ends at {download.snapshot.offset} could not be "
        f"taken over: {problem}"
    )
    abandon_download(core, problem)


def _is_too_soon(core: Core, snapshot: SnapshotId) -> bool:
    useless = core.failed_download
    return (
        useless is not None
        and useless.snapshot == snapshot
        and useless.context == core.context
        and core.now_ms < useless.again_at_ms
    )


def abandon_download(core: Core, reason: str) -> None:
    """Drop the copy, if there is one, and ask the leader anew what to do."""
    if core.download is not None:
        core.report(
            f"the copy of the snapshot that ends at {core.download.snapshot.offset} is dropped: {reason}"
        )
    core.drop_download()


def next_chunk_ms(core: Core) -> int | None:
    """When the bandwidth allows the next chunk, if something waits for that."""
    download = core.download
    if download is None or not is_downloading(core) or download.next_at_ms <= core.now_ms:
        return None
    return download.next_at_ms


# -- this replica's own snapshots


def on_snapshot_taken(core: Core, event: SnapshotTaken) -> None:
    """From now on it can be offered, and what it stands for be cleaned.

    A log that was reset meanwhile may be behind a newer one already.
    """
    newest = core.log.snapshot
    if newest is None or newest.offset < event.snapshot.offset:
        core.log.snapshots.append(event.snapshot)
        if core.recorded_offset < event.snapshot.offset:
            # So that a start need not doubt whether the log reaches that far.
            core.persist()


def on_log_deletion_requested(core: Core, event: LogDeletionRequested) -> None:
    """Drop history that a snapshot stands for; a slow follower gets the snapshot then."""
    kept = tuple(s for s in core.log.snapshots if s in event.snapshots)
    newest = core.log.snapshot
    if newest is None or newest not in kept:
        return
    start_offset = max(core.log.start_offset, min(event.start_offset, newest.offset))
    core.log.delete_prefix(start_offset, kept)
    core.effects.append(
        DeleteLogPrefix(write=core.writes.next(), start_offset=start_offset, snapshots=kept)
    )
