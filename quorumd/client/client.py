"""`QuorumClient`: append to a quorum's log, read what is committed, ask how the quorum is.

    async with QuorumClient("10.0.0.1:9093,10.0.0.2:9093") as client:
        offsets = await client.append([Record(key=b"color", value=b"blue")])

Everything is done at the leader, wherever it is now; what can be retried is retried until the
client's timeout. Knows no terminal and no files.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from quorumd.client.base import BaseClient
from quorumd.client.connection import ClientConnection
from quorumd.client.description import QuorumDescription, description_from
from quorumd.client.download import OnDownloadProgress, SnapshotDownloader
from quorumd.client.errors import (
    ConnectionFailed,
    NotSupported,
    OffsetOutOfRange,
    RequestRefused,
    error_code,
)
from quorumd.client.events import LogEvent
from quorumd.client.leader import ENDPOINT_TYPE_CONTROLLERS, LeaderFinder, check
from quorumd.client.producer import BATCH_BYTES_DEFAULT, TRY_TIMEOUT_MS, Producer
from quorumd.client.reading import (
    READ,
    Fetched,
    RawFetched,
    batches_from,
    only_fetched,
    raw_batches_from,
)
from quorumd.client.spool import SnapshotSpool
from quorumd.client.subscription import LogSubscription
from quorumd.client.timing import Deadline
from quorumd.raft.types import Address, SnapshotId
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from quorumd.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartition,
    DescribeQuorumRequestTopic,
    DescribeQuorumResponse,
)
from quorumd.wire.messages.fetch import (
    FetchRequest,
    FetchRequestPartition,
    FetchRequestReplicaState,
    FetchRequestTopic,
    FetchResponse,
    FetchResponsePartition,
)
from quorumd.wire.messages.list_offsets import (
    ListOffsetsRequest,
    ListOffsetsRequestPartition,
    ListOffsetsRequestTopic,
    ListOffsetsResponse,
    ListOffsetsResponsePartition,
)
from quorumd.wire.metadata_topic import PARTITION, TOPIC, TOPIC_ID
from quorumd.wire.records import Record

TIMEOUT_MS_DEFAULT = 10_000
FETCH_BYTES_DEFAULT = 4 * 1024 * 1024
FETCH_WAIT_MS_DEFAULT = 500
EARLIEST = -2
LATEST = -1
CONSUMER = -1
"""The replica id of who is none."""
REPLICA_STATE_SINCE = 15
"""From this version on a Fetch has the replica id at another place."""

T = TypeVar("T")


class OffsetAndTimestamp(NamedTuple):
    """A record found by `list_offsets`; offset and timestamp (ms) are -1 if there is no such record."""

    offset: int
    timestamp: int


class QuorumClient(BaseClient):
    """A client of one quorum. Connects when first used; `close` it, or use it in `async with`.

    `bootstrap_servers` are addresses to begin with, as `host:port,host:port` or parsed; any node
    will do. `timeout_ms` bounds every call that has no other limit. A text that is no list of
    addresses raises ValueError.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[Address],
        *,
        client_id: str = "quorumctl",
        timeout_ms: int = TIMEOUT_MS_DEFAULT,
    ) -> None:
        super().__init__(bootstrap_servers, timeout_ms)
        self._client_id = client_id
        self._finder = LeaderFinder(self._bootstrap, client_id=client_id)

    def close(self) -> None:
        """Closes all connections."""
        self._finder.close()

    async def append(
        self, records: Iterable[Record], *, timeout_ms: int | None = None, idempotent: bool = True
    ) -> list[int]:
        """Appends records and returns their offsets when all are committed.

        Several batches are made if one is not enough; the records keep their order, but those of
        others may come between two batches. Raises AppendFailed, which says what is certain.
        """
        offsets: list[int] = []
        producer = self.producer(
            timeout_ms=timeout_ms,
            idempotent=idempotent,
            on_acknowledged=lambda base, count: offsets.extend(range(base, base + count)),
        )
        for record in records:
            await producer.append(record)
        await producer.flush()
        return offsets

    def producer(
        self,
        *,
        timeout_ms: int | None = None,
        idempotent: bool = True,
        codec: int = 0,
        batch_bytes: int = BATCH_BYTES_DEFAULT,
        on_acknowledged: Callable[[int, int], None] | None = None,
    ) -> Producer:
        """A stream of records to the log, for more than fits into memory. See Producer."""
        return Producer(
            self._finder,
            timeout_ms=self.timeout_ms if timeout_ms is None else timeout_ms,
            idempotent=idempotent,
            codec=codec,
            batch_bytes=batch_bytes,
            on_acknowledged=on_acknowledged,
        )

    async def fetch(
        self,
        offset: int,
        *,
        max_bytes: int = FETCH_BYTES_DEFAULT,
        max_wait_ms: int = FETCH_WAIT_MS_DEFAULT,
        timeout_ms: int | None = None,
    ) -> Fetched:
        """Committed records from `offset` on; at the log's end waits `max_wait_ms` for new ones.

        At least one whole batch is brought if there is any, even if it is larger than `max_bytes`.
        Raises OffsetOutOfRange, QuorumUnavailable, RequestRefused.
        """
        deadline = self._deadline(timeout_ms)
        return await self._fetch(offset, max_bytes, max_wait_ms, deadline, _fetched)

    async def fetch_raw(self, offset: int, *, max_bytes: int = FETCH_BYTES_DEFAULT) -> RawFetched:
        """As `fetch`, but the batches as they are in the leader's log, their CRCs verified."""
        deadline = self._deadline(None)
        return await self._fetch(offset, max_bytes, FETCH_WAIT_MS_DEFAULT, deadline, _raw_fetched)

    async def _fetch(
        self,
        offset: int,
        max_bytes: int,
        max_wait_ms: int,
        deadline: Deadline,
        read: Callable[[FetchResponsePartition, int], T],
    ) -> T:
        async def ask(connection: ClientConnection) -> T | None:
            wait_ms = min(max_wait_ms, deadline.remaining_ms())
            response = await connection.request(
                fetch_request(offset, max_bytes, wait_ms),
                FetchResponse,
                timeout_s=(wait_ms + TRY_TIMEOUT_MS) / 1000,
            )
            if response.error_code == ErrorCode.INVALID_REQUEST:
                raise NotSupported(ONLY_FOR_REPLICAS.format(connection.address))
            check(READ, response.error_code)
            partition = only_fetched(response)
            if partition.error_code == ErrorCode.INVALID_REQUEST:
                raise NotSupported(ONLY_FOR_REPLICAS.format(connection.address))
            if partition.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                return None
            check(READ, partition.error_code, response=response, partition=partition)
            return read(partition, offset)

        fetched = await self._finder.at_leader(READ, deadline, ask)
        if fetched is None:
            start, end = await self.list_offsets(EARLIEST), await self.list_offsets(LATEST)
            raise OffsetOutOfRange(offset, start.offset, end.offset)
        return fetched

    async def read(self, offset: int, end_offset: int) -> AsyncIterator[Fetched]:
        """Everything committed from `offset` to `end_offset` (exclusive), answer by answer.

        The last answer may go beyond the end. Waits for what is not committed yet.
        """
        while offset < end_offset:
            fetched = await self.fetch(offset)
            offset = fetched.next_offset
            yield fetched

    async def follow(
        self, *, from_offset: int | None = None, on_progress: OnDownloadProgress | None = None
    ) -> AsyncGenerator[LogEvent, None]:
        """Everything that is committed, without end, in order and each once: see quorumd.client.events.

        Begins with the newest snapshot if there is one, else at offset 0; with `from_offset` there, and
        then a snapshot comes only if the log begins above it. Another one may come at any time, if the
        log's start overtakes this reader. Leader changes, restarts and outages are survived; only a
        quorum that can't be reached at all in the beginning raises QuorumUnavailable. Raises
        RequestRefused, NotSupported, and OffsetOutOfRange if what was read is not in the log any more.

        Has connections of its own. `on_progress` gets the bytes of a snapshot that are here, and all.
        """
        own = QuorumClient(self._bootstrap, client_id=self._client_id, timeout_ms=self.timeout_ms)
        download = SnapshotDownloader(
            own._finder, timeout_ms=self.timeout_ms, on_progress=on_progress
        )
        subscription = LogSubscription(
            own.fetch, download, timeout_ms=self.timeout_ms, offset=from_offset
        )
        try:
            while True:
                for event in await subscription.step():
                    yield event
        finally:
            subscription.close()
            own.close()

    async def download_snapshot(
        self,
        new_spool: Callable[[SnapshotId], SnapshotSpool],
        on_progress: OnDownloadProgress | None = None,
    ) -> SnapshotSpool | None:
        """The newest snapshot of the leader, complete and checked; None if it has none. Close it.

        `new_spool` is called for each snapshot that is begun: one may vanish half-way. Raises
        QuorumUnavailable, RequestRefused, NotSupported, and what writing to the spool raises.
        """
        download = SnapshotDownloader(
            self._finder,
            timeout_ms=self.timeout_ms,
            on_progress=on_progress,
            new_spool=new_spool,
        )
        try:
            return await download.newest_above(0)
        finally:
            download.close()

    async def list_offsets(self, timestamp: int) -> OffsetAndTimestamp:
        """EARLIEST: the log start; LATEST: the high watermark; else the first record since then."""
        deadline = self._deadline(None)
        request = offsets_request(timestamp, deadline.remaining_ms())

        async def ask(connection: ClientConnection) -> OffsetAndTimestamp:
            response = await connection.request(
                request, ListOffsetsResponse, timeout_s=_try_timeout_s(deadline)
            )
            partition = only_listed(response)
            check("look up an offset", partition.error_code)
            return OffsetAndTimestamp(partition.offset, partition.timestamp)

        return await self._finder.at_leader("look up an offset", deadline, ask)

    async def describe_quorum(self, *, timeout_ms: int | None = None) -> QuorumDescription:
        """The leader's view of voters and observers; of a Kafka controller's quorum, too.

        Raises QuorumUnavailable, RequestRefused, NotSupported.
        """
        goal = "describe the quorum"
        deadline = self._deadline(timeout_ms)
        request = DescribeQuorumRequest(
            topics=(
                DescribeQuorumRequestTopic(
                    topic_name=TOPIC,
                    partitions=(DescribeQuorumRequestPartition(partition_index=PARTITION),),
                ),
            )
        )

        async def ask(connection: ClientConnection) -> QuorumDescription:
            response = await connection.request(
                request, DescribeQuorumResponse, timeout_s=_try_timeout_s(deadline)
            )
            check(goal, response.error_code, message=response.error_message)
            partitions = [each for topic in response.topics for each in topic.partitions]
            if len(partitions) != 1:
                raise ConnectionFailed(f"answered for {len(partitions)} partitions instead of one")
            check(goal, partitions[0].error_code, message=partitions[0].error_message)
            cluster_id = await cluster_id_of(connection, _try_timeout_s(deadline))
            return description_from(response, cluster_id)

        return await self._finder.at_leader(goal, deadline, ask)


