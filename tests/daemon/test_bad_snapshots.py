"""Unusable snapshot files: at a start, where the log covers them and where it does not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from quorumd.raft.types import SnapshotId
from quorumd.storage.filesystem import RealFileSystem
from quorumd.storage.snapshot_file import verify_snapshot
from quorumd.wire.control_records import (
    ControlRecord,
    KRaftVersion,
    KRaftVoter,
    KRaftVoters,
    SnapshotFooter,
    SnapshotHeader,
    UnknownControl,
    encode_control_batch,
)
from tests.support.live_cluster import Cluster, running_cluster
from tests.support.live_snapshots import files, path_of, put, take
from tests.support.load import Load

DAMAGED = 3
VICTIM = 3
SETTINGS = {"log.segment.bytes": 8192, "log.max.batch.bytes": 4096}
NO_HISTORY = {"retention.bytes": 0}
LEFT_ALONE = "snapshot unusable, ignored: the log does not need it"
LATER = "which this one does not know"
HOW_TO_GO_ON = (
    "format a new directory (without --bootstrap): its node copies the log from the quorum"
)

Spoil = Callable[[Path, SnapshotId], None]


# -- what is done to a file


def flip(at: int) -> Spoil:
    def spoil(path: Path, snapshot: SnapshotId) -> None:
        data = bytearray(path.read_bytes())
        data[at] ^= 0x40
        path.write_bytes(data)

    return spoil


def truncate(path: Path, snapshot: SnapshotId) -> None:
    os.truncate(path, path.stat().st_size - 10)


def empty(path: Path, snapshot: SnapshotId) -> None:
    os.truncate(path, 0)


def scribble(path: Path, snapshot: SnapshotId) -> None:
    path.write_bytes(os.urandom(5000))


def directory(path: Path, snapshot: SnapshotId) -> None:
    path.unlink()
    path.mkdir()


def unreadable(path: Path, snapshot: SnapshotId) -> None:
    """Permissions would not keep root from reading; a link to itself does."""
    path.unlink()
    path.symlink_to(path)


def misnamed(path: Path, snapshot: SnapshotId) -> None:
    """It stands for less than it says."""
    name = f"{snapshot.end_offset + 1:020d}-{snapshot.epoch:010d}.checkpoint"
    path.rename(path.with_name(name))


def forged(*records: ControlRecord, header: SnapshotHeader | None = None) -> Spoil:
    """A file of its own making, whole by all its CRCs."""

    def spoil(path: Path, snapshot: SnapshotId) -> None:
        first = header or SnapshotHeader(end_offset=snapshot.end_offset)
        begin = encode_control_batch(
            [first, *records], base_offset=0, epoch=snapshot.epoch, timestamp_ms=0
        )
        end = encode_control_batch(
            [SnapshotFooter()],
            base_offset=1 + len(records),
            epoch=snapshot.epoch,
            timestamp_ms=0,
        )
        path.write_bytes(begin + end)

    return spoil


OTHER_CLUSTER = KRaftVoters(voters=(KRaftVoter(voter_id=1),), cluster_id="another-cluster")
BAD: dict[str, tuple[Spoil, str]] = {
    "a flipped byte in its header": (flip(70), "the CRC does not match the contents"),
    "a flipped byte in its footer": (flip(-3), "the CRC does not match the contents"),
    "truncated": (truncate, "not a whole snapshot"),
    "empty": (empty, "only 0 bytes"),
    "random bytes": (scribble, "not a whole snapshot"),
    "a directory": (directory, "no snapshot can be read here: Is a directory"),
    "unreadable": (unreadable, "no snapshot can be read here: Too many levels"),
    "under another's name": (misnamed, "but this is the snapshot that ends at"),
    "of another cluster": (
        forged(OTHER_CLUSTER),
        "a snapshot of cluster another-cluster in a directory of cluster",
    ),
    "with a later header": (
        forged(header=SnapshotHeader(version=1)),
        f"version 1 of SnapshotHeader, {LATER}",
    ),
    "of a later kraft.version": (
        forged(KRaftVersion(kraft_version=2)),
        f"kraft.version 2, {LATER}",
    ),
    "with unknown control records": (
        forged(UnknownControl(2001, b"?")),
        f"control records of type 2001, {LATER}",
    ),
}
every_kind = pytest.mark.parametrize("kind", BAD)


# -- the quorum


@pytest.fixture(scope="module")
def quorum(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three voters that keep all history, and have a snapshot each."""
    folder = tmp_path_factory.mktemp("quorum")
    with running_cluster(folder, settings=SETTINGS) as cluster:
        put(cluster, 300)
        for node in cluster.ids:
            take(cluster, node)
        put(cluster, 100)
        yield cluster
        cluster.assert_same_logs()


