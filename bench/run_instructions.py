"""Instructions in user space per record, of leader and follower: `python -m bench.run_instructions`.

All three nodes are counted, so that their speeds keep their proportions. Without options: this tree, beside
the last kept figure; ends with 1 if a cell is more than 5 % worse. `--commit C` counts a commit, `--keep`
adds the figures to bench/figures/instructions.jsonl.
"""

from __future__ import annotations

import argparse
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.builds import Build, build
from bench.common import NODES, Quorum, leader_of, loadgen, processor_seconds
from bench.instruction_counter import InstructionCounter, counter
from bench.instruction_figures import (
    CLIENTS,
    ROLES,
    WORSE,
    Cells,
    Figure,
    RoleFigure,
    keep,
    last,
    read,
    table,
    worse_cells,
)

RECORDS = {1: 300, 16: 2_400, 64: 3_840, 256: 6_400}
"""By number of clients; in three runs."""
RUNS = 3
WARM_UP_RECORDS = 400
REST_CHECK_S = 3.0
REST_CHECKS_MAX = 60
RESTING_SHARE = 0.05
"""Of a core, all nodes together."""
SETTLE_S = 0.015
"""By the nodes' clock. The leader lets no follower wait for more than 5 ms."""
SETTINGS = {
    "quorum.fetch.timeout.ms": 120_000,
    "quorum.request.timeout.ms": 120_000,
    "connections.max.idle.ms": 3_600_000,
}
START_S = 300.0
SCRAPES_MAX = 20
_SYNCS = re.compile(r"^quorumd_fsync_seconds_count\S* (\S+)$", re.MULTILINE)


