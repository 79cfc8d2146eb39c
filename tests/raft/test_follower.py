"""The fetching end: appends, truncation, errors, discovery, and what is on disk before a fetch."""

from __future__ import annotations

import pytest

from quorumd.raft.config import StoredState
from quorumd.raft.control import VotersRecord
from quorumd.raft.effects import (
    AdoptClusterId,
    AnnounceHighWatermark,
    AppendFetched,
    BeginQuorumEpoch,
    BootstrapServer,
    CancelHeldRequests,
    EndQuorumEpoch,
    Fetch,
    Halt,
    PersistQuorumState,
    Request,
    TruncateLog,
    Vote,
)
from quorumd.raft.events import FetchedRecords, FetchResponseReceived, LeaderHint
from quorumd.raft.roles import Role
from quorumd.raft.types import Endpoint, OffsetAndEpoch
from tests.raft.harness import (
    BUILDERS,
    CLUSTER,
    Bench,
    endpoints,
    first_batch,
    follower,
    fresh,
    key,
    leader,
    log_of,
    observer,
    unattached,
    voter_set,
)


def test_records_are_appended_and_the_next_fetch_waits_for_the_disk() -> None:
    bench = follower()
    bench.fetched(epochs=[2, 3], high_watermark=4)
    [append] = bench.find(AppendFetched)
    assert (append.base_offset, append.end_offset) == (3, 5)
    [fetch] = bench.requests(Fetch)
    assert fetch.request == Fetch(epoch=3, position=OffsetAndEpoch(5, 3), high_watermark=4)
    assert fetch.after >= append.write
    assert bench.find(AnnounceHighWatermark) == [AnnounceHighWatermark(offset=4)]


def test_an_observer_syncs_before_it_fetches_on_as_well() -> None:
    bench = observer()
    bench.fetched(epochs=[3])
    assert bench.requests(Fetch)[0].after >= bench.find(AppendFetched)[0].write


def test_the_high_watermark_is_bounded_by_the_own_log_end() -> None:
    bench = follower()
    bench.fetched(high_watermark=99)
    assert bench.node.high_watermark == 3
    bench.fetched(high_watermark=2)
    assert bench.node.high_watermark == 3
    bench.fetched()
    assert bench.node.high_watermark == 3


def test_held_fetches_are_dropped_on_a_change_of_epoch() -> None:
    bench = follower()
    bench.fetched(epochs=[3])
    held = bench.requests(Fetch)[0]
    bench.begin(3, 4)
    assert bench.find(CancelHeldRequests)
    assert held.request_id not in bench.node.core.requests.in_flight


def test_answers_of_a_former_epoch_are_ignored() -> None:
    bench = follower()
    late = bench.outstanding(Fetch)
    bench.begin(3, 4)
    before = bench.node.core.capture()
    bench.step(
        FetchResponseReceived(
            request_id=late.request_id,
            error=None,
            hint=LeaderHint(epoch=3, leader_id=2),
            high_watermark=3,
            diverging=OffsetAndEpoch(0, 0),
        )
    )
    assert bench.node.core.capture() == before


# -- truncation


@pytest.mark.parametrize(
    ("epochs", "diverging", "end"),
    [
        ((1, 1, 2), (2, 1), 2),
        ((1, 1, 2, 2), (3, 2), 3),
        ((1, 1, 2, 3), (9, 2), 3),
        ((1, 1, 1, 3), (2, 2), 3),
        ((2, 2, 2), (0, 1), 0),
    ],
)
def test_what_diverges_is_cut(
    epochs: tuple[int, ...], diverging: tuple[int, int], end: int
) -> None:
    bench = follower(
        log=log_of(*epochs, voters=voter_set(1, 2, 3)) if end else log_of(*epochs),
        is_bootstrap=True,
        stored=StoredState(epoch=3),
    )
    bench.fetched(diverging=diverging)
    [cut] = bench.find(TruncateLog)
    assert cut.end_offset == end
    assert bench.node.core.log.end_offset == end
    [fetch] = bench.requests(Fetch)
    assert fetch.request.position == bench.node.core.log.end
    assert fetch.after == cut.write


def test_what_is_known_to_be_committed_is_never_cut() -> None:
    bench = follower()
    bench.fetched(high_watermark=3)
    bench.fetched(diverging=(2, 1))
    assert not bench.find(TruncateLog)
    assert "committed" in bench.reports


def test_what_was_recorded_as_committed_is_never_cut_after_a_restart() -> None:
    bench = follower(stored=StoredState(epoch=3, applied_offset=3))
    bench.fetched(diverging=(2, 1))
    assert not bench.find(TruncateLog)
    deadline = bench.node.next_deadline_ms()
    assert deadline is not None
    assert deadline > bench.now_ms


