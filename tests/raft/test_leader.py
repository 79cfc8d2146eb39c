"""What a leader does: appends, parked fetches, the high watermark, check quorum, handing over."""

from __future__ import annotations

import pytest

from quorumd.raft.config import OBSERVER_FORGOTTEN_MS, StoredState
from quorumd.raft.control import LeaderChangeRecord
from quorumd.raft.effects import (
    AnnounceHighWatermark,
    AppendClient,
    AppendControl,
    BeginQuorumEpoch,
    BootstrapServer,
    EndQuorumEpoch,
    Fetch,
    FetchReply,
    PersistQuorumState,
    SendReply,
    Vote,
)
from quorumd.raft.events import (
    AppendRequested,
    BeginQuorumEpochResponseReceived,
    EndQuorumEpochResponseReceived,
    FetchResponseReceived,
    LeaderHint,
    ResignationRequested,
)
from quorumd.raft.parked_fetches import ANNOUNCE_DELAY_MS
from quorumd.raft.replica_progress import MAX_OBSERVERS
from quorumd.raft.roles import Role
from quorumd.raft.types import OffsetAndEpoch, ReplicaKey
from tests.raft.harness import (
    BUILDERS,
    CLUSTER,
    Bench,
    follower,
    key,
    leader,
    log_of,
    resigned,
    unattached,
    voter_set,
)


def settled(size: int = 3) -> Bench:
    """A leader whose LeaderChangeRecord (offset 3, end 4) is committed."""
    bench = leader(size)
    for other in range(2, size + 1):
        bench.fetch(key(other), 4, 4, max_wait_ms=0)
    assert bench.node.high_watermark == 4
    return bench


# -- taking office


def test_leadership_is_on_disk_before_anybody_hears_of_it() -> None:
    bench = leader()
    state = bench.find_all(PersistQuorumState)[-1]
    assert (state.epoch, state.leader, state.voted) == (4, key(1), key(1))
    begins = bench.requests(BeginQuorumEpoch, bench.all)
    assert {e.to for e in begins} == {key(2), key(3)}
    assert all(e.after >= state.write for e in begins)


def test_the_first_record_of_an_epoch_names_leader_and_voters() -> None:
    bench = leader()
    [append] = bench.find_all(AppendControl)
    assert (append.base_offset, append.epoch) == (3, 4)
    assert append.records == (
        LeaderChangeRecord(key(1), (key(1), key(2), key(3)), (key(1), key(2))),
    )


def test_a_leader_announces_itself_until_a_voter_fetches() -> None:
    bench = leader()
    for request in bench.requests(BeginQuorumEpoch, bench.all):
        bench.step(
            BeginQuorumEpochResponseReceived(
                request_id=request.request_id, error=None, hint=LeaderHint(epoch=4)
            )
        )
    bench.wait(999)
    bench.fetch(key(2), 4, 4)
    seen = len(bench.all)
    bench.wait(1)
    assert [e.to for e in bench.requests(BeginQuorumEpoch, bench.all[seen:])] == [key(3)]


# -- appending


def test_a_client_append_gets_the_next_offsets() -> None:
    bench = leader()
    bench.step(AppendRequested(7, 5))
    [append] = bench.find(AppendClient)
    assert (append.base_offset, append.epoch, append.token) == (4, 4, 7)
    assert bench.node.core.log.end_offset == 9


@pytest.mark.parametrize("role", [role for role in Role if role is not Role.LEADER])
def test_nobody_else_appends(role: Role) -> None:
    bench = BUILDERS[role]()
    refusal = bench.node.append_refusal
    assert refusal is not None
    assert refusal.error == "NOT_LEADER_OR_FOLLOWER"
    with pytest.raises(AssertionError, match="must be refused"):
        bench.step(AppendRequested(7, 5))


# -- fetches


def test_a_fetch_is_answered_with_records_before_they_are_synced() -> None:
    bench = settled()
    bench.step(AppendRequested(1, 2))
    answer = bench.fetch(key(2), 4, 4)
    assert answer is not None
    assert (answer.read_from, answer.read_to, answer.high_watermark) == (4, 6, 4)


