"""Downloads the newest snapshot of a quorum from the leader, chunk by chunk.

The response to a Fetch as a replica without an id sends it, from offset 0, has the leader's epoch and the id
of its newest snapshot; FetchSnapshot then reads that snapshot. A snapshot has the same bytes on every
node, so the download continues at its position when the leader changes.
Source: KIP-595 (Fetch), KIP-630 (FetchSnapshot). A Kafka leader responds with -1 to every error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from quorumd.client.connection import ClientConnection
from quorumd.client.errors import ConnectionFailed, NotSupported, only_partition
from quorumd.client.leader import LeaderFinder, RetriableError, check
from quorumd.client.reading import READ
from quorumd.client.spool import SnapshotSpool
from quorumd.client.timing import TRY_TIMEOUT_MS, Deadline
from quorumd.raft.types import KAFKA_SNAPSHOT_MAX_BYTES, SnapshotId
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.errors import CorruptBatch
from quorumd.wire.messages.broker_heartbeat import BrokerHeartbeatRequest
from quorumd.wire.messages.fetch import (
    FetchRequest,
    FetchRequestPartition,
    FetchRequestTopic,
    FetchResponse,
    FetchResponsePartition,
)
from quorumd.wire.messages.fetch_snapshot import (
    FetchSnapshotRequest,
    FetchSnapshotRequestPartition,
    FetchSnapshotRequestSnapshotId,
    FetchSnapshotRequestTopic,
    FetchSnapshotResponse,
    FetchSnapshotResponsePartition,
)
from quorumd.wire.metadata_topic import PARTITION, TOPIC, TOPIC_ID

CHUNK_BYTES_MAX = 1 << 20
CHUNK_BYTES_MIN = 1 << 14
REPLICA_FETCH_SINCE = 12
"""Fetch requests below this version have no last fetched epoch, and their responses no snapshot id."""

_GOAL = "load the snapshot"
_VANISHED = (ErrorCode.SNAPSHOT_NOT_FOUND, ErrorCode.POSITION_OUT_OF_RANGE)
_OTHER_EPOCH = (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH)

OnDownloadProgress = Callable[[int, int], None]


class SnapshotOffer(NamedTuple):
    """The leader's id, epoch and newest snapshot, as it said on this connection."""

    connection: ClientConnection
    leader_id: int
    epoch: int
    snapshot_id: SnapshotId | None


