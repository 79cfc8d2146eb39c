"""How long nothing is committed after the leader is lost: `python -m bench.run_failover`.

Sixteen clients spread over three nodes write in closed loop; the leader gets SIGKILL (the process is
gone) or SIGSTOP (it is only silent). Measured is the time from the signal to the first
acknowledgement of a write that was sent after it, and until every client has had one.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import time
from pathlib import Path
from typing import Any

from bench.common import Cluster, generate, leader_of, running_quorum, write_json

CLIENTS = 16
SETTLE_S = 1.0
SIGNALS = {"killed": signal.SIGKILL, "silent": signal.SIGSTOP}


def measure(cluster: Cluster, *, how: str, times: int) -> list[dict[str, Any]]:
    """Loses the leader so often, and brings it back each time."""
    results = []
    for _ in range(times):
        victim = leader_of(cluster)
        result = generate(
            cluster,
            cluster.ports,
            clients=CLIENTS,
            warmup=1,
            seconds=1,
            timeout_ms=100,
            retry_ms=10,
            kill_pid=cluster.pid(victim),
            signal=int(SIGNALS[how]),
        )
        if how == "killed":
            cluster.signal(victim, signal.SIGKILL)
            cluster.spawn(victim)
        else:
            cluster.signal(victim, signal.SIGCONT)
        cluster.wait_ready()
        time.sleep(SETTLE_S)
        results.append({"how": how, **result})
        print(
            f"leader {how}: first write after {result['first_ack_ms']:7.1f} ms,"
            f" every client after {result['all_clients_ms']:7.1f} ms",
            flush=True,
        )
    return results


def summary(how: str, results: list[dict[str, Any]]) -> str:
    """Median and extremes of one kind of loss."""
    first = sorted(row["first_ack_ms"] for row in results if row["how"] == how)
    if first[0] < 0:
        return f"leader {how}: {sum(ms < 0 for ms in first)} of {len(first)} times nobody took over"
    return (
        f"leader {how}: median {statistics.median(first):.0f} ms, min {first[0]:.0f},"
        f" max {first[-1]:.0f} (n = {len(first)})"
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=9, help="of each kind")
    parser.add_argument("--how", choices=[*SIGNALS, "both"], default="both")
    parser.add_argument("--fetch-timeout-ms", type=int, help="instead of the default")
    parser.add_argument("--folder", type=Path, help="where the nodes keep their data while it runs")
    parser.add_argument("--json", type=Path, help="file for all figures")
    args = parser.parse_args()
    kinds = list(SIGNALS) if args.how == "both" else [args.how]
    settings = {"quorum.fetch.timeout.ms": args.fetch_timeout_ms} if args.fetch_timeout_ms else {}
    with running_quorum(args.folder, settings) as quorum:
        results = [row for how in kinds for row in measure(quorum, how=how, times=args.times)]
    for how in kinds:
        print(summary(how, results))
    write_json(args.json, results)


if __name__ == "__main__":
    main()
