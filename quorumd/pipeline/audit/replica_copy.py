"""One replica's log, copied over the network into a directory that the audit reads like any other.

The directory has segments and a quorum-state.json that calls everything committed that is there. A
failure of the replica is recorded in its copy; the other replicas are read all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from quorumd.client.connection import ClientConnection
from quorumd.client.connector import Connector
from quorumd.client.errors import ConnectionFailed, QuorumError, RequestRefused
from quorumd.client.leader import CONNECT_TIMEOUT_S
from quorumd.client.reading import RawFetched
from quorumd.client.replica_log import ReplicaBounds, ReplicaLog
from quorumd.client.timing import Deadline, RetryBackoff
from quorumd.raft.types import Address, ReplicaKey, uuid_to_text
from quorumd.storage import layout
from quorumd.storage.errors import StorageError
from quorumd.storage.quorum_state import QuorumState, render_quorum_state
from quorumd.wire.error_codes import ErrorCode

CLIENT_ID = "quorumd-pipeline"
FETCH_BYTES = 1 << 20
SEGMENT_BYTES = 64 << 20
LAG_S = 5.0
"""Time in all to wait for a replica that has not heard yet of all that was committed."""
_RESTARTS = 5


@dataclass(slots=True)
class ReplicaCopy:
    """Offsets `start` .. `end` (exclusive) of a replica's log, of `wanted_end` that were wanted.

    Without `address` nothing could be read, and there is no `folder`; `problem` says why the copy is not
    complete.
    """

    key: ReplicaKey
    folder: Path
    address: Address | None = None
    start: int = 0
    end: int = 0
    wanted_end: int = 0
    problem: str = ""

    @property
    def label(self) -> str:
        """The replica and where it was read, for people."""
        if self.address is not None:
            return f"replica {self.key.id} at {self.address}"
        return f"replica {self.key.id}" + (f" ({self.storage_id})" if self.storage_id else "")

    @property
    def storage_id(self) -> str | None:
        return None if self.key.uuid is None else uuid_to_text(self.key.uuid)


class ReplicaReader:
    """Copies one replica's log. An error of the replica becomes `copy.problem`."""

    def __init__(
        self,
        connector: Connector,
        key: ReplicaKey,
        addresses: Sequence[Address],
        folder: Path,
        timeout_ms: int,
    ) -> None:
        self.copy = ReplicaCopy(key, folder)
        self.cluster_ids: list[tuple[Address, str]] = []
        """The cluster ids that the nodes named."""
        self._connector = connector
        self._addresses = addresses
        self._timeout_ms = timeout_ms
        self._connection: ClientConnection | None = None
        self._deadline = Deadline(timeout_ms)
        self._backoff = RetryBackoff()
        self._waited_s = 0.0
        self._restarts = 0
        self._max_bytes = FETCH_BYTES
        self._segment: Path | None = None
        self._segment_bytes = 0

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    async def open(self, claimed: dict[Address, ReplicaKey]) -> ReplicaBounds | None:
        """Connects to the first address that responds; None if that fails. No address is used twice."""
        copy = self.copy
        reasons = [] if self._addresses else ["the leader does not know where it listens"]
        for address in self._addresses:
            owner = claimed.setdefault(address, copy.key)
            if owner != copy.key:
                reasons.append(f"{address} is that of replica {owner}")
                continue
            try:
                log = await self._log_at(address)
                self.cluster_ids.append((address, await log.cluster_id()))
                bounds = await log.bounds()
            except QuorumError as error:
                reasons.append(_one_line(error, address))
                continue
            copy.address = address
            copy.start = copy.end = bounds.start
            return bounds
        copy.problem = f"it can't be read: {'; '.join(reasons)}"
        return None

    async def _log_at(self, address: Address) -> ReplicaLog:
        connection, timeout_s = self._connection, self._timeout_ms / 1000
        if connection is None or not connection.is_open or connection.address != address:
            self.close()
            connect_s = min(CONNECT_TIMEOUT_S, timeout_s)
            connection = await self._connector.connect(address, connect_s)
            self._connection = connection
        return ReplicaLog(connection, timeout_s)

    async def read(self, end: int, epoch: int, on_read: Callable[[], None]) -> None:
        """Copies all below `end`, as far as the replica has it. Raises StorageError."""
        copy = self.copy
        copy.wanted_end = end
        address = copy.address
        if address is None:
            return
        self._deadline = Deadline(self._timeout_ms)
        while copy.end < end and not copy.problem:
            try:
                if not await self._step(await self._log_at(address), end):
                    break
            except ConnectionFailed as error:
                if self._deadline.has_passed:
                    copy.problem = f"it can't be read any more from offset {copy.end} on: {error}"
                await asyncio.sleep(self._backoff.next_s())
            except RequestRefused as error:
                self._on_refused(error, address)
            except QuorumError as error:
                copy.problem = _one_line(error, address)
            on_read()
        self._finish(epoch)

    async def _step(self, log: ReplicaLog, end: int) -> bool:
        """One fetch. False if the replica has no more, and has had its time to get it."""
        fetched = await log.fetch(self.copy.end, self._max_bytes)
        if fetched is not None and fetched.batches:
            self._take(fetched, end)
            self._deadline = Deadline(self._timeout_ms)
            self._backoff.reset()
            return True
        bounds = await log.bounds()
        self._deadline = Deadline(self._timeout_ms)
        if bounds.start > self.copy.end:
            self._begin_anew(min(bounds.start, end))
            return True
        if self._waited_s >= LAG_S:
            if bounds.end > self.copy.end:
                self.copy.problem = (
                    f"it sends nothing from offset {self.copy.end} on, and says that it has offsets"
                    f" below {bounds.end}"
                )
            return False
        pause_s = self._backoff.next_s()
        self._waited_s += pause_s
        await asyncio.sleep(pause_s)
        return True

    def _on_refused(self, error: RequestRefused, address: Address) -> None:
        copy = self.copy
        if error.error is not ErrorCode.KAFKA_STORAGE_ERROR:
            copy.problem = _one_line(error, address)
        elif self._max_bytes > 1:
            # Smaller pieces lead to the very batch that can't be read.
            self._max_bytes //= 4
        else:
            copy.problem = (
                f"it can't read its own log at offset {copy.end}. Its directory says why:"
                " `quorumctl verify DIR` on that host"
            )

    def _begin_anew(self, start: int) -> None:
        """The replica has deleted the offsets that come next."""
        for path in sorted(self.copy.folder.glob("*")):
            path.unlink()
        self._segment, self._segment_bytes = None, 0
        self.copy.start = self.copy.end = start
        self._restarts += 1
        if self._restarts > _RESTARTS:
            self.copy.problem = "its history is deleted faster than it can be read"

    def _take(self, fetched: RawFetched, end: int) -> None:
        copy = self.copy
        wanted = [each for each in fetched.batches if each[1].base_offset < end]
        if not wanted:
            sent = fetched.batches[0][1].base_offset
            copy.problem = f"it sends offset {sent} where {copy.end} must follow"
            return
        (position, first), (last_position, last) = wanted[0], wanted[-1]
        if self._segment is None:
            copy.start = min(copy.start, first.base_offset)
            self._segment = layout.log_path(copy.folder, copy.start)
        elif self._segment_bytes >= SEGMENT_BYTES:
            self._segment, self._segment_bytes = layout.log_path(copy.folder, copy.end), 0
        data = fetched.data[position : last_position + last.size_bytes]
        self._write(self._segment, data)
        self._segment_bytes += len(data)
        copy.end = max(header.next_offset for _, header in wanted)

    def _finish(self, epoch: int) -> None:
        copy = self.copy
        if self._segment is None:
            self._write(layout.log_path(copy.folder, copy.start), b"")
        state = QuorumState(leader_epoch=epoch, applied_offset=copy.end)
        self._write(copy.folder / layout.QUORUM_STATE, render_quorum_state(state))

    def _write(self, path: Path, data: bytes | memoryview) -> None:
        try:
            path.parent.mkdir(exist_ok=True)
            with path.open("ab") as file:
                file.write(data)
        except OSError as error:
            raise StorageError(
                f"the copy of a replica can't be stored: {error.strerror}",
                path=path,
                remedy="Make room there, or name another folder in the variable TMPDIR",
            ) from error


def _one_line(error: QuorumError, address: Address) -> str:
    """With the address, unless the error names it itself."""
    text = " ".join(str(error).split())
    return text if str(address) in text else f"{address}: {text}"
