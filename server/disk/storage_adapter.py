"""Brings records and state to the log and its disk, in the order in which the rules ask.

The memory side (tail cache, producer state) changes at once, the disk follows through the worker. Knows
no rule and no request.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from typing import Final, Protocol

from quorumd.raft.effects import (
    AppendClient,
    AppendControl,
    AppendFetched,
    DeleteLogPrefix,
    DropSnapshot,
    PersistQuorumState,
    ResetLog,
    StoreSnapshotChunk,
    TruncateLog,
)
from quorumd.server.model.disk_jobs import (
    DeleteFiles,
    DropChunks,
    InstallSnapshot,
    SaveState,
    StoreChunk,
    Truncate,
    WriteRecords,
)
from quorumd.server.model.logs import Logger
from quorumd.server.model.metrics import Metrics
from quorumd.server.model.producer_state import ProducerState
from quorumd.server.model.runtime import Disk
from quorumd.server.translate.control_records import control_batch
from quorumd.server.translate.fetched_batches import FetchedBatches
from quorumd.storage.log import Chunk, Log
from quorumd.storage.quorum_state import QuorumState
from quorumd.storage.snapshot_file import SnapshotFacts
from quorumd.wire.batch_header import BatchHeader, iter_headers

LOG: Final = Logger("log")

RECOUNT_BYTES: Final = 2**20


class ClientBatches(Protocol):
    """Holds the clients' batches until the rules give them their place: the handler of Produce."""

    def take_batches(self, effect: AppendClient) -> Chunk:
        """The batches under this token, stamped with offset and epoch, as one chunk."""


