"""The rules of one claim, step by step: who is handed a name, whose turn it is, and what leaving deletes."""

from __future__ import annotations

from quorumd.client.coordination.claim_record import ClaimRecord, claim_record_of
from quorumd.client.coordination.contender import (
    ALLOWANCE,
    HEIR_TTLS,
    OVER_TTLS,
    RENEWALS_PER_TTL,
    SETTLE_S,
    TURN_S,
    ClaimWrite,
    Contender,
    Intent,
    WaitUntil,
    heir_of,
    may_be_over,
    turn_s,
    watching_s,
)
from quorumd.client.coordination.contest import SILENCE_S, Contest, LeaderTime, SeenRecord
from quorumd.client.coordination.keys import ClaimKind, Place
from quorumd.client.coordination.registration import Registrant
from quorumd.wire.records import Record

TTL_S = 10.0
NAME = Place(ClaimKind.LOCK, "a")
REGISTERED = Place(ClaimKind.REGISTRATION, "a")
OWN, OTHER, THIRD = ("1" * 32, "2" * 32, "3" * 32)
OWN_PLACE, OTHER_PLACE = (Place(ClaimKind.LOCK, "a", claim) for claim in (OWN, OTHER))
LAPSE_S = TTL_S * (1 + ALLOWANCE)
HELD_S = TTL_S * (1 - ALLOWANCE)
THIRD_OF_TTL_S = TTL_S / RENEWALS_PER_TTL


def record_of(claim: str, client: str = OTHER) -> ClaimRecord:
    return ClaimRecord("o", "h", 1, "", "", int(TTL_S * 1000), claim, client)


def seen(claim: str, offset: int, *, client: str = OTHER, at_s: float = 0.0) -> SeenRecord:
    record = record_of(claim, client)
    return SeenRecord(record, record.encoded(), offset, 0, at_s, at_s)


def free_name() -> Contest:
    """Free since the second 0, in which the leader responded."""
    leader_time = LeaderTime()
    leader_time.note(0.0)
    return Contest(leader_time, leader_time.at(0.0))


def responding(contest: Contest, end_s: float) -> None:
    """The leader responds all the time until then."""
    for step in range(int(end_s / SILENCE_S) + 1):
        contest.leader_time.note(min(end_s, step * SILENCE_S))
    contest.leader_time.note(end_s)


def written(step: ClaimWrite | WaitUntil | None) -> ClaimWrite:
    assert isinstance(step, ClaimWrite)
    return step


def keys_of(write: ClaimWrite) -> dict[bytes, bool]:
    """The keys that are written, and whether they get a value."""
    return {record.key or b"": record.value is not None for record in write.records}


def as_seen(record: Record, offset: int, at_s: float) -> SeenRecord:
    """As a reader sees what a claim has written."""
    found = claim_record_of(record.value or b"")
    return SeenRecord(found, record.value or b"", offset, 0, at_s, at_s)


def waiting_first(contest: Contest) -> Contender:
    """A claim that has queued at offset 1 in the second 0, behind a holder, and has read that."""
    contest.holder = seen(OTHER, 0)
    contender = Contender(NAME, record_of(OWN, OWN))
    step = written(contender.next_step(contest, 1, 0.0))
    assert step.intent is Intent.QUEUE
    contender.acknowledged(step, 1)
    contest.put(OWN, as_seen(step.records[0], 1, 0.0), is_own=True)
    return contender


def holding(offset: int) -> Contender:
    """A claim that has acquired the name with the record at this offset, in the second 0."""
    contender = Contender(NAME, record_of(OWN, OWN))
    step = contender.next_step(free_name(), 0, 0.0)
    assert isinstance(step, ClaimWrite)
    contender.acknowledged(step, offset)
    assert contender.holds(0.0)
    return contender


def test_only_who_was_heard_of_lately_is_handed_a_name() -> None:
    contest = free_name()
    assert heir_of(contest, 0.0) is None
    contest.put(OTHER, seen(OTHER, 1), is_own=False)
    contest.put(THIRD, seen(THIRD, 2, at_s=9.0), is_own=False)
    heir = heir_of(contest, HEIR_TTLS * TTL_S - 0.1)
    assert heir is not None
    assert heir.record.claim == OTHER
    assert heir_of(contest, HEIR_TTLS * TTL_S) is None, "it may be dead, and is first all the same"


def test_nobody_is_handed_a_name_by_a_record_of_another_claim() -> None:
    """It would be the holder's record, which nobody renews."""
    contest = free_name()
    contest.put(OTHER, seen(THIRD, 1), is_own=False)
    assert heir_of(contest, 0.0) is None


