"""Voters that are reassigned; leaders that hand over; witnesses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quorumd.raft.config import StoredState
from quorumd.raft.control import VotersRecord
from quorumd.raft.effects import (
    EndQuorumEpoch,
    VoteReply,
)
from quorumd.raft.events import (
    AppendRequested,
    ConnectionLost,
    ConnectionMade,
    ReassignmentRequested,
    TimerFired,
    VoteRequestReceived,
)
from quorumd.raft.roles import Role
from quorumd.raft.types import OffsetAndEpoch, ReplicaKey, Voter
from tests.raft.changes import (
    END,
    FREE,
    add,
    answers,
    changed,
    fetch_all,
    last_answer,
    leading,
    reassign,
    refused,
    remove,
    transfer,
    update,
    written,
)
from tests.raft.harness import (
    CLUSTER,
    Bench,
    endpoints,
    follower,
    keyed_set,
    log_of,
    unattached,
    voter_set,
)
from tests.raft.harness import key as key_of
from tests.raft.harness import leader as bare_leader

# -- reassignment


def test_a_reassignment_is_answered_when_its_target_is_committed() -> None:
    bench = leading()
    assert reassign(bench, 1, 2, 4) is None
    assert written(bench) == [VotersRecord(voter_set(1, 2, 3), CLUSTER, (1, 2, 4))]
    fetch_all(bench)
    assert last_answer(bench).error is None


def moved_on(bench: Bench, *ids: int, rounds: int = 12) -> list[tuple[int, ...]]:
    """The voter sets that follow each other while everybody fetches and says where it is."""
    for _ in range(rounds):
        if bench.role is Role.LEADER:
            for replica_id in ids:
                if key_of(replica_id) not in bench.node.voters.keys:
                    update(bench, Voter(key_of(replica_id), endpoints(replica_id)))
            fetch_all(bench, *(key_of(i) for i in ids if i != 1))
    return [record.voters.ids for record in written(bench)]


def test_a_reassignment_adds_and_removes_in_turn_and_the_leader_goes_last() -> None:
    """The order of KIP-642's example."""
    bench = leading()
    reassign(bench, 4, 5, 6)
    sets = moved_on(bench, 1, 2, 3, 4, 5, 6)
    assert [len(a) for a in sets] == [3, 4, 3, 4, 3, 4]
    assert sets[-1] == (1, 4, 5, 6)
    assert bench.role is Role.RESIGNED
    assert "this leader, which is removed, resigns" in bench.reports


def test_a_leader_that_is_elected_again_after_it_handed_over_removes_itself() -> None:
    """A witness would never take over, and the two would go on like that for ever."""
    log = log_of(1, 1, 2, voters=voter_set(1, 2))
    record = VotersRecord(voter_set(1, 2), CLUSTER, (2,))
    log.voter_entries[-1] = replace(log.voter_entries[-1], record=record)
    bench = bare_leader(2, log=log, **FREE)
    fetch_all(bench)
    assert bench.role is Role.RESIGNED
    while bench.role is not Role.CANDIDATE:
        bench.fire()
        if bench.role is Role.PROSPECTIVE:
            bench.grant(key_of(2))
    bench.sync()
    bench.grant(key_of(2))
    assert bench.role is Role.LEADER
    bench.step(TimerFired())
    assert not written(bench), "the one that remains does not fetch"
    fetch_all(bench)
    assert written(bench)[-1] == VotersRecord(voter_set(2), CLUSTER, (2,))
    assert "reassignment to 2: this leader removes itself" in bench.reports
    fetch_all(bench, key_of(2))
    assert bench.role is Role.RESIGNED
    bench.wait(5000)
    assert bench.role is Role.OBSERVER


def test_a_reassignment_ends_with_a_set_without_target() -> None:
    bench = leading()
    reassign(bench, 1, 2, 4)
    assert "the target of the reassignment is 1, 2, 4" in bench.reports
    sets = moved_on(bench, 1, 2, 3, 4)
    assert f"reassignment to 1, 2, 4: the voters are {key_of(1)}, {key_of(2)}, {key_of(4)}" in (
        bench.reports
    )
    assert sets == [(1, 2, 3), (1, 2, 3, 4), (1, 2, 4), (1, 2, 4)]
    assert written(bench)[-1] == VotersRecord(voter_set(1, 2, 4), CLUSTER)
    assert bench.node.core.electorate.is_settled


