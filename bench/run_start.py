"""Measures the start of a node: `python -m bench.run_start`.

A single voter has ten million small records of a million keys in its log: all of them; or a snapshot, and
only what retention leaves of the log; or nothing at all. The clock runs from the start of the process
until /readyz answers 200. Files are in the page cache, except for the last segment, which a start reads
from the disk.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench.common import Quorum, resident_mb, running_quorum, write_json
from bench.filling import fill

READY_TIMEOUT_S = 600.0
CLEANED_TIMEOUT_S = 60.0
NEVER = {"snapshot.max.new.record.bytes": 1 << 40}
CLEANED = {**NEVER, "retention.bytes": 0}


def seconds_to_ready(quorum: Quorum) -> float:
    """Stops the node in order, starts it again, and waits until it is ready."""
    quorum.signal(0, signal.SIGTERM)
    begun = time.monotonic()
    quorum.spawn(0)
    quorum.wait_ready(READY_TIMEOUT_S)
    return time.monotonic() - begun


def take_snapshot(quorum: Quorum) -> None:
    """Has the node take one, and waits until the log behind it is deleted."""
    command = [str(Path(sys.executable).with_name("quorumctl")), "snapshot", "--timeout", "600"]
    command += ["-b", f"127.0.0.1:{quorum.ports[0]}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + CLEANED_TIMEOUT_S
    while not quorum.status(0)["log_start_offset"]:
        if time.monotonic() > deadline:
            raise SystemExit("no history was deleted: is there more than one segment?")
        time.sleep(0.1)


def measure(
    name: str, folder: Path | None, records: int, *, starts: int, **kind: int
) -> dict[str, Any]:
    """Starts of a node with so many records of a kind; `name` says what is left of them."""
    settings = CLEANED if name == "snapshot" else NEVER
    with running_quorum(folder, settings, size=1) as quorum:
        count = fill(quorum.ports[0], records, **kind) if records else 0
        if name == "snapshot":
            take_snapshot(quorum)
        seconds = [round(seconds_to_ready(quorum), 3) for _ in range(starts)]
        where = quorum.log_folder(0)
        return {
            "name": name,
            "records": count,
            "log_bytes": sum(path.stat().st_size for path in where.glob("*.log")),
            "snapshot_bytes": sum(path.stat().st_size for path in where.glob("*.checkpoint")),
            "start_s": seconds,
            "resident_mb": resident_mb(quorum.pids)[0],
        }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--value-bytes", type=int, default=10)
    parser.add_argument("--batch-records", type=int, default=100, help="records in each batch")
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the node keeps its data while it runs")
    parser.add_argument("--json", type=Path, help="file for all figures")
    args = parser.parse_args()
    print(f"{'':12}{'records':>12}{'log MB':>9}{'snapshot MB':>13}{'start s':>9}{'MB':>6}")
    rows = []
    for name, records in (("nothing", 0), ("snapshot", args.records), ("full log", args.records)):
        row = measure(
            name,
            args.folder,
            records,
            starts=args.starts,
            keys=args.keys,
            value_bytes=args.value_bytes,
            batch_records=args.batch_records,
        )
        rows.append(row)
        listed = " ".join(f"{seconds:.2f}" for seconds in row["start_s"])
        print(
            f"{name:12}{row['records']:12,}{row['log_bytes'] / 1e6:9.1f}"
            f"{row['snapshot_bytes'] / 1e6:13.1f}{statistics.median(row['start_s']):9.2f}"
            f"{row['resident_mb']:6.0f}   ({listed})",
            flush=True,
        )
    write_json(args.json, rows)


if __name__ == "__main__":
    main()
