"""Latencies at half of the highest rate, while something else goes on: `python -m bench.run_tails`.

First 256 clients in closed loop show the highest rate. Then requests are due at half of it, whether earlier
ones are answered or not, and each latency counts from when the request was due. Meanwhile: nothing; a
snapshot is built; a voter catches up; the disk of a follower or of the leader is slow; segments roll.
"""

from __future__ import annotations

import argparse
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.builds import build
from bench.common import (
    Quorum,
    compiled,
    generate,
    leader_of,
    running_quorum,
    write_json,
)
from bench.filling import fill

CLIENTS = 256
WARM_UP_S = 1.0
"""No longer than what is measured after it."""
SNAPSHOTS_ON_REQUEST = {"snapshot.max.new.record.bytes": 1 << 40}
SMALL_SEGMENTS = {"log.segment.bytes": 1 << 20}
SLOW_SYNC_S = 0.02
COLUMNS = ("p50_ms", "p99_ms", "p999_ms", "max_ms")


class Tails:
    """One quorum under a steady load, and what is done to it meanwhile."""

    def __init__(self, quorum: Quorum, syncs: Path, args: argparse.Namespace) -> None:
        self._quorum = quorum
        self._syncs = syncs
        self._args = args
        self._warm_up_s = min(WARM_UP_S, args.seconds)
        self._rate: float = args.rate
        self.rows: list[dict[str, Any]] = []

    def find_rate(self) -> None:
        """Half of the highest rate, unless one was asked for."""
        if not self._rate:
            self._rate = max(1.0, self._load(clients=CLIENTS)["requests_per_s"] / 2)
        print(f"{self._rate:,.0f} records/s are due", flush=True)

    def measure(self, name: str, during: Callable[[], None] = lambda: None) -> None:
        """Latencies while `during` runs; it begins with the measured time."""
        with ThreadPoolExecutor(1) as pool:
            load = pool.submit(self._load, clients=CLIENTS, rate=self._rate)
            # Here, and not in the thread: nodes that a thread has started end with it.
            time.sleep(self._warm_up_s)
            during()
            row = load.result()
        self.rows.append({"during": name, **row})
        print(line_of(self.rows[-1]), flush=True)

    def build_snapshot(self) -> None:
        """On the leader; ends when it is built."""
        port = self._quorum.ports[leader_of(self._quorum)]
        command = [str(Path(sys.executable).with_name("quorumctl")), "snapshot", "--timeout", "600"]
        done = subprocess.run(
            [*command, "-b", f"127.0.0.1:{port}"], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"quorumctl snapshot failed: {done.stdout}{done.stderr}")

    def follower(self) -> int:
        """The index of one."""
        return (leader_of(self._quorum) + 1) % len(self._quorum.ports)

    def stay_behind(self, index: int) -> None:
        """A follower misses some seconds of load."""
        self._quorum.signal(index, signal.SIGTERM)
        self._load(clients=CLIENTS, rate=self._rate)

    def start(self, index: int) -> None:
        """Starts a node that was stopped."""
        self._quorum.spawn(index)

    def sync_slowly(self, index: int, seconds: float = SLOW_SYNC_S) -> None:
        """Every sync of this node takes so much longer."""
        (self._syncs / str(self._quorum.pid(index))).write_bytes(
            struct.pack("=q", int(seconds * 1e9))
        )

    def _load(self, **options: object) -> dict[str, Any]:
        port = self._quorum.ports[leader_of(self._quorum)]
        options |= {"value_bytes": self._args.value_bytes, "seconds": self._args.seconds}
        return generate(self._quorum, [port], warmup=self._warm_up_s, **options)


def line_of(row: dict[str, Any]) -> str:
    """The figures of one load."""
    times = "".join(f"{row[key]:9.2f}" for key in COLUMNS)
    return (
        f"{row['during']:28}{row['records_per_s']:9,.0f}{times}  other"
        f" {row['cores_other']:.2f}  errors {row['errors']}  late {row['unanswered']}"
    )


def run(args: argparse.Namespace) -> list[dict[str, Any]]:
    """All loads; the last one on a quorum with small segments."""
    library = compiled("slow_sync.c", "slow_sync.so", "-shared", "-fPIC")
    with build(args.build) as chosen, tempfile.TemporaryDirectory() as name:
        environ = {**chosen.environ, "LD_PRELOAD": str(library), "SLOW_SYNC": name}
        print(f"{'during':28}{'records/s':>9}" + "".join(f"{key[:-3]:>9}" for key in COLUMNS), "ms")
        with running_quorum(
            args.folder, SNAPSHOTS_ON_REQUEST, command=chosen.command, environ=environ
        ) as quorum:
            tails = Tails(quorum, Path(name), args)
            port = quorum.ports[leader_of(quorum)]
            fill(port, args.records, keys=args.records, value_bytes=args.value_bytes)
            tails.find_rate()
            tails.measure("nothing else")
            tails.measure("a snapshot is built", tails.build_snapshot)
            index = tails.follower()
            tails.stay_behind(index)
            tails.measure("a voter catches up", lambda: tails.start(index))
            quorum.wait_ready()
            for role, index in (("follower", tails.follower()), ("leader", leader_of(quorum))):
                tails.sync_slowly(index)
                tails.measure(f"the {role}'s disk is slow")
                tails.sync_slowly(index, 0)
            rows = tails.rows
            args.rate = tails.rows[0]["rate"]
        with running_quorum(
            args.folder, SMALL_SEGMENTS, command=chosen.command, environ=environ
        ) as quorum:
            tails = Tails(quorum, Path(name), args)
            tails.measure("segments of 1 MiB roll")
        return [*rows, *tails.rows]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10, help="per measurement")
    parser.add_argument("--rate", type=float, default=0, help="default: half of the highest")
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--records", type=int, default=500_000, help="in the snapshot")
    parser.add_argument("--build", metavar="WHERE", default="", help="as in run_throughput --now")
    parser.add_argument("--folder", type=Path, help="where the nodes keep their data while it runs")
    parser.add_argument("--json", type=Path, help="file for all figures")
    args = parser.parse_args()
    write_json(args.json, run(args))


if __name__ == "__main__":
    main()
