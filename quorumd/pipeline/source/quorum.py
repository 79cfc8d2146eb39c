"""A live quorum read step by step, as the driver and the executors of Spark need it.

The client for asyncio does the work: finding the leader, following it when it changes, trying again
until the time is up. Here it is called without a loop. Made where it is used: connections are not pickled.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from socket import gethostname
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from quorumd.client.client import EARLIEST, LATEST, QuorumClient
from quorumd.client.download import SnapshotDownloader
from quorumd.client.errors import OffsetOutOfRange, QuorumError, QuorumUnavailable
from quorumd.client.leader import LeaderFinder
from quorumd.client.reading import RawFetched
from quorumd.client.security import Security
from quorumd.client.spool import SnapshotSpool
from quorumd.client.timing import Deadline, RetryBackoff
from quorumd.pipeline.errors import LogUnreachable
from quorumd.pipeline.files.replicas import Snapshot
from quorumd.raft.types import Address, SnapshotId
from quorumd.security.errors import CertificateProblem
from quorumd.storage.layout import snapshot_path

FETCH_BYTES = 8 << 20
"""Bytes that a Fetch asks for: chunks of this size are decoded fastest."""
_CLIENT_ID = "quorumd-pipeline"

T = TypeVar("T")


class Bounds(NamedTuple):
    """The committed log from `start` to `end` (exclusive), and the newest snapshot if `start` is not 0."""

    start: int
    end: int
    snapshot: SnapshotId | None


class BelowLogStart(Exception):
    """The offset that was to be read next has been deleted, a snapshot stands for it."""

    def __init__(self, log_start_offset: int) -> None:
        super().__init__(log_start_offset)
        self.log_start_offset = log_start_offset


class SnapshotReplaced(Exception):
    """The snapshot that was wanted is gone; `found` is the newest one, if there is any."""

    def __init__(self, found: SnapshotId | None) -> None:
        super().__init__(found)
        self.found = found


class SyncQuorum:
    """Blocking calls; each raises LogUnreachable after `timeout_ms` without a response."""

    def __init__(
        self, servers: Sequence[Address], timeout_ms: int, security: Security | None = None
    ) -> None:
        self._servers = tuple(servers)
        self._security = security
        self._timeout_ms = timeout_ms
        # asyncio.Runner would write out every result, which it does to compare signal handlers.
        self._loop = asyncio.new_event_loop()
        self._client = QuorumClient(
            servers, client_id=_CLIENT_ID, timeout_ms=timeout_ms, security=security
        )

    def close(self) -> None:
        """Ends connections."""
        self._loop.run_until_complete(self._close())
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def bounds(self, reaching: int | None = None) -> Bounds:
        """Bounds of the committed log now; `reaching` as for `end`. Raises LogUnreachable."""
        start = self._run(self._client.list_offsets(EARLIEST)).offset
        # Asked second, so that it is never below the start.
        end = self.end(reaching)
        return Bounds(start, end, self._run(self._newest_snapshot()) if start else None)

    def end(self, reaching: int | None = None) -> int:
        """The high watermark. Raises LogUnreachable.

        If it is below `reaching`, which was committed before, it is asked for again until the time is up:
        a leader that was deposed and has not noticed yet knows of less.
        """
        return self._run(self._end(reaching))

    def offset_at(self, timestamp_ms: int) -> int | None:
        """The first committed record that is not older; None if all are. Raises LogUnreachable."""
        offset = self._run(self._client.list_offsets(timestamp_ms)).offset
        return offset if offset >= 0 else None

    def fetch(self, offset: int) -> RawFetched:
        """The next committed batches, at least one, the first of them with `offset`.

        `offset` has been committed before. Raises BelowLogStart, LogUnreachable.
        """
        return self._run(self._fetch(offset))

    @contextmanager
    def downloaded(self, wanted: SnapshotId, *, or_newer: bool) -> Iterator[Snapshot]:
        """A snapshot as a file, as long as the context lasts.

        Raises SnapshotReplaced if there is only another one by now, unless that will do, too;
        LogUnreachable.
        """
        with tempfile.TemporaryDirectory(prefix="quorumd-pipeline-") as folder:

            def new_spool(found: SnapshotId) -> SnapshotSpool:
                if found != wanted and not or_newer:
                    raise SnapshotReplaced(found)
                file = snapshot_path(Path(folder), found).open("w+b")
                return SnapshotSpool(found, file)

            try:
                spool = self._run(self._client.download_snapshot(new_spool))
            except OSError as error:
                raise LogUnreachable(
                    f"the snapshot {wanted} can't be stored in {folder}: {error.strerror}. Make room "
                    "there, or name another folder in the variable TMPDIR."
                ) from None
            if spool is None:
                raise SnapshotReplaced(None)
            spool.close()
            yield Snapshot(
                path=snapshot_path(Path(folder), spool.id),
                end_offset=spool.id.end_offset,
                epoch=spool.id.epoch,
                replica_id=None,
                storage_id=None,
            )

    async def _close(self) -> None:
        self._client.close()
        # The transports close their sockets in the next turn of the loop.
        await asyncio.sleep(0)

    async def _fetch(self, offset: int) -> RawFetched:
        deadline = Deadline(self._timeout_ms)
        backoff = RetryBackoff()
        while True:
            try:
                fetched = await self._client.fetch_raw(offset, max_bytes=FETCH_BYTES)
            except OffsetOutOfRange as error:
                if offset < error.log_start_offset:
                    raise BelowLogStart(error.log_start_offset) from None
                end = error.end_offset
            else:
                if fetched.batches and fetched.batches[0][1].base_offset <= offset:
                    return fetched
                end = offset
            # A new leader may need a moment until it knows that what was committed is committed.
            if deadline.has_passed:
                raise LogUnreachable(
                    f"offset {offset} was committed, but for {self._timeout_ms / 1000:g} s the leader has "
                    f"known only offsets below {end}. Do bootstrap.servers name nodes of the same quorum "
                    "as before, or has it been formatted anew?"
                )
            await asyncio.sleep(backoff.next_s())

    async def _end(self, reaching: int | None) -> int:
        deadline = Deadline(self._timeout_ms)
        backoff = RetryBackoff()
        while True:
            end = (await self._client.list_offsets(LATEST)).offset
            if reaching is None or end >= reaching or deadline.has_passed:
                return end
            await asyncio.sleep(backoff.next_s())

    async def _newest_snapshot(self) -> SnapshotId | None:
        finder = LeaderFinder(self._servers, client_id=_CLIENT_ID, security=self._security)
        try:
            download = SnapshotDownloader(finder, timeout_ms=self._timeout_ms)
            return (await download.leader()).snapshot_id
        finally:
            finder.close()

    def _run(self, step: Coroutine[Any, Any, T]) -> T:
        try:
            return self._loop.run_until_complete(step)
        except QuorumUnavailable as error:
            raise LogUnreachable(
                f"no leader responded within {self._timeout_ms / 1000:g} s: {_reasons(error)}. Check that "
                "bootstrap.servers is right and that more than half of the voters run; the option "
                "timeoutMs waits longer."
            ) from None
        except CertificateProblem as problem:
            text = " ".join(str(problem).split())
            raise LogUnreachable(
                f"{text}. Files are read on the driver and on every executor, here on {gethostname()}."
            ) from None
        except QuorumError as error:
            raise LogUnreachable(" ".join(str(error).split())) from None


def _reasons(error: QuorumUnavailable) -> str:
    tried = [f"{address}: {reason}" for address, reason in error.attempts.items()]
    return "; ".join(tried) or "no address was reached"