def test_a_reassignment_is_replaced_and_cancelled() -> None:
    bench = leading()
    reassign(bench, 1, 2, 4)
    fetch_all(bench)
    assert reassign(bench, 1, 2, 5) is None
    assert written(bench)[-1].target == (1, 2, 5)
    fetch_all(bench)
    assert reassign(bench) is None
    assert written(bench)[-1] == VotersRecord(voter_set(1, 2, 3), CLUSTER)
    fetch_all(bench)
    assert last_answer(bench).error is None
    assert refused(reassign(bench))[0] == "NO_REASSIGNMENT_IN_PROGRESS"
    assert refused(reassign(bench, 1, 2, 3)) == (None, "")


def test_the_present_ids_as_target_are_answered_when_they_are_committed() -> None:
    bench = leading()
    remove(bench, key_of(3))
    assert reassign(bench, 1, 2) is None
    fetch_all(bench, key_of(2))
    assert [answer.error for answer in answers(bench)] == [None, None]


def test_where_a_removed_voter_is_reached_stays_known() -> None:
    bench = leading()
    remove(bench, key_of(3))
    fetch_all(bench, key_of(2))
    reassign(bench, 1, 2, 3)
    for _ in range(3):
        fetch_all(bench, key_of(2), key_of(3))
    assert written(bench)[-1].voters == voter_set(1, 2, 3)
    assert bench.node.status().registered_observers == ()


def test_the_same_target_again_is_answered_when_it_is_committed() -> None:
    bench = leading()
    reassign(bench, 1, 2, 4)
    assert reassign(bench, 1, 2, 4) is None
    assert len(written(bench)) == 1
    fetch_all(bench)
    assert refused(reassign(bench, 1, 2, 4)) == (None, "")


def test_a_new_leader_goes_on_with_the_reassignment_that_it_finds() -> None:
    log = log_of(1, 1, 2, voters=voter_set(1, 2, 3))
    log.voter_entries[-1] = replace(
        log.voter_entries[-1], record=VotersRecord(voter_set(1, 2, 3), CLUSTER, (1, 2))
    )
    bench = bare_leader(log=log, **FREE)
    fetch_all(bench)
    assert written(bench)[-1] == VotersRecord(voter_set(1, 2), CLUSTER, (1, 2))


@pytest.mark.parametrize("ids", [(), (1, 1), (-1, 2)])
def test_a_target_that_is_no_set_of_ids_is_refused(ids: tuple[int, ...]) -> None:
    bench = leading()
    answer = changed(bench, ReassignmentRequested, target=ids, timeout_ms=1000)
    assert refused(answer)[0] == "INVALID_REPLICA_ASSIGNMENT"


def test_a_target_beside_quorum_voters_is_refused() -> None:
    bench = leading(configured_voters=voter_set(1, 2, 3, by_id=True))
    error, text = refused(reassign(bench, 1, 2, 4))
    assert error == "INVALID_REPLICA_ASSIGNMENT"
    assert "just these have to vote" in text


def test_changes_that_contradict_the_target_are_refused() -> None:
    bench = leading()
    reassign(bench, 1, 2, 4)
    fetch_all(bench)
    assert "change its target" in refused(add(bench, key_of(5)))[1]
    assert "change its target" in refused(remove(bench, key_of(2)))[1]


def test_a_reassignment_that_is_cancelled_twice_is_answered_twice() -> None:
    bench = leading()
    reassign(bench, 1, 2, 4)
    fetch_all(bench)
    assert reassign(bench) is None
    assert reassign(bench) is None
    bench.sync()
    bench.fetch(key_of(2), *bench.node.core.log.end)
    assert [answer.error for answer in answers(bench)] == [None, None]


def test_the_present_ids_as_target_end_a_reassignment_to_others() -> None:
    bench = leading()
    reassign(bench, 1, 2, 4)
    fetch_all(bench)
    assert reassign(bench, 1, 2, 3) is None
    assert written(bench)[-1].target == (1, 2, 3)


def test_the_ids_of_quorum_voters_are_a_target_and_so_is_the_id_0() -> None:
    bench = leading(configured_voters=voter_set(1, 2, 3, by_id=True))
    assert refused(reassign(bench, 1, 2, 3)) == (None, "")
    assert reassign(leading(), 0, 1, 2) is None


def waits_for(bench: Bench) -> str:
    """What operators are told of a reassignment that is under way."""
    pending = bench.node.status().pending_changes
    return [each.waits_for for each in pending if each.kind == "reassign"][-1]


