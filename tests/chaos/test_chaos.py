"""A short chaos run: real nodes and clients, every kind of fault that begins at once, a report."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.commands import Done

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.live, pytest.mark.usefixtures("no_signal_is_ignored")]


def started(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "chaos", "--folder", str(folder), *arguments]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def ended(process: subprocess.Popen[str]) -> Done:
    out, err = process.communicate(timeout=110)
    return Done(process.returncode, out, err)


def test_a_short_run_finds_nothing_and_reports(tmp_path: Path) -> None:
    faults = "kill-leader,isolate,one-way,full-disk,clock,transfer,change-voters"
    done = ended(started(tmp_path, "--minutes", "0.25", "--seed", "3", "--faults", faults))
    assert done.code == 0, done.text
    report = (tmp_path / "report.md").read_text()
    assert "**Nothing found.**" in report
    assert "| librdkafka-write |" in report
    assert "sound" in (tmp_path / "audit.txt").read_text()
    assert not list(tmp_path.glob("files-*")), "files are kept when something was found"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_an_interrupted_run_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    process = started(tmp_path, "--hours", "1", "--faults", "pause")
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("*-read.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    done = ended(process)
    assert done.code == 130, done.text
    assert str(tmp_path) not in running(), "no node or client is left"
    assert not [line for line in mounts() if str(tmp_path) in line]


def test_wrong_usage_is_told(tmp_path: Path) -> None:
    done = ended(started(tmp_path, "--faults", "kil"))
    assert done.code == 2
    assert "unknown: kil. There are: kill, " in done.err
    done = ended(started(tmp_path, "--minutes", "nan"))
    assert done.code == 2
    assert "nan is no time" in done.err
    (tmp_path / "file").touch()
    done = ended(started(tmp_path))
    assert done.code == 2
    assert "is not empty: name another folder" in done.err


def running() -> str:
    """The command lines of all processes but this one."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        if path.parent.name != str(os.getpid()):
            try:
                lines.append(path.read_text(errors="replace"))
            except OSError:
                continue
    return "\n".join(lines)


def mounts() -> list[str]:
    return Path("/proc/mounts").read_text().splitlines()
