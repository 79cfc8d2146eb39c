"""A fake quorum in a thread of its own, for tests that run commands; and the command's runner."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from quorumd.cli.main import run
from quorumd.cli.options import BOOTSTRAP_VARIABLE
from tests.quorumd.fake_quorum import FakeQuorum
from tests.quorumd.fake_voters import FakeVoters
from tests.support.canary import check
from tests.support.live_cluster import Cluster, running_cluster


@pytest.fixture(autouse=True)
def _each_command_ends_by_signals(no_signal_is_ignored: None) -> None:
    """What the name says."""


@pytest.fixture
def pauses_ms(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The longest that each pause between two tries of the client may be. None is made."""
    found: list[float] = []

    def draw(least_ms: float, most_ms: float) -> float:
        found.append(most_ms)
        return 0.0

    monkeypatch.setattr("quorumd.client.timing._RANDOM", SimpleNamespace(uniform=draw))
    return found


class Done(NamedTuple):
    """What a command left: its exit code and what it printed."""

    code: int
    out: str
    err: str

    @property
    def has_one_error(self) -> bool:
        """It failed with one message for people."""
        lines = [line for line in self.err.splitlines() if line.startswith("Error: ")]
        return self.code == 1 and len(lines) == 1 and "Traceback" not in self.err


class QuorumThread:
    """A running fake quorum; `call` does something to it in its own thread and waits for it."""

    def __init__(self) -> None:
        self.quorum = FakeQuorum()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> QuorumThread:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self.quorum.__aenter__(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self.quorum.__aexit__(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def call(self, change: Callable[[FakeQuorum], object]) -> None:
        async def run_it() -> None:
            result = change(self.quorum)
            if asyncio.iscoroutine(result):
                await result

        asyncio.run_coroutine_threadsafe(run_it(), self._loop).result(10)


@pytest.fixture
def quorum(monkeypatch: pytest.MonkeyPatch) -> Iterator[QuorumThread]:
    with QuorumThread() as thread:
        monkeypatch.setenv(BOOTSTRAP_VARIABLE, thread.quorum.addresses)
        yield thread


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes for all tests of a module; what a test kills runs again afterwards."""
    with running_cluster(tmp_path_factory.mktemp("nodes")) as cluster:
        yield cluster


@pytest.fixture
def nodes(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Commands find the nodes of `cluster`."""
    monkeypatch.setenv(BOOTSTRAP_VARIABLE, cluster.bootstrap)
    yield
    cluster.resume_all()
    cluster.start()
    cluster.wait_ready(*cluster.ids)


@pytest.fixture
def fake(quorum: QuorumThread) -> FakeVoters:
    """The running quorum, with membership."""
    return FakeVoters(quorum.quorum)


@pytest.fixture
def quorumctl(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Callable[..., Done]]:
    """Runs a command line in this process; `stdin` is what it finds on standard input."""
    opened = []

    def run_command(*arguments: object, stdin: bytes = b"") -> Done:
        source = tmp_path / "stdin"
        source.write_bytes(stdin)
        file = source.open("rb")
        opened.append(file)
        monkeypatch.setattr("sys.stdin", file)
        capfd.readouterr()
        code = run([str(argument) for argument in arguments])
        done = Done(code, *capfd.readouterr())
        check(done.out + done.err, "what quorumctl printed")
        return done

    yield run_command
    for file in opened:
        file.close()