def test_a_fetch_at_the_end_waits_for_records() -> None:
    bench = settled()
    assert bench.fetch(key(2), 4, 4, high_watermark=4) is None
    bench.step(AppendRequested(1, 1))
    [sent] = bench.find(SendReply)
    assert isinstance(sent.reply, FetchReply)
    assert (sent.reply.read_from, sent.reply.read_to) == (4, 5)


def test_a_fetch_waits_no_longer_than_it_says() -> None:
    bench = settled()
    assert bench.fetch(key(2), 4, 4, high_watermark=4) is None
    bench.wait(499)
    assert not bench.find(SendReply)
    bench.wait(1)
    [sent] = bench.find(SendReply)
    assert isinstance(sent.reply, FetchReply)
    assert sent.reply.read_from is None
    assert sent.reply.error is None


def test_a_newer_fetch_of_a_replica_ends_its_older_one() -> None:
    bench = settled()
    bench.fetch(key(2), 4, 4, high_watermark=4)
    bench.fetch(key(2), 4, 4, high_watermark=4)
    assert len(bench.find(SendReply)) == 1


def test_a_new_high_watermark_travels_alone_after_5_ms() -> None:
    bench = leader()
    bench.fetch(key(2), 4, 4, high_watermark=-1)
    assert bench.node.high_watermark == 4
    assert not bench.find(SendReply)
    bench.wait(ANNOUNCE_DELAY_MS - 1)
    assert not bench.find(SendReply)
    bench.wait(1)
    [sent] = bench.find(SendReply)
    assert isinstance(sent.reply, FetchReply)
    assert sent.reply.high_watermark == 4


def test_a_new_high_watermark_travels_with_records_if_there_are_any() -> None:
    bench = leader()
    bench.fetch(key(2), 4, 4, high_watermark=-1)
    bench.step(AppendRequested(1, 1))
    [sent] = bench.find(SendReply)
    assert isinstance(sent.reply, FetchReply)
    assert (sent.reply.high_watermark, sent.reply.read_to) == (4, 5)
    assert bench.wait(100) == bench.requests(BeginQuorumEpoch)


def test_a_fetch_that_knows_the_high_watermark_is_left_alone() -> None:
    bench = settled()
    bench.fetch(key(2), 4, 4, high_watermark=4)
    bench.fetch(key(3), 4, 4, high_watermark=None)
    bench.wait(100)
    assert not bench.find(SendReply)


@pytest.mark.parametrize(
    ("epoch", "error"), [(3, "FENCED_LEADER_EPOCH"), (5, "UNKNOWN_LEADER_EPOCH")]
)
def test_a_fetch_of_another_epoch_is_told_the_right_one(epoch: int, error: str) -> None:
    answer = settled().fetch(key(2), 3, 2, epoch=epoch)
    assert answer is not None
    assert (answer.error, answer.epoch, answer.leader_id) == (error, 4, 1)
    assert answer.leader_endpoints
    assert answer.high_watermark is None


@pytest.mark.parametrize("role", [role for role in Role if role is not Role.LEADER])
def test_only_the_leader_serves_fetches(role: Role) -> None:
    bench = BUILDERS[role]()
    answer = bench.fetch(key(3), 3, 2)
    assert answer is not None
    assert answer.error == "NOT_LEADER_OR_FOLLOWER"
    assert answer.leader_id == bench.node.leader_id


@pytest.mark.parametrize(
    ("who", "offset", "epoch", "more"),
    [
        (key(1), 3, 2, {}),
        (ReplicaKey(1), 3, 2, {}),
        (key(2), -1, 2, {}),
        (key(2), 3, -1, {}),
        (key(2), 3, 5, {}),
        (key(2), 3, 2, {"max_wait_ms": -1}),
    ],
)
def test_impossible_fetches_are_refused_and_change_nothing(
    who: ReplicaKey, offset: int, epoch: int, more: dict[str, int]
) -> None:
    bench = settled()
    before, rows = bench.node.core.capture(), bench.node.progress()
    answer = bench.fetch(who, offset, epoch, **more)
    assert answer is not None
    assert answer.top_level_error == "UNKNOWN_SERVER_ERROR"
    assert (bench.node.core.capture(), bench.node.progress()) == (before, rows)