def test_each_client_before_a_claim_has_its_turn_once_and_the_own_one_none() -> None:
    contest = free_name()
    for offset, (claim, client) in enumerate(
        ((OTHER, OTHER), (THIRD, OTHER), ("4" * 32, OWN), (OWN, OWN))
    ):
        contest.put(claim, seen(claim, offset, client=client), is_own=client == OWN)
    for claim, turn in ((OTHER, None), (THIRD, None), ("4" * 32, TURN_S), (OWN, TURN_S)):
        at_s = turn_s(contest, claim, 0.0)
        assert at_s is not None
        assert at_s == turn if turn is not None else at_s < 0, claim


def test_what_is_not_on_the_board_yet_is_given_back_under_the_condition_of_its_own_record() -> None:
    contender = holding(5)
    step = contender.leave_step(free_name(), 3, 1.0)
    assert step is not None
    assert (step.intent, step.since) == (Intent.GIVE_BACK, 6)
    assert [(record.key, record.value) for record in step.records] == [(NAME.key, None)]


def test_who_leaves_does_not_hand_the_name_to_its_own_record_in_the_queue() -> None:
    contender, contest = holding(5), free_name()
    contest.put(OWN, seen(OWN, 1, client=OWN), is_own=True)
    contest.holder = seen(OWN, 5, client=OWN)
    step = contender.leave_step(contest, 6, 1.0)
    assert step is not None
    assert step.intent is Intent.GIVE_BACK
    assert {record.key for record in step.records} == {
        NAME.key,
        Place(ClaimKind.LOCK, "a", OWN).key,
    }


def test_the_next_one_is_watched_for_the_ttl_and_a_turn_of_each_client() -> None:
    contest = free_name()
    assert watching_s(contest) == 0
    contest.holder = seen(OTHER, 0)
    for offset, (claim, client) in enumerate(((OTHER, OTHER), (THIRD, OTHER), (OWN, OWN)), 1):
        contest.put(claim, seen(claim, offset, client=client), is_own=False)
    assert watching_s(contest) == LAPSE_S + 2 * TURN_S


def test_a_holder_is_watched_for_whose_record_is_some_ttls_old_by_the_wall_clocks() -> None:
    contest = free_name()
    assert may_be_over(contest, 0), "it is free: those who wait are watched"
    contest.holder = seen(OTHER, 0)._replace(timestamp_ms=1_000_000)
    over_ms = 1_000_000 + round(OVER_TTLS * TTL_S * 1000)
    assert not may_be_over(contest, over_ms)
    assert may_be_over(contest, over_ms + 1)


def test_who_is_second_waits_for_the_ttl_of_a_silent_holder_and_a_turn() -> None:
    contest = free_name()
    contest.holder = seen(OTHER, 0)._replace(leader_time_s=contest.leader_time.at(0.0))
    contest.put(OTHER, seen(OTHER, 1), is_own=False)
    contest.put(OWN, seen(OWN, 2, client=OWN), is_own=True)
    assert turn_s(contest, OTHER, 0.0) == LAPSE_S
    assert turn_s(contest, OWN, 0.0) == LAPSE_S + TURN_S
    responding(contest, 4.0)
    at_s = turn_s(contest, OWN, 4.0)
    assert at_s is not None
    assert abs(at_s - LAPSE_S - TURN_S) < 1e-9


def test_while_the_leader_is_silent_nobody_s_turn_comes_but_that_of_the_first() -> None:
    contest = free_name()
    contest.put(OTHER, seen(OTHER, 1), is_own=False)
    contest.put(OWN, seen(OWN, 2, client=OWN), is_own=True)
    assert turn_s(contest, OWN, SILENCE_S) is None
    first = turn_s(contest, OTHER, SILENCE_S)
    assert first is not None
    assert first < 0


def test_who_has_queued_waits_until_it_sees_itself_there() -> None:
    contest = free_name()
    contest.holder = seen(OTHER, 0)
    contender = Contender(NAME, record_of(OWN, OWN))
    step = written(contender.next_step(contest, 1, 0.0))
    contender.acknowledged(step, 5)
    assert contender.next_step(contest, 5, 1.0) == WaitUntil(None)
    assert written(contender.next_step(contest, 6, 1.0)).intent is Intent.QUEUE, "it was deleted"


