"""A snapshot that is damaged while its node runs: noticed, built anew, or another node serves its own."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from quorumd.raft.types import SnapshotId
from quorumd.storage.filesystem import RealFileSystem
from quorumd.storage.snapshot_file import verify_snapshot
from tests.support.live_cluster import Cluster, running_cluster
from tests.support.live_snapshots import ask_for_snapshot, files, path_of, put, take
from tests.support.load import Load

SETTINGS = {
    "log.segment.bytes": 8192,
    "log.max.batch.bytes": 4096,
    "quorum.fetch.timeout.ms": 1000,
}
OBSERVER = 4
RECOVERED_S = 40.0
DAMAGED_LINE = "snapshot damaged and withdrawn"


@pytest.fixture
def quorum(tmp_path: Path) -> Iterator[Cluster]:
    """Three voters and an observer that keep all history."""
    with running_cluster(tmp_path / "quorum", observers=1, settings=SETTINGS) as cluster:
        put(cluster, 400)
        yield cluster


@pytest.fixture
def cleaned(tmp_path: Path) -> Iterator[Cluster]:
    """The same, without what their snapshots stand for."""
    settings = SETTINGS | {"retention.bytes": 0}
    with running_cluster(tmp_path / "cleaned", observers=1, settings=settings) as cluster:
        put(cluster, 400)
        for node in cluster.ids:
            take(cluster, node)
            cluster.wait_for(partial(log_start, cluster, node), "a cleaned log")
        yield cluster


def log_start(cluster: Cluster, node: int) -> int:
    start: int = cluster.status(node)["log_start_offset"]
    return start


def damage(path: Path) -> bytes:
    """Flip a bit in the middle, where no start looks; returns what was there."""
    data = path.read_bytes()
    middle = len(data) // 2
    with path.open("r+b") as file:
        file.seek(middle)
        file.write(bytes([data[middle] ^ 1]))
    return data


def empty_observer(cluster: Cluster) -> None:
    """The observer begins anew, with nothing."""
    cluster.stop(OBSERVER)
    cluster.new_disk(OBSERVER)
    cluster.start(OBSERVER)


def wait_built_anew(cluster: Cluster, node: int, snapshot: SnapshotId) -> None:
    text = f"a damaged snapshot was built anew end_offset={snapshot.end_offset}"
    cluster.wait_for(lambda: text in cluster.output(node), "a repaired snapshot", RECOVERED_S)


def assert_recovered(cluster: Cluster) -> None:
    """The observer has everything, by a sound snapshot."""
    cluster.wait_ready(OBSERVER, timeout_s=RECOVERED_S)
    cluster.wait_converged()
    # What the status tells of it may be on its way to the disk.
    newest = max(cluster.wait_for(partial(files, cluster, OBSERVER), "a snapshot"))
    verify_snapshot(RealFileSystem(), path_of(cluster, OBSERVER, newest), newest)


def assert_served(cluster: Cluster) -> None:
    """An observer gets the snapshot. One that came before it was repaired may have got the log."""
    empty_observer(cluster)
    assert_recovered(cluster)


def test_a_damaged_snapshot_is_built_anew_when_a_copy_of_it_was_refused(quorum: Cluster) -> None:
    leader = quorum.wait_leader()
    snapshot = take(quorum, leader)
    path = path_of(quorum, leader, snapshot)
    data = damage(path)
    with Load(quorum) as load:
        load.wait_progress()
        empty_observer(quorum)
        wait_built_anew(quorum, leader, snapshot)
        assert path.read_bytes() == data
        load.wait_progress()
    assert_served(quorum)
    text = quorum.output(leader)
    assert f'{DAMAGED_LINE} reason="{path}: ' in text
    refused = quorum.output(OBSERVER)
    assert f"the copy of the snapshot that ends at {snapshot.end_offset} is dropped" in refused
    assert "the CRC does not match the contents" in refused
    assert quorum.status(leader)["snapshots"]["problem"] == ""
    assert quorum.wait_leader() == leader


def test_a_snapshot_whose_file_is_deleted_is_built_anew_when_it_is_asked_for(
    quorum: Cluster,
) -> None:
    leader = quorum.wait_leader()
    snapshot = take(quorum, leader)
    path = path_of(quorum, leader, snapshot)
    data = path.read_bytes()
    path.unlink()
    empty_observer(quorum)
    wait_built_anew(quorum, leader, snapshot)
    assert path.read_bytes() == data
    assert_served(quorum)
    quorum.wait_logged(leader, "its file was deleted")


def test_what_the_next_snapshot_is_to_be_built_on_is_built_anew_first(quorum: Cluster) -> None:
    """The first batch of records is looked at in any case, so this takes more of them."""
    put(quorum, 1_200, keys=1_200, value=bytes(2_000))
    leader = quorum.wait_leader()
    path = path_of(quorum, leader, take(quorum, leader))
    data = damage(path)
    put(quorum, 50, first=1_000)
    end_offset = quorum.wait_converged()
    answer = ask_for_snapshot(quorum, leader)
    assert (answer.error_code, answer.end_offset) == (0, end_offset), answer.error_message
    assert path.read_bytes() == data
    second = SnapshotId(answer.end_offset, answer.epoch)
    verify_snapshot(RealFileSystem(), path_of(quorum, leader, second), second)


def test_a_leader_that_cannot_build_its_snapshot_anew_lets_another_one_lead_who_has_one(
    cleaned: Cluster,
) -> None:
    leader = cleaned.wait_leader()
    path = path_of(cleaned, leader, max(files(cleaned, leader)))
    damage(path)
    with Load(cleaned) as load:
        load.wait_progress()
        empty_observer(cleaned)
        cleaned.wait_leader(other_than=leader, timeout_s=RECOVERED_S)
        load.wait_progress()
    assert_recovered(cleaned)
    text = cleaned.output(leader)
    assert "leadership is given away: its snapshot is damaged, and others need one" in text
    problem = cleaned.status(leader)["snapshots"]["problem"]
    assert "no snapshot holds what was before" in problem
    assert "format a new directory" in problem
    assert path.exists()


def test_a_node_that_can_build_on_nothing_says_so_and_goes_on(cleaned: Cluster) -> None:
    node = next(node for node in cleaned.voters if node != cleaned.wait_leader())
    path = path_of(cleaned, node, max(files(cleaned, node)))
    damage(path)
    put(cleaned, 50, first=1_000)
    cleaned.wait_converged()
    answer = ask_for_snapshot(cleaned, node)
    assert answer.error_code
    assert "no snapshot holds what was before" in (answer.error_message or "")
    cleaned.wait_logged(node, f'{DAMAGED_LINE} reason="{path}: ')
    assert cleaned.is_ready(node)
    put(cleaned, 50, first=2_000)
    cleaned.wait_converged()
    assert path.exists()
