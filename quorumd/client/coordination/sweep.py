"""Any client deletes claims that are long over, so that neither the map nor snapshots keep them for ever.

Holders that nobody waits for, registrations of processes that died, and those who waited for a name that is
free and do not act. Never sooner than a waiter would take over; an outage does not count.
"""

from __future__ import annotations

from typing import Final

from quorumd.client.coordination.contender import OVER_TTLS, TURN_S
from quorumd.client.coordination.contest import ContestBoard
from quorumd.client.coordination.keys import Place

SWEPT_MAX: Final = 200
"""Of the keys, in one batch."""


def overdue(board: ContestBoard, now_s: float) -> list[Place]:
    """The places to delete at `now_s`, if they are unchanged; at most `SWEPT_MAX`."""
    found: list[Place] = []
    answered_s = board.answered.at(now_s)
    for place, contest in board.contests.items():
        if len(found) >= SWEPT_MAX:
            break
        holder = contest.holder
        if holder is not None:
            is_over = answered_s > holder.answered_s + OVER_TTLS * holder.record.ttl_s
            if is_over and holder.record.claim not in board.live:
                found.append(place)
            continue
        for claim, seen in contest.queue.items():
            since_s = max(contest.free_since_s, seen.answered_s)
            is_over = answered_s > since_s + OVER_TTLS * seen.record.ttl_s + 2 * TURN_S
            if is_over and claim not in board.live:
                found.append(Place(place.kind, place.name, claim))
    return found[:SWEPT_MAX]
