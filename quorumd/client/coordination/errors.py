"""Errors of locks, elections and registrations."""

from __future__ import annotations

from quorumd.client.errors import QuorumError


class LockLost(QuorumError):
    """The name was held and is not any more: another one may have it."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} was lost: it was not renewed in time, or was taken away. Another one may have had it"
            " since; what was written with its token is safe. Acquire it again before you go on."
        )


class NotAcquired(QuorumError):
    """Another one held the name for as long as was waited, no leader responded, or the log was not read by
    then; `held_by` says which."""

    def __init__(self, what: str, wait_s: float, held_by: str) -> None:
        self.held_by = held_by
        waited = f"within {wait_s:g} s" if wait_s else "at once"
        super().__init__(f"{what} could not be had {waited}: {held_by}. Wait longer, or try again.")
