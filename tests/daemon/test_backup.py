"""Backups of a live quorum: under load, with leaders killed, and while history is deleted."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import quorumd
from quorumd.cli import backup as backup_command
from quorumd.cli.main import run
from quorumd.client.reading import RawFetched
from quorumd.storage.backup_manifest import BackupManifest, load_manifest
from quorumd.storage.filesystem import RealFileSystem
from quorumd.storage.reader import find_files
from quorumd.wire.records import iter_records
from tests.storage.verifying import verified
from tests.support.live_cluster import Cluster, running
from tests.support.live_snapshots import SteadyCluster
from tests.support.load import Load

FORGETFUL = {
    "log.segment.bytes": 16_384,
    "log.max.batch.bytes": 4096,
    "snapshot.max.new.record.bytes": 60_000,
    "retention.bytes": 0,
    "quorum.fetch.timeout.ms": 1000,
}

Fetch = Callable[[backup_command._Backup], object]

SIGNALLED = """
import asyncio, os, sys
from quorumd.cli import backup
from quorumd.cli.main import run

async def fetch(self):
    os.kill(os.getpid(), int(sys.argv[1]))
    await asyncio.sleep(60)

backup._Backup._fetch = fetch
sys.exit(run(["backup", "-b", sys.argv[2], sys.argv[3]]))
"""
"""A backup that gets a signal where the snapshot is copied, and waits for the log."""


def back_up(cluster: Cluster, target: Path) -> BackupManifest:
    """A backup that succeeds and is sound."""
    assert run(["backup", "-b", cluster.bootstrap, "--timeout", "20", str(target)]) == 0
    assert verified(target).texts == []
    return load_manifest(RealFileSystem(), target)


def values(backup: Path) -> dict[int, bytes | None]:
    """What a backup's log has at which offset."""
    found = {}
    for file in find_files(backup):
        if file.snapshot_id is None:
            for batch in file.batches():
                if not batch.header.is_control:
                    found |= {record.offset: record.value for record in iter_records(batch.data)}
    return found


def log_bytes(backup: Path) -> bytes:
    segments = [file for file in find_files(backup) if file.snapshot_id is None]
    return b"".join(file.path.read_bytes() for file in segments)


@pytest.fixture
def at_fetch(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[], object]], None]:
    """Has something happen before the n-th fetch of a backup, which are small from then on."""

    def plan(number: int, action: Callable[[], object]) -> None:
        monkeypatch.setattr(backup_command, "_FETCH_BYTES", 2000)
        fetch = backup_command._Backup._fetch
        left = [number]

        async def fetch_and_more(self: backup_command._Backup) -> RawFetched:
            left[0] -= 1
            if left[0] == 0:
                action()
            return await fetch(self)

        monkeypatch.setattr(backup_command._Backup, "_fetch", fetch_and_more)

    return plan


def test_a_backup_under_load_has_every_acknowledged_record_below_its_end(
    quorum: Cluster, load: Load, tmp_path: Path
) -> None:
    for number in range(3):
        load.wait_progress(50)
        known = list(load.acknowledged)
        manifest = back_up(quorum, tmp_path / f"{number}")
        found = values(tmp_path / f"{number}")
        assert manifest.end_offset > max(one.offset for one in known)
        assert all(found[one.offset] == one.value for one in known)
        assert manifest.start_offset == 0


def test_a_leader_that_is_killed_half_way_costs_only_time(
    quorum: Cluster,
    load: Load,
    tmp_path: Path,
    at_fetch: Callable[[int, Callable[[], object]], None],
) -> None:
    load.wait_progress(100)
    known = list(load.acknowledged)
    killed: list[int] = []

    def kill() -> None:
        killed.append(quorum.wait_leader())
        quorum.kill(killed[0])

    at_fetch(4, kill)
    manifest = back_up(quorum, tmp_path / "backup")
    assert len(killed) == 1
    found = values(tmp_path / "backup")
    assert all(found[one.offset] == one.value for one in known)
    quorum.start(killed[0])
    quorum.wait_ready()
    load.wait_progress()
    for node in quorum.ids:
        assert quorum.log_bytes(node).startswith(log_bytes(tmp_path / "backup"))
    assert manifest.end_offset > max(one.offset for one in known)


def test_a_quorum_that_is_suspended_half_way_is_waited_for(
    quorum: Cluster,
    load: Load,
    tmp_path: Path,
    at_fetch: Callable[[int, Callable[[], object]], None],
) -> None:
    load.wait_progress(100)
    suspended: list[int] = []

    def suspend() -> None:
        suspended.append(quorum.wait_leader())
        quorum.suspend(suspended[0])

    at_fetch(4, suspend)
    back_up(quorum, tmp_path / "backup")
    assert len(suspended) == 1
    quorum.resume_all()
    quorum.wait_ready()
    load.wait_progress()


@pytest.mark.usefixtures("no_signal_is_ignored")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_backup_that_a_signal_ends_leaves_nothing_behind(
    quorum: Cluster, tmp_path: Path, number: signal.Signals
) -> None:
    command = [sys.executable, "-c", SIGNALLED, str(int(number)), quorum.bootstrap]
    ended = subprocess.run([*command, tmp_path / "backup"], capture_output=True, timeout=30)
    assert (ended.returncode, ended.stderr) == (130 if number is signal.SIGINT else -number, b"")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes that keep as little history as they may."""
    folder = tmp_path_factory.mktemp("forgetful")
    with running(SteadyCluster(folder, settings=FORGETFUL)) as cluster:
        yield cluster


def test_a_log_that_is_cleaned_all_the_time_is_backed_up_with_a_snapshot_that_fits(
    forgetful: Cluster, tmp_path: Path
) -> None:
    with Load(forgetful, value_bytes=1000) as load:
        forgetful.wait_for(
            lambda: min(forgetful.status(n)["log_start_offset"] for n in forgetful.ids) > 0,
            "logs that start above 0",
            40,
        )
        for number in range(8):
            load.wait_progress(30)
            manifest = back_up(forgetful, tmp_path / f"{number}")
            assert manifest.start_offset > 0
            assert manifest.snapshot is not None
            found = values(tmp_path / f"{number}")
            kept = [one for one in load.acknowledged if one.offset in found]
            assert all(found[one.offset] == one.value for one in kept)


def test_a_snapshot_in_a_backup_has_the_keys_that_the_log_has_lost(
    forgetful: Cluster, tmp_path: Path
) -> None:
    async def put() -> None:
        async with quorumd.QuorumClient(forgetful.bootstrap) as client:
            await client.append([quorumd.Record(key=b"color", value=b"blue")])

    asyncio.run(put())
    end_offset = forgetful.wait_converged()
    with Load(forgetful, value_bytes=1000) as load:
        forgetful.wait_for(
            lambda: (
                min(forgetful.status(n)["log_start_offset"] for n in forgetful.ids) > end_offset
            ),
            "logs that start above the key",
            60,
        )
        load.wait_progress()
        back_up(forgetful, tmp_path / "backup")
    (snapshot,) = [file for file in find_files(tmp_path / "backup") if file.snapshot_id]
    records = [
        record
        for batch in snapshot.batches()
        if not batch.header.is_control
        for record in iter_records(batch.data)
    ]
    assert [(record.key, record.value) for record in records] == [(b"color", b"blue")]
