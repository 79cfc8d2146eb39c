"""`quorumctl verify`: what it says and how it ends, on files, beside running nodes, and on a terminal."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from quorumd.storage.filesystem import RealFileSystem
from quorumd.storage.layout import PARTITION_DIRECTORY, QUORUM_STATE
from tests.quorumd.conftest import Done
from tests.quorumd.running import on_a_terminal
from tests.storage.helpers import append, batch, open_log
from tests.support.live_cluster import Cluster, running_cluster
from tests.support.load import Load

Run = Callable[..., Done]

BUSY = {
    "log.segment.bytes": 65_536,
    "log.max.batch.bytes": 8192,
    "snapshot.max.new.record.bytes": 200_000,
    "retention.bytes": 100_000,
    "quorum.fetch.timeout.ms": 1000,
}
ROUNDS = 25
ROUNDS_MAX = 500
DIFFICULT = {"start_offset", "unfinished_bytes", "snapshots"}
SIZE = len(batch(0))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A log of three segments."""
    path = tmp_path / PARTITION_DIRECTORY
    path.mkdir()
    log = open_log(RealFileSystem(), path, segment_bytes=1000)
    for offset in range(25):
        append(log, batch(offset), offset, offset + 1)
    log.close()
    assert len(list(path.glob("*.log"))) == 3
    return path


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def first_segment(folder: Path) -> Path:
    return folder / f"{0:020d}.log"


# --- what it says


def test_a_sound_log_is_said_to_be_sound(quorumctl: Run, folder: Path) -> None:
    done = quorumctl("verify", folder)
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        f"{folder}  (log)",
        "  offsets 0 to 25 (exclusive), epoch 1, 25 records in 25 batches, 3 segments, 2.0 KiB",
        "  sound",
    ]


