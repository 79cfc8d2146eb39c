"""Formatting, locking, whose directory it is, and the reserve for a full disk."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from uuid import UUID

import pytest

from quorumd.storage.directory import RESERVE_BYTES, format_directory, open_directory
from quorumd.storage.errors import (
    EXIT_DAMAGED,
    AlreadyFormatted,
    DamagedFile,
    DirectoryLocked,
    DiskFull,
    ForeignDirectory,
    Misplaced,
    NotFormatted,
    ReadOnlyDirectory,
)
from quorumd.storage.filesystem import RealFileSystem
from quorumd.storage.layout import RESTORING
from quorumd.storage.meta_properties import LogOwner, MetaProperties
from quorumd.storage.quorum_state import QuorumState, load_quorum_state
from tests.storage.faulty_filesystem import FaultyFileSystem, PowerLoss, Survival

ROOT = Path("/srv/quorumd/data")
ONE = UUID("3a2b1c0d-4e5f-4a6b-8c7d-9e8f7a6b5c4d")


def used_bytes(fs: FaultyFileSystem) -> int:
    return sum(len(file.data) for file in fs._live.values())


def formatted() -> FaultyFileSystem:
    fs = FaultyFileSystem()
    format_directory(fs, ROOT, node_id=1, storage_id=ONE, cluster_id="c")
    return fs


def test_a_formatted_directory_opens() -> None:
    fs = FaultyFileSystem()
    meta = format_directory(
        fs, ROOT, node_id=2, cluster_id="c", log_owner=LogOwner.KAFKA, bootstrap=True
    )
    directory = open_directory(fs, ROOT, node_id=2)
    assert directory.meta == meta
    assert meta == MetaProperties(
        node_id=2,
        storage_id=meta.storage_id,
        cluster_id="c",
        log_owner=LogOwner.KAFKA,
        bootstrap=True,
    )
    assert directory.begin() == QuorumState()
    directory.save_quorum_state(QuorumState(leader_epoch=3))
    directory.save_meta(replace(directory.meta, cluster_id="d"))
    directory.close()
    again = open_directory(fs, ROOT, node_id=2)
    assert again.begin() == QuorumState(leader_epoch=3)
    assert again.meta.cluster_id == "d"


@pytest.mark.parametrize("lost", ["quorum-state.json", ""])
def test_a_log_that_is_lost_is_not_taken_for_a_new_one(lost: str) -> None:
    """Its votes and what it has acknowledged are lost, too: it could vote for one that lacks records."""
    fs = formatted()
    directory = open_directory(fs, ROOT, node_id=1)
    directory.begin()
    directory.close()
    for name in [lost] if lost else fs.listdir(directory.log_directory):
        fs.remove(directory.log_directory / name)
    again = open_directory(fs, ROOT, node_id=1)
    with pytest.raises(
        DamagedFile, match=r"this node has run before.*Mount the disk.*Format a new"
    ):
        again.begin()


def test_a_directory_of_an_earlier_version_has_started_when_it_has_a_state() -> None:
    fs = formatted()
    directory = open_directory(fs, ROOT, node_id=1)
    directory.save_quorum_state(QuorumState(leader_epoch=5))
    assert directory.begin() == QuorumState(leader_epoch=5)
    assert directory.meta.has_started


@pytest.mark.parametrize("survival", Survival)
def test_a_crash_at_the_first_start_leaves_one_that_can_be_repeated(survival: Survival) -> None:
    is_done, at = False, 0
    while not is_done:
        at += 1
        fs = formatted()
        fs.crash_at = fs.calls + at
        with suppress(PowerLoss):
            open_directory(fs, ROOT, node_id=1).begin()
            is_done = True
        after = fs.crash(survival, Random(at))
        assert open_directory(after, ROOT, node_id=1).begin() == QuorumState()


@pytest.mark.parametrize("survival", Survival)
def test_a_crash_while_formatting_leaves_a_formatted_directory_or_none(survival: Survival) -> None:
    for at in range(1, 15):
        fs = FaultyFileSystem()
        fs.crash_at = at
        is_done = False
        with suppress(PowerLoss):
            format_directory(fs, ROOT, node_id=1, storage_id=ONE)
            is_done = True
        after = fs.crash(survival, Random(at))
        try:
            open_directory(after, ROOT, node_id=1).close()
        except NotFormatted:
            assert not is_done
            format_directory(after, ROOT, node_id=1, storage_id=ONE)


def test_a_directory_is_formatted_once() -> None:
    fs = formatted()
    with pytest.raises(AlreadyFormatted, match="formatted already"):
        format_directory(fs, ROOT, node_id=1)


def test_a_log_without_meta_properties_is_not_formatted_over() -> None:
    fs = formatted()
    fs.put(ROOT / "__cluster_metadata-0/00000000000000000000.log", b"")
    fs.remove(ROOT / "meta.properties")
    with pytest.raises(AlreadyFormatted, match=r"no meta\.properties"):
        format_directory(fs, ROOT, node_id=1)


def test_an_unformatted_directory_names_the_command() -> None:
    with pytest.raises(NotFormatted, match="quorumd format"):
        open_directory(FaultyFileSystem(), ROOT, node_id=1)


def test_an_empty_directory_may_be_where_a_disk_is_to_be_mounted() -> None:
    """A node that is formatted there is another replica, on another disk."""
    fs = FaultyFileSystem()
    fs.mkdir(ROOT)
    with pytest.raises(NotFormatted, match="If its disk is not mounted, mount it"):
        open_directory(fs, ROOT, node_id=1)


def test_a_directory_that_one_may_not_look_into_is_not_taken_for_unformatted() -> None:
    fs = formatted()
    fs.errors["exists"] = errno.EACCES
    with pytest.raises(ReadOnlyDirectory, match="who owns it and what is above it"):
        open_directory(fs, ROOT, node_id=1)


def test_meta_properties_that_link_to_nothing_are_not_taken_for_missing(tmp_path: Path) -> None:
    fs, meta = RealFileSystem(), tmp_path / "meta.properties"
    meta.symlink_to(tmp_path / "volume/meta.properties")
    with pytest.raises(DamagedFile, match="a link to what is not there"):
        open_directory(fs, tmp_path, node_id=1)


@pytest.mark.parametrize("name", ["meta.properties", ".lock", ".reserve", "__cluster_metadata-0"])
def test_what_lies_where_something_else_belongs_is_named(tmp_path: Path, name: str) -> None:
    fs = RealFileSystem()
    format_directory(fs, tmp_path, node_id=1)
    path = tmp_path / name
    if path.is_dir():
        path.rmdir()
        path.touch()
        name += "/quorum-state.json"
    else:
        path.unlink(missing_ok=True)
        path.mkdir()
    with pytest.raises(Misplaced) as caught:
        open_directory(fs, tmp_path, node_id=1).begin()
    assert caught.value.path == tmp_path / name
    assert caught.value.exit_code == EXIT_DAMAGED


def test_the_directory_of_another_node_is_refused_and_unlocked() -> None:
    fs = formatted()
    with pytest.raises(ForeignDirectory, match="belongs to node 1, this is node 2"):
        open_directory(fs, ROOT, node_id=2)
    assert fs.open_handles == 0
    open_directory(fs, ROOT, node_id=1)


@pytest.mark.parametrize(
    "own",
    [
        "bootstrap.checkpoint",
        "__cluster_metadata-0/quorum-state",
        "__cluster_metadata-0/partition.metadata",
    ],
)
def test_the_directory_of_a_kafka_node_is_refused_and_left_alone(own: str) -> None:
    meta, fs = b"node.id=1\nversion=1\ncluster.id=c\n", formatted()
    fs.put(ROOT / "meta.properties", meta)
    fs.put(ROOT / own, b"")
    with pytest.raises(ForeignDirectory, match="quorumd format --kafka-log --cluster-id"):
        open_directory(fs, ROOT, node_id=1)
    assert fs.open_handles == 0
    assert fs.contents(ROOT / "meta.properties") == meta
    # Where a Kafka node was started on a directory of quorumd by mistake, its owner still has it.
    fs.put(ROOT / "meta.properties", meta + b"log.owner=quorumd\n")
    open_directory(fs, ROOT, node_id=1).close()


def test_a_locked_directory_names_the_process() -> None:
    fs = formatted()
    directory = open_directory(fs, ROOT, node_id=1)
    with pytest.raises(DirectoryLocked, match="pid 4711"):
        open_directory(fs, ROOT, node_id=1)
    directory.close()
    open_directory(fs, ROOT, node_id=1)


def test_of_a_former_process_with_a_longer_number_nothing_is_left() -> None:
    fs = formatted()
    fs.put(ROOT / ".lock", b"123456789\n")
    open_directory(fs, ROOT, node_id=1)
    assert fs.contents(ROOT / ".lock") == b"4711\n"


@pytest.mark.live
def test_the_lock_is_seen_by_another_process_and_ends_with_it(tmp_path: Path) -> None:
    fs = RealFileSystem()
    format_directory(fs, tmp_path / "data", node_id=1)
    script = (
        "import sys; from pathlib import Path; from quorumd.storage.directory import open_directory\n"
        "from quorumd.storage.filesystem import RealFileSystem\n"
        "open_directory(RealFileSystem(), Path(sys.argv[1]), node_id=1)\n"
        "print('open', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "data")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"open\n"
        with pytest.raises(DirectoryLocked, match=f"pid {holder.pid}"):
            open_directory(fs, tmp_path / "data", node_id=1)
    finally:
        holder.kill()
        holder.communicate()
    open_directory(fs, tmp_path / "data", node_id=1).close()


@pytest.mark.live
def test_a_directory_that_a_java_program_has_locked_is_refused(tmp_path: Path) -> None:
    """Java's locks are those of fcntl, which flock does not see."""
    fs = RealFileSystem()
    format_directory(fs, tmp_path / "data", node_id=1)
    with java_lock(tmp_path / "data") as is_taken:
        assert is_taken
        for _ in range(2):
            with pytest.raises(DirectoryLocked, match="such as a Kafka node"):
                open_directory(fs, tmp_path / "data", node_id=1)
    open_directory(fs, tmp_path / "data", node_id=1).close()


