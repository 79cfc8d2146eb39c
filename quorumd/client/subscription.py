"""Following the log: a snapshot where one is needed, then batch after batch, across leader changes and
outages.

Knows neither keys nor values. Reads as a consumer does, so only below the high watermark.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from quorumd.client.download import SnapshotDownloader
from quorumd.client.errors import LogReplaced, OffsetOutOfRange, QuorumUnavailable
from quorumd.client.events import (
    BatchCommitted,
    LeaderChanged,
    LogEvent,
    QuorumLost,
    QuorumRestored,
    SnapshotLoaded,
)
from quorumd.client.reading import Fetched, FetchedBatch
from quorumd.client.spool import SnapshotSpool
from quorumd.client.timing import Deadline, RetryBackoff
from quorumd.security.errors import CertificateProblem
from quorumd.wire.sequence_check import epoch_problem

FOLLOWED_BYTES = 1024 * 1024
"""To fetch at a time: all records of a response are held."""
FetchFrom = Callable[[int], Awaitable[Fetched]]


class LogSubscription:
    """One reader's position in the log. Close it.

    `offset` is the first offset to read, None for the newest snapshot or else the log start. `on_response` is
    called whenever the leader has responded. With `waits_for_leader` it begins in an outage, too.
    """

    def __init__(
        self,
        fetch: FetchFrom,
        download: SnapshotDownloader,
        *,
        timeout_ms: int,
        offset: int | None,
        on_response: Callable[[], object] | None = None,
        waits_for_leader: bool = False,
    ) -> None:
        self._on_response = on_response
        self._fetch = fetch
        self._download = download
        self._timeout_ms = timeout_ms
        self._offset = offset or 0
        self._wants_snapshot = offset is None
        self._epoch = -1
        self._leader_epoch = -1
        self._has_begun = False
        self._waits_for_leader = waits_for_leader
        self._is_lost = False
        self._out_of_range: Deadline | None = None
        self._backoff = RetryBackoff()
        self._spool: SnapshotSpool | None = None

    async def step(self) -> list[LogEvent]:
        """The next events, perhaps none; deletes the temporary file of an earlier SnapshotLoaded.

        See QuorumClient.follow for the errors.
        """
        self._drop_spool()
        try:
            events = await self._next()
        except (QuorumUnavailable, CertificateProblem) as error:
            if not self._has_begun and not self._waits_for_leader:
                raise
            if isinstance(error, CertificateProblem):
                # The error comes at once, and certificates are made anew while a reader goes on.
                await asyncio.sleep(self._backoff.next_s())
            if self._is_lost:
                return []
            self._is_lost = True
            return [QuorumLost(error)]
        self._has_begun = True
        if self._on_response is not None:
            self._on_response()
        if self._is_lost:
            self._is_lost = False
            return [QuorumRestored(), *events]
        return events

    def close(self) -> None:
        """Removes temporary files."""
        self._drop_spool()
        self._download.close()

    async def _next(self) -> list[LogEvent]:
        if not self._has_begun:
            leader = await self._download.leader()
            self._leader_epoch = leader.epoch
            return [LeaderChanged(leader.leader_id, leader.epoch)]
        if self._wants_snapshot:
            return await self._load()
        try:
            fetched = await self._fetch(self._offset)
        except OffsetOutOfRange as error:
            await self._on_out_of_range(error)
            return []
        self._out_of_range = None
        self._backoff.reset()
        return [event for batch in fetched.batches for event in self._take(batch)]

    async def _load(self) -> list[LogEvent]:
        spool = self._spool = await self._download.newest_above(self._offset)
        self._wants_snapshot = False
        if spool is None:
            return []
        self._out_of_range = None
        self._offset, self._epoch = spool.id
        return [
            SnapshotLoaded(spool.id, spool.size_bytes, spool.last_contained_log_timestamp, spool)
        ]

    async def _on_out_of_range(self, error: OffsetOutOfRange) -> None:
        """Below the log start a newer snapshot helps; above the log end a retry may.

        A deposed leader that has not noticed yet may have a lower high watermark.
        """
        if self._out_of_range is None:
            self._out_of_range = Deadline(self._timeout_ms)
        elif self._out_of_range.has_passed:
            raise error
        self._wants_snapshot = True
        await asyncio.sleep(self._backoff.next_s())

    def _take(self, batch: FetchedBatch) -> list[LogEvent]:
        header = batch.header
        # The first one may begin before the offset that is asked for; none ends there or before.
        is_next = header.base_offset <= self._offset
        if not is_next or epoch_problem(header.epoch, self._epoch):
            raise LogReplaced(self._offset, self._epoch, header.base_offset, header.epoch)
        base_offset, self._offset, self._epoch = self._offset, header.next_offset, header.epoch
        events: list[LogEvent] = []
        if batch.leader_id is not None and header.epoch > self._leader_epoch:
            self._leader_epoch = header.epoch
            events.append(LeaderChanged(batch.leader_id, header.epoch))
        events.append(
            BatchCommitted(
                base_offset,
                header.next_offset,
                header.epoch,
                header.max_timestamp,
                batch.records,
                batch.problem,
            )
        )
        return events

    def _drop_spool(self) -> None:
        if self._spool is not None:
            self._spool.close()
            self._spool = None
