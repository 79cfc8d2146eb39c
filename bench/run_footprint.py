"""Measures the start, the processor time and the memory of a quorum: `python -m bench.run_footprint`.

The time from the start of three formatted nodes to the first acknowledged write, several times on
fresh directories; then processor time and resident memory of the idle nodes, and resident memory
right after a run of 64 clients.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

from bench.common import (
    NODES,
    Cluster,
    formatted_quorum,
    generate,
    leader_of,
    processor_seconds,
    resident_mb,
    running_quorum,
    write_json,
)

LOAD_CLIENTS = 64


def seconds_to_first_ack(cluster: Cluster) -> float:
    """Starts all nodes; one client tries each in turn until a write is acknowledged."""
    begin_ns = time.monotonic_ns()
    for index in range(NODES):
        cluster.spawn(index)
    result = generate(
        cluster, cluster.ports, until_first_ack=True, timeout_ms=200, retry_ms=5, connect_seconds=60
    )
    return float(result["first_ack_ns"] - begin_ns) / 1e9


def idle_and_loaded(cluster: Cluster, *, idle_s: float, load_s: float) -> dict[str, Any]:
    """Cores used by the three idle nodes together; resident 10^6 bytes of the largest node."""
    time.sleep(idle_s / 3)
    before, begin = processor_seconds(cluster.pids), time.monotonic()
    time.sleep(idle_s)
    cores = (processor_seconds(cluster.pids) - before) / (time.monotonic() - begin)
    idle_mb = resident_mb(cluster.pids)
    port = cluster.ports[leader_of(cluster)]
    generate(cluster, [port], clients=LOAD_CLIENTS, seconds=load_s)
    return {
        "idle_cores": round(cores, 4),
        "idle_mb": idle_mb,
        "loaded_mb": resident_mb(cluster.pids),
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--idle-seconds", type=float, default=30)
    parser.add_argument("--load-seconds", type=float, default=10)
    parser.add_argument("--folder", type=Path, help="where the nodes keep their data while it runs")
    parser.add_argument("--json", type=Path, help="file for all figures")
    args = parser.parse_args()
    starts = []
    for _ in range(args.starts):
        with formatted_quorum(args.folder) as quorum:
            starts.append(round(seconds_to_first_ack(quorum), 3))
    listed = " ".join(f"{seconds:.2f}" for seconds in starts)
    print(f"start to first write: median {statistics.median(starts):.2f} s ({listed})", flush=True)
    with running_quorum(args.folder) as quorum:
        costs = idle_and_loaded(quorum, idle_s=args.idle_seconds, load_s=args.load_seconds)
    print(
        f"idle: {100 * costs['idle_cores']:.1f} % of one core, three nodes together;"
        f" {max(costs['idle_mb']):.0f} MB for the largest node\n"
        f"after {LOAD_CLIENTS} clients: {max(costs['loaded_mb']):.0f} MB for the largest node"
    )
    write_json(args.json, {"start_s": starts, **costs})


if __name__ == "__main__":
    main()