def test_a_fetch_of_a_foreign_cluster_is_refused() -> None:
    answer = settled().fetch(key(2), 4, 4, cluster_id="other")
    assert answer is not None
    assert answer.top_level_error == "INCONSISTENT_CLUSTER_ID"
    assert answer.leader_id == 1


@pytest.mark.parametrize(
    ("position", "diverging"),
    [((5, 4), (4, 4)), ((9, 3), (3, 2)), ((3, 1), (2, 1)), ((4, 2), (3, 2)), ((3, 4), (3, 2))],
)
def test_a_position_that_is_not_in_the_log_is_told_where_it_diverges(
    position: tuple[int, int], diverging: tuple[int, int]
) -> None:
    bench = leader()
    answer = bench.fetch(key(2), *position)
    assert answer is not None
    assert answer.diverging == OffsetAndEpoch(*diverging)
    assert answer.read_from is None
    assert bench.node.high_watermark is None


def test_parked_fetches_are_refused_when_leadership_ends() -> None:
    bench = settled()
    bench.fetch(key(2), 4, 4, high_watermark=4)
    bench.step(ResignationRequested("maintenance", shutting_down=False))
    [sent] = bench.find(SendReply)
    assert sent.reply.error == "NOT_LEADER_OR_FOLLOWER"


# -- commitment


def test_nothing_is_committed_before_a_record_of_the_own_epoch_is() -> None:
    bench = leader()
    bench.fetch(key(2), 3, 2)
    bench.fetch(key(3), 3, 2)
    assert bench.node.high_watermark is None
    bench.fetch(key(2), 4, 4)
    assert bench.node.high_watermark == 4
    assert bench.find(AnnounceHighWatermark) == [AnnounceHighWatermark(offset=4)]


def test_the_leaders_own_log_end_counts_when_it_is_synced() -> None:
    bench = settled()
    bench.step(AppendRequested(1, 1))
    bench.fetch(key(2), 5, 4)
    assert bench.node.high_watermark == 4
    bench.sync()
    assert bench.node.high_watermark == 5


def test_a_majority_of_followers_commits_without_the_leaders_disk() -> None:
    bench = settled()
    bench.step(AppendRequested(1, 1))
    bench.fetch(key(2), 5, 4)
    bench.fetch(key(3), 5, 4)
    assert bench.node.high_watermark == 5


def test_the_high_watermark_never_goes_back() -> None:
    bench = settled()
    bench.fetch(key(2), 3, 2)
    bench.fetch(key(3), 3, 2)
    assert bench.node.high_watermark == 4


def test_observers_and_other_disks_do_not_count() -> None:
    bench = settled()
    bench.step(AppendRequested(1, 1))
    bench.sync()
    for who in (key(9), key(2, disk=1), ReplicaKey(2), None):
        bench.fetch(who, 5, 4, max_wait_ms=0)
    assert bench.node.high_watermark == 4


def test_five_voters_commit_with_three() -> None:
    bench = leader(5)
    bench.fetch(key(2), 4, 4)
    assert bench.node.high_watermark is None
    bench.fetch(key(3), 4, 4)
    assert bench.node.high_watermark == 4


def test_two_disks_under_one_id_are_two_voters() -> None:
    from quorumd.raft.control import VotersRecord
    from quorumd.raft.log_view import VoterEntry
    from tests.raft.harness import keyed_set

    both = keyed_set(key(1), key(2), key(3), key(3, disk=1))
    log = log_of(1, 1, 2)
    log.voter_entries.append(VoterEntry(1, VotersRecord(both, CLUSTER)))
    bench = leader(log=log)
    assert len(bench.requests(Vote, bench.all)) == 6
    bench.fetch(key(3), 4, 4)
    assert bench.node.high_watermark is None
    bench.fetch(key(3, disk=1), 4, 4)
    assert bench.node.high_watermark == 4
    assert [row.key for row in bench.node.progress()] == list(both.keys)


