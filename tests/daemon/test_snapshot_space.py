"""Disks without room for a snapshot: one that is built here, and one that is copied from the leader."""

from __future__ import annotations

import os
import re
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from quorumd.storage.filesystem import RealFileSystem
from quorumd.storage.snapshot_file import verify_snapshot
from quorumd.wire.error_codes import ErrorCode
from tests.support.live_cluster import Cluster, running_cluster
from tests.support.live_snapshots import ask_for_snapshot, files, parts, path_of, put, take
from tests.support.load import Load
from tests.support.mounts import mounted, tmpfs_or_skip

SMALL_DISK = "32m"
MIB = 1 << 20
SETTINGS = {
    "log.segment.bytes": MIB,
    "log.max.batch.bytes": 65536,
    "quorum.fetch.timeout.ms": 1000,
}
VALUE = bytes(10_000)
FULL_LINE = "the disk is full"
HOW_TO_GO_ON = "Free space on this disk; nothing was lost"


@contextmanager
def quorum_with_small_disk(
    folder: Path, node: int, observers: int = 0, **settings: object
) -> Iterator[Cluster]:
    """A quorum one node of which has little space."""
    small = folder / f"node-{node}"
    small.mkdir(parents=True)
    with (
        mounted(small, tmpfs_or_skip(SMALL_DISK)),
        running_cluster(folder, observers=observers, settings=SETTINGS | settings) as cluster,
    ):
        yield cluster


def leave(cluster: Cluster, node: int, left_bytes: int) -> Path:
    """Take space on the node's disk until so much is left; returns what to delete to free it."""
    ballast = cluster.storage_dir(node) / "ballast"
    with ballast.open("wb", buffering=0) as file:
        while free_bytes(cluster, node) > left_bytes:
            file.write(bytes(65536))
    return ballast


def free_bytes(cluster: Cluster, node: int) -> int:
    found = os.statvfs(cluster.storage_dir(node))
    return found.f_bavail * found.f_frsize


def metric(cluster: Cluster, node: int, name: str) -> float:
    with urllib.request.urlopen(cluster.http_url(node, "/metrics"), timeout=5) as answer:
        text = answer.read().decode()
    found = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
    assert found is not None, text
    return float(found[1])


def lead(cluster: Cluster, node: int) -> None:
    """Restart leaders until this node leads."""
    while (leader := cluster.wait_leader()) != node:
        cluster.restart(leader)


def test_a_build_without_room_is_given_up_and_everything_else_goes_on(tmp_path: Path) -> None:
    with quorum_with_small_disk(tmp_path / "cluster", 1) as quorum:
        lead(quorum, 1)
        put(quorum, 100, value=bytes(100))
        old = take(quorum, 1)
        put(quorum, 400, keys=400, value=VALUE)
        ballast = leave(quorum, 1, 9 * MIB)
        epoch = quorum.status(1)["epoch"]
        with Load(quorum) as load:
            load.wait_progress()
            failures = load.failures
            answer = ask_for_snapshot(quorum, 1)
            load.wait_progress(50)
            assert load.failures == failures
        assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert "bytes are left on this disk" in (answer.error_message or "")
        assert HOW_TO_GO_ON in (answer.error_message or "")
        status = quorum.status(1)
        assert status["snapshots"]["problem"] == answer.error_message
        assert status["snapshots"]["newest"] == {"end_offset": old.end_offset, "epoch": old.epoch}
        assert (status["role"], status["epoch"], status["ready"]) == ("leader", epoch, True)
        assert metric(quorum, 1, "quorumd_snapshots_failed_total") == 1
        quorum.wait_logged(1, f'no snapshot was taken reason="{quorum.log_folder(1)}: ')
        assert FULL_LINE not in quorum.output(1)
        quorum.wait_for(lambda: not parts(quorum, 1), "no parts")
        verify_snapshot(RealFileSystem(), path_of(quorum, 1, old), old)
        ballast.unlink()
        assert take(quorum, 1) > old
        assert quorum.status(1)["snapshots"]["problem"] == ""


def test_builds_without_room_are_not_tried_again_at_once(tmp_path: Path) -> None:
    settings: dict[str, object] = {"snapshot.max.new.record.bytes": 100_000}
    with quorum_with_small_disk(tmp_path / "cluster", 1, **settings) as quorum:
        leave(quorum, 1, 9 * MIB)
        with Load(quorum, value_bytes=5_000) as load:
            quorum.wait_for(lambda: quorum.status(1)["snapshots"]["problem"], "a failed build", 60)
            load.wait_progress(100)
        assert metric(quorum, 1, "quorumd_snapshots_failed_total") == 1
        assert quorum.status(1)["snapshots"]["new_bytes"] > 100_000


def test_a_copy_without_room_is_given_up_and_tried_again_until_there_is_room(
    tmp_path: Path,
) -> None:
    observer = 4
    with quorum_with_small_disk(tmp_path / "cluster", observer, observers=1) as quorum:
        put(quorum, 600, keys=600, value=VALUE)
        snapshot = take(quorum, quorum.wait_leader())
        quorum.stop(observer)
        # Its disk is a mount: it is emptied.
        for path in (
            *quorum.log_folder(observer).iterdir(),
            quorum.storage_dir(observer) / "meta.properties",
        ):
            path.unlink()
        quorum.format_one(observer)
        ballast = leave(quorum, observer, 3 * MIB)
        begun = len(quorum.output(observer))
        with Load(quorum) as load:
            quorum.start(observer)
            line = "there is no room for the leader's snapshot: what was copied is deleted"
            quorum.wait_for(lambda: line in quorum.output(observer)[begun:], "no room")
            load.wait_progress(50)
        status = quorum.status(observer)
        assert not status["ready"]
        problems = " ".join(status["problems"])
        assert f"that ends at {snapshot.end_offset} could not be taken over" in problems
        assert HOW_TO_GO_ON in problems
        quorum.wait_for(lambda: not parts(quorum, observer), "no parts")
        assert metric(quorum, observer, "quorumd_snapshot_copies_failed_total") <= 4
        ballast.unlink()
        quorum.wait_ready(observer, timeout_s=40)
        quorum.wait_converged()
        assert max(files(quorum, observer)) >= snapshot
        assert FULL_LINE not in quorum.output(observer)