@pytest.mark.live
def test_an_open_directory_is_locked_for_java_programs(tmp_path: Path) -> None:
    fs = RealFileSystem()
    format_directory(fs, tmp_path / "data", node_id=1)
    directory = open_directory(fs, tmp_path / "data", node_id=1)
    with pytest.raises(DirectoryLocked, match="pid"):
        open_directory(fs, tmp_path / "data", node_id=1)
    with java_lock(tmp_path / "data") as is_taken:
        assert not is_taken
    directory.close()
    with java_lock(tmp_path / "data") as is_taken:
        assert is_taken


@contextmanager
def java_lock(storage_dir: Path) -> Iterator[bool]:
    """Another process has asked for the lock as Java does; whether it got it."""
    script = (
        "import fcntl, sys; file = open(sys.argv[1], 'a')\n"
        "try: fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "except BlockingIOError: print('refused', flush=True)\n"
        "else: print('taken', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(storage_dir / ".lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline() == "taken\n"
        finally:
            process.kill()


def test_a_read_only_directory_is_refused() -> None:
    fs = formatted()
    fs.errors["create"] = 30
    with pytest.raises(ReadOnlyDirectory):
        open_directory(fs, ROOT, node_id=1)


def test_the_reserve_lets_a_full_disk_take_votes() -> None:
    fs = formatted()
    directory = open_directory(fs, ROOT, node_id=1)
    reserve = ROOT / ".reserve"
    assert len(fs.contents(reserve)) == RESERVE_BYTES
    fs.capacity_bytes = used_bytes(fs)
    for epoch in range(1, 20):
        # Whatever the reserve gives back, somebody else may take all but a little of it.
        directory.save_quorum_state(QuorumState(leader_epoch=epoch))
        if fs.exists(reserve):
            continue
        fs.capacity_bytes = used_bytes(fs) + 4096
    assert directory.begin() == QuorumState(leader_epoch=19)
    assert not fs.exists(reserve)
    fs.capacity_bytes = None
    directory.save_quorum_state(QuorumState(leader_epoch=20))
    assert len(fs.contents(reserve)) == RESERVE_BYTES


def test_the_call_that_needs_the_reserve_does_not_take_it_back() -> None:
    """Else each of the next would give it back again, and write 1 MiB, on a disk that is full."""
    fs = formatted()
    directory = open_directory(fs, ROOT, node_id=1)
    directory.save_quorum_state(QuorumState())
    fs.capacity_bytes = used_bytes(fs)
    directory.save_quorum_state(QuorumState(leader_epoch=1))
    assert not fs.exists(ROOT / ".reserve")
    directory.save_quorum_state(QuorumState(leader_epoch=2))
    assert directory.begin() == QuorumState(leader_epoch=2)


def test_an_opening_that_is_interrupted_holds_no_lock() -> None:
    def interrupted(call: int) -> None:
        if fs.log[-1] == "create":
            raise KeyboardInterrupt

    fs = formatted()
    open_directory(fs, ROOT, node_id=1).close()
    fs.remove(ROOT / ".reserve")
    fs.before_change = interrupted
    with pytest.raises(KeyboardInterrupt):
        open_directory(fs, ROOT, node_id=1)
    assert fs.open_handles == 0


def test_a_reserve_that_was_cut_short_is_made_whole() -> None:
    fs = formatted()
    fs.put(ROOT / ".reserve", bytes(512))
    open_directory(fs, ROOT, node_id=1)
    assert len(fs.contents(ROOT / ".reserve")) == RESERVE_BYTES


def test_a_disk_without_any_space_is_full_even_with_the_reserve_spent() -> None:
    fs = formatted()
    fs.capacity_bytes = 0
    directory = open_directory(fs, ROOT, node_id=1)
    with pytest.raises(DiskFull):
        directory.save_quorum_state(QuorumState(leader_epoch=1))
    assert load_quorum_state(fs, directory.log_directory) is None


def test_leftovers_of_an_interrupted_replacement_are_deleted() -> None:
    fs = formatted()
    fs.put(ROOT / "meta.properties.tmp", b"half")
    open_directory(fs, ROOT, node_id=1)
    assert not fs.exists(ROOT / "meta.properties.tmp")


def test_what_is_reserved_survives_a_power_loss_before_it_is_needed() -> None:
    fs = formatted()
    open_directory(fs, ROOT, node_id=1)
    after = fs.crash(Survival.LOSE, Random(1))
    assert len(after.contents(ROOT / ".reserve")) == RESERVE_BYTES


def test_what_says_that_a_restore_goes_on_goes_when_it_is_opened() -> None:
    fs = formatted()
    fs.put(ROOT / RESTORING, b"")
    fs.put(ROOT / "meta.properties.tmp", b"")
    open_directory(fs, ROOT, node_id=1)
    assert not fs.exists(ROOT / RESTORING)
