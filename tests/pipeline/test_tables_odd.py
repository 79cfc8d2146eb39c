"""Tables of a log that holds what no honest producer sends, in folders of any name, by Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import quorumd.pipeline as pipeline
from quorumd.pipeline import state_command
from quorumd.pipeline.cli import run
from quorumd.pipeline.tables.ingest import StreamingIngest, run_once
from quorumd.pipeline.tables.origin import LogOrigin, check_origin
from quorumd.pipeline.tables.output import held_output
from quorumd.storage.layout import PARTITION_DIRECTORY, log_path
from tests.pipeline.written import Log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.filterwarnings("ignore::ResourceWarning"), pytest.mark.timeout(600)]


def on_disk(log: Log, folder: Path) -> LogOrigin:
    (folder / PARTITION_DIRECTORY).mkdir(parents=True, exist_ok=True)
    log_path(folder / PARTITION_DIRECTORY, 0).write_bytes(log.data)
    return LogOrigin(None, str(folder))


def test_batches_that_do_not_unpack_are_taken_as_empty(spark: SparkSession, tmp_path: Path) -> None:
    log = Log()
    log.elect(1, [1, 2, 3])
    log.append([(b"a", b"1")])
    log.append_empty(7)
    log.append([(b"b", b"2")])
    log.append_empty(3)
    node, folder = tmp_path / "node", tmp_path / "tables"
    with held_output(folder) as output:
        follower = StreamingIngest(
            spark,
            on_disk(log, node),
            output,
            interval_s=0,
            available_now=True,
            offsets_per_batch=5,
        )
        follower.run(lambda progress: None, pytest.fail)
        assert output.end_offset == log.end
    log.append([(b"a", b"3")])
    log.append_empty(2)
    with held_output(folder) as output:
        assert check_origin(on_disk(log, node), output.last) == log.end
        run_once(spark, on_disk(log, node), output)
        assert output.end_offset == log.end
    rows = pipeline.read_table(spark, folder, "records").orderBy("offset").collect()
    assert [row.offset for row in rows] == [0, 1, 9, 13]
    found = pipeline.state_as_of(spark, folder).orderBy("key").collect()
    assert [(bytes(row.key), bytes(row.value)) for row in found] == [(b"a", b"3"), (b"b", b"2")]


def test_state_shows_times_that_no_calendar_has(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = Log()
    far_ms = 400_000_000 * 86_400_000 // 4
    for log.now_ms in (0, 1_790_000_000_123, far_ms, 1 << 62):
        log.append([(b"%d" % log.end, b"v")])
    folder = tmp_path / "tables"
    with held_output(folder) as output:
        log.take(output)
    monkeypatch.setattr(state_command, "build_session", lambda *_, **__: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)
    assert run(["state", str(folder), "--output", "json"]) == 0
    found = [json.loads(line)["timestamp"] for line in capsys.readouterr().out.splitlines()]
    moments = ["1970-01-01T00:00:00.000Z", "2026-09-21T14:13:20.123Z"]
    assert found == [*moments, str(far_ms), None]
    assert run(["state", str(folder)]) == 0
    assert capsys.readouterr().out.splitlines()[3].split() == ["3", "-", "3", "v"]


def test_a_folder_of_any_name_holds_tables(spark: SparkSession, tmp_path: Path) -> None:
    log = Log()
    log.elect(1, [1])
    log.append([(b"a", b"1")])
    folder = tmp_path / "a [b-c] {d,e} ? * \\ %20" / "[tables]"
    folder.parent.mkdir()
    with held_output(folder) as output:
        follower = StreamingIngest(
            spark,
            on_disk(log, tmp_path / "node [1], a copy"),
            output,
            interval_s=0,
            available_now=True,
        )
        follower.run(lambda progress: None, pytest.fail)
    assert pipeline.read_table(spark, folder, "state").count() == 1
    assert pipeline.state_as_of(spark, folder, offset=1).count() == 1
