"""Tables where ranges just meet or just don't, what is durable, and who may write: without Spark."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import pytest

from quorumd.pipeline.errors import DataLost
from quorumd.pipeline.parse import ChunkOrigin, parse
from quorumd.pipeline.report.facts import BUCKETS_MAX, _bucketed, read_facts
from quorumd.pipeline.tables import reading
from quorumd.pipeline.tables.commit import (
    NotContinued,
    NotShared,
    _check_begins,
    commit_log,
    commit_state,
)
from quorumd.pipeline.tables.manifests import (
    DamagedTables,
    DataFile,
    manifest_path,
    newest,
    table_files,
    write_durably,
)
from quorumd.pipeline.tables.origin import LogOrigin, beginning, check_origin
from quorumd.pipeline.tables.output import COMMIT_LOCK, LOCK, OutputBusy, fenced, held_output
from quorumd.pipeline.tables.sink import write_log
from quorumd.raft.types import SnapshotId
from quorumd.storage.filesystem import RealFileSystem
from quorumd.storage.layout import (
    PARTITION_DIRECTORY,
    log_path,
    partition_directory,
    snapshot_path,
)
from quorumd.wire.control_records import SnapshotFooter, SnapshotHeader, encode_control_batch
from quorumd.wire.records import Record, build_batch
from tests.pipeline.written import START_MS, Log, voter_set


@pytest.fixture
def log() -> Log:
    """A leader at offset 0, then 20 records."""
    made = Log()
    made.elect(1, [1, 2, 3])
    made.append((b"k%d" % (i % 3), b"v%d" % i) for i in range(20))
    return made


def test_a_file_that_is_here_in_part_does_not_count(log: Log, tmp_path: Path) -> None:
    with held_output(tmp_path / "t") as output:
        written = log.written(output.folder, 0, log.end)
        path = output.folder / written.files[0].path
        whole = path.read_bytes()
        for other in (whole[:-1], whole + b"x"):
            path.write_bytes(other)
            with pytest.raises(NotShared):
                commit_log(output.folder, output.token, [written])
        assert newest(output.folder, "log") is None


def test_a_file_of_the_state_that_a_worker_has_elsewhere_does_not_count(
    log: Log, tmp_path: Path
) -> None:
    with held_output(tmp_path / "t") as output:
        log.take(output)
        for table in ("state", "key_history"):
            elsewhere = DataFile(f"{table}/elsewhere.parquet", 1, 100, 0, 1)
            with pytest.raises(NotShared):
                commit_state(output.folder, output.token, log.end, [(table, elsewhere)])
        assert newest(output.folder, "state") is None


def test_the_first_range_reaches_the_end_of_the_snapshot_that_it_begins_with() -> None:
    _check_begins(10, 0, 10, 3)
    with pytest.raises(NotContinued, match="a snapshot up to offset 10 came"):
        _check_begins(10, 0, 9, 3)


def test_a_manifest_that_leaves_offsets_out_is_an_error(log: Log, tmp_path: Path) -> None:
    with held_output(tmp_path / "t") as output:
        for end in (5, 10):
            log.take(output, end)
    path = manifest_path(tmp_path / "t", "log", 1)
    path.write_text(path.read_text().replace('"start_offset": 5', '"start_offset": 6'))
    with pytest.raises(DamagedTables, match="begins at offset 6, and the one before ends at 5"):
        table_files(tmp_path / "t", "records")


@pytest.mark.parametrize(("start", "is_lost"), [(21, False), (22, True)])
def test_a_log_may_begin_just_where_the_tables_end(
    log: Log, tmp_path: Path, start: int, is_lost: bool
) -> None:
    with held_output(tmp_path / "t") as output:
        log.take(output)
    last = newest(tmp_path / "t", "log")
    partition = tmp_path / PARTITION_DIRECTORY
    partition.mkdir()
    records = [Record(timestamp=log.now_ms, value=b"v")]
    log_path(partition, start).write_bytes(build_batch(records, base_offset=start, epoch=1))
    origin = LogOrigin(None, str(tmp_path))
    if is_lost:
        with pytest.raises(DataLost, match="what was in between has been deleted"):
            check_origin(origin, last)
    else:
        assert check_origin(origin, last) == start + 1


class Syncs:
    """What was synced, by name, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        real_sync, real_directory = os.fsync, RealFileSystem.fsync_directory

        def fsync(handle: int) -> None:
            self.names.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)
            real_sync(handle)

        def fsync_directory(fs: RealFileSystem, path: Path) -> None:
            self.names.append(path.name)
            real_directory(fs, path)

        monkeypatch.setattr(RealFileSystem, "fsync_directory", fsync_directory)
        monkeypatch.setattr(os, "fsync", fsync)


@pytest.mark.pure
def test_a_manifest_is_on_disk_before_and_behind_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = Syncs(monkeypatch)
    write_durably(tmp_path / "0.json", "{}")
    part, directory, *_ = syncs.names
    assert part.startswith("_0.json")
    assert directory == tmp_path.name


