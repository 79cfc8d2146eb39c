"""What can go wrong for a user of a quorum. Every message is a sentence that says what to do next.

`ConnectionFailed` never reaches users: the client tries other addresses, and if none is left or the
time is up it says so as `QuorumUnavailable`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quorumd.client.error_messages import explain
from quorumd.raft.types import Address
from quorumd.wire.error_codes import ErrorCode


class QuorumError(Exception):
    """The base of everything that the client raises; `exit_code` is a command's, if it fails so."""

    exit_code = 1


class ConnectionFailed(QuorumError):
    """A connection that could not be made or that broke; the text says why, in a few words."""


class QuorumUnavailable(QuorumError):
    """Nobody could do what was asked until the time was up.

    `attempts` says for each address that was tried what went wrong there last, `summary` in a line.
    """

    def __init__(self, goal: str, timeout_ms: int, attempts: Mapping[Address, str]) -> None:
        self.attempts = dict(attempts)
        reasons = "; ".join(f"{address}: {reason}" for address, reason in attempts.items())
        self.summary = f"no leader can be reached ({reasons or 'nobody answered in time'})"
        tried = "".join(f"\n  {address}: {reason}" for address, reason in self.attempts.items())
        if not tried:
            tried = "\n  (no address was reached before the time was up)"
        super().__init__(
            f"could not {goal} within {timeout_ms / 1000:g} s. Tried:{tried}\n"
            "Check that the nodes run and that the addresses and ports are right; more than half "
            "of the voters must be up. A longer --timeout waits longer."
        )


class RequestRefused(QuorumError):
    """A server answered with an error that trying again does not cure."""

    def __init__(self, goal: str, error: ErrorCode, server_message: str | None = None) -> None:
        self.error = error
        said = f" The server says: {server_message}" if server_message else ""
        super().__init__(f"could not {goal}: {explain(error)} ({error.name}, {int(error)}).{said}")


class NotSupported(QuorumError):
    """The server does not offer what this needs; it is probably something else than quorumd."""


class OffsetOutOfRange(QuorumError):
    """An offset below the log's start or beyond its end."""

    def __init__(self, offset: int, log_start_offset: int, end_offset: int) -> None:
        self.offset = offset
        self.log_start_offset = log_start_offset
        self.end_offset = end_offset
        super().__init__(
            f"there is no offset {offset}: the log holds offsets {log_start_offset} to "
            f"{end_offset} (exclusive). Choose one of these, or read from the beginning."
        )


class OffsetNotReached(QuorumError):
    """A record that was waited for is not committed, or has not arrived here, in time."""

    def __init__(self, offset: int, end_offset: int, timeout_ms: int) -> None:
        self.offset = offset
        self.end_offset = end_offset
        super().__init__(
            f"offset {offset} was not reached within {timeout_ms / 1000:g} s: everything below "
            f"{end_offset} is here. Is it an offset of this quorum? A longer --timeout waits longer."
        )


class LogReplaced(QuorumError):
    """What follows is not the continuation of what was read: this is the log of another quorum."""

    def __init__(self, offset: int, epoch: int, found_offset: int, found_epoch: int) -> None:
        super().__init__(
            f"the log does not go on from offset {offset}, epoch {epoch}: a batch at offset "
            f"{found_offset}, epoch {found_epoch} was sent. Has the quorum been formatted anew, or do "
            "the addresses name nodes of two quorums? Begin again from the start."
        )


class ChangeRefused(QuorumError):
    """A change of the voters or of the leader that is not possible, or not safe, as things are.

    `error` is the code that the leader answered with, None if it was not even asked.
    """

    def __init__(self, goal: str, reason: str, error: ErrorCode | None = None) -> None:
        self.error = error
        code = "" if error is None else f" ({error.name})"
        super().__init__(f"could not {goal}: {reason}{code}")


class ReplicaNotFound(ChangeRefused):
    """The replica that is meant does not fetch from the leader, or not yet; `brief` says it in a line."""

    def __init__(self, goal: str, brief: str, remedy: str = "") -> None:
        self.brief = brief
        super().__init__(goal, f"{brief}. {remedy}" if remedy else brief)


class ChangeTimedOut(QuorumError):
    """A change that is not done after all the time that it had; `waits_for` says why, in words."""

    def __init__(self, goal: str, timeout_ms: int, waits_for: str) -> None:
        self.waits_for = waits_for
        said = waits_for.rstrip(".") or "the leader did not say what it waits for"
        super().__init__(
            f"could not {goal} within {timeout_ms / 1000:g} s: {said}.\n"
            "It may still be done; `quorumctl describe` shows whether it is. It is safe to repeat the "
            "command, and a longer --timeout waits longer."
        )


class AppendFailed(QuorumError):
    """Records that are not acknowledged.

    `acknowledged_count` records were appended and will never be lost; `last_offset` (inclusive, -1
    for none) is that of the last of them. `unknown_count` further records were sent without an
    answer: they may or may not be in the log.
    """

    def __init__(
        self, reason: str, *, acknowledged_count: int, last_offset: int, unknown_count: int
    ) -> None:
        self.acknowledged_count = acknowledged_count
        self.last_offset = last_offset
        self.unknown_count = unknown_count
        parts = [reason]
        if acknowledged_count:
            parts.append(
                f"{_records(acknowledged_count)} before that are acknowledged, the last one at "
                f"offset {last_offset}."
            )
        else:
            parts.append("Nothing was acknowledged.")
        if unknown_count:
            parts.append(
                f"{_records(unknown_count)} were sent but not answered and may be in the log: look "
                "with `quorumctl tail` before you append them again."
            )
        super().__init__("\n".join(parts))


def _records(count: int) -> str:
    return "1 record" if count == 1 else f"{count:,} records"


def error_code(value: int) -> ErrorCode:
    """The code that a response carries; a number that is not known reads as UNKNOWN_SERVER_ERROR."""
    try:
        return ErrorCode(value)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def server_message(response: Any) -> str | None:
    """The text beside an error code, where this version of the response has one."""
    text = getattr(response, "error_message", None)
    return text if isinstance(text, str) and text else None