class Load:
    """Clients that send as many records as they are told to, all of them acknowledged."""

    def __init__(self, port: int, topic: str, clients: int) -> None:
        command = [str(loadgen()), "--by-number", "--ports", str(port), "--topic", topic]
        self._process = subprocess.Popen(
            [*command, "--clients", str(clients), "--timeout-ms", "300000"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def send(self, records: int) -> None:
        """Returns when all are acknowledged."""
        sent, answered = self._process.stdin, self._process.stdout
        if sent is None or answered is None:
            raise AssertionError("both are pipes")
        sent.write(f"{records}\n")
        sent.flush()
        if answered.readline().strip() != "0":
            raise SystemExit("records were refused or lost: count again")

    def close(self) -> None:
        self._process.communicate()


def count(build: Build, clients: Sequence[int], name: str | None = None) -> Figure:
    """The instructions of a fresh quorum of this build; `name` is that of the counter."""
    with tempfile.TemporaryDirectory(prefix="quorumd-instructions-") as folder:
        counting = counter(Path(folder), name)
        environ = {**build.environ, **counting.environ, "PYTHONHASHSEED": "0"}
        quorum = Quorum(Path(folder), SETTINGS, command=build.command, environ=environ)
        try:
            quorum.format()
            for index in range(NODES):
                quorum.spawn(index, before=counting.command(index))
            quorum.wait_ready(START_S)
            _warm_up(quorum)
            leader = leader_of(quorum)
            counting.begin(quorum.pids)
            cells: Cells = {number: _cell(quorum, counting, number) for number in clients}
            if leader_of(quorum) != leader:
                raise SystemExit("the leader changed: count again")
            return Figure(build.name, build.form, counting.name, build.python_version, cells)
        finally:
            counting.end()
            quorum.stop()


def _warm_up(quorum: Quorum) -> None:
    """Some load and a scrape, which load what they need; then all that a start leaves for later."""
    load = Load(quorum.ports[leader_of(quorum)], quorum.topic, 16)
    load.send(WARM_UP_RECORDS)
    load.close()
    _syncs(quorum, range(NODES))
    for _ in range(REST_CHECKS_MAX):
        before = processor_seconds(quorum.pids)
        time.sleep(REST_CHECK_S)
        if processor_seconds(quorum.pids) - before < RESTING_SHARE * REST_CHECK_S:
            return
    raise SystemExit("the nodes do not come to rest")


def _cell(quorum: Quorum, counting: InstructionCounter, clients: int) -> dict[str, RoleFigure]:
    """Of each role, the run in the middle of some.

    A commit needs one follower. How often the other one fetches under a lone client, whose records
    are shorter than the leader lets it wait, is a matter of chance: it is stopped meanwhile.
    """
    leader = leader_of(quorum)
    followers = [index for index in range(NODES) if index != leader]
    stopped = followers[1:] if clients == 1 else []
    load = Load(quorum.ports[leader], quorum.topic, clients)
    for index in stopped:
        quorum.signal(index, signal.SIGSTOP)
    try:
        load.send(max(clients, 20))
        counted = {"leader": [leader], "follower": [i for i in followers if i not in stopped]}
        runs = [
            _run(quorum, counting, load, counted, RECORDS[clients] // RUNS) for _ in range(RUNS)
        ]
    finally:
        for index in stopped:
            quorum.signal(index, signal.SIGCONT)
    load.close()
    return {role: sorted(run[role] for run in runs)[RUNS // 2] for role in ROLES}


def _run(
    quorum: Quorum,
    counting: InstructionCounter,
    load: Load,
    counted: Mapping[str, Sequence[int]],
    records: int,
) -> dict[str, RoleFigure]:
    """Of each role, the mean of the nodes that are named."""
    pids = [quorum.pid(index) for indexes in counted.values() for index in indexes]
    time.sleep(SETTLE_S * counting.slower)
    before = {role: _syncs(quorum, indexes) for role, indexes in counted.items()}
    counting.take(pids)
    load.send(records)
    time.sleep(SETTLE_S * counting.slower)
    counts = counting.take(pids)
    figures = {}
    for role, indexes in counted.items():
        executed = sum(counts[quorum.pid(index)] for index in indexes) / len(indexes)
        syncs = (_syncs(quorum, indexes) - before[role]) / len(indexes)
        figures[role] = RoleFigure(
            round(executed / records / 1000, 2), round(records / max(1, syncs), 2)
        )
    return figures


def _syncs(quorum: Quorum, indexes: Sequence[int]) -> float:
    """Number of syncs of the logs of these nodes, all together."""
    found = 0.0
    for index in indexes:
        match = _SYNCS.search(_metrics(quorum, index))
        if match is None:
            raise SystemExit("the node does not say how often it has synced")
        found += float(match[1])
    return found


def _metrics(quorum: Quorum, index: int) -> str:
    """A node under valgrind on a busy machine may take longer than it gives an HTTP connection."""
    for _ in range(SCRAPES_MAX):
        try:
            with urllib.request.urlopen(quorum.url(index, "/metrics"), timeout=60) as answer:
                return str(answer.read().decode())
        except OSError:
            time.sleep(1)
    raise SystemExit("the node does not serve its metrics")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", choices=CLIENTS, default=CLIENTS)
    parser.add_argument("--commit", help="count this commit, instead of the files of this tree")
    parser.add_argument("--python", default=sys.executable, help="count what it has installed")
    parser.add_argument("--counter", choices=("perf", "valgrind"), help="default: perf if it works")
    parser.add_argument("--keep", action="store_true", help="add the figures to those in bench/")
    args = parser.parse_args()
    where = args.commit or (args.python if args.python != sys.executable else "")
    with build(where) as chosen:
        now = count(chosen, args.clients, args.counter)
        print(table(now), flush=True)
        before = last(read(), now)
        worse = worse_cells(now, before) if before else []
        if before and worse:
            print("\n".join([*worse, "counted once more:"]), flush=True)
            now = count(chosen, args.clients, args.counter)
            print(table(now))
            worse = worse_cells(now, before)
    if before:
        print(f"\nbefore: {table(before)}")
        print("\n".join(worse) or f"no cell is more than {WORSE:.0%} worse than {before.commit}")
    if args.keep:
        if now.commit.endswith("-dirty"):
            raise SystemExit("only figures of a commit are kept: commit first, or name one")
        keep(now)
    raise SystemExit(bool(worse))


if __name__ == "__main__":
    main()
