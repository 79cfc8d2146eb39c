"""The scheduler of the examples: its leader is killed, and so is the quorum's."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from quorumd import Record
from quorumd.sync import KeyValueView, QuorumClient
from tests.support.forked import die_with_parent
from tests.support.live_cluster import Cluster, running_cluster

EXAMPLE = Path(__file__).parents[2] / "examples" / "job_scheduler.py"
HOSTS = ("one", "two", "three")
EVERY_S = 0.5


class Ran(NamedTuple):
    """What a job has written down."""

    slot: int
    token: int


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with running_cluster(tmp_path / "quorum") as running:
        yield running


@contextmanager
def scheduler(cluster: Cluster, host: str, output: Path) -> Iterator[subprocess.Popen[bytes]]:
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, str(EXAMPLE), cluster.bootstrap, host],
            stdout=file,
            stderr=subprocess.STDOUT,
            preexec_fn=die_with_parent,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_jobs_go_on_when_leaders_die(cluster: Cluster, tmp_path: Path) -> None:
    book = tmp_path / "runs"
    book.touch()
    command = ["sh", "-c", f'echo "$JOB_SLOT $JOB_TOKEN" >> {book}']
    job = json.dumps({"every_s": EVERY_S, "command": command})
    with QuorumClient(cluster.bootstrap) as client:
        client.append([Record(key=b"scheduler/jobs/note", value=job.encode())])

    def runs() -> list[Ran]:
        return [Ran(*map(int, line.split())) for line in book.read_text().splitlines()]

    def leader() -> tuple[int, str]:
        """The newest one's token and name."""
        lines = [line for path in outputs.values() for line in path.read_text().splitlines()]
        led = [line.split() for line in lines if " leads, token " in line]
        return max(((int(words[-1]), words[0]) for words in led), default=(-1, ""))

    def goes_on(token: int, count: int) -> None:
        cluster.wait_for(lambda: sum(ran.token >= token for ran in runs()) >= count, "runs")

    outputs = {host: tmp_path / host for host in HOSTS}
    with ExitStack() as stack:
        hosts = {
            host: stack.enter_context(scheduler(cluster, host, outputs[host])) for host in HOSTS
        }
        goes_on(0, 2)
        first, name = leader()
        hosts[name].kill()
        goes_on(first + 1, 2)
        victim = cluster.wait_leader()
        cluster.kill(victim)
        goes_on(first + 1, len(runs()) + 2)
        second, name = leader()
        assert second > first
        hosts[name].terminate()
        assert hosts[name].wait(20) == 0
        goes_on(second + 1, 2)
        (last,) = {host for host, process in hosts.items() if process.poll() is None}
        hosts[last].send_signal(signal.SIGINT)
        assert hosts[last].wait(20) == 130

    done = runs()
    assert done == sorted(done), "no leader runs a job when a later one has begun"
    assert len(set(done)) == len(done), "none runs it twice in a slot"
    assert not any("Traceback" in path.read_text() for path in outputs.values())


def test_what_is_no_job_is_skipped_with_a_line_and_the_others_run(
    cluster: Cluster, tmp_path: Path
) -> None:
    book, output = tmp_path / "runs", tmp_path / "output"
    book.touch()
    jobs = {
        "a": b"no JSON",
        "b": b'{"every_s": 0, "command": ["true"]}',
        "c": b'{"every_s": 1, "command": []}',
        "d": b"[1]",
        "e": b'{"every_s": 0.5, "command": ["/no/such/program"]}',
        "f": json.dumps({"every_s": 0.5, "command": ["sh", "-c", f"echo >> {book}"]}).encode(),
    }
    with QuorumClient(cluster.bootstrap) as client:
        client.append(
            [Record(key=f"scheduler/jobs/{name}".encode(), value=jobs[name]) for name in jobs]
        )
    with scheduler(cluster, "one", output) as process:
        cluster.wait_for(lambda: len(book.read_text()) >= 2, "runs")
        assert process.poll() is None
    lines = output.read_text().splitlines()
    assert [sum(line.startswith(f"{name} is skipped: ") for line in lines) for name in jobs] == [
        *(1, 1, 1, 1),
        *(0, 0),
    ]
    assert "/no/such/program cannot be run: FileNotFoundError" in output.read_text()
    assert "Traceback" not in output.read_text()


def test_what_is_no_run_ends_no_leader_and_its_job_runs_and_writes_over_it(
    cluster: Cluster, tmp_path: Path
) -> None:
    output = tmp_path / "output"
    no_runs = [b"garbage", b"[1]", b'{"turn": 1}', b'{"slot": "x"}', b'{"token": null}', b"\xff"]
    job = b'{"every_s": 1000000, "command": ["true"]}'
    records = [
        Record(key=f"scheduler/{kind}/{number}".encode(), value=value)
        for number, no_run in enumerate(no_runs)
        for kind, value in (("runs", no_run), ("jobs", job))
    ]
    with QuorumClient(cluster.bootstrap) as client, KeyValueView(client) as view:
        client.append(records)

        def is_written(value: bytes) -> bool:
            return b'"is_done": true' in value

        with scheduler(cluster, "one", output) as process:
            cluster.wait_for(
                lambda: (
                    sum(is_written(each.value) for _, each in view.items(b"scheduler/runs/"))
                    == len(no_runs)
                    or process.poll() is not None
                ),
                "runs",
            )
            assert process.poll() is None, output.read_text()


@pytest.mark.live
@pytest.mark.parametrize("words", [(), ("127.0.0.1:1",), ("127.0.0.1:1", "one", "two")])
def test_a_wrong_number_of_words_is_told_how_it_is_used(words: tuple[str, ...]) -> None:
    done = subprocess.run([sys.executable, str(EXAMPLE), *words], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "usage: job_scheduler.py HOST:PORT,... NAME-OF-THIS-HOST\n"
