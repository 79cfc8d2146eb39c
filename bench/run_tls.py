"""Measures the cost of mutual TLS: `python -m bench.run_tls`.

Two quorums of one build, one in plaintext and one with mutual TLS on all links and to all clients, take
turns, sample by sample, and the ratio of each pair counts. The last column is the processor time of the three
nodes for a request, which says more than rates do while others use the machine. Ends with 1 if a cell's ratio
is below its goal.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench.builds import Build, build
from bench.common import Quorum, leader_of, running_quorum, write_json
from bench.pairs import PAUSED_FOR_LONG, Pair, Spread, measure_pairs, paused, sample, verdict
from bench.run_throughput import Cell
from quorumd.security.make_certificates import (
    CA_FILE,
    NODE_PRINCIPALS,
    make_ca,
    make_client,
    make_node,
)

GOALS = {
    Cell(1, 1, 1): 0.8,
    Cell(16, 16, 1): 0.8,
    Cell(64, 64, 1): 0.75,
    Cell(256, 256, 1): 0.75,
    Cell(256, 16, 1): 0.8,
    Cell(64, 64, 128): 0.65,
}
"""Records a second with mutual TLS, divided by those in plaintext."""
DAYS = 30


class TlsQuorum(Quorum):
    """Every link and every client by mutual TLS, with certificates of a CA of its own."""

    @property
    def _certificates(self) -> Path:
        return self._folder / "certificates"

    def format(self) -> None:
        self._certificates.mkdir()
        make_ca(self._certificates, DAYS)
        for index in range(len(self.ports)):
            make_node(self._certificates, index + 1, ["127.0.0.1"], DAYS)
        make_client(self._certificates, "load", DAYS)
        self.load_options = {
            "tls_certificate": self._certificates / "load.pem",
            "tls_ca": self._certificates / CA_FILE,
        }
        super().format()

    def settings_of(self, index: int) -> dict[str, object]:
        return {
            "listener.security.protocol.map": "CONTROLLER:SSL",
            "ssl.keystore.location": self._certificates / f"quorumd-{index + 1}.pem",
            "ssl.truststore.location": self._certificates / CA_FILE,
            "ssl.client.auth": "required",
            "quorum.node.principals": NODE_PRINCIPALS,
            **super().settings_of(index),
        }

    def leader(self) -> int | None:
        """As the nodes say by HTTP, which is plaintext here."""
        for index, _ in enumerate(self.pids):
            if self.status(index)["role"] == "leader":
                return index
        return None


@contextmanager
def plain_and_secure(chosen: Build, folder: Path | None) -> Iterator[tuple[Quorum, Quorum]]:
    """A quorum of each kind; both are paused."""
    with ExitStack() as stack:
        quorums: list[Quorum] = []
        for kind in (Quorum, TlsQuorum):
            quorum = stack.enter_context(
                running_quorum(
                    folder,
                    PAUSED_FOR_LONG,
                    command=chosen.command,
                    environ=chosen.environ,
                    kind=kind,
                )
            )
            leader_of(quorum)
            stack.enter_context(paused(quorum))
            quorums.append(quorum)
        plain, secure = quorums
        yield plain, secure


def node_us(samples: list[Mapping[str, Any]]) -> float:
    """Processor time of all nodes for one request, in microseconds: the median."""
    return statistics.median(
        1e6 * float(each["cores_servers"]) / float(each["requests_per_s"]) for each in samples
    )


def line_of(cell: Cell, goal: float, pairs: list[Pair]) -> str:
    secure, plain = ([getattr(pair, name) for pair in pairs] for name in ("now", "before"))
    used, used_plain = node_us(secure), node_us(plain)
    ratio = Spread.of([pair.ratio for pair in pairs]).median
    return (
        f"{cell.title:24} {verdict(pairs)}; goal {goal:.2f}: {'met' if ratio >= goal else 'MISSED'}"
        f"   nodes: {used:,.0f} against {used_plain:,.0f} us a request, x {used_plain / used:.2f}"
    )


def main() -> int:
    """Command line. Returns 1 if a goal is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=15, help="per cell (15)")
    parser.add_argument("--seconds", type=float, default=1.0, help="per sample (1)")
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument(
        "--build", default="", help="a commit, folder or Python; default: this tree"
    )
    parser.add_argument("--folder", type=Path, help="where the nodes keep their data while it runs")
    parser.add_argument("--json", type=Path, help="file for all figures")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with build(args.build) as chosen, plain_and_secure(chosen, args.folder) as (plain, secure):
        for quorum in (plain, secure):
            sample(quorum, clients=64, warmup=0, seconds=2)
        for cell, goal in GOALS.items():
            options = {**cell._asdict(), "value_bytes": args.value_bytes}
            options |= {"seconds": args.seconds, "warmup": 0.3}
            pairs = list(measure_pairs([secure, plain], args.pairs, **options))
            print(line_of(cell, goal, pairs), flush=True)
            is_met = Spread.of([pair.ratio for pair in pairs]).median >= goal
            rows.append({"cell": cell.title, "goal": goal, "is_met": is_met})
            rows[-1]["pairs"] = [pair._asdict() for pair in pairs]
    write_json(args.json, rows)
    return 0 if all(row["is_met"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
