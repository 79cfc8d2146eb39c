"""What replicas tell their leader of themselves, and when."""

from __future__ import annotations

from typing import Any

import pytest

from quorumd.raft.control import VotersRecord
from quorumd.raft.effects import AddVoter, PersistQuorumState, RemoveVoter, UpdateVoter
from quorumd.raft.events import LeaderHint, TimerFired, VoterChangeResponseReceived
from quorumd.raft.replica_progress import MAX_OBSERVERS
from quorumd.raft.roles import MOVE_REMEMBERED_MS, Role
from quorumd.raft.types import Endpoint, ReplicaKey, Voter, VoterSet
from tests.raft.changes import FREE, MOVED, add, fetch_all, leading, refused, update, written
from tests.raft.harness import (
    CLUSTER,
    Bench,
    endpoints,
    follower,
    fresh,
    keyed_set,
    observer,
    unattached,
    voter_set,
)
from tests.raft.harness import key as key_of
from tests.raft.harness import leader as bare_leader


def said(bench: Bench) -> list[UpdateVoter]:
    return [sent.request for sent in bench.requests(UpdateVoter, bench.all)]


def answer(bench: Bench, error: str | None = None, hint: LeaderHint | None = None) -> None:
    request_id = bench.outstanding(UpdateVoter).request_id
    bench.step(
        VoterChangeResponseReceived(request_id=request_id, error=error, message="no", hint=hint)
    )


# -- asking


def test_a_leader_that_has_not_answered_is_not_told_again() -> None:
    bench = follower(endpoints=MOVED, **FREE)
    for _ in range(10):
        bench.fetched(after_ms=1000)
    assert len(said(bench)) == 1


def test_nobody_is_told_before_it_has_answered_as_leader() -> None:
    bench = follower(contact=False, endpoints=MOVED, **FREE)
    bench.wait(100)
    assert not said(bench)
    bench.fetched()
    assert len(said(bench)) == 1


def test_nobody_is_told_before_the_log_names_the_voters() -> None:
    bench = fresh(2, endpoints=MOVED)
    bench.begin(1, 1)
    bench.sync()
    bench.fetched()
    assert bench.role is Role.FOLLOWER
    assert not said(bench)


def test_a_replica_without_storage_id_or_endpoints_has_nothing_to_say() -> None:
    for bench in (observer(endpoints=()), observer(local=ReplicaKey(9))):
        bench.fetched()
        assert not said(bench)
        assert bench.node.registration_request is None


def test_what_a_leader_refuses_is_said_again_when_the_back_off_is_over() -> None:
    bench = follower(endpoints=MOVED, retry_backoff_ms=5000, retry_backoff_max_ms=5000, **FREE)
    answer(bench, "REQUEST_TIMED_OUT")
    assert f"{key_of(2)} refuses UpdateVoter: REQUEST_TIMED_OUT: no" in bench.reports
    for _ in range(3):
        bench.fetched(after_ms=1000)
    assert len(said(bench)) == 1
    for _ in range(4):
        bench.fetched(after_ms=1000)
    assert len(said(bench)) == 2


def test_a_leader_that_an_answer_names_is_told_too() -> None:
    """What the former leader was told its successor does not know."""
    bench = observer(**FREE)
    bench.fetched()
    assert len(said(bench)) == 1
    answer(bench, hint=LeaderHint(epoch=4, leader_id=3, endpoints=endpoints(3)))
    bench.sync()
    bench.fetched()
    assert bench.node.leader == key_of(3)
    assert said(bench) == [UpdateVoter(epoch=epoch, endpoints=endpoints(9)) for epoch in (3, 4)]
    # No leader hears of an epoch that this replica could forget.
    stored = bench.find_all(PersistQuorumState)[-1]
    assert stored.epoch == 4
    assert bench.requests(UpdateVoter, bench.all)[-1].after >= stored.write > 0


def test_what_is_wrong_with_a_leader_is_not_said_of_the_next_one() -> None:
    bench = observer(**FREE)
    bench.fetched()
    bench.node.core.problem = "its log is not the one that this replica knows"
    bench.begin(3, 4)
    assert bench.node.leader == key_of(3)
    assert bench.node.status().problem is None