def test_damage_is_named_with_file_byte_offset_and_remedy(quorumctl: Run, folder: Path) -> None:
    flip(first_segment(folder), 2 * SIZE - 1)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    done = quorumctl("verify", folder)
    assert (done.code, done.err) == (3, "")
    shown = done.out.splitlines()
    assert shown[2].startswith(
        f"  DAMAGED  {first_segment(folder)}: byte {SIZE}, offset 1: the CRC does not match"
    )
    assert "Keep a copy of the directory and check the disk" in shown[3]
    assert shown[4:] == ["  NOT SOUND: 1 problem"]
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_of_very_many_findings_the_first_are_listed_and_all_are_counted(
    quorumctl: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quorumd.cli.verify._LISTED_MAX", 2)
    for offset in (1, 3, 5, 7):
        flip(first_segment(folder), (offset + 1) * SIZE - 1)
    done = quorumctl("verify", folder)
    shown = done.out.splitlines()
    assert [line.startswith("  DAMAGED") for line in shown[2:]] == [True, True] + [False] * 3
    assert "Keep a copy" in shown[4], "what to do is said once for both"
    assert shown[5:] == ["  and 2 more", "  NOT SOUND: 4 problems"]
    described = json.loads(quorumctl("verify", folder, "--output", "json").out)
    assert (len(described["findings"]), described["finding_count"]) == (2, 4)


def test_what_to_do_is_said_of_each_finding_that_wants_something_else(
    quorumctl: Run, folder: Path
) -> None:
    flip(first_segment(folder), 2 * SIZE - 1)
    (folder / QUORUM_STATE).write_text("{")
    shown = quorumctl("verify", folder).out.splitlines()
    kinds = ["DAMAGED" in line for line in shown[2:-1]]
    assert kinds == [True, False, True, False]
    assert shown[3] != shown[5]


def test_what_is_not_written_to_its_end_yet_is_told_beside_damage(
    quorumctl: Run, folder: Path
) -> None:
    flip(first_segment(folder), 2 * SIZE - 1)
    last = max(folder.glob("*.log"))
    last.write_bytes(last.read_bytes() + batch(25)[:30])
    done = quorumctl("verify", folder)
    assert done.code == 3
    assert "  ends at offset 25; 30 bytes behind it are not (yet) records" in done.out.splitlines()


def test_two_epochs_are_named(quorumctl: Run, tmp_path: Path) -> None:
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes(batch(0, epoch=3) + batch(1, epoch=5))
    assert "offsets 0 to 2 (exclusive), epochs 3-5, " in quorumctl("verify", path).out


def test_json_has_the_same(quorumctl: Run, folder: Path) -> None:
    flip(first_segment(folder), 2 * SIZE - 1)
    done = quorumctl("verify", folder, first_segment(folder), "--output", "json")
    assert (done.code, done.err) == (3, "")
    whole, alone = map(json.loads, done.out.splitlines())
    assert (whole["kind"], whole["sound"], whole["end_offset"]) == ("log", False, 25)
    assert whole["finding_count"] == 1
    (finding,) = whole["findings"]
    assert finding["file"] == str(first_segment(folder))
    assert (finding["position"], finding["offset"]) == (SIZE, 1)
    assert finding["remedy"]
    assert (alone["kind"], alone["findings"]) == ("segment", [finding])


def test_the_worst_of_several_paths_decides_and_none_is_passed_over(
    quorumctl: Run, folder: Path, tmp_path: Path
) -> None:
    missing = tmp_path / "missing"
    done = quorumctl("verify", missing, folder)
    assert done.code == 2
    assert done.err.startswith(f"Error: {missing}: there is no such file or directory")
    assert "sound" in done.out
    flip(first_segment(folder), 2 * SIZE - 1)
    assert quorumctl("verify", missing, folder).code == 3


def test_a_file_of_another_kind_is_a_wrong_use(quorumctl: Run, tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("Dear Sir")
    done = quorumctl("verify", path)
    assert done.code == 2
    assert "by its name this is no segment" in done.err


def test_a_segment_full_of_something_else_is_damaged(quorumctl: Run, tmp_path: Path) -> None:
    (tmp_path / f"{0:020d}.log").write_bytes(b"Dear Sir, " * 100)
    (tmp_path / f"{50:020d}.log").write_bytes(b"")
    done = quorumctl("verify", tmp_path)
    assert done.code == 3
    assert "byte 0, offset 0" in done.out


def test_without_a_path_it_is_a_wrong_use(quorumctl: Run) -> None:
    assert quorumctl("verify").code == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read_is_no_damage(quorumctl: Run, folder: Path) -> None:
    first_segment(folder).chmod(0)
    done = quorumctl("verify", folder)
    assert done.code == 1
    assert "Permission denied" in done.err


def test_a_bar_is_on_a_terminal_and_gone_at_the_end(tmp_path: Path) -> None:
    log = open_log(RealFileSystem(), tmp_path, segment_bytes=1 << 30)
    for offset in range(20):
        append(log, batch(offset, value_bytes=1 << 20), offset, offset + 1)
    log.close()
    code, shown = on_a_terminal("verify", str(tmp_path))
    assert code == 0
    assert "verifying" in shown
    assert shown.splitlines()[-1].strip() == "sound"


def test_the_bar_gets_as_far_as_there_are_bytes_to_read(
    quorumctl: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    steps: list[int] = []

    @contextmanager
    def progress(label: str, size_bytes: int) -> Iterator[Callable[[int], None]]:
        sizes.append(size_bytes)
        yield steps.append

    monkeypatch.setattr("quorumd.cli.verify.read_progress", progress)
    assert quorumctl("verify", folder).code == 0
    assert sizes == [sum(steps)]
    assert sizes[0] > 0


# --- beside running nodes


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes that roll, take snapshots and delete history all the time."""
    with running_cluster(tmp_path_factory.mktemp("quorum"), settings=BUSY) as cluster:
        yield cluster


def test_the_directories_of_busy_nodes_are_sound(cluster: Cluster, quorumctl: Run) -> None:
    seen: set[str] = set()
    with Load(cluster, writers=6, value_bytes=3000) as load:
        for turn in range(ROUNDS_MAX):
            load.wait_progress(10)
            done = quorumctl("verify", *map(cluster.storage_dir, cluster.ids), "-o", "json")
            assert done.code == 0, done.out
            for found in map(json.loads, done.out.splitlines()):
                seen |= {name for name in DIFFICULT if found[name]}
            if turn >= ROUNDS and seen == DIFFICULT:
                break
    assert seen == DIFFICULT


def test_a_killed_node_and_one_that_was_cut_back_leave_sound_directories(
    cluster: Cluster, quorumctl: Run, tmp_path: Path
) -> None:
    with Load(cluster, writers=6, value_bytes=3000) as load:
        for turn in range(4):
            load.wait_progress(50)
            leader = cluster.wait_leader()
            cluster.kill(leader)
            done = quorumctl("verify", cluster.storage_dir(leader))
            assert done.code == 0, done.out
            # What built a snapshot deletes it when its node is gone, a moment later.
            copy = partial(_copied, cluster.storage_dir(leader), tmp_path / f"{turn}")
            cluster.wait_for(copy, "a copy")
            cluster.start(leader)
            while not cluster.is_ready(leader):
                done = quorumctl("verify", *map(cluster.storage_dir, cluster.ids))
                assert done.code == 0, done.out
    for turn in range(4):
        assert quorumctl("verify", tmp_path / f"{turn}").code == 0


def test_damage_in_a_copy_of_a_running_nodes_log_is_found(
    cluster: Cluster, quorumctl: Run, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    with Load(cluster, value_bytes=3000) as load:
        load.wait_progress(100)
        folder = cluster.log_folder(cluster.wait_leader())
        cluster.wait_for(lambda: _copied(folder, copy) and len(_logs(copy)) > 1, "a copy")
    closed = _logs(copy)[0]
    flip(closed, closed.stat().st_size - 1)
    done = quorumctl("verify", copy, "-o", "json")
    assert done.code == 3
    assert json.loads(done.out)["findings"][0]["file"] == str(closed)


def _copied(source: Path, target: Path) -> bool:
    """True once a copy of a directory could be made in which nothing vanished meanwhile."""
    shutil.rmtree(target, ignore_errors=True)
    try:
        shutil.copytree(source, target)
    except shutil.Error:
        return False
    return True


def _logs(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.log"))
