"""A standalone Spark cluster on the loopback: a master and workers, each a process, as on hosts of their own.

Nothing of it survives the test process: the kernel kills master and workers with it, and their executors
end when they lose their worker.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from quorumd.pipeline.java import use_java
from tests.pipeline.quick_start import CONFIGURATION, JAVA_OPTIONS, java_options
from tests.support.commands import Done
from tests.support.forked import die_with_parent
from tests.support.ports import free_ports

BIN = Path(sys.executable).parent
HOST = "127.0.0.1"
WAIT_S = 600.0
"""A loaded machine may need minutes for what takes ten seconds."""
POLL_S = 0.002
LOG_LINES = 40
_OF_EXECUTORS = ("CoarseGrainedExecutorBackend", "-m pyspark.daemon")


class Process(NamedTuple):
    """One that runs: its id, the session that it belongs to, and its command line."""

    pid: int
    session: int
    command: str


class SparkCluster:
    """Workers are numbered from 0 and have one core each. `environ` is what its users' commands need."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self.folder = folder
        self.work = folder / "work"
        port, page, rest = free_ports(3)
        self.url = f"spark://{HOST}:{port}"
        self._page = f"http://{HOST}:{page}/json/"
        given = ["--host", HOST, "--properties-file", folder / "spark.conf"]
        master = ["Master", *given, "--port", port, "--webui-port", page]
        worker = ["Worker", *given, "--webui-port", 0, "--cores", 1, "--memory", "1g"]
        self._commands = {"master": [*map(str, master)]}
        self._workers = [f"worker-{number}" for number in range(workers)]
        self._commands |= {name: [*map(str, worker), self.url] for name in self._workers}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        folder.mkdir(parents=True, exist_ok=True)
        # A folder of settings would be on the class path, and no archive of classes could be used.
        self._settings = folder / "spark.conf"
        settings = {
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": java_options(),
            "spark.master.rest.port": rest,
            **CONFIGURATION,
        }
        self._settings.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
        self.environ = {
            **{name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"},
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "SPARK_LOCAL_IP": HOST,
            "PYSPARK_SUBMIT_ARGS": f"--properties-file {self._settings} pyspark-shell",
            "SPARK_SUBMIT_OPTS": java_options(),
            "SPARK_WORKER_DIR": str(self.work),
            "SPARK_LOCAL_DIRS": str(folder / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": java_options(),
            "SPARK_LAUNCHER_OPTS": JAVA_OPTIONS,
        }
        use_java(self.environ)

    def start(self) -> None:
        """Starts what does not run, and waits until all of it is there and has nothing to do."""
        for name, arguments in self._commands.items():
            if name in self._processes:
                continue
            package = f"org.apache.spark.deploy.{arguments[0].lower()}"
            with self._log(name).open("ab") as log:
                self._processes[name] = subprocess.Popen(
                    [BIN / "spark-class", f"{package}.{arguments[0]}", *arguments[1:]],
                    env=self.environ,
                    cwd=self.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    preexec_fn=die_with_parent,
                )
        deadline = time.monotonic() + WAIT_S
        while not self._is_idle():
            ended = [name for name, each in self._processes.items() if each.poll() is not None]
            assert not ended, f"{', '.join(ended)} ended by itself\n{self.logs()}"
            assert time.monotonic() < deadline, f"the cluster is not ready\n{self.logs()}"
            time.sleep(10 * POLL_S)

    def executors(self) -> list[Process]:
        """All of them, and their Python workers."""
        return [each for each in processes() if self._is_executor(each)]

    def kill_executors(self) -> None:
        """SIGKILL to all of them and their Python workers; the cluster starts new ones."""
        self._kill(self._is_executor)

    def kill_worker(self, number: int) -> None:
        """SIGKILL to a worker and all that it has started, as if its host were gone."""
        self._kill_all_of(self._workers[number])

    def kill_all(self) -> None:
        """SIGKILL to whatever is left."""
        for name in list(self._processes):
            self._kill_all_of(name)

    def command(
        self,
        *arguments: object,
        environ: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> subprocess.Popen[str]:
        """A program of the virtual environment, with the cluster's environment, in a folder."""
        program, *rest = map(str, arguments)
        if program == "spark-submit":
            rest = ["--properties-file", str(self._settings), *rest]
        return subprocess.Popen(
            [BIN / program, *rest],
            env={**self.environ, **(environ or {})},
            cwd=folder or self.folder,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )

    def run(
        self,
        *arguments: object,
        environ: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> Done:
        """Such a program until it ends."""
        with self.command(*arguments, environ=environ, folder=folder) as process:
            try:
                out, err = process.communicate(timeout=WAIT_S)
            except subprocess.TimeoutExpired:
                self._kill(lambda each: each.session == process.pid)
                raise AssertionError(f"it goes on: {process.communicate()}") from None
        return Done(process.returncode, out, err)

    def logs(self) -> str:
        """The newest lines of master, workers and executors."""
        paths = [*map(self._log, self._commands), *sorted(self.work.glob("*/*/stderr"))]
        parts = []
        for path in paths:
            lines = path.read_text(errors="replace").splitlines() if path.exists() else []
            parts.append("\n".join([f"-- {path.relative_to(self.folder)}", *lines[-LOG_LINES:]]))
        return "\n".join(parts)

    def _is_executor(self, process: Process) -> bool:
        sessions = {each.pid for each in self._processes.values()}
        return process.session in sessions and any(
            mark in process.command for mark in _OF_EXECUTORS
        )

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _is_idle(self) -> bool:
        """What the master says on its page: all workers are known, and no core is in use."""
        try:
            with urllib.request.urlopen(self._page, timeout=5) as answer:
                told: dict[str, Any] = json.load(answer)
        except (OSError, json.JSONDecodeError):
            # A master that is starting serves its front page, in HTML, before the other ones.
            return False
        alive = [worker for worker in told["workers"] if worker["state"] == "ALIVE"]
        return len(alive) == len(self._workers) and not any(each["coresused"] for each in alive)

    def _kill_all_of(self, name: str) -> None:
        process = self._processes.pop(name)
        self._kill(lambda each: each.session == process.pid)
        process.wait()

    def _kill(self, is_meant: Callable[[Process], bool]) -> None:
        """Returns when none of them is left."""
        deadline = time.monotonic() + WAIT_S
        while found := [each for each in processes() if is_meant(each)]:
            send(found, signal.SIGKILL)
            assert time.monotonic() < deadline, f"they don't die: {found}"
            time.sleep(POLL_S)


@contextmanager
def running_spark(folder: Path) -> Iterator[SparkCluster]:
    """A cluster that is ready; whatever is left of it at the end is killed."""
    cluster = SparkCluster(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill_all()


def send(receivers: Iterable[Process], number: signal.Signals) -> None:
    """A signal to those that still run."""
    for each in receivers:
        with suppress(ProcessLookupError):
            os.kill(each.pid, number)


def processes() -> list[Process]:
    """All that run on this machine."""
    found = []
    for path in Path("/proc").iterdir():
        if not path.name.isdigit():
            continue
        try:
            stat = (path / "stat").read_text().rpartition(")")[2].split()
            command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        state, session = stat[0], int(stat[3])
        if state not in "ZX":
            found.append(Process(int(path.name), session, command))
    return sorted(found)