@pytest.mark.pure
def test_a_file_of_rows_is_on_disk_before_a_manifest_names_it(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with held_output(tmp_path / "t") as output:
        syncs = Syncs(monkeypatch)
        (file,) = log.written(output.folder, 0, log.end).files
        assert f"_{Path(file.path).name}" in syncs.names


def test_a_task_without_rows_has_seen_nothing(tmp_path: Path) -> None:
    with held_output(tmp_path / "t") as output:
        written = write_log(output.folder, iter(()))
        assert (written.files, written.last_offset) == ([], -1)
        commit_log(output.folder, output.token, [written])
        assert newest(output.folder, "log") is None


def test_rows_in_any_order_have_a_first_and_a_last_offset(log: Log, tmp_path: Path) -> None:
    """As those of a snapshot, which come by key. Of the last offset all batches count."""
    with held_output(tmp_path / "t") as output:
        (rows,) = parse("log_records", bytes(log.data), 0, log.end, ChunkOrigin())
        pieces = [rows.slice(10), rows.slice(0, 5), rows.slice(5, 5), rows.slice(20)]
        written = write_log(output.folder, iter(pieces))
        (file,) = written.files
        assert (file.first_offset, file.last_offset) == (0, 20)
        assert (written.first_offset, written.last_offset) == (0, 20)
        assert written.last_crcs == (rows["crc"][20].as_py(),) * 2


def test_nobody_else_commits_meanwhile(tmp_path: Path) -> None:
    with held_output(tmp_path / "t") as output, fenced(output.folder, output.token):
        handle = os.open(output.folder / COMMIT_LOCK, os.O_RDWR)
        with pytest.raises(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(handle)


def test_a_holder_with_a_shorter_name_is_named_by_nothing_else(tmp_path: Path) -> None:
    """What the holder before has written is gone as a whole."""
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / LOCK).write_text("x" * 4000)
    with held_output(tmp_path / "t") as output:
        holder = json.loads((output.folder / LOCK).read_text())
        assert holder["token"] == output.token
        text = f"process {os.getpid()} on {socket.gethostname()}"
        with pytest.raises(OutputBusy, match=text), held_output(tmp_path / "t"):
            pass


# -- the report's figures


def counted(*seconds: int) -> Iterable[int]:
    rate = _bucketed(dict.fromkeys(seconds, 1))  # type: ignore[arg-type] # it only counts
    assert sum(rate.counts) == len(seconds)
    assert len(rate.counts) <= BUCKETS_MAX + 1
    return rate.width_s, len(rate.counts)


def test_a_bucket_is_as_narrow_as_so_many_of_them_allow() -> None:
    assert counted(1000, 1000 + BUCKETS_MAX - 1) == (1, BUCKETS_MAX)
    assert counted(1000, 1000 + BUCKETS_MAX) == (2, BUCKETS_MAX // 2 + 1)
    years = 86_400 * BUCKETS_MAX
    width_s, count = counted(0, years + 1)
    assert (width_s, count) == (86_401, BUCKETS_MAX)


def test_a_record_without_a_time_is_no_arrival(log: Log, tmp_path: Path) -> None:
    log.now_ms = -1
    with held_output(tmp_path / "t") as output:
        log.take(output)
        log.append([(b"k", b"without a time")])
        log.take(output)
    facts = read_facts(tmp_path / "t")
    assert len(facts.arrivals) == 1
    assert facts.records == 22
    assert sum(facts.rate.counts) == 21


def test_voters_of_a_snapshot_that_the_log_begins_with_were_in_no_batch_of_it(
    tmp_path: Path,
) -> None:
    """They stand at its end, each by itself: the snapshot's own batches count from 0."""
    folder = partition_directory(tmp_path)
    folder.mkdir(parents=True)
    log_path(folder, 7).write_bytes(build_batch([Record(value=b"v")], base_offset=7, epoch=1))
    batches = [[SnapshotHeader(), voter_set((1, 1), (2, 2))], [SnapshotFooter()]]
    data = b"".join(
        encode_control_batch(records, base_offset=at, epoch=1, timestamp_ms=START_MS)
        for at, records in zip((0, 2), batches, strict=True)
    )
    snapshot_path(folder, SnapshotId(7, 1)).write_bytes(data)
    found = beginning({"path": str(tmp_path)})
    assert found.complete_from == 7
    assert [(row.offset, row.batch_base_offset) for row in found.control] == [(6, 6)]


class Reading:
    """A session of Spark and what it has read, of which only the paths count."""

    def __init__(self) -> None:
        self.read = self
        self.paths: tuple[str, ...] = ()

    def schema(self, _: object) -> Any:
        return self

    def parquet(self, *paths: str) -> Any:
        self.paths = paths
        return self

    def __getitem__(self, name: str) -> int:
        return 0

    def where(self, _: object) -> Any:
        return self


@pytest.mark.parametrize(
    ("start", "end", "names"),
    [(0, None, "abc"), (9, 10, "a"), (10, 11, "b"), (10, None, "bc"), (11, 12, "c"), (20, 30, "c")],
)
def test_a_file_is_read_if_it_may_have_one_of_the_offsets(
    monkeypatch: pytest.MonkeyPatch, start: int, end: int | None, names: str
) -> None:
    spans = {"a": (0, 9), "b": (10, 10), "c": (11, 20)}
    files = [DataFile(name, 1, 100, first, last) for name, (first, last) in spans.items()]
    monkeypatch.setattr(reading, "data_files", lambda folder, table: files)
    found = Reading()
    reading.read_range(cast(Any, found), Path("/t"), "records", start, end)
    assert "".join(path[-1] for path in found.paths) == names
