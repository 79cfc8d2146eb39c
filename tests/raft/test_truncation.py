"""A replica gives up records while writes of them are still under way."""

from __future__ import annotations

import pytest

from quorumd.raft.config import StoredState
from quorumd.raft.control import VotersRecord
from quorumd.raft.core import Core
from quorumd.raft.effects import (
    AnnounceHighWatermark,
    AnnounceVoters,
    Fetch,
    PersistRemoval,
    ResetLog,
)
from quorumd.raft.events import WriteCompleted
from quorumd.raft.invariants import InvariantViolation
from quorumd.raft.truncation import refuse_to_drop, reset_log, truncate
from quorumd.raft.types import SnapshotId, VoterSet
from tests.raft.harness import CLUSTER, Bench, follower, key, log_of, voter_set


def reset_to(core: Core, offset: int, *ids: int) -> list[type]:
    """Go on behind a snapshot that names these voters; returns the kinds of effects, in order."""
    core.effects.clear()
    reset_log(core, SnapshotId(offset, 3), VotersRecord(voter_set(*ids), CLUSTER))
    return [type(effect) for effect in core.effects]


def with_unsynced() -> tuple[Bench, int]:
    """A follower with a log up to 5, synced up to 3, and the number of the write of the rest."""
    bench = follower()
    bench.fetched(epochs=(3, 3))
    core = bench.node.core
    assert (core.log.synced_end_offset, core.log.end_offset) == (3, 5)
    return bench, core.writes.last


def test_a_write_of_what_was_cut_meanwhile_syncs_only_what_is_left() -> None:
    bench, write = with_unsynced()
    truncate(bench.node.core, 4)
    bench.step(WriteCompleted(write))
    assert bench.node.core.log.synced_end_offset == 4


def test_a_write_from_before_a_reset_syncs_nothing_else() -> None:
    bench, write = with_unsynced()
    reset_to(bench.node.core, 10, 1, 2, 3)
    bench.step(WriteCompleted(write))
    assert bench.node.core.log.synced_end_offset == 10


def test_what_is_committed_is_neither_cut_nor_reset() -> None:
    core = follower().node.core
    assert core.kept_offset == 2
    with pytest.raises(InvariantViolation, match="below the committed offset"):
        truncate(core, 1)
    with pytest.raises(InvariantViolation, match="below the committed offset"):
        reset_to(core, 1, 1, 2, 3)
    truncate(core, 2)
    assert core.log.end_offset == 2
    reset_to(core, 2, 1, 2, 3)
    assert core.log.start_offset == 2


def test_a_log_that_holds_all_of_a_snapshot_is_not_reset_to_it() -> None:
    bench = follower()
    bench.fetched(epochs=(3, 3))
    with pytest.raises(InvariantViolation, match="the log holds all of snapshot"):
        reset_to(bench.node.core, 4, 1, 2, 3)


def test_the_log_is_reset_before_its_voters_are_announced_and_these_before_the_commit() -> None:
    kinds = reset_to(follower().node.core, 10, 1, 2)
    news = [kind for kind in kinds if kind in (ResetLog, AnnounceVoters, AnnounceHighWatermark)]
    assert news == [ResetLog, AnnounceVoters, AnnounceHighWatermark]


def test_a_leader_that_demands_what_is_committed_is_not_asked_again_at_once() -> None:
    bench = follower()
    core = bench.node.core
    asked = bench.outstanding(Fetch)
    request = core.take(asked.request_id)
    assert request is not None
    assert core.can_send(asked.to, Fetch)
    refuse_to_drop(core, request, "wants it back")
    assert not core.can_send(asked.to, Fetch)
    assert "wants it back" in str(core.problem)


@pytest.mark.parametrize(
    ("local", "was_removed", "ids", "removals"),
    [(1, False, (2, 3), 1), (1, False, (1, 2), 0), (1, True, (2, 3), 0), (9, False, (2, 3), 0)],
)
def test_a_snapshot_tells_a_voter_that_it_was_removed(
    local: int, was_removed: bool, ids: tuple[int, ...], removals: int
) -> None:
    bench = follower(
        local=key(local), configured_voters=VoterSet(), contact=False, was_removed=was_removed
    )
    core = bench.node.core
    assert reset_to(core, 10, *ids).count(PersistRemoval) == removals
    assert core.was_removed is (was_removed or removals > 0)


def test_a_removal_that_was_not_committed_is_none() -> None:
    log = log_of(1, 1, 2, voters=voter_set(2, 3))
    core = follower(log=log, stored=StoredState(epoch=3, applied_offset=2)).node.core
    core.log.add_voters(2, VotersRecord(voter_set(1, 2, 3), CLUSTER))
    assert PersistRemoval not in reset_to(core, 10, 2, 3)
