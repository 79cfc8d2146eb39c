"""The driver's order, with rules that ask for whatever a test wants: durable before visible."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, cast, get_args

import pytest

from quorumd.raft.effects import (
    AdoptClusterId,
    AnnounceHighWatermark,
    AnnounceRole,
    AnnounceVoters,
    AppendClient,
    AppendControl,
    AppendFetched,
    CancelHeldRequests,
    DeleteLogPrefix,
    DropSnapshot,
    Effect,
    Fetch,
    Halt,
    PersistQuorumState,
    PersistRemoval,
    Reply,
    Report,
    ResetLog,
    SendReply,
    SendRequest,
    StoreSnapshotChunk,
    TruncateLog,
    VerifySnapshot,
    Vote,
)
from quorumd.raft.events import Event, TimerFired, WriteCompleted
from quorumd.raft.node import RaftNode
from quorumd.raft.roles import Role
from quorumd.raft.types import OffsetAndEpoch, SnapshotId
from quorumd.server.partition.driver import Driver
from tests.raft.harness import key, voter_set

# The rules are scripted here, and a compiled driver takes none but its own.
pytestmark = pytest.mark.pure

SNAPSHOT = SnapshotId(40, 3)


class ScriptedRules:
    """Asks for what the test has put down for each event, by its number; else for nothing."""

    def __init__(self) -> None:
        self.script: deque[Sequence[Effect]] = deque()
        self.events: list[Any] = []
        self.deadline_ms: int | None = 1_000

    def start(self, now_ms: int) -> list[Effect]:
        return self.step("start", now_ms)

    def step(self, event: Any, now_ms: int) -> list[Effect]:
        self.events.append((event, now_ms))
        return list(self.script.popleft()) if self.script else []

    def next_deadline_ms(self) -> int | None:
        return self.deadline_ms


class Surroundings:
    """Disk, peers, clients, listener and clock: what each was told, in one journal."""

    def __init__(self) -> None:
        self.rules = ScriptedRules()
        self.journal: list[Any] = []
        self.alarms: list[int] = []
        self.now_ms = 0
        self.react: Callable[[Any], None] = lambda what: None
        self.driver = Driver(
            cast(RaftNode, self.rules),
            cast(Any, self),
            self.note,
            lambda effect: self.note(("reply", effect.reply_to)),
            cast(Any, self),
            self,
            lambda: self.now_ms,
        )

    def note(self, what: Any) -> None:
        self.journal.append(what)
        self.react(what)

    append_control = append_client = append_fetched = truncate = persist = note
    store_chunk = drop_chunks = reset = delete_prefix = on_role = on_voters = note

    def flush(self) -> None:
        self.note("flush")

    def on_high_watermark(self, effect: AnnounceHighWatermark) -> None:
        self.note(("committed", effect.offset))

    def on_cluster_id(self, cluster_id: str) -> None:
        self.note(("cluster id", cluster_id))

    def on_removed(self) -> None:
        self.note("removed")

    def on_snapshot_copied(self, snapshot: SnapshotId) -> None:
        self.note(("copied", snapshot))

    def on_report(self, reason: str) -> None:
        self.note(("report", reason))

    def on_halt(self, reason: str) -> None:
        self.note(("halt", reason))

    def set(self, deadline_ms: int) -> None:
        self.alarms.append(deadline_ms)

    # what tests do

    def on(self, *effects: Effect) -> list[Any]:
        """An event for which the rules ask for this; returns what was told, without the flush."""
        self.rules.script.append(effects)
        self.driver.handle(TimerFired())
        return self.told()

    def told(self) -> list[Any]:
        told, self.journal = self.journal, []
        return [what for what in told if what != "flush"]

    def written(self, write: int, *effects: Effect) -> list[Any]:
        """Writes up to this one are on disk; the rules ask for that then."""
        self.rules.script.append(effects)
        self.driver.on_writes_completed(write)
        return self.told()


@pytest.fixture
def at() -> Surroundings:
    surroundings = Surroundings()
    surroundings.driver.start()
    surroundings.told()
    return surroundings


def request(request_id: int, after: int) -> SendRequest:
    fetch = Fetch(epoch=2, position=OffsetAndEpoch(7, 2), high_watermark=5)
    return SendRequest(request_id=request_id, to=key(2), request=fetch, after=after)


def reply(reply_to: int, after: int) -> SendReply:
    answer = Reply(epoch=2, leader_id=1, leader_endpoints=())
    return SendReply(reply_to=reply_to, reply=answer, after=after)


def persist(write: int) -> PersistQuorumState:
    return PersistQuorumState(write=write, epoch=2, leader=None, voted=key(1), applied_offset=0)


ROLE = AnnounceRole(role=Role.FOLLOWER, epoch=2, leader_id=2, reason="a test")
VOTERS = AnnounceVoters(voters=voter_set(1, 2))
NOT_HELD: tuple[tuple[Effect, Any], ...] = (
    (persist(1), persist(1)),
    *(
        (effect, effect)
        for effect in (
            TruncateLog(write=2, end_offset=3),
            AppendFetched(write=3, token=1, base_offset=3, end_offset=5),
            AppendControl(write=4, base_offset=5, epoch=2, records=()),
            AppendClient(write=5, base_offset=6, epoch=2, token=2),
            StoreSnapshotChunk(write=6, snapshot=SNAPSHOT, position=0, token=3),
            DropSnapshot(write=7, snapshot=SNAPSHOT),
            ResetLog(write=8, snapshot=SNAPSHOT),
            DeleteLogPrefix(write=9, start_offset=2, snapshots=()),
            ROLE,
            VOTERS,
        )
    ),
    (AnnounceHighWatermark(offset=6), ("committed", 6)),
    (AdoptClusterId(cluster_id="a"), ("cluster id", "a")),
    (PersistRemoval(), "removed"),
    (Report(reason="r"), ("report", "r")),
    (Halt(reason="h"), ("halt", "h")),
)
HELD: tuple[tuple[Callable[[int], Effect], Any], ...] = (
    (lambda after: request(1, after), request(1, 4)),
    (lambda after: reply(1, after), ("reply", 1)),
    (lambda after: VerifySnapshot(snapshot=SNAPSHOT, after=after), ("copied", SNAPSHOT)),
)


def test_every_effect_is_either_held_or_carried_out_at_once() -> None:
    held = {type(make(1)) for make, _ in HELD}
    at_once = {type(effect) for effect, _ in NOT_HELD}
    assert held | at_once | {CancelHeldRequests} == set(get_args(Effect))
    # What names a write waits for it, and nothing else does.
    for kind in get_args(Effect):
        assert ("after" in [each.name for each in fields(kind)]) == (kind in held)


@pytest.mark.parametrize("is_reversed", [False, True])
def test_effects_are_carried_out_one_by_one_in_the_order_of_the_rules(
    at: Surroundings, is_reversed: bool
) -> None:
    pairs = [*NOT_HELD, (reply(5, 0), ("reply", 5)), (request(6, 0), request(6, 0))]
    if is_reversed:
        pairs.reverse()
    assert at.on(*[effect for effect, _ in pairs]) == [told for _, told in pairs]


@pytest.mark.parametrize(("make", "told"), HELD)
def test_what_names_a_write_leaves_when_that_write_is_on_disk_and_not_before(
    at: Surroundings, make: Callable[[int], Effect], told: Any
) -> None:
    assert at.on(persist(3), persist(4), make(4)) == [persist(3), persist(4)]
    assert at.written(3) == []
    assert at.on() == []
    assert at.written(4) == [told]
    assert at.written(5) == []


@pytest.mark.parametrize(("make", "told"), HELD)
@pytest.mark.parametrize("after", [0, 3, 4])
def test_what_names_a_write_that_is_on_disk_leaves_at_once(
    at: Surroundings, make: Callable[[int], Effect], told: Any, after: int
) -> None:
    at.written(4)
    ((what),) = at.on(make(after))
    assert what == (told if not isinstance(told, SendRequest) else request(1, after))


def test_of_what_is_held_each_leaves_with_its_own_write_in_the_order_it_was_asked_for(
    at: Surroundings,
) -> None:
    at.on(reply(1, 2), request(2, 1), reply(3, 3), VerifySnapshot(snapshot=SNAPSHOT, after=2))
    at.on(reply(4, 2))
    assert at.written(1) == [request(2, 1)]
    assert at.written(2) == [("reply", 1), ("copied", SNAPSHOT), ("reply", 4)]
    assert at.written(3) == [("reply", 3)]


def test_a_saved_state_lets_go_what_waits_for_no_records(at: Surroundings) -> None:
    vote = SendRequest(5, key(3), Vote(epoch=2, last=OffsetAndEpoch(7, 2), pre_vote=False), 4)
    snapshot = VerifySnapshot(snapshot=SNAPSHOT, after=4)
    at.on(reply(1, 3), request(2, 4), reply(3, 4), vote, snapshot, reply(4, 5))
    at.driver.on_state_saved(4)
    assert at.told() == [("reply", 1), ("reply", 3), vote]
    assert not any(isinstance(event, WriteCompleted) for event, _ in at.rules.events)
    assert at.on(reply(6, 4), request(7, 4)) == [("reply", 6)], "nor what is asked for later"
    assert at.written(4) == [request(2, 4), ("copied", SNAPSHOT), request(7, 4)]
    assert at.written(5) == [("reply", 4)]


def test_one_completion_stands_for_all_writes_below(at: Surroundings) -> None:
    at.on(reply(1, 5), reply(2, 3), reply(3, 7))
    assert at.written(6) == [("reply", 1), ("reply", 2)]


def test_what_was_held_leaves_before_the_rules_hear_that_the_write_is_done(
    at: Surroundings,
) -> None:
    """An answer that was given first reaches its connection first."""
    at.on(reply(1, 1), reply(2, 1))
    before = len(at.rules.events)
    heard: list[int] = []
    at.react = lambda what: heard.append(len(at.rules.events) - before)
    assert at.written(1, reply(3, 1), AnnounceHighWatermark(offset=9)) == [
        ("reply", 1),
        ("reply", 2),
        ("reply", 3),
        ("committed", 9),
    ]
    assert heard == [0, 0, 1, 1, 1]
    assert at.rules.events[-1][0] == WriteCompleted(1)


def test_requests_that_are_void_are_never_sent_answers_and_later_requests_are(
    at: Surroundings,
) -> None:
    at.on(request(1, 1), reply(2, 1), VerifySnapshot(snapshot=SNAPSHOT, after=1), request(3, 0))
    at.on(persist(2), CancelHeldRequests(), request(4, 2))
    assert at.written(1) == [("reply", 2), ("copied", SNAPSHOT)]
    assert at.written(2) == [request(4, 2)]


@pytest.mark.parametrize("is_release", [False, True])
def test_an_event_waits_for_all_effects_before_it_also_for_those_that_were_held(
    at: Surroundings, is_release: bool
) -> None:
    """It would be decided on before what was asked for is done: a request that its effects
    make void would still be sent."""

    def react(what: Any) -> None:
        if what == ("reply", 1):
            at.driver.handle(TimerFired())

    at.react = react
    if is_release:
        at.on(reply(1, 1), request(2, 1))
        at.rules.script.extend([[Report(reason="written")], [Report(reason="fired")]])
        at.driver.on_writes_completed(1)
        expected = [("reply", 1), request(2, 1), ("report", "written"), ("report", "fired")]
    else:
        at.rules.script.extend([[reply(1, 0), request(2, 0)], [Report(reason="fired")]])
        at.driver.handle(TimerFired())
        expected = [("reply", 1), request(2, 0), ("report", "fired")]
    assert at.journal[-1] == "flush"
    assert at.told() == expected


def test_events_that_wait_are_served_in_their_order_and_then_the_disk_begins(
    at: Surroundings,
) -> None:
    first, second, third = WriteCompleted(1), WriteCompleted(2), WriteCompleted(3)
    waiting: list[Event] = [second, third]

    def react(what: Any) -> None:
        while what == "removed" and waiting:
            at.driver.handle(waiting.pop(0))

    at.react = react
    before = len(at.rules.events)
    at.rules.script.extend([[PersistRemoval(), persist(1)], [persist(2)], [persist(3)]])
    at.driver.handle(first)
    assert [event for event, _ in at.rules.events[before:]] == [first, second, third]
    assert at.journal == ["removed", persist(1), persist(2), persist(3), "flush"]


@pytest.mark.parametrize("is_early", [False, True])
def test_a_driver_that_is_stopped_in_the_middle_of_a_step_takes_no_event_any_more(
    at: Surroundings, is_early: bool
) -> None:
    def react(what: Any) -> None:
        if what == ("halt", "h"):
            if is_early:
                at.driver.handle(TimerFired())
            at.driver.stop()
            at.driver.handle(TimerFired())

    at.react = react
    before = len(at.rules.events)
    assert at.on(Halt(reason="h")) == [("halt", "h")]
    assert len(at.rules.events) == before + 1


def test_events_wait_for_the_start_and_are_served_behind_it() -> None:
    at = Surroundings()
    at.driver.hold()
    assert at.on(Report(reason="start")) == []
    at.rules.script.append([Report(reason="event")])
    at.driver.start()
    assert at.told() == [("report", "start"), ("report", "event")]
    assert [event for event, _ in at.rules.events] == ["start", TimerFired()]
    assert at.alarms == [1_000]


def test_a_driver_of_rules_that_run_already_needs_no_start() -> None:
    """The explorer of all interleavings makes one for every state."""
    at = Surroundings()
    assert at.on(Report(reason="event")) == [("report", "event")]
    assert [event for event, _ in at.rules.events] == [TimerFired()]


def test_the_rules_are_told_the_time_of_the_clock(at: Surroundings) -> None:
    at.now_ms = 77
    at.on()
    assert at.rules.events[-1] == (TimerFired(), 77)


# --- the alarm


def test_an_alarm_is_set_again_only_for_an_earlier_deadline(at: Surroundings) -> None:
    assert at.alarms == [1_000]
    for deadline_ms in (1_000, 1_500, 999, 999, None, 2_000, 500):
        at.rules.deadline_ms = deadline_ms
        at.on()
    assert at.alarms == [1_000, 999, 500]


@pytest.mark.parametrize(("now_ms", "fired"), [(999, 0), (1_000, 1), (1_001, 1)])
def test_the_rules_hear_of_an_alarm_that_is_due_and_of_no_other(
    at: Surroundings, now_ms: int, fired: int
) -> None:
    before, at.now_ms = len(at.rules.events), now_ms
    at.driver.on_timer()
    assert [event for event, _ in at.rules.events[before:]] == [TimerFired()] * fired
    assert at.alarms == [1_000, 1_000], "it went off, so it has to be set again"


def test_an_alarm_that_moved_while_it_ran_is_set_for_the_later_time(at: Surroundings) -> None:
    at.rules.deadline_ms = 1_500
    at.now_ms = 1_000
    at.driver.on_timer()
    assert at.alarms == [1_000, 1_500]


def test_without_a_deadline_no_alarm_is_set(at: Surroundings) -> None:
    at.rules.deadline_ms = None
    before = len(at.rules.events)
    at.driver.on_timer()
    at.on()
    assert at.alarms == [1_000]
    assert len(at.rules.events) == before + 1
