"""The pipeline unchanged on clusters: executors in processes of their own, and killed in mid-run."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quorumd.pipeline.tables.manifests import newest, table_files
from quorumd.wire.records import Record
from tests.pipeline import planting
from tests.pipeline.filling import append, as_records, some_records
from tests.pipeline.quick_start import link_spark, pyspark_folder
from tests.pipeline.spark_cluster import (
    WAIT_S,
    SparkCluster,
    running_spark,
    send,
)
from tests.pipeline.test_tables_kill import manifests, offsets
from tests.support.live_cluster import Cluster, running_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(2400)

LOCAL_CLUSTER = "local-cluster[2,1,1024]"
PIPELINE_SCRIPT = """\
from quorumd.pipeline.cli import main

if __name__ == "__main__":
    main()
"""
READING_SCRIPT = """
import os, sys
import pyarrow as pa
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
for name, option, value in ("live", "bootstrap.servers", sys.argv[1]), ("files", "path", sys.argv[2]):
    rows = spark.read.format("quorumd").option(option, value).option("minPartitions", 4).load()
    found = rows.orderBy("offset").toArrow()
    with pa.OSFile(name, "wb") as file, pa.ipc.new_file(file, found.schema) as writer:
        writer.write_table(found)
print(*spark.sparkContext.parallelize(range(8), 8).map(lambda _: os.getcwd()).collect(), sep="\\n")
"""


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Cluster]:
    """A quorum for this test, so that its log is short."""
    with running_cluster(tmp_path / "quorum") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def _shared_spark(
    quick_start: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkCluster]:
    with running_spark(tmp_path_factory.mktemp("spark-cluster")) as cluster:
        yield cluster


@pytest.fixture
def standalone(_shared_spark: SparkCluster) -> Iterator[SparkCluster]:
    """A master and two workers that have nothing to do. A failure shows what they have logged."""
    _shared_spark.start()
    yield _shared_spark
    print(_shared_spark.logs())


def assert_done(done: Sequence[object]) -> None:
    code, out, err = done
    assert code == 0, f"{out}{err}"


def assert_tables_of(folder: Path, log: Sequence[Record], end: int) -> None:
    """Every offset once, the records that were written, and the state that they give."""
    rows = rows_of(folder, "records")
    assert [row["offset"] for row in rows] == list(range(end))
    first = log[0].offset
    data = [row for row in rows if row["control_type"] is None and row["offset"] >= first]
    assert as_records(data) == list(log)
    state = rows_of(folder, "state")
    found = {row["key"]: row["offset"] for row in state}
    assert len(found) == len(state)
    last = {record.key: record for record in as_records(data) if record.key is not None}
    expected = {key: None if each.value is None else each.offset for key, each in last.items()}
    assert {key: found.get(key) for key in expected} == expected


def rows_of(folder: Path, table: str) -> list[dict[str, Any]]:
    return [row for path in table_files(folder, table) for row in pq.read_table(path).to_pylist()]


def test_a_script_reads_the_same_rows_on_a_cluster(
    standalone: SparkCluster, live: Cluster, spark: SparkSession, tmp_path: Path
) -> None:
    written = append(live, some_records(300))
    live.wait_converged()
    (tmp_path / "read.py").write_text(READING_SCRIPT)
    here: dict[str, pa.Table] = {}
    options = {
        "live": ("bootstrap.servers", live.bootstrap),
        "files": ("path", str(live.storage_dir(1))),
    }
    for name, (option, value) in options.items():
        reader = spark.read.format("quorumd").option(option, value).option("minPartitions", 4)
        here[name] = reader.load().orderBy("offset").toArrow()
    submit = ["spark-submit", "--master", standalone.url, tmp_path / "read.py"]
    done = standalone.run(*submit, live.bootstrap, live.storage_dir(1), folder=tmp_path)
    assert_done(done)
    for name in options:
        with pa.memory_map(str(tmp_path / name)) as file:
            assert pa.ipc.open_file(file).read_all().equals(here[name]), name
    places = {Path(line) for line in done.out.splitlines()}
    assert len(places) == 2, "both executors had something to do"
    assert all(place.is_relative_to(standalone.work.resolve()) for place in places)
    rows = here["live"].to_pylist()
    first = written[0].offset
    assert as_records(row for row in rows if row["offset"] >= first) == written


def test_the_tables_are_exactly_the_log_however_it_is_run(
    standalone: SparkCluster, live: Cluster, tmp_path: Path
) -> None:
    """The command itself does it in the test of killed executors."""
    folder = tmp_path / "tables"
    log = append(live, some_records(500))
    script = tmp_path / "pipeline.py"
    script.write_text(PIPELINE_SCRIPT)
    run = ["run", "-b", live.bootstrap, "--output", folder, "--available-now", "--max-offsets", 300]
    assert_done(standalone.run("spark-submit", "--master", standalone.url, script, *run))
    assert_tables_of(folder, log, live.wait_converged())

    log += append(live, some_records(100))
    home = tmp_path / "spark"
    home.mkdir()
    link_spark(home, without="work")  # which local-cluster writes
    batch = ["batch", "-b", live.bootstrap, "--output", folder, "--master", LOCAL_CLUSTER]
    assert_done(standalone.run("quorumd-pipeline", *batch, environ={"SPARK_HOME": str(home)}))
    assert_tables_of(folder, log, live.wait_converged())


def test_a_script_that_is_submitted_ends_with_the_exit_code_of_the_pipeline(
    standalone: SparkCluster, tmp_path: Path
) -> None:
    script = tmp_path / "pipeline.py"
    script.write_text(PIPELINE_SCRIPT)
    done = standalone.run("spark-submit", "--master", standalone.url, script, "run", "--nothing")
    assert done.code == 2
    assert "No such option" in done.text
    assert "--nothing" in done.text


def test_executors_and_a_worker_killed_in_mid_write_lose_and_double_nothing(
    standalone: SparkCluster, live: Cluster, tmp_path: Path
) -> None:
    folder = tmp_path / "tables"
    log = append_much(live)
    command = ["quorumd-pipeline", "run", "-b", live.bootstrap, "--output", folder]
    command += ["--interval", 0, "--max-offsets", 1000, "--master", standalone.url]
    with standalone.command(*command) as run:
        try:
            wait_for(run, lambda: manifests(folder), "a first batch")
            begun = held_in_mid_write(standalone, run, folder, live, log)
            before = manifests(folder)
            standalone.kill_executors()
            assert begun <= parts(folder)
            wait_for(run, lambda: manifests(folder) > before, "another batch")
            held_in_mid_write(standalone, run, folder, live, log)
            standalone.kill_worker(0)
            send(standalone.executors(), signal.SIGCONT)
            end = live.wait_converged()
            wait_for(run, lambda: len(offsets(folder)) >= end, "all of the log")
            run.send_signal(signal.SIGTERM)
            _, err = run.communicate(timeout=WAIT_S)
            assert run.returncode == 0, err
        finally:
            run.kill()
    assert_tables_of(folder, log, end)


def held_in_mid_write(
    standalone: SparkCluster,
    run: subprocess.Popen[str],
    folder: Path,
    live: Cluster,
    log: list[Record],
) -> set[str]:
    """Appends until all executors are stopped (SIGSTOP) while one writes; the files that are begun then."""
    while True:
        known, executors = parts(folder), standalone.executors()
        log += append_much(live)
        end = log[-1].offset + 1
        wait_for(
            run,
            lambda known=known, end=end: parts(folder) - known or filled_to(folder) >= end,
            "a task that writes",
        )
        # These at once, which takes no time; then those that have been started since.
        send(executors, signal.SIGSTOP)
        executors = standalone.executors()
        send(executors, signal.SIGSTOP)
        if begun := parts(folder) - known:
            return begun
        send(executors, signal.SIGCONT)


def append_much(live: Cluster) -> list[Record]:
    records = some_records(2000, value=Random(1).randbytes(3000))
    return append(live, records, batch_bytes=400_000)


def filled_to(folder: Path) -> int:
    """The end offset of the newest batch."""
    last = newest(folder, "log")
    return last.end_offset if last is not None else 0


def parts(folder: Path) -> set[str]:
    """The files of `records` that tasks have begun and not finished."""
    return {path.name for path in (folder / "records").glob("_*")}


def wait_for(run: subprocess.Popen[str], look: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not look():
        assert run.poll() is None, f"it ended: {run.communicate()}"
        assert time.monotonic() < deadline, f"waited for {what}"
        time.sleep(0.001)


def test_the_audit_on_a_cluster_finds_a_planted_damage(
    standalone: SparkCluster, live: Cluster, tmp_path: Path
) -> None:
    append(live, some_records(50, value=b"xxxx"))
    live.wait_converged()
    copies = planting.copy_of([live.storage_dir(node) for node in live.ids], tmp_path)
    planted = planting.place(copies[1], -1, -1)
    planting.change_value(planted)
    audit = ["quorumd-pipeline", "audit", *copies, "--output", "json"]
    done = standalone.run(*audit, "--master", standalone.url)
    assert done.code == 3, done.text
    told = json.loads(done.out)
    (finding,) = [each for each in told["findings"] if each["severity"] == "damage"]
    assert finding["offset"] == planted.header.base_offset
    assert finding["replicas"] == ["replica 2"]
    assert json.loads(standalone.run(*audit).out)["findings"] == told["findings"]


# --- what the doctor says, and what users see who forgot something


def test_the_doctor_names_the_python_and_the_packages_of_each_host(
    standalone: SparkCluster,
) -> None:
    doctor = ["quorumd-pipeline", "doctor", "--master", standalone.url, "--output", "json"]
    done = standalone.run(*doctor)
    assert_done(done)
    checks = {check["name"]: check["detail"] for check in json.loads(done.out)["checks"]}
    assert checks["session"] == f"{standalone.url}, executors on 1 host"
    (host,) = [detail for name, detail in checks.items() if name.startswith("host ")]
    version = ".".join(map(str, sys.version_info[:3]))
    assert host.startswith(f"{sys.executable} ({version}), quorumd ")
    assert ", pyarrow " in host


def test_executors_without_quorumd_are_told_with_what_to_install(
    standalone: SparkCluster, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    zips = ":".join(map(str, pyspark_folder().glob("python/lib/*.zip")))
    # Another Python on the workers' hosts than on this one: without any package but Spark's own.
    python.write_text(
        f"""#!/bin/sh
case "$PWD" in {standalone.work}/*) PYTHONPATH={zips} exec {sys.executable} -S "$@" ;; esac
exec {sys.executable} "$@"
"""
    )
    python.chmod(0o755)
    environ = {"PYSPARK_PYTHON": str(python)}
    doctor = ["quorumd-pipeline", "doctor", "--master", standalone.url]
    done = standalone.run(*doctor, environ=environ)
    assert done.code == 1
    said = done.out.splitlines()[-1]
    assert said.startswith("host ")
    assert "can't import quorumd (ModuleNotFoundError: No module named 'quorumd')" in said
    assert "pip install 'quorumd[spark]'" in said
