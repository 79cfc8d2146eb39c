"""The exceptions of the client. Every message says what to do next.

`ConnectionFailed` never reaches users: the client tries other addresses, and raises `QuorumUnavailable`
when the timeout has passed; or CertificateProblem before, if keys or certificates are the reason everywhere,
or for seconds at the leader.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from quorumd.client.error_messages import explain
from quorumd.config.errors import PicklableError
from quorumd.raft.types import Address
from quorumd.security.errors import CertificateProblem
from quorumd.wire.error_codes import ErrorCode

_SHOWN_BYTES = 80
"""Of a key, in a message."""

P = TypeVar("P")


class QuorumError(PicklableError):
    """The base of all exceptions of the client; `exit_code` is that of a command that fails with it."""

    exit_code = 1


class ConnectionFailed(QuorumError):
    """A connection could not be made, or broke; the text is the reason.

    `problem` is not None if another try would fail as well: a certificate, or TLS on one side alone.
    `is_mute`: the other side hung up before it said anything.
    """

    def __init__(
        self, reason: str, problem: CertificateProblem | None = None, *, is_mute: bool = False
    ) -> None:
        self.problem = problem
        self.is_mute = is_mute
        super().__init__(reason)


class ResponseOverdue(ConnectionFailed):
    """The caller's time was up before the response came. The connection goes on: others wait there, too."""


class QuorumUnavailable(QuorumError):
    """No leader could be reached, or none could do it, before the timeout.

    `attempts` has the last failure of each address that was tried; `summary` is all of them in a line.
    """

    def __init__(self, goal: str, timeout_ms: int, attempts: Mapping[Address, str]) -> None:
        self.attempts = dict(attempts)
        reasons = "; ".join(f"{address}: {reason}" for address, reason in attempts.items())
        self.summary = f"no leader can be reached ({reasons or 'no node responded in time'})"
        tried = "".join(f"\n  {address}: {reason}" for address, reason in self.attempts.items())
        if not tried:
            tried = "\n  (no address was reached before the time was up)"
        super().__init__(
            # Rounded: of what was asked for, a millisecond may have passed before.
            f"could not {goal} within {round(timeout_ms / 1000, 2):g} s. Tried:{tried}\n"
            "Check that the nodes run and that the addresses and ports are right; more than half "
            "of the voters must be up. A longer --timeout waits longer."
        )


class ClientClosed(QuorumError):
    """The client was closed before what was done with it was over."""

    def __init__(self) -> None:
        super().__init__(
            "the client was closed meanwhile: let calls end, and give back what is held, before that"
        )


class RequestRefused(QuorumError):
    """A server responded with an error code (`error`) that a retry does not cure."""

    def __init__(self, goal: str, error: ErrorCode, server_message: str | None = None) -> None:
        self.error = error
        self.server_message = server_message
        said = f" The server says: {server_message}" if server_message else ""
        super().__init__(f"could not {goal}: {explain(error)} ({error.name}, {int(error)}).{said}")


class NotSupported(QuorumError):
    """The server does not support a request that this needs; it is probably not a quorumd node."""


class OffsetOutOfRange(QuorumError):
    """An offset below `log_start_offset` or above `end_offset` (the high watermark, exclusive)."""

    def __init__(self, offset: int, log_start_offset: int, end_offset: int) -> None:
        self.offset = offset
        self.log_start_offset = log_start_offset
        self.end_offset = end_offset
        super().__init__(
            f"there is no offset {offset}: the log holds offsets {log_start_offset} to "
            f"{end_offset} (exclusive). Choose one of these, or read from the beginning."
        )


class OffsetNotReached(QuorumError):
    """The record at `offset` was not committed, or not read here, before the timeout.

    All records below `end_offset` were.
    """

    def __init__(self, offset: int, end_offset: int, timeout_ms: int) -> None:
        self.offset = offset
        self.end_offset = end_offset
        super().__init__(
            f"offset {offset} was not reached within {timeout_ms / 1000:g} s: everything below "
            f"{end_offset} is here. Is it an offset of this quorum? A longer --timeout waits longer."
        )


