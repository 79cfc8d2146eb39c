"""Measures the pauses of a node while it builds a snapshot: `python -m bench.run_snapshot_pause`.

A single voter gets a million keys with values of 100 bytes. A client sends it an ApiVersions request every
millisecond and waits for the answer: before, while `quorumctl snapshot` runs, and after.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.common import running_quorum, write_json
from bench.filling import Client, fill

INTERVAL_NS = 1_000_000
SETTLE_S = 2.0
NEVER = {"snapshot.max.new.record.bytes": 1 << 40}


class RoundTrip(NamedTuple):
    """One request, in nanoseconds: how long it took, and when it was sent."""

    taken: int
    at: int


def round_trips(client: Client, goes_on: Callable[[], bool]) -> list[RoundTrip]:
    """The next request is sent a millisecond after the last one, or as soon as it is answered."""
    found = []
    first = time.perf_counter_ns()
    while goes_on():
        begun = time.perf_counter_ns()
        client.ping()
        taken = time.perf_counter_ns() - begun
        found.append(RoundTrip(taken, begun - first))
        if taken < INTERVAL_NS:
            time.sleep((INTERVAL_NS - taken) / 1e9)
    return found


def for_seconds(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() < end


def summary(name: str, found: Sequence[RoundTrip]) -> dict[str, Any]:
    """Figures in ms, and when in the phase the worst was, in s."""
    ordered = sorted(found)
    count = len(ordered)

    def at(share: float) -> float:
        return round(ordered[min(count - 1, int(share * count))].taken / 1e6, 3)

    return {
        "phase": name,
        "requests": count,
        "p50_ms": at(0.5),
        "p99_ms": at(0.99),
        "p999_ms": at(0.999),
        "worst_ms": at(1.0),
        "worst_at_s": round(ordered[-1].at / 1e9, 2),
        "above_10_ms": sum(each.taken > 10e6 for each in ordered),
        "above_50_ms": sum(each.taken > 50e6 for each in ordered),
    }


def measure(folder: Path | None, records: int, value_bytes: int, quiet_s: float) -> dict[str, Any]:
    """Fills a node, and has it build a snapshot."""
    with running_quorum(folder, NEVER, size=1) as quorum:
        port = quorum.ports[0]
        begun = time.monotonic()
        count = fill(port, records, keys=records, value_bytes=value_bytes)
        print(f"{count:,} records in {time.monotonic() - begun:.1f} s", flush=True)
        time.sleep(SETTLE_S)
        with Client(port) as client:
            round_trips(client, for_seconds(1))
            before = round_trips(client, for_seconds(quiet_s))
            command = [str(Path(sys.executable).with_name("quorumctl")), "snapshot"]
            command += ["-b", f"127.0.0.1:{port}", "--timeout", "600", "--output", "json"]
            begun = time.monotonic()
            with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
                during = round_trips(client, lambda: process.poll() is None)
                taken_s = time.monotonic() - begun
                output = process.communicate()[0].decode()
            if process.returncode:
                raise SystemExit(f"quorumctl snapshot failed: {output}")
            after = round_trips(client, for_seconds(quiet_s / 2))
        sizes = [path.stat().st_size for path in quorum.log_folder(0).glob("*.checkpoint")]
    return {
        "records": count,
        "snapshot_bytes": sum(sizes),
        "build_s": round(taken_s, 2),
        "phases": [
            summary("before", before),
            summary("building", during),
            summary("after", after),
        ],
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000, help="each with a key of its own")
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--quiet-seconds", type=float, default=10, help="of the phase before")
    parser.add_argument("--folder", type=Path, help="where the node keeps its data while it runs")
    parser.add_argument("--json", type=Path, help="file for all figures")
    args = parser.parse_args()
    figures = measure(args.folder, args.records, args.value_bytes, args.quiet_seconds)
    print(f"snapshot of {figures['snapshot_bytes'] / 1e6:.0f} MB in {figures['build_s']:.1f} s")
    print(f"{'round trip, ms':16}{'requests':>9}{'p50':>8}{'p99':>8}{'p99.9':>8}{'worst':>8}")
    for row in figures["phases"]:
        times = "".join(f"{row[key]:8.2f}" for key in ("p50_ms", "p99_ms", "p999_ms", "worst_ms"))
        print(
            f"{row['phase']:16}{row['requests']:9,}{times}"
            f"  after {row['worst_at_s']:.1f} s; above 10 ms: {row['above_10_ms']},"
            f" above 50 ms: {row['above_50_ms']}"
        )
    write_json(args.json, figures)


if __name__ == "__main__":
    main()
