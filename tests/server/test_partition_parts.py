"""What a partition does by itself with news of its rules, its disk and its snapshots."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from quorumd.raft.effects import AnnounceHighWatermark, AnnounceRole
from quorumd.raft.errors import KafkaError
from quorumd.raft.events import ChunkNotStored, ResignationRequested, SnapshotVerified
from quorumd.raft.roles import Role
from quorumd.raft.types import SnapshotId
from quorumd.server.model.logs import RateLimit
from quorumd.server.model.metrics import Metrics
from quorumd.server.model.runtime import Runtime
from quorumd.server.partition.partition import (
    SLOW_WRITE_S,
    Partition,
)
from quorumd.storage.errors import DamagedLog, DamagedSnapshot
from quorumd.wire.error_codes import ErrorCode
from tests.server.produce_bench import Clock
from tests.server.test_conditional_produce import Bench, batch, to

# Compiled rooms take no stand-ins.
pytestmark = pytest.mark.pure

SNAPSHOT = SnapshotId(20, 1)


class Parts:
    """A partition of which there is only what is looked at here."""

    def __init__(self, **node: Any) -> None:
        self.clock = Clock()
        self.events: list[Any] = []
        self.failures: list[str] = []
        self.heard: list[str] = []
        self.noted: list[tuple[object, ...]] = []
        self.write_age_s = 0.0
        made = self.partition = object.__new__(Partition)
        values = {"is_leader": True, "append_refusal": None, "synced_end_offset": 10, **node}
        values.setdefault("log_end_offset", 11)
        made.node = cast(Any, SimpleNamespace(**values))
        made._runtime = cast(Runtime, self.clock)
        made.health = cast(
            Any, SimpleNamespace(is_disk_full=False, note_role=partial(self.note, "role"))
        )
        made.metrics = Metrics(self.clock.monotonic_s)
        made.driver = cast(Any, SimpleNamespace(handle=self.events.append))
        made._hooks = cast(
            Any,
            SimpleNamespace(
                fail=lambda reason, error: self.failures.append(reason),
                adopt_cluster_id=self._break,
                remember_removal=self._break,
            ),
        )
        made.view = cast(Any, SimpleNamespace(committed_offset=10))
        made.disk = cast(Any, SimpleNamespace(write_age_s=lambda: self.write_age_s))
        made.reader = cast(Any, SimpleNamespace(run=self._run))
        made.produce_handler = made.fetch_handler = cast(
            Any,
            SimpleNamespace(
                on_leadership_lost=lambda: self.heard.append("lost"),
                on_high_watermark=lambda: None,
                parked=SimpleNamespace(on_high_watermark=lambda offset: None),
            ),
        )
        made.producers = cast(Any, SimpleNamespace(commit=partial(self.note, "committed")))
        made.snapshots = cast(Any, SimpleNamespace(build_if_due=partial(self.note, "build")))
        made.outbound = cast(Any, SimpleNamespace(on_role=partial(self.note, "outbound")))
        made._registration = cast(Any, SimpleNamespace(on_role=partial(self.note, "register")))
        made._witness_lead = cast(Any, SimpleNamespace(on_role=partial(self.note, "lead")))
        made.progress = cast(Any, SimpleNamespace(set=lambda: None))
        made._role_lines = RateLimit(1 / 60, burst=2, clock=self.clock.monotonic_s)
        made._logged_at = None
        made._election_since = None
        made._is_draining = False

    def note(self, *what: object) -> None:
        self.noted.append(what)

    def _break(self, *_: object) -> None:
        raise OSError("Input/output error")

    def _run(self, action: Callable[[], Any], done: Callable[[Any], None]) -> None:
        outcome: Any
        try:
            outcome = action()
        except Exception as error:
            outcome = error
        done(outcome)

    def role(self, role: Role, *, epoch: int = 5, leader_id: int | None = None) -> None:
        self.partition.on_role(
            AnnounceRole(role=role, epoch=epoch, leader_id=leader_id, reason="a test")
        )

    def committed(self, offset: int) -> None:
        self.partition.view.committed_offset = offset
        self.partition.on_high_watermark(AnnounceHighWatermark(offset=offset))

    @property
    def resigned(self) -> int:
        return sum(isinstance(event, ResignationRequested) for event in self.events)


# -- a full disk


@pytest.mark.parametrize(
    ("synced_end", "log_end", "times"), [(9, 10, 1), (9, 11, 0), (10, 10, 0), (10, 11, 0)]
)
def test_who_leads_with_a_full_disk_stays_until_others_have_all_that_it_lacks(
    synced_end: int, log_end: int, times: int
) -> None:
    parts = Parts(synced_end_offset=synced_end, log_end_offset=log_end)
    parts.partition.on_disk_full(True)
    assert parts.resigned == times


def test_it_resigns_when_that_is_committed() -> None:
    parts = Parts(synced_end_offset=10, log_end_offset=12)
    parts.partition.on_disk_full(True)
    parts.committed(11)
    assert parts.resigned == 0
    parts.committed(12)
    assert parts.resigned == 1


def test_who_has_space_again_meanwhile_leads_on() -> None:
    parts = Parts(synced_end_offset=10)
    parts.partition.on_disk_full(True)
    parts.partition.on_disk_full(False)
    parts.committed(11)
    assert parts.resigned == 0


def test_who_only_follows_with_a_full_disk_gives_nothing_away() -> None:
    parts = Parts(is_leader=False, synced_end_offset=9)
    parts.partition.on_disk_full(True)
    parts.committed(11)
    assert parts.resigned == 0


# -- what cannot be read or stored


@pytest.mark.parametrize(("offset", "is_fatal"), [(9, True), (10, False), (11, False)])
def test_damage_below_what_is_committed_ends_the_process(offset: int, is_fatal: bool) -> None:
    parts = Parts()
    parts.partition.on_unreadable(DamagedLog("damaged", path=Path("log"), offset=offset))
    assert parts.failures == (["the log is damaged"] if is_fatal else [])


def test_a_snapshot_without_room_is_counted() -> None:
    parts = Parts()
    parts.partition.on_chunk_not_stored(SNAPSHOT, "the disk is full")
    assert parts.events == [ChunkNotStored(snapshot=SNAPSHOT, problem="the disk is full")]
    assert parts.partition.metrics.snapshots.copies_failed == 1


@pytest.mark.parametrize("is_damaged", [True, False])
def test_a_copy_that_is_damaged_is_counted_and_a_disk_that_fails_ends_the_process(
    is_damaged: bool,
) -> None:
    parts = Parts()

    def verify_part(snapshot: SnapshotId) -> None:
        if is_damaged:
            raise DamagedSnapshot("damaged", path=Path("part"), position=0)
        raise MemoryError

    parts.partition.store = cast(Any, SimpleNamespace(verify_part=verify_part))
    parts.partition.on_snapshot_copied(SNAPSHOT)
    assert parts.partition.metrics.snapshots.copies_failed == int(is_damaged)
    assert [type(event) for event in parts.events] == [SnapshotVerified] * is_damaged
    assert len(parts.failures) == int(not is_damaged)


def test_what_a_node_has_to_remember_and_cannot_ends_it() -> None:
    parts = Parts()
    parts.partition.on_cluster_id("c")
    parts.partition.on_removed()
    assert parts.failures == [
        "the cluster id could not be stored",
        "the removal could not be stored",
    ]


# -- roles


def test_an_election_is_measured_from_the_first_campaign_to_the_leader() -> None:
    parts = Parts()
    for now_s, role in ((1.0, Role.PROSPECTIVE), (2.0, Role.CANDIDATE), (4.0, Role.PROSPECTIVE)):
        parts.clock.now = now_s
        parts.role(role)
    parts.clock.now = 6.0
    parts.role(Role.FOLLOWER)
    assert parts.partition.metrics.election_stats.maximum() is None, "no leader is known"
    parts.role(Role.FOLLOWER, leader_id=2)
    assert parts.partition.metrics.election_stats.maximum() == 5.0
    assert parts.partition.metrics.elections["lost"] == 1
    parts.clock.now = 7.0
    parts.role(Role.FOLLOWER, epoch=6, leader_id=3)
    assert parts.partition.metrics.election_stats.maximum() == 5.0, "it did not campaign"
    assert parts.partition.metrics.elections["lost"] == 1


def test_what_is_committed_may_be_due_for_a_snapshot_and_is_not_taken_back() -> None:
    parts = Parts()
    parts.committed(11)
    assert parts.noted == [("committed", 11), ("build",)]


def test_at_the_end_everything_stops_that_goes_on_by_itself() -> None:
    parts, ended = Parts(), []
    names = ("_registration", "_witness_lead", "snapshots", "produce_handler", "fetch_handler")
    for name in names:
        closing = SimpleNamespace(close=partial(ended.append, name))
        setattr(parts.partition, name, cast(Any, closing))
    parts.partition.driver = cast(Any, SimpleNamespace(stop=partial(ended.append, "driver")))
    parts.partition._timer = cast(Any, SimpleNamespace(cancel=partial(ended.append, "_timer")))
    parts.partition.stop()
    assert ended[0] == "driver", "nothing that ends is an event any more"
    assert sorted(ended) == sorted(("driver", "_timer", *names))


def test_each_role_begins_its_time_anew() -> None:
    parts = Parts()
    for role in (Role.FOLLOWER, Role.LEADER):
        parts.role(role)
        assert sorted(parts.noted) == [("lead",), ("outbound",), ("register",), ("role",)]
        parts.noted.clear()


def test_a_line_is_written_for_each_epoch_and_leader_however_many_there_were(
    caplog: pytest.LogCaptureFixture,
) -> None:
    parts = Parts()
    with caplog.at_level("INFO"):
        for epoch in range(5):
            parts.role(Role.CANDIDATE, epoch=epoch)
        for _ in range(9):
            parts.role(Role.CANDIDATE, epoch=4)
    assert 5 < len(caplog.records) < 9
    caplog.clear()
    with caplog.at_level("INFO"):
        for age_s in (SLOW_WRITE_S - 0.1, SLOW_WRITE_S):
            parts.write_age_s = age_s
            parts.role(Role.FOLLOWER, epoch=9, leader_id=int(age_s))
    quick, slow = (record.__dict__["quorumd_fields"] for record in caplog.records)
    assert "disk_silent_s" not in quick
    assert slow["disk_silent_s"] == SLOW_WRITE_S


def test_nothing_is_appended_where_that_is_no_use() -> None:
    parts = Parts()
    assert parts.partition.append_refusal is None
    parts.partition._is_draining = True
    refusal = parts.partition.append_refusal
    assert refusal is not None
    assert refusal.error is KafkaError.NOT_LEADER_OR_FOLLOWER
    parts.partition.health.is_disk_full = True
    refusal = parts.partition.append_refusal
    assert refusal is not None
    assert refusal.error is KafkaError.KAFKA_STORAGE_ERROR


def test_a_sync_that_took_no_time_is_one() -> None:
    parts = Parts()
    driver = SimpleNamespace(on_writes_completed=lambda write: None)
    parts.partition.driver = cast(Any, driver)
    for sync_s in (0.0, None, 0.5):
        parts.partition.on_writes_completed(1, sync_s)
    assert parts.partition.metrics.fsync_seconds.buckets()[-1][1] == 2


def test_a_condition_is_refused_once_a_deposed_leader_would_have_resigned() -> None:
    """Twice the time in which it hears its voters, for what it heard may be half as old as that."""
    parts, at = Parts(), Bench(log_end_offset=8, committed_offset=8)
    made = parts.partition
    made.view, made.producers = cast(Any, at.partition), at.producers
    made._runtime, made.log = cast(Runtime, at.clock), cast(Any, None)
    made._call_soon = at.soon.append  # a loop that is turned by hand
    made.disk = cast(Any, SimpleNamespace(flush=None))
    raft = SimpleNamespace(fetch_timeout_ms=500)
    settings = SimpleNamespace(raft=raft, max_batch_bytes=1 << 20, condition_window_bytes=1 << 20)
    made._make_client_handlers(cast(Any, settings), cast(Any, SimpleNamespace(facts=())))
    at.handler = at.partition.produce = made.produce_handler
    at.append(to(batch(b"a", since=9)))
    at.clock.move_to(1.4)
    assert at.texts() == []
    at.clock.move_to(1.5)
    assert [code for _, code, _, _ in at.texts()] == [ErrorCode.INVALID_RECORD]


def test_what_the_rules_remark_is_shown_and_each_time_counted() -> None:
    parts = Parts()
    parts.partition._report_lines = RateLimit(1, burst=1, clock=parts.clock.monotonic_s)
    for remark in ("the first", "the second"):
        parts.partition.on_report(remark)
    assert parts.partition.health.last_report == "the second"
    assert parts.partition.metrics.ignored == {"by the rules": 2}


@pytest.mark.parametrize("role", Role)
def test_who_waits_for_a_leader_hears_of_each_role_that_is_another(role: Role) -> None:
    """Producers and consumers both."""
    parts = Parts()
    for handler in ("produce_handler", "fetch_handler"):
        told = SimpleNamespace(on_leadership_lost=partial(parts.heard.append, handler))
        setattr(parts.partition, handler, told)
    parts.role(role)
    heard = [] if role is Role.LEADER else ["produce_handler", "fetch_handler"]
    assert parts.heard == heard
