"""Each checker fires on a small violation made by hand, and is silent on its healthy counterpart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations
from random import Random

import pytest

from quorumd.raft.node import RaftNode
from quorumd.raft.roles import Role
from quorumd.raft.types import ReplicaKey
from quorumd.server.model.producer_state import ProducerState
from quorumd.storage.quorum_state import QuorumState
from quorumd.wire.error_codes import ErrorCode
from simulation.checkers.acknowledged import Acknowledged
from simulation.checkers.base import Checker
from simulation.checkers.begun_epochs import BegunEpochs
from simulation.checkers.committed_prefix import CommittedPrefix
from simulation.checkers.durability import Durability
from simulation.checkers.election_safety import ElectionSafety
from simulation.checkers.freshness import Freshness
from simulation.checkers.in_office import SETTLED_US, SLACK_US, InOffice, Undisturbed
from simulation.checkers.leader_completeness import LeaderCompleteness
from simulation.checkers.linearizable import check_linearizable
from simulation.checkers.log_matching import LogMatching
from simulation.checkers.lookups import Lookup, check_lookup
from simulation.checkers.majority_synced import MajoritySynced
from simulation.checkers.monotonic import Monotonic
from simulation.checkers.producers import check_producers
from simulation.checkers.reads import Reads
from simulation.checkers.sequences import check_sequences
from simulation.checkers.snapshots import Snapshots
from simulation.checkers.votes import Votes
from simulation.history.appends import Append
from simulation.history.replica import Batch, Identity
from simulation.history.served import NodeView, Served
from simulation.options import Options
from simulation.scheduler import MS, SECOND
from simulation.world import World
from tests.simulation.sight import A, B, C, D, Sight, batch, node_of, violates


@pytest.fixture
def sight() -> Sight:
    return Sight()


# -- leaders and votes


def test_two_leaders_of_an_epoch_are_noticed(sight: Sight) -> None:
    checker = ElectionSafety(sight.facts)
    a, b = sight.replica(A), sight.replica(B)
    checker.on_event(sight.observation(a, Role.LEADER, epoch=1))
    checker.on_event(sight.observation(b, Role.LEADER, epoch=2))
    checker.on_event(sight.observation(b, Role.FOLLOWER, epoch=1))
    checker.on_event(sight.observation(a, Role.LEADER, epoch=1))
    with violates("one leader per epoch"):
        checker.on_event(sight.observation(b, Role.LEADER, epoch=1))


def test_an_epoch_that_nobody_has_begun_is_noticed(sight: Sight) -> None:
    checker = BegunEpochs(sight.facts)
    a, b = sight.replica(A), sight.replica(B)
    first = sight.observation(a, epoch=1)
    checker.on_event(first)
    checker.on_event(sight.observation(b, Role.CANDIDATE, epoch=2))
    checker.on_event(sight.observation(a, epoch=2, before=first.now))
    with violates("an epoch is begun by a campaign"):
        checker.on_event(sight.observation(a, epoch=3, before=first.now))
    sight.facts.forged_epochs.add(3)
    checker.on_event(sight.observation(a, epoch=3, before=first.now))


@pytest.mark.parametrize("log", [(), (batch(0), batch(1, number=7))])
def test_a_leader_without_a_committed_record_is_noticed(
    sight: Sight, log: tuple[Batch, ...]
) -> None:
    sight.commit(batch(0), batch(1), epoch=1)
    with violates("a leader has every committed record"):
        LeaderCompleteness(sight.facts).on_event(
            sight.observation(sight.replica(A, *log), Role.LEADER, epoch=2)
        )


def test_a_leader_needs_only_what_was_committed_in_earlier_epochs(sight: Sight) -> None:
    checker = LeaderCompleteness(sight.facts)
    sight.commit(batch(0), epoch=1)
    sight.commit(batch(1, epoch=2), epoch=2)
    checker.on_event(sight.observation(sight.replica(A, batch(0), batch(1)), Role.LEADER, epoch=2))
    checker.on_event(sight.observation(sight.replica(B), Role.FOLLOWER, epoch=3))


def saved(epoch: int, voted: ReplicaKey | None) -> QuorumState:
    return QuorumState(leader_epoch=epoch, voted_id=None if voted is None else voted.id)


def test_a_second_vote_in_an_epoch_is_noticed(sight: Sight) -> None:
    checker = Votes(sight.facts)
    voter = sight.replica(A)
    voter.state = saved(1, B)
    checker.on_vote(A, 1, B)
    checker.on_vote(A, 1, B)
    voter.state = saved(2, C)
    checker.on_vote(A, 2, C)
    voter.state = saved(1, C)
    with violates("votes survive restarts"):
        checker.on_vote(A, 1, C)


@pytest.mark.parametrize("state", [None, saved(0, None), saved(1, None), saved(1, C)])
def test_a_vote_that_is_not_on_disk_is_noticed(sight: Sight, state: QuorumState | None) -> None:
    sight.replica(A).state = state
    with violates("votes survive restarts"):
        Votes(sight.facts).on_vote(A, 1, B)


# -- logs


def test_a_truncation_of_what_is_known_to_be_committed_is_noticed(sight: Sight) -> None:
    checker = CommittedPrefix(sight.facts)
    replica = sight.replica(A, batch(0), batch(1), batch(2))
    checker.on_event(sight.observation(replica, committed=2))
    dropped = [replica.log.pop()]
    checker.on_truncate(replica, dropped)
    dropped = [replica.log.pop()]
    with violates("a committed prefix is identical everywhere"):
        checker.on_truncate(replica, dropped)


def test_a_different_committed_batch_is_noticed(sight: Sight) -> None:
    checker = CommittedPrefix(sight.facts)
    checker.on_event(sight.observation(sight.replica(A, batch(0), batch(1)), committed=2))
    other = sight.replica(B, batch(0), batch(1, epoch=2))
    checker.on_event(sight.observation(other, committed=1))
    with violates("a committed prefix is identical everywhere"):
        checker.on_event(sight.observation(other, committed=2))


def test_a_high_watermark_beyond_the_log_is_noticed(sight: Sight) -> None:
    checker = CommittedPrefix(sight.facts)
    replica = sight.replica(A, batch(0))
    checker.on_event(sight.observation(replica, committed=1))
    with violates("a committed prefix is identical everywhere"):
        checker.on_event(sight.observation(replica, committed=2))


def test_a_new_process_may_know_less_of_what_is_committed(sight: Sight) -> None:
    checker = CommittedPrefix(sight.facts)
    replica = sight.replica(A, batch(0), batch(1))
    checker.on_event(sight.observation(replica, committed=2))
    checker.on_recovered(replica, replica.log, None)
    checker.on_event(sight.observation(replica, committed=0))
    checker.on_event(sight.observation(replica, committed=2))
    assert sight.facts.committed == [batch(0), batch(1)]


def test_a_commit_that_a_minority_has_synced_is_noticed(sight: Sight) -> None:
    checker = MajoritySynced(sight.facts)
    leader = sight.replica(A, batch(0), batch(1))
    sight.replica(B, batch(0), batch(1), synced=1)
    sight.replica(C, batch(0, epoch=2), batch(1, epoch=2))
    sight.commit(batch(0))
    checker.on_event(sight.observation(leader, Role.LEADER, committed=1))
    sight.commit(batch(1))
    with violates("the high watermark is synced by a majority"):
        checker.on_event(sight.observation(leader, Role.LEADER, committed=2))


def test_what_a_dying_leader_has_committed_is_judged_by_its_own_voters(sight: Sight) -> None:
    checker = MajoritySynced(sight.facts)
    leader = sight.replica(A, batch(0))
    sight.commit(batch(0))
    alone = sight.observation(leader, Role.LEADER, committed=1, node=node_of(A, A))
    checker.on_cut_short(alone)
    checker.on_event(sight.observation(sight.replica(B)))
    leader.synced.clear()
    leader.log.append(batch(1))
    sight.commit(batch(1))
    with violates("the high watermark is synced by a majority"):
        checker.on_cut_short(alone)


def test_a_batch_after_another_predecessor_is_noticed(sight: Sight) -> None:
    checker = LogMatching(sight.facts)
    a, b = sight.replica(A), sight.replica(B)
    checker.on_append(a, [batch(0), batch(1), batch(2, epoch=3)], None)
    checker.on_append(b, [batch(0), batch(1)], None)
    checker.on_append(b, [batch(2, epoch=4)], batch(1))
    with violates("log matching"):
        checker.on_append(b, [batch(2, epoch=3)], batch(1, epoch=2))


def test_a_batch_with_other_contents_is_noticed(sight: Sight) -> None:
    checker = LogMatching(sight.facts)
    checker.on_append(sight.replica(A), [batch(0)], None)
    with violates("log matching"):
        checker.on_append(sight.replica(B), [batch(0, number=9)], None)


# -- disks


def test_a_synced_batch_that_is_gone_is_noticed(sight: Sight) -> None:
    checker = Durability(sight.facts)
    log = [batch(0), batch(1), batch(2)]
    replica = sight.replica(A, *log, synced=2)
    checker.on_append(replica, log, None)
    checker.on_recovered(replica, log[:2], None)
    checker.on_recovered(replica, log, None)
    with violates("what was synced survives"):
        checker.on_recovered(replica, log[:1], None)
    sight.facts.excused.add(A)
    checker.on_recovered(replica, log[:1], None)


def test_an_invented_batch_is_noticed(sight: Sight) -> None:
    checker = Durability(sight.facts)
    replica = sight.replica(A)
    with violates("what was synced survives"):
        checker.on_recovered(replica, [batch(0)], None)


def test_an_older_quorum_state_is_noticed(sight: Sight) -> None:
    checker = Monotonic(sight.facts)
    replica = sight.replica(A)
    checker.on_recovered(replica, [], None)
    replica.state, replica.pending_states = saved(2, A), [saved(2, None), saved(3, B)]
    for state in (saved(2, A), saved(2, None), saved(3, B)):
        checker.on_recovered(replica, [], state)
    for older in (saved(1, A), None):
        with violates("epoch and high watermark never go back"):
            checker.on_recovered(replica, [], older)


def test_an_epoch_or_a_high_watermark_that_goes_back_is_noticed(sight: Sight) -> None:
    checker = Monotonic(sight.facts)
    replica = sight.replica(A, batch(0), batch(1))
    first = sight.observation(replica, epoch=2, committed=1)
    checker.on_event(first)
    checker.on_event(sight.observation(replica, epoch=2, committed=2, before=first.now))
    checker.on_event(sight.observation(replica, epoch=2, committed=0))
    with violates("epoch and high watermark never go back"):
        checker.on_event(sight.observation(replica, epoch=2, committed=0, before=first.now))
    with violates("epoch and high watermark never go back"):
        checker.on_event(sight.observation(replica, epoch=1, committed=1, before=first.now))


def test_an_impossible_state_is_noticed(sight: Sight) -> None:
    replica = sight.replica(A, batch(0, epoch=5))
    with violates("epoch and high watermark never go back"):
        Monotonic(sight.facts).on_event(sight.observation(replica, epoch=4))


def test_a_log_start_without_a_snapshot_is_noticed(sight: Sight) -> None:
    checker = Snapshots(sight.facts)
    replica = sight.replica(A)
    checker.on_event(sight.observation(replica))
    covering = "00000000000000000010-0000000001.checkpoint"
    checker.on_event(sight.observation(replica, start=10, files=["x.log", covering]))
    for files in ([], ["00000000000000000009-0000000001.checkpoint"]):
        with violates("snapshots stand for the committed log"):
            checker.on_event(sight.observation(replica, start=10, files=files))


# -- clients


def append_of(
    of: Batch, *, told: int | None = None, invoked_us: int = 0, acknowledged_us: int | None = None
) -> Append:
    return Append("client", of.identity, 1, True, invoked_us, acknowledged_us, told)


def test_an_acknowledgement_before_the_commit_is_noticed(sight: Sight) -> None:
    checker = Acknowledged(sight.facts)
    sight.commit(batch(0))
    checker.on_acknowledged(append_of(batch(0), told=0))
    with violates("acknowledged appends are present exactly once"):
        checker.on_acknowledged(append_of(batch(1), told=1))
    sight.commit(batch(1))
    checker.on_acknowledged(append_of(batch(1), told=1))


def test_an_acknowledgement_with_the_offset_of_another_append_is_noticed(sight: Sight) -> None:
    sight.commit(batch(0), batch(1))
    with violates("acknowledged appends are present exactly once"):
        Acknowledged(sight.facts).on_acknowledged(append_of(batch(0), told=1))


def test_an_append_that_is_there_twice_is_noticed(sight: Sight) -> None:
    checker = Acknowledged(sight.facts)
    sight.commit(batch(0, number=5), batch(1))
    checker.on_end([append_of(batch(0, number=5), told=0), append_of(batch(9))])
    sight.commit(batch(2, number=5))
    for told in (None, 0):
        with violates("acknowledged appends are present exactly once"):
            checker.on_end([append_of(batch(0, number=5), told=told)])


def test_an_acknowledged_append_that_is_lost_is_noticed(sight: Sight) -> None:
    sight.commit(batch(0))
    with violates("acknowledged appends are present exactly once"):
        Acknowledged(sight.facts).on_end([append_of(batch(1), told=1)])


@pytest.mark.parametrize(
    ("offset", "read"),
    [
        (0, [batch(0), batch(1), batch(2)]),
        (0, [batch(1)]),
        (1, [batch(1, epoch=2)]),
        (1, [batch(0), batch(1)]),
        (2, [batch(2)]),
    ],
)
def test_a_read_of_anything_but_the_committed_log_is_noticed(
    sight: Sight, offset: int, read: list[Batch]
) -> None:
    sight.commit(batch(0), batch(1))
    with violates("reads are prefixes of the committed log"):
        Reads(sight.facts).on_read("reader", offset, read)


def test_a_read_may_begin_with_the_batch_that_holds_its_offset(sight: Sight) -> None:
    long = Batch(1, 4, 1, Identity(7, 0, -1, -1))
    sight.commit(batch(0), long, batch(4))
    reads = Reads(sight.facts)
    reads.on_read("reader", 0, [batch(0), long])
    reads.on_read("reader", 2, [long, batch(4)])


# -- linearizability


def is_linearizable(history: Sequence[Append], log: Sequence[Batch]) -> bool:
    """By definition: some order of all that took effect is the log's, and contradicts no time."""
    at = {of.identity: i for i, of in enumerate(log)}
    done = [append for append in history if append.identity in at]
    return any(
        all(at[x.identity] < at[y.identity] for x, y in _pairs(order))
        and not any(_is_before(y, x) for x, y in _pairs(order))
        for order in permutations(done)
    )


