"""Conditional writes beside etcd and ZooKeeper: `python -m bench.run_beside --etcd DIR --zookeeper DIR`.

Compare-and-set in closed loop, three nodes each: with a key for each client, and with one that all of them
write. The same generator (casgen.c) asks all of them. Samples are short and take turns; the ratio of two that
follow each other counts. Clusters that are not measured are paused. Needs an idle machine.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bench.builds import build
from bench.common import compiled, leader_of, running_quorum, write_json
from bench.pairs import PAUSED_FOR_LONG, QUIET_CORES, Spread, awake, in_turn, paused
from bench.peers import (
    Peer,
    etcd_cluster,
    etcd_missing,
    quorum_peer,
    zookeeper_cluster,
    zookeeper_missing,
)

NGHTTP2 = Path("/usr/include/nghttp2/nghttp2.h")
WARMUP_S = 0.5
RUN_LIMIT_S = 60
RUNS_MAX = 5

Sample = Mapping[str, Any]


class Cell(NamedTuple):
    """A load: so many clients, all on one key or each on its own."""

    clients: int
    one_key: bool

    def __str__(self) -> str:
        keys = "one key" if self.one_key else "own keys"
        return f"{keys}, {self.clients} client{'s' if self.clients > 1 else ''}"


def clusters(stack: ExitStack, options: argparse.Namespace) -> Iterator[Peer]:
    """Quorums first; what is missing is left out, and a line says how to get it."""
    for where in options.build or [""]:
        made = stack.enter_context(build(where))
        quorum = stack.enter_context(
            running_quorum(
                options.folder, PAUSED_FOR_LONG, command=made.command, environ=made.environ
            )
        )
        yield quorum_peer(f"quorumd ({made.form}, {made.name})", quorum)
    etcd = shutil.which("etcd", path=options.etcd)
    if missing := etcd_missing(etcd) or _nghttp2_missing():
        print(f"etcd: not measured, {missing}", flush=True)
    elif etcd:
        yield stack.enter_context(etcd_cluster(etcd, options.folder))
    if missing := zookeeper_missing(options.zookeeper):
        print(f"ZooKeeper: not measured, {missing}", flush=True)
    else:
        yield stack.enter_context(zookeeper_cluster(options.zookeeper, options.folder))


def sample(peer: Peer, cell: Cell, seconds: float, rate: float = 0) -> Sample:
    """One run of the generator at the leader, in open loop if there is a rate. Raises RuntimeError if it
    fails time after time: the leader may change on a machine that is busy."""
    program = generator(with_etcd=peer.protocol == "etcd")
    for _ in range(RUNS_MAX):
        with awake(peer):
            command = [str(program), "--protocol", peer.protocol]
            command += ["--port", str(peer.ports[leader_of(peer)])]
            command += ["--pids", ",".join(map(str, peer.pids)), "--clients", str(cell.clients)]
            command += ["--seconds", str(seconds), "--warmup", str(min(WARMUP_S, seconds))]
            command += ["--one-key"] if cell.one_key else []
            command += ["--rate", str(rate)] if rate else []
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=RUN_LIMIT_S, check=False
            )
        if done.returncode == 0:
            made: Sample = json.loads(done.stdout)
            if made["records_per_s"] > 0:
                return made
    raise RuntimeError(f"{peer.name}: no write in {RUNS_MAX} runs: {done.stderr.strip()}")


def generator(*, with_etcd: bool) -> Path:
    """The load generator; only etcd's protocol needs a library."""
    if with_etcd:
        return compiled("casgen.c", "casgen-etcd", "-DWITH_ETCD", "-Wl,--no-as-needed", "-lnghttp2")
    return compiled("casgen.c", "casgen")


@contextmanager
def paused_clusters(options: argparse.Namespace) -> Iterator[list[Peer]]:
    """All that are there, each with a leader and paused."""
    with ExitStack() as stack:
        peers = []
        for peer in clusters(stack, options):
            peers.append(peer)
            leader_of(peer)
            stack.enter_context(paused(peer))
        yield peers


def measure(
    peers: Sequence[Peer], cells: Sequence[Cell], rounds: int, seconds: float
) -> dict[Cell, dict[str, list[Sample]]]:
    """The samples of each cell by the cluster's name. Who is first changes from round to round."""
    found: dict[Cell, dict[str, list[Sample]]] = {
        cell: {peer.name: [] for peer in peers} for cell in cells
    }
    for number in range(rounds):
        for cell in cells:
            for peer in in_turn(peers, number):
                found[cell][peer.name].append(sample(peer, cell, seconds))
    return found


def lines(cell: Cell, samples: Mapping[str, Sequence[Sample]], first_rival: int) -> Iterator[str]:
    """The rates of one cell; and of each quorum beside each of the others, its share of their rate."""
    names = list(samples)
    for name in names:
        low, median, high = Spread.of([each["records_per_s"] for each in samples[name]])
        refused = statistics.median(each["refused_per_s"] for each in samples[name])
        tries = f", {refused / median:.1f} refusals for each" if cell.one_key and median else ""
        yield f"{cell}: {name} {median:,.0f} writes/s ({low:,.0f} to {high:,.0f}){tries}"
    for name in names[:first_rival]:
        for rival in names[first_rival:]:
            pairs = list(zip(samples[name], samples[rival], strict=True))
            low, median, high = Spread.of(
                [own["records_per_s"] / other["records_per_s"] for own, other in pairs]
            )
            noise = statistics.median(max(map(_other_cores, pair)) for pair in pairs)
            noisy = ", on a machine that is not quiet" if noise > QUIET_CORES else ""
            yield (
                f"{cell}: {name} / {rival} x {median:.2f} ({low:.2f} to {high:.2f},"
                f" {len(pairs)} pairs){noisy}"
            )


def _other_cores(made: Sample) -> float:
    return float(made["cores_other"]) + float(made["cores_stolen"])


def _nghttp2_missing() -> str:
    return "" if NGHTTP2.exists() else "its protocol needs apt-get install libnghttp2-dev"


def add_cluster_options(parser: argparse.ArgumentParser) -> None:
    """Options that choose the clusters, and the file to keep."""
    parser.add_argument(
        "--build", action="append", help="a commit, folder or Python; default: this tree"
    )
    parser.add_argument("--etcd", help="folder with etcd, if it is not on the path")
    parser.add_argument("--zookeeper", type=Path, help="folder with ZooKeeper's jars")
    parser.add_argument("--folder", type=Path, help="where the nodes' data lie")
    parser.add_argument("--json", type=Path, help="keep every figure")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=10, help="samples of each cluster in a cell")
    parser.add_argument("--seconds", type=float, default=1.5, help="of a sample")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16, 64])
    add_cluster_options(parser)
    options = parser.parse_args()
    cells = [Cell(count, one_key) for one_key in (False, True) for count in options.clients]
    with paused_clusters(options) as peers:
        found = measure(peers, cells, options.pairs, options.seconds)
    first_rival = sum(peer.protocol == "quorumd" for peer in peers)
    for cell, samples in found.items():
        print("\n".join(lines(cell, samples, first_rival)), flush=True)
    write_json(options.json, {str(cell): samples for cell, samples in found.items()})


if __name__ == "__main__":
    main()
