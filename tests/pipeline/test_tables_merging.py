"""Small files and manifests become few; what the tables hold stays the same. Without Spark."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from quorumd.pipeline.tables import compaction, parquet
from quorumd.pipeline.tables import output as output_module
from quorumd.pipeline.tables.commit import commit_log, commit_state
from quorumd.pipeline.tables.manifests import DataFile, manifest_path, read_chain, table_files
from quorumd.pipeline.tables.output import Output, RunReplaced, held_output
from quorumd.pipeline.tables.parquet import TableWriter, read_rows
from quorumd.pipeline.tables.schemas import KEY_HISTORY, TABLES
from tests.pipeline.written import Log

BATCHES = compaction.MANIFESTS_MAX + 5


def filled(output: Output, log: Log, batches: int = BATCHES) -> None:
    """So many batches, of three records each."""
    for _ in range(batches):
        log.append((b"k%d" % i, b"v%d" % log.end) for i in range(3))
        log.take(output)


def rows(folder: Path) -> list[dict[str, object]]:
    found: list[dict[str, object]] = (
        ds.dataset(table_files(folder, "records")).to_table().to_pylist()
    )
    return found


@pytest.fixture
def log() -> Log:
    """A leader at offset 0."""
    made = Log()
    made.elect(1, [1, 2, 3])
    return made


@pytest.mark.long
def test_many_small_files_become_one_with_the_same_rows(log: Log, tmp_path: Path) -> None:
    with held_output(tmp_path / "t") as output:
        filled(output, log)
        before, leaders = rows(tmp_path / "t"), read_rows(tmp_path / "t", "leadership")
        arrivals = [each for one in read_chain(tmp_path / "t", "log") for each in one.arrivals]
        compaction.compact(output)
        assert rows(tmp_path / "t") == before
        assert len(table_files(tmp_path / "t", "records")) == 1
        (manifest,) = read_chain(tmp_path / "t", "log")
        assert (manifest.start_offset, manifest.end_offset) == (0, log.end)
        assert manifest.rows == len(before) == log.end
        assert list(manifest.arrivals) == arrivals
        # And it goes on from there.
        filled(output, log, 2)
    assert [row["offset"] for row in rows(tmp_path / "t")] == list(range(log.end))
    assert len(read_chain(tmp_path / "t", "log")) == 3
    assert read_rows(tmp_path / "t", "leadership") == leaders


def test_a_short_chain_is_left_alone(log: Log, tmp_path: Path) -> None:
    with held_output(tmp_path / "t") as output:
        filled(output, log, compaction.MANIFESTS_MAX)
        compaction.compact(output)
        assert len(read_chain(tmp_path / "t", "log")) == compaction.MANIFESTS_MAX


@pytest.mark.long
def test_what_is_committed_while_files_are_merged_stays(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with held_output(tmp_path / "t") as output:
        filled(output, log)
        real = compaction._as_one

        def meanwhile(folder: Path, table: str, files: list[DataFile]) -> list[DataFile]:
            log.elect(2, [1, 2, 3])
            log.take(output)
            return real(folder, table, files)

        monkeypatch.setattr(compaction, "_as_one", meanwhile)
        compaction.compact(output)
    assert [row["offset"] for row in rows(tmp_path / "t")] == list(range(log.end))
    assert len(table_files(tmp_path / "t", "records")) == 2
    assert [row["leader_id"] for row in read_rows(tmp_path / "t", "leadership")] == [1, 2]


@pytest.mark.long
def test_readers_have_ten_minutes_for_what_was_merged(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "t"
    with held_output(folder) as output:
        filled(output, log)
        old = [Path(path) for path in table_files(folder, "records")]
        for path in old:
            # How old a file is says nothing: it was replaced just now.
            os.utime(path, (0, 0))
        compaction.compact(output)
        assert all(path.exists() for path in old)
    with held_output(folder) as output:
        assert all(path.exists() for path in old), "the next run keeps them, too"
        assert manifest_path(folder, "log", 0).exists()
        now = time.time() + output_module.REPLACED_KEPT_S + 1
        monkeypatch.setattr(output_module.time, "time", lambda: now)
        compaction.compact(output)
        assert not any(path.exists() for path in old)
        assert not manifest_path(folder, "log", 0).exists()
        assert [row["offset"] for row in rows(folder)] == list(range(log.end))
        filled(output, log, 1)
    with held_output(folder):
        pass
    assert [row["offset"] for row in rows(folder)] == list(range(log.end))
    names = sorted(str(path) for path in (folder / "records").iterdir())
    assert names == sorted(table_files(folder, "records"))


@pytest.mark.long
def test_key_history_is_merged_and_state_is_not(log: Log, tmp_path: Path) -> None:
    folder = tmp_path / "t"
    with held_output(folder) as output:
        for _ in range(BATCHES):
            start = log.end
            filled(output, log, 1)
            changes = [
                {"key": b"k", "value": b"v", "offset": each, "epoch": 1, "change": "UPDATE"}
                for each in range(start, log.end)
            ]
            commit_state(folder, output.token, log.end, history_file(folder, changes))
        before = ds.dataset(table_files(folder, "key_history")).to_table()
        compaction.compact(output)
        assert ds.dataset(table_files(folder, "key_history")).to_table() == before
        assert len(table_files(folder, "key_history")) == 1
        assert read_chain(folder, "state")[0].rows == before.num_rows


def history_file(folder: Path, changes: list[dict[str, object]]) -> list[tuple[str, DataFile]]:
    writer = TableWriter(folder, "key_history")
    for batch in pa.Table.from_pylist(changes, KEY_HISTORY).to_batches():
        writer.write(batch)
    return [("key_history", file) for file in writer.close()]


def test_large_files_are_not_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "SMALL_BYTES", 50)
    monkeypatch.setattr(compaction, "MERGED_BYTES", 100)
    sizes = [10, 20, 60, 49, 49, 49, 50, 1, 99, 1]
    files = [DataFile(f"records/{i}", 1, size) for i, size in enumerate(sizes)]
    groups = [[file.size_bytes for file in group] for group in compaction._groups(files)]
    assert groups == [[10, 20], [60], [49, 49], [49], [50], [1], [99], [1]]


@pytest.mark.long
def test_a_run_that_was_replaced_merges_nothing(log: Log, tmp_path: Path) -> None:
    with held_output(tmp_path / "t") as straggler:
        filled(straggler, log)
    with held_output(tmp_path / "t") as output:
        with pytest.raises(RunReplaced):
            compaction.compact(straggler)
        written = log.written(output.folder, log.end, log.end)
        commit_log(output.folder, output.token, [written])
    assert len(read_chain(tmp_path / "t", "log")) == BATCHES


def test_when_the_last_batches_came_stays_known(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "MANIFESTS_MAX", 3)
    monkeypatch.setattr(compaction, "ARRIVALS_KEPT", 2)
    with held_output(tmp_path / "t") as output:
        filled(output, log, 4)
        arrivals = [each.arrivals[0] for each in read_chain(output.folder, "log")]
        compaction.compact(output)
        (merged,) = read_chain(output.folder, "log")
    assert list(merged.arrivals) == arrivals[-2:]


def test_the_next_run_deletes_what_was_replaced_long_ago_and_what_was_never_finished(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "MANIFESTS_MAX", 3)
    folder = tmp_path / "t"
    with held_output(folder) as output:
        filled(output, log, 4)
        old = [Path(path) for path in table_files(folder, "records")]
        compaction.compact(output)
        output.new_work().mkdir()
    assert list((folder / output_module.WORK).glob("*")) == [], "what is left is of no use"
    part = manifest_path(folder, "log", 0).with_name("_0000000009.json.123")
    part.write_text("{")
    assert all(path.exists() for path in old)
    now = time.time() + output_module.REPLACED_KEPT_S + 1
    monkeypatch.setattr(output_module.time, "time", lambda: now)
    with held_output(folder):
        assert not any(path.exists() for path in old)
        assert not part.exists()
    assert [row["offset"] for row in rows(folder)] == list(range(log.end))


def test_the_rows_of_a_file_are_counted_however_often_it_was_written_to(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "_ROW_GROUP_ROWS", 2)
    with held_output(tmp_path / "t") as output:
        filled(output, log, 1)
        rows_of_one = pa.RecordBatch.from_pylist(rows(output.folder), TABLES["records"])
        writer = TableWriter(output.folder, "records")
        for _ in range(3):
            writer.write(rows_of_one)
        (file,) = writer.close()
        assert file.rows == 3 * rows_of_one.num_rows
        assert pq.read_metadata(output.folder / file.path).num_rows == file.rows
        assert (file.first_offset, file.last_offset) == (0, log.end - 1)
