"""`quorumctl backup --storage-dir`: what it takes of a stopped node's disk, and what it refuses."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from quorumd.cli import directory_backup
from quorumd.cli.options import BOOTSTRAP_VARIABLE
from quorumd.storage.backup_manifest import BackupManifest, load_manifest
from quorumd.storage.directory import format_directory, open_directory
from quorumd.storage.filesystem import RealFileSystem
from quorumd.storage.layout import (
    EPOCH_CHECKPOINT,
    KAFKA_PARTITION,
    META_PROPERTIES,
    PARTITION_DIRECTORY,
    QUORUM_STATE,
    index_path,
    log_path,
)
from quorumd.storage.log import Log
from quorumd.storage.meta_properties import LogOwner
from quorumd.storage.quorum_state import QuorumState, save_quorum_state
from quorumd.storage.verify import stopped
from quorumd.wire.records import iter_headers
from tests.quorumd.conftest import Done
from tests.quorumd.running import on_a_terminal
from tests.storage.backups import put_backup
from tests.storage.verified_node import SEGMENT_BYTES, STORAGE, Node, batches_of
from tests.storage.verifying import put_real_snapshot, verified
from tests.support.mounts import mounted, tmpfs_or_skip

Run = Callable[..., Done]
FS = RealFileSystem()
SEED_OF_LONG_LAST_SEGMENT = 2

SIGNALLED = """
import os, sys
from quorumd.cli import directory_backup
from quorumd.cli.backup_files import BackupFiles
from quorumd.cli.main import run

directory_backup._STEP_BATCHES = 1
append = BackupFiles.append
appended = []

def append_and_signal(self, data, base_offset):
    append(self, data, base_offset)
    appended.append(base_offset)
    if len(appended) == 3:
        os.kill(os.getpid(), int(sys.argv[1]))

BackupFiles.append = append_and_signal
sys.exit(run(["backup", "--storage-dir", sys.argv[2], sys.argv[3]]))
"""
"""A backup that gets a signal while the log is copied."""


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.fixture
def storage(node: Node, tmp_path: Path) -> Path:
    """The node's directory on a real disk."""
    return put_on_disk(node, tmp_path / "storage")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "place").mkdir()
    return tmp_path / "place" / "backup"


def put_on_disk(node: Node, storage: Path) -> Path:
    log = storage / PARTITION_DIRECTORY
    log.mkdir(parents=True)
    for path in node.files():
        (storage / path.relative_to(STORAGE)).write_bytes(node.fs.contents(path))
    return storage


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def log_of(backup: Path) -> bytes:
    manifest = load_manifest(FS, backup)
    return b"".join((backup / file.name).read_bytes() for file in manifest.segments)


def sound(target: Path) -> BackupManifest:
    assert verified(target).texts == []
    assert os.listdir(target.parent) == [target.name]
    return load_manifest(FS, target)


def check_refused(done: Done, code: int, text: str, target: Path) -> None:
    assert (done.code, done.out) == (code, "")
    assert "Traceback" not in done.err
    assert text in done.err
    assert os.listdir(target.parent) == []


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


# --- what it takes


@pytest.mark.parametrize("seed", range(1, 6))
def test_the_log_and_the_newest_snapshot_are_copied_byte_for_byte(
    quorumctl: Run, tmp_path: Path, target: Path, seed: int
) -> None:
    node = Node(seed)
    storage = put_on_disk(node, tmp_path / "storage")
    before = contents(storage)
    done = quorumctl("backup", "--storage-dir", storage, target)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(
        f"backed up offsets 0 to {node.ends[-1]} (exclusive) of cluster cluster to {target}: "
    )
    assert contents(storage) == before
    manifest = sound(target)
    assert log_of(target) == b"".join(node.batches.data)
    assert (manifest.start_offset, manifest.end_offset) == (0, node.ends[-1])
    assert manifest.epoch == node.batches.epoch
    assert manifest.begun_at <= manifest.ended_at
    newest = node.snapshots[-1]
    assert manifest.snapshot is not None
    assert manifest.snapshot.name == newest.name
    assert (target / newest.name).read_bytes() == node.fs.contents(newest)


def test_json_says_the_same(quorumctl: Run, node: Node, storage: Path, target: Path) -> None:
    done = quorumctl("backup", "--storage-dir", storage, target, "-o", "json")
    found = json.loads(done.out)
    assert (found["start_offset"], found["end_offset"]) == (0, node.ends[-1])
    assert found["cluster_id"] == "cluster"


