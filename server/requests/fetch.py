"""Consumers: Fetch up to the high watermark, ListOffsets, OffsetForLeaderEpoch.

Only the leader answers, and only once a record of its own epoch is committed: before that it may not
know everything that was committed under an earlier leader. A fetch with nothing to return waits for the
high watermark, at most MaxWaitMs.

Who calls itself replica -2, Kafka's debugging consumer, wants to see this very log: any replica answers
it at once, up to what it knows to be committed itself, in Fetch and ListOffsets. Source: Kafka's consumer
protocol; KIP-320, KIP-392.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from quorumd.server.model.partition_view import PartitionView
from quorumd.server.model.runtime import Reader, Runtime, TimerHandle
from quorumd.server.net.inbound_request import InboundRequest
from quorumd.server.translate.common import endpoint_on, id_or_minus_one
from quorumd.storage.errors import OffsetNotInLog
from quorumd.storage.log import Log
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.fetch import (
    FetchRequest,
    FetchRequestPartition,
    FetchResponse,
    FetchResponseCurrentLeader,
    FetchResponseNodeEndpoint,
    FetchResponsePartition,
    FetchResponseTopic,
)
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

FETCH_BYTES_MAX = 16 * 2**20
"""Most bytes of one answer, whatever the consumer asks for; a first batch is whole all the same."""
PARKED_MAX = 10_000
"""Most fetches that wait at a time; one more is answered empty at once."""
SWEEP_S = 5.0
"""How often fetches that wait are looked through for those whose connection is gone."""
LEADER_ERRORS = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
"""Errors after which a consumer looks for the leader: the answer says where it is."""
DEBUGGING_CONSUMER = -2
"""The replica id of a consumer that wants the log of the replica that it asks. Source: Kafka,
ReplicaVerificationTool."""

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING = range(-1, -7, -1)
SPECIAL_SINCE = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING: 11}
"""The version from which each special timestamp is known; -1 and -2 always were."""


@dataclass(slots=True)
class PartitionFetch:
    """One partition of a fetch: an error, or what to read."""

    index: int
    asked: FetchRequestPartition
    error: ErrorCode = ErrorCode.NONE
    records: list[bytes | memoryview] = field(default_factory=list)


@dataclass(slots=True)
class ConsumerFetch:
    """A fetch on its way. `slot` is the partition that is served here, if it was asked for.

    `is_debugging`: it is for the log of this replica, whether it leads or not.
    """

    request: InboundRequest
    message: FetchRequest
    slots: dict[tuple[int, int], PartitionFetch]
    slot: PartitionFetch | None
    is_debugging: bool
    deadline: float


def is_for_debugging(message: FetchRequest) -> bool:
    """True for a fetch of the debugging consumer, in any version."""
    return DEBUGGING_CONSUMER in (message.replica_id, message.replica_state.replica_id)


class FetchHandler:
    """Answers consumers for one partition."""

    def __init__(self, view: PartitionView, log: Log, reader: Reader, runtime: Runtime) -> None:
        self._view = view
        self._log = log
        self._reader = reader
        self._runtime = runtime
        self._parked: list[ConsumerFetch] = []
        self._alarm: TimerHandle | None = None
        self._alarm_at = 0.0

    # -- Fetch

    def fetch(self, request: InboundRequest, message: FetchRequest) -> None:
        """Answer a consumer's fetch, now or when there is something to say."""
        if message.session_id > 0:
            self._refuse(request, ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            return
        if message.session_epoch not in (0, -1):
            self._refuse(request, ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            return
        is_odd = message.isolation_level not in (0, 1) or message.max_bytes < 0
        is_debugging = is_for_debugging(message)
        slots: dict[tuple[int, int], PartitionFetch] = {}
        served: PartitionFetch | None = None
        for i, topic in enumerate(message.topics):
            for k, asked in enumerate(topic.partitions):
                slot = PartitionFetch(asked.partition, asked)
                slot.error = self._check(
                    request.api_version, topic.topic, topic.topic_id, asked, is_debugging
                )
                if is_odd and slot.error is ErrorCode.NONE:
                    slot.error = ErrorCode.UNKNOWN_SERVER_ERROR
                slots[i, k] = slot
                if slot.error is ErrorCode.NONE:
                    served = slot
        # Who waits is sent to the next leader when there is one, and that is another log.
        wait_ms = 0 if is_debugging else max(0, message.max_wait_ms)
        deadline = self._runtime.monotonic_s() + wait_ms / 1000
        fetch = ConsumerFetch(request, message, slots, served, is_debugging, deadline)
        if served is None:
            self._respond(fetch)
        else:
            self._serve(fetch)

    def _refuse(self, request: InboundRequest, error: ErrorCode) -> None:
        request.respond_message(FetchResponse(error_code=int(error)))

    def _check(
        self,
        version: int,
        name: str,
        topic_id: UUID,
        asked: FetchRequestPartition,
        is_debugging: bool,
    ) -> ErrorCode:
        view = self._view
        if version >= 13:
            if topic_id != view.topic.topic_id:
                return ErrorCode.UNKNOWN_TOPIC_ID
        elif name != view.topic.name:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if asked.partition != view.topic.index:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if asked.partition_max_bytes < 0:
            return ErrorCode.UNKNOWN_SERVER_ERROR
        if not (view.is_leader or is_debugging):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return self._check_epoch(asked.current_leader_epoch)

    def _check_epoch(self, epoch: int) -> ErrorCode:
        if epoch < 0 or epoch == self._view.leader_epoch:
            return ErrorCode.NONE
        if epoch < self._view.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        return ErrorCode.UNKNOWN_LEADER_EPOCH

    def _serve(self, fetch: ConsumerFetch) -> None:
        """Read if there is enough below the high watermark, else park."""
        slot, view = fetch.slot, self._view
        assert slot is not None, "only fetches of this partition are served"
        if view.has_committed_in_epoch or fetch.is_debugging:
            offset = slot.asked.fetch_offset
            if not view.log_start_offset <= offset <= view.committed_offset:
                slot.error = ErrorCode.OFFSET_OUT_OF_RANGE
                self._respond(fetch)
                return
            if offset < view.committed_offset:
                self._read(fetch, slot)
                return
        asked_for_none = min(fetch.message.min_bytes, fetch.message.max_bytes) <= 0
        if asked_for_none or not self._park(fetch):
            self._respond(fetch)

    def _park(self, fetch: ConsumerFetch) -> bool:
        """Let the fetch wait, if it has time left and there is room."""
        if fetch.deadline <= self._runtime.monotonic_s() or len(self._parked) >= PARKED_MAX:
            return False
        self._parked.append(fetch)
        self._arm(fetch.deadline)
        return True

    def _read(self, fetch: ConsumerFetch, slot: PartitionFetch) -> None:
        end = self._view.committed_offset
        wanted = min(fetch.message.max_bytes, slot.asked.partition_max_bytes, FETCH_BYTES_MAX)
        cached = self._reader.cached(slot.asked.fetch_offset, wanted, end)
        if cached is not None:
            self._on_read(fetch, slot, cached, end)
            return

        def done(outcome: bytes | BaseException) -> None:
            if isinstance(outcome, OffsetNotInLog):
                slot.error = ErrorCode.OFFSET_OUT_OF_RANGE
                self._respond(fetch)
            elif isinstance(outcome, BaseException):
                slot.error = ErrorCode.KAFKA_STORAGE_ERROR
                self._respond(fetch)
            else:
                self._on_read(fetch, slot, [outcome], end)

        self._reader.read(slot.asked.fetch_offset, wanted, end, done)

    def _on_read(
        self,
        fetch: ConsumerFetch,
        slot: PartitionFetch,
        records: list[bytes | memoryview],
        end: int,
    ) -> None:
        """Answer, unless the consumer asked to wait for more than there is."""
        size = sum(map(len, records))
        wanted = min(
            fetch.message.min_bytes, fetch.message.max_bytes, slot.asked.partition_max_bytes
        )
        if not (self._view.is_leader or fetch.is_debugging):
            slot.error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif size < wanted and self._park(fetch):
            return
        slot.records = records
        self._respond(fetch)

    def on_high_watermark(self) -> None:
        """There may be something for the fetches that wait."""
        parked, self._parked = self._parked, []
        for fetch in parked:
            self._serve(fetch)

    def on_leadership_lost(self) -> None:
        """Send the consumers that wait to the new leader."""
        parked, self._parked = self._parked, []
        for fetch in parked:
            assert fetch.slot is not None, "only fetches of this partition are parked"
            fetch.slot.error = ErrorCode.NOT_LEADER_OR_FOLLOWER
            self._respond(fetch)

    def _arm(self, deadline: float) -> None:
        """Set the alarm for a deadline, unless it goes off before; at the latest for the next sweep."""
        at = min(deadline, self._runtime.monotonic_s() + SWEEP_S)
        if self._alarm is not None:
            if self._alarm_at <= at:
                return
            self._alarm.cancel()
        self._alarm_at = at
        self._alarm = self._runtime.call_at(at, self._on_alarm)

    def _on_alarm(self) -> None:
        """Answer the fetches whose time is over; forget those whose connection is gone."""
        self._alarm = None
        now = self._runtime.monotonic_s()
        due = [fetch for fetch in self._parked if fetch.deadline <= now]
        self._parked = [
            fetch
            for fetch in self._parked
            if fetch.deadline > now and fetch.request.connection.is_open
        ]
        if self._parked:
            self._arm(min(fetch.deadline for fetch in self._parked))
        for fetch in due:
            self._serve(fetch)

    def close(self) -> None:
        """Stop looking at the clock."""
        if self._alarm is not None:
            self._alarm.cancel()

    def _respond(self, fetch: ConsumerFetch) -> None:
        request, message = fetch.request, fetch.message
        responses = tuple(
            FetchResponseTopic(
                topic=topic.topic,
                topic_id=topic.topic_id,
                partitions=tuple(
                    self._partition_response(fetch, fetch.slots[i, k])
                    for k in range(len(topic.partitions))
                ),
            )
            for i, topic in enumerate(message.topics)
        )
        errors = {slot.error for slot in fetch.slots.values()}
        nodes: tuple[FetchResponseNodeEndpoint, ...] = ()
        leader_id = self._view.leader_id
        if errors & set(LEADER_ERRORS) and request.api_version >= 16 and leader_id is not None:
            at = endpoint_on(self._view.leader_endpoints, request.listener.name)
            if at is not None:
                node = FetchResponseNodeEndpoint(node_id=leader_id, host=at.host, port=at.port)
                nodes = (node,)
        request.respond_message(FetchResponse(responses=responses, node_endpoints=nodes))

    def _partition_response(
        self, fetch: ConsumerFetch, slot: PartitionFetch
    ) -> FetchResponsePartition:
        view = self._view
        if slot.error is not ErrorCode.NONE:
            current = FetchResponseCurrentLeader()
            if slot.error in LEADER_ERRORS and fetch.request.api_version >= 12:
                current = FetchResponseCurrentLeader(
                    leader_id=id_or_minus_one(view.leader_id), leader_epoch=view.leader_epoch
                )
            return FetchResponsePartition(
                partition_index=slot.index,
                error_code=int(slot.error),
                high_watermark=-1,
                current_leader=current,
                aborted_transactions=(),
                records=b"",
            )
        knows = view.has_committed_in_epoch or fetch.is_debugging
        committed = view.committed_offset if knows else -1
        records = slot.records
        return FetchResponsePartition(
            partition_index=slot.index,
            high_watermark=committed,
            last_stable_offset=committed,
            log_start_offset=view.log_start_offset,
            aborted_transactions=(),
            records=records[0] if len(records) == 1 else b"".join(records),
        )

    # -- ListOffsets

    def list_offsets(self, request: InboundRequest, message: ListOffsetsRequest) -> None:
        """Answer once the disk was read where that is needed."""
        seen: dict[tuple[str, int], int] = {}
        for topic in message.topics:
            for asked in topic.partitions:
                key = (topic.name, asked.partition_index)
                seen[key] = seen.get(key, 0) + 1
        repeated = {key for key, count in seen.items() if count > 1}
        end = self._view.committed_offset
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

        def look_up() -> list[tuple[int, int, int] | None]:
            return [self._look_up(timestamp, end) for _, _, timestamp in lookups]

        def done(outcome: list[tuple[int, int, int] | None] | BaseException) -> None:
            for at, (i, k, _) in enumerate(lookups):
                index = rows[i][1][k].partition_index
                if isinstance(outcome, BaseException):
                    code = int(ErrorCode.KAFKA_STORAGE_ERROR)
                    answer = ListOffsetsResponsePartition(partition_index=index, error_code=code)
                else:
                    offset, timestamp, epoch = outcome[at] or (-1, -1, -1)
                    answer = ListOffsetsResponsePartition(
                        partition_index=index,
                        timestamp=timestamp,
                        offset=offset,
                        leader_epoch=epoch if request.api_version >= 4 else -1,
                    )
                rows[i][1][k] = answer
            self._respond_list_offsets(request, rows)

        self._reader.run(look_up, done)

    def _look_up(self, timestamp: int, end_offset: int) -> tuple[int, int, int] | None:
        """Offset, timestamp and epoch; runs on the reader's thread."""
        if timestamp == MAX_TIMESTAMP:
            return self._log.offset_of_max_timestamp(end_offset)
        return self._log.offset_for_timestamp(timestamp, end_offset)

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
        error = self._check_epoch(asked.current_leader_epoch)
        if error is ErrorCode.NONE and not (view.has_committed_in_epoch or is_debugging):
            old = version < 5
            return ErrorCode.LEADER_NOT_AVAILABLE if old else ErrorCode.OFFSET_NOT_AVAILABLE
        return error

    def _listed(
        self, version: int, asked: ListOffsetsRequestPartition, error: ErrorCode
    ) -> ListOffsetsResponsePartition:
        """The answer that needs no disk."""
        if error is not ErrorCode.NONE:
            return ListOffsetsResponsePartition(
                partition_index=asked.partition_index, error_code=int(error)
            )
        view = self._view
        offset = {
            LATEST: view.committed_offset,
            EARLIEST: view.log_start_offset,
            EARLIEST_LOCAL: view.log_start_offset,
            EARLIEST_PENDING: view.log_start_offset,
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
        """Where an epoch ends, bounded by the high watermark for consumers (KIP-320)."""
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
            error = self._check_epoch(asked.current_leader_epoch)
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
