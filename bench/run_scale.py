"""Measures a quorum with more of something: `python -m bench.run_scale`.

Throughput and p99 of 256 clients in closed loop with 100 observers, 1,000 tailing consumers, 10,000 idle
connections, a follower that is far behind, 5 and 7 voters, a large log; beside the same quorum without. Of
connections and of fetches that wait the leader's memory, too. Readers are not daemons but the least that
can read (tailgen.c), so that this machine's processors serve the quorum.
"""

from __future__ import annotations

import argparse
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

from bench.builds import Build, build
from bench.common import Quorum, generate, leader_of, resident_mb, running_quorum, write_json
from bench.filling import Client, fill
from bench.readers import readers

CLIENTS = 256
SETTINGS = {
    "max.connections": 20_000,
    "connections.max.idle.ms": 3_600_000,
    "snapshot.max.new.record.bytes": 1 << 40,
}
SETTLE_S = 1.0
REST_PER_S = 1_000_000
"""Records for whose writing a disk rests a second, so that it is as quick as before."""
LONG_WAIT_MS = 60_000
KEYS = 100_000
VALUE_BYTES = 100
CATCH_UP_S = 1800.0


class Scale:
    """One build, and what was measured."""

    def __init__(self, build: Build, args: argparse.Namespace, folder: Path) -> None:
        self._build = build
        self._args = args
        self._folder = folder
        self.rows: list[dict[str, Any]] = []

    def observers(self) -> None:
        with self._quorum() as quorum:
            self._readers(quorum, "observers", self._args.observers)

    def consumers(self) -> None:
        with self._quorum() as quorum:
            # First: a load leaves free memory, which they would take.
            self._waiting_fetches(quorum)
            self._readers(quorum, "tailing consumers", self._args.consumers)

    def connections(self) -> None:
        """Idle ones, each of which has asked something and still can; the memory of each."""
        count = self._args.connections
        with self._quorum() as quorum, ExitStack() as opened:
            leader = leader_of(quorum)
            before = self._load(quorum)
            megabytes = resident_mb([quorum.pid(leader)])[0]
            clients: list[Client] = []
            for _ in range(count):
                clients.append(opened.enter_context(Client(quorum.ports[leader])))
                clients[-1].ping()  # before it has asked something, a connection may be displaced
            time.sleep(SETTLE_S)
            each = (resident_mb([quorum.pid(leader)])[0] - megabytes) * 1e6 / count
            during = self._load(quorum)
            for client in clients:
                client.ping()
            opened.close()
            time.sleep(SETTLE_S)
            name = f"{count:,} idle connections"
            self._note(name, during, [before, self._load(quorum)], bytes_each=round(each))

    def voters(self) -> None:
        """Five and seven, beside three."""
        with self._quorum() as quorum:
            before = [self._load(quorum), self._load(quorum)]
        for size in (5, 7):
            with self._quorum(size) as quorum:
                self._load(quorum)
                self._note(f"{size} voters", self._load(quorum), before)

    def follower_behind(self) -> None:
        """A follower that was down while so many records came, and catches up under load."""
        records = self._args.missed_records
        with self._quorum() as quorum:
            leader = leader_of(quorum)
            follower = (leader + 1) % len(quorum.ports)
            before = self._load(quorum)
            quorum.signal(follower, signal.SIGTERM)
            fill(quorum.ports[leader], records, keys=KEYS, value_bytes=VALUE_BYTES)
            two = self._load(quorum)
            quorum.spawn(follower)
            begun = time.monotonic()
            during = self._load(quorum)
            quorum.wait_ready(CATCH_UP_S)
            seconds = round(time.monotonic() - begun, 1)
            name = f"a voter {records:,} records behind"
            self._note(name, during, [before, self._load(quorum)], seconds=seconds)
            self._note("two of three voters", two, [before])

    def large_log(self) -> None:
        """So many records lie before those that come."""
        records = self._args.log_records
        with self._quorum() as quorum:
            before = self._load(quorum)
            port = quorum.ports[leader_of(quorum)]
            fill(port, records, keys=KEYS, value_bytes=VALUE_BYTES)
            time.sleep(SETTLE_S + records / REST_PER_S)
            self._note(f"a log of {records:,} records", self._load(quorum), [before])

    def _readers(self, quorum: Quorum, what: str, count: int) -> None:
        before = self._load(quorum)
        with readers(quorum, count, self._folder, are_observers=what == "observers") as found:
            during = self._load(quorum)
        time.sleep(SETTLE_S)
        self._note(f"{count:,} {what}", during, [before, self._load(quorum)])
        self.rows[-1]["readers"] = found.result

    def _waiting_fetches(self, quorum: Quorum) -> None:
        """The leader's memory for connections with a fetch that waits, without load."""
        count, pid = self._args.consumers, quorum.pid(leader_of(quorum))
        before = resident_mb([pid])[0]
        with readers(quorum, count, self._folder, are_observers=False, max_wait_ms=LONG_WAIT_MS):
            time.sleep(SETTLE_S)
            each = round((resident_mb([pid])[0] - before) * 1e6 / count)
        self.rows.append({"with": f"{count:,} waiting fetches", "bytes_each": each})
        print(f"{count:,} waiting fetches: {each:,} bytes each, with their connections", flush=True)

    def _quorum(self, size: int = 3) -> AbstractContextManager[Quorum]:
        return running_quorum(
            self._args.folder, SETTINGS, size, self._build.command, self._build.environ
        )

    def _load(self, quorum: Quorum) -> dict[str, Any]:
        port = quorum.ports[leader_of(quorum)]
        seconds = self._args.seconds
        return generate(quorum, [port], clients=CLIENTS, warmup=min(1, seconds), seconds=seconds)

    def _note(
        self, name: str, during: dict[str, Any], without: list[dict[str, Any]], **more: object
    ) -> None:
        rates = [float(row["records_per_s"]) for row in without]
        p99s = [float(row["p99_ms"]) for row in without]
        rate, p99 = sum(rates) / len(rates), sum(p99s) / len(p99s)
        share = f"{during['records_per_s'] / rate:.2f}" if rate else "-"
        extra = "".join(f"  {key.replace('_', ' ')} {value:,}" for key, value in more.items())
        print(
            f"{name:32}{during['records_per_s']:9,.0f} records/s ({share} of {rate:,.0f})"
            f"  p99 {during['p99_ms']:.1f} ms ({p99:.1f})"
            f"  errors {during['errors']}  other {during['cores_other']:.2f}{extra}",
            flush=True,
        )
        self.rows.append({"with": name, "during": during, "without": without, **more})


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5, help="per measurement")
    parser.add_argument("--observers", type=int, default=100)
    parser.add_argument("--consumers", type=int, default=1000)
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--missed-records", type=int, default=10_000_000, help="of a follower")
    parser.add_argument("--log-records", type=int, default=10_000_000, help="in the large log")
    parser.add_argument("--build", metavar="WHERE", default="", help="as in run_throughput --now")
    parser.add_argument("--folder", type=Path, help="where the nodes keep their data while it runs")
    parser.add_argument("--json", type=Path, help="file for all figures")
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="CELL",
        help="observers, consumers, connections, voters, behind, log",
    )
    args = parser.parse_args()
    with build(args.build) as chosen, tempfile.TemporaryDirectory() as folder:
        scale = Scale(chosen, args, Path(folder))
        cells: Mapping[str, Callable[[], None]] = {
            "observers": scale.observers,
            "consumers": scale.consumers,
            "connections": scale.connections,
            "voters": scale.voters,
            "behind": scale.follower_behind,
            "log": scale.large_log,
        }
        for name in args.only or cells:
            if name not in cells:
                raise SystemExit(f"no such cell: {name} (there are {', '.join(cells)})")
            cells[name]()
    write_json(args.json, scale.rows)


if __name__ == "__main__":
    main()
