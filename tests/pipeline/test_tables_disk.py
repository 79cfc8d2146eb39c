"""Filling the tables while the machine fails it: a full disk, late workers, a Java that is stopped."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest

from quorumd.pipeline.tables import ingest
from quorumd.pipeline.tables.ingest import IngestProgress, StreamingIngest
from quorumd.pipeline.tables.manifests import table_files
from quorumd.pipeline.tables.output import held_output
from quorumd.storage.layout import PARTITION_DIRECTORY, log_path
from tests.pipeline.quick_start import COMMAND
from tests.pipeline.test_tables_kill import has_unnamed, offsets
from tests.pipeline.written import Log
from tests.support.commands import Done
from tests.support.mounts import mounted, tmpfs_or_skip

WAIT_S = 900.0
SLOW_WORKER = "java.net.SocketTimeoutException: Python worker failed to connect back."


def pipeline(*arguments: object) -> Done:
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.mark.timeout(2700)
@pytest.mark.usefixtures("quick_start")
def test_a_disk_that_fills_up_in_mid_batch_is_one_line_and_the_next_run_completes(
    tmp_path: Path,
) -> None:
    space = tmpfs_or_skip("4m")
    random = Random(1)
    disk = tmp_path / "disk"
    disk.mkdir()
    folder = disk / "tables"
    log = Log()
    log.elect(1, (1, 2, 3))
    log.append((b"key", b"%d" % i) for i in range(50))
    node = tmp_path / "node"
    (node / PARTITION_DIRECTORY).mkdir(parents=True)
    with mounted(disk, space):
        with held_output(folder) as output:
            log.take(output)
        there = log.end
        values = [random.randbytes(2000) for _ in range(3500)]
        for at in range(0, len(values), 100):
            log.append((b"key%d" % (at % 7), value) for value in values[at : at + 100])
        log_path(node / PARTITION_DIRECTORY, 0).write_bytes(log.data)

        for command in ("batch",), ("run", "--available-now"):
            done = pipeline(*command, "--path", node, "--output", folder, "--master", "local[2]")
            assert done.code == 1, done.text
            *_, last = done.err.splitlines()
            assert last.startswith("Error: "), done.err
            assert "No space left on device" in last
            assert str(folder) in last
            assert "Traceback" not in done.err
            assert has_unnamed(folder), "some of its files were whole, or begun"
            assert offsets(folder) == list(range(there)), "none of the batch counts"

        subprocess.run(["mount", "-o", "remount,size=128m", str(disk)], check=True)
        done = pipeline("batch", "--path", node, "--output", folder, "--master", "local[2]")
        assert done.code == 0, done.text
        assert offsets(folder) == list(range(log.end))
        rows = [
            value
            for path in table_files(folder, "records")
            for value in pq.read_table(path, columns=["value"])["value"].to_pylist()
        ]
        assert rows[there:] == values
        assert list((folder / "records").glob("_*")) == [], "what was begun is gone"


# --- workers that start too late


class Tries:
    """Fails so many times."""

    def __init__(self, failures: int, text: str = SLOW_WORKER) -> None:
        self.left = failures
        self.text = text
        self.counted = 0

    def __call__(self, *_: Any) -> None:
        self.counted += 1
        if self.left:
            self.left -= 1
            raise RuntimeError(self.text)


def fill(tries: Tries, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "RETRY_S", 0)
    monkeypatch.setattr(ingest, "register_sink", lambda spark: None)
    monkeypatch.setattr(ingest, "_ingest", tries)
    ingest.run_once(*[None] * 3)


def test_a_batch_is_tried_again_when_a_python_worker_starts_too_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries = Tries(4)
    fill(tries, monkeypatch)
    assert tries.counted == 5


@pytest.mark.parametrize(("text", "counted"), [(SLOW_WORKER, 5), ("something else", 1)])
def test_a_batch_is_not_tried_for_ever_and_only_for_what_may_pass(
    text: str, counted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = Tries(1000, text)
    with pytest.raises(RuntimeError, match=text):
        fill(tries, monkeypatch)
    assert tries.counted == counted


# --- Java that is stopped, too


class Ending:
    """A session and its query, whose Java a service manager stops together with this process, or before."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, has_ended: bool) -> None:
        monkeypatch.setattr(ingest, "RETRY_S", 0.02)
        monkeypatch.setattr(ingest, "POLL_S", 0.01)
        monkeypatch.setattr(ingest, "register_sink", lambda spark: None)
        monkeypatch.setattr(ingest, "refresh_state", self.fail)
        monkeypatch.setattr(ingest.StreamingIngest, "_start", lambda _: self)
        context = SimpleNamespace(isStopped=lambda: has_ended)
        spark: Any = SimpleNamespace(
            sparkContext=SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: context))
        )
        given: Any = None
        self.ingest = ingest.StreamingIngest(spark, given, given, interval_s=1)
        self.warnings: list[str] = []
        self.on_wait = self.ingest.stop

    def fail(self, *_: object) -> None:
        raise ConnectionError("Java has gone")

    def awaitTermination(self, seconds: float) -> None:  # noqa: N802 (Spark's name)
        self.on_wait()
        self.fail()

    def stop(self) -> None:
        self.fail()

    def run(self) -> None:
        self.ingest.run(lambda progress: None, self.warnings.append)


