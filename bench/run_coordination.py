"""How long a lock takes from one process to the next: `python -m bench.run_coordination`.

`quorumctl lock` beside `etcdctl lock`, three nodes each, in turn in one run. From the moment at which a
command under the lock is about to end to the first moment of the next one's: its end, the release, the next
one's turn, the start of its command. Both run the same script. Needs an idle machine.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from bench.common import NODES, START_TIMEOUT_S, free_ports, running_quorum, write_json
from bench.pairs import Spread

HOLD_S = 0.1
QUEUE_S = 2.0
"""The first holder gives the others so much time for each that is to queue."""
_SCRIPT = """#!/bin/sh
date +%s%N >> "$TIMES"
if [ -e "$FIRST" ]; then rm "$FIRST"; sleep "$QUEUE_S"; else sleep "$HOLD_S"; fi
date +%s%N >> "$TIMES"
"""


class Locker(NamedTuple):
    """A command that runs another one under a lock: `words`, the lock's name, `between`, the command."""

    name: str
    words: Sequence[str]
    between: Sequence[str]


@contextmanager
def quorumd_locker() -> Iterator[Locker]:
    """A fresh quorum."""
    with running_quorum() as quorum:
        servers = ",".join(f"127.0.0.1:{port}" for port in quorum.ports)
        quorumctl = str(Path(sys.executable).with_name("quorumctl"))
        yield Locker("quorumctl lock", [quorumctl, "lock", "-b", servers], ["--"])


@contextmanager
def etcd_locker(etcd: str, etcdctl: str) -> Iterator[Locker]:
    """A fresh cluster of etcd with its defaults."""
    ports = free_ports(2 * NODES)
    clients = [f"http://127.0.0.1:{port}" for port in ports[:NODES]]
    peers = [f"http://127.0.0.1:{port}" for port in ports[NODES:]]
    cluster = ",".join(f"n{i}={url}" for i, url in enumerate(peers))
    with tempfile.TemporaryDirectory(prefix="etcd-bench-") as folder, ExitStack() as stack:
        for i, (client, peer) in enumerate(zip(clients, peers, strict=True)):
            command = [etcd, "--name", f"n{i}", "--data-dir", f"{folder}/{i}"]
            command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
            command += ["--listen-client-urls", client, "--advertise-client-urls", client]
            command += ["--initial-cluster", cluster, "--log-level", "error"]
            process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.kill)
        _wait_healthy(clients)
        words = [etcdctl, "--endpoints", ",".join(clients), "lock"]
        yield Locker("etcdctl lock", words, [])


def _wait_healthy(urls: Sequence[str]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    for url in urls:
        while True:
            try:
                with urllib.request.urlopen(f"{url}/health", timeout=1) as answer:
                    if b'"true"' in answer.read():
                        break
            except OSError:
                pass
            if time.monotonic() > deadline:
                raise SystemExit(f"etcd is not healthy after {START_TIMEOUT_S} s")
            time.sleep(0.05)


def hand_overs(locker: Locker, name: str, waiters: int) -> list[float]:
    """Milliseconds from each holder to the next, of so many who wait when the first one ends."""
    with tempfile.TemporaryDirectory() as folder:
        script, times, first = (Path(folder, each) for each in ("script", "times", "first"))
        script.write_text(_SCRIPT)
        script.chmod(0o755)
        first.touch()
        variables = {"TIMES": str(times), "FIRST": str(first), "HOLD_S": str(HOLD_S)}
        variables |= {"QUEUE_S": str(QUEUE_S * waiters), "ETCDCTL_API": "3"}
        processes = [
            subprocess.Popen(
                [*locker.words, name, *locker.between, str(script)],
                env={**os.environ, **variables},
                stdout=subprocess.DEVNULL,
            )
            for _ in range(waiters + 1)
        ]
        codes = [process.wait() for process in processes]
        if any(codes):
            raise SystemExit(f"{locker.name}: exit codes {codes}")
        moments = [int(line) for line in times.read_text().split()]
    ends, begins = moments[1:-1:2], moments[2::2]
    return [(begin - end) / 1e6 for end, begin in zip(ends, begins, strict=True)]


def measure(lockers: Sequence[Locker], rounds: int, waiters: int) -> dict[str, list[float]]:
    """All hand-overs in milliseconds. Who is first changes from round to round."""
    found: dict[str, list[float]] = {locker.name: [] for locker in lockers}
    for number in range(rounds):
        at = number % len(lockers)
        for locker in [*lockers[at:], *lockers[:at]]:
            found[locker.name] += hand_overs(locker, f"bench/{number}", waiters)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--waiters", type=int, default=5)
    parser.add_argument(
        "--etcd", type=Path, help="folder with etcd and etcdctl, if not on the path"
    )
    parser.add_argument("--json", type=Path, help="keep the figures")
    options = parser.parse_args()
    path = None if options.etcd is None else str(options.etcd)
    etcd, etcdctl = (shutil.which(each, path=path) for each in ("etcd", "etcdctl"))
    with ExitStack() as stack:
        lockers = [stack.enter_context(quorumd_locker())]
        if etcd is None or etcdctl is None:
            missing = "etcd" if etcd is None else "etcdctl"
            print(f"etcd: not measured, {missing} is not installed (--etcd DIR)", flush=True)
        else:
            lockers.append(stack.enter_context(etcd_locker(etcd, etcdctl)))
        found = measure(lockers, options.rounds, options.waiters)
    own = Spread.of(found[lockers[0].name])
    for name, values in found.items():
        low, median, high = Spread.of(values)
        ratio = (
            "" if name == lockers[0].name else f"; quorumctl needs {own.median / median:.2f} of it"
        )
        print(f"{name}: {median:.1f} ms ({low:.1f} to {high:.1f}, {len(values)} times){ratio}")
    write_json(options.json, found)


if __name__ == "__main__":
    main()
