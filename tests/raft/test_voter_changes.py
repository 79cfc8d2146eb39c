"""Adding and removing voters, one at a time, as the leader handles the requests."""

from __future__ import annotations

from typing import Any

import pytest

from quorumd.raft.config import StoredState
from quorumd.raft.control import VotersRecord
from quorumd.raft.effects import (
    EndQuorumEpoch,
    PersistRemoval,
    SendReply,
    VoterChangeReply,
)
from quorumd.raft.events import (
    AppendRequested,
    ResignationRequested,
    TimerFired,
)
from quorumd.raft.roles import Leader, Role
from quorumd.raft.types import Endpoint, ReplicaKey, Voter
from quorumd.raft.voter_changes.checks import is_fetching
from tests.raft.changes import (
    END,
    FREE,
    add,
    answers,
    fetch_all,
    last_answer,
    leading,
    reassign,
    refused,
    remove,
    transfer,
    wait_for,
    written,
)
from tests.raft.harness import (
    CLUSTER,
    endpoints,
    follower,
    log_of,
    observer,
    unattached,
    voter_set,
)
from tests.raft.harness import key as key_of
from tests.raft.harness import leader as bare_leader

# -- adding


def test_an_observer_that_has_caught_up_becomes_a_voter_when_the_new_majority_has_the_record() -> (
    None
):
    bench = leading()
    bench.fetch(key_of(4), END, 4)
    assert add(bench, key_of(4)) is None
    assert written(bench) == [VotersRecord(voter_set(1, 2, 3, 4), CLUSTER)]
    assert bench.node.voters == voter_set(1, 2, 3, 4)
    assert f"voter {key_of(4)} is added" in bench.reports
    # Three of four are needed now: the leader and one more are not enough.
    fetch_all(bench, key_of(2))
    assert not answers(bench)
    assert wait_for(bench) == (
        f"the voter set at offset 4 is not committed yet: {key_of(3)}, {key_of(4)} have not stored it"
    )
    fetch_all(bench, key_of(4))
    assert last_answer(bench).error is None
    assert bench.node.high_watermark == 5


def test_an_addition_waits_until_the_observer_has_caught_up() -> None:
    bench = leading()
    assert add(bench, key_of(4)) is None
    assert "does not fetch from this leader" in wait_for(bench)
    bench.fetch(key_of(4), 0, 0)
    assert "is 4 records behind" in wait_for(bench)
    bench.fetch(key_of(4), 1, 1)
    assert "is 3 records behind" in wait_for(bench)
    assert not written(bench)
    bench.fetch(key_of(4), END, 4)
    assert written(bench) == [VotersRecord(voter_set(1, 2, 3, 4), CLUSTER)]


@pytest.mark.parametrize("late_ms", [1000, 1001])
def test_a_lag_of_an_election_timeout_or_more_is_not_caught_up(late_ms: int) -> None:
    bench = leading()
    bench.fetch(key_of(4), END, 4)
    bench.step(AppendRequested(1, 5), after_ms=late_ms)
    add(bench, key_of(4))
    assert f"is 5 records behind, and fetched {late_ms} ms ago" in wait_for(bench)
    assert not written(bench)


def test_a_lag_of_less_than_an_election_timeout_is_caught_up() -> None:
    bench = leading()
    bench.fetch(key_of(4), END, 4)
    bench.step(AppendRequested(1, 5), after_ms=999)
    bench.step(AppendRequested(2, 5))
    add(bench, key_of(4))
    assert len(written(bench)) == 1


def test_what_can_be_done_at_once_is_done_even_if_nothing_may_be_waited_for() -> None:
    bench = leading()
    bench.fetch(key_of(4), END, 4)
    answer = add(bench, key_of(4), timeout_ms=0, ack_when_committed=False)
    assert refused(answer) == (None, "")
    bench = leading()
    error, text = refused(add(bench, key_of(4), timeout_ms=0))
    assert error == "INVALID_REQUEST"
    assert "does not fetch from this leader" in text


def test_an_addition_that_need_not_be_committed_is_answered_when_it_is_in_the_log() -> None:
    bench = leading()
    bench.fetch(key_of(4), END, 4)
    answer = add(bench, key_of(4), ack_when_committed=False)
    assert refused(answer) == (None, "")
    assert bench.node.core.log.voters_offset == END