def test_the_first_in_the_queue_keeps_its_record_young_and_its_place() -> None:
    contest = free_name()
    contender = waiting_first(contest)
    assert contender.next_step(contest, 2, 1.0) == WaitUntil(THIRD_OF_TTL_S)
    for offset, at_s in ((7, THIRD_OF_TTL_S), (9, 2 * THIRD_OF_TTL_S)):
        step = written(contender.next_step(contest, offset, at_s))
        assert step.intent is Intent.QUEUE
        (record,) = step.records
        contest.put(OWN, as_seen(record, offset, at_s), is_own=True)
        assert contest.queue[OWN].place == 1
        contender.acknowledged(step, offset)
    assert contender.next_step(contest, 10, 7.0) == WaitUntil(3 * THIRD_OF_TTL_S)
    assert contender.next_step(contest, 10, 9.99) == WaitUntil(3 * THIRD_OF_TTL_S)
    contest.holder = seen(OTHER, 10, at_s=-1.0)
    assert contender.next_step(contest, 11, 9.2) == WaitUntil(LAPSE_S - 1.0)


def test_who_is_not_the_first_in_the_queue_does_not_write_its_record_again() -> None:
    contest = free_name()
    contender = waiting_first(contest)
    contest.holder = seen(THIRD, 9, at_s=9.0)
    contest.put(OTHER, seen(OTHER, 0), is_own=False)
    assert list(contest.queue) == [OTHER, OWN]
    responding(contest, 9.0)
    assert contender.next_step(contest, 10, 9.0) == WaitUntil(turn_s(contest, OWN, 9.0))


def test_who_becomes_the_first_lets_the_one_before_begin() -> None:
    contest = free_name()
    contest.put(OTHER, seen(OTHER, 1), is_own=False)
    contender = waiting_first(contest)
    contest.put(OWN, contest.queue[OWN]._replace(offset=2), is_own=True)
    responding(contest, 6.0)
    assert isinstance(contender.next_step(contest, 3, 6.0), WaitUntil)
    del contest.queue[OTHER]
    contest.holder = seen(OTHER, 3, at_s=6.0)
    assert contender.next_step(contest, 4, 6.0) == WaitUntil(6.0 + SETTLE_S)
    assert contender.next_step(contest, 4, 6.01) == WaitUntil(6.0 + SETTLE_S)
    assert written(contender.next_step(contest, 4, 6.0 + SETTLE_S)).intent is Intent.QUEUE


def test_an_heir_holds_from_when_it_sent_the_record_that_became_the_holder_s() -> None:
    """It has sent a newer one meanwhile, which came too late."""
    contest = free_name()
    contender = waiting_first(contest)
    assert isinstance(contender.next_step(contest, 2, 1.0), WaitUntil)
    written(contender.next_step(contest, 2, THIRD_OF_TTL_S))
    queued = contest.queue.pop(OWN)
    del contest.own[OWN]
    contest.holder = queued._replace(offset=2)
    assert contender.next_step(contest, 4, 4.0) is None
    assert contender.token == 2
    assert contender.held_until_s == HELD_S


def test_who_acquires_takes_those_before_it_and_itself_out_of_the_queue() -> None:
    contest = free_name()
    contest.put(OTHER, seen(OTHER, 0), is_own=False)
    contest.put(OWN, seen(OWN, 1, client=OWN), is_own=True)
    contest.put(THIRD, seen(THIRD, 2), is_own=False)
    contender = Contender(NAME, record_of(OWN, OWN))
    responding(contest, TURN_S + 0.1)
    step = written(contender.next_step(contest, 3, TURN_S + 0.1))
    assert step.intent is Intent.ACQUIRE
    assert keys_of(step) == {NAME.key: True, OTHER_PLACE.key: False, OWN_PLACE.key: False}


def test_a_renewal_has_the_token_and_the_condition_of_the_own_record_and_leaves_the_queue() -> None:
    contender, contest = holding(5), free_name()
    contest.put(OWN, seen(OWN, 1, client=OWN), is_own=True)
    step = written(contender.keep_step(contest, 3, THIRD_OF_TTL_S))
    assert (step.intent, step.since) == (Intent.RENEW, 6)
    assert keys_of(step) == {NAME.key: True, OWN_PLACE.key: False}
    assert claim_record_of(step.records[0].value or b"").token == 5


def test_who_is_told_of_its_acquisition_too_late_keeps_the_token_as_long_as_it_is_there() -> None:
    contender, contest = Contender(NAME, record_of(OWN, OWN)), free_name()
    step = written(contender.next_step(contest, 0, 0.0))
    contest.holder = as_seen(step.records[0], 5, HELD_S)
    renewal = written(contender.next_step(contest, 6, HELD_S))
    assert (renewal.intent, contender.token) == (Intent.RENEW, 5)
    # The renewal is refused: another one has the name.
    contest.holder = seen(OTHER, 6)
    assert written(contender.next_step(contest, 7, HELD_S)).intent is Intent.QUEUE
    assert contender.token == -1


