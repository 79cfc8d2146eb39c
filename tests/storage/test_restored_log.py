"""A node's directory from a backup: what is in it, and that it is whole or can't be used."""

from __future__ import annotations

import errno
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorumd.config.addresses import ConfiguredVoter
from quorumd.server.admin import restore as restore_command
from quorumd.server.admin.first_voters import FirstVoters
from quorumd.server.model.producer_state import ProducerState
from quorumd.storage import directory, restored_log
from quorumd.storage.backup_manifest import BackupManifest
from quorumd.storage.directory import format_directory, open_directory, restore_directory
from quorumd.storage.errors import (
    AlreadyFormatted,
    DamagedLog,
    DirectoryLocked,
    DiskFull,
    NotFormatted,
    StorageError,
)
from quorumd.storage.filesystem import FileSystem
from quorumd.storage.layout import (
    META_PROPERTIES,
    PARTITION_DIRECTORY,
    RESTORING,
    log_path,
    partition_directory,
)
from quorumd.storage.log import Log
from quorumd.storage.quorum_state import QuorumState, load_quorum_state
from quorumd.storage.restored_log import restore_log
from quorumd.storage.snapshot_file import SnapshotFacts
from quorumd.storage.snapshot_store import SnapshotStore
from quorumd.wire.control_records import (
    KRaftVersion,
    KRaftVoters,
    decode_control_batch,
    mask_voters,
)
from quorumd.wire.records import BatchHeader, read_header
from tests.server.snapshot_logs import Batches
from tests.storage.backups import put_backup
from tests.storage.faulty_filesystem import FaultyFileSystem, PowerLoss, Survival
from tests.storage.helpers import DIRECTORY, contents, empty_disk
from tests.storage.verified_node import batches_of
from tests.storage.verifying import verified

BACKUP = Path("/backup")
STORAGE = Path("/node/storage")
STORAGE_ID = UUID(int=5 << 64 | 1)


class Site:
    """A disk with a backup on it."""

    def __init__(
        self,
        batches: Batches,
        *,
        first: int = 0,
        snapshot_after: int | None = None,
        fs: FaultyFileSystem | None = None,
    ) -> None:
        self.fs = fs or FaultyFileSystem()
        self.batches = batches
        for path in (BACKUP, STORAGE.parent):
            self.fs.mkdir(path)
        self.fs.fsync_directory(Path("/"))
        self.manifest = put_backup(
            self.fs, BACKUP, batches, first=first, snapshot_after=snapshot_after
        )

    def restore(self, fs: FileSystem | None = None) -> None:
        restore(fs or self.fs, self.manifest)


def restore(fs: FileSystem, manifest: BackupManifest) -> None:
    def fill(directory: Path) -> QuorumState:
        restore_log(fs, BACKUP, manifest, directory, segment_bytes=50_000)
        return QuorumState(
            cluster_id="new", leader_epoch=manifest.epoch, applied_offset=manifest.end_offset
        )

    restore_directory(fs, STORAGE, node_id=2, cluster_id="new", fill=fill, storage_id=STORAGE_ID)


def open_restored(fs: FileSystem) -> tuple[Log, list[SnapshotFacts], list[BatchHeader]]:
    """The log as a node opens it, the snapshots, and the headers that it observes."""
    directory = open_directory(fs, STORAGE, node_id=2)
    assert directory.meta.bootstrap
    assert directory.meta.cluster_id == "new"
    assert directory.meta.storage_id == STORAGE_ID
    facts = SnapshotStore(fs, directory.log_directory).open()
    seen: list[BatchHeader] = []
    log = Log.open(
        fs,
        directory.log_directory,
        segment_bytes=50_000,
        tail_cache_bytes=0,
        committed_offset=directory.begin().applied_offset,
        snapshots=[found.id for found in facts],
        observe=seen.append,
    )
    directory.close()
    return log, facts, seen


def expected(batches: Batches, first: int = 0) -> bytes:
    """The batches, those that name voters changed."""
    return b"".join(
        mask_voters(data) if read_header(data).is_control else data for data in batches.data[first:]
    )


# --- what is in it


@pytest.mark.long
@settings(max_examples=25)
@given(seed=st.integers(0, 2**32), is_cut=st.booleans(), data=st.data())
def test_a_restored_log_has_every_byte_but_names_no_voters(
    seed: int, is_cut: bool, data: st.DataObject
) -> None:
    batches = batches_of(seed)
    snapshot_after = data.draw(st.integers(1, len(batches.data)) if is_cut else st.none())
    first = data.draw(st.integers(0, snapshot_after)) if snapshot_after is not None else 0
    site = Site(batches, first=first, snapshot_after=snapshot_after)
    site.restore()
    log, facts, seen = open_restored(site.fs)
    assert log.recovery.messages() == []
    assert (log.log_start_offset, log.log_end_offset) == (batches.ends[first], batches.ends[-1])
    found = contents(log)
    assert found == expected(batches, first)
    for batch in log.control_batches():
        for _, record in decode_control_batch(batch):
            assert not isinstance(record, KRaftVersion | KRaftVoters)
    assert [(each.voters, each.kraft_version) for each in facts] == [(None, 0)] * len(facts)
    producers, everything = ProducerState(), ProducerState()
    producers.load(facts[-1].producers if facts else ())
    for header in seen:
        producers.note(header)
    for each in batches.data:
        everything.note(read_header(each))
    assert producers.remembered() == everything.remembered()
    log.close()
    assert verified(STORAGE, site.fs).texts == []