def test_a_log_that_begins_above_0_comes_with_its_snapshot(
    quorumctl: Run, node: Node, storage: Path, target: Path
) -> None:
    end = node.ends[30]
    log = storage / PARTITION_DIRECTORY
    for base, following in zip(node.bases, node.bases[1:], strict=False):
        if following <= end:
            log_path(log, base).unlink()
    (log / EPOCH_CHECKPOINT).unlink()
    start = max(base for base in node.bases if base <= end)
    assert start > 0
    assert quorumctl("backup", "--storage-dir", storage, target).code == 0
    manifest = sound(target)
    assert (manifest.start_offset, manifest.end_offset) == (start, node.ends[-1])


def test_a_torn_tail_ends_where_the_next_start_would_end_it(quorumctl: Run, tmp_path: Path) -> None:
    """Cut at every kind of place of the last three batches, with zeros behind it or without."""
    node = Node(SEED_OF_LONG_LAST_SEGMENT)
    storage = put_on_disk(node, tmp_path / "storage")
    log = storage / PARTITION_DIRECTORY
    last = log_path(log, node.bases[-1])
    whole = last.read_bytes()
    headers = list(iter_headers(whole))[-3:]
    below = headers[0][1].base_offset
    state = QuorumState(cluster_id="cluster", leader_epoch=9, applied_offset=below)
    save_quorum_state(FS, log, state)
    cuts = [position + step for position, _ in headers for step in (0, 1, 40, 61)]
    ends = set()
    end = headers[-1][0] + headers[-1][1].size_bytes
    for number, cut in enumerate((*cuts, end - 20)):
        for zeros in (0, 5000):
            last.write_bytes(whole[:cut] + bytes(zeros))
            target = tmp_path / "places" / f"{number}-{zeros}" / "backup"
            target.parent.mkdir(parents=True)
            done = quorumctl("backup", "--storage-dir", storage, target)
            assert done.code == 0, done.err
            started = shutil.copytree(log, tmp_path / f"started-{number}-{zeros}")
            opened = Log.open(
                FS,
                started,
                segment_bytes=SEGMENT_BYTES,
                tail_cache_bytes=0,
                committed_offset=below,
                snapshots=[],
            )
            opened.close()
            manifest = sound(target)
            assert manifest.end_offset == opened.log_end_offset
            assert b"".join(node.batches.data).startswith(log_of(target))
            ends.add(manifest.end_offset)
    assert ends == {header.base_offset for _, header in headers}


@pytest.mark.parametrize(("applied", "known"), [(-4, -4), (0, 30)], ids=["state", "snapshot"])
def test_it_says_how_much_may_not_have_been_committed(
    quorumctl: Run, node: Node, storage: Path, target: Path, applied: int, known: int
) -> None:
    """A snapshot has nothing else, whatever the quorum state says."""
    state = QuorumState(cluster_id="cluster", leader_epoch=9, applied_offset=node.ends[applied])
    save_quorum_state(FS, storage / PARTITION_DIRECTORY, state)
    done = quorumctl("backup", "--storage-dir", storage, target)
    assert done.code == 0
    assert done.err.startswith(
        f"the last {node.ends[-1] - node.ends[known]} offsets may never have been committed"
    )
    assert sound(target).end_offset == node.ends[-1]


@pytest.mark.parametrize("number", range(4), ids=["index", "epochs", "state", "older snapshot"])
def test_what_no_backup_holds_may_be_damaged(
    quorumctl: Run, node: Node, storage: Path, target: Path, number: int
) -> None:
    log = storage / PARTITION_DIRECTORY
    path = (
        index_path(log, node.bases[0]),
        log / EPOCH_CHECKPOINT,
        log / QUORUM_STATE,
        log / node.snapshots[0].name,
    )[number]
    path.write_bytes(bytes(each ^ 1 for each in path.read_bytes()))
    done = quorumctl("backup", "--storage-dir", storage, target)
    assert done.code == 0, done.err
    assert done.err.startswith(f"Warning: {path}: ")
    assert sound(target).end_offset == node.ends[-1]


def test_a_damaged_snapshot_is_done_without_where_another_or_the_log_does(
    quorumctl: Run, node: Node, storage: Path, target: Path
) -> None:
    flip(storage / node.snapshots[-1].relative_to(STORAGE), 200)
    assert quorumctl("backup", "--storage-dir", storage, target).code == 0
    snapshot = sound(target).snapshot
    assert snapshot is not None
    assert snapshot.name == node.snapshots[0].name


