"""Append if unchanged: a leader's judgement on conditional batches, a pure function of its log.

From the first conditional batch on the leader keeps the newest offset of each key that is written: a window,
bounded in memory, which begins where the log ended then. What is older than the window is not guessed at: its
condition is refused with the offset from which on it can be judged. Another leadership begins anew.
Source: docs/protocol.md, "Append if unchanged". Belongs to the event loop's thread; knows no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Final, NamedTuple

from quorumd.wire.conditions import Condition, KeyedBatch, ManyKeys

WINDOW_BYTES: Final = 64 * 2**20
"""Bytes that a window takes in memory at the most, unless configured."""
WINDOW_IDLE_S = 600.0
"""A window that no condition was judged by for so long is dropped."""
KEY_OVERHEAD_BYTES: Final = 200
"""Bytes that a key takes in a window besides its own bytes: never less than it really is."""
REMEMBERED_REFUSALS: Final = 4096
SHOWN_BYTES: Final = 80
"""Of a key, in a refusal."""

Places = dict[bytes | None, int]
BatchIdentity = tuple[int, int, int, bytes]
"""Producer id and epoch, first sequence, and a digest of the batch."""


class ConditionRefused(NamedTuple):
    """A refused batch; its response may be sent when everything below `end_offset` is committed.

    `record_index` is that of the record at fault. Once the conflicting record is committed in this
    leadership, no other leader can have appended the batch, or will. For an offset above the log end that is
    sure when a later record is committed, or at `sure_s`, when a deposed leader would have resigned.
    """

    message: str
    record_index: int
    end_offset: int
    sure_s: float = inf


class KeyWindow:
    """The newest offset of every key that was written at `start_offset` or later.

    In two halves of equal size: when the newer one is full the older one is let go of.
    """

    __slots__ = (
        "_bytes",
        "_half_bytes",
        "_newer",
        "_newer_many",
        "_newer_start",
        "_older",
        "_older_many",
        "start_offset",
    )

    def __init__(self, start_offset: int, bytes_max: int) -> None:
        self._half_bytes = bytes_max // 2
        self.skip(start_offset)

    def skip(self, end_offset: int) -> None:
        """Nothing is known any more of what was written below `end_offset`."""
        self.start_offset = end_offset
        self._newer_start = end_offset
        self._older: dict[bytes | None, int] = {}
        self._newer: dict[bytes | None, int] = {}
        # Each with the offset that its places count from.
        self._older_many: list[tuple[int, Places]] = []
        self._newer_many: list[tuple[int, Places]] = []
        self._bytes = 0

    def note(self, keys: Sequence[bytes | None], base_offset: int) -> None:
        """These keys are in the log now, one at each offset from `base_offset` on; None is no key."""
        newer, count = self._newer, len(keys)
        before = len(newer)
        end_offset = base_offset + count
        if count == 1:
            newer[keys[0]] = base_offset
        else:
            newer.update(zip(keys, range(base_offset, end_offset), strict=True))
        grown = len(newer) - before
        if not grown:
            return
        self._grow(grown * KEY_OVERHEAD_BYTES + _key_bytes(keys, grown), end_offset)

    def note_many(self, many: ManyKeys, base_offset: int, end_offset: int) -> None:
        """As `note`, without a look at each of them. More than a half holds begin the window anew."""
        size_bytes = len(many.places) * KEY_OVERHEAD_BYTES + many.key_bytes
        if size_bytes > self._half_bytes:
            self.skip(end_offset)
            return
        self._newer_many.append((base_offset, many.places))
        self._grow(size_bytes, end_offset)

    def _grow(self, size_bytes: int, end_offset: int) -> None:
        self._bytes += size_bytes
        if self._bytes > self._half_bytes:
            self.start_offset = self._newer_start
            self._older, self._newer = self._newer, {}
            self._older_many, self._newer_many = self._newer_many, []
            self._newer_start = end_offset
            self._bytes = 0

    def newest(self, key: bytes) -> int:
        """The offset of the newest record with this key, -1 if there is none since the window's start."""
        offset = _newest(key, self._newer, self._newer_many)
        return _newest(key, self._older, self._older_many) if offset < 0 else offset


def _newest(key: bytes, offsets: Places, many: list[tuple[int, Places]]) -> int:
    offset = offsets.get(key, -1)
    for base_offset, places in many:
        place = places.get(key)
        if place is not None:
            offset = max(offset, base_offset + place)
    return offset


def _key_bytes(keys: Sequence[bytes | None], new: int) -> int:
    """Bytes of `new` of the keys at the most: to find out which ones are new would cost more."""
    if len(keys) == 1:
        return len(keys[0] or b"")
    longest = len(max(filter(None, keys), key=len, default=b""))
    if longest <= KEY_OVERHEAD_BYTES:
        return new * longest
    return min(new * longest, len(b"".join(filter(None, keys))))


