"""A voter with a new disk beside the old one: two storage ids under one id, as the leader handles them."""

from __future__ import annotations

import pytest

from quorumd.raft.control import VotersRecord
from quorumd.raft.events import (
    ConnectionMade,
    ConnectionRefused,
)
from quorumd.raft.types import OffsetAndEpoch, ReplicaKey
from tests.raft.changes import (
    FREE,
    add,
    fetch_all,
    last_answer,
    leading,
    refused,
    remove,
    wait_for,
    written,
)
from tests.raft.harness import (
    CLUSTER,
    keyed_set,
    log_of,
    unattached,
    voter_set,
)
from tests.raft.harness import key as key_of
from tests.raft.harness import leader as bare_leader


def test_a_lost_disk_is_doubled_by_the_new_one_and_then_removed() -> None:
    bench = leading(configured_voters=voter_set(1, 2, 3, by_id=True))
    old, new = key_of(3), key_of(3, disk=1)
    for _ in range(13):
        fetch_all(bench, key_of(2), new)
        bench.wait(500)
    fetch_all(bench, key_of(2), new)
    assert add(bench, new) is None
    assert written(bench)[-1].voters.keys == (*map(key_of, (1, 2, 3)), new)
    fetch_all(bench, key_of(2), new)
    assert last_answer(bench).error is None
    assert remove(bench, old) is None
    assert written(bench)[-1].voters.keys == (key_of(1), key_of(2), new)
    fetch_all(bench, key_of(2), new)
    assert last_answer(bench).error is None
    assert len(written(bench)) == 2


def test_a_new_leader_waits_before_it_takes_the_other_disk_for_lost() -> None:
    bench = bare_leader(**FREE)
    new = key_of(3, disk=1)
    fetch_all(bench, key_of(2), new)
    assert add(bench, new) is None
    assert f"the voter {key_of(3)} may be alive: it is waited for another 6000 ms" in wait_for(
        bench
    )
    for _ in range(3):
        bench.wait(500)
        fetch_all(bench, key_of(2), new)
    bench.fetch(key_of(3), *bench.node.core.log.end)
    error, text = refused(last_answer(bench))
    assert (error, f"the voter {key_of(3)} is alive" in text) == ("INVALID_REQUEST", True)


def test_a_new_leader_takes_a_voter_for_lost_after_three_fetch_timeouts() -> None:
    bench = bare_leader(**FREE)
    new = key_of(3, disk=1)
    for wait_ms in [500] * 11 + [499]:
        fetch_all(bench, key_of(2), new)
        bench.wait(wait_ms)
    fetch_all(bench, key_of(2), new)
    assert add(bench, new) is None
    assert "it is waited for another 1 ms" in wait_for(bench)
    bench.wait(1)
    assert written(bench)[-1].voters.keys == (*map(key_of, (1, 2, 3)), new)


def test_a_process_that_came_back_may_be_gone_once_more() -> None:
    bench = leading()
    old, new = key_of(3), key_of(3, disk=1)
    bench.step(ConnectionRefused(id=3))
    bench.wait(100)
    fetch_all(bench, key_of(2), old, new)
    bench.wait(100)
    bench.step(ConnectionRefused(id=3))
    for _ in range(4):
        bench.wait(500)
        fetch_all(bench, key_of(2), new)
    assert add(bench, new) is None
    assert written(bench)[-1].voters.keys == (*map(key_of, (1, 2, 3)), new)


def test_an_id_with_two_disks_names_neither_of_them() -> None:
    two = keyed_set(key_of(1), key_of(2), key_of(3), key_of(3, disk=1))
    core = unattached(log=log_of(1, 1, 2, voters=two)).node.core
    assert core.key_of(2) == key_of(2)
    assert core.key_of(3) == ReplicaKey(3)


def test_a_voter_whose_process_is_known_to_be_gone_is_waited_for_less() -> None:
    """For one fetch timeout: a process that was started again would have fetched meanwhile."""
    bench = leading()
    old, new = key_of(3), key_of(3, disk=1)
    fetch_all(bench, key_of(2), old, new)
    bench.wait(100)
    bench.step(ConnectionRefused(id=3))
    # The new disk's process listens at that address now: the old one is gone all the same.
    bench.step(ConnectionMade(id=3))
    for _ in range(3):
        bench.wait(600)
        fetch_all(bench, key_of(2), new)
    assert f"the voter {old} is alive" in refused(add(bench, new))[1]
    bench.wait(100)
    fetch_all(bench, key_of(2), new)
    assert add(bench, new) is None
    assert written(bench)[-1].voters.keys == (*map(key_of, (1, 2, 3)), new)


def test_a_voter_that_fetched_after_its_address_refused_is_alive() -> None:
    """It is reached elsewhere than its record says, or was started again."""
    bench = leading()
    old, new = key_of(3), key_of(3, disk=1)
    bench.step(ConnectionRefused(id=3))
    bench.wait(100)
    fetch_all(bench, key_of(2), old, new)
    for _ in range(5):
        bench.wait(500)
        fetch_all(bench, key_of(2), new)
    assert f"the voter {old} is alive" in refused(add(bench, new))[1]


def test_of_two_disks_that_join_under_one_id_one_becomes_a_voter() -> None:
    bench = leading()
    one, another = key_of(4), key_of(4, disk=1)
    for _ in range(14):
        fetch_all(bench, key_of(2), key_of(3), one, another)
        bench.wait(500)
    fetch_all(bench, key_of(2), key_of(3), one, another)
    assert add(bench, one) is None
    error, text = refused(add(bench, another))
    assert (error, f"the voter {one} is alive" in text) == ("INVALID_REQUEST", True)
    fetch_all(bench, key_of(2), key_of(3), one, another)
    assert written(bench) == [VotersRecord(voter_set(1, 2, 3, 4), CLUSTER)]


def test_a_voter_that_copies_a_snapshot_is_alive() -> None:
    bench = leading()
    for _ in range(14):
        fetch_all(bench, key_of(2))
        bench.wait(500)
    bench.node.core.log.snapshots.append(OffsetAndEpoch(4, 4))
    answer = bench.fetch(key_of(3), 0, 0)
    assert answer is not None
    assert answer.snapshot == OffsetAndEpoch(4, 4)
    assert "is alive" in refused(add(bench, key_of(3, 1)))[1]


@pytest.mark.parametrize(
    ("epoch", "last"),
    [(3, OffsetAndEpoch(4, 3)), (4, OffsetAndEpoch(9, 4))],
    ids=["of an older epoch", "that diverges"],
)
def test_a_voter_whose_fetch_is_of_no_use_is_alive(epoch: int, last: OffsetAndEpoch) -> None:
    bench = leading()
    for _ in range(14):
        fetch_all(bench, key_of(2))
        bench.wait(500)
    bench.fetch(key_of(3), last.offset, last.epoch, epoch=epoch)
    assert "is alive" in refused(add(bench, key_of(3, 1)))[1]


def test_no_id_of_quorum_voters_may_vanish_wholly() -> None:
    bench = leading(configured_voters=voter_set(1, 2, 3, by_id=True))
    error, text = refused(remove(bench, key_of(3)))
    assert error == "INVALID_REQUEST"
    assert "quorum.voters names the id 3, so one replica of that id has to vote" in text
