"""Requests for changes of the voter set or of the leader, and what came of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from quorumd.raft.types import ReplicaKey


class VoterChangeKind(StrEnum):
    """Kind of change that is asked for."""

    ADD = "add"
    REMOVE = "remove"
    REASSIGN = "reassign"
    TRANSFER = "transfer"


@dataclass(slots=True)
class VoterChangeRequest:
    """`key` is whom to add, to remove, or to make the leader; `target` are the ids that shall vote.

    A request without `key` or `target` is: any leader, or the end of the reassignment. Times are µs.
    """

    kind: VoterChangeKind
    key: ReplicaKey | None = None
    target: tuple[int, ...] | None = None
    is_own: bool = False
    """A replica asks for itself, not an operator."""
    pause_us: int = 0
    """Time that an operator waits before asking."""
    sets_before: int = 0
    """Number of voter sets that were committed when it was asked first."""
    sent: int = 0
    responses: int = 0
    outcome: str | None = None
    """Result in the last response, once the request is not sent again: `done` or the name of an error."""

    @property
    def is_over(self) -> bool:
        """True if nothing comes of it any more: no request can still be under way."""
        return self.outcome is not None and self.sent == self.responses

    def __str__(self) -> str:
        what = self.key if self.target is None else ", ".join(map(str, self.target))
        return f"{self.kind} {what or 'any voter'}"
