"""quorumctl lock, locks and unlock, each in a process of its own, on a fake quorum."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import cast

import pytest

from quorumd.cli import lock as lock_command
from quorumd.cli.held_command import HeldCommand
from quorumd.sync import Lock, QuorumClient
from tests.quorumd.conftest import Done, QuorumThread
from tests.quorumd.running import COMMAND, started
from tests.quorumd.test_held_command import refuse_signals

pytestmark = pytest.mark.live

Run = Callable[..., Done]
LOST, NOT_IN_TIME, NOT_RUN, NOT_EXECUTABLE, NOT_FOUND = 123, 124, 125, 126, 127
WAIT_S = 30.0
SLEEP = ("sh", "-c", "echo ready $QUORUM_LOCK_TOKEN; exec sleep 100")


def keys(quorum: QuorumThread) -> list[tuple[bytes | None, bool]]:
    """What was written: keys, and whether they were set."""
    return [(record.key, record.value is not None) for record in quorum.quorum.records()]


def wait_for(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {WAIT_S} s for {what}"
        time.sleep(0.01)


def wait_until_queued(quorum: QuorumThread) -> None:
    """Until somebody waits for lock `a`. Its holder may have written more than once by then."""
    wait_for(
        lambda: any((key or b"").startswith(b"quorumd.locks.queue/a/") for key, _ in keys(quorum)),
        "somebody in the queue",
    )


@contextmanager
def holding(*words: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A `quorumctl lock` whose command has printed that it is ready, and its token."""
    with started("lock", *words) as process:
        assert process.stdout is not None
        said, token = process.stdout.readline().split()
        assert said == b"ready"
        yield process, int(token)


