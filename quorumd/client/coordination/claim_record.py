"""The value of a key that is held or waited for: JSON that people can read."""

from __future__ import annotations

import getpass
import json
import os
import re
import socket
import time
from typing import Any, Final, NamedTuple

from quorumd.client.coordination.keys import TTL_S_MAX, TTL_S_MIN

_ID: Final = re.compile(r"[0-9a-f]{32}")
_UNREADABLE_TTL_MS: Final = 60_000


class ClaimRecord(NamedTuple):
    """The holder of a name, or a claim that waits for it.

    `claim` is one attempt to have it, `client` the one client that makes it, both 32 hexadecimal digits.
    `token` is the offset of the record that acquired it, None in that record itself; `queued` in the same way
    that of the record that took the place in the queue. `attempt` counts what the claim has sent: it
    distinguishes the records of one claim. `since` is wall-clock time, for people alone.
    """

    owner: str
    host: str
    pid: int
    comment: str
    since: str
    ttl_ms: int
    claim: str
    client: str
    attempt: int = 0
    token: int | None = None
    queued: int | None = None
    value: str = ""

    @property
    def ttl_s(self) -> float:
        """Seconds."""
        return self.ttl_ms / 1000

    def place(self, offset: int) -> int:
        """In the queue, if this record is at `offset`: where the record is that took the place."""
        return offset if self.queued is None else self.queued

    def encoded(self) -> bytes:
        """The value of the key."""
        fields = self._asdict()
        for name in ("token", "queued"):
            if fields[name] is None:
                del fields[name]
        if not self.value:
            del fields["value"]
        return json.dumps(fields, ensure_ascii=False).encode(errors="replace")


UNREADABLE: Final = ClaimRecord(
    owner="?",
    host="?",
    pid=0,
    comment="a record that quorumd did not write",
    since="",
    ttl_ms=_UNREADABLE_TTL_MS,
    claim="",
    client="",
)
"""Stands for any other value. Nobody renews it, so that it lapses after a minute."""


_FIELDS: Final = frozenset(ClaimRecord._fields)


def claim_record_of(value: bytes) -> ClaimRecord:
    """The record that a value is, UNREADABLE if it is none."""
    try:
        fields = json.loads(value)
        record = ClaimRecord(**{name: fields[name] for name in _FIELDS & fields.keys()})
    except (ValueError, TypeError, AttributeError, RecursionError):
        return UNREADABLE
    return record if _is_sound(record) else UNREADABLE


def _is_sound(record: ClaimRecord) -> bool:
    texts = (record.owner, record.host, record.comment, record.since, record.value)
    return (
        all(isinstance(text, str) for text in (*texts, record.claim, record.client))
        and all(_is_count(each) for each in (record.pid, record.ttl_ms, record.attempt))
        and all(each is None or _is_count(each) for each in (record.token, record.queued))
        and TTL_S_MIN <= record.ttl_s <= TTL_S_MAX
        and _ID.fullmatch(record.claim) is not None
        and _ID.fullmatch(record.client) is not None
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def this_process(
    *, owner: str | None, comment: str, ttl_ms: int, claim: str, client: str, value: str = ""
) -> ClaimRecord:
    """A record of a claim that this process makes now. Without `owner` it is the user."""
    return ClaimRecord(
        owner=_user() if owner is None else owner,
        host=socket.gethostname(),
        pid=os.getpid(),
        comment=comment,
        # By itself gmtime asks a coarser clock, which may be in the second before.
        since=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time())),
        ttl_ms=ttl_ms,
        claim=claim,
        client=client,
        value=value,
    )


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
