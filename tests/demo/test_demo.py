"""The demo on a terminal, without one, and in the background: nodes die, come back, and end with it."""

from __future__ import annotations

import errno
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from quorumd.server.demo.nodes import (
    DEMO_LOCK,
    MARKER,
    DemoError,
    NodeFiles,
    demo_lock,
    lock_holder,
    prepare,
)
from quorumd.storage.layout import LOCK
from tests.demo.terminal import DEADLINE_S, Terminal
from tests.support import canary

PROGRAM = [sys.executable, "-P", "-m", "quorumd.server.main"]
QUORUMCTL = [sys.executable, "-P", "-c", "from quorumd.cli.entry import main; main()"]
LEADS = r"node (\d) leads epoch (\d+)"
STARTS = "Ctrl-C or SIGTERM stops the three nodes.\n"
LEADS_ON = r"\n +(\d) +\d+ +\d+ +leader +(\d+) +\d+ +\d+ +0 +[1-9]\d*s"
"""The row of who has led for a second: of new voters a second one may win a moment after the first."""


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """Where a demo may run; none runs there afterwards."""
    path = tmp_path / "a demo"
    yield path
    demo(path, "--stop")
    assert running_pids(path) == []


def demo(directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, "demo", "--dir", str(directory), *options],
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE_S,
        check=False,
    )


def on_terminal(directory: Path) -> Terminal:
    return Terminal([*PROGRAM, "demo", "--dir", str(directory)], directory.parent)


def running_pids(directory: Path) -> list[int]:
    """The processes that hold the directories of the demo's nodes."""
    locks = [directory / f"node{node_id}" / LOCK for node_id in (1, 2, 3)]
    return [pid for lock in locks if (pid := lock_holder(lock)) is not None]


def cluster_id_of(node: NodeFiles) -> str | None:
    """What its meta.properties says."""
    text = (node.storage_dir / "meta.properties").read_text()
    found = re.search(r"^cluster\.id=(.+)$", text, re.MULTILINE)
    return None if found is None else found[1]


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"not in {DEADLINE_S} s: {what}"
        time.sleep(0.05)


def row_of(node_id: str, role: str) -> str:
    """The node's row of the table, caught up with the leader."""
    return rf"\n +{node_id} +\d+ +\d+ +{role} +\d+ +\d+ +\d+ +0 +\d"


def servers_in(shown: str) -> str:
    match = re.search(r"QUORUM_BOOTSTRAP_SERVERS=(\S+)", shown)
    assert match is not None
    return match[1]


