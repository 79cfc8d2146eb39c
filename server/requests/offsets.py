"""Consumers' questions for offsets: ListOffsets and OffsetForLeaderEpoch, up to the high watermark.

Who may ask, and whom, is as with Fetch: see `fetch`. Source: Kafka's consumer protocol; KIP-320.
"""

from __future__ import annotations

from collections.abc import Sequence

from quorumd.server.model.partition_view import PartitionView
from quorumd.server.model.runtime import Reader
from quorumd.server.net.connection_limits import MAX_IN_FLIGHT_BYTES
from quorumd.server.net.inbound_request import InboundRequest
from quorumd.server.requests.fetch import DEBUGGING_CONSUMER, check_epoch
from quorumd.storage.filesystem import Buffer
from quorumd.storage.log import Log
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.list_offsets import (
    ListOffsetsRequest,
    ListOffsetsRequestPartition,
    ListOffsetsResponse,
    ListOffsetsResponsePartition,
    ListOffsetsResponseTopic,
)
from quorumd.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochRequestPartition,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderEpochResponsePartition,
    OffsetForLeaderEpochResponseTopic,
)

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING = range(-1, -7, -1)
SPECIAL_SINCE = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING: 11}
"""The version from which each special timestamp is known; -1 and -2 always were."""
LOOK_UP_BYTES = MAX_IN_FLIGHT_BYTES // 16
"""Bytes that a search for a time counts for on its connection, which may have 16 of them under way."""


