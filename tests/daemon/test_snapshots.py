"""Snapshots on a live quorum: taken, served, copied, and what is deleted behind them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial

import pytest

import quorumd
from quorumd.storage.filesystem import RealFileSystem
from quorumd.storage.snapshot_file import verify_snapshot
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.fetch_snapshot import (
    FetchSnapshotRequest,
    FetchSnapshotRequestPartition,
    FetchSnapshotRequestSnapshotId,
    FetchSnapshotRequestTopic,
    FetchSnapshotResponse,
    FetchSnapshotResponsePartition,
)
from quorumd.wire.records import build_batch
from tests.support.commands import quorumctl
from tests.support.live_cluster import TOPIC, Cluster, running
from tests.support.live_snapshots import SteadyCluster, files, path_of, put, take
from tests.support.load import produce, produce_of
from tests.support.raw_client import RawClient

EAGER = {
    "log.segment.bytes": 8192,
    "log.max.batch.bytes": 4096,
    "snapshot.max.new.record.bytes": 30_000,
    "retention.bytes": 0,
    "quorum.fetch.timeout.ms": 1000,
}
COPYING = "copying the snapshot"


@pytest.fixture(scope="module")
def quorum(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three voters and an observer that keep as little history as they may."""
    folder = tmp_path_factory.mktemp("quorum")
    with running(SteadyCluster(folder, observers=1, settings=EAGER)) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def all_run_again(quorum: Cluster) -> Iterator[None]:
    """A test that failed half-way must not make the next one fail."""
    yield
    for node in quorum.ids:
        quorum.write_config(node)
    quorum.start()
    quorum.wait_ready()


def has_cleaned(quorum: Cluster, node: int) -> bool:
    status = quorum.status(node)
    return status["log_start_offset"] > 0 and status["snapshots"]["newest"] is not None


def test_snapshots_are_taken_and_the_history_behind_them_goes(quorum: Cluster) -> None:
    put(quorum, 2_000)
    for node in quorum.ids:
        quorum.wait_for(partial(has_cleaned, quorum, node), "a log that starts above 0")
    for node in quorum.ids:
        # With a snapshot of everything no other is due, which would delete the one that is read here.
        newest = take(quorum, node)
        assert newest.end_offset >= quorum.status(node)["log_start_offset"]
        assert newest == max(files(quorum, node))
        facts = verify_snapshot(RealFileSystem(), path_of(quorum, node, newest), newest)
        assert facts.voters is not None
        assert len(facts.voters.voters) == 3
        segments = quorum.log_folder(node)
        quorum.wait_for(lambda at=segments: len(list(at.glob("*.log"))) < 12, "few segments")


def test_the_same_snapshot_has_the_same_bytes_everywhere(quorum: Cluster) -> None:
    put(quorum, 500, first=5_000)
    ids = {take(quorum, node) for node in quorum.ids}
    assert len(ids) == 1
    contents = {files(quorum, node)[next(iter(ids))] for node in quorum.ids}
    assert len(contents) == 1


def test_a_chunk_begins_at_a_byte_that_the_snapshot_has(quorum: Cluster) -> None:
    put(quorum, 100, first=8_000)
    leader = quorum.wait_leader()
    snapshot = take(quorum, leader)
    size = path_of(quorum, leader, snapshot).stat().st_size
    epoch = quorum.status(leader)["epoch"]

    def asked(position: int) -> FetchSnapshotResponsePartition:
        partition = FetchSnapshotRequestPartition(
            current_leader_epoch=epoch,
            snapshot_id=FetchSnapshotRequestSnapshotId(
                end_offset=snapshot.end_offset, epoch=snapshot.epoch
            ),
            position=position,
        )
        topic = FetchSnapshotRequestTopic(name=TOPIC, partitions=(partition,))
        request = FetchSnapshotRequest(topics=(topic,))
        answer = quorum.ask(leader, request, FetchSnapshotResponse, 1)
        assert answer is not None
        assert answer.error_code == 0
        return answer.topics[0].partitions[0]

    last = asked(size - 1)
    assert (last.error_code, len(last.unaligned_records), last.size) == (0, 1, size)
    for position in (-1, size, size + 1):
        assert asked(position).error_code == ErrorCode.POSITION_OUT_OF_RANGE


def test_a_node_starts_from_its_snapshot_and_what_follows(quorum: Cluster) -> None:
    put(quorum, 1_000, first=10_000)
    for node in quorum.ids:
        quorum.wait_for(partial(has_cleaned, quorum, node), "a log that starts above 0")
    quorum.stop_all()
    quorum.start()
    quorum.wait_ready()
    put(quorum, 100, first=20_000)
    ends = {quorum.wait_converged() for _ in range(2)}
    assert len(ends) == 1


