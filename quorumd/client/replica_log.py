"""The log of one replica, leader or not, as its node serves it.

Asked by replica -2, Kafka's debugging consumer, a node serves Fetch and ListOffsets from its own log, up
to its high watermark. There are no retries here.
Source: Apache Kafka, ReplicaVerificationTool; docs/protocol.md.
"""

from __future__ import annotations

from typing import NamedTuple

from quorumd.client.client import (
    EARLIEST,
    LATEST,
    ONLY_FOR_REPLICAS,
    fetch_request,
    offsets_request,
)
from quorumd.client.connection import ClientConnection
from quorumd.client.errors import (
    ConnectionFailed,
    NotSupported,
    RequestRefused,
    error_code,
    only_partition,
)
from quorumd.client.leader import cluster_id_of
from quorumd.client.reading import RawFetched, raw_batches_from
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.fetch import FetchRequest, FetchResponse
from quorumd.wire.messages.list_offsets import ListOffsetsResponse, ListOffsetsResponsePartition

DEBUGGING_CONSUMER = -2
_GOAL = "read the log of this replica"


class ReplicaBounds(NamedTuple):
    """Offsets `start` .. `end` (exclusive) that a replica has and knows to be committed; its epoch."""

    start: int
    end: int
    epoch: int


class ReplicaLog:
    """On an open connection, which the caller closes. Each response may take `timeout_s`.

    All methods raise ConnectionFailed, RequestRefused, and NotSupported if the server shows no log of its
    own.
    """

    def __init__(self, connection: ClientConnection, timeout_s: float) -> None:
        self._connection = connection
        self._timeout_s = timeout_s

    async def cluster_id(self) -> str:
        """The cluster id of the node's quorum; "" if the node does not know it."""
        return await cluster_id_of(self._connection, self._timeout_s)

    async def bounds(self) -> ReplicaBounds:
        """The present bounds of the replica's committed log."""
        start = await self._listed(EARLIEST)
        # Asked second, so that it is never below the start.
        end = await self._listed(LATEST)
        return ReplicaBounds(start.offset, end.offset, end.leader_epoch)

    async def fetch(self, offset: int, max_bytes: int) -> RawFetched | None:
        """The batches from `offset` on, CRCs verified; none at the end. None outside the bounds.

        At least one batch is brought if there is any, even if it is larger than `max_bytes`.
        """
        version = self._connection.version_for(FetchRequest)
        request = fetch_request(
            offset, max_bytes, 0, replica_id=DEBUGGING_CONSUMER, version=version
        )
        response = await self._connection.request(
            request, FetchResponse, timeout_s=self._timeout_s, version=version
        )
        self._check(response.error_code)
        partition = only_partition(topic.partitions for topic in response.responses)
        if partition.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            return None
        self._check(partition.error_code)
        return raw_batches_from(partition.records or b"", offset)

    async def _listed(self, timestamp: int) -> ListOffsetsResponsePartition:
        request = offsets_request(
            timestamp, int(self._timeout_s * 1000), replica_id=DEBUGGING_CONSUMER
        )
        response = await self._connection.request(
            request, ListOffsetsResponse, timeout_s=self._timeout_s
        )
        partition = only_partition(topic.partitions for topic in response.topics)
        self._check(partition.error_code)
        if partition.offset < 0:
            raise ConnectionFailed(f"says that its log begins or ends at {partition.offset}")
        return partition

    def _check(self, code: int) -> None:
        error = error_code(code)
        if error is ErrorCode.NONE:
            return
        address = self._connection.address
        if error is ErrorCode.INVALID_REQUEST:
            raise NotSupported(ONLY_FOR_REPLICAS.format(address))
        if error is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            raise NotSupported(
                f"{address} shows its log only while it leads: it runs an older version of quorumd. "
                "Upgrade it, or read its directory"
            )
        raise RequestRefused(_GOAL, error)