class OffsetsHandler:
    """Responds to questions about one partition."""

    def __init__(self, view: PartitionView, log: Log, reader: Reader) -> None:
        self._view = view
        self._log = log
        self._reader = reader

    def list_offsets(self, request: InboundRequest, message: ListOffsetsRequest) -> None:
        """Respond, once the disk was read where that is needed."""
        seen: dict[tuple[str, int], int] = {}
        for topic in message.topics:
            for asked in topic.partitions:
                key = (topic.name, asked.partition_index)
                seen[key] = seen.get(key, 0) + 1
        repeated = {key for key, count in seen.items() if count > 1}
        # The log on disk still begins below its start while a deletion is queued.
        bounds = self._view.log_start_offset, self._view.committed_offset
        rows: list[tuple[str, list[ListOffsetsResponsePartition]]] = []
        lookups: list[tuple[int, int, int]] = []
        for i, topic in enumerate(message.topics):
            row: list[ListOffsetsResponsePartition] = []
            for k, asked in enumerate(topic.partitions):
                error = self._check_list_offsets(request.api_version, message, topic.name, asked)
                if (topic.name, asked.partition_index) in repeated:
                    error = ErrorCode.INVALID_REQUEST
                if error is ErrorCode.NONE and (
                    asked.timestamp >= 0 or asked.timestamp == MAX_TIMESTAMP
                ):
                    lookups.append((i, k, asked.timestamp))
                row.append(self._listed(request.api_version, asked, error))
            rows.append((topic.name, row))
        if not lookups:
            self._respond_list_offsets(request, rows)
            return

        unwritten = self._log.unwritten()

        def look_up() -> list[tuple[int, int, int] | None]:
            if not request.connection.is_open:
                return [None] * len(lookups)
            return [self._look_up(timestamp, bounds, unwritten) for _, _, timestamp in lookups]

        def done(outcome: list[tuple[int, int, int] | None] | BaseException) -> None:
            for at, (i, k, _) in enumerate(lookups):
                index = rows[i][1][k].partition_index
                if isinstance(outcome, BaseException):
                    code = int(ErrorCode.KAFKA_STORAGE_ERROR)
                    response = ListOffsetsResponsePartition(partition_index=index, error_code=code)
                else:
                    offset, timestamp, epoch = outcome[at] or (-1, -1, -1)
                    response = ListOffsetsResponsePartition(
                        partition_index=index,
                        timestamp=timestamp,
                        offset=offset,
                        leader_epoch=epoch if request.api_version >= 4 else -1,
                    )
                rows[i][1][k] = response
            self._respond_list_offsets(request, rows)

        # One may take a third of a second, whatever it responds: those of other connections wait for it.
        request.reserve(LOOK_UP_BYTES)
        self._reader.look_up(look_up, done)

    def _look_up(
        self, timestamp: int, bounds: tuple[int, int], unwritten: Sequence[Buffer]
    ) -> tuple[int, int, int] | None:
        """Offset, timestamp and epoch; runs on the thread of look-ups."""
        start, end = bounds
        if timestamp == MAX_TIMESTAMP:
            return self._log.offset_of_max_timestamp(end, start=start, unwritten=unwritten)
        return self._log.offset_for_timestamp(timestamp, end, start=start, unwritten=unwritten)

    def _check_list_offsets(
        self,
        version: int,
        message: ListOffsetsRequest,
        name: str,
        asked: ListOffsetsRequestPartition,
    ) -> ErrorCode:
        view = self._view
        if name != view.topic.name or asked.partition_index != view.topic.index:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if message.isolation_level not in (0, 1):
            return ErrorCode.UNKNOWN_SERVER_ERROR
        if asked.timestamp < EARLIEST_PENDING or version < SPECIAL_SINCE.get(asked.timestamp, 0):
            return ErrorCode.UNSUPPORTED_VERSION
        is_debugging = message.replica_id == DEBUGGING_CONSUMER
        if not (view.is_leader or is_debugging):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if asked.current_leader_epoch < -1:
            return ErrorCode.FENCED_LEADER_EPOCH
        error = check_epoch(view, asked.current_leader_epoch)
        if error is ErrorCode.NONE and not (view.has_committed_in_epoch or is_debugging):
            old = version < 5
            return ErrorCode.LEADER_NOT_AVAILABLE if old else ErrorCode.OFFSET_NOT_AVAILABLE
        return error

    def _listed(
        self, version: int, asked: ListOffsetsRequestPartition, error: ErrorCode
    ) -> ListOffsetsResponsePartition:
        """The response that needs no disk."""
        if error is not ErrorCode.NONE:
            return ListOffsetsResponsePartition(
                partition_index=asked.partition_index, error_code=int(error)
            )
        view = self._view
        offset = {
            LATEST: view.committed_offset,
            EARLIEST: view.log_start_offset,
            EARLIEST_LOCAL: view.log_start_offset,
        }.get(asked.timestamp, -1)
        return ListOffsetsResponsePartition(
            partition_index=asked.partition_index,
            offset=offset,
            leader_epoch=view.leader_epoch if version >= 4 and offset >= 0 else -1,
        )

    def _respond_list_offsets(
        self,
        request: InboundRequest,
        rows: Sequence[tuple[str, list[ListOffsetsResponsePartition]]],
    ) -> None:
        topics = tuple(
            ListOffsetsResponseTopic(name=name, partitions=tuple(row)) for name, row in rows
        )
        request.respond_message(ListOffsetsResponse(topics=topics))

    # -- OffsetForLeaderEpoch

    def offset_for_leader_epoch(
        self, request: InboundRequest, message: OffsetForLeaderEpochRequest
    ) -> None:
        """End offset of an epoch, bounded by the high watermark for consumers (KIP-320)."""
        topics = tuple(
            OffsetForLeaderEpochResponseTopic(
                topic=topic.topic,
                partitions=tuple(
                    self._epoch_end(topic.topic, asked, message.replica_id)
                    for asked in topic.partitions
                ),
            )
            for topic in message.topics
        )
        request.respond_message(OffsetForLeaderEpochResponse(topics=topics))

    def _epoch_end(
        self, name: str, asked: OffsetForLeaderEpochRequestPartition, replica_id: int
    ) -> OffsetForLeaderEpochResponsePartition:
        view = self._view
        if name != view.topic.name or asked.partition != view.topic.index:
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif not view.is_leader:
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        else:
            error = check_epoch(view, asked.current_leader_epoch)
            if error is ErrorCode.NONE and not view.has_committed_in_epoch:
                error = ErrorCode.OFFSET_NOT_AVAILABLE
        if error is not ErrorCode.NONE:
            return OffsetForLeaderEpochResponsePartition(
                partition=asked.partition, error_code=int(error)
            )
        if asked.leader_epoch < 0 or asked.leader_epoch > view.leader_epoch:
            return OffsetForLeaderEpochResponsePartition(partition=asked.partition)
        found = view.end_offset_for(asked.leader_epoch)
        end = found.offset if replica_id >= 0 else min(found.offset, view.committed_offset)
        return OffsetForLeaderEpochResponsePartition(
            partition=asked.partition, leader_epoch=found.epoch, end_offset=end
        )
