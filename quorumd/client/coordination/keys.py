"""The names of what can be held, the keys that stand for them in the log, and what is permitted."""

from __future__ import annotations

import math
from enum import Enum
from typing import Final, NamedTuple

NAME_BYTES_MAX: Final = 512
COMMENT_CHARACTERS_MAX: Final = 1000
VALUE_BYTES_MAX: Final = 64 * 1024
TTL_S_MIN: Final = 1.0
TTL_S_MAX: Final = 86_400.0
TTL_S_DEFAULT: Final = 10.0

PREFIX: Final = b"quorumd."
_CLAIM_CHARACTERS: Final = 32


class ClaimKind(Enum):
    """The kind of claim that a name stands for. Its value is part of the key."""

    LOCK = "locks"
    ELECTION = "elections"
    REGISTRATION = "registrations"


class Place(NamedTuple):
    """The key of a name's holder, or with a `claim` that of one who waits for it."""

    kind: ClaimKind
    name: str
    claim: str = ""

    @property
    def key(self) -> bytes:
        """`quorumd.locks/NAME`, and of one who waits `quorumd.locks.queue/NAME/CLAIM`."""
        if self.claim:
            return f"quorumd.{self.kind.value}.queue/{self.name}/{self.claim}".encode()
        return f"quorumd.{self.kind.value}/{self.name}".encode()

    @property
    def in_words(self) -> str:
        """For messages: "the lock 'jobs/nightly'"."""
        return f"the {self.kind.name.lower()} {self.name!r}"

    @property
    def holder(self) -> Place:
        """The place of the name's holder."""
        return Place(self.kind, self.name)


_HOLDERS: Final = {f"quorumd.{kind.value}": kind for kind in ClaimKind}
_QUEUES: Final = {f"quorumd.{kind.value}.queue": kind for kind in ClaimKind}


def place_of(key: bytes) -> Place | None:
    """The place that a key stands for; None for any other key."""
    if not key.startswith(PREFIX):
        return None
    try:
        top, _, rest = key.decode().partition("/")
    except UnicodeDecodeError:
        return None
    if not rest:
        return None
    if (kind := _HOLDERS.get(top)) is not None:
        return Place(kind, rest)
    if (kind := _QUEUES.get(top)) is not None:
        name, _, claim = rest.rpartition("/")
        if name and len(claim) == _CLAIM_CHARACTERS:
            return Place(kind, name, claim)
    return None


def check_name(name: str) -> str:
    """The name. Raises TypeError or ValueError for one that is not permitted, and says what is."""
    if not isinstance(name, str):
        raise TypeError(f"the name of a claim is of type {type(name).__name__}: give text")
    size_bytes = len(name.encode(errors="replace"))
    if not 1 <= size_bytes <= NAME_BYTES_MAX or not name.isprintable():
        found = f"is {size_bytes} bytes long" if name.isprintable() else "is not all printable"
        shown = ascii(name[:80])
        raise ValueError(
            f"the name {shown} {found}: give 1 to {NAME_BYTES_MAX} bytes of UTF-8, spaces and"
            " printable characters only, no newlines or other control characters"
        )
    return name


def ttl_ms_of(ttl_s: float) -> int:
    """Milliseconds. Raises ValueError beyond 1 second to 1 day."""
    if not math.isfinite(ttl_s) or not TTL_S_MIN <= ttl_s <= TTL_S_MAX:
        raise ValueError(f"a ttl of {ttl_s:g} s: give 1 s to {TTL_S_MAX:g} s (a day)")
    return int(ttl_s * 1000)


def check_texts(*, owner: str | None, comment: str, value: str) -> None:
    """Raises ValueError for a text that is too long, with how long it may be, and TypeError for none."""
    for what, text in (("owner", owner or ""), ("comment", comment), ("value", value)):
        if not isinstance(text, str):
            raise TypeError(f"the {what} of a claim is of type {type(text).__name__}: give text")
    for what, text in (("owner", owner or ""), ("comment", comment)):
        if len(text) > COMMENT_CHARACTERS_MAX:
            raise ValueError(
                f"the {what} has {len(text)} characters: give {COMMENT_CHARACTERS_MAX} at the most"
            )
    if len(value.encode(errors="replace")) > VALUE_BYTES_MAX:
        raise ValueError(f"the value is longer than {VALUE_BYTES_MAX} bytes: give a shorter one")