def test_what_a_former_leader_answers_late_is_ignored() -> None:
    bench = observer(**FREE)
    bench.fetched()
    asked = bench.outstanding(UpdateVoter).request_id
    bench.begin(3, 4)
    bench.sync()
    bench.fetched()
    reported = bench.reports
    bench.step(VoterChangeResponseReceived(request_id=asked, error="NOT_CONTROLLER", message="no"))
    assert bench.reports == reported
    assert bench.node.leader == key_of(3)


def test_a_voter_that_campaigns_tells_the_leader_that_it_misses_nothing() -> None:
    bench = follower(endpoints=MOVED, **FREE)
    answer(bench)
    bench.wait(2025)
    assert bench.role is Role.PROSPECTIVE
    answer(bench)
    bench.node.core.registration.next_ms = bench.now_ms
    before = len(said(bench))
    bench.step(TimerFired())
    assert len(said(bench)) == before


def test_who_has_taken_the_place_of_its_lost_disk_asks_for_nothing_more() -> None:
    bench = unattached(local=key_of(3, 1), auto_join=True, **FREE)
    bench.begin(2, 3)
    bench.sync()
    bench.fetched()
    answer(bench)
    alone = keyed_set(key_of(1), key_of(2), key_of(3, 1))
    bench.fetched(epochs=[3], control=((3, VotersRecord(alone, CLUSTER)),))
    bench.sync()
    for _ in range(5):
        bench.fetched(high_watermark=4, after_ms=1000)
    assert bench.role is Role.FOLLOWER
    assert bench.node.registration_request is None
    assert not bench.requests(AddVoter, bench.all)
    assert not bench.requests(RemoveVoter, bench.all)


# -- being told


def test_impossible_endpoints_are_reported() -> None:
    bench = leading()
    update(bench, Voter(key_of(3), ()))
    assert (
        f"what {key_of(3)} says of its endpoints is refused: an endpoint for the" in bench.reports
    )
    update(bench, Voter(key_of(1), endpoints(1)))
    assert (
        f"what {key_of(1)} says of its endpoints is refused: that is this replica" in bench.reports
    )


def test_a_voter_that_says_where_it_is_is_alive() -> None:
    bench = leading()
    for _ in range(14):
        fetch_all(bench, key_of(2))
        bench.wait(500)
    assert refused(update(bench, Voter(key_of(3), endpoints(3)))) == (None, "")
    assert f"the voter {key_of(3)} is alive" in refused(add(bench, key_of(3, 1)))[1]


def test_a_voter_that_moves_is_reported() -> None:
    bench = leading()
    update(bench, Voter(key_of(3), MOVED))
    assert f"voter {key_of(3)} is reached at CONTROLLER://elsewhere:1234 from now on" in (
        bench.reports
    )