def test_a_committed_offset_is_recorded_with_the_next_change_of_state() -> None:
    bench = follower()
    bench.fetched(high_watermark=2)
    bench.begin(3, 4)
    assert bench.find(PersistQuorumState)[-1].applied_offset == 2


def test_a_diverging_answer_to_an_older_position_cuts_nothing() -> None:
    """The leader may be reached as bootstrap server and by its key at the same time."""
    bench = unattached(bootstrap_servers=1)
    boot = next(e for e in bench.requests(Fetch) if isinstance(e.to, BootstrapServer))
    bench.node.core.leader, bench.node.core.known_leader.endpoints = None, ()
    bench.begin(2, 3)
    bench.sync()
    # Discovery goes on beside a leader that refuses.
    bench.fetched(error="NOT_LEADER_OR_FOLLOWER", to=key(2))
    bench.wait(20)
    bench.fetched(error="NOT_LEADER_OR_FOLLOWER", to=key(2))
    boot = next(
        e for e in reversed(bench.requests(Fetch, bench.all)) if isinstance(e.to, BootstrapServer)
    )
    assert boot.request_id in bench.node.core.requests.in_flight
    bench.wait(40)
    bench.fetched(diverging=(2, 1), to=key(2))
    bench.fetched(epochs=[2, 3], to=key(2))
    assert bench.node.core.log.end_offset == 4
    bench.step(
        FetchResponseReceived(
            request_id=boot.request_id,
            error=None,
            hint=LeaderHint(epoch=3, leader_id=2),
            diverging=OffsetAndEpoch(2, 1),
        )
    )
    assert not bench.find(TruncateLog)
    assert bench.node.core.log.end_offset == 4


def test_truncation_brings_the_former_voter_set_back() -> None:
    log = log_of(1, 1, 2, voters=voter_set(1, 2, 3))
    bench = follower(log=log)
    larger = VotersRecord(voter_set(1, 2, 3, 4), CLUSTER)
    bench.fetched(epochs=[3], control=((3, larger),))
    assert len(bench.node.voters) == 4
    bench.begin(3, 4)
    bench.fetched(diverging=(3, 2))
    assert len(bench.node.voters) == 3


def test_a_voter_set_counts_as_soon_as_it_is_in_the_log() -> None:
    bench = observer()
    with_nine = VotersRecord(voter_set(1, 2, 3, 9), CLUSTER)
    bench.fetched(epochs=[3], control=((3, with_nine),))
    assert (bench.role, bench.node.leader) == (Role.FOLLOWER, key(2))
    without = VotersRecord(voter_set(1, 2, 3), CLUSTER)
    bench.fetched(epochs=[3], control=((4, without),))
    assert bench.role is Role.OBSERVER
    bench.wait(10_000)
    assert bench.role is Role.OBSERVER


# -- answers that do not fit


@pytest.mark.parametrize(
    ("base", "end", "epochs"),
    [
        (2, 4, ((3, 2),)),
        (4, 5, ((3, 4),)),
        (3, 3, ((3, 3),)),
        (3, 5, ((1, 3),)),
        (3, 5, ((4, 3),)),
        (3, 5, ((3, 3), (2, 4))),
        (3, 5, ()),
        (3, 5, ((3, 4),)),
        (3, 5, ((2, 3), (3, 5))),
    ],
)
def test_records_that_do_not_continue_the_log_are_ignored(
    base: int, end: int, epochs: tuple[tuple[int, int], ...]
) -> None:
    bench = follower()
    before = bench.node.core.capture()
    bench.step(
        FetchResponseReceived(
            request_id=bench.outstanding(Fetch).request_id,
            error=None,
            hint=LeaderHint(epoch=3, leader_id=2),
            high_watermark=3,
            records=FetchedRecords(token=1, base_offset=base, end_offset=end, epochs=epochs),
        )
    )
    assert bench.node.core.capture() == before
    assert not bench.requests(Fetch)
    assert "do not continue" in bench.reports


def test_an_answer_of_who_does_not_lead_is_ignored() -> None:
    bench = unattached()
    before = bench.node.core.capture()
    bench.fetched(epochs=[3], high_watermark=4, hint=LeaderHint(epoch=3), to=key(2))
    assert bench.node.core.capture() == before


@pytest.mark.parametrize(
    "error", ["NOT_LEADER_OR_FOLLOWER", "FENCED_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH"]
)
def test_an_error_that_names_a_newer_leader_is_followed(error: str) -> None:
    bench = follower()
    hint = LeaderHint(epoch=5, leader_id=3, endpoints=endpoints(3))
    bench.fetched(error=error, hint=hint)
    assert (bench.node.epoch, bench.node.leader, bench.role) == (5, key(3), Role.FOLLOWER)
    assert bench.requests(Fetch)[0].to == key(3)