def test_a_reassignment_adds_only_who_is_there_caught_up_and_reached() -> None:
    bench = leading()
    reassign(bench, 1, 2, 4)
    assert "is not committed yet" in waits_for(bench)
    fetch_all(bench)
    assert waits_for(bench) == "replica 4 does not fetch from this leader: is it running?"
    bench.fetch(ReplicaKey(4), *bench.node.core.log.end)
    assert waits_for(bench) == "replica 4 does not fetch from this leader: is it running?"
    update(bench, Voter(key_of(4), endpoints(4)))
    bench.fetch(key_of(4), 1, 1)
    assert "records behind" in waits_for(bench)
    assert len(written(bench)) == 1
    bare = leading()
    reassign(bare, 1, 2, 4)
    fetch_all(bare)
    fetch_all(bare, key_of(4))
    assert waits_for(bare) == f"replica {key_of(4)} has not said yet where it is reached"
    bare.wait(1500)
    assert bare.role is Role.LEADER


@pytest.mark.parametrize(("wait_ms", "rounds"), [(500, 12), (700, 9)])
def test_of_two_disks_under_an_id_that_comes_only_the_one_that_still_fetches_is_added(
    wait_ms: int, rounds: int
) -> None:
    bench = leading()
    one, another = key_of(4), key_of(4, disk=1)
    reassign(bench, 1, 2, 4)
    fetch_all(bench)
    for each in (one, another):
        bench.fetch(each, *bench.node.core.log.end)
    update(bench, Voter(another, endpoints(4)))
    for _ in range(rounds):
        assert waits_for(bench) == f"{one}, {another} all fetch: stop all but one of them"
        bench.wait(wait_ms)
        fetch_all(bench, key_of(2), key_of(3), another)
    assert [key for key in written(bench)[-1].voters.keys if key.id == 4] == [another]


def test_who_goes_is_removed_in_the_order_of_silence_if_the_rest_fetches() -> None:
    bench = leading(5)
    reassign(bench, 1, 2, 3)
    bench.wait(100)
    fetch_all(bench, key_of(2), key_of(4))
    assert len(written(bench)) == 2
    assert written(bench)[-1].voters.ids == (1, 2, 3, 4)


def test_a_reassignment_removes_nobody_without_whom_the_quorum_would_stand_still() -> None:
    bench = leading()
    for _ in range(5):
        bench.wait(500)
        fetch_all(bench, key_of(3))
    reassign(bench, 1, 2)
    fetch_all(bench, key_of(3))
    assert f"{key_of(2)} do not fetch: the quorum would stand still" in waits_for(bench)
    assert len(written(bench)) == 1
    fetch_all(bench, key_of(2))
    assert written(bench)[-1].voters.ids == (1, 2)


def test_a_leader_that_a_reassignment_removes_waits_for_a_successor_for_an_election_timeout() -> (
    None
):
    log = log_of(1, 1, 2, voters=voter_set(1, 2))
    record = VotersRecord(voter_set(1, 2), CLUSTER, (2,))
    log.voter_entries[-1] = replace(log.voter_entries[-1], record=record)
    bench = bare_leader(2, log=log, **FREE)
    bench.step(AppendRequested(1, 1))
    bench.fetch(key_of(2), END, 4)
    assert "this leader, which is removed, resigns" in bench.reports
    for _ in range(9):
        bench.wait(100)
    bench.wait(99)
    assert bench.role is Role.LEADER
    assert not written(bench), "its successor removes it"
    bench.wait(1)
    assert bench.role is Role.RESIGNED


def test_changes_that_do_not_contradict_the_target_are_made() -> None:
    bench = leading()
    reassign(bench, 1, 2, 4)
    fetch_all(bench)
    assert "is alive" in refused(add(bench, key_of(3, 1)))[1]
    assert add(bench, key_of(4)) is None
    assert remove(bench, key_of(3)) is None


def test_who_is_added_by_hand_during_a_reassignment_does_not_end_it() -> None:
    bench = leading()
    reassign(bench, 1, 2, 4)
    fetch_all(bench)
    fetch_all(bench, key_of(4))
    add(bench, key_of(4))
    assert written(bench)[-1] == VotersRecord(voter_set(1, 2, 3, 4), CLUSTER, (1, 2, 4))


