"""The driver: effects in order, held until their write is on disk, one timer, no event in between."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from quorumd.raft.config import StoredState
from quorumd.raft.effects import (
    AnnounceHighWatermark,
    AnnounceRole,
    AnnounceVoters,
    AppendClient,
    AppendControl,
    AppendFetched,
    DeleteLogPrefix,
    DropSnapshot,
    PersistQuorumState,
    Reply,
    ResetLog,
    SendRequest,
    StoreSnapshotChunk,
    TruncateLog,
    VoteReply,
)
from quorumd.raft.events import (
    Event,
    FetchRequestReceived,
    ResignationRequested,
    VoteRequestReceived,
    VoteResponseReceived,
)
from quorumd.raft.events import LeaderHint as Hint
from quorumd.raft.log_view import LogView
from quorumd.raft.node import RaftNode
from quorumd.raft.roles import Role
from quorumd.raft.types import OffsetAndEpoch
from quorumd.server.partition.driver import Driver
from simulation.default_raft_config import default_raft_config
from tests.raft.harness import endpoints, key, log_of, voter_set

CLUSTER = "cluster-a"


@dataclass
class World:
    """Everything around a driver, in memory: what it was told, in order."""

    node: RaftNode
    now_ms: int = 10_000
    journal: list[Any] = field(default_factory=list)
    alarms: list[int] = field(default_factory=list)
    flushes: int = 0
    react: Callable[[Any], None] = lambda effect: None

    def __post_init__(self) -> None:
        self.driver = Driver(
            self.node,
            self,
            self.note,
            lambda effect: self.note((effect.reply_to, effect.reply)),
            self,
            self,
            lambda: self.now_ms,
        )

    def note(self, what: Any) -> None:
        self.journal.append(what)
        self.react(what)

    # records
    def append_control(self, effect: AppendControl) -> None:
        self.note(effect)

    def append_client(self, effect: AppendClient) -> None:
        self.note(effect)

    def append_fetched(self, effect: AppendFetched) -> None:
        self.note(effect)

    def truncate(self, effect: TruncateLog) -> None:
        self.note(effect)

    def persist(self, effect: PersistQuorumState) -> None:
        self.note(effect)

    def store_chunk(self, effect: StoreSnapshotChunk) -> None:
        self.note(effect)

    def drop_chunks(self, effect: DropSnapshot) -> None:
        self.note(effect)

    def reset(self, effect: ResetLog) -> None:
        self.note(effect)

    def delete_prefix(self, effect: DeleteLogPrefix) -> None:
        self.note(effect)

    def flush(self) -> None:
        self.flushes += 1

    # news
    def on_high_watermark(self, effect: AnnounceHighWatermark) -> None:
        self.note(effect)

    def on_role(self, effect: AnnounceRole) -> None:
        self.note(effect)

    def on_voters(self, effect: AnnounceVoters) -> None:
        self.note(effect)

    def on_cluster_id(self, cluster_id: str) -> None:
        self.note(("cluster id", cluster_id))

    def on_snapshot_copied(self, snapshot: OffsetAndEpoch) -> None:
        self.note(("copied", snapshot))

    def on_report(self, reason: str) -> None:
        self.note(("report", reason))

    def on_halt(self, reason: str) -> None:
        self.note(("halt", reason))

    # the timer
    def set(self, deadline_ms: int) -> None:
        self.alarms.append(deadline_ms)

    # what tests ask
    def take(self) -> list[Any]:
        taken, self.journal = self.journal, []
        return taken

    def synced(self) -> None:
        self.driver.on_writes_completed(self.node.core.writes.last)

    def handle(self, event: Event) -> list[Any]:
        self.driver.handle(event)
        return self.take()


def world(log: LogView | None = None, *, applied_offset: int = 0, voters: int = 3) -> World:
    ids = range(1, voters + 1)
    config = default_raft_config(
        key(1),
        endpoints=endpoints(1),
        configured_voters=voter_set(*ids, by_id=True),
        is_bootstrap=True,
        cluster_id=CLUSTER,
    )
    stored = StoredState(epoch=1, applied_offset=applied_offset)
    if log is None:
        log = log_of(1, 1, 1, voters=voter_set(*ids))
    return World(RaftNode(config, stored, log, lambda bound: bound // 2))


def vote(reply_to: int, epoch: int) -> VoteRequestReceived:
    return VoteRequestReceived(
        reply_to=reply_to,
        cluster_id=CLUSTER,
        voter=key(1),
        candidate=key(2),
        epoch=epoch,
        last=OffsetAndEpoch(3, 1),
        pre_vote=False,
    )


def fetch(reply_to: int, epoch: int, offset: int = 3) -> FetchRequestReceived:
    return FetchRequestReceived(
        reply_to, CLUSTER, key(2), epoch, OffsetAndEpoch(offset, 1), 500, -1
    )


def leading(world_: World) -> World:
    """A world whose node has won an election, with everything on disk."""
    world_.driver.start()
    world_.synced()
    world_.now_ms += 5_000
    world_.driver.on_timer()
    for asked in (True, False):
        for sent in [s for s in world_.take() if isinstance(s, SendRequest)]:
            if getattr(sent.request, "pre_vote", None) is asked:
                hint = Hint(epoch=world_.node.epoch)
                event = VoteResponseReceived(
                    request_id=sent.request_id, error=None, hint=hint, granted=True
                )
                world_.driver.handle(event)
                world_.synced()
    assert world_.node.role is Role.LEADER
    world_.take()
    return world_


def test_a_vote_leaves_only_when_it_is_on_disk() -> None:
    at = world()
    at.driver.start()
    at.synced()
    at.take()
    told = at.handle(vote(7, epoch=2))
    assert [type(what) for what in told if not isinstance(what, tuple)][-1] is PersistQuorumState
    assert not [what for what in told if isinstance(what, tuple) and what[0] == 7]
    at.driver.on_writes_completed(at.node.core.writes.last - 1)
    assert (7,) not in [what[:1] for what in at.take() if isinstance(what, tuple)]
    at.synced()
    (answered,) = [what for what in at.take() if isinstance(what, tuple) and what[0] == 7]
    assert isinstance(answered[1], VoteReply)
    assert answered[1].granted


def test_what_waits_for_the_very_first_write_is_held_too() -> None:
    at = world()
    at.driver.start()
    assert at.node.core.writes.last == 1
    at.take()
    told = at.handle(vote(7, epoch=0))
    assert 7 not in [what[0] for what in told if isinstance(what, tuple)]
    at.driver.on_writes_completed(1)
    assert [what[0] for what in at.take() if isinstance(what, tuple)] == [7]


def test_what_was_held_when_the_driver_stopped_never_leaves() -> None:
    at = world()
    at.driver.start()
    at.handle(vote(7, epoch=2))
    at.driver.stop()
    at.synced()
    assert at.take() == []


def test_held_answers_leave_in_the_order_in_which_they_were_given() -> None:
    at = world()
    at.driver.start()
    at.synced()
    at.take()
    for number in range(5):
        at.driver.handle(vote(number, epoch=2))
    at.take()
    at.synced()
    answers = [what[0] for what in at.take() if isinstance(what, tuple)]
    assert answers == [0, 1, 2, 3, 4]


def test_requests_held_over_a_change_of_epoch_are_never_sent_but_answers_are() -> None:
    at = world()
    at.driver.start()
    at.synced()
    at.take()
    at.driver.handle(vote(3, epoch=2))
    at.driver.handle(vote(2, epoch=3))
    assert not [what for what in at.take() if isinstance(what, SendRequest)]
    at.synced()
    told = at.take()
    sent = [what.request.epoch for what in told if isinstance(what, SendRequest)]
    assert set(sent) == {3}
    assert [what[0] for what in told if isinstance(what, tuple)] == [3, 2]


def test_a_request_that_is_refused_changes_nothing_and_is_answered_at_once() -> None:
    at = world()
    at.driver.start()
    at.synced()
    at.take()
    told = at.handle(vote(3, epoch=0))
    (answered,) = [what for what in told if isinstance(what, tuple) and what[0] == 3]
    assert isinstance(answered[1], Reply)
    assert answered[1].error is not None or answered[1].top_level_error is not None


def test_an_event_that_comes_up_while_effects_are_carried_out_waits_for_them() -> None:
    at = leading(world())
    order: list[str] = []

    def react(what: Any) -> None:
        order.append(type(what).__name__)
        if isinstance(what, AnnounceRole) and what.role is Role.RESIGNED:
            at.driver.handle(vote(9, epoch=at.node.epoch + 1))
            assert at.node.role is Role.RESIGNED, "the event was handled between two effects"

    at.react = react
    at.driver.handle(ResignationRequested(reason="a test", shutting_down=False))
    assert at.node.role is not Role.RESIGNED
    assert order.index("AnnounceRole") < order.index("PersistQuorumState")


def test_an_event_that_comes_up_during_the_start_is_not_forgotten() -> None:
    at = world()

    def react(what: Any) -> None:
        if isinstance(what, AnnounceRole) and what.reason == "started":
            at.driver.handle(vote(4, epoch=2))

    at.react = react
    at.driver.start()
    at.synced()
    assert 4 in [what[0] for what in at.take() if isinstance(what, tuple)]


def test_a_rule_that_fails_leaves_the_driver_usable_for_nobody_but_its_owner() -> None:
    at = world()

    def react(what: Any) -> None:
        raise RuntimeError("a full pipe")

    at.driver.start()
    at.react = react
    with pytest.raises(RuntimeError):
        at.driver.handle(vote(1, epoch=2))


def test_an_alarm_is_set_for_the_nearest_deadline_and_again_after_it_went_off() -> None:
    at = world()
    at.driver.start()
    assert at.alarms == [at.node.next_deadline_ms()]
    at.now_ms = at.alarms[-1] - 1
    at.driver.on_timer()
    assert at.alarms[-1] == at.node.next_deadline_ms()
    assert at.node.role is Role.UNATTACHED, "an alarm that is early changes nothing"


def test_what_is_due_is_taken_without_its_alarm() -> None:
    """As behind a pause of the process, when a request comes before the alarm."""
    at = world()
    at.driver.start()
    at.now_ms = at.alarms[-1] - 1
    at.driver.catch_up()
    assert at.node.role is Role.UNATTACHED
    at.now_ms += 1
    at.driver.catch_up()
    assert at.node.role is not Role.UNATTACHED
    at.driver.catch_up()
    assert at.alarms[-1] == at.node.next_deadline_ms() > at.now_ms


def test_time_alone_never_makes_a_busy_loop() -> None:
    at = world()
    at.driver.start()
    at.synced()
    end = at.now_ms + 60_000
    fired = 0
    while at.now_ms < end:
        deadline = at.alarms[-1]
        assert fired < 5_000, "the timer goes off again and again"
        at.now_ms = max(at.now_ms, deadline)
        at.driver.on_timer()
        at.synced()
        fired += 1


@pytest.mark.parametrize("role", ["follower", "leader"])
def test_an_alarm_never_lies_in_the_past_after_it_was_served(role: str) -> None:
    at = leading(world()) if role == "leader" else world()
    if role == "follower":
        at.driver.start()
    for _ in range(50):
        due = at.node.next_deadline_ms()
        assert due is not None
        at.now_ms = max(at.now_ms, due)
        at.driver.on_timer()
        at.synced()
        again = at.node.next_deadline_ms()
        assert again is None or again > at.now_ms or at.node.role is not Role.LEADER


def test_a_driver_that_has_stopped_does_nothing_more() -> None:
    at = leading(world())
    at.driver.stop()
    alarms = len(at.alarms)
    at.driver.handle(fetch(1, epoch=at.node.epoch))
    at.driver.handle(ResignationRequested(reason="late", shutting_down=False))
    at.driver.on_timer()
    at.synced()
    assert not at.take()
    assert len(at.alarms) == alarms


def test_a_log_shorter_than_what_was_committed_halts_the_node_before_anything_else() -> None:
    at = world(applied_offset=10)
    at.driver.start()
    (told,) = at.take()
    assert told[0] == "halt"
    assert "lost records" in told[1]


def test_the_disk_is_told_to_begin_once_an_event_has_been_served() -> None:
    at = world()
    at.driver.start()
    at.synced()
    before = at.flushes
    at.driver.handle(vote(1, epoch=2))
    assert at.flushes == before + 1


def test_a_replica_of_another_cluster_is_refused_and_not_kept_account_of() -> None:
    at = leading(world())
    foreign = FetchRequestReceived(
        8, "elsewhere", key(9), at.node.epoch, OffsetAndEpoch(0, 0), 0, -1
    )
    told = at.handle(foreign)
    (answered,) = [what[1] for what in told if isinstance(what, tuple) and what[0] == 8]
    assert answered.top_level_error == "INCONSISTENT_CLUSTER_ID"
    assert 9 not in [row.key.id for row in at.node.progress()]
