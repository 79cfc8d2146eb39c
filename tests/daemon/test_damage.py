"""Logs that were cut or changed behind a node's back: healed if a crash explains it, else named."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from quorumd import QuorumClient
from quorumd.storage.reader import FoundBatch, LogFile
from tests.support.commands import quorumctl
from tests.support.live_cluster import Cluster, running_cluster
from tests.support.load import Load

DAMAGED = 3
VICTIM = 3
SMALL_SEGMENTS = {"log.segment.bytes": 16384, "log.max.batch.bytes": 4096}


@pytest.fixture(scope="module")
def quorum(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes with several closed segments and a long active one."""
    folder = tmp_path_factory.mktemp("quorum")
    with running_cluster(folder, settings=SMALL_SEGMENTS) as cluster:
        with Load(cluster) as load:
            load.wait_progress(400)
        yield cluster


@pytest.fixture
def victim(quorum: Cluster) -> Iterator[Path]:
    """The folder of a node that was killed; put back as it was, and started, afterwards."""
    quorum.assert_same_logs()
    quorum.kill(VICTIM)
    folder = quorum.log_folder(VICTIM)
    saved = {path: path.read_bytes() for path in folder.iterdir()}
    yield folder
    if VICTIM not in quorum.running():
        for path in folder.iterdir():
            path.unlink()
        for path, data in saved.items():
            path.write_bytes(data)
        quorum.start(VICTIM)
    quorum.wait_ready()
    quorum.assert_same_logs()


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.log"))


def batches(path: Path) -> list[FoundBatch]:
    return list(LogFile(path).batches())


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x40
    path.write_bytes(data)


def refused_start(quorum: Cluster) -> str:
    begun = len(quorum.output(VICTIM))
    quorum.start(VICTIM)
    ended = quorum.wait_exit(VICTIM)
    text = ended.output[begun:]
    assert ended.exit_code == DAMAGED, text
    assert "Traceback" not in text, text
    return text


def test_a_torn_tail_is_cut_reported_and_healed_from_the_leader(
    quorum: Cluster, victim: Path
) -> None:
    active = segments(victim)[-1]
    found = batches(active)
    if len(found) < 2:
        active, found = segments(victim)[-2], batches(segments(victim)[-2])
        segments(victim)[-1].unlink()
    last = found[-1]
    cut_at = last.position + len(last.data) // 2
    with active.open("r+b") as file:
        file.truncate(cut_at)
    begun = len(quorum.output(VICTIM))
    with Load(quorum) as load:
        quorum.start(VICTIM)
        quorum.wait_ready(VICTIM)
        load.wait_progress()
    text = quorum.output(VICTIM)[begun:]
    assert f"{active}: cut off {cut_at - last.position} bytes of an unfinished write" in text
    assert f"the log ends at offset {last.header.base_offset}" in text
    assert "WARN" in text
    quorum.assert_same_logs()
    load.assert_nothing_lost()


def test_a_torn_tail_with_zeros_behind_it_is_healed(quorum: Cluster, victim: Path) -> None:
    """As a crash leaves a file that was written ahead."""
    active = segments(victim)[-1]
    found = batches(active)
    last = found[-1]
    half = last.position + len(last.data) // 2
    data = active.read_bytes()
    active.write_bytes(data[:half] + bytes(len(data) - half))
    begun = len(quorum.output(VICTIM))
    quorum.start(VICTIM)
    quorum.wait_ready(VICTIM)
    quorum.wait_logged(VICTIM, "bytes of an unfinished write", since=begun)


