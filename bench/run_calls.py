"""Python calls per acknowledged record, of the leader and of a follower: `python -m bench.run_calls`.

A count differs little from run to run, whatever else the machine does: it shows what a change costs on the
path of an append before any clock can. `--base DIR` counts another source tree of quorumd as well. Counting
slows a node down, so that more records than usual share one turn of the event loop and one fsync.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.call_counter import COUNT_INSTRUCTIONS
from bench.common import ROOT, START_TIMEOUT_S, Quorum, generate, leader_of, write_json

CLIENTS = (1, 16, 64)
Counts = Mapping[str, tuple[int, int]]
"""By file and function: calls and instructions."""


def count(tree: Path, clients: list[int], seconds: float, parent: Path | None) -> dict[str, Any]:
    """Calls of the leader and a follower of a fresh quorum of this tree, by number of clients."""
    with tempfile.TemporaryDirectory(prefix="quorumd-calls-", dir=parent) as name:
        folder = Path(name)
        module = "quorumd.server.main" if (tree / "quorumd" / "server").exists() else "server.main"
        counter = Path(__file__).with_name("call_counter.py")
        quorum = Quorum(folder, command=[sys.executable, str(counter), name, str(tree), module])
        try:
            quorum.format()
            for index in range(len(quorum.ports)):
                quorum.spawn(index)
            quorum.wait_ready()
            return {str(number): _cell(quorum, folder, number, seconds) for number in clients}
        finally:
            quorum.stop()


def _cell(quorum: Quorum, folder: Path, clients: int, seconds: float) -> dict[str, Any]:
    leader = leader_of(quorum)
    follower = (leader + 1) % len(quorum.ports)
    pids = {"leader": quorum.pid(leader), "follower": quorum.pid(follower)}
    port = quorum.ports[leader]
    generate(quorum, [port], clients=clients, warmup=0, seconds=1)
    before = {role: _counts(folder, pid) for role, pid in pids.items()}
    result = generate(quorum, [port], clients=clients, warmup=0, seconds=seconds)
    after = {role: _counts(folder, pid) for role, pid in pids.items()}
    records = result["requests"]
    if leader_of(quorum) != leader or not records or result["errors"]:
        raise SystemExit("the leader changed or refused records: count again on an idle machine")
    cell: dict[str, Any] = {"records": records}
    for role in pids:
        cell[role] = {
            function: [
                round((now - then) / records, 3)
                for now, then in zip(numbers, before[role].get(function, (0, 0)), strict=True)
            ]
            for function, numbers in sorted(after[role].items())
            if numbers != before[role].get(function)
        }
    return cell


def _counts(folder: Path, pid: int) -> Counts:
    """Calls of the process so far, which it writes down when it is asked."""
    written = folder / f"{pid}.json"
    os.kill(pid, signal.SIGUSR2)
    deadline = time.monotonic() + START_TIMEOUT_S
    while not written.exists():
        if time.monotonic() > deadline:
            raise SystemExit(f"process {pid} does not write its counts")
        time.sleep(0.01)
    counts: Counts = json.loads(written.read_text())
    written.unlink()
    return counts


def by_module(functions: Counts) -> Counter[str]:
    """Calls per record of each file."""
    sums: Counter[str] = Counter()
    for name, (calls, _) in functions.items():
        sums[name.partition(":")[0].removeprefix("quorumd/")] += calls
    return sums


def print_cell(title: str, cells: list[dict[str, Any]]) -> None:
    """A table of modules; one column for each tree."""
    for role in ("leader", "follower"):
        columns = [by_module(cell[role]) for cell in cells]
        totals = "".join(f"{sum(column.values()):9.2f}" for column in columns)
        print(f"\n{title + ', ' + role:48}{totals}  calls per record")
        instructions = [sum(own for _, own in cell[role].values()) for cell in cells]
        if any(instructions):
            print(
                " " * 48 + "".join(f"{n:9.0f}" for n in instructions) + "  instructions per record"
            )
        for module in sorted(
            {name for column in columns for name in column}, key=lambda name: -columns[0][name]
        ):
            if any(round(column[module], 2) for column in columns):
                print(f"  {module:46}" + "".join(f"{column[module]:9.2f}" for column in columns))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=CLIENTS)
    parser.add_argument("--seconds", type=float, default=4, help="per number of clients")
    parser.add_argument("--base", type=Path, help="another source tree, in the second column")
    parser.add_argument(
        "--instructions", action="store_true", help="count bytecode instructions, too; far slower"
    )
    parser.add_argument("--folder", type=Path, help="where the nodes keep their data while it runs")
    parser.add_argument("--json", type=Path, help="file for the counts of every function")
    args = parser.parse_args()
    os.environ[COUNT_INSTRUCTIONS] = "1" if args.instructions else ""
    trees = [ROOT, *([args.base.resolve()] if args.base else [])]
    counted = [count(tree, args.clients, args.seconds, args.folder) for tree in trees]
    for clients in map(str, args.clients):
        print_cell(f"{clients} clients", [cells[clients] for cells in counted])
    write_json(args.json, dict(zip(map(str, trees), counted, strict=True)))


if __name__ == "__main__":
    main()