class SnapshotDownloader:
    """Resumes at its position after errors; starts again when the leader has deleted the snapshot."""

    def __init__(
        self,
        finder: LeaderFinder,
        *,
        timeout_ms: int,
        on_progress: OnDownloadProgress | None = None,
        new_spool: Callable[[SnapshotId], SnapshotSpool] = SnapshotSpool,
    ) -> None:
        self._finder = finder
        self._timeout_ms = timeout_ms
        self._on_progress = on_progress
        self._new_spool = new_spool
        self._offer: SnapshotOffer | None = None
        self._spool: SnapshotSpool | None = None
        self._chunk_bytes = CHUNK_BYTES_MAX

    async def leader(self) -> SnapshotOffer:
        """The present leader. Raises QuorumUnavailable, RequestRefused, NotSupported."""
        return await self._finder.at_leader(READ, Deadline(self._timeout_ms), self._fetch_offer)

    async def newest_above(self, offset: int) -> SnapshotSpool | None:
        """The newest snapshot, complete; None if there is none that ends above `offset`.

        Raises QuorumUnavailable if no chunk arrives within the client's timeout: call it again to resume.
        """
        while True:
            has_chunk = await self._finder.at_leader(
                _GOAL, Deadline(self._timeout_ms), lambda there: self._next_chunk(there, offset)
            )
            if not has_chunk:
                return None
            spool = self._spool
            assert spool is not None, "a chunk has just been written"
            if self._on_progress is not None:
                self._on_progress(spool.position, spool.size_bytes)
            if spool.is_complete:
                self._spool = self._offer = None
                return spool

    def close(self) -> None:
        """Discards a download that is not complete."""
        if self._spool is not None:
            self._spool.close()
            self._spool = None

    async def _next_chunk(self, connection: ClientConnection, offset: int) -> bool:
        """Downloads one chunk; False if there is no snapshot above `offset`."""
        offer = self._offer
        if offer is None or offer.connection is not connection:
            offer = self._offer = await self._fetch_offer(connection)
        if self._spool is None:
            if offer.snapshot_id is None or offer.snapshot_id.end_offset <= offset:
                self._offer = None
                return False
            self._spool = self._new_spool(offer.snapshot_id)
        try:
            chunk = await self._fetch_chunk(connection, self._spool, offer.epoch)
        except (RetriableError, ConnectionFailed):
            # The leader, its epoch and its snapshots are asked for again first. On a slow connection a
            # smaller chunk may arrive in time.
            self._offer = None
            self._chunk_bytes = max(CHUNK_BYTES_MIN, self._chunk_bytes // 2)
            raise
        self._chunk_bytes = min(CHUNK_BYTES_MAX, self._chunk_bytes * 2)
        try:
            self._spool.write(chunk.unaligned_records, chunk.size)
        except CorruptBatch as error:
            damaged = f"sent a damaged snapshot {self._spool.id}: {error}"
            self.close()
            raise ConnectionFailed(damaged) from None
        return True

    async def _fetch_offer(self, connection: ClientConnection) -> SnapshotOffer:
        if connection.version_for(FetchRequest) < REPLICA_FETCH_SINCE:
            raise NotSupported(
                f"{connection.address} has no Fetch of version {REPLICA_FETCH_SINCE}, so it is no "
                "quorumd node: name one."
            )
        partition = await _fetch_as_replica(connection, max(0, self._finder.epoch))
        leader = partition.current_leader
        found = partition.snapshot_id
        return SnapshotOffer(
            connection,
            leader.leader_id,
            leader.leader_epoch,
            SnapshotId(found.end_offset, found.epoch) if found.end_offset >= 0 else None,
        )

    async def _fetch_chunk(
        self, connection: ClientConnection, spool: SnapshotSpool, epoch: int
    ) -> FetchSnapshotResponsePartition:
        response = await connection.request(
            _snapshot_request(spool, epoch, self._chunk_bytes),
            FetchSnapshotResponse,
            timeout_s=TRY_TIMEOUT_MS / 1000,
        )
        if response.error_code == ErrorCode.UNKNOWN_SERVER_ERROR:
            raise self._vanished(spool)
        check(_GOAL, response.error_code)
        chunk = only_partition(topic.partitions for topic in response.topics)
        if chunk.error_code in _VANISHED:
            raise self._vanished(spool)
        check(_GOAL, chunk.error_code, response=response, partition=chunk)
        if chunk.position != spool.position:
            raise ConnectionFailed(f"sent position {chunk.position} instead of {spool.position}")
        if chunk.size > KAFKA_SNAPSHOT_MAX_BYTES and connection.offers(BrokerHeartbeatRequest):
            raise NotSupported(
                f"{connection.address} is no quorumd node, and has a snapshot of {chunk.size} bytes: to "
                f"ask for what is behind the first {KAFKA_SNAPSHOT_MAX_BYTES} would end the controller. "
                "Copy the file from its directory."
            )
        if not chunk.unaligned_records:
            raise ConnectionFailed(f"sent nothing at position {spool.position} of {chunk.size}")
        return chunk

    def _vanished(self, spool: SnapshotSpool) -> RetriableError:
        self.close()
        return RetriableError(
            f"the snapshot {spool.id} is gone; looking for a newer one", stay=True
        )


async def _fetch_as_replica(connection: ClientConnection, epoch: int) -> FetchResponsePartition:
    """The response to a Fetch from offset 0, in the epoch that the node itself names.

    Its records may not be committed, and are ignored.
    """
    while True:
        response = await connection.request(
            _replica_request(epoch), FetchResponse, timeout_s=TRY_TIMEOUT_MS / 1000
        )
        check(READ, response.error_code)
        partition = only_partition(topic.partitions for topic in response.responses)
        known = partition.current_leader.leader_epoch
        if partition.error_code not in _OTHER_EPOCH or known <= epoch:
            check(READ, partition.error_code, response=response, partition=partition)
            return partition
        epoch = known


def _replica_request(epoch: int) -> FetchRequest:
    partition = FetchRequestPartition(
        partition=PARTITION,
        current_leader_epoch=epoch,
        fetch_offset=0,
        last_fetched_epoch=0,
    )
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1,
        topics=(FetchRequestTopic(topic=TOPIC, topic_id=TOPIC_ID, partitions=(partition,)),),
    )


def _snapshot_request(spool: SnapshotSpool, epoch: int, max_bytes: int) -> FetchSnapshotRequest:
    partition = FetchSnapshotRequestPartition(
        partition=PARTITION,
        current_leader_epoch=epoch,
        snapshot_id=FetchSnapshotRequestSnapshotId(
            end_offset=spool.id.end_offset, epoch=spool.id.epoch
        ),
        position=spool.position,
    )
    return FetchSnapshotRequest(
        max_bytes=max_bytes,
        topics=(FetchSnapshotRequestTopic(name=TOPIC, partitions=(partition,)),),
    )