def ended(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """Its exit code and what it said on stderr."""
    _, err = process.communicate(timeout=WAIT_S)
    return process.returncode, err.decode()


def runs(pid: int) -> bool:
    """Is there such a process, and no zombie?"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_command_runs_under_the_lock_with_the_token(quorum: QuorumThread, quorumctl: Run) -> None:
    code = "import os; print(os.environ['QUORUM_LOCK_TOKEN']); raise SystemExit(7)"
    assert quorumctl("put", "before", "1").out == "0\n"
    done = quorumctl("lock", "jobs/a", "--ttl", "5", "--", sys.executable, "-c", code)
    assert done == Done(7, "1\n", "")
    assert keys(quorum)[1:] == [(b"quorumd.locks/jobs/a", True), (b"quorumd.locks/jobs/a", False)]
    assert quorumctl("lock", "jobs/a", "--", "true").code == 0


def test_a_command_that_a_signal_ends(quorum: QuorumThread, quorumctl: Run) -> None:
    assert quorumctl("lock", "a", "--", "sh", "-c", "kill -9 $$").code == 128 + signal.SIGKILL
    assert keys(quorum)[-1] == (b"quorumd.locks/a", False)


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("./there-is-none", NOT_FOUND, "No such file"),
        ("", NOT_FOUND, "No such file"),
        ("/etc", NOT_EXECUTABLE, "denied"),
    ],
)
def test_a_command_that_cannot_be_started_gives_the_lock_back(
    quorum: QuorumThread, quorumctl: Run, command: str, code: int, said: str
) -> None:
    done = quorumctl("lock", "a", "--", command)
    assert (done.code, done.out) == (code, "")
    assert said in done.err
    assert "given back" in done.err
    assert keys(quorum) == [(b"quorumd.locks/a", True), (b"quorumd.locks/a", False)]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("a", "--ttl", "0.9"), "give 1 s to 86400 s"),
        (("a", "--ttl", "86401"), "give 1 s to 86400 s"),
        (("a", "--ttl", "nan"), "give 1 s to 86400 s"),
        (("a", "--wait", "-1"), "not in the range"),
        (("a", "--wait", "inf"), "not in the range"),
        (("a", "--grace", "nan"), "not a number"),
        (("a\nb",), "no newlines"),
        (("",), "give 1 to 512 bytes"),
        (("n" * 513,), "give 1 to 512 bytes"),
        (("a",), "Missing argument"),
    ],
)
def test_wrong_words_write_nothing(
    quorum: QuorumThread, quorumctl: Run, words: tuple[str, ...], complaint: str
) -> None:
    command = () if complaint.startswith("Missing") else ("--", "echo", "ran")
    done = quorumctl("lock", *words, *command)
    assert (done.code, done.out) == (2, "")
    assert complaint in " ".join(done.err.split())
    assert keys(quorum) == []


def test_nothing_runs_without_a_quorum(quorumctl: Run) -> None:
    done = quorumctl("lock", "-b", "127.0.0.1:1", "--timeout", "0.3", "a", "--", "echo", "ran")
    assert (done.code, done.out) == (NOT_RUN, "")
    assert done.err.startswith("Error: ")


def test_a_lock_that_is_not_had_in_time(quorum: QuorumThread, quorumctl: Run) -> None:
    with holding("a", "--", *SLEEP) as (process, _):
        for wait in ("0", "1"):
            done = quorumctl("lock", "a", "--wait", wait, "--", "echo", "ran")
            assert (done.code, done.out) == (NOT_IN_TIME, "")
            assert f"pid {process.pid}" in done.err
    assert keys(quorum)[-1] != (b"quorumd.locks/a", False)


def test_what_another_client_says_of_itself_is_shown_escaped(
    quorum: QuorumThread, quorumctl: Run
) -> None:
    with QuorumClient(quorum.quorum.addresses) as client:
        owner, comment = "eve\x1b[2J", "\x1b[31m\r\nError: nothing wrong\x07"
        with Lock(client, "a", owner=owner, comment=comment):
            done = quorumctl("lock", "a", "--wait", "0", "--", "echo", "ran")
    assert (done.code, done.out) == (NOT_IN_TIME, "")
    assert r"eve\x1b[2J on " in done.err
    assert r"(\x1b[31m\r\nError: nothing wrong\x07)" in done.err
    assert done.err.removesuffix("\n").isprintable()


def test_who_waits_gets_it_and_a_larger_token(quorum: QuorumThread) -> None:
    with holding("a", "--", *SLEEP) as (first, token), started("lock", "a", "--", *SLEEP) as second:
        wait_until_queued(quorum)
        first.send_signal(signal.SIGTERM)
        assert ended(first) == (128 + signal.SIGTERM, "")
        assert second.stdout is not None
        assert int(second.stdout.readline().split()[1]) > token
        second.send_signal(signal.SIGINT)
        assert ended(second)[0] == 128 + signal.SIGINT
    assert keys(quorum)[-1] == (b"quorumd.locks/a", False)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_while_it_waits_leaves_the_queue(
    quorum: QuorumThread, number: signal.Signals
) -> None:
    with holding("a", "--", *SLEEP), started("lock", "a", "--", "echo", "ran") as second:
        wait_until_queued(quorum)
        second.send_signal(number)
        assert second.wait(WAIT_S) == 128 + number
        assert second.communicate() == (b"", b"")
        key, is_set = keys(quorum)[-1]
        assert key is not None
        assert key.startswith(b"quorumd.locks.queue/a/")
        assert not is_set


def test_a_command_decides_itself_what_a_signal_does(quorum: QuorumThread) -> None:
    # No shell: it has children, which get the signal, too, and may tell how they ended.
    script = """if True:
        import os, signal, sys, time
        signal.signal(signal.SIGUSR1, lambda *_: print("usr1", flush=True))
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
        print("ready", os.environ["QUORUM_LOCK_TOKEN"], flush=True)
        while True:
            time.sleep(0.05)
    """
    with holding("a", "--", sys.executable, "-c", script) as (process, _):
        process.send_signal(signal.SIGUSR1)
        assert process.stdout is not None
        assert process.stdout.readline() == b"usr1\n"
        process.send_signal(signal.SIGTERM)
        assert ended(process) == (5, "")
    assert keys(quorum)[-1] == (b"quorumd.locks/a", False)


def test_a_command_that_stands_still_can_be_ended(quorum: QuorumThread) -> None:
    script = "echo ready $QUORUM_LOCK_TOKEN; echo $$; kill -STOP $$"
    with holding("a", "--", "sh", "-c", script) as (process, _):
        assert process.stdout is not None
        status = Path(f"/proc/{int(process.stdout.readline())}/status")
        wait_for(lambda: "\nState:\tT" in status.read_text(), "the stop")
        process.send_signal(signal.SIGTERM)
        assert ended(process) == (128 + signal.SIGTERM, "")


def test_what_is_ignored_stays_ignored(quorum: QuorumThread) -> None:
    nohup = ["nohup", str(COMMAND), "lock", "a", "--", *SLEEP]
    with subprocess.Popen(nohup, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"ready")
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        assert ended(process)[0] == 128 + signal.SIGTERM


def test_inherited_descriptors_are_the_commands_too(quorum: QuorumThread) -> None:
    script = "import os; print(sorted(map(int, os.listdir('/proc/self/fd'))))"
    words = [str(COMMAND), "lock", "a", "--", sys.executable, "-c", script]
    found = subprocess.check_output(["sh", "-c", 'exec "$@" 9</dev/null', "sh", *words])
    # 3 is the directory that is listed.
    assert found == b"[0, 1, 2, 3, 9]\n"


def test_the_exit_code_is_known_where_sigchld_is_ignored(quorum: QuorumThread) -> None:
    words = [str(COMMAND), "lock", "a", "--", "sh", "-c", "exit 3"]
    parent = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN);"
    parent += "os.execv(sys.argv[1], sys.argv[1:])"
    assert subprocess.run([sys.executable, "-c", parent, *words]).returncode == 3


def test_a_lost_lock_ends_the_whole_group(quorum: QuorumThread, quorumctl: Run) -> None:
    script = "sleep 100 & echo ready $QUORUM_LOCK_TOKEN; echo $!; wait"
    with holding("a", "--grace", "20", "--", "sh", "-c", script) as (process, _):
        assert process.stdout is not None
        child = int(process.stdout.readline())
        assert runs(child)
        assert quorumctl("unlock", "--force", "--yes", "a").code == 0
        code, err = ended(process)
    assert code == LOST
    assert "lost: the command gets SIGTERM" in err
    wait_for(lambda: not runs(child), "the end of what the command had started")


@pytest.mark.parametrize("code", [0, 7])
def test_a_lock_that_was_lost_before_its_command_ended_is_said_to_be_lost(
    capsys: pytest.CaptureFixture[str], code: int
) -> None:
    class Ended:
        async def wait(self) -> int:
            return code

    async def was_lost() -> bool:
        return False

    async def run() -> int | None:
        held = lock_command._Held(1, asyncio.Event(), was_lost)
        return await lock_command._until_the_end(held, cast(HeldCommand, Ended()), 1.0)

    assert asyncio.run(run()) is None
    assert f"lost, before the command ended with exit code {code}" in capsys.readouterr().err


def test_a_lost_lock_whose_command_cannot_be_ended(
    quorum: QuorumThread, quorumctl: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_signals(monkeypatch)
    script = f"{COMMAND} unlock --force --yes a; exec sleep 1"
    done = quorumctl("lock", "a", "--grace", "0", "--", "sh", "-c", script)
    assert done.code == LOST
    assert "lost" in done.err
    assert "given back" not in done.err


def test_who_ignores_the_loss_is_killed_after_the_grace(
    quorum: QuorumThread, quorumctl: Run
) -> None:
    script = "trap '' TERM; echo ready $QUORUM_LOCK_TOKEN; while :; do sleep 0.05; done"
    with holding("a", "--grace", "0.5", "--", "sh", "-c", script) as (process, _):
        began = time.monotonic()
        quorumctl("unlock", "--force", "--yes", "a")
        assert ended(process)[0] == LOST
        assert time.monotonic() - began >= 0.5


def test_a_command_does_not_outlive_a_killed_quorumctl(quorum: QuorumThread) -> None:
    script = "echo ready $QUORUM_LOCK_TOKEN; echo $$; exec sleep 100"
    with holding("a", "--", "sh", "-c", script) as (process, _):
        assert process.stdout is not None
        command = int(process.stdout.readline())
        process.kill()
        process.wait()
        wait_for(lambda: not runs(command), "the end of the command")


def test_locks_lists_holders_and_those_who_wait(quorum: QuorumThread, quorumctl: Run) -> None:
    assert quorumctl("locks") == Done(0, "", "no locks\n")
    with holding("a", "--ttl", "20", "--", *SLEEP) as (first, token):
        with started("lock", "a", "--", "true") as second:
            wait_until_queued(quorum)
            (found,) = map(json.loads, quorumctl("locks", "-o", "json").out.splitlines())
            text = quorumctl("locks").out.splitlines()
        assert (found["name"], found["holder"]["token"]) == ("a", token)
        assert (found["holder"]["pid"], found["holder"]["ttl_ms"]) == (first.pid, 20_000)
        assert found["holder"]["comment"] == "sh"
        assert [waiter["pid"] for waiter in found["waiters"]] == [second.pid]
        assert [line.split()[:3] for line in text[1:]] == [
            ["a", "held", str(token)],
            ["a", "waits", found["waiters"][0]["owner"]],
        ]
        assert quorumctl("locks", "--prefix", "b").err == "no locks\n"
        assert quorumctl("locks", "--elections").err == "no elections\n"


def test_somebody_elses_lock_is_not_taken_away_by_mistake(
    quorum: QuorumThread, quorumctl: Run
) -> None:
    assert quorumctl("unlock", "a") == Done(1, "", "nobody holds a: nothing done\n")
    assert quorumctl("unlock", "a\nb").code == 2
    with holding("a", "--", *SLEEP) as (process, token):
        before = keys(quorum)
        done = quorumctl("unlock", "a")
        assert done.code == 1
        assert f"pid {process.pid}" in done.err
        assert "unlock --force a" in done.err
        done = quorumctl("unlock", "--force", "a")
        assert done.code == 2
        assert "--yes" in done.err
        assert keys(quorum) == before
        done = quorumctl("unlock", "--force", "--yes", "a")
        assert done == Done(0, f"taken away: a, token {token}\n", "")
        assert ended(process)[0] == LOST


@pytest.mark.parametrize(("answer", "code"), [(b"n\n", 1), (b"y\n", 0)])
def test_on_a_terminal_it_asks(quorum: QuorumThread, answer: bytes, code: int) -> None:
    with holding("a", "--", *SLEEP) as (process, _):
        terminal, other_end = pty.openpty()
        asking = subprocess.Popen(
            [str(COMMAND), "unlock", "--force", "a"],
            stdin=other_end,
            stdout=other_end,
            stderr=other_end,
        )
        os.close(other_end)
        shown = b""
        with suppress(OSError):
            while data := os.read(terminal, 4096):
                shown += data
                if b"?" in shown and answer:
                    os.write(terminal, answer)
                    answer = b""
        os.close(terminal)
        assert asking.wait(WAIT_S) == code
        assert f"pid {process.pid}, since".encode() in shown
        assert (b"taken away" in shown) == (code == 0)
        assert keys(quorum)[-1] == (b"quorumd.locks/a", code != 0)


def test_an_elected_command_that_ends_makes_room_for_the_next(
    quorum: QuorumThread, quorumctl: Run
) -> None:
    done = quorumctl("elect", "a", "--", "sh", "-c", "echo $QUORUM_LOCK_TOKEN; exit 9")
    assert done == Done(9, "0\n", "")
    assert quorumctl("elect", "a", "--", "./there-is-none").code == NOT_FOUND
    assert [key for key, is_set in keys(quorum) if not is_set] == [b"quorumd.elections/a"] * 2
    assert (
        quorumctl("elect", "-b", "127.0.0.1:1", "--timeout", "0.3", "a", "--", "x").code == NOT_RUN
    )
