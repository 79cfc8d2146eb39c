"""What a node says of its own health: from what its rules, its links and its snapshots know."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from quorumd.raft.events import LeaderHint
from quorumd.raft.node import RaftNode
from quorumd.raft.roles import Role
from quorumd.raft.types import Address, ReplicaKey, VoterSet
from quorumd.server.model.partition_view import ReplicaStatus
from quorumd.server.partition.health import DISK_SILENT_S, PartitionHealth
from quorumd.server.peers.peer_links import PeerLinks
from quorumd.server.snapshots.manager import SnapshotManager
from tests.raft.harness import (
    Bench,
    follower,
    keyed_set,
    leader,
    observer,
    resigned,
    unattached,
)
from tests.support.cluster import FixedView, voter

AT_4 = Address("host4", 9093)


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def health_of(
    bench: Bench,
    links: PeerLinks | None = None,
    clock: Clock | None = None,
    log_damage: str = "",
    **view: Any,
) -> PartitionHealth:
    snapshots = SimpleNamespace(is_limited_in_vain=False, log_damage=log_damage, status=dict)
    return PartitionHealth(
        bench.node,
        FixedView(**view),
        cast(SnapshotManager, snapshots),
        links or PeerLinks(),
        clock or Clock(),
    )


def test_without_a_leader_those_count_as_up_that_nothing_speaks_against() -> None:
    bench, links = unattached(4), PeerLinks()
    bench.node.core.connections.unreachable.add(3)
    links.note_failed("node 4", AT_4, TimeoutError())
    assert health_of(bench, links).problems() == [
        "no leader is known in epoch 3: 2 of 4 voters seem to be up, a majority is needed",
        "node 4 at host4:9093: no response in time",
    ]


def test_a_witness_that_alone_votes_beside_kafka_says_that_nothing_leads_any_more() -> None:
    """All voters are up then, and a majority is not what is needed."""
    beside_kafka = {"is_kafka_log": True, "is_witness": True}
    first, *others = health_of(unattached(1), **beside_kafka).problems()
    assert first.startswith("no leader is known")
    (told,) = others
    assert told.startswith("this witness is the only voter, and leads no Kafka quorum")
    assert "quorumctl export-kafka DIR --node-id 1" in told
    assert len(health_of(unattached(2), **beside_kafka).problems()) == 1
    assert len(health_of(unattached(1), is_witness=True).problems()) == 1


@pytest.mark.parametrize(
    ("size", "missing", "text"),
    [
        (4, (3,), ""),
        (4, (3, 4), "; 2 of 4 voters seem to be up, a majority is needed"),
        (3, (3,), ""),
        (3, (2, 3), "; 1 of 3 voters seem to be up, a majority is needed"),
    ],
)
def test_a_leader_that_does_not_answer_is_all_unless_a_majority_is_missing(
    size: int, missing: tuple[int, ...], text: str
) -> None:
    bench = follower(size, contact=False)
    bench.node.core.connections.unreachable.update(missing)
    assert health_of(bench).problems() == [f"the leader, node 2, does not respond{text}"]


def test_an_observer_of_an_epoch_that_the_quorum_does_not_know_says_how_it_comes_back() -> None:
    bench = observer()
    bench.fetched(error="NOT_LEADER_OR_FOLLOWER", hint=LeaderHint(epoch=7, leader_id=None))
    bench.sync()
    health = health_of(bench)
    no_leader = "no leader is known in epoch 7: 3 of 3 voters seem to be up, a majority is needed"
    assert health.problems() == [no_leader]
    bench.wait(100)
    bench.fetched(error="UNKNOWN_LEADER_EPOCH", hint=LeaderHint(epoch=3, leader_id=2))
    assert health.problems() == [
        no_leader,
        "this observer has heard of epoch 7, and gets responses of epoch 3: it takes nothing until the "
        "quorum is as far. If that stays so, give it an empty directory, or run quorumctl transfer-leader: "
        "each takes the quorum one epoch further",
    ]
    bench.begin(2, 8)
    bench.sync()
    assert bench.node.status().older_epoch is None


def test_a_voter_of_a_later_epoch_comes_back_by_itself_and_says_nothing_of_it() -> None:
    bench = follower()
    bench.fetched(error="NOT_LEADER_OR_FOLLOWER", hint=LeaderHint(epoch=7, leader_id=None))
    bench.sync()
    bench.wait(100)
    bench.fetched(error="UNKNOWN_LEADER_EPOCH", hint=LeaderHint(epoch=3, leader_id=2))
    assert bench.node.status().older_epoch == 3
    assert len(health_of(bench).problems()) == 1


def test_a_leader_in_whose_place_another_cluster_answers_is_not_said_to_be_silent() -> None:
    links = PeerLinks()
    links.note_response("node 2", "INCONSISTENT_CLUSTER_ID", AT_4, "c")
    (text,) = health_of(follower(contact=False), links).problems()
    assert text.startswith("node 2 at host4:9093 belongs to another cluster")


def test_a_full_disk_is_the_reason_that_nothing_is_heard() -> None:
    health = health_of(follower(contact=False))
    health.is_disk_full = True
    first, *others = health.problems()
    assert first.startswith("the disk is full")
    assert not any("does not respond" in text for text in others)


def test_who_has_resigned_knows_no_leader() -> None:
    first, *_ = health_of(resigned()).problems()
    assert first.startswith("no leader is known in epoch 4: 3 of 3 voters seem to be up")


def test_a_leader_is_ready_once_it_has_committed_something() -> None:
    bench = leader()
    health = health_of(bench)
    assert health.problems() == ["leads, but has not committed a record of its epoch yet"]
    end = bench.node.core.log.end
    bench.fetch(bench.node.core.other_voters()[0], end.offset, end.epoch)
    assert health.problems() == []


def test_replicas_are_told_with_their_vote_and_how_far_they_are_behind() -> None:
    keys = [ReplicaKey(n, UUID(int=1000 + n)) for n in (1, 2, 3, 8)]
    ends = (-1, 120, 130, 100)
    rows = [ReplicaStatus(key, end) for key, end in zip(keys, ends, strict=True)]
    told = health_of(leader(), voter_rows=tuple(rows[:3]), observer_rows=(rows[3],)).as_json()
    replicas = cast(list[dict[str, Any]], told["replicas"])
    assert [(row["id"], row["is_voter"], row["lag"]) for row in replicas] == [
        (1, True, 120),
        (2, True, 0),
        (3, True, 0),
        (8, False, 20),
    ]
    assert told["voters_committed"] is True


def test_a_voter_set_that_is_not_committed_is_told() -> None:
    for others in ((2,), (2, 4)):
        committed = VoterSet.of(voter(replica_id) for replica_id in (1, *others))
        told = health_of(leader(), committed=committed).as_json()
        assert told["voters_committed"] is False


def test_the_age_of_a_role_begins_with_it() -> None:
    clock = Clock()
    health = health_of(leader(), clock=clock)
    clock.now_s += 7
    assert health.as_json()["role_since_s"] == 7
    health.note_role()
    clock.now_s += 2
    assert health.as_json()["role_since_s"] == 2


def status_of(health: PartitionHealth, **changed: Any) -> PartitionHealth:
    """The same, of rules in another state."""
    status = replace(health._node.status(), **changed)
    node = SimpleNamespace(status=lambda: status, config=health._node.config)
    health._node = cast(RaftNode, node)
    return health


def test_who_waits_for_a_quorum_that_exists_is_told_so_if_it_knows_of_one() -> None:
    waiting = {"epoch": 0, "role": Role.OBSERVER, "leader": None}
    health = status_of(health_of(unattached(3)), **waiting)
    assert any("formatted without --bootstrap" in text for text in health.problems())
    health = status_of(health_of(unattached(3)), **waiting, voters=VoterSet.of([]))
    assert not any("--bootstrap" in text for text in health.problems())


def test_who_hears_nothing_suspects_its_disk_sooner_than_a_leader_does() -> None:
    """It fetches again when it has written."""
    half_s = follower().node.config.fetch_timeout_ms / 2000
    assert half_s < DISK_SILENT_S
    for bench, age_s, is_silent in (
        (follower(contact=False), half_s, True),
        (follower(contact=False), half_s - 0.01, False),
        (follower(), half_s, False),
        (leader(), half_s, False),
        (leader(), DISK_SILENT_S, True),
    ):
        found = health_of(bench, age_s=age_s).problems()
        assert any("the disk has not responded" in text for text in found) is is_silent


def test_a_witness_that_its_own_quorum_voters_does_not_name_warns_that_it_gives_no_vote() -> None:
    """The controllers name it perhaps, and count its fetches: it seems to be a voter to them."""
    beside_kafka = {"is_kafka_log": True, "is_witness": True}
    others = VoterSet.of([voter(2), voter(3)])
    by_configuration = {"voters_offset": -1, "voters": others}

    def warned(bench: Bench, view: dict[str, Any], **status: Any) -> int:
        found = status_of(health_of(bench, **view), **status).warnings()
        return sum("this witness gives no vote" in text for text in found)

    assert warned(follower(), beside_kafka, **by_configuration) == 1
    assert warned(follower(), beside_kafka, voters_offset=-1, voters=VoterSet.of([])) == 1
    # It is named, or the log names the voters; it has heard of no leader yet; and it is no witness.
    assert warned(follower(), beside_kafka, voters_offset=-1) == 0
    assert warned(follower(), beside_kafka, voters=others) == 0
    assert warned(unattached(3), beside_kafka, **by_configuration) == 0
    assert warned(follower(), {"is_kafka_log": True}, **by_configuration) == 0
    assert warned(follower(), {}, **by_configuration) == 0


def test_the_leader_alone_warns_of_two_voters_under_one_id() -> None:
    twins = keyed_set(ReplicaKey(1, UUID(int=1)), ReplicaKey(2, UUID(int=2)), ReplicaKey(2))
    for bench, count in ((leader(), 1), (follower(), 0)):
        found = status_of(health_of(bench), voters=twins).warnings()
        of_twins = [text for text in found if "two voters under one id" in text]
        assert len(of_twins) == count
        assert all("both count: a majority is 2 of 3." in text for text in of_twins)


def test_a_log_that_is_damaged_where_only_a_build_reads_it_is_warned_of() -> None:
    assert health_of(unattached(3)).warnings() == []
    (found,) = health_of(unattached(3), log_damage="7.log: a gap. Check the disk").warnings()
    assert found == (
        "the log on this disk is damaged, as a snapshot that was to be taken has found: 7.log: a gap. Check "
        "the disk"
    )