def test_an_empty_node_gets_the_snapshot_while_the_quorum_goes_on(quorum: Cluster) -> None:
    put(quorum, 2_000, first=30_000)
    leader = quorum.wait_leader()
    # Asked for, since a build of its own rests after one that took long on a busy host.
    take(quorum, leader)
    quorum.wait_for(partial(has_cleaned, quorum, leader), "a log that starts above 0")
    observer = quorum.ids[-1]
    quorum.kill(observer)
    quorum.new_disk(observer)
    quorum.start(observer)
    put(quorum, 500, first=40_000)
    quorum.wait_ready(observer)
    quorum.wait_converged()
    quorum.wait_logged(observer, COPYING)
    assert quorum.status(observer)["log_start_offset"] > 0
    assert take(quorum, observer) == take(quorum, leader)
    newest = max(files(quorum, observer))
    assert files(quorum, observer)[newest] == files(quorum, leader)[newest]


def test_a_follower_that_was_away_too_long_gets_the_snapshot(quorum: Cluster) -> None:
    leader = quorum.wait_leader()
    follower = next(node for node in quorum.voters if node != leader)
    end_offset = quorum.status(follower)["log_end_offset"]
    quorum.stop(follower)
    put(quorum, 3_000, first=50_000)
    take(quorum, leader)
    quorum.wait_for(
        lambda: quorum.status(leader)["log_start_offset"] > end_offset, "a log that starts above it"
    )
    begun = len(quorum.output(follower))
    quorum.start(follower)
    quorum.wait_ready(follower)
    quorum.wait_converged()
    quorum.wait_logged(follower, COPYING, since=begun)


def test_a_copy_goes_on_after_a_leader_is_killed_in_its_midst(quorum: Cluster) -> None:
    put(quorum, 3_000, first=60_000, keys=3_000)
    quorum.wait_converged()
    leader = quorum.wait_leader()
    ids = {take(quorum, node) for node in quorum.voters}
    assert len(ids) == 1
    observer = quorum.ids[-1]
    quorum.kill(observer)
    quorum.new_disk(observer)
    seen = len(quorum.output(observer))
    quorum.write_config(observer, {"snapshot.bandwidth.bytes.per.second": 100_000})
    quorum.start(observer)

    def position() -> int:
        copying = quorum.status(observer)["snapshots"]["copying"]
        return 0 if copying is None else int(copying["position"])

    before = quorum.wait_for(position, "a copy that goes on")
    quorum.kill(leader)
    quorum.wait_leader(other_than=leader)
    assert position() >= before
    quorum.wait_ready(observer, timeout_s=40)
    quorum.start(leader)
    quorum.wait_ready(leader)
    quorum.wait_converged()
    log = quorum.output(observer)[seen:]
    assert log.count(COPYING) == 1
    assert "is dropped" not in log


def test_producers_are_known_behind_a_snapshot(quorum: Cluster) -> None:
    """A batch that is sent again after all history was deleted, to nodes started anew: a duplicate."""
    batch = build_batch(
        [quorumd.Record(key=b"once", value=b"only")],
        producer_id=77,
        producer_epoch=0,
        base_sequence=0,
    )

    def send() -> int:
        with RawClient(quorum.port(quorum.wait_leader())) as client:
            answer = produce(client, produce_of(batch))
        assert not answer.error_code, answer.error_message
        return answer.base_offset

    offset = send()
    put(quorum, 3_000, first=70_000)
    for node in quorum.ids:
        take(quorum, node)
        quorum.wait_for(
            lambda node=node: quorum.status(node)["log_start_offset"] > offset, "a cleaned log"
        )
    assert send() == offset
    for node in quorum.ids:
        quorum.restart(node)
    assert send() == offset


def test_quorumctl_has_every_voter_take_one(quorum: Cluster) -> None:
    put(quorum, 100, first=80_000)
    end_offset = quorum.wait_converged()
    quorum.wait_for(lambda: quorumctl_snapshot(quorum)[1].keys() == {end_offset}, "new snapshots")
    code, rows = quorumctl_snapshot(quorum)
    assert code == 0
    assert rows == {end_offset: list(quorum.voters)}


def test_quorumctl_says_which_voter_took_none(quorum: Cluster) -> None:
    leader = quorum.wait_leader()
    follower = next(node for node in quorum.voters if node != leader)
    quorum.stop(follower)
    code, rows = quorumctl_snapshot(quorum)
    assert code == 1
    assert rows[-1] == [follower]


def quorumctl_snapshot(quorum: Cluster) -> tuple[int, dict[int, list[int]]]:
    """The exit code of `quorumctl snapshot`, and the voters by where their snapshots end."""
    ended = quorumctl("snapshot", "-b", quorum.bootstrap, "--output", "json")
    assert not ended.err, ended.err
    rows: dict[int, list[int]] = {}
    for row in json.loads(ended.out):
        assert bool(row["problem"]) == (row["end_offset"] < 0), row
        rows.setdefault(row["end_offset"], []).append(row["replica_id"])
    return ended.code, rows
