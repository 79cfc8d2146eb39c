"""The rules of one claim, step by step: who is handed a name, whose turn it is, and what leaving deletes."""

from __future__ import annotations

from quorumd.client.coordination.claim_record import ClaimRecord
from quorumd.client.coordination.contender import (
    HEIR_TTLS,
    TURN_S,
    ClaimWrite,
    Contender,
    Intent,
    heir_of,
    turn_s,
)
from quorumd.client.coordination.contest import AnsweredTime, Contest, SeenRecord
from quorumd.client.coordination.keys import ClaimKind, Place

TTL_S = 10.0
NAME = Place(ClaimKind.LOCK, "a")
OWN, OTHER, THIRD = ("1" * 32, "2" * 32, "3" * 32)


def record_of(claim: str, client: str = OTHER) -> ClaimRecord:
    return ClaimRecord("o", "h", 1, "", "", int(TTL_S * 1000), claim, client)


def seen(claim: str, offset: int, *, client: str = OTHER, at_s: float = 0.0) -> SeenRecord:
    record = record_of(claim, client)
    return SeenRecord(record, record.encoded(), offset, 0, at_s, at_s)


def free_name() -> Contest:
    """Free since the second 0, in which the leader answered."""
    answered = AnsweredTime()
    answered.note(0.0)
    return Contest(answered, answered.at(0.0))


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