# -- what the leader knows of others


def test_progress_lists_voters_and_observers() -> None:
    bench = settled()
    bench.fetch(key(9), 2, 1, max_wait_ms=0)
    rows = {row.key: row for row in bench.node.progress()}
    assert rows[key(1)].end_offset == 4
    assert rows[key(2)].is_voter
    assert rows[key(2)].last_caught_up_ms == bench.now_ms
    assert (rows[key(9)].is_voter, rows[key(9)].end_offset) == (False, 2)
    assert rows[key(9)].last_caught_up_ms is None
    assert not follower().node.progress()


def test_silent_observers_are_forgotten() -> None:
    bench = settled()
    bench.fetch(key(9), 2, 1, max_wait_ms=0)
    for _ in range(OBSERVER_FORGOTTEN_MS // 1000 + 1):
        bench.now_ms += 1000
        bench.fetch(key(2), 4, 4, max_wait_ms=0)
    bench.fetch(key(8), 2, 1, max_wait_ms=0)
    assert key(9) not in {row.key for row in bench.node.progress()}


@pytest.mark.long
def test_made_up_observers_cannot_fill_the_memory() -> None:
    bench = settled()
    for disk in range(MAX_OBSERVERS + 50):
        answer = bench.fetch(key(9, disk), 2, 1, max_wait_ms=0)
        assert answer is not None
        assert answer.read_to == 4
    assert len(bench.node.progress()) <= 3 + MAX_OBSERVERS
    bench.step(AppendRequested(1, 1))
    bench.sync()
    bench.fetch(key(3), 5, 4, max_wait_ms=0)
    assert bench.node.high_watermark == 5


# -- check quorum


def test_a_leader_without_fetches_of_a_majority_resigns() -> None:
    bench = settled()
    bench.wait(2999)
    assert bench.role is Role.LEADER
    bench.wait(1)
    assert bench.role is Role.RESIGNED
    assert {e.to for e in bench.requests(EndQuorumEpoch, bench.all)} == {key(2), key(3)}


def test_fetches_of_half_of_the_others_keep_a_leader() -> None:
    bench = settled(5)
    for _ in range(10):
        bench.wait(1000)
        bench.fetch(key(2), 4, 4, max_wait_ms=0)
        bench.fetch(key(3), 4, 4, max_wait_ms=0)
    assert bench.role is Role.LEADER
    for _ in range(3):
        bench.wait(1000)
        bench.fetch(key(2), 4, 4, max_wait_ms=0)
    assert bench.role is Role.RESIGNED


def test_fetches_of_observers_do_not_keep_a_leader() -> None:
    bench = settled()
    for _ in range(3):
        bench.wait(1000)
        bench.fetch(key(9), 4, 4, max_wait_ms=0)
        bench.fetch(key(2), 9, 4, max_wait_ms=0)
    assert bench.role is Role.RESIGNED


# -- handing over


def test_a_leader_hands_over_to_the_most_up_to_date() -> None:
    bench = leader(5)
    for other, end in ((2, 3), (4, 4), (5, 4)):
        bench.fetch(key(other), end, 4 if end == 4 else 2, max_wait_ms=0)
    bench.step(ResignationRequested("maintenance", shutting_down=False))
    ends = bench.requests(EndQuorumEpoch)
    assert len(ends) == 4
    assert all(e.request.successors == (key(4), key(5), key(2), key(3)) for e in ends)
    assert all((e.request.leader_id, e.request.epoch) == (1, 4) for e in ends)


def test_end_quorum_epoch_is_repeated_until_acknowledged() -> None:
    bench = resigned()
    first = bench.outstanding(EndQuorumEpoch, key(2))
    bench.step(
        EndQuorumEpochResponseReceived(
            request_id=first.request_id, error=None, hint=LeaderHint(epoch=4)
        )
    )
    bench.fail(EndQuorumEpoch, key(3))
    seen = len(bench.all)
    bench.wait(100)
    assert [e.to for e in bench.requests(EndQuorumEpoch, bench.all[seen:])] == [key(3)]


def test_a_resigned_leader_takes_part_again_in_the_next_epoch() -> None:
    bench = resigned()
    bench.wait(1999)
    assert bench.node.epoch == 5
    assert bench.role is Role.PROSPECTIVE


def test_a_leader_that_shuts_down_never_takes_part_again() -> None:
    bench = leader()
    bench.step(ResignationRequested("stopped", shutting_down=True))
    bench.wait(10_000)
    assert (bench.role, bench.node.epoch) == (Role.RESIGNED, 4)
    assert bench.vote(key(2), 5, (4, 4)).granted


def test_the_only_voter_keeps_leading_when_asked_to_resign() -> None:
    bench = unattached(1)
    bench.sync()
    bench.step(ResignationRequested("maintenance", shutting_down=False))
    assert bench.role is Role.LEADER


# -- the other side of BeginQuorumEpoch and EndQuorumEpoch


@pytest.mark.parametrize("role", Role)
def test_a_leader_of_a_higher_epoch_is_followed(role: Role) -> None:
    bench = BUILDERS[role]()
    if role in (Role.PROSPECTIVE, Role.CANDIDATE):
        bench.fail(Vote, key(3))
        bench.now_ms += 20
    epoch = bench.node.epoch
    answer = bench.begin(3, 8)
    assert (answer.error, answer.top_level_error, answer.epoch) == (None, None, epoch)
    assert (bench.node.epoch, bench.node.leader) == (8, key(3))
    assert bench.role is (Role.OBSERVER if role is Role.OBSERVER else Role.FOLLOWER)
    write = bench.find(PersistQuorumState)[0]
    assert (write.epoch, write.leader, write.voted) == (8, key(3), None)
    assert bench.outstanding(Fetch, key(3)).after >= write.write


@pytest.mark.parametrize("role", [Role.UNATTACHED, Role.PROSPECTIVE, Role.CANDIDATE])
def test_a_leader_of_the_same_epoch_is_followed_and_the_vote_kept(role: Role) -> None:
    bench = BUILDERS[role]()
    voted = bench.node.core.voted
    bench.begin(3, bench.node.epoch)
    if role is not Role.UNATTACHED:  # it has been asked already
        hint = LeaderHint(epoch=bench.node.epoch, leader_id=3)
        bench.hinted(bench.outstanding(Vote, key(3)), hint)
    assert (bench.role, bench.node.leader) == (Role.FOLLOWER, key(3))
    assert bench.node.core.voted == voted


@pytest.mark.parametrize("role", [Role.FOLLOWER, Role.LEADER, Role.RESIGNED, Role.OBSERVER])
def test_a_second_leader_of_an_epoch_is_refused(role: Role) -> None:
    bench = BUILDERS[role]()
    before = bench.node.core.capture()
    answer = bench.begin(3, bench.node.epoch)
    assert answer.top_level_error == "UNKNOWN_SERVER_ERROR"
    assert bench.node.core.capture() == before
    assert "is called the leader" in bench.reports


@pytest.mark.parametrize(
    ("leader_id", "epoch", "more", "error", "top_level"),
    [
        (2, 2, {}, "FENCED_LEADER_EPOCH", None),
        (2, 3, {"voter": key(1, disk=1)}, "INVALID_VOTER_KEY", None),
        (2, 3, {"cluster_id": "other"}, None, "INCONSISTENT_CLUSTER_ID"),
        (-1, 3, {}, None, "UNKNOWN_SERVER_ERROR"),
        (1, 9, {}, None, "UNKNOWN_SERVER_ERROR"),
        (7, 9, {"endpoints": ()}, None, "UNKNOWN_SERVER_ERROR"),
        (2, 2**31 - 1, {}, None, "UNKNOWN_SERVER_ERROR"),
    ],
)
def test_begin_quorum_epoch_is_checked(
    leader_id: int, epoch: int, more: dict[str, object], error: str | None, top_level: str | None
) -> None:
    bench = follower()
    answer = bench.begin(leader_id, epoch, **more)
    assert (answer.error, answer.top_level_error) == (error, top_level)
    assert (bench.node.epoch, bench.node.leader) == (3, key(2))


@pytest.mark.parametrize(
    ("successors", "delay"),
    [
        ((key(1), key(3)), 0),
        ((key(3), key(1)), 20),
        ((key(3), key(4), key(1)), 40),
        ((key(3), key(4)), 1000),
        ((ReplicaKey(3), ReplicaKey(1)), 20),
        ((key(1, disk=1), key(3)), 1000),
        ((), 25),
    ],
)
def test_a_successor_campaigns_when_it_is_its_turn(
    successors: tuple[ReplicaKey, ...], delay: int
) -> None:
    bench = follower()
    bench.end(2, 3, *successors)
    bench.wait(delay - 1 if delay else 0)
    assert (bench.role is Role.PROSPECTIVE) == (delay == 0)
    bench.wait(1)
    assert bench.role is Role.PROSPECTIVE


def test_an_answer_that_was_still_under_way_does_not_cancel_the_handover() -> None:
    bench = follower(bootstrap_servers=1)
    bench.fail(Fetch, key(2))
    bench.wait(20)
    bench.fail(Fetch, key(2))
    bench.wait(40)
    late = bench.outstanding(Fetch, BootstrapServer(index=0))
    bench.end(2, 3, key(3), key(1))
    bench.step(
        FetchResponseReceived(
            request_id=late.request_id,
            error=None,
            hint=LeaderHint(epoch=3, leader_id=2),
            high_watermark=3,
        )
    )
    assert bench.node.high_watermark == 3
    assert bench.pre_vote(key(3), 3, (3, 2)).granted
    bench.wait(20)
    assert bench.role is Role.PROSPECTIVE


@pytest.mark.parametrize(
    ("leader_id", "epoch", "more", "error", "top_level"),
    [
        (2, 2, {}, "FENCED_LEADER_EPOCH", None),
        (3, 3, {}, None, "UNKNOWN_SERVER_ERROR"),
        (2, 3, {"cluster_id": "other"}, None, "INCONSISTENT_CLUSTER_ID"),
        (-1, 3, {}, None, "UNKNOWN_SERVER_ERROR"),
    ],
)
def test_end_quorum_epoch_is_checked(
    leader_id: int, epoch: int, more: dict[str, object], error: str | None, top_level: str | None
) -> None:
    bench = follower()
    answer = bench.end(leader_id, epoch, key(1), **more)
    assert (answer.error, answer.top_level_error) == (error, top_level)
    assert bench.role is Role.FOLLOWER


def test_the_end_of_a_candidacy_makes_its_voters_hurry() -> None:
    bench = unattached()
    bench.vote(key(2), 4, (3, 2))
    bench.end(None, 4)
    deadline = bench.node.next_deadline_ms()
    assert deadline is not None
    assert deadline - bench.now_ms < 50


def test_a_restarted_leader_says_that_its_epoch_is_over() -> None:
    bench = unattached(stored=StoredState(epoch=3, leader=key(1), voted=key(1)))
    ends = bench.requests(EndQuorumEpoch)
    assert {e.to for e in ends} == {key(2), key(3)}
    assert all(e.request.successors == () for e in ends)


def test_voters_come_from_the_log() -> None:
    bench = unattached(log=log_of(1, 1, 2, voters=voter_set(1, 2, 3, 4, 5)))
    assert len(bench.node.voters) == 5


def test_a_replica_that_has_less_than_it_acknowledged_is_reported() -> None:
    bench = leader(log=log_of(1, 1, 1, voters=voter_set(1, 2, 3)), stored=StoredState(epoch=3))
    end = bench.node.core.log.end_offset
    bench.fetch(key(2), end, bench.node.epoch, max_wait_ms=0)
    bench.fetch(key(2), end, bench.node.epoch, max_wait_ms=0)
    assert "acknowledged" not in bench.reports
    bench.fetch(key(2), end - 1, 1, max_wait_ms=0)
    assert f"fetches from offset {end - 1} after it acknowledged everything below {end}" in (
        bench.reports
    )