def test_a_higher_epoch_without_leader_is_taken_over() -> None:
    bench = follower()
    bench.fetched(error="FENCED_LEADER_EPOCH", hint=LeaderHint(epoch=5))
    assert (bench.node.epoch, bench.role) == (5, Role.UNATTACHED)


def test_a_hint_that_contradicts_changes_nothing() -> None:
    bench = follower()
    before = bench.node.core.capture()
    bench.fetched(error="NOT_LEADER_OR_FOLLOWER", hint=LeaderHint(epoch=3, leader_id=3))
    assert bench.node.core.capture() == before
    bench.wait(20)
    bench.fetched(error="NOT_LEADER_OR_FOLLOWER", hint=LeaderHint(epoch=9, leader_id=1))
    assert bench.node.core.capture() == before


def test_failed_fetches_back_off_up_to_the_bound() -> None:
    bench = observer()
    delays = []
    for _ in range(8):
        bench.fail(Fetch, key(2))
        start = bench.now_ms
        while not any(e.to == key(2) for e in bench.requests(Fetch)):
            bench.fire()
        delays.append(bench.now_ms - start)
    assert delays == [20, 40, 80, 160, 320, 640, 1000, 1000]


@pytest.mark.parametrize("error", ["CLUSTER_AUTHORIZATION_FAILED", "INVALID_REQUEST"])
@pytest.mark.parametrize(
    ("role", "kind"),
    [
        (Role.FOLLOWER, Fetch),
        (Role.PROSPECTIVE, Vote),
        (Role.CANDIDATE, Vote),
        (Role.LEADER, BeginQuorumEpoch),
        (Role.RESIGNED, EndQuorumEpoch),
    ],
)
def test_who_is_refused_as_a_stranger_asks_again(
    role: Role, kind: type[Request], error: str
) -> None:
    bench = BUILDERS[role]()
    bench.fail(kind, key(2), error=error)
    bench.wait(1000)
    assert bench.outstanding(kind, key(2))
    assert bench.role is role
    assert not bench.find_all(Halt)


def test_a_fetch_that_its_leader_finds_invalid_is_sent_again() -> None:
    """This error in the partition of an answer ends a Kafka process."""
    bench = follower()
    bench.fetched(error="INVALID_REQUEST")
    bench.wait(20)
    assert bench.outstanding(Fetch, key(2))
    assert bench.role is Role.FOLLOWER
    assert not bench.find_all(Halt)


def test_a_good_answer_ends_the_backoff() -> None:
    bench = observer()
    bench.fail(Fetch, key(2))
    bench.wait(20)
    bench.fetched(to=key(2))
    bench.fail(Fetch, key(2))
    assert not [e for e in bench.wait(19) if e in bench.requests(Fetch, [e]) and e.to == key(2)]
    assert [e for e in bench.wait(1) if e in bench.requests(Fetch, [e]) and e.to == key(2)]


# -- discovery


@pytest.mark.parametrize("role", [Role.UNATTACHED, Role.OBSERVER])
def test_without_a_leader_everybody_is_asked(role: Role) -> None:
    bench = unattached(bootstrap_servers=2, local=key(9 if role is Role.OBSERVER else 1))
    assert bench.role is role
    asked = {e.to for e in bench.requests(Fetch, bench.all)}
    assert {key(2), key(3), BootstrapServer(index=0), BootstrapServer(index=1)} <= asked


def test_an_observer_starts_from_bootstrap_servers_alone() -> None:
    bench = fresh(9, is_bootstrap=False, configured_voters=voter_set(), bootstrap_servers=1)
    [fetch] = bench.requests(Fetch)
    assert fetch.to == BootstrapServer(index=0)
    hint = LeaderHint(epoch=4, leader_id=2, endpoints=endpoints(2))
    bench.fetched(error="FENCED_LEADER_EPOCH", hint=hint, to=fetch.to)
    assert bench.node.leader_id == 2
    assert bench.node.leader_endpoints == endpoints(2)
    bench.sync()
    bench.fetched(epochs=[1, 1, 1], control=first_batch(), high_watermark=3)
    assert bench.node.leader == key(2)
    assert bench.node.voters == voter_set(1, 2, 3)


def test_others_are_asked_beside_a_leader_that_cannot_be_reached() -> None:
    bench = observer()
    bench.fail(Fetch, key(2))
    bench.wait(20)
    bench.fail(Fetch, key(2))
    assert {key(1), key(3)} <= {e.to for e in bench.requests(Fetch, bench.all)}