def test_a_name_is_lost_by_a_board_that_has_the_own_record_and_another_holder() -> None:
    contender = holding(5)
    contender.observe(free_name(), 5)
    assert contender.holds(1.0)
    contender.observe(free_name(), 6)
    assert not contender.holds(1.0)
    assert contender.leave_step(free_name(), 6, 1.0) is None, "it is another one's"


def test_what_was_sent_after_the_record_that_is_read_counts_when_it_is_acknowledged() -> None:
    contender, contest = holding(5), free_name()
    first = written(contender.keep_step(contest, 3, THIRD_OF_TTL_S))
    second = written(contender.keep_step(contest, 3, 4.0))
    contest.holder = as_seen(first.records[0], 6, 4.5)
    contender.observe(contest, 7)
    assert contender.held_until_s == THIRD_OF_TTL_S + HELD_S
    contender.acknowledged(second, 8)
    assert contender.held_until_s == 4.0 + HELD_S
    contender.acknowledged(first, 6)
    assert contender.held_until_s == 4.0 + HELD_S
    assert (contender.token, contender.offset) == (5, 8)


def test_an_older_record_that_somebody_puts_back_takes_no_time_from_the_holder() -> None:
    contender, contest = holding(5), free_name()
    renewals = [written(contender.keep_step(contest, 3, at_s)) for at_s in (THIRD_OF_TTL_S, 4.0)]
    contender.acknowledged(renewals[1], 7)
    contest.holder = as_seen(renewals[0].records[0], 9, 4.5)
    contender.observe(contest, 10)
    assert contender.held_until_s == 4.0 + HELD_S
    assert (contender.token, contender.offset) == (5, 9)


def test_what_the_board_has_just_not_got_is_given_back_under_the_condition_of_its_record() -> None:
    step = written(holding(5).leave_step(free_name(), 5, 1.0))
    assert step.since == 6
    contender = holding(5)
    contender.acknowledged(written(contender.leave_step(free_name(), 5, 1.0)), 6)
    assert contender.leave_step(free_name(), 5, 1.0) is None
    contest = free_name()
    contest.holder = seen(OTHER, 0)
    contender = Contender(NAME, record_of(OWN, OWN))
    contender.acknowledged(written(contender.next_step(contest, 1, 0.0)), 5)
    step = written(contender.leave_step(contest, 5, 1.0))
    assert step.since == 6
    assert keys_of(step) == {OWN_PLACE.key: False}
    contender.acknowledged(step, 7)
    assert contender.leave_step(contest, 5, 1.0) is None


def test_who_has_left_writes_no_more_until_the_board_shows_that_it_is_there_again() -> None:
    contender, contest = holding(5), free_name()
    contest.put(OWN, seen(OWN, 1, client=OWN), is_own=True)
    contest.holder = seen(OWN, 5, client=OWN)
    step = written(contender.leave_step(contest, 6, 1.0))
    assert keys_of(step) == {NAME.key: False, OWN_PLACE.key: False}
    contender.acknowledged(step, 7)
    contest.holder = None
    assert not contender.holds(1.0)
    assert contender.leave_step(contest, 8, 1.0) is None
    assert written(contender.leave_step(contest, 9, 1.0)).intent is Intent.GIVE_BACK


def registered(offset: int) -> Registrant:
    """A registration whose record is at this offset, sent in the second 0, though another had the name."""
    contest, registrant = free_name(), Registrant(REGISTERED, record_of(OWN, OWN))
    contest.holder = seen(OTHER, 0)
    step = written(registrant.next_step(contest, offset, 0.0))
    assert (step.intent, step.since) == (Intent.ACQUIRE, offset)
    registrant.acknowledged(step, offset)
    assert registrant.next_step(contest, offset, 0.0) is None
    return registrant


def test_a_registration_lasts_until_another_one_comes() -> None:
    registrant, contest = registered(5), free_name()
    contest.holder = seen(OWN, 5, client=OWN)
    assert registrant.keep_step(contest, 6, 1.0) == WaitUntil(THIRD_OF_TTL_S)
    assert registrant.holds(1e9), "whatever the clock says"
    renewal = written(registrant.keep_step(contest, 6, THIRD_OF_TTL_S))
    assert renewal.intent is Intent.RENEW
    registrant.acknowledged(renewal, 6)
    contest.holder = seen(OTHER, 7)
    assert registrant.keep_step(contest, 8, 4.0) is None
    assert not registrant.holds(4.0)


def test_a_registration_whose_record_was_deleted_is_written_again_at_once() -> None:
    registrant, contest = registered(5), free_name()
    assert written(registrant.keep_step(contest, 6, 1.0)).intent is Intent.RENEW
    assert registrant.holds(1.0)