def _pairs(order: Sequence[Append]) -> Iterator[tuple[Append, Append]]:
    return ((x, y) for i, x in enumerate(order) for y in order[i + 1 :])


def _is_before(x: Append, y: Append) -> bool:
    return x.acknowledged_us is not None and x.acknowledged_us < y.invoked_us


def test_linearizability_is_judged_as_by_trying_all_orders() -> None:
    random, verdicts = Random(1), set()
    for _ in range(3000):
        log = [batch(i) for i in range(random.randint(1, 5))]
        history = []
        for of in [*log, batch(9)]:
            invoked = random.randrange(12)
            answered = random.choice([None, invoked + random.randrange(8)])
            history.append(append_of(of, invoked_us=invoked, acknowledged_us=answered))
        random.shuffle(history)
        expected = is_linearizable(history, log)
        verdicts.add(expected)
        if expected:
            check_linearizable(history, log)
        else:
            with violates("appends are linearizable"):
                check_linearizable(history, log)
    assert verdicts == {True, False}


# -- what the world checks by itself


def test_a_checker_that_overrides_nothing_is_silent(sight: Sight) -> None:
    checker = Checker(sight.facts)
    replica = sight.replica(A, batch(0))
    checker.on_append(replica, replica.log, None)
    checker.on_truncate(replica, replica.log)
    checker.on_event(sight.observation(replica))
    checker.on_recovered(replica, [], None)
    checker.on_vote(A, 1, B)