@pytest.fixture
def covered(quorum: Cluster) -> Iterator[Path]:
    """The folder of a stopped node whose log has all that its snapshots stand for."""
    yield from stopped(quorum)


@pytest.fixture(scope="module")
def cleaned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three voters that need their snapshots: their logs start above 0."""
    folder = tmp_path_factory.mktemp("cleaned")
    with running_cluster(folder, settings=SETTINGS | NO_HISTORY) as cluster:
        put(cluster, 300)
        for node in cluster.ids:
            take(cluster, node)
            cluster.wait_for(
                lambda node=node: cluster.status(node)["log_start_offset"], "a cleaned log"
            )
        put(cluster, 100)
        yield cluster


@pytest.fixture
def needed(cleaned: Cluster) -> Iterator[Path]:
    """The folder of a stopped node that can't start without its snapshot."""
    yield from stopped(cleaned)


def stopped(cluster: Cluster) -> Iterator[Path]:
    """A node that is stopped; all is put back as it was, and the node runs, afterwards."""
    cluster.wait_converged()
    cluster.stop(VICTIM)
    folder = cluster.log_folder(VICTIM)
    saved = {path: path.read_bytes() for path in folder.iterdir()}
    yield folder
    if VICTIM in cluster.running():
        cluster.stop(VICTIM)
    for path in list(folder.iterdir()):
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink()
    for path, data in saved.items():
        path.write_bytes(data)
    cluster.start(VICTIM)
    cluster.wait_ready()
    cluster.wait_converged()


def newest(cluster: Cluster) -> tuple[Path, SnapshotId]:
    found = max(files(cluster, VICTIM))
    return path_of(cluster, VICTIM, found), found


def spoil(cluster: Cluster, kind: str) -> tuple[Path, str]:
    """Spoil the node's newest snapshot; returns the file as it is called now, and what is wrong."""
    path, snapshot = newest(cluster)
    act, complaint = BAD[kind]
    before = set(path.parent.iterdir())
    act(path, snapshot)
    renamed = set(path.parent.iterdir()) - before
    return next(iter(renamed), path), complaint


def look(path: Path) -> object:
    """What must not change."""
    if path.is_symlink():
        return path.readlink()
    return "a directory" if path.is_dir() else path.read_bytes()


def started(cluster: Cluster) -> str:
    """Start the node; returns what it says until it is ready."""
    begun = len(cluster.output(VICTIM))
    cluster.start(VICTIM)
    cluster.wait_ready(VICTIM)
    text = cluster.output(VICTIM)[begun:]
    assert "Traceback" not in text, text
    return text


def refused(cluster: Cluster) -> str:
    """Start the node; returns what it says, while the others serve writers, before it ends with 3."""
    begun = len(cluster.output(VICTIM))
    with Load(cluster) as load:
        cluster.start(VICTIM)
        ended = cluster.wait_exit(VICTIM)
        load.wait_progress()
    text = ended.output[begun:]
    assert ended.exit_code == DAMAGED, text
    assert "Traceback" not in text, text
    return text


@every_kind
def test_a_bad_snapshot_that_the_log_covers_is_named_and_does_no_harm(
    quorum: Cluster, covered: Path, kind: str
) -> None:
    path, complaint = spoil(quorum, kind)
    before = look(path)
    text = started(quorum)
    assert LEFT_ALONE in text
    assert f"{path}: " in text
    assert complaint in text
    assert "format a new directory" not in text
    status = quorum.status(VICTIM)
    assert (status["log_start_offset"], status["snapshots"]["newest"]) == (0, None)
    put(quorum, 20)
    assert take(quorum, VICTIM) in sound_but(quorum, path)
    assert look(path) == before


def sound_but(cluster: Cluster, bad: Path) -> list[SnapshotId]:
    """The snapshots of the node without the bad one, all of them sound."""
    found = []
    for path in cluster.log_folder(VICTIM).glob("*.checkpoint"):
        if path != bad:
            end_offset, _, epoch = path.name.removesuffix(".checkpoint").partition("-")
            snapshot = SnapshotId(int(end_offset), int(epoch))
            verify_snapshot(RealFileSystem(), path, snapshot)
            found.append(snapshot)
    return found