def test_a_snapshot_that_the_log_does_not_reach_stands_alone(
    quorumctl: Run, node: Node, tmp_path: Path, target: Path
) -> None:
    """The node was ended after it had copied a snapshot, and before its log began anew there."""
    end = node.ends[-1] + 100
    put_real_snapshot(node.fs, end, 50)
    storage = put_on_disk(node, tmp_path / "storage")
    assert quorumctl("backup", "--storage-dir", storage, target).code == 0
    manifest = sound(target)
    assert manifest.segments == ()
    assert (manifest.start_offset, manifest.end_offset, manifest.epoch) == (end, end, 50)


def test_an_empty_log_behind_a_snapshot_is_no_part_of_it(
    quorumctl: Run, tmp_path: Path, target: Path
) -> None:
    storage = tmp_path / "storage"
    format_directory(FS, storage, node_id=1, cluster_id="cluster")
    log = storage / PARTITION_DIRECTORY
    put_real_snapshot(FS, 40, 3, log)
    Log.open(
        FS,
        log,
        segment_bytes=SEGMENT_BYTES,
        tail_cache_bytes=0,
        committed_offset=40,
        snapshots=[(40, 3)],
    ).close()
    save_quorum_state(FS, log, QuorumState(cluster_id="cluster", leader_epoch=3, applied_offset=40))
    assert quorumctl("backup", "--storage-dir", storage, target).code == 0
    manifest = sound(target)
    assert manifest.segments == ()
    assert (manifest.start_offset, manifest.end_offset, manifest.epoch) == (40, 40, 3)


def test_the_variable_for_running_quorums_does_not_matter(
    quorumctl: Run,
    monkeypatch: pytest.MonkeyPatch,
    storage: Path,
    target: Path,
) -> None:
    monkeypatch.setenv(BOOTSTRAP_VARIABLE, "localhost:1")
    assert quorumctl("backup", "--storage-dir", storage, target).code == 0
    sound(target)


def test_on_a_terminal_it_ends_with_the_same_lines(storage: Path, target: Path) -> None:
    code, shown = on_a_terminal("backup", "--storage-dir", str(storage), str(target))
    assert code == 0
    assert "backed up offsets 0 to" in shown
    sound(target)


# --- what it refuses


def test_a_damaged_segment_is_named_and_nothing_is_written(
    quorumctl: Run, node: Node, storage: Path, target: Path
) -> None:
    number = node.with_many()
    position, offset, size = node.second_batch(number)
    path = storage / node.segment(number).relative_to(STORAGE)
    flip(path, position + size - 1)
    before = contents(storage)
    done = quorumctl("backup", "--storage-dir", storage, target)
    check_refused(done, 3, f"{path}: byte {position}, offset {offset}: the CRC", target)
    assert "Nothing was written. Use the directory of another node" in done.err
    assert contents(storage) == before


def test_a_log_that_ends_below_what_was_committed_is_damaged(
    quorumctl: Run, node: Node, storage: Path, target: Path
) -> None:
    last = log_path(storage / PARTITION_DIRECTORY, node.bases[-1])
    last.write_bytes(last.read_bytes()[:-1])
    done = quorumctl("backup", "--storage-dir", storage, target)
    check_refused(done, 3, f"everything below {node.ends[-1]} was committed", target)


def test_a_log_whose_beginning_no_snapshot_holds_is_damaged(
    quorumctl: Run, node: Node, storage: Path, target: Path
) -> None:
    log_path(storage / PARTITION_DIRECTORY, 0).unlink()
    for path in node.snapshots:
        (storage / path.relative_to(STORAGE)).unlink()
    done = quorumctl("backup", "--storage-dir", storage, target)
    check_refused(done, 3, "no snapshot holds what was before", target)


def test_bytes_that_change_after_they_were_verified_end_it(
    quorumctl: Run,
    monkeypatch: pytest.MonkeyPatch,
    node: Node,
    storage: Path,
    target: Path,
) -> None:
    position, _, _ = node.second_batch(0)
    path = storage / node.segment(0).relative_to(STORAGE)

    def say_nothing_and_spoil(source: stopped.BackupSource) -> None:
        assert source.end_offset == node.ends[-1]
        flip(path, position + 80)

    monkeypatch.setattr(directory_backup, "_say_what_is_unknown", say_nothing_and_spoil)
    done = quorumctl("backup", "--storage-dir", storage, target)
    check_refused(done, 3, "it was sound when it was verified, and is not any more", target)


def test_the_directory_of_a_running_node_is_refused(
    quorumctl: Run, storage: Path, target: Path
) -> None:
    running = open_directory(FS, storage, node_id=1)
    try:
        done = quorumctl("backup", "--storage-dir", storage, target)
        check_refused(done, 2, "a node runs on this directory", target)
    finally:
        running.close()
    assert quorumctl("backup", "--storage-dir", storage, target).code == 0