class StorageAdapter:
    """See the module's docstring. `cluster_id` is called whenever the state is written.

    `on_installed` gets the facts of the snapshot with which the log begins anew. `base` has those of the
    newest snapshot, if there is one; the snapshot manager sets newer ones.
    """

    def __init__(
        self,
        log: Log,
        disk: Disk,
        producers: ProducerState,
        metrics: Metrics,
        cluster_id: Callable[[], str | None],
        client_batches: ClientBatches,
        on_installed: Callable[[SnapshotFacts], None],
        base: SnapshotFacts | None,
        wall_ms: Callable[[], int],
    ) -> None:
        self._log = log
        self._disk = disk
        self.flush = disk.flush
        self._producers = producers
        self._metrics = metrics
        self._cluster_id = cluster_id
        self._client_batches = client_batches
        self._on_installed = on_installed
        self._wall_ms = wall_ms
        self._fetched: dict[int, FetchedBatches] = {}
        self._chunks: dict[int, bytes] = {}
        self._copied: SnapshotFacts | None = None
        self.base = base
        self.written_bytes = 0
        """Of records, since the start."""

    def hold_fetched(self, token: int, fetched: FetchedBatches) -> None:
        """Keep the batches of a fetch response until the rules decide on them."""
        self._fetched.clear()
        self._fetched[token] = fetched

    def hold_chunk(self, token: int, data: bytes) -> None:
        """Keep the bytes of a snapshot's chunk until the rules decide on them."""
        self._chunks.clear()
        self._chunks[token] = data

    def hold_copied(self, facts: SnapshotFacts) -> None:
        """Keep what a verified snapshot says until the rules decide on it."""
        self._copied = facts

    def append_client(self, effect: AppendClient) -> None:
        chunk = self._client_batches.take_batches(effect)
        self._metrics.count_appended(chunk.end_offset - chunk.base_offset, len(chunk.data))
        self._write(effect.write, chunk)

    def append_control(self, effect: AppendControl) -> None:
        now_ms = self._wall_ms()
        data = control_batch(effect.records, effect.base_offset, effect.epoch, now_ms)
        end_offset = effect.base_offset + len(effect.records)
        self._write(effect.write, Chunk(data, effect.base_offset, end_offset))

    def append_fetched(self, effect: AppendFetched) -> None:
        fetched = self._fetched.pop(effect.token)
        chunk = fetched.chunk
        for header in fetched.of_producers:
            self._producers.note(header)
        self._metrics.count_fetched(chunk.end_offset - chunk.base_offset, len(chunk.data))
        self._write(effect.write, chunk)

    def truncate(self, effect: TruncateLog) -> None:
        self._metrics.truncated_records += max(0, self._log.log_end_offset - effect.end_offset)
        end_offset = self._log.truncate_cache(effect.end_offset)
        assert end_offset == effect.end_offset, "a truncation cuts a batch in two"
        if not self._producers.truncate(effect.end_offset):
            self._recount_producers(effect.end_offset)
        self._disk.submit(Truncate(effect.write, effect.end_offset))

    def store_chunk(self, effect: StoreSnapshotChunk) -> None:
        data = self._chunks.pop(effect.token)
        self._metrics.snapshots.copied_bytes += len(data)
        snapshot = effect.snapshot
        self._disk.submit(StoreChunk(effect.write, snapshot, effect.position, data))

    def drop_chunks(self, effect: DropSnapshot) -> None:
        self._disk.submit(DropChunks(effect.write, effect.snapshot))

    def reset(self, effect: ResetLog) -> None:
        snapshot, facts = effect.snapshot, self._copied
        assert facts is not None, "a snapshot is verified before the log is reset"
        assert facts.id == snapshot, "the log is reset to the snapshot that was verified last"
        self._copied, self.base = None, facts
        start, end = self._log.log_start_offset, self._log.log_end_offset
        if end > start:
            LOG.warning(
                f"offsets {start} to {end} are dropped: the leader has no longer what follows them, and "
                f"the log begins anew at {snapshot.end_offset}, behind the leader's snapshot"
            )
        self._log.reset_cache(snapshot.end_offset)
        self._producers.load(facts.producers)
        self._disk.submit(InstallSnapshot(effect.write, snapshot))
        self._on_installed(facts)

    def delete_prefix(self, effect: DeleteLogPrefix) -> None:
        kept = effect.snapshots
        self._disk.submit(DeleteFiles(effect.write, effect.start_offset, kept))

    def _recount_producers(self, end_offset: int) -> None:
        """Read what the log says of producers once more: so much was never truncated before.

        What is cached is newer than the same offsets on disk, where truncations may be pending.
        """
        offset = self._log.log_start_offset
        if self.base is not None:
            self._producers.load(self.base.producers)
            offset = self.base.id.end_offset
        while offset < end_offset:
            for header in self._headers_from(offset, end_offset):
                self._producers.note(header)
                offset = header.next_offset

    def _headers_from(self, offset: int, end_offset: int) -> Generator[BatchHeader]:
        """Headers of some batches from `offset` on, at least one: all from memory, or all from disk."""
        cached = self._log.read_cached(offset, RECOUNT_BYTES, end_offset)
        if cached is not None:
            for data in cached:
                yield from (header for _, header in iter_headers(data))
            return
        with closing(self._log.scan_headers(offset)) as headers:
            for header in headers:
                if self._log.read_cached(header.base_offset, 1, end_offset) is not None:
                    return
                yield header

    def persist(self, effect: PersistQuorumState) -> None:
        leader, voted = effect.leader, effect.voted
        state = QuorumState(
            cluster_id=self._cluster_id(),
            leader_id=None if leader is None else leader.id,
            leader_uuid=None if leader is None else leader.uuid,
            leader_epoch=effect.epoch,
            voted_id=None if voted is None else voted.id,
            voted_uuid=None if voted is None else voted.uuid,
            applied_offset=effect.applied_offset,
        )
        self._disk.submit(SaveState(effect.write, state))

    def _write(self, write: int, chunk: Chunk) -> None:
        self._log.append(chunk.data, chunk.base_offset, chunk.end_offset)
        self.written_bytes += len(chunk.data)
        self._disk.submit(WriteRecords(write, chunk))