class ConditionJudge:
    """Judges the conditional batches of one leadership after the other.

    A leader that no majority hears resigns within `resigns_within_s`.
    """

    __slots__ = ("_bytes_max", "_judged_s", "_refusals", "_resigns_within_s", "window")

    def __init__(self, bytes_max: int, resigns_within_s: float = 3.0) -> None:
        self._resigns_within_s = resigns_within_s
        self._bytes_max = bytes_max
        self.window: KeyWindow | None = None
        """None until a condition is judged, and after `close`."""
        self._judged_s = 0.0
        self._refusals: dict[BatchIdentity, ConditionRefused] = {}

    def close(self) -> None:
        """The leadership is over."""
        self.window = None
        self._refusals.clear()

    @property
    def idle_s(self) -> float:
        """When the window counts as one that is not needed, unless a condition is judged before."""
        return self._judged_s + WINDOW_IDLE_S

    def close_if_idle(self, now_s: float) -> None:
        """Let go of the window that was not needed for long."""
        if now_s >= self.idle_s:
            self.window = None

    def note(self, keyed: KeyedBatch | None, base_offset: int, end_offset: int) -> None:
        """A batch has these offsets now: its keys count. Keys that were not read begin the window anew."""
        window = self.window
        assert window is not None, "there is a window to note it in"
        if keyed is not None and keyed.keys is not None:
            window.note(keyed.keys, base_offset)
        elif keyed is not None and keyed.many is not None:
            window.note_many(keyed.many, base_offset, end_offset)
        else:
            window.skip(end_offset)

    def remembered(self, identity: BatchIdentity) -> ConditionRefused | None:
        """The refusal that this batch got when it was sent before; None if it got none."""
        return self._refusals.get(identity)

    def judge(
        self, keyed: KeyedBatch, log_end_offset: int, now_s: float, identity: BatchIdentity | None
    ) -> ConditionRefused | None:
        """None if the batch may be appended at `log_end_offset`, this very moment.

        Whom this leadership refuses once it refuses again, also what is sent again by `identity`.
        """
        self._judged_s = now_s
        if self.window is None:
            self.window = KeyWindow(log_end_offset, self._bytes_max)
        refused = self._judged(self.window, keyed, log_end_offset, now_s)
        if refused is not None and identity is not None:
            if len(self._refusals) >= REMEMBERED_REFUSALS:
                del self._refusals[next(iter(self._refusals))]
            self._refusals[identity] = refused
        return refused

    def _judged(
        self, window: KeyWindow, keyed: KeyedBatch, log_end_offset: int, now_s: float
    ) -> ConditionRefused | None:
        keys, condition, _ = keyed
        assert keys is not None, "the keys of a conditional batch are known"
        assert condition is not None, "it has a condition"
        since = condition.since
        if since > log_end_offset:
            return ConditionRefused(
                f"Record 0: no offset above {log_end_offset} is known yet, where the log ends; the condition"
                f" is about {since}. Give the offset up to which you have read.",
                0,
                log_end_offset + 1,
                now_s + self._resigns_within_s,
            )
        if since == log_end_offset:
            return None
        found = _oldest_conflict(window, keys, condition)
        if found is not None:
            return found
        start = window.start_offset
        if since < start:
            return ConditionRefused(
                f"Read again from offset {start}: what was written since {since}, where the condition"
                " begins, is not remembered so far back.",
                0,
                start,
            )
        return None


def _oldest_conflict(
    window: KeyWindow, keys: Sequence[bytes | None], condition: Condition
) -> ConditionRefused | None:
    """Of the keys that were written since: the one whose newest record is committed first."""
    since = condition.since
    lowest = -1
    at: tuple[str, int, bytes] = ("", 0, b"")
    for kind, each in (("Record", keys), ("Named key", condition.named)):
        for index, key in enumerate(each):
            if key is None:
                continue
            offset = window.newest(key)
            if offset >= since and (lowest < 0 or offset < lowest):
                lowest, at = offset, (kind, index, key)
    if lowest < 0:
        return None
    kind, index, key = at
    return ConditionRefused(
        f"{kind} {index} conflicts: its key was written at offset {lowest}, and must not have been since"
        f" {since}. The key is {_shown(key)}.",
        index if kind == "Record" else 0,
        lowest + 1,
    )


def _shown(key: bytes) -> str:
    """A key for people, on one line."""
    text = ascii(key[:SHOWN_BYTES])[1:]
    return text if len(key) <= SHOWN_BYTES else f"{text}... ({len(key)} bytes)"