ONLY_FOR_REPLICAS = (
    "{} refuses readers that are not replicas, as Kafka controllers do. Read its log from disk, "
    "with `quorumctl dump-log` on its metadata directory, or from a quorumd observer of it."
)


def fetch_request(
    offset: int,
    max_bytes: int,
    max_wait_ms: int,
    *,
    replica_id: int = CONSUMER,
    version: int = REPLICA_STATE_SINCE,
) -> FetchRequest:
    """For the log from `offset` on; the version counts for where the replica id stands."""
    in_state = version >= REPLICA_STATE_SINCE
    return FetchRequest(
        replica_id=CONSUMER if in_state else replica_id,
        replica_state=FetchRequestReplicaState(replica_id=replica_id if in_state else CONSUMER),
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        topics=(
            FetchRequestTopic(
                topic=TOPIC,
                topic_id=TOPIC_ID,
                partitions=(
                    FetchRequestPartition(
                        partition=PARTITION, fetch_offset=offset, partition_max_bytes=max_bytes
                    ),
                ),
            ),
        ),
    )


def offsets_request(
    timestamp: int, timeout_ms: int, *, replica_id: int = CONSUMER
) -> ListOffsetsRequest:
    """For one offset, by time (ms since 1970) or special timestamp."""
    partition = ListOffsetsRequestPartition(partition_index=PARTITION, timestamp=timestamp)
    topic = ListOffsetsRequestTopic(name=TOPIC, partitions=(partition,))
    return ListOffsetsRequest(replica_id=replica_id, topics=(topic,), timeout_ms=timeout_ms)