def test_a_change_that_is_in_the_log_when_its_time_is_over_may_still_be_committed() -> None:
    bench = leading()
    assert remove(bench, key_of(3), timeout_ms=700) is None
    bench.sync()
    bench.wait(700)
    assert refused(last_answer(bench)) == (
        "REQUEST_TIMED_OUT",
        "the change is in the log and may still be committed, but the voter set at offset 4 is not "
        f"committed yet: {key_of(2)} has not stored it. It is safe to ask again",
    )


@pytest.mark.parametrize(
    ("fetches", "error", "said"),
    [
        (False, "INVALID_REQUEST", "does not fetch from this leader: is it running"),
        (True, "REQUEST_TIMED_OUT", "is 3 records behind"),
    ],
)
def test_a_replica_that_never_catches_up_is_refused_after_the_time_out_with_the_reason(
    fetches: bool, error: str, said: str
) -> None:
    bench = leading()
    assert add(bench, key_of(4), timeout_ms=700) is None
    if fetches:
        bench.fetch(key_of(4), 1, 1)
    bench.wait(699)
    assert not answers(bench)
    bench.wait(1)
    assert last_answer(bench).error == error
    assert said in (last_answer(bench).message or "")
    assert "It is safe to ask again" in (last_answer(bench).message or "")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"voter": Voter(ReplicaKey(4), endpoints(4))}, "a storage id"),
        ({"voter": Voter(key_of(4)._replace(id=-1), endpoints(4))}, "0 or more"),
        ({"voter": Voter(key_of(4), ())}, "an endpoint for the listener CONTROLLER is missing"),
        ({"voter": Voter(key_of(4), (Endpoint("OTHER", "h", 1),))}, "CONTROLLER is missing"),
        ({"voter": Voter(key_of(4), (Endpoint("CONTROLLER", "", 1),))}, "is no endpoint"),
        ({"voter": Voter(key_of(4), (Endpoint("CONTROLLER", "h", 0),))}, "is no endpoint"),
        ({"voter": Voter(key_of(4), (Endpoint("CONTROLLER", "h", -1),))}, "is no endpoint"),
        ({"voter": Voter(key_of(4), (Endpoint("CONTROLLER", "h", 65536),))}, "is no endpoint"),
        ({"voter": Voter(key_of(4), (Endpoint("CONTROLLER", "h", 70000),))}, "is no endpoint"),
        ({"voter": Voter(key_of(4), (*endpoints(4), Endpoint("", "h", 1)))}, "is no endpoint"),
        ({"voter": Voter(key_of(4), endpoints(4) + endpoints(5))}, "a listener has two endpoints"),
        ({"voter": Voter(key_of(4), endpoints(4), 0, 0)}, "does not support kraft.version 1"),
        ({"voter": Voter(key_of(3, 1), endpoints(3))}, f"the voter {key_of(3)} is alive"),
        ({"voter": Voter(key_of(1, 1), endpoints(1))}, f"the voter {key_of(1)} is alive"),
    ],
)
def test_what_can_be_no_voter_is_refused_at_once(change: dict[str, Any], said: str) -> None:
    error, text = refused(add(leading(), key_of(4), **change))
    assert error == "INVALID_REQUEST"
    assert said in text


@pytest.mark.parametrize(
    "voter",
    [
        Voter(key_of(0), endpoints(0)),
        Voter(key_of(4), endpoints(4), 1, 2),
        Voter(key_of(4), (*endpoints(4), Endpoint("OTHER", "h", 1))),
        Voter(key_of(4), (Endpoint("CONTROLLER", "h", 65535),)),
    ],
    ids=["id 0", "kraft.version 2", "two listeners", "last port"],
)
def test_what_can_be_a_voter_waits_for_its_turn(voter: Voter) -> None:
    """Only the first listener is needed: that is where voters reach each other."""
    listeners = (*endpoints(1), Endpoint("SECOND", "host1", 9094))
    bench = bare_leader(endpoints=listeners, **FREE)
    fetch_all(bench)
    fetch_all(bench)
    assert add(bench, voter.key, voter=voter) is None


def test_who_votes_already_is_told_so() -> None:
    bench = leading()
    error, text = refused(add(bench, key_of(3)))
    assert (error, text) == ("DUPLICATE_VOTER", f"replica {key_of(3)} is a voter already")
    assert refused(add(bench, key_of(1)))[0] == "DUPLICATE_VOTER"


