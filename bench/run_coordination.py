"""Measures the time of a lock from one process to the next: `python -m bench.run_coordination`.

`quorumctl lock` beside `etcdctl lock`, and `quorumd.Lock` beside kazoo's for ZooKeeper, three nodes each, in
turn in one run. Of the commands, which run the same script: from the moment at which one under the lock is
about to end to the first moment of the next one: its end, the release, the next turn, the start of a command.
Of the libraries, in the same program (lock_holder.py): from before the release to behind the next
acquisition. Needs an idle machine.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from bench.builds import build
from bench.common import die_with_parent, running_quorum, write_json
from bench.pairs import Spread, in_turn
from bench.peers import etcd_cluster, etcd_missing, zookeeper_cluster, zookeeper_missing

HOLD_S = 0.1
QUEUE_S = 2.0
"""The first holder gives the others so much time for each that is to queue."""
_SCRIPT = """#!/bin/sh
date +%s%N >> "$TIMES"
if [ -e "$FIRST" ]; then rm "$FIRST"; sleep "$QUEUE_S"; else sleep "$HOLD_S"; fi
date +%s%N >> "$TIMES"
"""


class Locker(NamedTuple):
    """A program that holds a lock for a moment: `command` takes the lock's name and the script to run."""

    name: str
    command: Callable[[str, Path], list[str]]


Group = Sequence[Locker]
"""Like beside like: the first one is quorumd's."""


def groups(stack: ExitStack, options: argparse.Namespace) -> Iterator[Group]:
    """Commands, and libraries; what is missing is left out, and a line says how to get it."""
    made = stack.enter_context(build(options.build))
    quorum = stack.enter_context(running_quorum(command=made.command, environ=made.environ))
    print(f"nodes: quorumd ({made.form}, {made.name})", flush=True)
    servers = _servers(quorum.ports)
    quorumctl = str(Path(sys.executable).with_name("quorumctl"))
    commands = [_command("quorumctl lock", [quorumctl, "lock", "-b", servers], ["--"])]
    etcd, etcdctl = (shutil.which(each, path=options.etcd) for each in ("etcd", "etcdctl"))
    if missing := etcd_missing(etcd and etcdctl):
        print(f"etcdctl: not measured, {missing}", flush=True)
    elif etcd and etcdctl:
        ends = _servers(stack.enter_context(etcd_cluster(etcd)).ports)
        commands.append(_command("etcdctl lock", [etcdctl, "--endpoints", ends, "lock"], []))
    yield commands
    libraries = [_library("quorumd", "quorumd.Lock", servers)]
    if missing := zookeeper_missing(options.zookeeper) or _kazoo_missing():
        print(f"kazoo: not measured, {missing}", flush=True)
    else:
        hosts = _servers(stack.enter_context(zookeeper_cluster(options.zookeeper)).ports)
        libraries.append(_library("kazoo", "kazoo's Lock", hosts))
    yield libraries


def _command(name: str, words: list[str], between: list[str]) -> Locker:
    return Locker(name, lambda lock, script: [*words, lock, *between, str(script)])


def _library(library: str, name: str, servers: str) -> Locker:
    program = [sys.executable, "-m", "bench.lock_holder", library, servers]
    return Locker(name, lambda lock, _: [*program, lock])


def _kazoo_missing() -> str:
    return "" if find_spec("kazoo") else "it is not installed (pip install kazoo)"


def _servers(ports: Sequence[int]) -> str:
    return ",".join(f"127.0.0.1:{port}" for port in ports)


def hand_overs(locker: Locker, name: str, waiters: int) -> list[float]:
    """Milliseconds from each holder to the next, of so many who wait when the first one ends."""
    with tempfile.TemporaryDirectory() as folder:
        script, times, first = (Path(folder, each) for each in ("script", "times", "first"))
        script.write_text(_SCRIPT)
        script.chmod(0o755)
        first.touch()
        variables = {"TIMES": str(times), "FIRST": str(first), "HOLD_S": str(HOLD_S)}
        variables |= {"QUEUE_S": str(QUEUE_S * waiters)}
        processes = [
            subprocess.Popen(
                locker.command(name, script),
                env={**os.environ, **variables},
                stdout=subprocess.DEVNULL,
                preexec_fn=die_with_parent,
            )
            for _ in range(waiters + 1)
        ]
        codes = [process.wait() for process in processes]
        if any(codes):
            raise SystemExit(f"{locker.name}: exit codes {codes}")
        moments = [int(line) for line in times.read_text().split()]
    ends, begins = moments[1:-1:2], moments[2::2]
    return [(begin - end) / 1e6 for end, begin in zip(ends, begins, strict=True)]


def measure(found: Sequence[Group], rounds: int, waiters: int) -> dict[str, list[float]]:
    """All hand-overs in milliseconds by the locker's name. Who is first changes from round to round."""
    lockers = [locker for group in found for locker in group]
    times: dict[str, list[float]] = {locker.name: [] for locker in lockers}
    for number in range(rounds):
        for locker in in_turn(lockers, number):
            times[locker.name] += hand_overs(locker, f"bench-{number}", waiters)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--waiters", type=int, default=5)
    parser.add_argument(
        "--build", default="", help="a commit, folder or Python for the nodes; default: this tree"
    )
    parser.add_argument("--etcd", help="folder with etcd and etcdctl, if not on the path")
    parser.add_argument("--zookeeper", type=Path, help="folder with ZooKeeper's jars")
    parser.add_argument("--json", type=Path, help="keep the figures")
    options = parser.parse_args()
    with ExitStack() as stack:
        found = list(groups(stack, options))
        times = measure(found, options.rounds, options.waiters)
    for group in found:
        own = Spread.of(times[group[0].name])
        for locker in group:
            low, median, high = Spread.of(times[locker.name])
            is_own = locker is group[0]
            ratio = "" if is_own else f"; {group[0].name} needs {own.median / median:.2f} of it"
            count = len(times[locker.name])
            print(f"{locker.name}: {median:.1f} ms ({low:.1f} to {high:.1f}, {count} times){ratio}")
    write_json(options.json, times)


if __name__ == "__main__":
    main()