@pytest.mark.pure
def test_a_rule_that_fails_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(node: RaftNode) -> int | None:
        raise AssertionError("a rule is broken")

    world = World(1, Options(faults=()))
    world.cluster.machines[0].start()
    monkeypatch.setattr(RaftNode, "next_deadline_ms", fails)
    with violates("no rule is broken"):
        world.env.scheduler.run_until(10 * SECOND)


def test_a_refusal_of_an_idempotent_producer_is_noticed() -> None:
    world = World(1, Options(faults=()))
    for machine in world.cluster.machines:
        machine.start()
    world.env.scheduler.run_until(10 * SECOND)
    leader = world.cluster.leader_machine()
    assert leader is not None
    append = append_of(batch(0))
    producer = world.workload.producers[0]
    producer.target = leader.host
    producer.on_refused(append, ErrorCode.NOT_ENOUGH_REPLICAS, None)
    producer.target = "elsewhere"
    producer.on_refused(append, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, None)
    producer.target = leader.host
    with violates("an idempotent producer is not refused"):
        producer.on_refused(append, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, None)


def test_the_producer_state_has_to_be_what_the_log_says() -> None:
    log = [Batch(0, 1, 1, Identity(1, 1, 7, 0, 0))]
    producers = ProducerState()
    with violates("the producer state follows from the log"):
        check_producers(A, log, producers)
    producers.append(7, 0, 0, 0, 0)
    check_producers(A, log, producers)
    producers.append(8, 0, 0, 1, 1)
    with violates("the producer state follows from the log"):
        check_producers(A, log, producers)


