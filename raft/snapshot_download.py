"""A replica that lacks records which its leader's log does not have any more copies the newest snapshot.

The replica copies chunk by chunk, has the copy verified, and only then gives up its own log for it. Sources:
KIP-595 (log compaction and snapshots), KIP-630, KIP-856 (snapshots).
"""

from __future__ import annotations

from typing import Final

from quorumd.raft.core import Core
from quorumd.raft.core_parts import FailedDownload, InFlightRequest, SnapshotDownload
from quorumd.raft.effects import Fetch, FetchSnapshot, StoreSnapshotChunk, VerifySnapshot
from quorumd.raft.errors import KafkaError
from quorumd.raft.events import (
    ChunkNotStored,
    FetchSnapshotResponseReceived,
    SnapshotChunk,
    SnapshotVerified,
)
from quorumd.raft.leader_discovery import absorb
from quorumd.raft.truncation import refuse_to_drop, reset_log
from quorumd.raft.types import KAFKA_SNAPSHOT_MAX_BYTES, ReplicaKey, SnapshotId

CHUNK_BYTES: Final = 2**20
"""Bytes that are asked for at a time: Kafka's own figure."""

DOWNLOAD_RETRY_MS: Final = 1_000

DOWNLOAD_RETRY_MAX_MS: Final = 10_000
"""Pause before a snapshot whose copy failed is copied again: at first, and at most."""


def accept_offer(core: Core, request: InFlightRequest, snapshot: SnapshotId) -> None:
    """The leader says: this snapshot first. A copy that was begun goes on if it is the same one."""
    download = core.download
    if download is not None and download.context == core.context and download.is_complete:
        core.back_off(request)
        return
    if snapshot.end_offset < core.kept_offset:
        refuse_to_drop(core, request, f"offers a snapshot that ends at {snapshot.end_offset}")
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
        core.report(f"copying the snapshot that ends at {snapshot.end_offset} from {core.leader}")
    elif is_downloading(core):
        # The leader got a fetch as a bootstrap server, too: this offer is the same one.
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
    if core.now_ms < download.next_at_ms or core.requests.is_busy(leader, Fetch):
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
    """FetchSnapshot response handling. Returns True if the response is one of the leader."""
    request = core.take(event.request_id)
    if request is None:
        return False
    asked = request.request
    assert isinstance(asked, FetchSnapshot), "a chunk belongs to a FetchSnapshot request"
    download = core.download
    if download is not None and download.snapshot != asked.snapshot:
        download = None
    if download is not None and event.error in (
        KafkaError.SNAPSHOT_NOT_FOUND,
        KafkaError.POSITION_OUT_OF_RANGE,
    ):
        abandon_download(core, f"{request.to} responds with {event.error}")
    if not absorb(core, request, event.error, event.hint):
        return False
    chunk = event.chunk
    if download is None or chunk is None:
        return True
    if not _fits(download, asked, chunk):
        abandon_download(core, f"{request.to} sent {chunk} for {asked}")
        core.back_off(request)
    elif not chunk.chunk_bytes:
        core.back_off(request)
    elif core.config.is_kafka_log and chunk.size_bytes > KAFKA_SNAPSHOT_MAX_BYTES:
        _note_failed_download(
            core,
            download,
            f"a snapshot of {chunk.size_bytes} bytes cannot be copied from a Kafka controller, which "
            f"ends when it is asked for what is behind the first {KAFKA_SNAPSHOT_MAX_BYTES}",
        )
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
    core.download = None
    reset_log(core, event.snapshot, event.voters)
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
        f"the snapshot of leader {core.leader} that ends at {download.snapshot.end_offset} could not be "
        f"taken over: {problem}"
    )
    abandon_download(core, problem)


def _is_too_soon(core: Core, snapshot: SnapshotId) -> bool:
    failed = core.failed_download
    return (
        failed is not None
        and failed.snapshot == snapshot
        and failed.context == core.context
        and core.now_ms < failed.again_at_ms
    )


def abandon_download(core: Core, reason: str) -> None:
    """Drop the copy, if there is one, and ask the leader anew what to do."""
    if core.download is not None:
        core.report(
            f"the copy of the snapshot that ends at {core.download.snapshot.end_offset} is dropped: {reason}"
        )
    core.drop_download()


def next_chunk_ms(core: Core) -> int | None:
    """When the bandwidth allows the next chunk, if something waits for that."""
    download = core.download
    if download is None or not is_downloading(core) or download.next_at_ms <= core.now_ms:
        return None
    return download.next_at_ms
