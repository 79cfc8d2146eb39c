"""What any client may delete of others: claims that are over, by the time in which the leader responded."""

from __future__ import annotations

from quorumd.client.coordination.claim_record import ClaimRecord
from quorumd.client.coordination.contender import OVER_TTLS, TURN_S
from quorumd.client.coordination.contest import SILENCE_S, ContestBoard
from quorumd.client.coordination.keys import ClaimKind, Place
from quorumd.client.coordination.sweep import SWEPT_MAX, overdue
from quorumd.client.view import KeyChange

TTL_S = 10.0
NAME = Place(ClaimKind.LOCK, "a")
CLAIM = "1" * 32
QUEUED = Place(ClaimKind.LOCK, "a", "2" * 32)
LONG_S = OVER_TTLS * TTL_S + 2 * TURN_S


def board_at(now_s: float = 0.0) -> ContestBoard:
    board = ContestBoard(lambda claim: None)
    board.leader_time.note(now_s)
    return board


def write(board: ContestBoard, place: Place, now_s: float, claim: str = CLAIM) -> None:
    record = ClaimRecord("o", "h", 1, "", "", int(TTL_S * 1000), place.claim or claim, "3" * 32)
    board.apply(KeyChange(place.key, record.encoded(), 0, 0), now_s)


def responds(board: ContestBoard, begin_s: float, end_s: float) -> None:
    """The leader responds all the time."""
    now_s = begin_s
    while now_s < end_s:
        now_s = min(end_s, now_s + SILENCE_S / 2)
        board.leader_time.note(now_s)


def test_a_holder_is_over_two_ttls_after_its_last_record() -> None:
    board = board_at()
    write(board, NAME, 0.0)
    responds(board, 0.0, 15.0)
    write(board, NAME, 15.0)
    responds(board, 15.0, 15.0 + OVER_TTLS * TTL_S)
    assert overdue(board, 15.0 + OVER_TTLS * TTL_S) == []
    assert overdue(board, 15.0 + OVER_TTLS * TTL_S + 0.1) == [NAME]


def test_who_waits_is_over_when_the_name_was_free_for_that_long_and_two_turns() -> None:
    board = board_at()
    write(board, NAME, 0.0)
    write(board, QUEUED, 1.0)
    responds(board, 1.0, 30.0)
    assert overdue(board, 30.0) == [NAME], "whose place is not free yet"
    board.apply(KeyChange(NAME.key, None, 2, 0), 30.0)
    assert overdue(board, 30.0) == []
    responds(board, 30.0, 30.0 + LONG_S)
    assert overdue(board, 30.0 + LONG_S) == []
    assert overdue(board, 30.0 + LONG_S + 0.1) == [QUEUED]


def test_who_queued_for_a_name_that_is_free_has_as_long_from_its_own_record_on() -> None:
    board = board_at()
    write(board, QUEUED, 0.0)
    responds(board, 0.0, 20.0)
    late = Place(ClaimKind.LOCK, "a", "4" * 32)
    write(board, late, 20.0)
    responds(board, 20.0, LONG_S + 0.1)
    assert overdue(board, LONG_S + 0.1) == [QUEUED]


def test_the_time_in_which_no_leader_answers_makes_nobody_overdue() -> None:
    board = board_at()
    write(board, NAME, 0.0)
    write(board, Place(ClaimKind.ELECTION, "b", "2" * 32), 0.0)
    assert overdue(board, 3600.0) == []


def test_what_this_client_itself_holds_and_waits_for_is_left_alone() -> None:
    board = board_at()
    write(board, NAME, 0.0)
    write(board, Place(ClaimKind.ELECTION, "b", QUEUED.claim), 0.0)
    board.live = {CLAIM, QUEUED.claim}
    responds(board, 0.0, 100.0)
    assert overdue(board, 100.0) == []
    board.live.clear()
    assert len(overdue(board, 100.0)) == 2


def test_no_more_are_deleted_at_once_than_fit_into_a_batch() -> None:
    board = board_at()
    for number in range(SWEPT_MAX + 5):
        write(board, Place(ClaimKind.LOCK, "a", f"{number:032x}"), 0.0)
    responds(board, 0.0, 100.0)
    assert len(overdue(board, 100.0)) == SWEPT_MAX