def test_a_stop_that_ends_java_too_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM of a service manager goes to all processes."""
    ending = Ending(monkeypatch, has_ended=True)
    ending.run()
    assert ending.warnings == [
        "Spark's Java was stopped, too: the next run brings state and key_history up to date."
    ]


def test_java_that_ends_without_a_stop_and_a_failure_while_it_runs_are_failures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alone = Ending(monkeypatch, has_ended=True)
    alone.on_wait = lambda: None
    with pytest.raises(ConnectionError):
        alone.run()
    running = Ending(monkeypatch, has_ended=False)
    with pytest.raises(ConnectionError):
        running.run()


# --- queries that end


class Query:
    """One of a stream, that was stopped or not."""

    is_stopped = False

    def stop(self) -> None:
        self.is_stopped = True


def follow(
    tries: Tries, monkeypatch: pytest.MonkeyPatch, *, available_now: bool, succeeds: bool
) -> list[str]:
    """Warnings of a stream whose queries fail, each perhaps after a batch that was a success."""
    monkeypatch.setattr(ingest, "RETRY_S", 0)
    for name in ("register_sink", "refresh_state", "compact"):
        monkeypatch.setattr(ingest, name, lambda *_: None)
    queries: list[Query] = []
    warnings: list[str] = []

    def start(self: object) -> Query:
        queries.append(Query())
        return queries[-1]

    def watch(self: object, query: Query, show: Callable[[IngestProgress], None]) -> None:
        if succeeds:
            show(IngestProgress(1, 1, 0.0))
        tries()

    monkeypatch.setattr(StreamingIngest, "_start", start)
    monkeypatch.setattr(StreamingIngest, "_watch", watch)
    nothing: Any = None
    stream = StreamingIngest(nothing, nothing, nothing, interval_s=1, available_now=available_now)
    try:
        stream.run(lambda progress: None, warnings.append)
    finally:
        assert all(query.is_stopped for query in queries)
    return warnings


def test_a_stream_waits_for_a_leader_and_one_that_is_to_end_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone = "LogUnreachable: no leader"
    found = follow(Tries(20, gone), monkeypatch, available_now=False, succeeds=False)
    assert len(found) == 20
    with pytest.raises(RuntimeError, match=gone):
        follow(Tries(1, gone), monkeypatch, available_now=True, succeeds=False)


def test_what_may_pass_is_counted_anew_after_a_success(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(follow(Tries(9), monkeypatch, available_now=True, succeeds=True)) == 9
    tries = Tries(9)
    with pytest.raises(RuntimeError, match="failed to connect back"):
        follow(tries, monkeypatch, available_now=True, succeeds=False)
    assert tries.counted == 5