def test_no_node_starts_on_the_directory_meanwhile(storage: Path) -> None:
    with stopped.lock_stopped(storage):
        open_directory(FS, storage, node_id=1).close()  # Without a lock file there is no lock.
    with (
        stopped.lock_stopped(storage),
        pytest.raises(Exception, match="the directory is in use by the process"),
    ):
        open_directory(FS, storage, node_id=1)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda path: None, "there is no such file or directory"),
        (lambda path: path.mkdir(), "there is no log in this directory and no backup"),
        (lambda path: path.write_bytes(b""), "by its name this is no segment"),
        (
            lambda path: format_directory(FS, path, node_id=1),
            "there is nothing to back up: this node has no records",
        ),
        (
            lambda path: format_directory(
                FS, path, node_id=1, cluster_id="abc", log_owner=LogOwner.KAFKA
            ),
            "this is the log of a Kafka quorum",
        ),
    ],
    ids=["nothing", "empty", "a file", "never started", "Kafka's"],
)
def test_another_path_is_refused(
    quorumctl: Run, tmp_path: Path, target: Path, make: Callable[[Path], object], text: str
) -> None:
    make(tmp_path / "storage")
    done = quorumctl("backup", "--storage-dir", tmp_path / "storage", target)
    check_refused(done, 2, text, target)


def test_a_controllers_own_directory_is_refused(
    quorumctl: Run, storage: Path, target: Path
) -> None:
    (storage / PARTITION_DIRECTORY / KAFKA_PARTITION).write_bytes(b"version: 0")
    done = quorumctl("backup", "--storage-dir", storage, target)
    check_refused(done, 2, "this is the log of a Kafka quorum", target)


def test_a_backup_and_a_log_alone_are_no_storage_dir(
    quorumctl: Run, storage: Path, tmp_path: Path, target: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    put_backup(FS, other, batches_of(1))
    done = quorumctl("backup", "--storage-dir", other, target)
    check_refused(done, 2, "this is a backup, not the storage.dir of a node", target)
    done = quorumctl("backup", "--storage-dir", storage / PARTITION_DIRECTORY, target)
    check_refused(done, 2, "this is a log, not the storage.dir of a node", target)


def test_a_directory_that_does_not_say_whose_it_is_is_refused(
    quorumctl: Run, storage: Path, target: Path
) -> None:
    (storage / META_PROPERTIES).unlink()
    done = quorumctl("backup", "--storage-dir", storage, target)
    check_refused(done, 2, "there is no meta.properties", target)


def test_one_of_both_sources_has_to_be_named(
    quorumctl: Run, monkeypatch: pytest.MonkeyPatch, storage: Path, target: Path
) -> None:
    done = quorumctl("backup", "-b", "localhost:1", "--storage-dir", storage, target)
    check_refused(done, 2, "give either --bootstrap-server or --storage-dir", target)
    monkeypatch.delenv(BOOTSTRAP_VARIABLE, raising=False)
    done = quorumctl("backup", target)
    check_refused(done, 2, "Missing option '--bootstrap-server' / '-b'; or --storage-dir", target)


def test_a_place_in_the_directory_itself_is_refused(
    quorumctl: Run, storage: Path, target: Path
) -> None:
    before = contents(storage)
    done = quorumctl("backup", "--storage-dir", storage, storage / "backup")
    check_refused(done, 2, "this is in the directory that is to be backed up", target)
    assert contents(storage) == before


def test_a_place_that_is_taken_is_refused_before_anything_is_read(
    quorumctl: Run, storage: Path, target: Path
) -> None:
    target.write_bytes(b"mine")
    flip(log_path(storage / PARTITION_DIRECTORY, 0), 70)
    done = quorumctl("backup", "--storage-dir", storage, target)
    assert (done.code, target.read_bytes()) == (2, b"mine")
    assert "a file is in the way" in done.err


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_leaves_nothing_behind(storage: Path, target: Path, number: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SIGNALLED, str(int(number)), str(storage), str(target)],
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert b"Traceback" not in done.stderr
    assert os.listdir(target.parent) == []


@pytest.mark.long
def test_a_full_disk_leaves_nothing_behind(quorumctl: Run, storage: Path, target: Path) -> None:
    with mounted(target.parent, tmpfs_or_skip("64k")):
        done = quorumctl("backup", "--storage-dir", storage, target)
        assert done.code == 1
        assert "can't be written: No space left on device" in done.err
        assert os.listdir(target.parent) == []