def test_a_voter_that_is_at_two_places_in_turn_runs_twice() -> None:
    bench = leading()
    places = (endpoints(3), MOVED)

    def say(where: int) -> tuple[str, ...]:
        update(bench, Voter(key_of(3), places[where % 2]))
        fetch_all(bench)
        return bench.node.status().running_twice

    assert [say(1), say(2)] == [(), ()], "it was moved and moved back"
    [text] = say(3)
    assert f"voter {key_of(3)} is reached in turn at CONTROLLER://host3:9093 and at " in text
    for _ in range(MOVE_REMEMBERED_MS // 500):
        bench.wait(500)
        fetch_all(bench)
    assert bench.node.status().running_twice == ()
    assert say(4) == ()


def test_a_voter_whose_endpoints_are_corrected_again_and_again_says_itself_that_it_runs_twice() -> (
    None
):
    """As beside a Kafka leader, which tells nobody."""
    bench = follower(**FREE)

    def say(where: tuple[Endpoint, ...]) -> tuple[str, ...]:
        end = bench.node.core.log.end
        voters = VoterSet.of([Voter(key_of(1), where), *keyed_set(key_of(2), key_of(3))])
        bench.fetched(epochs=[end.epoch], control=((end.offset, VotersRecord(voters, CLUSTER)),))
        bench.sync()
        for _ in range(3):
            bench.fetched(after_ms=1000)
        if where == MOVED:
            answer(bench)
        return bench.node.status().running_twice

    assert [say(MOVED), say(endpoints(1)), say(endpoints(1))] == [()] * 3, "it may be moved back"
    [text] = say(MOVED)
    assert text == (
        f"voter {key_of(1)} is reached in turn at CONTROLLER://host1:9093 and at "
        "CONTROLLER://elsewhere:1234"
    )
    for _ in range(MOVE_REMEMBERED_MS // 1000):
        bench.fetched(after_ms=1000)
    assert bench.node.status().running_twice == ()


def test_a_voter_that_says_so_often_is_not_heard_runs_once() -> None:
    bench = follower(endpoints=MOVED, **FREE)
    for _ in range(5):
        answer(bench)
        for _ in range(3):
            bench.fetched(after_ms=1000)
    assert len(said(bench)) > 3
    assert bench.node.status().running_twice == ()


def test_a_voter_that_moves_on_and_on_is_one_process() -> None:
    bench = leading()
    for port in range(1, 7):
        update(bench, Voter(key_of(3), (MOVED[0]._replace(port=port),)))
        fetch_all(bench)
    assert len(written(bench)) == 6
    assert bench.node.status().running_twice == ()


def test_of_too_many_observers_that_say_where_they_are_the_longest_silent_is_forgotten() -> None:
    """Anybody can send the request, under any storage id."""
    bench = leading()
    bench.fetch(key_of(4), *bench.node.core.log.end, max_wait_ms=0)
    update(bench, Voter(key_of(4), endpoints(4)))
    for disk in range(MAX_OBSERVERS + 2):
        assert refused(update(bench, Voter(key_of(9, disk), endpoints(9)))) == (None, "")
    update(bench, Voter(key_of(9, MAX_OBSERVERS), MOVED))
    known = bench.node.status().registered_observers
    assert len(known) == MAX_OBSERVERS
    assert Voter(key_of(4), endpoints(4)) in known
    assert Voter(key_of(9, MAX_OBSERVERS), MOVED) in known
    assert Voter(key_of(9), endpoints(9)) not in known


def test_a_voter_that_has_moved_is_written_down() -> None:
    bench = leading()
    assert refused(update(bench, Voter(key_of(3), MOVED))) == (None, "")
    [record] = written(bench)
    assert record.voters.find(key_of(3)) == Voter(key_of(3), MOVED)
    assert record.voters.keys == voter_set(1, 2, 3).keys
    error, text = refused(update(bench, Voter(key_of(2), MOVED)))
    assert error == "REQUEST_TIMED_OUT"
    assert "is not committed yet" in text
    assert refused(update(bench, Voter(key_of(3), MOVED))) == (None, "")
    assert len(written(bench)) == 1


def test_an_observer_that_says_where_it_is_stands_in_memory_only() -> None:
    bench = leading()
    assert refused(update(bench, Voter(key_of(4), MOVED))) == (None, "")
    assert not written(bench)
    assert bench.node.status().registered_observers == (Voter(key_of(4), MOVED),)


def test_a_newcomer_knows_better_than_its_operator_where_it_is_reached() -> None:
    bench = leading()
    update(bench, Voter(key_of(4), MOVED))
    bench.fetch(key_of(4), *bench.node.core.log.end)
    add(bench, key_of(4))
    [record] = written(bench)
    assert record.voters.find(key_of(4)) == Voter(key_of(4), MOVED)
    assert (
        f"replica {key_of(4)} is reached at CONTROLLER://elsewhere:1234, as it says itself, and not at "
        "CONTROLLER://host4:9093"
    ) in bench.reports


def test_a_newcomer_that_has_not_said_where_it_is_corrects_its_operator_once_it_votes() -> None:
    bench = leading()
    bench.fetch(key_of(4), *bench.node.core.log.end)
    add(bench, key_of(4))
    assert written(bench)[-1].voters.find(key_of(4)) == Voter(key_of(4), endpoints(4))
    fetch_all(bench)
    assert refused(update(bench, Voter(key_of(4), MOVED))) == (None, "")
    assert written(bench)[-1].voters.find(key_of(4)) == Voter(key_of(4), MOVED)


@pytest.mark.parametrize(
    ("voter", "more", "error"),
    [
        (Voter(key_of(3), ()), {}, "UNKNOWN_SERVER_ERROR"),
        (Voter(ReplicaKey(3), MOVED), {}, "UNKNOWN_SERVER_ERROR"),
        (Voter(key_of(3), MOVED + endpoints(3)), {}, "UNKNOWN_SERVER_ERROR"),
        (Voter(key_of(1), MOVED), {}, "UNKNOWN_SERVER_ERROR"),
        (Voter(key_of(3), MOVED), {"epoch": 3}, "FENCED_LEADER_EPOCH"),
        (Voter(key_of(3), MOVED), {"epoch": 5}, "UNKNOWN_LEADER_EPOCH"),
        (Voter(key_of(3), MOVED), {"cluster_id": "b"}, "INCONSISTENT_CLUSTER_ID"),
        (Voter(key_of(3), MOVED), {"cluster_id": "b", "epoch": 3}, "INCONSISTENT_CLUSTER_ID"),
    ],
)
def test_impossible_words_of_a_voter_are_refused(
    voter: Voter, more: dict[str, Any], error: str
) -> None:
    bench = leading()
    assert refused(update(bench, voter, **more))[0] == error
    assert not written(bench)


def test_a_leader_that_has_moved_writes_itself_down_once_it_may() -> None:
    bench = bare_leader(endpoints=MOVED, **FREE)
    assert not written(bench)
    fetch_all(bench)
    [record] = written(bench)
    assert record.voters.find(key_of(1)) == Voter(key_of(1), MOVED)
    fetch_all(bench)
    bench.wait(1000)
    assert len(written(bench)) == 1


def test_a_follower_tells_its_leader_once_where_it_is_reached_now() -> None:
    bench = follower(endpoints=MOVED, **FREE)
    request = bench.outstanding(UpdateVoter)
    assert request.to == key_of(2)
    assert request.request == UpdateVoter(epoch=3, endpoints=MOVED)
    hint = LeaderHint(epoch=3, leader_id=2, endpoints=endpoints(2))
    bench.step(VoterChangeResponseReceived(request_id=request.request_id, error=None, hint=hint))
    said = len(bench.requests(UpdateVoter, bench.all))
    for _ in range(3):
        bench.fetched(after_ms=400)
    assert len(bench.requests(UpdateVoter, bench.all)) == said
    # Still another address in the log: it is told again after a while.
    for _ in range(3):
        bench.fetched(after_ms=400)
    assert len(bench.requests(UpdateVoter, bench.all)) == said + 1


def test_a_follower_that_has_not_moved_says_nothing() -> None:
    bench = follower(**FREE)
    for _ in range(10):
        bench.fetched(after_ms=400)
    assert not bench.requests(UpdateVoter, bench.all)


# -- joining without an operator


def newcomer(**more: Any) -> Bench:
    """Replica 3 with a new disk, while the old one is a voter; it follows replica 2."""
    values = {"local": key_of(3, 1), "auto_join": True} | FREE | more
    bench = unattached(**values)
    bench.begin(2, 3)
    bench.sync()
    bench.fetched()
    return bench


def answer_word(bench: Bench, error: str | None = None) -> None:
    for kind in (UpdateVoter, AddVoter, RemoveVoter):
        for sent in bench.requests(kind, bench.all):
            if sent.request_id in bench.node.core.requests.in_flight:
                bench.step(VoterChangeResponseReceived(request_id=sent.request_id, error=error))


def test_a_new_disk_takes_the_place_of_the_lost_one() -> None:
    bench = newcomer()
    answer_word(bench)
    bench.fetched(after_ms=2000)
    assert bench.outstanding(AddVoter).request == AddVoter(endpoints=endpoints(3))
    answer_word(bench)
    both = keyed_set(key_of(1), key_of(2), key_of(3), key_of(3, 1))
    bench.fetched(epochs=[3], control=((3, VotersRecord(both, CLUSTER)),), after_ms=10)
    bench.sync()
    bench.fetched(high_watermark=4, after_ms=2000)
    assert bench.role is Role.FOLLOWER
    assert bench.outstanding(RemoveVoter).request == RemoveVoter(key=key_of(3))
    assert bench.node.registration_request == RemoveVoter(key=key_of(3))
    alone = keyed_set(key_of(1), key_of(2), key_of(3))
    bench.fetched(epochs=[3], control=((3, VotersRecord(alone, CLUSTER)),), after_ms=10)
    bench.sync()
    bench.fetched(high_watermark=5, after_ms=10)
    assert bench.node.registration_request is None, "it was removed"


@pytest.mark.parametrize(
    "more", [{"auto_join": False}, {"was_removed": True}, {"local": key_of(9)}], ids=str
)
def test_others_do_not_join_by_themselves(more: dict[str, Any]) -> None:
    bench = newcomer(**more)
    for _ in range(20):
        answer_word(bench)
        bench.fetched(after_ms=500)
    assert not bench.requests(AddVoter, bench.all)