def test_asking_again_for_a_change_that_is_not_committed_waits_for_it() -> None:
    bench = leading()
    bench.fetch(key_of(4), END, 4)
    add(bench, key_of(4))
    assert add(bench, key_of(4)) is None
    assert len(written(bench)) == 1
    fetch_all(bench)
    answered = [e.reply for e in bench.all if isinstance(e, SendReply)]
    assert [a.error for a in answered if isinstance(a, VoterChangeReply)] == [None, None]
    gone = leading()
    remove(gone, key_of(3))
    assert remove(gone, key_of(3)) is None
    fetch_all(gone)
    answered = [e.reply for e in gone.all if isinstance(e, SendReply)]
    assert [a.error for a in answered if isinstance(a, VoterChangeReply)] == [None, None]


def test_who_is_being_removed_is_no_voter_already() -> None:
    """A new leader does not know yet that the removal before its time is committed."""
    log = log_of(1, 1, 2, 3, voters=voter_set(1, 2, 3))
    log.add_voters(3, VotersRecord(voter_set(1, 2), CLUSTER))
    bench = bare_leader(2, log=log, **FREE)
    bench.fetch(key_of(3), 3, 2, max_wait_ms=0)
    assert add(bench, key_of(3)) is None
    fetch_all(bench, key_of(2), key_of(3))
    fetch_all(bench, key_of(2), key_of(3))
    assert written(bench)[-1].voters.keys == tuple(map(key_of, (1, 2, 3)))
    assert last_answer(bench).error is None


def test_ids_outside_quorum_voters_are_refused() -> None:
    bench = leading(configured_voters=voter_set(1, 2, 3, by_id=True))
    bench.fetch(key_of(4), END, 4)
    error, text = refused(add(bench, key_of(4)))
    assert error == "INVALID_REQUEST"
    assert text.startswith("quorum.voters permits the ids 1, 2, 3 only, not 4. Remove that key")


# -- removing


def test_a_removed_follower_does_not_count_any_more() -> None:
    bench = leading()
    assert remove(bench, key_of(3)) is None
    assert written(bench) == [VotersRecord(voter_set(1, 2), CLUSTER)]
    assert f"voter {key_of(3)} is removed" in bench.reports
    fetch_all(bench, key_of(3))
    assert not answers(bench)
    fetch_all(bench, key_of(2))
    assert last_answer(bench).error is None


def test_a_removed_leader_does_not_count_itself_answers_and_then_resigns() -> None:
    bench = leading()
    assert remove(bench, key_of(1)) is None
    fetch_all(bench, key_of(2))
    assert bench.role is Role.LEADER
    assert bench.node.high_watermark == END
    fetch_all(bench, key_of(3))
    assert last_answer(bench).error is None
    assert (
        "this leader was removed from the voters, which is committed: it resigns" in bench.reports
    )
    assert bench.role is Role.RESIGNED
    assert bench.find(PersistRemoval)
    [to_2, to_3] = bench.requests(EndQuorumEpoch)
    assert {to_2.to, to_3.to} == {key_of(2), key_of(3)}
    bench.wait(5000)
    assert bench.role is Role.OBSERVER


@pytest.mark.parametrize(
    ("key", "error", "said"),
    [
        (key_of(9), "VOTER_NOT_FOUND", "is not a voter: the voters are"),
        (key_of(3, 1), "VOTER_NOT_FOUND", "is not a voter: the voters are"),
        (ReplicaKey(3), "INVALID_REQUEST", "a storage id"),
        (key_of(3)._replace(id=-1), "INVALID_REQUEST", "0 or more"),
        (key_of(0), "VOTER_NOT_FOUND", "is not a voter: the voters are"),
    ],
)
def test_who_is_no_voter_is_not_removed(key: ReplicaKey, error: str, said: str) -> None:
    found, text = refused(remove(leading(), key))
    assert found == error
    assert said in text


def test_the_only_voter_is_not_removed() -> None:
    error, text = refused(remove(leading(1), key_of(1)))
    assert error == "VOTER_NOT_FOUND"
    assert "is the only voter: add another one first" in text


def test_of_two_voters_one_may_be_removed() -> None:
    bench = leading(2)
    assert remove(bench, key_of(2)) is None
    assert written(bench) == [VotersRecord(voter_set(1), CLUSTER)]


def test_who_never_fetched_does_not_fetch_however_short_the_time_since_the_start() -> None:
    bench = bare_leader(3, **FREE)
    core = bench.node.core
    assert isinstance(core.state, Leader)
    core.now_ms = 100
    assert not is_fetching(core, core.state, key_of(9))