def only_listed(response: ListOffsetsResponse) -> ListOffsetsResponsePartition:
    """The one partition of an answer. Raises ConnectionFailed if it has another number of them."""
    partitions = [each for topic in response.topics for each in topic.partitions]
    if len(partitions) != 1:
        raise ConnectionFailed(f"answered for {len(partitions)} partitions instead of one")
    return partitions[0]


def _fetched(partition: FetchResponsePartition, offset: int) -> Fetched:
    data = partition.records or b""
    batches, next_offset = batches_from(data, offset)
    if data and next_offset == offset:
        raise ConnectionFailed(f"sent {len(data)} bytes but no whole batch at offset {offset}")
    return Fetched(
        batches=batches,
        next_offset=next_offset,
        high_watermark=partition.high_watermark,
        log_start_offset=partition.log_start_offset,
    )


def _raw_fetched(partition: FetchResponsePartition, offset: int) -> RawFetched:
    return raw_batches_from(partition.records or b"", offset)


async def cluster_id_of(connection: ClientConnection, timeout_s: float) -> str:
    """The cluster id as this node knows it; a broker is asked as a broker."""
    if not connection.offers(DescribeClusterRequest):
        return ""
    request = DescribeClusterRequest()
    if connection.version_for(DescribeClusterRequest):
        request = DescribeClusterRequest(endpoint_type=ENDPOINT_TYPE_CONTROLLERS)
    response = await connection.request(request, DescribeClusterResponse, timeout_s=timeout_s)
    if response.error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE:
        response = await connection.request(
            DescribeClusterRequest(), DescribeClusterResponse, timeout_s=timeout_s
        )
    if response.error_code:
        raise RequestRefused(
            "learn the cluster id", error_code(response.error_code), response.error_message
        )
    return response.cluster_id


def _try_timeout_s(deadline: Deadline) -> float:
    return min(TRY_TIMEOUT_MS / 1000, deadline.remaining_s())
