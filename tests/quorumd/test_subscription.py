"""A reader's position in the log where fetches fail; what it fetches and downloads is the test's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from quorumd.client.errors import OffsetOutOfRange
from quorumd.client.events import QuorumLost, SnapshotLoaded
from quorumd.client.reading import Fetched
from quorumd.client.subscription import LogSubscription
from quorumd.raft.types import SnapshotId
from quorumd.security.errors import CertificateProblem


class Downloads:
    """The leader's newest snapshot, which takes `took_s` to come; None: there is none."""

    def __init__(self) -> None:
        self.end_offset: int | None = None
        self.took_s = 0.0

    async def leader(self) -> Any:
        class Leader:
            leader_id, epoch = 1, 1

        return Leader

    async def newest_above(self, offset: int) -> Any:
        await asyncio.sleep(self.took_s)
        end_offset = self.end_offset

        class Spool:
            id = SnapshotId(end_offset or 0, 1)
            size_bytes = last_contained_log_timestamp = 0

            def close(self) -> None: ...

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
