"""Records acknowledged per second and their latency: `python -m bench.run_throughput`.

Closed loop against the leader of three nodes, every acknowledgement durable on a majority. With `--against
WHERE` this tree is compared with another build: a commit, a folder with sources, or a Python that has quorumd
installed. The two take turns, sample by sample; the ratio of each pair counts.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any, NamedTuple

from bench.builds import build
from bench.common import Cluster, generate, leader_of, running_quorum, write_json
from bench.pairs import Pair, Spread, measure_pairs, sample, two_quorums, verdict


class Cell(NamedTuple):
    """One kind of load; `records` per batch."""

    clients: int
    connections: int
    records: int

    @property
    def title(self) -> str:
        shared = "" if self.connections == self.clients else f" on {self.connections} connections"
        batched = "" if self.records == 1 else f" x {self.records} records"
        return f"{self.clients}{shared}{batched}"


CELLS = (
    Cell(1, 1, 1),
    Cell(16, 16, 1),
    Cell(64, 64, 1),
    Cell(256, 256, 1),
    Cell(256, 16, 1),
    Cell(1, 1, 128),
    Cell(64, 64, 128),
)


def measure(
    cluster: Cluster, *, seconds: float, rounds: int, value_bytes: int
) -> list[dict[str, Any]]:
    """Every cell in turn, `rounds` times; one result per cell and round."""
    results = []
    generate(cluster, [cluster.ports[leader_of(cluster)]], clients=16, warmup=0, seconds=1)
    for round_number in range(1, rounds + 1):
        for cell in CELLS:
            result = generate(
                cluster,
                [cluster.ports[leader_of(cluster)]],
                **cell._asdict(),
                value_bytes=value_bytes,
                seconds=seconds,
                warmup=1,
            )
            results.append({"cell": cell.title, "round": round_number, **result})
            print(line_of(cell.title, [results[-1]]), flush=True)
    return results


def line_of(title: str, rows: list[dict[str, Any]]) -> str:
    """Medians over the rows of one cell."""

    def median(key: str) -> float:
        return float(statistics.median(row[key] for row in rows))

    return (
        f"{title:24} {median('records_per_s'):9,.0f} records/s   p50 {median('p50_ms'):7.3f}"
        f"  p99 {median('p99_ms'):7.3f}  max {median('max_ms'):7.1f} ms   cores: client"
        f" {median('cores_client'):.2f}  nodes {median('cores_servers'):.2f}"
        f"  other {median('cores_other'):.2f}   errors {sum(row['errors'] for row in rows)}"
    )


def compare(args: argparse.Namespace) -> list[dict[str, Any]]:
    """`args.pairs` pairs of every cell, in turn."""
    rows = []
    with build(args.now) as now, build(args.against) as before:
        print(f"{now.name} ({now.form}) against {before.name} ({before.form})", flush=True)
        with two_quorums([now, before], args.folder) as quorums:
            for quorum in quorums:
                sample(quorum, clients=64, warmup=0, seconds=2 * args.seconds)
            for cell in CELLS:
                options = {**cell._asdict(), "value_bytes": args.value_bytes}
                options |= {"seconds": args.seconds, "warmup": 0.3 * args.seconds}
                pairs = list(measure_pairs(quorums, args.pairs, **options))
                print(line_of_pairs(cell.title, pairs), flush=True)
                rows.append({"cell": cell.title, "pairs": [pair._asdict() for pair in pairs]})
    return rows


def line_of_pairs(title: str, pairs: list[Pair]) -> str:
    """Medians of both builds, and what the ratios say."""
    now, before = (
        Spread.of([float(sample["records_per_s"]) for sample in samples])
        for samples in zip(*pairs, strict=True)
    )
    return (
        f"{title:24} {now.median:9,.0f} against {before.median:9,.0f} records/s  {verdict(pairs)}"
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, help="per measurement (5; with --against 1)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--against", metavar="WHERE", help="another build, to be compared with")
    parser.add_argument("--now", metavar="WHERE", default="", help="in place of this tree")
    parser.add_argument("--pairs", type=int, default=15, help="per cell, with --against")
    parser.add_argument("--folder", type=Path, help="where the nodes keep their data while it runs")
    parser.add_argument("--json", type=Path, help="file for all figures")
    args = parser.parse_args()
    args.seconds = args.seconds or (1 if args.against else 5)
    if args.against:
        write_json(args.json, compare(args))
        return
    with running_quorum(args.folder) as quorum:
        results = measure(
            quorum, seconds=args.seconds, rounds=args.rounds, value_bytes=args.value_bytes
        )
    if args.rounds > 1:
        print(f"\nmedians of {args.rounds} rounds")
        for cell in CELLS:
            print(line_of(cell.title, [row for row in results if row["cell"] == cell.title]))
    write_json(args.json, results)


if __name__ == "__main__":
    main()