def test_a_removal_that_would_stop_the_quorum_waits_unless_it_is_forced() -> None:
    bench = leading()
    for _ in range(5):
        bench.wait(500)
        fetch_all(bench, key_of(2))
    assert remove(bench, key_of(2)) is None
    assert not written(bench)
    assert f"{key_of(3)} do not fetch: the quorum would stand still" in wait_for(bench)
    fetch_all(bench, key_of(3))
    assert written(bench) == [VotersRecord(voter_set(1, 3), CLUSTER)]
    forced = leading()
    for _ in range(5):
        forced.wait(500)
        fetch_all(forced, key_of(2))
    assert remove(forced, key_of(2), force=True) is None
    assert written(forced) == [VotersRecord(voter_set(1, 3), CLUSTER)]


# -- one at a time, and never before a record of the own epoch


def test_the_next_change_is_made_when_the_last_one_is_committed() -> None:
    bench = leading()
    bench.fetch(key_of(4), END, 4)
    add(bench, key_of(4))
    assert remove(bench, key_of(3)) is None
    assert len(written(bench)) == 1
    fetch_all(bench, key_of(2), key_of(4))
    assert [record.voters for record in written(bench)] == [
        voter_set(1, 2, 3, 4),
        voter_set(1, 2, 4),
    ]


def test_a_voter_set_behind_records_that_are_not_committed_is_not_either() -> None:
    """The next change waits, and a leader that is removed goes on, though the set is not the next record."""
    bench = leading(5)
    bench.step(AppendRequested(1, 2))
    remove(bench, key_of(1))
    assert remove(bench, key_of(2)) is None
    assert len(written(bench)) == 1
    assert wait_for(bench).count("have not stored it") == 1
    assert all(str(key_of(each)) in wait_for(bench) for each in (2, 3, 4, 5))
    assert bench.role is Role.LEADER


def test_a_change_that_became_wrong_while_it_waited_is_refused_and_not_made() -> None:
    bench = leading(4)
    remove(bench, key_of(4))
    assert remove(bench, key_of(3)) is None
    assert remove(bench, key_of(3)) is None
    fetch_all(bench, key_of(2), key_of(3))
    fetch_all(bench, key_of(2))
    assert [answer.error for answer in answers(bench)] == [None, "VOTER_NOT_FOUND"]
    assert [record.voters.ids for record in written(bench)] == [(1, 2, 3), (1, 2)]


def test_who_asks_a_new_leader_again_waits_until_the_set_that_it_found_is_committed() -> None:
    log = log_of(1, 1, 2, voters=voter_set(1, 2))
    log.add_voters(2, VotersRecord(voter_set(1, 2, 3), CLUSTER))
    bench = bare_leader(3, log=log, **FREE)
    assert bench.node.high_watermark is None
    assert add(bench, key_of(3)) is None
    fetch_all(bench)
    assert last_answer(bench).error is None
    assert not written(bench)


def test_the_leader_wakes_when_the_first_request_has_waited_long_enough() -> None:
    bench = leading()
    add(bench, key_of(4), timeout_ms=4)
    add(bench, key_of(4), timeout_ms=2)
    assert bench.node.next_deadline_ms() == bench.now_ms + 2
    bench.step(TimerFired(), after_ms=20)
    assert len(answers(bench)) == 2
    bench.step(AppendRequested(1, 1))
    transfer(bench, key_of(2), timeout_ms=1)
    assert bench.node.next_deadline_ms() == bench.now_ms + 1


def test_no_voter_set_is_changed_before_a_record_of_the_own_epoch_is_committed() -> None:
    bench = bare_leader(**FREE)
    assert remove(bench, key_of(3)) is None
    assert not written(bench)
    assert wait_for(bench) == "this leader has not committed a record of its epoch yet"
    fetch_all(bench, key_of(2))
    assert written(bench) == [VotersRecord(voter_set(1, 2), CLUSTER)]


def test_who_waits_is_told_when_leadership_ends() -> None:
    bench = leading()
    assert add(bench, key_of(4)) is None
    bench.step(AppendRequested(1, 1))
    assert transfer(bench, key_of(2)) is None
    bench.step(ResignationRequested("maintenance", shutting_down=False))
    errors = [answer.error for answer in answers(bench)]
    assert errors == ["NOT_LEADER_OR_FOLLOWER"] * 2
    assert "it is safe to repeat" in (last_answer(bench).message or "")


