"""A reader's position in the log where fetches fail; what it fetches and downloads is the test's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from quorumd.client.errors import OffsetOutOfRange, QuorumUnavailable
from quorumd.client.events import QuorumLost, QuorumRestored, SnapshotLoaded
from quorumd.client.reading import Fetched
from quorumd.client.subscription import LogSubscription
from quorumd.raft.types import SnapshotId
from quorumd.security.errors import CertificateProblem


class Downloads:
    """The leader's newest snapshot, which takes `took_s` to come; None: there is none."""

    def __init__(self) -> None:
        self.end_offset: int | None = None
        self.took_s = 0.0
        self.closed = 0

    async def leader(self) -> Any:
        class Leader:
            leader_id, epoch = 1, 1

        return Leader

    async def newest_above(self, offset: int) -> Any:
        await asyncio.sleep(self.took_s)
        end_offset, downloads = self.end_offset, self

        class Spool:
            id = SnapshotId(end_offset or 0, 1)
            size_bytes = last_contained_log_timestamp = 0

            def close(self) -> None:
                downloads.closed += 1

        return None if end_offset is None else Spool()

    def close(self) -> None: ...


def subscribed(
    fetch: Callable[[int], Fetched], downloads: Downloads, *, timeout_ms: int
) -> LogSubscription:
    async def fetched(offset: int) -> Fetched:
        return fetch(offset)

    return LogSubscription(fetched, cast(Any, downloads), timeout_ms=timeout_ms, offset=1)


def test_a_snapshot_that_took_longer_than_the_timeout_begins_the_time_anew() -> None:
    """Retention may have gone on meanwhile."""

    async def run() -> None:
        downloads = Downloads()

        def fetch(offset: int) -> Fetched:
            raise OffsetOutOfRange(offset, 100, 200)

        subscription = subscribed(fetch, downloads, timeout_ms=100)
        await subscription.step()
        downloads.end_offset, downloads.took_s = 50, 0.15
        await subscription.step()
        (loaded,) = await subscription.step()
        assert isinstance(loaded, SnapshotLoaded)
        assert await subscription.step() == []
        downloads.end_offset, downloads.took_s = None, 0.15
        assert await subscription.step() == []
        with pytest.raises(OffsetOutOfRange):
            await subscription.step()

    asyncio.run(run())


def test_an_outage_is_told_once_and_so_is_its_end() -> None:
    async def run() -> None:
        is_away = False

        def fetch(offset: int) -> Fetched:
            if is_away:
                raise QuorumUnavailable("read the log", 1000, {})
            return Fetched(batches=(), next_offset=1, high_watermark=1, log_start_offset=0)

        subscription = subscribed(fetch, Downloads(), timeout_ms=1000)
        await subscription.step()
        for _ in range(2):
            is_away = True
            (lost,) = await subscription.step()
            assert isinstance(lost, QuorumLost)
            assert await subscription.step() == []
            is_away = False
            assert await subscription.step() == [QuorumRestored()]
            assert await subscription.step() == []

    asyncio.run(run())


def test_after_a_fetch_that_succeeds_the_first_pause_is_the_shortest_again() -> None:
    class Pauses:
        def __init__(self) -> None:
            self.count = 0

        def next_s(self) -> float:
            self.count += 1
            return 0.0

        def reset(self) -> None:
            self.count = 0

    async def run() -> None:
        is_out = True

        def fetch(offset: int) -> Fetched:
            if is_out:
                raise OffsetOutOfRange(offset, 0, 1)
            return Fetched(batches=(), next_offset=1, high_watermark=1, log_start_offset=0)

        subscription = subscribed(fetch, Downloads(), timeout_ms=10_000)
        pauses = subscription._backoff = cast(Any, Pauses())
        for _ in range(7):
            await subscription.step()
        assert pauses.count == 3, "a look for a snapshot is between them"
        is_out = False
        await subscription.step()
        assert pauses.count == 0

    asyncio.run(run())


def test_the_file_of_a_snapshot_is_there_until_the_next_event_is_asked_for() -> None:
    async def run() -> None:
        downloads = Downloads()
        downloads.end_offset = 50

        def fetch(offset: int) -> Fetched:
            if offset < 50:
                raise OffsetOutOfRange(offset, 50, 200)
            return Fetched(batches=(), next_offset=50, high_watermark=50, log_start_offset=50)

        subscription = subscribed(fetch, downloads, timeout_ms=1000)
        found: list[Any] = []
        while not any(isinstance(each, SnapshotLoaded) for each in found):
            found = await subscription.step()
            assert downloads.closed == 0
        await subscription.step()
        assert downloads.closed == 1
        subscription.close()
        assert downloads.closed == 1

    asyncio.run(run())


def test_a_certificate_that_is_refused_at_once_is_not_tried_without_a_pause() -> None:
    async def run() -> None:
        tries = 0

        def fetch(offset: int) -> Fetched:
            nonlocal tries
            tries += 1
            raise CertificateProblem("it is expired")

        subscription = subscribed(fetch, Downloads(), timeout_ms=10_000)
        await subscription.step()
        (lost,) = await subscription.step()
        assert isinstance(lost, QuorumLost)
        try:
            async with asyncio.timeout(0.3):
                while True:
                    assert await subscription.step() == []
        except TimeoutError:
            assert tries < 20

    asyncio.run(run())
