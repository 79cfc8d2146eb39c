"""TakeSnapshot, an API of this project: the response waits until the snapshot is there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from quorumd.server.model.runtime import Runtime
from quorumd.storage.snapshot_file import SnapshotFacts
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.take_snapshot import TakeSnapshotRequest, TakeSnapshotResponse


class SnapshotTaker(Protocol):
    """Takes snapshots of a partition."""

    def take(self, done: Callable[[SnapshotFacts | str], None]) -> None:
        """Take one; `done` gets the newest snapshot, or why there is none."""


def take_snapshot(
    snapshots: SnapshotTaker,
    runtime: Runtime,
    request: TakeSnapshotRequest,
    respond: Callable[[TakeSnapshotResponse], None],
) -> None:
    """Take a snapshot and respond when it is there, or at the request's timeout; the build goes on then."""
    has_response = False

    def respond_once(response: TakeSnapshotResponse) -> None:
        nonlocal has_response
        if not has_response:
            has_response = True
            timer.cancel()
            respond(response)

    def refuse(error: ErrorCode, message: str) -> None:
        respond_once(TakeSnapshotResponse(error_code=error, error_message=message))

    def done(outcome: SnapshotFacts | str) -> None:
        if isinstance(outcome, str):
            refuse(ErrorCode.KAFKA_STORAGE_ERROR, outcome)
            return
        respond_once(
            TakeSnapshotResponse(
                end_offset=outcome.id.end_offset,
                epoch=outcome.id.epoch,
                size_bytes=outcome.size_bytes,
            )
        )

    def late() -> None:
        refuse(ErrorCode.REQUEST_TIMED_OUT, "the snapshot is still being taken")

    wait_s = max(0, request.timeout_ms) / 1000
    timer = runtime.call_at(runtime.monotonic_s() + wait_s, late)
    snapshots.take(done)