def test_the_state_that_goes_with_the_log_is_that_of_the_node() -> None:
    site = Site(batches_of(3))
    site.restore()
    state = load_quorum_state(site.fs, partition_directory(STORAGE))
    assert state is not None
    assert (state.cluster_id, state.leader_epoch) == ("new", site.manifest.epoch)
    assert state.applied_offset == site.manifest.end_offset


def test_all_that_was_copied_is_on_the_disk_once_the_directory_is_formatted() -> None:
    site = Site(batches_of(4, 12), first=2, snapshot_after=6)
    site.restore()
    log, _, _ = open_restored(site.fs.crash(Survival.LOSE, Random(0)))
    assert contents(log) == expected(site.batches, 2)


def test_it_is_said_to_be_unfinished_until_it_is_formatted(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        assert site.fs.exists(STORAGE / RESTORING)
        raise OSError(errno.EIO, "the disk fails")

    site = Site(batches_of(3))
    monkeypatch.setattr(directory, "save_meta_properties", fails)
    with pytest.raises(StorageError, match="the disk fails"):
        site.restore()
    assert state_of(site.fs) == "unfinished"


def test_two_that_restore_the_same_have_the_same_files() -> None:
    batches = batches_of(3)
    sites = [Site(batches, first=5, snapshot_after=20) for _ in range(2)]
    logs = []
    for site in sites:
        site.restore()
        folder = partition_directory(STORAGE)
        logs.append({name: site.fs.contents(folder / name) for name in site.fs.listdir(folder)})
    assert logs[0] == logs[1]


@pytest.mark.parametrize("what", ["start", "end", "size", "sum"])
def test_a_log_that_is_not_what_the_manifest_says_is_not_restored(what: str) -> None:
    site = Site(batches_of(3), first=5, snapshot_after=20)
    manifest = site.manifest
    *others, last = manifest.files
    changed = {
        "start": replace(manifest, start_offset=manifest.start_offset - 1),
        "end": replace(manifest, end_offset=manifest.end_offset + 1),
        "size": replace(manifest, files=(*others, replace(last, size_bytes=last.size_bytes + 1))),
        "sum": replace(manifest, files=(*others, replace(last, sha256="ab" * 32))),
    }
    with pytest.raises(DamagedLog):
        restore(site.fs, changed[what])
    with pytest.raises(NotFormatted):
        open_directory(site.fs, STORAGE, node_id=2)


def test_the_cluster_id_that_follows_from_a_backup_does_not_depend_on_the_order_of_the_voters() -> (
    None
):
    manifest = Site(batches_of(3)).manifest

    def cluster_id(*voters: ConfiguredVoter) -> str:
        config: Any = SimpleNamespace(quorum_voters=voters)
        return restore_command._cluster_id_for(manifest, config, FirstVoters(is_new=True))

    one, two, other = (ConfiguredVoter(node, "h", 9000 + node) for node in (1, 2, 3))
    assert cluster_id(one, two) == cluster_id(two, one)
    assert cluster_id(one, two) != cluster_id(one, other)


# --- whole or not at all


@pytest.mark.long
def test_a_restore_that_was_cut_short_can_be_repeated_and_nothing_else() -> None:
    """Power is lost at every call; whatever of it survives."""
    batches = batches_of(4, 12)
    whole = Site(batches, first=2, snapshot_after=6)
    before = whole.fs.calls
    whole.restore()
    outcomes = set()
    for at in range(before + 1, whole.fs.calls + 2):
        for survival in Survival:
            site = Site(batches, first=2, snapshot_after=6)
            site.fs.crash_at = at
            with suppress(PowerLoss):
                site.restore()
            fs = site.fs.crash(survival, Random(at))
            outcomes.add(state_of(fs))
            if state_of(fs) != "whole":
                restore(fs, site.manifest)
            log, _, _ = open_restored(fs)
            assert contents(log) == expected(batches, 2), f"{survival} at {at}"
            assert not fs.exists(STORAGE / RESTORING)
    assert outcomes == {"untouched", "unfinished", "whole"}


def state_of(fs: FaultyFileSystem) -> str:
    """What a start or a format says of the directory, which must be one of three things."""
    if fs.exists(STORAGE / META_PROPERTIES):
        with pytest.raises(AlreadyFormatted, match="formatted already"):
            format_directory(fs, STORAGE, node_id=2)
        return "whole"
    with pytest.raises(NotFormatted) as caught:
        open_directory(fs, STORAGE, node_id=2)
    if "a restore was begun here and not finished" in str(caught.value):
        assert "Run the same `quorumd restore` again" in str(caught.value)
        with pytest.raises(AlreadyFormatted, match="a restore was begun here"):
            format_directory(fs, STORAGE, node_id=2)
        return "unfinished"
    log = partition_directory(STORAGE)
    assert not fs.exists(log) or not fs.listdir(log)
    return "untouched"


def test_a_full_disk_ends_it_and_it_can_be_repeated() -> None:
    site = Site(batches_of(5))
    site.fs.capacity_bytes = site.manifest.size_bytes + 10_000
    with pytest.raises(DiskFull):
        site.restore()
    assert state_of(site.fs) == "unfinished"
    site.fs.capacity_bytes = None
    site.restore()
    assert contents(open_restored(site.fs)[0]) == expected(site.batches)


def test_a_disk_that_fails_is_said_to() -> None:
    site = Site(batches_of(5))
    site.fs.errors = {"fsync": errno.EIO}
    with pytest.raises(StorageError, match="was told to fail"):
        site.restore()
    assert state_of(site.fs) in ("untouched", "unfinished")


def test_a_directory_in_use_is_never_taken() -> None:
    site = Site(batches_of(5))
    format_directory(site.fs, STORAGE, node_id=2)
    with pytest.raises(AlreadyFormatted, match="formatted already"):
        site.restore()


def test_a_directory_that_is_formatted_while_its_lock_is_waited_for_is_never_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = Site(batches_of(5))
    lock = site.fs.try_lock

    def try_lock(handle: int) -> bool:
        format_directory(site.fs, STORAGE, node_id=3)
        site.fs.put(log_path(partition_directory(STORAGE), 0), b"something")
        return lock(handle)

    monkeypatch.setattr(site.fs, "try_lock", try_lock)
    with pytest.raises(AlreadyFormatted, match="formatted already"):
        site.restore()
    assert site.fs.contents(log_path(partition_directory(STORAGE), 0)) == b"something"
    assert site.fs.open_handles == 0


def test_a_log_without_an_owner_is_never_taken() -> None:
    site = Site(batches_of(5))
    for path in (STORAGE, partition_directory(STORAGE)):
        site.fs.mkdir(path)
    site.fs.put(log_path(partition_directory(STORAGE), 0), b"something")
    with pytest.raises(AlreadyFormatted, match="there is a log"):
        site.restore()


def test_two_restores_at_once_do_not_meet() -> None:
    site = Site(batches_of(5))

    def fill(directory: Path) -> QuorumState:
        with pytest.raises(DirectoryLocked):
            site.restore()
        restore_log(site.fs, BACKUP, site.manifest, directory, segment_bytes=50_000)
        return QuorumState(applied_offset=site.manifest.end_offset)

    restore_directory(
        site.fs, STORAGE, node_id=2, cluster_id="new", fill=fill, storage_id=STORAGE_ID
    )
    assert contents(open_restored(site.fs)[0]) == expected(site.batches)


def test_a_backup_that_changes_after_it_was_verified_is_not_restored() -> None:
    site = Site(batches_of(5))
    site.fs.flip(log_path(BACKUP, 0), 90)
    with pytest.raises(DamagedLog, match=r"not those that backup.json names"):
        site.restore()
    assert state_of(site.fs) == "unfinished"


def test_leftovers_in_the_partition_directory_are_replaced_by_a_repeated_restore() -> None:
    site = Site(batches_of(5))
    site.fs.capacity_bytes = site.manifest.size_bytes + 10_000
    with pytest.raises(DiskFull):
        site.restore()
    site.fs.capacity_bytes = None
    stray = STORAGE / PARTITION_DIRECTORY / f"{10**9:020d}.log"
    site.fs.put(stray, b"stray")
    site.restore()
    assert not site.fs.exists(stray)
    assert verified(STORAGE, site.fs).texts == []


@pytest.mark.pure
def test_what_is_written_is_synced_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the disk would be full of work for the one sync at the end."""
    monkeypatch.setattr(restored_log, "_STEP_BYTES", 1)
    monkeypatch.setattr(restored_log, "_SYNC_STEP_BYTES", 4)
    fs = empty_disk()
    synced: list[int] = []
    handle = fs.open(DIRECTORY / "a", writable=True, create=True)
    monkeypatch.setattr(fs, "fdatasync", synced.append)
    writer = restored_log._Writer(fs, handle)
    for _ in range(10):
        writer.add(b"x")
    assert (len(synced), writer.position) == (2, 10)
    fs.close(handle)