def leader_of(servers: str) -> str:
    """The node that leads, as soon as one does."""
    described = subprocess.run(
        [*QUORUMCTL, "describe", "-b", servers],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    match = re.search(r"LeaderId: +(\d)", described.stdout)
    assert match is not None, described.stdout
    return match[1]


def test_a_killed_leader_is_replaced_returns_and_the_data_outlive_the_demo(directory: Path) -> None:
    with on_terminal(directory) as terminal:
        leader, epoch = terminal.expect(LEADS_ON).groups()
        terminal.press(leader)
        second = terminal.expect(LEADS + rf", (\d+) ms after node {leader} was killed")
        assert second[1] != leader
        assert int(second[2]) > int(epoch)
        terminal.press(leader)
        terminal.expect(f"node {leader} restarted")
        terminal.expect(row_of(leader, "follower"))
        assert len(running_pids(directory)) == 3
        terminal.press("a")
        terminal.expect("quorumctl append: .*offset")
        terminal.press("q")
        assert terminal.exit_code() == 0
    assert running_pids(directory) == []
    configs = [path.read_text() for path in sorted(directory.glob("*.yaml"))]

    with on_terminal(directory) as terminal:
        again = terminal.expect(LEADS)
        assert int(again[2]) > int(second[2])
        tail = subprocess.run(
            [*QUORUMCTL, "tail", "--from-beginning", "-b", servers_in(terminal.shown)],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=True,
        )
        assert "hello at " in tail.stdout
        terminal.press("\x03")
        assert terminal.exit_code() == 0
        assert "made three nodes" not in terminal.shown
    assert running_pids(directory) == []
    assert [path.read_text() for path in sorted(directory.glob("*.yaml"))] == configs


def test_a_frozen_leader_is_replaced_and_follows_when_it_thaws(directory: Path) -> None:
    with on_terminal(directory) as terminal:
        leader = terminal.expect(LEADS_ON)[1]
        terminal.press("s")
        terminal.expect(LEADS + rf", \d+ ms after node {leader} was frozen")
        terminal.press("s")
        terminal.expect(f"node {leader} thawed")
        terminal.expect(row_of(leader, "follower"))
        terminal.press("s")
        terminal.expect("frozen with SIGSTOP")
        terminal.press("q")
        assert terminal.exit_code() == 0
    assert running_pids(directory) == []


def test_without_a_terminal_changes_are_lines_and_sigterm_ends_all(directory: Path) -> None:
    with subprocess.Popen(
        [*PROGRAM, "demo", "--dir", str(directory)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        lines = iter(process.stdout)
        begin = "".join(iter(lambda: next(lines), STARTS))
        wait_until(lambda: len(running_pids(directory)) == 3, "three nodes run")
        leader = leader_of(servers_in(begin))
        pid = lock_holder(directory / f"node{leader}" / LOCK)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        assert any(f"node {leader} ended by itself, exit code -9" in line for line in lines)
        assert any(re.search(LEADS, line) for line in lines)
        process.send_signal(signal.SIGTERM)
        rest = "".join(lines)
        assert process.wait(DEADLINE_S) == 0
    assert "\x1b" not in rest
    assert "stopped; the data is kept" in rest
    assert running_pids(directory) == []


def test_as_a_job_in_the_background_of_a_terminal_it_takes_no_keys_and_is_not_stopped_by_it(
    directory: Path,
) -> None:
    job = f"{shlex.join([*PROGRAM, 'demo', '--dir', str(directory)])} & wait"
    with Terminal(["bash", "-mc", job], directory.parent) as terminal:
        terminal.expect(STARTS.strip())
        terminal.expect(LEADS)
        assert demo(directory, "--stop").returncode == 0
        assert terminal.exit_code() == 0
    assert running_pids(directory) == []


def test_in_the_background_it_runs_until_it_is_stopped(directory: Path) -> None:
    started = demo(directory, "--detach")
    assert started.returncode == 0, started.stderr
    assert f"demo --dir '{directory}' --stop" in started.stdout
    assert len(running_pids(directory)) == 3
    pages = re.findall(r"http://\S+/", started.stdout)
    assert len(pages) == 3
    for page in pages:
        with urllib.request.urlopen(page, timeout=DEADLINE_S) as answer:
            assert answer.headers["Content-Type"].startswith("text/html")
    second = demo(directory)
    assert second.returncode == 1
    assert "runs in" in second.stderr
    assert f"--dir '{directory}' --stop" in second.stderr
    assert demo(directory, "--stop").stdout == "stopped\n"
    assert running_pids(directory) == []
    assert demo(directory, "--stop").stdout == f"nothing runs in {directory}\n"


def test_nodes_of_a_demo_that_was_killed_are_named_and_can_be_stopped(directory: Path) -> None:
    assert demo(directory, "--detach").returncode == 0
    supervisor = lock_holder(directory / DEMO_LOCK)
    assert supervisor is not None
    os.kill(supervisor, signal.SIGKILL)
    wait_until(lambda: lock_holder(directory / DEMO_LOCK) is None, "the demo is gone")
    again = demo(directory)
    assert again.returncode == 1
    assert f"node 1 still runs, as process {running_pids(directory)[0]}" in again.stderr
    assert f"--dir '{directory}' --stop" in again.stderr
    assert demo(directory, "--stop").stdout == "stopped\n"
    assert running_pids(directory) == []


def test_a_port_in_use_is_named_with_its_remedy(directory: Path) -> None:
    nodes, _ = prepare(directory)
    with socket.create_server(nodes[1].address):
        refused = demo(directory)
    assert refused.returncode == 1
    assert f"port {nodes[1].address.port} of node 2 is in use" in refused.stderr
    assert str(nodes[1].config_path) in refused.stderr


def test_ports_are_chosen_among_the_free_ones_and_kept(directory: Path, tmp_path: Path) -> None:
    first, _ = prepare(directory)
    with socket.create_server(first[0].http):
        other, _ = prepare(tmp_path / "other")
    again, done = prepare(directory)
    assert again == first
    assert done == []
    assert not {node.address for node in first} & {node.address for node in other}


def test_nodes_of_two_demos_are_of_two_clusters(directory: Path, tmp_path: Path) -> None:
    """Two that start at one moment choose the same ports: who has one must not be taken for a node of the
    other."""
    nodes, _ = prepare(directory)
    others, _ = prepare(tmp_path / "other")
    (ours,), (theirs,) = ({cluster_id_of(node) for node in each} for each in (nodes, others))
    assert ours
    assert theirs
    assert ours != theirs


def test_a_first_start_that_was_cut_off_goes_on_in_the_same_cluster(directory: Path) -> None:
    nodes, _ = prepare(directory)
    first = cluster_id_of(nodes[0])
    (directory / MARKER).unlink()
    (nodes[2].storage_dir / "meta.properties").unlink()
    prepare(directory)
    assert {cluster_id_of(node) for node in nodes} == {first}
    assert "bootstrap=true" in (nodes[2].storage_dir / "meta.properties").read_text()


def test_a_node_without_data_is_no_first_voter_again(directory: Path) -> None:
    nodes, _ = prepare(directory)
    (nodes[2].storage_dir / "meta.properties").unlink()
    _, done = prepare(directory)
    assert "node 3 has no data" in done[0]
    text = (nodes[2].storage_dir / "meta.properties").read_text()
    assert "bootstrap=false" in text
    assert "bootstrap=true" in (nodes[0].storage_dir / "meta.properties").read_text()


def test_what_runs_where_nobody_can_look_is_told_in_a_line(tmp_path: Path) -> None:
    directory = tmp_path / ("d" * 300)
    stopped = demo(directory, "--stop")
    assert (stopped.returncode, stopped.stderr) == (
        1,
        f"quorumd: cannot stop what runs in {directory}: File name too long\n",
    )


def test_a_directory_with_other_things_is_left_alone(directory: Path) -> None:
    directory.mkdir()
    (directory / "thesis.tex").write_text("important")
    refused = demo(directory)
    assert refused.returncode == 1
    assert "thesis.tex" in refused.stderr
    assert not list(directory.glob("node*"))


def test_a_full_disk_is_told_of_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int, data: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    directory = tmp_path / "demo"
    with pytest.raises(DemoError) as refused, demo_lock(directory):
        pass
    assert str(refused.value) == f"cannot use {directory}: No space left on device"


def test_a_secure_demo_takes_whom_it_gave_a_certificate_and_nobody_else(directory: Path) -> None:
    started = demo(directory, "--secure", "--detach")
    assert started.returncode == 0, started.stderr
    assert canary.remember_keys_below(directory) == 5, "of the CA, three nodes and a client"
    printed = re.findall(r"export (\w+)=(.+)", started.stdout)
    exports = {name: shlex.split(value)[0] for name, value in printed}
    environ = {name: value for name, value in os.environ.items() if not name.startswith("QUORUM")}
    append = [*QUORUMCTL, "append", "hello"]
    done = subprocess.run(
        append, env=environ | exports, capture_output=True, text=True, check=False
    )
    assert "appended 1 record" in done.stdout, done.stderr
    refused = re.search(r"^Refused.*:\n((?:  .+\n)+)", started.stdout, re.MULTILINE)
    assert refused is not None
    without, openssl = refused[1].splitlines()
    for command, words in (
        (without, "speaks TLS: set security.protocol=SSL"),
        (openssl, "certificate required"),
    ):
        tried = subprocess.run(
            command,
            shell=True,
            env=environ | exports,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert tried.returncode == 1, command
        assert words in tried.stderr, command
        canary.check(tried.stdout + tried.stderr, command)
    assert "Verification: OK" in tried.stdout, "it trusts the node, and the node does not trust it"
    assert demo(directory, "--stop").returncode == 0
    again = demo(directory, "--detach")
    assert "QUORUM_COMMAND_CONFIG" in again.stdout
    logs = sorted(directory.glob("*.log"))
    assert len(logs) == 4, "of the demo and its nodes"
    for shown in (started.stdout, again.stdout, *(path.read_text() for path in logs)):
        canary.check(shown, "what the demo prints and logs")


def test_a_demo_does_not_become_secure_afterwards(directory: Path) -> None:
    prepare(directory)
    refused = demo(directory, "--secure", "--detach")
    assert refused.returncode == 1
    assert "were made without TLS: name another directory" in refused.stderr
