"""Restores that must not happen, or not half: what is said, and what is left."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from quorumd.storage.filesystem import RealFileSystem
from quorumd.storage.meta_properties import load_meta_properties
from tests.daemon.restoring import Former, everything, former_quorum, restore, restored
from tests.daemon.test_start_refusals import refused
from tests.storage.verifying import verified
from tests.support.commands import quorumctl, quorumd
from tests.support.live_cluster import Cluster
from tests.support.mounts import mounted, tmpfs_or_skip

QUORUMD = Path(sys.executable).with_name("quorumd")


@pytest.fixture(scope="module")
def former(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Former]:
    with former_quorum(tmp_path_factory.mktemp("site"), {}) as found:
        yield found


@pytest.fixture
def new(folder: Path) -> Iterator[Cluster]:
    """The nodes of a new quorum, configured, without directories."""
    cluster = Cluster(folder)
    folder.mkdir()
    for node in cluster.ids:
        cluster.write_config(node)
    yield cluster
    cluster.kill_all()


def test_a_directory_in_use_is_refused(former: Former, new: Cluster) -> None:
    restored(new, former.backup, nodes=(1,))
    storage_id = load_meta_properties(RealFileSystem(), new.storage_dir(1)).storage_id
    done = restore(new, 1, former.backup)
    assert done.code == 1
    assert "the directory is formatted already" in done.text
    assert "choose another directory" in done.text
    found = load_meta_properties(RealFileSystem(), new.storage_dir(1)).storage_id
    assert found == storage_id


def test_a_damaged_backup_is_refused_and_nothing_is_written(
    former: Former, new: Cluster, tmp_path: Path
) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(former.backup, damaged)
    path = damaged / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    done = restore(new, 1, damaged)
    assert done.code == 3
    assert f"{path}: byte " in done.text
    assert "Nothing was written" in done.text
    assert not new.storage_dir(1).exists()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--cluster-id", "a", "--keep-cluster-id"], "exclude each other"),
        (["--cluster-id", "a b"], "without spaces"),
    ],
)
def test_impossible_options_are_refused(
    former: Former, new: Cluster, options: list[str], text: str
) -> None:
    done = restore(new, 1, former.backup, *options)
    assert done.code == 2
    assert text in done.text
    assert not new.storage_dir(1).exists()


@pytest.mark.parametrize(
    "option", ["--standalone", "--initial-voters=1@h:1:JEXY6aqzQY-32P5TStzaFg"]
)
def test_voters_that_are_named_twice_are_refused_with_an_advice_that_can_be_followed(
    former: Former, new: Cluster, option: str
) -> None:
    done = restore(new, 1, former.backup, option)
    assert done.code == 2
    assert "quorum.voters names the voters already" in done.text
    assert "leave --standalone and --initial-voters out" in done.text
    assert "--bootstrap" not in done.text
    assert not new.storage_dir(1).exists()
    restored(new, former.backup, nodes=(1,))


def test_what_is_no_backup_is_refused(former: Former, new: Cluster, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing", former.cluster.storage_dir(1)):
        done = restore(new, 1, path)
        assert done.code == 1
        assert "this is no backup" in done.text
    assert not new.storage_dir(1).exists()


def test_a_node_that_is_no_voter_is_refused(former: Former, folder: Path) -> None:
    new = Cluster(folder, observers=1)
    folder.mkdir()
    new.write_config(4)
    done = restore(new, 4, former.backup)
    assert done.code == 2
    assert "node.id 4 is not in quorum.voters" in done.text


def test_a_restore_that_was_killed_can_not_be_started_and_can_be_repeated(
    former: Former, new: Cluster
) -> None:
    """Killed at the first thing that it makes durable in the log's directory."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("there is no strace")
    command = [str(QUORUMD), "restore", str(former.backup), "--config", str(new.config_path(1))]
    fault = "--inject=fsync,fdatasync:signal=KILL:when=6+"
    subprocess.run(
        [strace, "-f", "-o", "/dev/null", fault, *command],
        cwd=new.folder,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (new.storage_dir(1) / ".restoring").exists()
    text = refused(new, 1)
    assert "a restore was begun here and not finished" in text
    assert "Run the same `quorumd restore` again" in text
    format_again = quorumd("format", "--config", new.config_path(1))
    assert format_again.code == 1
    assert "a restore was begun here and not finished" in format_again.err
    done = quorumctl_verify(new.storage_dir(1))
    assert "a restore was begun here and not finished" in done
    restored(new, former.backup)
    new.start()
    new.wait_ready()
    assert everything(new, former.end_offset)[0] == former.records


def quorumctl_verify(path: Path) -> str:
    done = quorumctl("verify", path)
    assert done.code == 3
    return done.out


def test_a_full_disk_ends_a_restore_and_it_can_be_repeated(former: Former, new: Cluster) -> None:
    new.storage_dir(1).mkdir()
    with mounted(new.storage_dir(1), tmpfs_or_skip("16k")):
        done = restore(new, 1, former.backup)
        assert done.code == 1
        assert "No space left on device" in done.text
        assert "Traceback" not in done.text
        command = ["mount", "-o", "remount,size=64m", str(new.storage_dir(1))]
        subprocess.run(command, check=True, capture_output=True)
        restored(new, former.backup, nodes=(1,))
        assert verified(new.storage_dir(1)).texts == []
