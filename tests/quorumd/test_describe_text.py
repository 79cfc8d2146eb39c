"""What `quorumctl describe` says where the leader knows little, and of node 0."""

from __future__ import annotations

import pytest

from quorumd.cli.describe import _pending, _silence, description_as_dict
from quorumd.cli.reassign_view import state_lines
from quorumd.client.description import PendingQuorumChange, QuorumDescription, ReplicaState
from quorumd.client.replicas import reassignment
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
