"""Answers to fetches at their edges: what they prove, what they change, and what is asked next."""

from __future__ import annotations

import pytest

from quorumd.raft.config import StoredState
from quorumd.raft.effects import BootstrapServer, Fetch, FetchSnapshot, TruncateLog
from quorumd.raft.election_timeout import election_deadline_ms
from quorumd.raft.events import FetchedRecords, FetchResponseReceived, LeaderHint
from quorumd.raft.roles import Role
from tests.raft.copying import offered
from tests.raft.harness import Bench, candidate, follower, fresh, key, log_of, observer, unattached

NO_LEADER = LeaderHint(epoch=3)


def peers(bench: Bench) -> list[object]:
    return [sent.to for sent in bench.requests(Fetch)]


def records(bench: Bench, end: int, *epochs: tuple[int, int]) -> None:
    """The leader sends records from the log's end up to `end`."""
    fetched = FetchedRecords(
        token=1, base_offset=bench.node.log_end_offset, end_offset=end, epochs=epochs
    )
    bench.step(
        FetchResponseReceived(
            request_id=bench.outstanding(Fetch).request_id,
            error=None,
            hint=LeaderHint(epoch=3, leader_id=2),
            records=fetched,
        )
    )


# -- who is fetched from


def test_a_candidate_looks_for_no_leader_by_fetching() -> None:
    bench = candidate(bootstrap_servers=1)
    bench.all.clear()
    bench.wait(900)
    assert bench.role is Role.CANDIDATE
    assert not bench.requests(Fetch, bench.all)


def test_an_observer_without_a_leader_asks_every_voter_and_bootstrap_server() -> None:
    bench = observer(bootstrap_servers=1)
    bench.fetched(error="FENCED_LEADER_EPOCH", hint=LeaderHint(epoch=5))
    assert peers(bench) == [key(1), key(2), key(3), BootstrapServer(index=0)]


def test_the_leader_itself_is_not_asked_who_leads() -> None:
    bench = follower(5, bootstrap_servers=1)
    bench.fail(Fetch, key(2))
    bench.wait(20)
    bench.fail(Fetch, key(2))
    assert peers(bench) == [key(3), key(4), key(5), BootstrapServer(index=0)]


def test_chunks_that_fail_twice_make_a_replica_ask_others_too() -> None:
    bench = follower()
    offered(bench)
    bench.fail(FetchSnapshot)
    assert peers(bench) == []
    bench.wait(20)
    bench.fail(FetchSnapshot)
    assert peers(bench) == [key(3)]


# -- who knows no leader


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        ("FENCED_LEADER_EPOCH", LeaderHint(epoch=2)),
        (None, NO_LEADER),
    ],
)
def test_only_a_refusal_in_this_epoch_says_that_nobody_leads_it(
    error: str | None, hint: LeaderHint
) -> None:
    bench = unattached()
    due_ms = election_deadline_ms(bench.node.core)
    bench.fetched(error=error, hint=hint, to=key(3))
    assert election_deadline_ms(bench.node.core) == due_ms


def test_a_bootstrap_server_that_knows_no_leader_does_not_hasten_the_campaign() -> None:
    draws = iter([0, 40, 0])
    bench = unattached(bootstrap_servers=1, draw=lambda bound: next(draws))
    refusal = {"error": "NOT_LEADER_OR_FOLLOWER", "hint": NO_LEADER}
    bench.fetched(**refusal, to=key(3))
    due_ms = election_deadline_ms(bench.node.core)
    assert due_ms == bench.now_ms + 40
    bench.fetched(**refusal, to=BootstrapServer(index=0))
    assert election_deadline_ms(bench.node.core) == due_ms


# -- what an answer changes


def test_a_leader_that_answers_ends_the_count_of_failed_campaigns() -> None:
    bench = follower()
    while bench.role is not Role.PROSPECTIVE:
        bench.fire()
    for voter in (key(2), key(3)):
        bench.grant(voter, granted=False)
    assert bench.node.core.election_attempts == 1
    bench.fetched(to=key(2))
    assert bench.node.core.election_attempts == 0


def test_records_that_fit_end_a_problem() -> None:
    bench = follower()
    bench.fetched(diverging=(0, 0))
    assert bench.node.core.problem is not None
    assert bench.node.core.problem.endswith("keep this one: it may hold the only copy.")
    bench.wait(20)
    bench.fetched(epochs=[3])
    assert bench.node.core.problem is None


def test_everything_behind_what_is_committed_may_be_cut() -> None:
    bench = follower()
    assert bench.node.core.kept_offset == 2
    bench.fetched(diverging=(2, 1))
    assert [cut.end_offset for cut in bench.find(TruncateLog)] == [2]
    bench = follower(stored=StoredState(epoch=3, applied_offset=1))
    bench.fetched(diverging=(2, 1))
    assert [cut.end_offset for cut in bench.find(TruncateLog)] == [2]


def test_epochs_of_records_ascend() -> None:
    for runs in (((3, 3), (3, 4)), ((2, 3), (3, 3)), ((2, 3), (3, 5), (3, 6))):
        bench = follower()
        records(bench, 7, *runs)
        assert bench.node.log_end_offset == 3
    bench = follower(log=log_of(1, 1))
    records(bench, 5, (1, 2), (2, 3), (3, 4))
    assert bench.node.core.log.end == (5, 3)


def test_a_run_of_epochs_has_a_record() -> None:
    for runs in (((2, 3), (3, 5)), ((2, 3), (3, 6))):
        bench = follower()
        records(bench, 5, *runs)
        assert bench.node.log_end_offset == 3


def test_no_record_is_of_a_later_epoch_than_the_leaders() -> None:
    bench = follower()
    records(bench, 5, (3, 3), (4, 4))
    assert bench.node.log_end_offset == 3


def test_records_of_another_place_than_the_end_of_the_log_are_not_taken() -> None:
    for base, run in ((2, 3), (3, 2)):
        bench = follower()
        fetched = FetchedRecords(token=1, base_offset=base, end_offset=5, epochs=((3, run),))
        bench.step(
            FetchResponseReceived(
                request_id=bench.outstanding(Fetch).request_id,
                error=None,
                hint=LeaderHint(epoch=3, leader_id=2),
                records=fetched,
            )
        )
        assert bench.node.log_end_offset == 3


def test_what_the_leader_knows_to_be_committed_and_was_not_fetched_is_missing() -> None:
    assert fresh(1).node.status().missing_records == 0
    bench = follower()
    bench.fetched(high_watermark=10)
    assert bench.node.status().missing_records == 7
    bench.fetched(epochs=[3, 3], high_watermark=10)
    assert bench.node.status().missing_records == 5


def test_a_response_about_a_former_end_of_the_log_commits_nothing_of_the_present_one() -> None:
    """The end may be at the same offset, and of another epoch."""
    bench = follower()
    log = bench.node.core.log
    assert log.end == (3, 2)
    log.truncate(2)
    log.append(3, ((3, 2),))
    bench.fetched(high_watermark=3)
    assert bench.node.committed_offset == 2
