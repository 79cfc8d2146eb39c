"""What the view makes of figures of the rules: what is not known, and what was at the very beginning."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from quorumd.raft.config import OBSERVER_FORGOTTEN_MS
from quorumd.raft.node import RaftNode
from quorumd.raft.roles import Role
from quorumd.raft.status import DownloadProgress, PendingVoterChange, ReplicaProgress
from quorumd.raft.types import ReplicaKey, SnapshotId
from quorumd.server.model.kafka_drift import KafkaDrift
from quorumd.server.model.metrics import Metrics
from quorumd.server.model.runtime import Runtime
from quorumd.server.model.topic import METADATA
from quorumd.server.partition.raft_view import RaftPartitionView
from quorumd.server.partition.runtime_timer import RuntimeTimer
from tests.raft.harness import keyed_set, voter_set
from tests.server.produce_bench import Clock

# Compiled rooms take no stand-ins.
pytestmark = pytest.mark.pure

FETCH_TIMEOUT_MS = 2000
WALL_MS = 1_700_000_000_000


def key(replica_id: int) -> ReplicaKey:
    return ReplicaKey(replica_id, UUID(int=replica_id))


def row(replica_id: int, fetched_ms: int | None, *, is_voter: bool = True) -> ReplicaProgress:
    return ReplicaProgress(
        key=key(replica_id),
        is_voter=is_voter,
        end_offset=7,
        last_fetch_ms=fetched_ms,
        last_caught_up_ms=fetched_ms,
    )


def view_of(*rows: ReplicaProgress, now_ms: int = 1000, **fields: Any) -> RaftPartitionView:
    """Of node 1, which leads unless `fields`, of the node or its status, say something else."""
    config = SimpleNamespace(fetch_timeout_ms=FETCH_TIMEOUT_MS, is_witness=fields.get("is_witness"))
    values = {
        "is_leader": True,
        "role": Role.LEADER,
        "high_watermark": 40,
        "snapshot_download": None,
        "config": config,
        **fields,
    }
    node = SimpleNamespace(
        **values,
        status=lambda: SimpleNamespace(**values),
        progress=lambda: rows,
        is_local=lambda asked: asked == key(1),
    )
    drift = KafkaDrift(Metrics())
    if fields.get("has_obstacles"):
        drift.note_records((), [("metadata.version", 99)])
        assert drift.obstacles
    rules = cast(RaftNode, node)
    return RaftPartitionView(METADATA, rules, drift, lambda: now_ms, lambda: WALL_MS, lambda: 0.0)


@pytest.mark.parametrize(
    ("position", "size_bytes", "ratio"), [(0, None, 0.0), (0, 200, 0.0), (50, 200, 0.25)]
)
def test_a_copy_has_come_as_far_as_is_known(
    position: int, size_bytes: int | None, ratio: float
) -> None:
    progress = DownloadProgress(snapshot=SnapshotId(9, 1), position=position, size_bytes=size_bytes)
    assert view_of(snapshot_download=progress).snapshot_copy_ratio == ratio
    assert view_of().snapshot_copy_ratio == -1.0


@pytest.mark.parametrize(("offset", "version", "since"), [(-1, 0, -1), (0, 1, 40), (9, 1, 40)])
def test_the_log_names_the_voters_from_its_first_offset_on(
    offset: int, version: int, since: int
) -> None:
    view = view_of(voters_offset=offset)
    assert (view.kraft_version, view.kraft_version_offset) == (version, since)


def test_a_leader_alone_has_committed_something_in_its_epoch() -> None:
    assert view_of().has_committed_in_epoch
    assert not view_of(high_watermark=None).has_committed_in_epoch
    assert not view_of(is_leader=False).has_committed_in_epoch


def test_who_has_never_fetched_is_not_in_sync_though_the_clock_has_just_begun() -> None:
    rows = (row(1, None), row(2, None), row(3, 1), row(4, 1, is_voter=False))
    assert view_of(*rows).in_sync_ids() == (1, 3)
    assert view_of(*rows, now_ms=FETCH_TIMEOUT_MS + 1).in_sync_ids() == (1, 3)
    assert view_of(*rows, now_ms=FETCH_TIMEOUT_MS + 2).in_sync_ids() == (1,)


def test_an_observer_that_fetches_no_more_is_forgotten() -> None:
    rows = (row(4, 10, is_voter=False), row(5, None, is_voter=False), row(2, 10))
    for now_ms, known in ((OBSERVER_FORGOTTEN_MS + 10, [4]), (OBSERVER_FORGOTTEN_MS + 11, [])):
        shown = view_of(*rows, now_ms=now_ms).observer_statuses()
        assert [status.key.id for status in shown] == known


def test_times_are_shown_by_the_wall_clock_from_the_first_on() -> None:
    rows = row(1, None), row(2, 0), row(3, None), row(4, 400)
    own, first, never, later = view_of(*rows).voter_statuses()
    assert (own.last_fetch_ms, own.last_caught_up_ms) == (WALL_MS, WALL_MS)
    assert (first.last_fetch_ms, first.last_caught_up_ms) == (WALL_MS - 1000, WALL_MS - 1000)
    assert (never.last_fetch_ms, never.last_caught_up_ms) == (-1, -1)
    assert (later.last_fetch_ms, later.last_caught_up_ms) == (WALL_MS - 600, WALL_MS - 600)


def test_a_change_that_was_asked_for_at_the_very_beginning_waits_since_then() -> None:
    changes = tuple(
        PendingVoterChange(kind="add", key=None, asked_at_ms=at_ms, waits_for="")
        for at_ms in (0, None)
    )
    shown = view_of(pending_changes=changes).pending_changes()
    assert [change.waiting_ms for change in shown] == [1000, -1]


@pytest.mark.parametrize(
    ("is_witness", "role", "has_obstacles", "offers"),
    [
        (True, Role.FOLLOWER, True, True),
        (True, Role.OBSERVER, False, True),
        (True, Role.OBSERVER, True, False),
        (False, Role.OBSERVER, False, False),
    ],
)
def test_a_witness_offers_its_vote_unless_it_has_none_and_could_not_keep_its_promise(
    is_witness: bool, role: Role, has_obstacles: bool, offers: bool
) -> None:
    view = view_of(is_witness=is_witness, role=role, has_obstacles=has_obstacles)
    assert view.offers_vote == offers


@pytest.mark.parametrize(
    ("now", "adding", "removing"),
    [((1, 2), False, True), ((1, 2, 3), False, False), ((1, 2, 3, 4), True, False)],
)
def test_a_change_of_the_voters_is_under_way_until_it_is_committed(
    now: tuple[int, ...], adding: bool, removing: bool
) -> None:
    committed = voter_set(1, 2, 3)
    voters = keyed_set(*(key(replica_id) for replica_id in now))
    view = view_of(voters=voters, committed_voters=committed, pending_changes=())
    assert (view.is_adding_voter, view.is_removing_voter) == (adding, removing)


def test_a_timer_that_is_set_again_goes_off_once() -> None:
    clock, fired = Clock(), list[float]()
    timer = RuntimeTimer(cast(Runtime, clock), lambda: fired.append(clock.now))
    timer.set(1000)
    timer.set(2000)
    for now_s in (1.0, 2.0, 3.0):
        clock.move_to(now_s)
    assert fired == [2.0]


@pytest.mark.parametrize("kind", ["add", "remove", "reassign", "transfer"])
def test_a_change_that_waits_is_under_way(kind: str) -> None:
    voters = keyed_set(key(1), key(2))
    change = PendingVoterChange(kind=kind, key=key(3), asked_at_ms=0, waits_for="")
    view = view_of(voters=voters, committed_voters=voters, pending_changes=(change,))
    assert (view.is_adding_voter, view.is_removing_voter) == (kind == "add", kind == "remove")