class LogReplaced(QuorumError):
    """The log does not continue the records that were read: it is the log of another quorum."""

    def __init__(self, offset: int, epoch: int, found_offset: int, found_epoch: int) -> None:
        super().__init__(
            f"the log does not go on from offset {offset}, epoch {epoch}: a batch at offset "
            f"{found_offset}, epoch {found_epoch} was sent. Has the quorum been formatted anew, or do "
            "the addresses name nodes of two quorums? Begin again from the start."
        )


class OtherCluster(QuorumError):
    """The nodes belong to another cluster than the one that this client began with: make a new client."""

    def __init__(self, cluster_id: str, found: str) -> None:
        super().__init__(
            f"the nodes belong to the cluster {found}, and this client began with {cluster_id}. Has the "
            "quorum been formatted anew or restored, or do the addresses name nodes of two quorums? Nothing "
            "that was read before holds: make a new client, and begin again from the start."
        )


class ChangeRefused(QuorumError):
    """A change of the voters or of the leader that is not possible, or not safe, now.

    `error` is the error code of the leader's response, None if the client refused it by itself.
    """

    def __init__(self, goal: str, reason: str, error: ErrorCode | None = None) -> None:
        self.error = error
        code = "" if error is None else f" ({error.name})"
        super().__init__(f"could not {goal}: {reason}{code}")


class ReplicaNotFound(ChangeRefused):
    """The replica does not fetch from the leader, or not yet; `brief` is the reason in a line."""

    def __init__(self, goal: str, brief: str, remedy: str = "") -> None:
        self.brief = brief
        super().__init__(goal, f"{brief}. {remedy}" if remedy else brief)


class ChangeTimedOut(QuorumError):
    """A change was not complete before the timeout; `waits_for` is the condition that was not met."""

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

    `acknowledged_count` records are committed; `last_offset` (inclusive, -1 for none) is that of the last
    of them. `unknown_count` further records were sent without an acknowledgement: they may or may not be
    in the log. If a batch `was_sent_again`, the first time counts among them although a leader refused the
    second.
    """

    def __init__(
        self,
        reason: str,
        *,
        acknowledged_count: int,
        last_offset: int,
        unknown_count: int,
        was_sent_again: bool = False,
    ) -> None:
        self.was_sent_again = was_sent_again
        self.acknowledged_count = acknowledged_count
        self.last_offset = last_offset
        self.unknown_count = unknown_count
        parts = [reason]
        if acknowledged_count:
            parts.append(
                f"{_records(acknowledged_count)} before that {'is' if acknowledged_count == 1 else 'are'} "
                f"acknowledged, the last one at offset {last_offset}."
            )
        else:
            parts.append("Nothing was acknowledged.")
        if unknown_count:
            parts.append(
                f"{_records(unknown_count)} {'was' if unknown_count == 1 else 'were'} sent without a "
                "response and may be in the log: look with `quorumctl tail` before you append again."
            )
        super().__init__("\n".join(parts))


class Conflict(QuorumError):
    """A key was written at `offset`, so nothing was appended that depended on it.

    `since` is the offset of the condition; None: the key was to be absent. `reason` says so in words. Read
    the key again, and decide anew.
    """

    exit_code = 4

    def __init__(self, key: bytes, offset: int, *, since: int | None = None) -> None:
        self.key = key
        self.offset = offset
        self.since = since
        wanted = "absent" if since is None else f"unchanged since {since}"
        self.reason = f"was written at offset {offset}, and was to be {wanted}"
        shown = ascii(key[:_SHOWN_BYTES])[2:-1] + ("..." if len(key) > _SHOWN_BYTES else "")
        super().__init__(
            f"{shown} {self.reason}: nothing was appended. Read it again, and decide anew."
        )


def _records(count: int) -> str:
    return "1 record" if count == 1 else f"{count:,} records"


def error_code(value: int) -> ErrorCode:
    """The error code of a response; an unknown number becomes UNKNOWN_SERVER_ERROR."""
    try:
        return ErrorCode(value)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def only_partition(topics: Iterable[Sequence[P]]) -> P:
    """The one partition of all topics of a response. Raises ConnectionFailed if there are none or several."""
    found = [each for partitions in topics for each in partitions]
    if len(found) != 1:
        raise ConnectionFailed(f"responded for {len(found)} partitions instead of one")
    return found[0]


def server_message(response: Any) -> str | None:
    """The text beside an error code, where this version of the response has one."""
    text = getattr(response, "error_message", None)
    return text if isinstance(text, str) and text else None
