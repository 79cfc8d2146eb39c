"""Manifests, what begins to count and what never does, and the lock: without Spark."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from quorumd.pipeline.errors import DataLost
from quorumd.pipeline.parse import ChunkOrigin, parse
from quorumd.pipeline.tables.commit import NotContinued, NotShared, commit_log, commit_state
from quorumd.pipeline.tables.manifests import (
    MARKER,
    DamagedTables,
    NoTables,
    manifest_path,
    newest,
    read_chain,
    table_files,
    write_manifest,
)
from quorumd.pipeline.tables.origin import LogOrigin, check_origin
from quorumd.pipeline.tables.output import OutputBusy, OutputUnusable, RunReplaced, held_output
from quorumd.pipeline.tables.parquet import read_rows
from quorumd.pipeline.tables.sink import write_log
from quorumd.raft.types import uuid_to_text
from quorumd.storage.layout import PARTITION_DIRECTORY, log_path
from tests.pipeline.written import Log, voter_set


@pytest.fixture
def log() -> Log:
    """A leader at offset 0, voters at 1, then 20 records."""
    made = Log()
    made.elect(1, [1, 2, 3])
    made.control(voter_set((1, 1), (2, 2), (3, 3)))
    made.append((b"k%d" % (i % 3), b"v%d" % i) for i in range(20))
    return made


def offsets(folder: Path) -> list[int]:
    found: list[int] = ds.dataset(table_files(folder, "records")).to_table()["offset"].to_pylist()
    return found


def test_a_file_counts_when_a_manifest_names_it_and_not_before(log: Log, tmp_path: Path) -> None:
    with held_output(tmp_path / "t") as output:
        written = log.written(output.folder, 0, 10)
        assert len(list((output.folder / "records").iterdir())) == 1
        assert table_files(output.folder, "records") == []
        commit_log(output.folder, output.token, [written])
        assert offsets(output.folder) == list(range(10))
        log.take(output)
    assert offsets(tmp_path / "t") == list(range(22))
    assert [each.end_offset for each in read_chain(tmp_path / "t", "log")] == [10, 22]


def test_the_parts_of_a_range_may_come_in_any_order(log: Log, tmp_path: Path) -> None:
    with held_output(tmp_path / "t") as output:
        log.now_ms += 1000
        log.append([(b"k", b"last")])
        first, last = (log.written(output.folder, *each) for each in ((0, 22), (22, 23)))
        assert (first.newest_ms, last.newest_ms) == (log.now_ms - 1000, log.now_ms)
        assert first.last_crcs != last.last_crcs
        commit_log(output.folder, output.token, [last, first])
        assert offsets(output.folder) == list(range(23))
        manifest = newest(output.folder, "log")
    assert manifest is not None
    assert manifest.last_crcs == last.last_crcs
    assert [each.newest_ms for each in manifest.arrivals] == [last.newest_ms]


def test_the_tables_are_known_by_what_is_last_in_them_alone(log: Log, tmp_path: Path) -> None:
    """Another log may have all but that in common."""
    log.append([(b"k", b"last")])
    with held_output(tmp_path / "t") as output:
        last = log.written(output.folder, 22, 23)
        rows = [
            chunk
            for bounds in ((0, 22), (22, 23))
            for chunk in parse("log_records", bytes(log.data), *bounds, ChunkOrigin())
        ]
        for order in (rows, rows[::-1]):
            assert write_log(output.folder, iter(order)).last_crcs == last.last_crcs


def test_from_where_the_log_was_complete_stays_known(log: Log, tmp_path: Path) -> None:
    """A snapshot had replaced what was before, when the tables were begun."""
    with held_output(tmp_path / "t") as output:
        log.take(output, 10)
        (first,) = read_chain(output.folder, "log")
        write_manifest(output.folder, replace(first, number=1, complete_from=7))
        commit_state(output.folder, output.token, 10, [])
        log.take(output)
        commit_state(output.folder, output.token, 22, [])
    for chain in ("log", "state"):
        last = newest(tmp_path / "t", chain)
        assert last is not None
        assert (last.complete_from, last.end_offset) == (7, 22)
    ranges = [(each.start_offset, each.end_offset) for each in read_chain(tmp_path / "t", "state")]
    assert ranges == [(0, 10), (10, 22)]


def test_a_range_that_comes_again_or_too_late_is_refused(log: Log, tmp_path: Path) -> None:
    with held_output(tmp_path / "t") as output:
        log.take(output, 10)
        for start, end in ((0, 10), (9, 15), (11, 15), (5, 22)):
            with pytest.raises(NotContinued, match="offsets are missing or twice"):
                commit_log(output.folder, output.token, [log.written(output.folder, start, end)])
        twice = [log.written(output.folder, 10, 15), log.written(output.folder, 10, 15)]
        with pytest.raises(NotContinued):
            commit_log(output.folder, output.token, twice)
        gap = [log.written(output.folder, 10, 12), log.written(output.folder, 13, 15)]
        with pytest.raises(NotContinued):
            commit_log(output.folder, output.token, gap)
        assert offsets(output.folder) == list(range(10))


def test_a_batch_that_does_not_unpack_is_taken_as_empty(log: Log, tmp_path: Path) -> None:
    log.append_empty(5)  # offsets 22 to 26
    log.append([(b"k", b"v")])
    log.append_empty(1 << 30)
    end = log.end
    log.append([(b"k", b"w")])
    with held_output(tmp_path / "t") as output:
        for stop in (24, 26, 1000, end):
            log.take(output, stop)
            assert output.end_offset == stop
        assert offsets(tmp_path / "t") == [*range(22), 27]
        # The tables end within or behind an empty batch: that is what the log is known by.
        log_end = check_origin(on_disk(log, tmp_path / "log"), newest(tmp_path / "t", "log"))
        assert log_end == log.end
        with pytest.raises(NotContinued, match="offsets are missing or twice"):
            commit_log(output.folder, output.token, [log.written(output.folder, 1000, log.end)])
        log.take(output)
    assert offsets(tmp_path / "t") == [*range(22), 27, end]
    assert sum(each.rows for each in read_chain(tmp_path / "t", "log")) == 24


def test_what_is_missing_or_twice_beside_an_empty_batch_is_refused(
    log: Log, tmp_path: Path
) -> None:
    log.append_empty(5)
    log.append((b"k%d" % i, b"v") for i in range(5))
    with held_output(tmp_path / "t") as output:
        for ranges in (
            [(0, 24), (25, 32)],
            [(0, 24), (23, 32)],
            [(0, 22), (27, 32)],
            [(0, 27), (22, 27), (27, 32)],
        ):
            written = [log.written(output.folder, *each) for each in ranges]
            with pytest.raises(NotContinued, match="offsets are missing or twice"):
                commit_log(output.folder, output.token, written)
        assert newest(output.folder, "log") is None


def test_a_time_that_no_timestamp_can_hold_is_null_and_no_arrival(log: Log, tmp_path: Path) -> None:
    log.now_ms = -(1 << 62)
    log.append([(b"k", b"old")])
    with held_output(tmp_path / "t") as output:
        log.take(output)
    (path,) = table_files(tmp_path / "t", "records")
    assert pq.read_table(path).to_pylist()[-1]["timestamp"] is None
    (manifest,) = read_chain(tmp_path / "t", "log")
    assert [each.newest_ms for each in manifest.arrivals] == [0]


def test_a_file_that_a_worker_has_elsewhere_does_not_count(log: Log, tmp_path: Path) -> None:
    with held_output(tmp_path / "t") as output:
        written = log.written(output.folder, 0, 10)
        (output.folder / written.files[0].path).unlink()
        with pytest.raises(NotShared, match="the same folder on the driver and on all workers"):
            commit_log(output.folder, output.token, [written])
        assert table_files(output.folder, "records") == []
        log.take(output, 10)
    assert offsets(tmp_path / "t") == list(range(10))


def test_a_straggler_of_a_run_that_was_killed_commits_nothing(log: Log, tmp_path: Path) -> None:
    with held_output(tmp_path / "t") as output:
        straggler = output.token
        log.take(output, 10)
        late = log.written(output.folder, 10, 15)
    with held_output(tmp_path / "t") as output:
        with pytest.raises(RunReplaced):
            commit_log(output.folder, straggler, [late])
        with pytest.raises(RunReplaced):
            commit_state(output.folder, straggler, 10, [])
        with pytest.raises(RunReplaced):
            commit_log(output.folder, output.token[:-1], [late])
        log.take(output)
    assert offsets(tmp_path / "t") == list(range(22))


def test_the_next_run_deletes_orphans_and_nothing_else(log: Log, tmp_path: Path) -> None:
    with held_output(tmp_path / "t") as output:
        log.take(output, 10)
        log.written(output.folder, 10, 15)
        (output.folder / "records" / "_half.parquet").write_bytes(b"PAR1 and no end")
        log.take(output, 12)
    assert len(list((tmp_path / "t" / "records").iterdir())) == 4
    with held_output(tmp_path / "t"):
        pass
    names = sorted(str(path) for path in (tmp_path / "t" / "records").iterdir())
    assert names == sorted(table_files(tmp_path / "t", "records"))
    assert offsets(tmp_path / "t") == list(range(12))


def test_pyarrow_reads_what_the_manifests_name(log: Log, tmp_path: Path) -> None:
    with held_output(tmp_path / "t") as output:
        log.take(output)
    (path,) = table_files(tmp_path / "t", "records")
    rows = pq.read_table(path).to_pylist()
    assert [row["value"] for row in rows[2:]] == [b"v%d" % i for i in range(20)]
    assert [row["control_type"] for row in rows[:3]] == [2, 6, None]


def test_leaders_have_what_the_next_one_begins_with(log: Log, tmp_path: Path) -> None:
    with held_output(tmp_path / "t") as output:
        log.take(output)
        log.now_ms += 5000
        log.elect(3, [1, 2, 3], epoch=4)
        log.append([(b"k", b"v")])
        log.take(output)
        log.append([(b"k", b"w")])
        log.take(output)
    first, second = read_rows(tmp_path / "t", "leadership")
    assert (first["epoch"], first["leader_id"], first["from_offset"]) == (1, 1, 0)
    assert (first["to_offset"], first["to_time"]) == (22, second["from_time"])
    assert (second["epoch"], second["leader_id"], second["to_offset"]) == (4, 3, None)
    # LeaderChange says ids only; the voter set tells the rest.
    assert first["storage_id"] == uuid_to_text(UUID(int=1))
    assert second["storage_id"] == uuid_to_text(UUID(int=3))
    assert [each["id"] for each in second["granting_voters"]] == [1, 2]
    assert second["granting_voters"][1]["storage_id"] == uuid_to_text(UUID(int=2))


def changes(folder: Path, since: int = 0) -> list[tuple[int, str, int, str | None]]:
    return [
        (row["offset"], row["change"], row["voter_id"], row["storage_id"])
        for row in read_rows(folder, "voter_sets")
        if row["offset"] >= since
    ]


def test_voters_are_added_removed_and_updated(log: Log, tmp_path: Path) -> None:
    ids = {number: uuid_to_text(UUID(int=number)) for number in range(1, 40)}
    log.control(voter_set((1, 1), (2, 2), (3, 3), (4, 4)))
    log.control(voter_set((1, 1), (3, 3), (4, 4)))
    log.control(voter_set((1, 1), (3, 33), (4, 4)))
    log.control(voter_set((1, 1), (3, 33), (4, 4)))
    log.control(voter_set((1, 1), (3, 33), (4, 4), port=1))
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    with held_output(whole) as output:
        log.take(output)
    with held_output(parts) as output:
        for end in range(1, log.end + 1):
            log.take(output, end)
    assert changes(whole, 2) == [
        (22, "ADD", 4, ids[4]),
        (23, "REMOVE", 2, ids[2]),
        (24, "REMOVE", 3, ids[3]),
        (24, "ADD", 3, ids[33]),
        (26, "UPDATE", 1, ids[1]),
        (26, "UPDATE", 3, ids[33]),
        (26, "UPDATE", 4, ids[4]),
    ]
    assert read_rows(whole, "voter_sets")[-1]["endpoints"] == [
        {"name": "CONTROLLER", "host": "host4", "port": 1}
    ]
    assert read_rows(parts, "voter_sets") == read_rows(whole, "voter_sets")
    assert read_rows(parts, "leadership") == read_rows(whole, "leadership")


def test_configured_voters_come_from_leaders_until_the_log_has_them(tmp_path: Path) -> None:
    log = Log()
    log.elect(1, [1, 2])
    log.elect(2, [1, 2, 3])
    log.control(voter_set((1, 1), (2, 2), (3, 3)))
    log.elect(1, [1, 2])
    with held_output(tmp_path / "t") as output:
        log.take(output)
    assert [row[:3] for row in changes(tmp_path / "t")] == [
        (0, "ADD", 1),
        (0, "ADD", 2),
        (1, "ADD", 3),
        (2, "UPDATE", 1),
        (2, "UPDATE", 2),
        (2, "UPDATE", 3),
    ]


@pytest.mark.live
def test_a_second_run_is_refused_and_told_who_holds_it(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    code = (
        "import sys; from pathlib import Path\n"
        "from quorumd.pipeline.tables.output import held_output\n"
        "with held_output(Path(sys.argv[1])):\n"
        "    print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with (
            pytest.raises(OutputBusy, match=f"another run, process {holder.pid} on "),
            held_output(folder),
        ):
            pass
    finally:
        holder.kill()
        holder.communicate()
    # The kernel has let go of it.
    with held_output(folder):
        pass


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(OutputUnusable, match="is not empty"), held_output(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]
    with (
        pytest.raises(OutputUnusable, match="Not a directory"),
        held_output(tmp_path / "letter.txt" / "t"),
    ):
        pass


def test_what_is_no_table_is_said_to_be_none(log: Log, tmp_path: Path) -> None:
    with pytest.raises(NoTables, match="is no folder: make them with"):
        table_files(tmp_path / "none", "records")
    with pytest.raises(NoTables, match="has no tables"):
        table_files(tmp_path, "records")
    with held_output(tmp_path / "t") as output:
        log.take(output)
    with pytest.raises(NoTables, match="no table recrods; the tables are records, leadership"):
        table_files(tmp_path / "t", "recrods")
    (tmp_path / "t" / MARKER).write_text(json.dumps({"format": 2}))
    with pytest.raises(NoTables, match="the format 2, and this version of quorumd knows 1"):
        table_files(tmp_path / "t", "records")
    (tmp_path / "t" / MARKER).write_text("null")
    with pytest.raises(NoTables, match="can't be read: it is no JSON object"):
        table_files(tmp_path / "t", "records")


@pytest.mark.parametrize("harm", ["missing", "torn", "other", "null", "list"])
def test_a_harmed_manifest_is_an_error_and_never_fewer_rows(
    log: Log, tmp_path: Path, harm: str
) -> None:
    with held_output(tmp_path / "t") as output:
        for end in (5, 10, 15):
            log.take(output, end)
    path = manifest_path(tmp_path / "t", "log", 1)
    if harm == "missing":
        path.unlink()
    elif harm == "torn":
        path.write_text(path.read_text()[:100])
    elif harm == "null":
        path.write_text("null")
    elif harm == "list":
        path.write_text(json.dumps({**json.loads(path.read_text()), "files": []}))
    else:
        path.write_text(path.read_text().replace('"start_offset": 5', '"start_offset": 4'))
    with pytest.raises(DamagedTables, match="The tables are damaged"):
        table_files(tmp_path / "t", "records")


def test_what_others_leave_beside_manifests_and_files_is_none_of_them(
    log: Log, tmp_path: Path
) -> None:
    with held_output(tmp_path / "t") as output:
        log.take(output)
    path = manifest_path(tmp_path / "t", "log", 0)
    for name in ("0000000000 copy.json", "0000000000.json.json", "00000000001.json"):
        (path.parent / name).write_text(path.read_text())
    (tmp_path / "t" / "records" / ".checkpoints").mkdir()
    with held_output(tmp_path / "t"):
        assert offsets(tmp_path / "t") == list(range(22))


@pytest.mark.parametrize(
    ("harmed", "said"),
    [
        ("records/*.parquet", "is missing, and a manifest names it"),
        ("leadership/*.parquet", "is missing, and a manifest names it"),
        ("records", "is missing, and a manifest names it"),
        ("manifests/log/*", "0000000000.json is missing"),
        ("manifests/log", "manifests/log is missing"),
        ("manifests", "manifests/log is missing"),
    ],
)
def test_tables_of_which_a_part_is_gone_are_damaged_and_nothing_else_is_deleted(
    log: Log, tmp_path: Path, harmed: str, said: str
) -> None:
    folder = tmp_path / "t"
    with held_output(folder) as output:
        log.take(output)
        commit_state(folder, output.token, 22, [])
    for path in folder.glob(harmed):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    left = sorted(folder.rglob("*.parquet"))
    with pytest.raises(DamagedTables, match=said), held_output(folder):
        pass
    assert sorted(folder.rglob("*.parquet")) == left


def test_a_file_of_another_size_is_damage(log: Log, tmp_path: Path) -> None:
    with held_output(tmp_path / "t") as output:
        log.take(output)
    (path,) = map(Path, table_files(tmp_path / "t", "records"))
    os.truncate(path, 100)
    with pytest.raises(DamagedTables, match="has 100 bytes and not "):
        table_files(tmp_path / "t", "records")
    with pytest.raises(DamagedTables, match="has 100 bytes and not "), held_output(tmp_path / "t"):
        pass


def on_disk(log: Log, folder: Path) -> LogOrigin:
    partition = folder / PARTITION_DIRECTORY
    partition.mkdir(parents=True, exist_ok=True)
    log_path(partition, 0).write_bytes(log.data)
    return LogOrigin(None, str(folder))


def test_another_log_is_not_read_on_from_where_the_tables_end(log: Log, tmp_path: Path) -> None:
    with held_output(tmp_path / "t") as output:
        log.take(output)
    last = newest(tmp_path / "t", "log")
    same = on_disk(log, tmp_path / "same")
    assert check_origin(same, last) == 22
    other = Log()
    other.elect(1, [1, 2, 3])
    other.append((b"k", b"other %d" % i) for i in range(30))
    with pytest.raises(DataLost, match="another record has it in this log"):
        check_origin(on_disk(other, tmp_path / "other"), last)
    short = Log()
    short.elect(1, [1])
    with pytest.raises(
        DataLost, match=r"the tables hold offsets below 22, but .*Name another folder"
    ):
        check_origin(on_disk(short, tmp_path / "short"), last)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(OutputUnusable, match="Permission denied"), held_output(tmp_path / "t"):
        pass