@pytest.mark.parametrize("role", Role)
def test_a_leaderless_peer_of_a_lower_epoch_is_no_news(role: Role) -> None:
    bench = BUILDERS[role]()
    requests = [
        e
        for e in bench.requests(Fetch, bench.all)
        if e.request_id in bench.node.core.requests.in_flight
    ]
    if not requests:
        return
    before = bench.node.core.capture()
    bench.fetched(error="UNKNOWN_LEADER_EPOCH", hint=LeaderHint(epoch=1))
    assert bench.node.core.capture() == before


# -- cluster ids


def test_a_foreign_cluster_is_fatal_only_if_a_majority_and_its_leader_say_so() -> None:
    bench = fresh(1, cluster_id="mine")
    for other, named in ((2, 3), (3, 3)):
        assert not bench.find_all(Halt)
        bench.fail(
            Fetch,
            bench.node.core.other_voters()[other - 2],
            error="INCONSISTENT_CLUSTER_ID",
            leader_id=named,
        )
    [halt] = bench.find_all(Halt)
    assert "node 3" in halt.reason
    assert "quorum.voters" in halt.reason


@pytest.mark.parametrize(
    "named", [(2, 3), (None, None), (3, None)], ids=["disagree", "none", "only one"]
)
def test_a_foreign_cluster_is_else_only_reported(named: tuple[int | None, int | None]) -> None:
    bench = fresh(1, cluster_id="mine")
    for peer, leader_id in zip(bench.node.core.other_voters(), named, strict=True):
        bench.fail(Fetch, peer, error="INCONSISTENT_CLUSTER_ID", leader_id=leader_id)
    assert not bench.find_all(Halt)
    assert "another cluster" in bench.reports


def test_a_directory_that_has_fetched_is_never_ended_by_a_foreign_cluster() -> None:
    bench = unattached()
    for peer in bench.node.core.other_voters():
        bench.fail(Fetch, peer, error="INCONSISTENT_CLUSTER_ID", leader_id=3)
    assert not bench.find_all(Halt)


def test_the_cluster_id_of_the_log_is_adopted_once_committed() -> None:
    bench = joined(high_watermark=2)
    assert not bench.find_all(AdoptClusterId)
    bench.fetched(high_watermark=3)
    assert bench.find(AdoptClusterId) == [AdoptClusterId(cluster_id=CLUSTER)]


def joined(high_watermark: int | None) -> Bench:
    """Replica 2 of a new quorum has just received the first batch of leader 1."""
    bench = fresh(2)
    bench.begin(1, 1, cluster_id=None)
    bench.sync()
    bench.fetched(epochs=[1, 1, 1], control=first_batch(), high_watermark=high_watermark)
    return bench


def test_the_first_committed_voter_set_is_recorded_once_it_is_on_disk() -> None:
    bench = joined(high_watermark=3)
    assert bench.find_all(PersistQuorumState)[-1].applied_offset == 0
    bench.sync()
    assert bench.find_all(PersistQuorumState)[-1].applied_offset == 3
    assert not bench.node.core.is_bootstrapping


def test_the_leaders_key_gains_its_uuid_with_the_first_voter_set() -> None:
    bench = joined(high_watermark=None)
    assert bench.node.leader == key(1)
    bench.sync()
    bench.fetched(high_watermark=3)
    assert bench.role is Role.FOLLOWER
    assert bench.requests(Fetch)[0].to == key(1)


def test_where_a_leader_is_said_to_be_it_is_searched_only_while_there_is_no_contact() -> None:
    bench = unattached()
    elsewhere = (Endpoint("CONTROLLER", "elsewhere", 1234),)
    bench.begin(2, 3)
    bench.begin(2, 3, endpoints=elsewhere, says_so=False)
    assert bench.outstanding(Vote, key(2)).request.pre_vote
    assert bench.node.leader_endpoints == endpoints(2)
    assert bench.node.unconfirmed_endpoints_of(2) == elsewhere
    bench.fetched(to=key(2))
    assert bench.node.unconfirmed_endpoints_of(2) == ()
    bench.begin(2, 3, endpoints=endpoints(9), says_so=False)
    bench.wait(2000)
    assert bench.node.unconfirmed_endpoints_of(2) == elsewhere


def test_an_answer_without_endpoints_still_tells_the_epoch() -> None:
    bench = follower()
    bench.fetched(error="FENCED_LEADER_EPOCH", hint=LeaderHint(epoch=7, leader_id=9))
    assert (bench.node.epoch, bench.node.leader, bench.role) == (7, None, Role.UNATTACHED)
    assert "no endpoint is known of" in bench.reports


def test_nobody_tells_a_leader_where_it_is_reached() -> None:
    bench = leader()
    bench.begin(1, 4, endpoints=(Endpoint("CONTROLLER", "elsewhere", 1234),))
    assert bench.node.leader_endpoints == endpoints(1)