def test_a_flipped_byte_in_a_closed_segment_stops_the_start_and_is_named(
    quorum: Cluster, victim: Path
) -> None:
    closed = segments(victim)[1]
    found = batches(closed)
    damaged = found[len(found) // 2]
    flip(closed, damaged.position + len(damaged.data) - 3)
    # The one that was killed may have led.
    quorum.wait_leader()
    with Load(quorum) as load:
        text = refused_start(quorum)
        load.wait_progress()
        assert load.failures <= len(quorum.ids) * 4
    assert str(closed) in text
    assert f"byte {damaged.position}" in text
    assert f"offset {damaged.header.base_offset}" in text
    assert "format a new directory" in text


def test_a_byte_that_is_flipped_under_a_leader_ends_it_once_somebody_reads_there(
    quorum: Cluster, victim: Path
) -> None:
    """Started before the damage, it reads what is old from the disk; the others have it unharmed."""
    quorum.start(VICTIM)
    quorum.wait_ready()
    quorum.lead(VICTIM)
    closed = segments(victim)[1]
    found = batches(closed)
    damaged = found[len(found) // 2]
    flip(closed, damaged.position + len(damaged.data) - 3)

    async def read() -> int:
        async with QuorumClient(quorum.bootstrap) as client:
            offset = damaged.header.base_offset
            return (await client.fetch(offset, timeout_ms=20_000)).next_offset

    assert asyncio.run(read()) > damaged.header.base_offset, "from the next leader"
    ended = quorum.wait_exit(VICTIM)
    assert ended.exit_code == DAMAGED
    assert "ERROR node  the log is damaged" in ended.output
    assert f"{closed}: damaged since it was written" in ended.output
    assert f"offset {damaged.header.base_offset}" in ended.output
    assert "format a new directory" in ended.output


def test_damage_that_a_snapshot_comes_upon_is_warned_of(quorum: Cluster, victim: Path) -> None:
    """Nobody else reads there. The node goes on: what it appends is sound."""
    quorum.start(VICTIM)
    quorum.wait_ready()
    assert quorum.status(VICTIM)["warnings"] == []
    closed = segments(victim)[1]
    found = batches(closed)
    damaged = found[len(found) // 2]
    flip(closed, damaged.position + len(damaged.data) - 3)
    taken = quorumctl("snapshot", "-b", quorum.bootstrap)
    assert taken.code == 1, taken.text
    (warning,) = quorum.status(VICTIM)["warnings"]
    assert "the log on this disk is damaged" in warning
    assert f"{closed}: " in warning
    assert f"offset {damaged.header.base_offset}" in warning
    assert "format a new directory" in warning
    quorum.kill(VICTIM)


def test_a_flipped_byte_in_the_active_segment_with_valid_batches_behind_it_is_named(
    quorum: Cluster, victim: Path
) -> None:
    active = segments(victim)[-1]
    found = batches(active)
    if len(found) < 3:
        segments(victim)[-1].unlink()
        active = segments(victim)[-1]
        found = batches(active)
    damaged = found[len(found) // 2]
    flip(active, damaged.position + len(damaged.data) - 3)
    before = active.read_bytes()
    text = refused_start(quorum)
    assert str(active) in text
    assert f"byte {damaged.position}" in text
    assert f"offset {damaged.header.base_offset}" in text
    assert "a valid batch follows" in text
    assert "Nothing was changed" in text
    assert active.read_bytes() == before


def test_a_missing_segment_is_named(quorum: Cluster, victim: Path) -> None:
    gone = segments(victim)[1]
    gone.unlink()
    text = refused_start(quorum)
    assert "a gap between segments" in text
    assert "format a new directory" in text


def test_a_log_that_lost_what_was_committed_is_not_started(quorum: Cluster, victim: Path) -> None:
    """Its end is below the offset that quorum-state.json has recorded."""
    for path in segments(victim):
        path.unlink()
    for path in (*victim.glob("*index"), victim / "leader-epoch-checkpoint"):
        path.unlink()
    text = refused_start(quorum)
    assert "the log ends at offset 0" in text
    assert "was committed" in text


def test_lost_indexes_are_rebuilt_and_said(quorum: Cluster, victim: Path) -> None:
    lost = [*victim.glob("*.index"), *victim.glob("*.timeindex")]
    assert lost
    for path in lost:
        path.unlink()
    begun = len(quorum.output(VICTIM))
    quorum.start(VICTIM)
    quorum.wait_ready(VICTIM)
    quorum.wait_logged(VICTIM, f"{sorted(lost)[0]}: index rebuilt from the log", since=begun)
