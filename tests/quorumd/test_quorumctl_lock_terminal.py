"""quorumctl lock on a terminal, which one process group has at a time: its own, or its command's."""

from __future__ import annotations

import os
import pty
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.quorumd.conftest import QuorumThread
from tests.quorumd.running import COMMAND
from tests.quorumd.test_quorumctl_lock import SLEEP, Run, holding, keys, wait_until_queued

pytestmark = pytest.mark.live

CTRL_C, CTRL_Z = "\x03", "\x1a"
JOBS = ("bash", "-mc")
"""A shell with a process group for each job, as an interactive one has."""
SCRIPT = ("bash", "-c")


class Session:
    """A program that was started on a terminal of its own."""

    def __init__(self, pid: int, terminal: int) -> None:
        self.has_ended = False
        self._pid = pid
        self._terminal = terminal
        self._shown = b""

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def wait_for(self, text: str) -> None:
        while text.encode() not in self._shown:
            assert self._read(), self._shown

    def hang_up(self) -> None:
        os.close(self._terminal)

    def end(self) -> int:
        """Its exit code, -n if signal n has ended it. Whatever has the terminal has ended, too."""
        while self._read():
            pass
        self.hang_up()
        return self.exit_code()

    def exit_code(self) -> int:
        self.has_ended = True
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])

    @property
    def shown(self) -> str:
        return self._shown.decode()

    def _read(self) -> bool:
        data = b""
        with suppress(OSError):
            data = os.read(self._terminal, 4096)
        self._shown += data
        return bool(data)


@contextmanager
def on_a_terminal(*words: str) -> Iterator[Session]:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvp(words[0], words)
    session = Session(pid, terminal)
    try:
        yield session
    finally:
        if not session.has_ended:
            os.kill(pid, signal.SIGKILL)
            session.exit_code()


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    """Who opens it waits for the other end."""
    os.mkfifo(path := tmp_path / "fifo")
    return path


def lock(script: str) -> str:
    """Words for a shell."""
    assert "'" not in script
    return f"{COMMAND} lock a -- sh -c '{script}'"


def given_back(quorum: QuorumThread) -> bool:
    return keys(quorum)[-1] == (b"quorumd.locks/a", False)


def test_the_command_is_in_the_foreground(quorum: QuorumThread) -> None:
    script = (
        "read line; echo got $line; trap 'echo interrupted; exit 3' INT; echo go;"
        "while :; do sleep 0.05; done"
    )
    with on_a_terminal(str(COMMAND), "lock", "a", "--", "bash", "-c", script) as session:
        session.type("hello\n")
        session.wait_for("go\r\n")
        session.type(CTRL_Z + CTRL_C)
        assert session.end() == 3
    assert "got hello" in session.shown
    assert "interrupted" in session.shown
    assert given_back(quorum)


def test_a_command_that_ctrl_c_ends(quorum: QuorumThread) -> None:
    with on_a_terminal(str(COMMAND), "lock", "a", "--", *SLEEP) as session:
        session.wait_for("ready")
        session.type(CTRL_C)
        assert session.end() == -signal.SIGINT
    assert given_back(quorum)


def test_a_pager_has_its_keys_while_the_command_runs(quorum: QuorumThread) -> None:
    pager = "read line; echo saw $line; read key </dev/tty; echo key $key"
    with on_a_terminal(*JOBS, f"{lock('exec yes begun')} | sh -c '{pager}'") as session:
        session.wait_for("saw begun")
        session.type("k\n")
        session.wait_for("key k")
        session.end()
    assert given_back(quorum)


def test_command_and_pager_have_the_terminal_in_turn(quorum: QuorumThread, fifo: Path) -> None:
    script = f"read a </dev/tty; echo got $a; read b <{fifo}; read c </dev/tty; echo got $c"
    pager = (
        "read line; echo saw $line; stty echo </dev/tty; read key </dev/tty; echo key $key;"
        f"echo >{fifo}; read line; echo saw $line"
    )
    with on_a_terminal(*JOBS, f"{lock(script)} | sh -c '{pager}'") as session:
        for typed, answer in (("1", "saw got 1"), ("2", "key 2"), ("3", "saw got 3")):
            session.type(f"{typed}\n")
            session.wait_for(answer)
        assert session.end() == 0
    assert given_back(quorum)


def test_a_command_asks_on_the_terminal_though_standard_input_is_none(quorum: QuorumThread) -> None:
    with on_a_terminal(*JOBS, f"{lock('read a </dev/tty; echo got $a')} </dev/null") as session:
        session.type("yes\n")
        session.wait_for("got yes")
        assert session.end() == 0


@pytest.mark.parametrize("asks", ["", "read line </dev/tty; "])
def test_ctrl_c_ends_the_loop_of_a_script(quorum: QuorumThread, asks: str) -> None:
    loop = f"for i in 1 2; do {lock(asks + 'echo begun; exec sleep 100')}; done; echo end"
    with on_a_terminal(*SCRIPT, loop) as session:
        session.type("\n")
        session.wait_for("begun\r\n")
        session.type(CTRL_C)
        assert session.end() == -signal.SIGINT, session.shown
    assert session.shown.count("begun") == 1
    assert given_back(quorum)


def test_a_background_job_takes_the_terminal_from_nobody(
    quorum: QuorumThread, tmp_path: Path, fifo: Path
) -> None:
    job = lock(f"echo >{fifo}; read line <{fifo}; exit 5")
    shell = f"{job}; bg; read line <{fifo}; read line; echo shell $line; echo >{fifo}; wait %1; echo code $?"
    with holding("a", "--", *SLEEP) as (holder, _), on_a_terminal(*JOBS, shell) as session:
        wait_until_queued(quorum)
        session.type(CTRL_Z)
        session.wait_for("&")
        holder.send_signal(signal.SIGTERM)
        session.type("hello\n")
        session.wait_for("shell hello")
        session.wait_for("code 5")
        assert session.end() == 0
    assert "given back" not in session.shown


def test_a_background_job_that_waits_for_the_terminal_goes_on_in_the_foreground(
    quorum: QuorumThread, fifo: Path
) -> None:
    shell = (
        f"{lock(f'echo >{fifo}; read line; echo got $line')} & read line <{fifo}; fg; echo code $?"
    )
    with on_a_terminal(*JOBS, shell) as session:
        session.type("hello\n")
        session.wait_for("got hello")
        session.wait_for("code 0")
        assert session.end() == 0


def test_a_lost_lock_gives_the_terminal_back(quorum: QuorumThread, quorumctl: Run) -> None:
    # With tostop, who writes in the background is stopped.
    job = lock("echo begun; exec sleep 100")
    shell = f"stty tostop; {job}; echo code $?; read line; echo got $line"
    with on_a_terminal(*JOBS, shell) as session:
        session.wait_for("begun")
        assert quorumctl("unlock", "--force", "--yes", "a").code == 0
        session.wait_for("code 123")
        session.type("hello\n")
        session.wait_for("got hello")
        assert session.end() == 0


def test_the_terminal_goes_away(quorum: QuorumThread) -> None:
    script = "trap 'exit 0' HUP; echo ready; while :; do sleep 0.05; done"
    with on_a_terminal(str(COMMAND), "lock", "a", "--", "sh", "-c", script) as session:
        session.wait_for("ready")
        session.hang_up()
        assert session.exit_code() == 0
    assert given_back(quorum)
