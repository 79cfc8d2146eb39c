"""The process that builds snapshots: what it prints, how it ends, and what it leaves."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from quorumd.raft.types import SnapshotId
from quorumd.server.model.snapshot_builds import BuildFailed, BuildResult
from quorumd.server.snapshots.build_command import NICENESS
from quorumd.server.snapshots.build_subprocess import BuildSubprocess
from quorumd.storage.filesystem import RealFileSystem
from quorumd.storage.layout import is_part, log_path, part_path
from quorumd.storage.snapshot_file import verify_snapshot
from quorumd.wire.records import Record, build_batch
from tests.storage.helpers import START_MS

pytestmark = pytest.mark.live

RECORDS_PER_BATCH = 500
BUILD_COMMAND = ("-m", "quorumd.server.snapshots.build_command")


def write_log(directory: Path, batches: int, value_bytes: int) -> int:
    """One segment with a key for each record; returns where it ends."""
    value = bytes(value_bytes)
    with log_path(directory, 0).open("wb") as file:
        for base in range(0, batches * RECORDS_PER_BATCH, RECORDS_PER_BATCH):
            records = [
                Record(START_MS, START_MS + at, b"%09d" % (at * 7919 % 10**9), value)
                for at in range(base, base + RECORDS_PER_BATCH)
            ]
            file.write(build_batch(records, base_offset=base, epoch=3))
    return batches * RECORDS_PER_BATCH


@pytest.fixture(scope="module")
def long_log(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """One that takes a second or more."""
    directory = tmp_path_factory.mktemp("long")
    return directory, write_log(directory, 400, 50)


@contextmanager
def running(
    directory: Path, end_offset: int, *options: str, program: Sequence[str] = BUILD_COMMAND
) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [
            *(sys.executable, "-P", *program),
            *("--directory", str(directory), "--end-offset", str(end_offset), *options),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()


def lines_of(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    assert process.stdout is not None
    return [json.loads(line) for line in process.stdout]


def parts(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir() if is_part(path.name)]


def wait_for_part(directory: Path, process: subprocess.Popen[str]) -> None:
    """Until there is something of the snapshot."""
    while not parts(directory):
        assert process.poll() is None
        time.sleep(0.001)


def test_a_snapshot_is_built_and_its_progress_told(long_log: tuple[Path, int]) -> None:
    directory, end = long_log
    with running(directory, end) as process:
        *progress, result = lines_of(process)
        assert process.wait() == 0
    snapshot_id = SnapshotId(end, 3)
    path = part_path(directory, snapshot_id)
    assert result == {
        "end_offset": end,
        "epoch": 3,
        "size_bytes": path.stat().st_size,
        "records": end,
        "empty_batches": 0,
    }
    assert parts(directory) == [path.name]
    verify_snapshot(RealFileSystem(), path, snapshot_id)
    path.unlink()
    assert progress
    assert [line["done"] for line in progress] == sorted(line["done"] for line in progress)
    assert all(0 <= line["done"] <= line["total"] for line in progress)


def test_an_error_is_told_and_its_exit_code_used(tmp_path: Path) -> None:
    end = write_log(tmp_path, 2, 10)
    with running(tmp_path, end + 1) as process:
        line = lines_of(process)[-1]
        assert process.wait() == 1
    assert line["kind"] == "UnsuitableOffset"
    assert f"no snapshot can end at offset {end + 1}: the log ends at offset {end}" in line["error"]
    damaged = bytearray(log_path(tmp_path, 0).read_bytes())
    damaged[100] ^= 1
    log_path(tmp_path, 0).write_bytes(damaged)
    with running(tmp_path, end) as process:
        line = lines_of(process)[-1]
        assert process.wait() == 3
    assert (line["kind"], parts(tmp_path)) == ("DamagedLog", [])
    with running(tmp_path / "missing", end) as process:
        line = lines_of(process)[-1]
        assert process.wait() == 1
    assert "no such file" in line["error"].lower()


def test_it_stops_and_cleans_up_when_its_input_ends(long_log: tuple[Path, int]) -> None:
    directory, end = long_log
    with running(directory, end, "--memory-bytes", "1000000") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("what is written is not looked at\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["total"]
        process.stdin.close()
        assert not any("epoch" in line for line in lines_of(process))
        assert process.wait() == 1
    assert parts(directory) == []


def test_it_goes_on_where_all_processes_of_a_service_are_told_to_read_files_again(
    long_log: tuple[Path, int],
) -> None:
    directory, end = long_log
    with running(directory, end) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["total"]
        process.send_signal(signal.SIGHUP)
        assert lines_of(process)[-1]["records"] == end
        assert process.wait() == 0
    (name,) = parts(directory)
    (directory / name).unlink()


PARENT = """
import subprocess, sys
child = subprocess.Popen(
    [sys.executable, "-P", "-m", "quorumd.server.snapshots.build_command", *sys.argv[1:]],
    stdin=subprocess.PIPE,
)
child.wait()
"""


def test_it_ends_when_its_parent_is_killed(long_log: tuple[Path, int]) -> None:
    directory, end = long_log
    command = [sys.executable, "-c", PARENT, "--directory", str(directory)]
    parent = subprocess.Popen(
        [*command, "--end-offset", str(end)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    assert json.loads(parent.stdout.readline())["total"]
    parent.kill()
    # Its end is that of the builder: both write to it.
    assert not any("epoch" in line for line in lines_of(parent))
    parent.stdout.close()
    parent.wait()
    assert parts(directory) == []


def test_one_that_was_left_behind_is_waited_for(long_log: tuple[Path, int]) -> None:
    directory, end = long_log
    with running(directory, end) as former:
        assert former.stdin is not None
        wait_for_part(directory, former)
        former.send_signal(signal.SIGSTOP)
        with running(directory, end) as fresh:
            assert fresh.stdout is not None
            assert not select.select([fresh.stdout], [], [], 2)[0]
            former.stdin.close()
            former.send_signal(signal.SIGCONT)
            assert former.wait() == 1
            assert lines_of(fresh)[-1]["records"] == end
            assert fresh.wait() == 0
    path = part_path(directory, SnapshotId(end, 3))
    verify_snapshot(RealFileSystem(), path, SnapshotId(end, 3))
    path.unlink()


def test_one_that_waits_for_another_ends_with_its_input(long_log: tuple[Path, int]) -> None:
    directory, end = long_log
    with running(directory, end) as former:
        wait_for_part(directory, former)
        former.send_signal(signal.SIGSTOP)
        with running(directory, end) as fresh:
            assert fresh.stdin is not None
            fresh.stdin.close()
            assert (lines_of(fresh), fresh.wait()) == ([], 1)
        assert parts(directory)
        former.kill()
    for name in parts(directory):
        (directory / name).unlink()


def test_the_node_comes_first(long_log: tuple[Path, int]) -> None:
    directory, end = long_log
    with running(directory, end) as process:
        assert process.stdout is not None
        process.stdout.readline()
        priority = os.getpriority(os.PRIO_PROCESS, process.pid)
        own = os.getpriority(os.PRIO_PROCESS, 0)
        # Ctrl-C does not reach it, and the kernel compares it with the node.
        assert os.getpgid(process.pid) == process.pid
        assert os.getsid(process.pid) == os.getsid(0)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait() == 1
    assert priority == min(19, own + NICENESS)


def test_memory_does_not_grow_with_the_log(tmp_path: Path) -> None:
    end = write_log(tmp_path, 200, 800)
    size_bytes = log_path(tmp_path, 0).stat().st_size
    assert size_bytes > 80_000_000
    peaks = []
    for wanted in (RECORDS_PER_BATCH, end):
        with running(tmp_path, wanted, "--memory-bytes", "4000000") as process:
            assert lines_of(process)[-1]["records"] == wanted
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        peaks.append(usage.ru_maxrss * 1024)
    assert peaks[1] - peaks[0] < 20_000_000


@pytest.mark.parametrize("arguments", [(), ("--directory", "/tmp"), ("--end-offset", "x")])
def test_a_wrong_command_line_is_explained(arguments: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "quorumd.server.snapshots.build_command", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "usage: python -m quorumd.server.snapshots.build_command" in done.stderr


def test_files_in_the_working_directory_are_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon may be started anywhere, also where somebody else may write."""
    hostile = tmp_path / "cwd"
    (hostile / "quorumd").mkdir(parents=True)
    traces = tmp_path / "traces"
    traces.mkdir()
    names = ("server.py", "storage.py", "wire.py", "json.py", "quorumd/__init__.py")
    for name in names:
        trace = traces / name.replace("/", "-")
        (hostile / name).write_text(f"open({str(trace)!r}, 'w').close()\nraise SystemExit(7)\n")
    log = tmp_path / "log"
    log.mkdir()
    end = write_log(log, 2, 10)

    async def build() -> BuildResult | BuildFailed:
        outcome = asyncio.get_running_loop().create_future()
        BuildSubprocess(log, end, lambda ratio: None, outcome.set_result)
        async with asyncio.timeout(60):
            return await outcome

    monkeypatch.chdir(hostile)
    built = asyncio.run(build())
    assert [path.name for path in traces.iterdir()] == []
    assert built == BuildResult(SnapshotId(end, 3), 0)


NO_STATVFS = """
import errno, os, sys
from quorumd.server.snapshots.build_and_report import main

def fails(path):
    raise OSError(errno.EIO, "Input/output error", str(path))

os.statvfs = fails
sys.exit(main())
"""


def test_a_disk_that_does_not_tell_its_space_is_named(tmp_path: Path) -> None:
    end_offset = write_log(tmp_path, 2, 10)
    with running(tmp_path, end_offset, program=("-c", NO_STATVFS)) as process:
        *_, last = lines_of(process)
        assert process.wait() == 1
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert last["error"].startswith(f"{tmp_path}: asking for the free space failed: Input/output")
    assert not [path for path in tmp_path.iterdir() if is_part(path.name)]