# -- leaders in office


def test_a_leader_that_only_an_observer_asks_for_records_is_noticed(sight: Sight) -> None:
    checker, leader = InOffice(sight.facts), node_of(A, A, B, C)
    timeout_us = leader.config.fetch_timeout_ms * MS
    for round_ in range(8):
        now_us = round_ * timeout_us
        checker.on_contact(leader, D, now_us, is_prompt=True)
        checker.on_contact(leader, B, now_us, is_prompt=True)
    checker.on_contact(leader, D, now_us + 3 * timeout_us + SLACK_US, is_prompt=True)
    late_us = now_us + 3 * timeout_us + SLACK_US + 1
    with violates("a leader that no majority fetches from resigns"):
        checker.on_contact(leader, D, late_us, is_prompt=True)
    checker.on_contact(leader, D, late_us, is_prompt=False)


@pytest.mark.parametrize(
    ("role", "epoch", "is_late"),
    [(Role.RESIGNED, 2, False), (Role.FOLLOWER, 3, True), (Role.FOLLOWER, 4, False)],
)
def test_an_undisturbed_leader_yields_to_an_epoch_from_before_and_to_nothing_else(
    sight: Sight, role: Role, epoch: int, is_late: bool
) -> None:
    checker, replica = Undisturbed(sight.facts), sight.replica(A)
    sight.facts.is_undisturbed = False
    checker.on_event(sight.observation(sight.replica(B), epoch=3))
    led = sight.observation(replica, Role.LEADER, epoch=2)
    checker.on_event(led)
    sight.facts.is_undisturbed = True
    gone = sight.observation(replica, role, epoch=epoch, before=led.now, now_us=SETTLED_US)
    if is_late:
        checker.on_event(gone)
    else:
        with violates("a leader that nothing disturbs is not deposed"):
            checker.on_event(gone)
    assert sight.facts.late_epoch == (epoch if is_late else -1)


