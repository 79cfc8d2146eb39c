"""What a client sees of a name: the order of the queue, whose turn its own claims have, and who is woken."""

from __future__ import annotations

from quorumd.client.coordination.claim_record import ClaimRecord
from quorumd.client.coordination.contest import SILENCE_S, ContestBoard, LeaderTime
from quorumd.client.coordination.keys import ClaimKind, Place
from quorumd.client.view import KeyChange

NAME = Place(ClaimKind.LOCK, "a")
ONE, TWO, THREE, FOUR = (digit * 32 for digit in "1234")


class Watched:
    """A board, and the claims that it has woken since that was last asked."""

    def __init__(self, *live: str) -> None:
        self.board = ContestBoard(self._note)
        self.board.live = set(live)
        self._woken: set[str] = set()

    def _note(self, claim: str) -> None:
        self._woken.add(claim)

    def woken(self) -> set[str]:
        woken, self._woken = self._woken, set()
        return woken

    def write(
        self,
        offset: int,
        *,
        holder: str = "",
        waiter: str = "",
        queued: int | None = None,
        token: int | None = None,
        now_s: float = 0.0,
    ) -> None:
        """The record of a holder or of one who waits; `queued` is where it took its place."""
        record = ClaimRecord(
            *("o", "h", 1, "", "", 10_000, holder or waiter, FOUR), token=token, queued=queued
        )
        place = NAME._replace(claim=waiter)
        self.board.apply(KeyChange(place.key, record.encoded(), offset, 0), now_s)

    def delete(self, offset: int, *, waiter: str = "", now_s: float = 0.0) -> None:
        self.board.apply(KeyChange(NAME._replace(claim=waiter).key, None, offset, 0), now_s)

    @property
    def queue(self) -> list[str]:
        return list(self.board.contest(NAME).queue)

    @property
    def first_own(self) -> str | None:
        return self.board.contest(NAME).first_own


def test_no_more_than_a_second_is_counted_of_the_time_from_one_answer_to_the_next() -> None:
    leader_time = LeaderTime()
    leader_time.note(100.0)
    begun_s = leader_time.at(100.0)
    leader_time.note(100.4)
    assert not leader_time.is_stopped(100.4 + SILENCE_S / 2)
    leader_time.note(130.0)
    assert abs(leader_time.at(130.0) - begun_s - 0.4 - SILENCE_S) < 1e-9
    assert abs(leader_time.at(130.3) - begun_s - 0.7 - SILENCE_S) < 1e-9
    assert leader_time.is_stopped(130.0 + SILENCE_S)


def test_a_leader_whose_records_are_read_has_answered() -> None:
    watched = Watched()
    watched.write(1, holder=ONE, now_s=50.0)
    assert not watched.board.leader_time.is_stopped(50.0)


def test_who_is_written_again_keeps_the_place_and_who_queues_again_has_a_new_one() -> None:
    watched = Watched(ONE, TWO)
    watched.write(1, waiter=ONE)
    watched.write(2, waiter=TWO)
    watched.write(3, waiter=ONE, queued=1)
    assert (watched.queue, watched.first_own) == ([ONE, TWO], ONE)
    watched.write(4, waiter=ONE)
    assert (watched.queue, watched.first_own) == ([TWO, ONE], TWO)


def test_claims_of_others_are_none_of_this_client() -> None:
    watched = Watched(ONE)
    watched.write(1, waiter=TWO)
    assert watched.first_own is None
    watched.write(2, waiter=ONE)
    watched.write(3, waiter=TWO)
    assert (watched.queue, watched.first_own) == ([ONE, TWO], ONE)


def test_a_place_at_the_very_first_offset_is_one() -> None:
    watched = Watched()
    watched.write(0, waiter=ONE)
    watched.write(1, waiter=TWO)
    watched.write(2, waiter=ONE, queued=0)
    assert watched.queue == [ONE, TWO]
    watched.write(3, holder=ONE, token=0)
    holder = watched.board.contest(NAME).holder
    assert holder is not None
    assert holder.token == 0


def test_the_order_is_that_of_the_places_though_their_records_were_not_read() -> None:
    """As in a snapshot, which has the newest record of each."""
    watched = Watched(ONE, TWO)
    watched.write(5, waiter=TWO)
    watched.write(7, waiter=THREE, queued=3)
    watched.write(9, waiter=ONE, queued=1)
    assert (watched.queue, watched.first_own) == ([ONE, THREE, TWO], ONE)


def test_those_who_wait_outlast_the_holder_and_are_forgotten_with_the_last_of_them() -> None:
    watched = Watched()
    watched.write(1, holder=ONE)
    watched.write(2, waiter=TWO)
    watched.delete(3, now_s=5.0)
    assert watched.queue == [TWO]
    assert watched.board.contest(NAME).free_since_s == watched.board.leader_time.at(5.0)
    watched.delete(4, waiter=TWO)
    assert watched.board.contests == {}


def test_only_those_before_a_claim_are_ahead_of_it() -> None:
    watched = Watched()
    for offset, claim in enumerate((ONE, TWO, THREE)):
        watched.write(offset, waiter=claim)
    contest = watched.board.contest(NAME)
    assert [seen.record.claim for seen in contest.ahead_of(TWO)] == [ONE]
    assert contest.ahead_of(FOUR) == []


def test_who_loses_the_name_and_who_is_next_of_this_client_are_woken() -> None:
    watched = Watched(ONE, TWO, THREE)
    watched.write(1, holder=ONE)
    watched.write(2, waiter=TWO)
    watched.write(3, waiter=THREE)
    watched.woken()
    watched.write(4, holder=FOUR)
    assert watched.woken() == {ONE, TWO}
    watched.delete(5)
    assert watched.woken() == {TWO}
    watched.board.give_up(NAME, TWO)
    assert watched.woken() == {THREE}
    assert watched.queue == [TWO, THREE], "until its record is deleted"
    watched.delete(6, waiter=TWO)
    assert watched.woken() == {THREE}, "who gave up is woken no more"


def test_who_left_the_queue_is_not_the_first_of_this_client_any_more() -> None:
    watched = Watched(ONE, TWO)
    watched.write(1, waiter=ONE)
    watched.write(2, waiter=TWO)
    watched.woken()
    watched.delete(3, waiter=ONE)
    assert (watched.queue, watched.first_own) == ([TWO], TWO)
    assert watched.woken() == {ONE, TWO}
