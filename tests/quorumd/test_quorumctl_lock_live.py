"""quorumctl lock and elect on real processes; holders, waiters and leaders are killed and stopped."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.quorumd.conftest import Done
from tests.quorumd.running import started
from tests.support.live_cluster import Cluster

pytestmark = pytest.mark.usefixtures("nodes")

Run = Callable[..., Done]
LOST = 123
NOT_IN_TIME = 124
TTL = "2"
WAIT_S = 60.0


class Journal:
    """What commands have written: a word and their token on each line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def says(self, word: str) -> str:
        """A piece of shell that writes it."""
        return f"echo {word} $QUORUM_LOCK_TOKEN >> {self.path}"

    def tokens(self, word: str) -> list[int]:
        pairs = [line.split() for line in self.path.read_text().splitlines()]
        return [int(token) for said, token in pairs if said == word]

    def wait(self, word: str, count: int) -> list[int]:
        """The tokens, as soon as there are so many."""
        deadline = time.monotonic() + WAIT_S
        while len(found := self.tokens(word)) < count:
            assert time.monotonic() < deadline, self.path.read_text()
            time.sleep(0.01)
        return found


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal")


def ended(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    _, err = process.communicate(timeout=WAIT_S)
    return process.returncode, err.decode()


def test_a_lock_is_free_a_ttl_after_its_holder_was_killed(journal: Journal) -> None:
    begins = journal.says("begins")
    # The command outlives its killed parent, until its input ends.
    with started("lock", "killed", "--ttl", TTL, "--", "sh", "-c", f"{begins}; cat") as first:
        journal.wait("begins", 1)
        with started("lock", "killed", "--", "sh", "-c", begins) as second:
            first.kill()
            killed_s = time.monotonic()
            tokens = journal.wait("begins", 2)
            assert time.monotonic() - killed_s > float(TTL) / 2, "not before the ttl is over"
            assert ended(second)[0] == 0
    assert tokens[0] < tokens[1]


@pytest.mark.parametrize("wait", ["0", "0.5"])
def test_who_does_not_wait_for_a_ttl_has_the_lock_of_a_killed_one_nevertheless(
    journal: Journal, wait: str
) -> None:
    """Each attempt is a process of its own, as cron starts it: none sees the ttl pass."""
    begins = journal.says("begins")
    name = f"cron-{wait}"
    command = ("lock", name, "--ttl", "1", "--wait", wait, "--", "sh", "-c", begins)
    with started("lock", name, "--ttl", "1", "--", "sh", "-c", f"{begins}; cat") as first:
        journal.wait("begins", 1)
        with started(*command) as refused:
            assert ended(refused)[0] == NOT_IN_TIME
        first.kill()
        deadline = time.monotonic() + WAIT_S
        while len(journal.tokens("begins")) < 2:
            assert time.monotonic() < deadline
            with started(*command) as attempt:
                assert ended(attempt)[0] in (0, NOT_IN_TIME)


def test_a_holder_that_was_stopped_has_lost_the_lock_when_it_goes_on(journal: Journal) -> None:
    script = f"{journal.says('begins')}; trap '{journal.says('ends')}; exit 0' TERM;"
    script += f"while :; do {journal.says('writes')}; sleep 0.05; done"
    with started("lock", "paused", "--ttl", TTL, "--", "sh", "-c", script) as first:
        (old,) = journal.wait("begins", 1)
        with started("lock", "paused", "--ttl", "30", "--", "sh", "-c", script) as second:
            first.send_signal(signal.SIGSTOP)
            _, new = journal.wait("begins", 2)
            writes = len(journal.tokens("writes"))
            journal.wait("writes", writes + 10)
            first.send_signal(signal.SIGCONT)
            code, err = ended(first)
            assert (code, journal.wait("ends", 1)) == (LOST, [old])
            assert "lost: the command gets SIGTERM" in err
            second.terminate()
            assert ended(second)[0] == 0
    assert new > old
    # Two wrote beside each other, for only quorumctl was stopped. Who keeps what is written sees it.
    register = 0
    refused = 0
    for token in journal.tokens("writes"):
        refused += token < register
        register = max(register, token)
    assert register == new
    print(f"writes refused because of their token: {refused}")
    assert refused


def test_leaders_that_are_killed_cost_no_lock(cluster: Cluster, journal: Journal) -> None:
    script = f"{journal.says('begins')}; trap '{journal.says('ends')}; exit 4' USR1;"
    script += "while :; do sleep 0.05; done"
    with started("lock", "kept", "--ttl", "15", "--", "sh", "-c", script) as process:
        journal.wait("begins", 1)
        for _ in range(2):
            leader = cluster.wait_leader()
            cluster.kill(leader)
            cluster.wait_leader(other_than=leader)
            cluster.start(leader)
            cluster.wait_ready(leader)
        process.send_signal(signal.SIGUSR1)
        assert ended(process)[0] == 4
    assert journal.tokens("ends") == journal.tokens("begins")


def test_many_take_turns_while_holders_and_a_leader_are_killed(
    cluster: Cluster, journal: Journal, tmp_path: Path
) -> None:
    place = tmp_path / "taken"
    # Who is killed cannot leave; the next one finds the name of a process that has gone.
    script = (
        f"if [ -e {place} ] && kill -0 $(cat {place}) 2>/dev/null; then {journal.says('overlaps')}; fi;"
        f"echo $$ > {place}; {journal.says('begins')}; sleep 0.2; rm -f {place}; {journal.says('ends')}"
    )
    count, killed = 8, 0
    with ExitStack() as stack:
        processes = [
            stack.enter_context(started("lock", "turns", "--ttl", "3", "--", "sh", "-c", script))
            for _ in range(count)
        ]
        journal.wait("begins", 1)
        cluster.kill(cluster.wait_leader())
        for process in processes[::4]:
            if process.poll() is None:
                process.kill()
                killed += 1
        codes = [process.wait(WAIT_S) for process in processes]
    assert [code for code in codes if code not in (0, -signal.SIGKILL)] == []
    begins = journal.tokens("begins")
    assert journal.tokens("overlaps") == []
    assert begins == sorted(set(begins))
    assert len(journal.tokens("ends")) >= count - killed


def test_the_elected_one_runs_and_another_one_after_its_death(
    journal: Journal, quorumctl: Run
) -> None:
    script = f"{journal.says('leads')}; trap '{journal.says('ends')}; exit 0' TERM;"
    script += "while :; do sleep 0.05; done"
    words = ("elect", "scheduler", "--ttl", TTL, "--", "sh", "-c", script)
    with ExitStack() as stack:
        hosts = [stack.enter_context(started(*words)) for _ in range(3)]
        for term, end in enumerate((signal.SIGKILL, signal.SIGTERM, signal.SIGTERM), start=1):
            tokens = journal.wait("leads", term)
            holder = _pid_of_leader(quorumctl)
            (leader,) = (host for host in hosts if host.pid == holder)
            leader.send_signal(end)
            code, _ = ended(leader)
            assert code == (-end if end == signal.SIGKILL else 0)
        assert tokens == sorted(set(tokens))
        assert journal.tokens("ends") == tokens[1:]


def test_one_that_was_stopped_while_it_led_waits_for_its_next_turn(journal: Journal) -> None:
    script = f"{journal.says('leads')}; trap '{journal.says('ends')}; exit 0' TERM;"
    script += "while :; do sleep 0.05; done"
    words = ("elect", "standby", "--ttl", TTL, "--", "sh", "-c", script)
    with started(*words) as first:
        (old,) = journal.wait("leads", 1)
        with started(*words) as second:
            first.send_signal(signal.SIGSTOP)
            journal.wait("leads", 2)
            first.send_signal(signal.SIGCONT)
            assert journal.wait("ends", 1) == [old]
            second.terminate()
            assert ended(second)[0] == 0
            assert journal.wait("leads", 3)[2] > journal.tokens("leads")[1]
        first.terminate()
        code, err = ended(first)
        assert code == 0
        assert "waiting for the next turn" in err


def _pid_of_leader(quorumctl: Run) -> int:
    (line,) = (
        line.split()
        for line in quorumctl("locks", "--elections").out.splitlines()
        if line.startswith("scheduler ") and line.split()[1] == "held"
    )
    return int(line[5])
