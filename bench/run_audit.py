"""Measures the audit of replicas, and its speed by the number of cores: `python -m bench.run_audit`.

Three logs of the same records (500 a batch, a key of 20 bytes, a value of 100, random), in the page cache.
In one run, each the best of several rounds: headers alone on one core; the audit on one core and over
two processes; and with Spark on local[1] and local[2], the session started before. GB are 10^9 bytes, of
all replicas together. On a busy machine the time on the processor says more than the one on the clock; where
other processes work, it is only that of the one which hands out the work.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import NamedTuple

from bench.common import write_json
from quorumd.pipeline.audit import AuditReport, audit
from quorumd.pipeline.audit.processes import ProcessRunner
from quorumd.pipeline.audit_command import spark_runner
from quorumd.pipeline.files import find_replicas, plan_segment
from quorumd.storage.index import OffsetIndex
from quorumd.storage.layout import PARTITION_DIRECTORY, index_path, log_path
from quorumd.wire.records import Record, build_batch, stamp

REPLICAS = 3
BATCH_RECORDS = 500
SEGMENT_BYTES = 32 << 20
START_MS = 1_700_000_000_000


def make_replicas(folder: Path, megabytes: int) -> list[Path]:
    """Directories of so many MB each; as on a node, closed segments have an offset index."""
    random = Random(8)
    records = [
        Record(timestamp=START_MS + i, key=random.randbytes(20), value=random.randbytes(100))
        for i in range(BATCH_RECORDS)
    ]
    batch = build_batch(records)
    first = folder / "replica-1"
    log = first / PARTITION_DIRECTORY
    log.mkdir(parents=True)
    count = megabytes * 1_000_000 // len(batch)
    per_segment = SEGMENT_BYTES // len(batch)
    for begin in range(0, count, per_segment):
        base_offset = begin * BATCH_RECORDS
        index = OffsetIndex(base_offset)
        with log_path(log, base_offset).open("wb") as file:
            for number in range(begin, min(count, begin + per_segment)):
                first_offset = number * BATCH_RECORDS
                index.append(first_offset + BATCH_RECORDS - 1, file.tell())
                file.write(stamp(batch, first_offset, 1 + number * 10 // count))
        if begin + per_segment < count:
            index_path(log, base_offset).write_bytes(index.to_bytes())
    others = [folder / f"replica-{number}" for number in range(2, REPLICAS + 1)]
    for other in others:
        shutil.copytree(first, other)
    return [first, *others]


def headers_only(paths: list[Path]) -> None:
    """Every header of every replica, on one core."""
    for replica in find_replicas(paths):
        for segment in replica.segments:
            plan_segment(segment, by_index=False)


def checked(audited: AuditReport) -> None:
    """Nothing may be left out."""
    if not audited.is_sound:
        raise SystemExit(f"findings: {audited.findings[:3]}")


class Best(NamedTuple):
    """Seconds of the best round, on the clock and on this process's processor."""

    wall: float
    cpu: float


def best_of(rounds: int, run: Callable[[], object]) -> Best:
    """The best of several rounds."""
    walls, cpus = [], []
    for _ in range(rounds):
        wall, cpu = time.perf_counter(), time.process_time()
        run()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return Best(min(walls), min(cpus))


def measure(paths: list[Path], rounds: int, with_spark: bool) -> dict[str, Best]:
    """The best round, by name."""
    found = {
        "headers, 1 core": best_of(rounds, lambda: headers_only(paths)),
        "audit, 1 core": best_of(rounds, lambda: checked(audit(paths))),
    }
    with ProcessRunner(2, small_bytes=0) as processes:
        checked(audit(paths, run_tasks=processes))
        found["audit, 2 processes"] = best_of(
            rounds, lambda: checked(audit(paths, run_tasks=processes))
        )
    if with_spark:
        for cores in (1, 2):
            found[f"audit, Spark local[{cores}]"] = spark_seconds(paths, cores, rounds)
    return found


def spark_seconds(paths: list[Path], cores: int, rounds: int) -> Best:
    """With a session of its own, which has audited once before."""
    from quorumd.pipeline.session import build_session

    session = build_session("bench audit", master=f"local[{cores}]")
    try:
        run_tasks = spark_runner(session)
        checked(audit(paths, run_tasks=run_tasks))
        return best_of(rounds, lambda: checked(audit(paths, run_tasks=run_tasks)))
    finally:
        session.stop()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=300, help="of each replica")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-spark", action="store_true")
    parser.add_argument("--json", type=Path, help="file for all figures")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        paths = make_replicas(Path(scratch), args.megabytes)
        size = sum(file.stat().st_size for path in paths for file in path.rglob("*.log"))
        seconds = measure(paths, args.rounds, not args.no_spark)
    alone = seconds["audit, 1 core"].wall
    print(f"{REPLICAS} replicas, {size / 1e6:.0f} MB together")
    print(f"  {'':24}{'seconds':>9}{'GB/s':>8}{'x of 1 core':>13}{'CPU s':>9}{'GB/CPU s':>10}")
    for name, best in seconds.items():
        print(
            f"  {name:24}{best.wall:9.2f}{size / best.wall / 1e9:8.2f}{alone / best.wall:13.2f}"
            f"{best.cpu:9.2f}{size / best.cpu / 1e9:10.2f}"
        )
    write_json(
        args.json,
        {"size_bytes": size, "seconds": {name: best._asdict() for name, best in seconds.items()}},
    )


if __name__ == "__main__":
    main()