@every_kind
def test_a_bad_snapshot_without_which_the_log_is_not_whole_stops_the_node_with_3(
    cleaned: Cluster, needed: Path, kind: str
) -> None:
    path, complaint = spoil(cleaned, kind)
    before = {each: look(each) for each in needed.iterdir()}
    text = refused(cleaned)
    assert f'snapshot unusable reason="{path}: ' in text
    assert complaint in text
    assert "the log begins at offset" in text
    assert f"{path.name}, which holds what was before, was not found sound" in text
    assert HOW_TO_GO_ON in text
    assert ("Upgrade this node" in text) == (LATER in complaint)
    assert {each: look(each) for each in needed.iterdir()} == before


def test_a_lost_snapshot_without_which_the_log_is_not_whole_stops_the_node_with_3(
    cleaned: Cluster, needed: Path
) -> None:
    newest(cleaned)[0].unlink()
    text = refused(cleaned)
    assert "no snapshot holds what was before" in text
    assert HOW_TO_GO_ON in text


def test_a_node_without_its_snapshot_comes_back_as_the_message_says(
    cleaned: Cluster, needed: Path
) -> None:
    spoil(cleaned, "truncated")
    assert HOW_TO_GO_ON in refused(cleaned)
    kept = cleaned.storage_dir(VICTIM).with_name("kept")
    cleaned.storage_dir(VICTIM).rename(kept)
    cleaned.storage_dir(VICTIM).mkdir()
    try:
        cleaned.new_disk(VICTIM)
        text = started(cleaned)
        cleaned.wait_converged()
        assert "copying the snapshot" in text
        assert cleaned.status(VICTIM)["log_start_offset"] > 0
        cleaned.stop(VICTIM)
    finally:
        cleaned.storage_dir(VICTIM).rename(kept.with_name("copied"))
        kept.rename(cleaned.storage_dir(VICTIM))


@pytest.mark.parametrize("epoch", [0, 1000])
def test_bytes_that_claim_to_be_a_newer_snapshot_stop_the_node_and_nothing_is_dropped(
    quorum: Cluster, covered: Path, epoch: int
) -> None:
    snapshot = SnapshotId(1_000_000, epoch or newest(quorum)[1].epoch)
    path = path_of(quorum, VICTIM, snapshot)
    scribble(path, snapshot)
    before = {each: look(each) for each in covered.iterdir()}
    text = refused(quorum)
    assert f"{path}: the log, which ends at offset" in text
    assert "does not hold what this snapshot stands for, and the snapshot was not found" in text
    assert "If the file was put there by hand, move it away" in text
    assert {each: look(each) for each in covered.iterdir()} == before
    path.unlink()
    started(quorum)


def test_an_older_snapshot_under_the_name_of_a_newer_one_does_not_replace_the_log(
    quorum: Cluster, covered: Path
) -> None:
    path, snapshot = newest(quorum)
    wrong = path_of(quorum, VICTIM, SnapshotId(1_000_000, snapshot.epoch))
    wrong.write_bytes(path.read_bytes())
    text = refused(quorum)
    assert f"{wrong}: the name says offset 1000000, but this is the snapshot that ends at" in text
    assert "If the file was put there by hand, move it away" in text
    wrong.unlink()
    started(quorum)


def test_a_newer_snapshot_of_the_leader_takes_the_place_of_the_log(
    quorum: Cluster, covered: Path
) -> None:
    put(quorum, 200, first=1_000)
    leader = quorum.wait_leader()
    snapshot = take(quorum, leader)
    copy = path_of(quorum, VICTIM, snapshot)
    copy.write_bytes(path_of(quorum, leader, snapshot).read_bytes())
    text = started(quorum)
    assert "was emptied: it did not hold what the newest snapshot stands for" in text
    assert quorum.status(VICTIM)["log_start_offset"] == snapshot.end_offset
    quorum.wait_converged()


def test_what_an_interrupted_copy_or_build_has_left_is_deleted_and_told(
    quorum: Cluster, covered: Path
) -> None:
    left = [
        covered / "00000000000000000100-0000000001.checkpoint.part",
        covered / "00000000000000000100-3.run.part",
    ]
    for path in left:
        scribble(path, SnapshotId(100, 1))
    text = started(quorum)
    assert "deleted leftovers: " in text
    for path in left:
        assert path.name in text
        assert not path.exists()