# -- what clients are told


def served(
    role: Role = Role.LEADER, epoch: int = 1, *, start: int = 0, asked_us: int = 0
) -> Served:
    view = NodeView(A, role, epoch, start, 2)
    return Served(view, view, asked_us, True, 100)


def test_only_a_leader_with_a_commit_in_its_epoch_serves(sight: Sight) -> None:
    sight.commit(batch(0), batch(1, epoch=3))
    fresh = Freshness(sight.facts)
    fresh.on_served("reader", served(epoch=3), None, 0)
    for view in (served(Role.FOLLOWER, 3), served(Role.LEADER, 2), served(Role.LEADER, 4)):
        with violates("only a leader with a commit in its epoch serves clients"):
            fresh.on_served("reader", view, None, 0)


def test_an_end_below_what_was_told_before_is_noticed(sight: Sight) -> None:
    sight.commit(batch(0), batch(1), batch(2, epoch=2))
    fresh = Freshness(sight.facts)
    fresh.note(1, 1, now_us=10)
    fresh.note(3, 2, now_us=20)
    fresh.on_served("reader", served(epoch=2, asked_us=15), 1, 30)
    fresh.on_served("reader", served(epoch=1, asked_us=25), 1, 30)
    with violates("reads are fresh"):
        fresh.on_served("reader", served(epoch=2, asked_us=25), 2, 30)
    with violates("reads are fresh"):
        fresh.on_served("reader", served(epoch=1, asked_us=15), 0, 30)