def test_who_is_removed_by_hand_during_a_reassignment_does_not_end_it() -> None:
    bench = leading()
    reassign(bench, 1, 2, 4)
    fetch_all(bench)
    assert remove(bench, key_of(3)) is None
    assert written(bench)[-1] == VotersRecord(voter_set(1, 2), CLUSTER, (1, 2, 4))


def test_a_lost_disk_under_an_id_of_the_target_may_be_removed_if_another_one_votes() -> None:
    voters = keyed_set(key_of(1), key_of(2), key_of(3), key_of(3, 1))
    log = log_of(1, 1, 2, voters=voters)
    log.voter_entries[-1] = replace(
        log.voter_entries[-1], record=VotersRecord(voters, CLUSTER, (1, 2, 3))
    )
    bench = bare_leader(4, log=log, **FREE)
    assert remove(bench, key_of(3)) is None


# -- handing leadership over


def test_leadership_is_handed_over_when_the_successor_has_everything() -> None:
    bench = leading()
    bench.step(AppendRequested(1, 2))
    assert transfer(bench, key_of(3)) is None
    assert bench.node.append_refusal == (
        "NOT_LEADER_OR_FOLLOWER",
        "leadership is being handed over",
    )
    fetch_all(bench, key_of(2))
    assert bench.role is Role.LEADER
    fetch_all(bench, key_of(3))
    assert last_answer(bench).error is None
    assert bench.role is Role.RESIGNED
    end = bench.requests(EndQuorumEpoch)[0].request
    assert isinstance(end, EndQuorumEpoch)
    assert end.successors[0] == key_of(3)


def test_a_transfer_that_takes_too_long_is_given_up_and_appends_are_taken_again() -> None:
    bench = leading()
    bench.step(AppendRequested(1, 2))
    transfer(bench, key_of(3))
    bench.wait(1000)
    error, text = refused(last_answer(bench))
    assert error == "REQUEST_TIMED_OUT"
    assert "had not everything after 1000 ms" in text
    assert bench.role is Role.LEADER
    assert bench.node.append_refusal is None


def test_transfers_that_make_no_sense_are_refused() -> None:
    bench = leading()
    assert refused(transfer(bench, key_of(1))) == (None, "")
    assert bench.role is Role.LEADER
    assert refused(transfer(bench, key_of(9)))[0] == "VOTER_NOT_FOUND"
    assert refused(transfer(bench, key_of(3, 1)))[0] == "VOTER_NOT_FOUND"
    for _ in range(5):
        bench.wait(500)
        fetch_all(bench, key_of(2))
    assert refused(transfer(bench, key_of(3)))[0] == "ELIGIBLE_LEADERS_NOT_AVAILABLE"
    assert refused(transfer(leading(1), None))[0] == "ELIGIBLE_LEADERS_NOT_AVAILABLE"


def test_one_transfer_at_a_time() -> None:
    bench = leading()
    bench.step(AppendRequested(1, 1))
    assert transfer(bench, key_of(3)) is None
    again = refused(transfer(bench, key_of(2)))
    assert again == (
        "REQUEST_TIMED_OUT",
        "another transfer is under way: ask again when it is over",
    )


def test_a_successor_has_fetched_within_the_fetch_timeout() -> None:
    for wait_ms, error in ((2000, None), (2001, "ELIGIBLE_LEADERS_NOT_AVAILABLE")):
        bench = leading()
        bench.wait(wait_ms)
        assert refused(transfer(bench, key_of(3)))[0] == error


# -- witness


def test_a_witness_does_not_campaign() -> None:
    bench = follower(is_witness=True, **FREE)
    bench.wait(20_000)
    assert bench.role is Role.FOLLOWER
    lonely = unattached(is_witness=True, **FREE)
    lonely.wait(20_000)
    assert lonely.role is Role.UNATTACHED


def test_a_witness_that_alone_has_the_newest_records_leads_until_another_has_them() -> None:
    bench = follower(is_witness=True, **FREE)
    bench.wait(2500)
    last = OffsetAndEpoch(2, 1)
    asked = {"cluster_id": CLUSTER, "voter": key_of(1), "epoch": 3, "last": last, "pre_vote": True}
    bench.ask(VoteRequestReceived, candidate=key_of(3), **asked)
    bench.wait(60)
    assert bench.role is Role.PROSPECTIVE
    bench.grant(key_of(3))
    bench.sync()
    bench.grant(key_of(3))
    bench.sync()
    assert bench.role is Role.LEADER
    refusal = bench.node.append_refusal
    assert refusal is not None
    assert refusal.error == "NOT_LEADER_OR_FOLLOWER"
    fetch_all(bench, key_of(3))
    assert bench.role is Role.RESIGNED
    end = bench.requests(EndQuorumEpoch)[0].request
    assert isinstance(end, EndQuorumEpoch)
    assert end.successors[0] == key_of(3)
    bench.wait(20_000)
    assert bench.role is Role.UNATTACHED


