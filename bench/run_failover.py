"""Measures the time without commits after the leader is lost: `python -m bench.run_failover`.

Sixteen clients spread over three nodes write in closed loop; the leader gets SIGKILL (the process is
gone) or SIGSTOP (it is only silent). Measured is the time from the signal to the first
acknowledgement of a write that was sent after it, and until every client has had one. With --tls a second
quorum, with mutual TLS on all links and to all clients, takes turns with the first, loss by loss.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.common import Quorum, generate, leader_of, running_quorum, write_json
from bench.run_tls import TlsQuorum

CLIENTS = 16
SETTLE_S = 1.0
SIGNALS = {"killed": signal.SIGKILL, "silent": signal.SIGSTOP}
PLAIN, TLS = "plaintext", "mutual TLS"


def lose_leader(quorum: Quorum, how: str) -> dict[str, Any]:
    """Loses the leader, and brings it back. What the load generator says of it."""
    victim = leader_of(quorum)
    result = generate(
        quorum,
        quorum.ports,
        clients=CLIENTS,
        warmup=1,
        seconds=1,
        timeout_ms=100,
        retry_ms=10,
        kill_pid=quorum.pid(victim),
        signal=int(SIGNALS[how]),
        **quorum.load_options,
    )
    if how == "killed":
        quorum.signal(victim, signal.SIGKILL)
        quorum.spawn(victim)
    else:
        quorum.signal(victim, signal.SIGCONT)
    quorum.wait_ready()
    time.sleep(SETTLE_S)
    return result


def measure(quorums: Mapping[str, Quorum], how: str, times: int) -> list[dict[str, Any]]:
    """Loses the leader of each quorum so often, in turn."""
    results = []
    for _ in range(times):
        for links, quorum in quorums.items():
            result = lose_leader(quorum, how)
            results.append({"how": how, "links": links, **result})
            print(
                f"{links}: leader {how}: first write after {result['first_ack_ms']:7.1f} ms,"
                f" every client after {result['all_clients_ms']:7.1f} ms",
                flush=True,
            )
    return results


def summary(links: str, how: str, results: list[dict[str, Any]]) -> str:
    """Median and extremes of one kind of loss on one kind of links."""
    chosen = [row for row in results if (row["how"], row["links"]) == (how, links)]
    first = sorted(row["first_ack_ms"] for row in chosen)
    if first[0] < 0:
        return f"{links}: leader {how}: {sum(ms < 0 for ms in first)} of {len(first)} times nobody took over"
    return (
        f"{links}: leader {how}: median {statistics.median(first):.0f} ms, min {first[0]:.0f},"
        f" max {first[-1]:.0f} (n = {len(first)})"
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=9, help="of each kind")
    parser.add_argument("--how", choices=[*SIGNALS, "both"], default="both")
    parser.add_argument("--tls", action="store_true", help="beside a quorum with mutual TLS")
    parser.add_argument("--fetch-timeout-ms", type=int, help="instead of the default")
    parser.add_argument("--folder", type=Path, help="where the nodes keep their data while it runs")
    parser.add_argument("--json", type=Path, help="file for all figures")
    args = parser.parse_args()
    kinds = list(SIGNALS) if args.how == "both" else [args.how]
    settings = {"quorum.fetch.timeout.ms": args.fetch_timeout_ms} if args.fetch_timeout_ms else {}
    with ExitStack() as stack:
        quorums = {
            links: stack.enter_context(running_quorum(args.folder, settings, kind=kind))
            for links, kind in ((PLAIN, Quorum), (TLS, TlsQuorum))
            if links == PLAIN or args.tls
        }
        results = [row for how in kinds for row in measure(quorums, how, args.times)]
    for how in kinds:
        for links in quorums:
            print(summary(links, how, results))
    write_json(args.json, results)


if __name__ == "__main__":
    main()
