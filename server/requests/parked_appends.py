"""Appends of producers that wait for the high watermark: Kafka's purgatory of delayed Produce requests.

A batch gets its response when everything up to its end is committed, when its request's timeout is over, or
when leadership is lost. Source: Kafka's Produce (acks, timeout.ms).
"""

from __future__ import annotations

from collections import deque
from functools import partial
from math import inf
from typing import Final

from quorumd.server.model.metrics import Metrics
from quorumd.server.model.partition_view import PartitionView
from quorumd.server.model.runtime import Runtime, TimerHandle
from quorumd.server.requests.pending_produce import PartitionResult, PendingAppend, PendingBatch
from quorumd.server.requests.produce_response import ProduceResponder
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.fast import ProduceResponseWriter

SHARE_S: Final = 0.005
"""So long a turn of the event loop refuses appends: a leader that loses its majority may have 70,000."""
SWEEP_S = 0.1
"""Time between searches of parked appends for requests whose timeout is over."""


class ParkedAppends:
    """See the module's docstring. `appends` are in the order of their end offsets."""

    def __init__(
        self,
        view: PartitionView,
        metrics: Metrics,
        runtime: Runtime,
        responder: ProduceResponder,
    ) -> None:
        self._view = view
        self._metrics = metrics
        self._runtime = runtime
        self._responder = responder
        self.appends: deque[PendingAppend] = deque()
        self.uncommitted_bytes = 0
        """Bytes that clients have appended beyond the high watermark."""
        self._responses: dict[int, ProduceResponseWriter] = {}
        """By version."""
        self._sweeper: TimerHandle | None = None

    @property
    def batch_count(self) -> int:
        """Batches that wait for their commit."""
        return sum(len(append.batches) for append in self.appends)

    def park(self, append: PendingAppend) -> None:
        """Keep an append at the end of the log until it is committed."""
        self.appends.append(append)
        self.uncommitted_bytes += append.held_bytes
        if self._sweeper is None:
            self._arm_sweeper()

    def park_duplicate(self, duplicate: PendingAppend) -> None:
        """Keep a duplicate, or a refusal, until its cause is committed; in the order of end offsets."""
        end_offset = duplicate.end_offset
        if end_offset <= self._view.committed_offset:
            self._respond(duplicate)
            return
        at = len(self.appends)
        while at and self.appends[at - 1].end_offset > end_offset:
            at -= 1
        self.appends.insert(at, duplicate)
        if self._sweeper is None:
            self._arm_sweeper()

    def on_high_watermark(self, offset: int) -> None:
        """Respond to everything below the high watermark, in the order of the log."""
        parked = self.appends
        now = 0.0
        at = 0
        while at < len(parked):
            append = parked[at]
            if append.end_offset <= offset:
                del parked[at]
            else:  # followers have got a part of it
                part = append.cut(offset)
                if part is None:
                    if append.held_bytes:
                        return
                    at += 1  # A refusal or duplicate: what it waits for may be in the middle of an append.
                    continue
                append = part
            if append.refusal is None:
                now = now or self._runtime.monotonic_s()
                self._metrics.observe_commit(now - append.since, len(append.batches))
            self.uncommitted_bytes -= append.held_bytes
            self._respond(append)

    def _respond(self, append: PendingAppend) -> None:
        """Send the responses of an append that is committed, or refused for a record that is."""
        if append.refusal is not None:
            self._refuse(append.batches[0], append.refusal)
            return
        log_start_offset = self._view.log_start_offset
        for batch in append.batches:
            if batch.has_response:
                continue
            head, request = batch.head, batch.request
            if batch.whole is not None or not head.acks:
                self._responder.finish(batch, PartitionResult(base_offset=batch.base_offset))
                continue
            responses = self._responses.get(request.api_version)
            if responses is None:
                responses = self._writer(batch)
            request.respond(
                (responses.encode(request.correlation_id, batch.base_offset, log_start_offset),)
            )

    def _writer(self, batch: PendingBatch) -> ProduceResponseWriter:
        """Writer for the version of the batch's request."""
        head, version = batch.head, batch.request.api_version
        made = ProduceResponseWriter(version, head.topic, head.partition)
        self._responses[version] = made
        return made

    def _refuse(self, batch: PendingBatch, refusal: PartitionResult) -> None:
        """Many who write one key under a condition are refused for each who succeeds."""
        if batch.whole is not None:
            self._responder.finish(batch, refusal)
            return
        # A condition without acknowledgement was refused before.
        index, message, request = refusal.record_index, refusal.message, batch.request
        assert index is not None, "it is refused for a record"
        assert message is not None, "it says for which write"
        self._metrics.count_refused(refusal.error.name)
        responses = self._responses.get(request.api_version) or self._writer(batch)
        text = message.encode()
        request.respond(
            (responses.encode_refusal(request.correlation_id, int(refusal.error), index, text),)
        )

    def refuse_all(self, result: PartitionResult) -> None:
        """Give every parked batch this result, many of them in turns to come; none is parked any more."""
        parked, self.appends = self.appends, deque()
        self.uncommitted_bytes = 0
        self._refuse_in_turns(parked, result)

    def _refuse_in_turns(self, parked: deque[PendingAppend], result: PartitionResult) -> None:
        now_s = self._runtime.monotonic_s
        until_s = now_s() + SHARE_S
        while parked:
            for batch in parked.popleft().batches:
                if not batch.has_response:
                    self._responder.finish(batch, result)
            if parked and now_s() >= until_s:
                self._runtime.call_soon(partial(self._refuse_in_turns, parked, result))
                return

    def _arm_sweeper(self) -> None:
        at = self._runtime.monotonic_s() + SWEEP_S
        self._sweeper = self._runtime.call_at(at, self._sweep)

    def _sweep(self) -> None:
        """Respond to requests whose timeout is over; their records stay appended and may still commit."""
        self._sweeper = None
        now = self._runtime.monotonic_s()
        late = "not committed in time: no majority of the voters responds"
        has_idle_duplicates = False
        for append in self.appends:
            if append.deadline is not None and append.deadline > now:
                continue
            for batch in append.batches:
                if batch.has_response:
                    continue
                if append.refusal is not None and append.sure_s <= now:
                    self._responder.finish(batch, append.refusal)
                elif batch.deadline <= now:
                    what = "appended, but" if append.refusal is None else "what it depends on is"
                    result = PartitionResult(ErrorCode.REQUEST_TIMED_OUT, f"{what} {late}")
                    self._responder.finish(batch, result)
                else:
                    continue
                has_idle_duplicates = has_idle_duplicates or not append.held_bytes
            waiting = (batch for batch in append.batches if not batch.has_response)
            append.deadline = min(
                (min(batch.deadline, append.sure_s) for batch in waiting), default=inf
            )
        if has_idle_duplicates:
            self.appends = deque(
                append for append in self.appends if append.held_bytes or append.deadline != inf
            )
        if self.appends:
            self._arm_sweeper()

    def close(self) -> None:
        """Cancel the timer."""
        if self._sweeper is not None:
            self._sweeper.cancel()