def test_a_deposed_leader_that_serves_for_too_long_is_noticed(sight: Sight) -> None:
    sight.commit(batch(0), batch(1, epoch=2))
    fresh = Freshness(sight.facts)
    fresh.note(1, 1, now_us=0)
    fresh.note(2, 2, now_us=1)
    fresh.on_served("reader", served(epoch=1, asked_us=450_000), 1, 450_000)
    with violates("reads are fresh"):
        fresh.on_served("reader", served(epoch=1, asked_us=460_000), 1, 460_000)
    fresh.on_served("reader", served(asked_us=460_000)._replace(is_prompt=False), 1, 460_000)


def test_an_end_beyond_what_is_committed_is_noticed(sight: Sight) -> None:
    sight.commit(batch(0))
    with violates("reads are fresh"):
        Freshness(sight.facts).on_served("reader", served(), 2, 0)


def test_a_committed_offset_that_is_out_of_range_is_noticed(sight: Sight) -> None:
    fresh = Freshness(sight.facts)
    fresh.on_out_of_range("reader", served(), 0)
    fresh.note(2, 1, now_us=0)
    fresh.on_out_of_range("reader", served(start=1), 0)
    fresh.on_out_of_range("reader", served(), 3)
    with violates("what is committed is in range"):
        fresh.on_out_of_range("reader", served(), 2)


@pytest.mark.parametrize(
    ("lookup", "right", "wrong"),
    [
        (Lookup(timestamp=5), 1, 0),
        (Lookup(timestamp=5), -1, 2),
        (Lookup(timestamp=9), -1, 2),
        (Lookup(epoch=0), 0, 1),
        (Lookup(epoch=1), 1, 2),
        (Lookup(epoch=7), 2, 3),
    ],
)
def test_a_lookup_that_is_not_of_the_committed_log_is_noticed(
    lookup: Lookup, right: int, wrong: int
) -> None:
    log = [
        Batch(at, at + 1, epoch, Identity(at, timestamp, -1, -1))
        for at, (epoch, timestamp) in enumerate([(1, 3), (4, 5), (4, 9)])
    ]
    view = served()
    view = view._replace(arrived=view.left._replace(committed_offset=1))
    check_lookup(log, "inquirer", view, lookup, right)
    with violates("looked up offsets are those of the committed log"):
        check_lookup(log, "inquirer", view, lookup, wrong)


@pytest.mark.parametrize(
    "produced",
    [[(0, 1)], [(0, 0), (0, 2)], [(0, 0), (0, 0)], [(1, 0), (0, 0)], [(0, 0), (1, 1)]],
    ids=["not from 0", "gap", "twice", "old epoch", "epoch not from 0"],
)
def test_a_batch_out_of_sequence_is_noticed(produced: list[tuple[int, int]]) -> None:
    def log_of(batches: list[tuple[int, int]]) -> list[Batch]:
        return [
            Batch(at, at + 1, 1, Identity(at, 0, 7, sequence, epoch))
            for at, (epoch, sequence) in enumerate(batches)
        ]

    check_sequences(log_of([(0, 0), (0, 1), (2, 0), (2, 1)]))
    with violates("a producer's batches are in sequence"):
        check_sequences(log_of(produced))


def test_a_fenced_batch_in_the_log_is_noticed(sight: Sight) -> None:
    sight.commit(batch(0))
    fenced = append_of(batch(0))
    fenced.is_given_up, fenced.offset = True, None
    Acknowledged(sight.facts).on_end([fenced])
    fenced.is_fenced = True
    with violates("a fenced producer appends nothing"):
        Acknowledged(sight.facts).on_end([fenced])
