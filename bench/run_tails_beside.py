"""Latencies beside etcd and ZooKeeper: `python -m bench.run_tails_beside --etcd DIR --zookeeper DIR`.

Clients with a key each write in closed loop, which shows the highest rate of a system. Then writes are due at
half of it, whether earlier ones are answered or not, and each latency counts from when the write was due
(see casgen.c). The systems take turns; those that are not measured are paused. Needs an idle machine.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Mapping, Sequence

from bench.common import write_json
from bench.pairs import in_turn
from bench.peers import Peer
from bench.run_beside import Cell, Sample, add_cluster_options, paused_clusters, sample

COLUMNS = ("p50_ms", "p99_ms", "p999_ms", "max_ms")
RATE_S = 2.0


def measure(
    peers: Sequence[Peer], clients: int, rounds: int, seconds: float
) -> dict[str, list[Sample]]:
    """The samples in open loop, by the cluster's name. Each has its own rate in each round: the machine
    is not always as fast."""
    cell = Cell(clients, one_key=False)
    found: dict[str, list[Sample]] = {peer.name: [] for peer in peers}
    for number in range(rounds):
        for peer in in_turn(peers, number):
            # Else nothing may be due in a short sample of one that is slow.
            rate = max(sample(peer, cell, RATE_S)["records_per_s"] / 2, 2 / seconds)
            found[peer.name].append({**sample(peer, cell, seconds, rate), "rate": rate})
    return found


def lines(samples: Mapping[str, Sequence[Sample]]) -> Iterator[str]:
    """The medians of each cluster, and the lowest and highest p99."""
    yield f"{'':36}{'due/s':>9}" + "".join(f"{key[:-3]:>9}" for key in COLUMNS) + "  ms"
    for name, made in samples.items():
        due = statistics.median(each["rate"] for each in made)
        times = "".join(f"{statistics.median(each[key] for each in made):9.2f}" for key in COLUMNS)
        p99s = sorted(each["p99_ms"] for each in made)
        yield f"{name:36}{due:9,.0f}{times}  p99 {p99s[0]:.2f} to {p99s[-1]:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="samples of each cluster")
    parser.add_argument("--seconds", type=float, default=8, help="of a sample in open loop")
    parser.add_argument("--clients", type=int, default=256)
    add_cluster_options(parser)
    options = parser.parse_args()
    with paused_clusters(options) as peers:
        found = measure(peers, options.clients, options.rounds, options.seconds)
    print("\n".join(lines(found)), flush=True)
    write_json(options.json, found)


if __name__ == "__main__":
    main()
