"""Consumers' Fetch: up to the high watermark. The questions for offsets are in `offsets`.

Only the leader responds, and only once a record of its own epoch is committed: before that it may not
know everything that was committed under an earlier leader. A fetch with nothing to return waits for the
high watermark, at most MaxWaitMs.

A consumer with replica id -2, Kafka's debugging consumer, wants this replica's log: any replica responds at
once, in Fetch and ListOffsets, up to what it knows to be committed. Source: Kafka's consumer protocol;
KIP-320, KIP-392.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from quorumd.raft.types import OffsetAndEpoch
from quorumd.server.model.partition_view import PartitionView
from quorumd.server.model.runtime import Reader, Runtime, TimerHandle
from quorumd.server.net.inbound_request import InboundRequest
from quorumd.server.requests.client_reads import ClientReads
from quorumd.server.translate.common import endpoint_on
from quorumd.storage.errors import OffsetNotInLog
from quorumd.storage.log import Log
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.fast import replica_id_of
from quorumd.wire.messages.fetch import (
    FetchRequest,
    FetchRequestPartition,
    FetchResponse,
    FetchResponseCurrentLeader,
    FetchResponseDivergingEpoch,
    FetchResponseNodeEndpoint,
    FetchResponsePartition,
    FetchResponseTopic,
)
from quorumd.wire.records import iter_headers

FETCH_BYTES_MAX: Final = 4 * 2**20
"""Most bytes of one response, even if the consumer permits more; a first batch is whole all the same."""
PARKED_MAX = 10_000
"""Most fetches that wait at a time; one more gets an empty response at once."""
SHARE_S: Final = 0.002
"""Time for which waiting fetches are served in one turn of the event loop; one more may follow. A thousand
consumers at once would keep it from producers and replicas for a second."""
WAIT_MS_MAX = 300_000
"""Longest wait of a consumer, as librdkafka permits it; then the response is empty. Where several wait on a
connection it is not read from, so that only a response shows whether its client is still there."""
SWEEP_S = 5.0
"""Time between searches of parked fetches for those whose connection is gone."""
LEADER_ERRORS: Final = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
"""Errors after which a consumer searches for the leader: the response says where it is."""
DEBUGGING_CONSUMER: Final = -2
"""The replica id of a consumer that wants the log of the replica that it asks. Source: Kafka,
ReplicaVerificationTool."""


@dataclass(slots=True)
class PartitionFetch:
    """One partition of a fetch: an error, or what to read."""

    index: int
    asked: FetchRequestPartition
    error: ErrorCode = ErrorCode.NONE
    records: list[bytes | memoryview] = field(default_factory=list)
    diverging: OffsetAndEpoch | None = None
    """Point at which the records that the consumer has read part from this log."""


@dataclass(slots=True)
class ConsumerFetch:
    """A fetch on its way. `slot` is the partition that is served here, if it was asked for.

    `is_debugging`: it is for the log of this replica, whether it leads or not.
    """

    request: InboundRequest
    message: FetchRequest
    slots: dict[tuple[int, int], PartitionFetch]
    """By the places of topic and partition in the request."""
    slot: PartitionFetch | None
    is_debugging: bool
    deadline: float


def check_epoch(view: PartitionView, epoch: int) -> ErrorCode:
    """Compare the client's epoch with the leader's; a negative one is not compared (KIP-320)."""
    if epoch < 0 or epoch == view.leader_epoch:
        return ErrorCode.NONE
    if epoch < view.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    return ErrorCode.UNKNOWN_LEADER_EPOCH


def is_for_debugging(message: FetchRequest, version: int) -> bool:
    """True for a fetch of the debugging consumer."""
    return replica_id_of(message, version) == DEBUGGING_CONSUMER


def is_of_replica(
    replica_id: int,
    directory_id: UUID,
    last_fetched_epoch: int,
    fetch_offset: int,
    partition_max_bytes: int,
    max_bytes: int,
) -> bool:
    """True for a fetch of a replica, which also gets records that are not committed.

    A replica names the epoch of its last record. Some consumers do so, too (KIP-320, kafka-python); but a
    replica has an id, or an observer without one at least names its directory. A client of this package
    looks for the newest snapshot as an empty replica: from offset 0, for 0 bytes of the partition and 1 in
    all. No more comes with the response than the first batch of the log, which is a control batch.
    """
    if last_fetched_epoch < 0 or replica_id == DEBUGGING_CONSUMER:
        return False
    if replica_id >= 0 or directory_id.int:
        return True
    return (fetch_offset, partition_max_bytes, max_bytes) == (0, 0, 1)


def _reaches(records: list[bytes | memoryview], end: int) -> bool:
    """True if a read got all below `end`: one that ended before, at a limit, gets no more by waiting."""
    next_offset = end
    for _, header in iter_headers(records[-1]) if records else ():
        next_offset = header.next_offset
    return next_offset >= end


class FetchHandler:
    """Responds to consumers' fetches of one partition."""

    def __init__(self, view: PartitionView, log: Log, reader: Reader, runtime: Runtime) -> None:
        self._view = view
        self._log = log
        self._reader = reader
        self._reads = ClientReads()
        self._runtime = runtime
        self._parked: list[ConsumerFetch] = []
        self._woken: deque[ConsumerFetch] = deque()
        """Fetches that the high watermark has reached, and later ones, which wait for a turn."""
        self._has_turn = False
        self._timer: TimerHandle | None = None
        self._timer_at = 0.0

    def fetch(self, request: InboundRequest, message: FetchRequest) -> None:
        """Respond to a consumer's fetch, now or when there are records."""
        if message.session_epoch not in (0, -1):
            error = int(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            request.respond_message(FetchResponse(error_code=error))
            return
        is_odd = message.isolation_level not in (0, 1) or message.max_bytes < 0
        is_debugging = is_for_debugging(message, request.api_version)
        slots: dict[tuple[int, int], PartitionFetch] = {}
        served: PartitionFetch | None = None
        served_at = (0, 0)
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
                    if served is not None:  # asked for twice: the last counts
                        del slots[served_at]
                    served, served_at = slot, (i, k)
        # A waiting client is sent to the next leader when there is one, and that is another log.
        wait_ms = 0 if is_debugging else min(message.max_wait_ms, WAIT_MS_MAX)
        deadline = self._runtime.monotonic_s() + wait_ms / 1000
        fetch = ConsumerFetch(request, message, slots, served, is_debugging, deadline)
        if served is None:
            self._respond(fetch)
        else:
            request.reserve(FETCH_BYTES_MAX)  # also for less: a first batch is whole all the same
            if self._woken:
                self._woken.append(fetch)
            else:
                self._serve(fetch)

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
        return check_epoch(view, asked.current_leader_epoch)

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
            if slot.asked.last_fetched_epoch >= 0 and not fetch.is_debugging:
                self._compare_epochs(slot)
                if slot.error is not ErrorCode.NONE or slot.diverging is not None:
                    self._respond(fetch)
                    return
            if offset < view.committed_offset:
                self._read(fetch, slot)
                return
        asked_for_none = min(fetch.message.min_bytes, fetch.message.max_bytes) <= 0
        if asked_for_none or not self._park(fetch):
            self._respond(fetch)

    def _compare_epochs(self, slot: PartitionFetch) -> None:
        """Compares the consumer's last record with this log, as a replica's would be (KIP-595)."""
        asked, view = slot.asked, self._view
        if asked.last_fetched_epoch > view.leader_epoch:
            slot.error = ErrorCode.OFFSET_OUT_OF_RANGE
            return
        end = view.end_offset_for(asked.last_fetched_epoch)
        if end.epoch < asked.last_fetched_epoch or end.offset < asked.fetch_offset:
            slot.diverging = end

    def _park(self, fetch: ConsumerFetch) -> bool:
        """Let the fetch wait, if it has time left and there is room."""
        waiting = len(self._parked) + len(self._woken)
        if fetch.deadline <= self._runtime.monotonic_s() or waiting >= PARKED_MAX:
            return False
        self._parked.append(fetch)
        self._arm(fetch.deadline)
        return True

    def _read(self, fetch: ConsumerFetch, slot: PartitionFetch) -> None:
        """Respond, unless the consumer asked to wait for more than there is.

        What is read from disk is not waited for: behind it is what is in memory.
        """
        message, asked, end = fetch.message, slot.asked, self._view.committed_offset
        most = min(message.max_bytes, asked.partition_max_bytes, FETCH_BYTES_MAX)
        cached = self._reader.cached(asked.fetch_offset, most, end)
        if cached is not None:
            wanted = min(message.min_bytes, message.max_bytes, asked.partition_max_bytes)
            is_short = sum(map(len, cached)) < wanted and _reaches(cached, end)
            if not (is_short and self._park(fetch)):
                slot.records = cached
                self._respond(fetch)
            return

        def done(outcome: bytes | BaseException) -> None:
            if isinstance(outcome, OffsetNotInLog):
                slot.error = ErrorCode.OFFSET_OUT_OF_RANGE
            elif isinstance(outcome, BaseException):
                slot.error = ErrorCode.KAFKA_STORAGE_ERROR
            elif not (self._view.is_leader or fetch.is_debugging):
                slot.error = ErrorCode.NOT_LEADER_OR_FOLLOWER
            else:
                slot.records = [outcome]
            self._respond(fetch)

        def read(finished: Callable[[bytes | BaseException], None]) -> None:
            if fetch.is_debugging:
                # Such a reader looks for damage, and goes on behind it.
                self._reader.run(lambda: self._log.read(asked.fetch_offset, most, end), finished)
            else:
                self._reader.read(asked.fetch_offset, most, end, finished)

        self._reads.add(fetch.request.connection, read, done)

    def on_high_watermark(self) -> None:
        """There may be something for the fetches that wait."""
        if self._parked:
            self._woken.extend(self._parked)
            self._parked.clear()
            if not self._has_turn:
                self._serve_woken()

    def _serve_woken(self) -> None:
        """As many as a turn has time for, the others in turns to come."""
        self._has_turn = False
        now_s = self._runtime.monotonic_s
        until_s = now_s() + SHARE_S
        while self._woken:
            fetch = self._woken.popleft()
            if fetch.request.connection.is_open:
                self._serve(fetch)
            if self._woken and now_s() >= until_s:
                self._has_turn = True
                self._runtime.call_soon(self._serve_woken)
                return

    def on_leadership_lost(self) -> None:
        """Send the consumers that wait to the new leader."""
        waiting = [*self._woken, *self._parked]
        self._woken.clear()
        self._parked = []
        for fetch in waiting:
            assert fetch.slot is not None, "only fetches of this partition are parked"
            fetch.slot.error = ErrorCode.NOT_LEADER_OR_FOLLOWER
            self._respond(fetch)

    def _arm(self, deadline: float) -> None:
        """Set the timer for a deadline, unless it goes off before; at the latest for the next sweep."""
        at = min(deadline, self._runtime.monotonic_s() + SWEEP_S)
        if self._timer is not None:
            if self._timer_at <= at:
                return
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._runtime.call_at(at, self._on_timer)

    def _on_timer(self) -> None:
        """Respond to fetches whose wait is over; forget those whose connection is gone."""
        self._timer = None
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
        """Cancel the timers, and serve no further turn."""
        self._woken.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _respond(self, fetch: ConsumerFetch) -> None:
        request, message = fetch.request, fetch.message
        rows: dict[int, list[FetchResponsePartition]] = {}
        for (i, _), slot in fetch.slots.items():
            rows.setdefault(i, []).append(self._partition_response(fetch, slot))
        responses = tuple(
            FetchResponseTopic(
                topic=message.topics[i].topic,
                topic_id=message.topics[i].topic_id,
                partitions=tuple(row),
            )
            for i, row in rows.items()
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
            is_elsewhere = slot.error in LEADER_ERRORS and fetch.request.api_version >= 12
            # As in Produce: an epoch alone says nothing to a consumer.
            if is_elsewhere and view.leader_id is not None:
                current = FetchResponseCurrentLeader(
                    leader_id=view.leader_id, leader_epoch=view.leader_epoch
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
        diverging = FetchResponseDivergingEpoch()
        if slot.diverging is not None:
            end_offset, epoch = slot.diverging
            diverging = FetchResponseDivergingEpoch(epoch=epoch, end_offset=end_offset)
        return FetchResponsePartition(
            partition_index=slot.index,
            high_watermark=committed,
            last_stable_offset=committed,
            log_start_offset=view.log_start_offset,
            diverging_epoch=diverging,
            aborted_transactions=(),
            records=records[0] if len(records) == 1 else b"".join(records),
        )
