"""Any client deletes claims that are long over, so that neither the map nor snapshots keep them for ever.

Holders that nobody waits for, registrations of processes that died, and those who waited for a name that is
free and do not act. Never sooner than a waiter would take over; an outage does not count.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from quorumd.client.coordination.contender import OVER_TTLS, TURN_S
from quorumd.client.coordination.contest import ContestBoard
from quorumd.client.coordination.keys import Place
from quorumd.wire.conditions import KEY_BYTES_MAX

SWEPT_MAX: Final = 200
"""Of the keys, in one batch."""
SWEPT_BYTES_MAX: Final = KEY_BYTES_MAX
"""Of their bytes: no batch is refused because somebody has written a key that no condition takes."""


def overdue(board: ContestBoard, now_s: float) -> list[Place]:
    """The places to delete at `now_s`, if they are unchanged; as many as one batch takes."""
    found: list[Place] = []
    left_bytes = SWEPT_BYTES_MAX
    for place in _overdue(board, now_s):
        size_bytes = len(place.key)
        if size_bytes <= left_bytes:
            found.append(place)
            left_bytes -= size_bytes
        if len(found) >= SWEPT_MAX:
            break
    return found


def _overdue(board: ContestBoard, now_s: float) -> Iterator[Place]:
    leader_time_s = board.leader_time.at(now_s)
    for place, contest in board.contests.items():
        holder = contest.holder
        if holder is not None:
            is_over = leader_time_s > holder.leader_time_s + OVER_TTLS * holder.record.ttl_s
            if is_over and holder.record.claim not in board.live:
                yield place
            continue
        for claim, seen in contest.queue.items():
            since_s = max(contest.free_since_s, seen.leader_time_s)
            is_over = leader_time_s > since_s + OVER_TTLS * seen.record.ttl_s + 2 * TURN_S
            if is_over and claim not in board.live:
                yield Place(place.kind, place.name, claim)
