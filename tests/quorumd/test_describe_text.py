"""What `quorumctl describe` says where the leader knows little, and of node 0."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from quorumd.cli.describe import _pending, _silence, description_as_dict
from quorumd.cli.reassign_view import state_lines
from quorumd.client.description import PendingQuorumChange, QuorumDescription, ReplicaState
from quorumd.client.replicas import age_text, reassignment
from quorumd.raft.types import ReplicaKey


def replica(replica_id: int, fetched_ms: int) -> ReplicaState:
    return ReplicaState(
        key=ReplicaKey(replica_id), log_end_offset=5, last_fetch_timestamp_ms=fetched_ms
    )


def described(*voters: ReplicaState, **more: object) -> QuorumDescription:
    return QuorumDescription(
        cluster_id="c",
        leader_id=1,
        leader_epoch=3,
        high_watermark=5,
        voters=voters,
        **more,  # type: ignore[arg-type] # each has a type of its own
    )


@pytest.mark.parametrize(
    ("led_ms", "fetched_ms", "is_told"),
    [(-1, -1, False), (50_000, -1, True), (50_000, 40_000, True), (50_000, 49_000, False)],
)
def test_nothing_is_said_of_silence_where_servers_tell_no_times(
    led_ms: int, fetched_ms: int, is_told: bool
) -> None:
    other = replica(2, fetched_ms)
    assert bool(_silence(described(replica(1, led_ms), other), other)) == is_told


@pytest.mark.parametrize(
    ("replica_id", "waiting_ms", "text", "told"),
    [
        (0, 0, "add 0, for 0.0 s: it is behind", (0, 0)),
        (2, 12_000, "add 2, for 12 s: it is behind", (2, 12_000)),
        (-1, -1, "add: it is behind", (None, None)),
    ],
)
def test_a_change_names_its_replica_and_its_time_if_there_are_any(
    replica_id: int, waiting_ms: int, text: str, told: tuple[int | None, int | None]
) -> None:
    change = PendingQuorumChange(
        kind="add", key=ReplicaKey(replica_id), waiting_ms=waiting_ms, waits_for="it is behind"
    )
    assert _pending(change) == text
    (row,) = description_as_dict(described(pending_changes=(change,)))["pending_changes"]
    assert (row["replica_id"], row["waiting_ms"]) == told


@pytest.mark.parametrize(
    ("since_ms", "words"),
    [(-1, "nothing"), (0, "nothing, for 0.0 s"), (65_000, "nothing, for 65 s")],
)
def test_how_long_a_reassignment_has_waited_is_told_if_it_is_known(
    since_ms: int, words: str
) -> None:
    quorum = described(replica(1, 0), target_voters=(1, 2))
    under_way = reassignment(quorum)
    assert under_way is not None
    assert f"WaitsFor:   {words}" in state_lines(quorum, under_way, since_ms)


@pytest.mark.parametrize("is_first", [True, False])
def test_of_two_disks_that_observe_under_an_id_the_one_that_fetched_last_is_coming(
    is_first: bool,
) -> None:
    disks = [
        replace(replica(2, fetched_ms), key=ReplicaKey(2, UUID(int=fetched_ms)))
        for fetched_ms in (40_000, 49_000)
    ]
    observers = tuple(disks if is_first else reversed(disks))
    found = reassignment(described(replica(1, 50_000), observers=observers, target_voters=(1, 2)))
    assert found is not None
    assert found.adding == ((2, disks[1]),)


@pytest.mark.parametrize(
    ("silent_ms", "text"),
    [
        (-1, "has not fetched from this leader"),
        (0, "fetched 0 ms ago"),
        (9_999, "fetched 9999 ms ago"),
        (10_000, "fetched 10 s ago"),
    ],
)
def test_when_a_replica_fetched_is_told_in_the_unit_that_suits_it(
    silent_ms: int, text: str
) -> None:
    assert age_text(silent_ms) == text


@pytest.mark.parametrize(
    ("caught_up_ms", "leader_ms", "lag_ms"),
    [(400, 1000, 600), (1000, 400, 0), (-1, 1000, -1), (400, -1, -1), (-1, -1, -1)],
)
def test_since_when_a_replica_lags_is_not_known_where_either_was_never_caught_up(
    caught_up_ms: int, leader_ms: int, lag_ms: int
) -> None:
    leader, other = (
        replace(replica(number, 1), last_caught_up_timestamp_ms=at_ms)
        for number, at_ms in ((1, leader_ms), (2, caught_up_ms))
    )
    quorum = described(leader, other)
    assert (quorum.lag_time_ms(leader), quorum.lag_time_ms(other)) == (0, lag_ms)
    assert quorum.max_follower_lag_time_ms == lag_ms
