"""`QuorumClient`: append to a quorum's log, read committed records, describe the quorum.

    async with QuorumClient("10.0.0.1:9093,10.0.0.2:9093") as client:
        offsets = await client.append([Record(key=b"color", value=b"blue")])

Every request goes to the leader. It is sent again after a leader change or a retriable error, until the
call's timeout. Knows no terminal and no files.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple, Protocol, TypeVar, cast

from quorumd.client.base import BaseClient
from quorumd.client.connection import CLIENT_ID_DEFAULT, ClientConnection
from quorumd.client.connector import Connector
from quorumd.client.description import QuorumDescription, description_from
from quorumd.client.download import OnDownloadProgress, SnapshotDownloader
from quorumd.client.errors import (
    NotSupported,
    OffsetOutOfRange,
    only_partition,
)
from quorumd.client.events import LogEvent
from quorumd.client.leader import LeaderFinder, check, cluster_id_of
from quorumd.client.producer import (
    BATCH_BYTES_DEFAULT,
    WHOLE_BATCH,
    Producer,
    ProducerIdentity,
)
from quorumd.client.reading import (
    READ,
    Fetched,
    RawFetched,
    fetched_from,
    raw_fetched_from,
)
from quorumd.client.security import Security
from quorumd.client.spool import SnapshotSpool
from quorumd.client.subscription import FOLLOWED_BYTES, LogSubscription
from quorumd.client.timing import TRY_TIMEOUT_MS, Deadline, limit_ms
from quorumd.raft.types import Address, SnapshotId
from quorumd.wire.error_codes import ErrorCode
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
)
from quorumd.wire.metadata_topic import PARTITION, TOPIC, TOPIC_ID
from quorumd.wire.records import Record

TIMEOUT_MS_DEFAULT = 10_000
FETCH_BYTES_DEFAULT = 1024 * 1024
"""Little, so that a slow link brings it within a timeout."""
FETCH_WAIT_MS_DEFAULT = 500
EARLIEST = -2
LATEST = -1
CONSUMER = -1
"""The replica id of a client that is not a replica."""
REPLICA_STATE_SINCE = 15
"""From this version on a Fetch request has the replica id in ReplicaState."""

T = TypeVar("T")


class Companion(Protocol):
    """An object that belongs to a client, and is closed with it."""

    def close(self) -> None: ...


C = TypeVar("C", bound=Companion)


class OffsetAndTimestamp(NamedTuple):
    """A record found by `list_offsets`; offset and timestamp (ms) are -1 if there is no such record."""

    offset: int
    timestamp: int


class QuorumClient(BaseClient):
    """A client of one quorum. Connects when first used; `close` it, or use it in `async with`.

    `bootstrap_servers` are addresses of one or more nodes, as `host:port,host:port` or parsed; the
    client learns the others from them. `timeout_ms` (milliseconds) bounds each call that is not given
    another. Without `security` connections are in plaintext. Raises ValueError for a text that is not a
    list of addresses. A client belongs to the event loop that it was first used in: in another one calls
    raise RuntimeError.

    Every call may raise CertificateProblem, before its timeout: no node will do, or for seconds the leader
    will not, because of keys, certificates or the security protocol, of this client or of the nodes. Or
    OtherCluster: the nodes belong to another cluster than before.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[Address],
        *,
        client_id: str = CLIENT_ID_DEFAULT,
        timeout_ms: int = TIMEOUT_MS_DEFAULT,
        security: Security | None = None,
    ) -> None:
        super().__init__(bootstrap_servers, timeout_ms, security)
        self._client_id = client_id
        self._finder = LeaderFinder(self._bootstrap, client_id=client_id, security=security)
        self._companions: dict[object, Companion] = {}
        self._idle_identities: list[ProducerIdentity] = []
        """Of appends that are over. Leaders remember few producers, so that each has to serve again."""

    @property
    def connector(self) -> Connector:
        """Makes further connections to nodes of the quorum, as this client does; they are the caller's."""
        return self._finder.connector

    def close(self) -> None:
        """Closes all connections."""
        for companion in self._companions.values():
            companion.close()
        self._finder.close()

    def companion(self, factory: Callable[[QuorumClient], C]) -> C:
        """An object made once for this client, by the first call with `factory`, and closed with it."""
        found = self._companions.get(factory)
        if found is None:
            found = self._companions[factory] = factory(self)
        return cast(C, found)

    async def append(
        self,
        records: Iterable[Record],
        *,
        if_unchanged_since: int | None = None,
        also_unchanged: Iterable[bytes] = (),
        whole: bool = False,
        timeout_ms: int | None = None,
        idempotent: bool = True,
    ) -> list[int]:
        """Appends records and returns their offsets when all are committed.

        More records than fit into one batch become several batches. The records keep their order; records
        of other producers may come between two batches. With `whole` they are one batch, all of it in the
        log or nothing: at most log.max.batch.bytes. A timestamp of 0 becomes now. With `idempotent`
        a record is in the log once, also if a batch had to be sent again; without, it may be there twice.
        `timeout_ms` bounds each batch. Raises AppendFailed, which says how many records are acknowledged
        and how many may be in the log.

        With `if_unchanged_since` all records are one batch, which is appended only if no key of it, and none
        of `also_unchanged`, was written at that offset or later: the offset up to which the caller knows the
        keys, as KeyValueView.offset. Else raises Conflict, and nothing is appended. Raises ValueError for a
        condition without any key, and for `also_unchanged` without an offset.
        """
        named = list(also_unchanged)
        if if_unchanged_since is not None or named:
            return await self._append_if_unchanged(
                list(records), if_unchanged_since, named, timeout_ms, idempotent
            )
        offsets: list[int] = []
        idle = self._idle_identities
        producer = Producer(
            self._finder,
            timeout_ms=limit_ms(timeout_ms, self.timeout_ms),
            idempotent=idempotent,
            batch_bytes=WHOLE_BATCH if whole else BATCH_BYTES_DEFAULT,
            on_acknowledged=lambda base, count: offsets.extend(range(base, base + count)),
            identity=idle.pop() if idempotent and idle else None,
        )
        for record in records:
            await producer.append(record)
        await producer.flush()
        if producer.identity is not None:
            idle.append(producer.identity)
        return offsets

    async def _append_if_unchanged(
        self,
        records: list[Record],
        since: int | None,
        named: list[bytes],
        timeout_ms: int | None,
        idempotent: bool,
    ) -> list[int]:
        if not isinstance(since, int) or since < 0:
            raise ValueError(f"if_unchanged_since is {since!r}: give an offset from 0 on")
        if not records or not (named or any(record.key is not None for record in records)):
            raise ValueError("a condition needs a record, and a key there or in also_unchanged")
        # Imported here because few programs need it.
        from quorumd.client.conditional import append_if_unchanged

        return await append_if_unchanged(
            self,
            records,
            since,
            named,
            timeout_ms=limit_ms(timeout_ms, self.timeout_ms),
            idempotent=idempotent,
        )

    def producer(
        self,
        *,
        timeout_ms: int | None = None,
        idempotent: bool = True,
        codec: int = 0,
        batch_bytes: int = BATCH_BYTES_DEFAULT,
        on_acknowledged: Callable[[int, int], None] | None = None,
    ) -> Producer:
        """A stream of records to the log, for more than fits into memory. See Producer.

        `codec` is the compression of batches as in their attributes (0 none, 1 gzip, 2 snappy, 3 lz4,
        4 zstd); `batch_bytes` is about the size of a batch before that.
        """
        return Producer(
            self._finder,
            timeout_ms=limit_ms(timeout_ms, self.timeout_ms),
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
        min_bytes: int = 1,
        timeout_ms: int | None = None,
    ) -> Fetched:
        """Committed records from `offset` (inclusive) on; at its end waits `max_wait_ms` for `min_bytes`.

        Returns at least one whole batch if there is any, even if it is larger than `max_bytes`. Raises
        OffsetOutOfRange, QuorumUnavailable, RequestRefused, NotSupported; TypeError or ValueError for a
        number that no request can have.
        """
        _check_numbers(64, offset=offset, max_wait_ms=max_wait_ms)
        _check_numbers(32, max_bytes=max_bytes, min_bytes=min_bytes)
        if max_bytes < 0:
            raise ValueError(f"max_bytes is {max_bytes}: give 0 or more")
        deadline = self._deadline(timeout_ms)
        return await self._fetch(
            offset, max_bytes, max_wait_ms, deadline, fetched_from, min_bytes=min_bytes
        )

    async def fetch_raw(self, offset: int, *, max_bytes: int = FETCH_BYTES_DEFAULT) -> RawFetched:
        """As `fetch`, but the bytes of the batches as in the leader's log, their CRCs verified."""
        deadline = self._deadline(None)
        return await self._fetch(
            offset, max_bytes, FETCH_WAIT_MS_DEFAULT, deadline, raw_fetched_from
        )

    async def _fetch(
        self,
        offset: int,
        max_bytes: int,
        max_wait_ms: int,
        deadline: Deadline,
        read: Callable[[FetchResponsePartition, int], Awaitable[T]],
        *,
        min_bytes: int = 1,
    ) -> T:
        async def ask(connection: ClientConnection) -> T | None:
            wait_ms = min(max_wait_ms, deadline.remaining_ms())
            response = await connection.request(
                fetch_request(offset, max_bytes, wait_ms, min_bytes=min_bytes),
                FetchResponse,
                timeout_s=(wait_ms + TRY_TIMEOUT_MS) / 1000,
                patience_s=deadline.remaining_s(),
            )
            if response.error_code == ErrorCode.INVALID_REQUEST:
                raise NotSupported(ONLY_FOR_REPLICAS.format(connection.address))
            check(READ, response.error_code)
            partition = only_partition(topic.partitions for topic in response.responses)
            if partition.error_code == ErrorCode.INVALID_REQUEST:
                raise NotSupported(ONLY_FOR_REPLICAS.format(connection.address))
            if partition.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                return None
            check(READ, partition.error_code, response=response, partition=partition)
            return await read(partition, offset)

        fetched = await self._finder.at_leader(READ, deadline, ask)
        if fetched is None:
            start, end = await self.list_offsets(EARLIEST), await self.list_offsets(LATEST)
            raise OffsetOutOfRange(offset, start.offset, end.offset)
        return fetched

    async def read(self, offset: int, end_offset: int) -> AsyncIterator[Fetched]:
        """All committed records from `offset` to `end_offset` (exclusive), one Fetch response at a time.

        The last response may go beyond the end. Waits for records that are not committed yet, without a
        limit. Raises as `fetch` does.
        """
        while offset < end_offset:
            fetched = await self.fetch(offset)
            offset = fetched.next_offset
            yield fetched

    async def follow(
        self,
        *,
        from_offset: int | None = None,
        on_progress: OnDownloadProgress | None = None,
        on_response: Callable[[], object] | None = None,
        min_bytes: Callable[[], int] = lambda: 1,
        waits_for_leader: bool = False,
    ) -> AsyncGenerator[LogEvent, None]:
        """The committed log as events, without end, in order and each once: see quorumd.client.events.

        Begins with the newest snapshot if there is one, else at offset 0. With `from_offset` it begins there,
        and loads a snapshot only if the log starts above it. Another snapshot may come at any time, if the
        log start passes this reader's position. Leader changes, restarts and outages do not end it: an outage
        is the event QuorumLost. Raises QuorumUnavailable only if no leader is reached in the beginning, with
        `waits_for_leader` not even then; RequestRefused and NotSupported; OtherCluster if the
        quorum was formatted anew; LogReplaced if the log does not continue what was read; OffsetOutOfRange
        if the position stays outside it for the client's timeout.

        Uses connections of its own. `on_progress` gets the bytes of a snapshot that have arrived, and its
        size in bytes. `on_response` is called whenever the leader has responded, also when nothing is new;
        `min_bytes` before each request, for how much is to be new before the leader responds at once.
        """
        own = QuorumClient(
            self._bootstrap,
            client_id=self._client_id,
            timeout_ms=self.timeout_ms,
            security=self._security,
        )
        own._finder.cluster = self._finder.cluster
        download = SnapshotDownloader(
            own._finder, timeout_ms=self.timeout_ms, on_progress=on_progress
        )
        subscription = LogSubscription(
            lambda offset: own.fetch(offset, max_bytes=FOLLOWED_BYTES, min_bytes=min_bytes()),
            download,
            timeout_ms=self.timeout_ms,
            offset=from_offset,
            on_response=on_response,
            waits_for_leader=waits_for_leader,
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

        `new_spool` is called for each download that starts: the leader may delete a snapshot during the
        download. Raises QuorumUnavailable, RequestRefused, NotSupported, and the errors of the spool.
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
        """The first record at or after `timestamp` (ms since 1970), by offset.

        EARLIEST gives the log start offset, LATEST the high watermark. Raises QuorumUnavailable,
        RequestRefused; TypeError or ValueError for a timestamp that is no whole number of 64 bits.
        """
        _check_numbers(64, timestamp=timestamp)
        deadline = self._deadline(None)
        request = offsets_request(timestamp, deadline.remaining_ms())

        async def ask(connection: ClientConnection) -> OffsetAndTimestamp:
            response = await connection.request(
                request, ListOffsetsResponse, timeout_s=deadline.try_s()
            )
            partition = only_partition(topic.partitions for topic in response.topics)
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
                request, DescribeQuorumResponse, timeout_s=deadline.try_s()
            )
            check(goal, response.error_code, message=response.error_message)
            partition = only_partition(topic.partitions for topic in response.topics)
            check(goal, partition.error_code, message=partition.error_message)
            cluster_id = await cluster_id_of(connection, deadline.try_s())
            return description_from(response, cluster_id)

        return await self._finder.at_leader(goal, deadline, ask)


