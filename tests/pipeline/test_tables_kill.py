"""`quorumd-pipeline run` killed at several moments: what is in the tables then, and after the next run."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from quorumd.pipeline.tables.manifests import newest, table_files
from tests.pipeline.filling import append, some_records
from tests.pipeline.quick_start import COMMAND
from tests.support.live_cluster import Cluster, running_cluster

START_S = 400.0
"""A loaded machine may need minutes for what takes ten seconds."""


class Run:
    """The command in a process group of its own."""

    def __init__(self, cluster: Cluster, folder: Path, *more: object) -> None:
        self.folder = folder
        self.log = folder.with_name(f"{folder.name}.log")
        arguments = ["run", "-b", cluster.bootstrap, "--output", folder, "--interval", 0]
        arguments += ["--max-offsets", 200, "--master", "local[2]", *more]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*COMMAND, *map(str, arguments)],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_for(self, look: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + START_S
        while not look():
            assert self.process.poll() is None, f"it ended:\n{self.log.read_text()}"
            assert time.monotonic() < deadline, f"waited for {what}:\n{self.log.read_text()}"
            time.sleep(0.002)

    def wait_end(self) -> int:
        try:
            return self.process.wait(START_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"it goes on:\n{self.log.read_text()}") from None

    def kill(self, *, all_of_it: bool = True) -> None:
        """SIGKILL to Python and Java, or to Python alone: then Java sees it a moment later."""
        (os.killpg if all_of_it else os.kill)(self.process.pid, signal.SIGKILL)
        self.process.wait()


def offsets(folder: Path) -> list[int]:
    return [
        offset
        for path in table_files(folder, "records")
        for offset in pq.read_table(path, columns=["offset"])["offset"].to_pylist()
    ]


def manifests(folder: Path) -> int:
    """How many there are, as soon as there is a folder."""
    try:
        last = newest(folder, "log")
    except Exception:
        return 0
    return last.number + 1 if last is not None else 0


def has_unnamed(folder: Path) -> bool:
    """Whether a task has written a file that does not count yet."""
    if not manifests(folder):
        return False
    named = {Path(path).name for path in table_files(folder, "records")}
    return any(path.name not in named for path in sorted((folder / "records").iterdir()))


@pytest.mark.live
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("quick_start")
def test_kill_9_at_any_moment_loses_and_doubles_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "tables"
    with running_cluster(tmp_path / "quorum") as cluster:
        append(cluster, some_records(600))
        run = Run(cluster, folder)
        run.wait_for(lambda: manifests(folder), "a first batch")
        run.kill()
        append(cluster, some_records(300))
        before = offsets(folder)
        assert before == list(range(len(before)))

        run = Run(cluster, folder)
        # First it deletes what the run before has left.
        run.wait_for(lambda: run.log.read_text().count("Spark starts") == 2, "its beginning")
        run.wait_for(lambda: has_unnamed(folder), "mid-batch")
        # Java and its workers live on for a moment, and may be about to commit.
        run.kill(all_of_it=False)
        append(cluster, some_records(100))
        end = cluster.wait_converged()
        run = Run(cluster, folder, "--available-now")
        assert run.wait_end() == 0, run.log.read_text()
    found = offsets(folder)
    assert len(found) == len(set(found)) == end
    assert sorted(found) == list(range(end))
    assert not has_unnamed(folder), "what the killed runs left is gone"
    state = newest(folder, "state")
    assert state is not None
    assert state.end_offset == end