def test_who_does_not_lead_names_the_leader() -> None:
    for make in (
        lambda bench: add(bench, key_of(4)),
        lambda bench: remove(bench, key_of(3)),
        lambda bench: reassign(bench, 1, 2),
        lambda bench: transfer(bench, None),
    ):
        answer = make(follower(**FREE))
        assert refused(answer) == (
            "NOT_LEADER_OR_FOLLOWER",
            "replica 1 does not lead: replica 2 leads",
        )
        assert answer is not None
        assert answer.leader_id == 2


def test_another_cluster_is_refused() -> None:
    bench = leading()
    assert refused(add(bench, key_of(4), cluster_id="b"))[0] == "INCONSISTENT_CLUSTER_ID"
    assert refused(remove(bench, key_of(3), cluster_id="b"))[0] == "INCONSISTENT_CLUSTER_ID"
    assert refused(transfer(bench, None, cluster_id="b"))[0] == "INCONSISTENT_CLUSTER_ID"


def test_too_many_requests_do_not_wait() -> None:
    bench = leading()
    for _ in range(100):
        assert add(bench, key_of(4)) is None
    text = refused(add(bench, key_of(4)))[1]
    assert text == "100 changes of the voters wait already: ask again later"
    assert refused(add(bench, key_of(2)))[0] == "DUPLICATE_VOTER", "it would not wait"


# -- who is removed goes on until that is committed


def test_who_is_being_removed_campaigns_until_its_removal_is_committed() -> None:
    """Perhaps only this replica has the record, and the voters that remain lack it."""
    log = log_of(1, 1, 2, 3, voters=voter_set(1, 2))
    log.add_voters(3, VotersRecord(voter_set(2), CLUSTER))
    bench = unattached(2, log=log, **FREE)
    assert bench.role is Role.UNATTACHED
    while bench.role is Role.UNATTACHED:
        bench.fire()
    assert bench.role is Role.PROSPECTIVE
    bench.grant(key_of(2))
    assert bench.role is Role.CANDIDATE
    bench.sync()
    # Its own vote does not count: 2 is the only voter.
    assert bench.role is Role.CANDIDATE
    bench.grant(key_of(2))
    assert bench.role is Role.LEADER
    fetch_all(bench, key_of(2))
    assert bench.role is Role.RESIGNED


def test_a_new_disk_that_copies_a_log_is_not_the_voter_that_had_its_id() -> None:
    """The ids of quorum.voters fit any disk; what it copies names another one, committed or not."""
    log = log_of(1, 1, 2, 3, voters=voter_set(1, 2, 3))
    bench = unattached(log=log, local=key_of(1, disk=1), stored=StoredState(epoch=3))
    assert bench.role is Role.OBSERVER
    assert not bench.node.core.is_voter


def test_a_follower_that_learns_that_its_removal_is_committed_observes() -> None:
    bench = follower(**FREE)
    record = VotersRecord(voter_set(2, 3), CLUSTER)
    bench.sync()
    bench.fetched(epochs=[3], control=((3, record),), high_watermark=3)
    assert bench.role is Role.FOLLOWER
    assert not bench.find_all(PersistRemoval)
    bench.sync()
    bench.fetched(high_watermark=4)
    assert bench.role is Role.OBSERVER
    assert bench.find_all(PersistRemoval)
    assert bench.node.core.was_removed


def test_who_learns_only_afterwards_that_it_was_a_voter_is_one_until_its_removal_is_committed() -> (
    None
):
    bench = observer(local=key_of(1), log=log_of(), stored=StoredState(epoch=3), **FREE)
    sets = [VotersRecord(voter_set(*ids), CLUSTER) for ids in ((1, 2, 3), (2, 3))]
    bench.fetched(epochs=[1, 1], control=tuple(enumerate(sets)), high_watermark=0)
    assert bench.role is Role.OBSERVER
    bench.sync()
    bench.fetched(high_watermark=1)
    assert bench.role is Role.FOLLOWER
    bench.fetched(high_watermark=2)
    assert bench.role is Role.OBSERVER


def test_a_voter_that_was_alone_gives_its_first_companion_all_the_time_to_fetch() -> None:
    bench = leading(1)
    bench.wait(2900)
    bench.fetch(key_of(2), *bench.node.core.log.end)
    assert add(bench, key_of(2)) is None
    bench.sync()
    assert bench.node.voters.keys == (key_of(1), key_of(2))
    bench.wait(2900)
    assert bench.role is Role.LEADER
    fetch_all(bench)
    assert last_answer(bench).error is None
    bench.wait(2999)
    assert bench.role is Role.LEADER
    bench.wait(1)
    assert bench.role is Role.RESIGNED