ONLY_FOR_REPLICAS = (
    "{} refuses readers that are not replicas, as Kafka controllers do. Read its log from disk, "
    "with `quorumctl dump-log` on its metadata directory, or from a quorumd observer of it."
)


def _check_numbers(bits: int, **given: int) -> None:
    """Raises TypeError or ValueError for what a request has no room for."""
    for name, value in given.items():
        if not isinstance(value, int):
            raise TypeError(f"{name} is of type {type(value).__name__}: give a whole number")
        if not -(1 << bits - 1) <= value < 1 << bits - 1:
            raise ValueError(f"{name} is {value}, which {bits} bits do not hold")


def fetch_request(
    offset: int,
    max_bytes: int,
    max_wait_ms: int,
    *,
    min_bytes: int = 1,
    replica_id: int = CONSUMER,
    version: int = REPLICA_STATE_SINCE,
) -> FetchRequest:
    """A Fetch request for the log from `offset` on; `version` decides which field has the replica id."""
    in_state = version >= REPLICA_STATE_SINCE
    return FetchRequest(
        replica_id=CONSUMER if in_state else replica_id,
        replica_state=FetchRequestReplicaState(replica_id=replica_id if in_state else CONSUMER),
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
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
    """A ListOffsets request for one timestamp (ms since 1970), EARLIEST or LATEST."""
    partition = ListOffsetsRequestPartition(partition_index=PARTITION, timestamp=timestamp)
    topic = ListOffsetsRequestTopic(name=TOPIC, partitions=(partition,))
    return ListOffsetsRequest(replica_id=replica_id, topics=(topic,), timeout_ms=timeout_ms)