def test_a_witness_hands_over_when_the_record_of_its_epoch_is_committed() -> None:
    bench = follower(5, is_witness=True, **FREE)
    bench.wait(2500)
    last = OffsetAndEpoch(2, 1)
    asked = {"cluster_id": CLUSTER, "voter": key_of(1), "epoch": 3, "last": last, "pre_vote": True}
    bench.ask(VoteRequestReceived, candidate=key_of(3), **asked)
    bench.wait(60)
    for role in (Role.CANDIDATE, Role.LEADER):
        for voter in (3, 4):
            bench.grant(key_of(voter))
        bench.sync()
        assert bench.role is role
    fetch_all(bench, key_of(3))
    assert bench.role is Role.LEADER, "two of five have it"
    fetch_all(bench, key_of(4))
    assert bench.role is Role.RESIGNED


@pytest.mark.parametrize("is_told_first", [True, False], ids=["first", "afterwards"])
def test_a_witness_leaves_it_to_a_voter_that_lacks_nothing_but_not_for_ever(
    is_told_first: bool,
) -> None:
    bench = follower(is_witness=True, **FREE)
    bench.wait(2500)
    asked = {"cluster_id": CLUSTER, "voter": key_of(1), "epoch": 3, "pre_vote": True}
    behind = {"candidate": key_of(2), "last": OffsetAndEpoch(2, 1), **asked}
    able = {"candidate": key_of(3), "last": OffsetAndEpoch(9, 3), **asked}
    for request in (able, behind) if is_told_first else (behind, able):
        assert granted(bench.ask(VoteRequestReceived, **request)) is (request is able)
    bench.wait(60)
    assert bench.role is Role.FOLLOWER
    bench.wait(4000)
    bench.ask(VoteRequestReceived, **behind)
    bench.wait(60)
    assert bench.role is Role.FOLLOWER
    bench.wait(1000)
    for request in (able, behind):
        bench.ask(VoteRequestReceived, **request)
    bench.wait(60)
    assert bench.role is Role.PROSPECTIVE


def test_a_witness_grants_a_pre_vote_as_soon_as_its_connection_to_the_leader_is_lost() -> None:
    """Others wait until a new one is refused, too: they may win themselves."""
    last = OffsetAndEpoch(9, 3)
    asked = {"cluster_id": CLUSTER, "voter": key_of(1), "epoch": 3, "last": last, "pre_vote": True}
    for is_witness in (True, False):
        bench = follower(is_witness=is_witness, **FREE)
        bench.step(ConnectionLost(id=3))
        assert not granted(bench.ask(VoteRequestReceived, candidate=key_of(3), **asked))
        bench.step(ConnectionLost(id=2))
        assert granted(bench.ask(VoteRequestReceived, candidate=key_of(3), **asked)) is is_witness
        bench.step(ConnectionMade(id=2))
        assert not granted(bench.ask(VoteRequestReceived, candidate=key_of(3), **asked))
        assert bench.role is Role.FOLLOWER


def granted(answer: object) -> bool:
    assert isinstance(answer, VoteReply)
    return answer.granted


def test_a_witness_whose_only_companion_may_not_know_of_itself_campaigns() -> None:
    """It had been alone, and died before the voter that it added had the record: nobody else can ask."""
    log = log_of(1, 1, 2, 3, voters=voter_set(1))
    log.add_voters(3, VotersRecord(voter_set(1, 3), CLUSTER))
    bench = unattached(1, log=log, is_witness=True, **FREE)
    bench.wait(20_000)
    assert bench.role is Role.PROSPECTIVE
    known = StoredState(epoch=3, applied_offset=4)
    settled = unattached(1, log=log, is_witness=True, stored=known, **FREE)
    settled.wait(20_000)
    assert settled.role is Role.UNATTACHED


def test_a_witness_that_is_the_only_voter_leads() -> None:
    bench = unattached(1, is_witness=True, **FREE)
    bench.sync()
    bench.wait(10)
    assert bench.role is Role.LEADER
    bench.sync()
    assert bench.node.append_refusal is None
