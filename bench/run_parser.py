"""Measures the conversion of a log to Arrow tables: `python -m bench.run_parser`.

One core, no Spark, the log in memory; each record has a key of 20 bytes and a value of 100, both random.
Beside quorumd.pipeline.parse, all in the same run: aiokafka's decoder, its records as tuples, or put into
the same table by pyarrow; and pyarrow alone, which reads the same rows from Parquet in memory. The CRC of
every batch is checked, but Parquet has none. The best of several rounds counts; on a busy
machine its time on the processor says more than the one on the clock.
"""

from __future__ import annotations

import argparse
import io
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from aiokafka.record.memory_records import MemoryRecords

from bench.common import write_json
from quorumd.pipeline.parse import ChunkOrigin, parse
from quorumd.pipeline.schemas import RECORDS
from quorumd.wire.metadata_topic import TOPIC
from quorumd.wire.records import Record, build_batch

KEY_BYTES = 20
VALUE_BYTES = 100
CHUNK_BYTES = 8 << 20
START_MS = 1_700_000_000_000
_ORIGIN = ChunkOrigin(1, "AAAAAAAAAAAAAAAAAAAAAA", "00000000000000000000.log", 0)


class Best(NamedTuple):
    """Seconds of the best round."""

    wall: float
    cpu: float


def make_chunk(batch_records: int, codec: int) -> tuple[bytes, int]:
    """About CHUNK_BYTES of a log, unpacked, and how many records it has."""
    random = Random(batch_records)
    per_record = KEY_BYTES + VALUE_BYTES + 11 + 61 // batch_records
    count = max(1, CHUNK_BYTES // (per_record * batch_records))
    parts = []
    for number in range(count):
        base = number * batch_records
        records = [
            Record(
                timestamp=START_MS + base + i,
                key=random.randbytes(KEY_BYTES),
                value=random.randbytes(VALUE_BYTES // 2).hex().encode(),
            )
            for i in range(batch_records)
        ]
        parts.append(build_batch(records, base_offset=base, epoch=1, codec=codec))
    return b"".join(parts), count * batch_records


def by_parser(chunk: bytes, table: str = "records") -> int:
    """Rows of a table."""
    return sum(part.num_rows for part in parse(table, chunk, 0, 1 << 62, _ORIGIN))


def aiokafka_batches(chunk: bytes) -> list[Any]:
    """Every batch, its CRC checked and its records not yet looked at."""
    found = []
    records = MemoryRecords(chunk)
    while records.has_next():
        batch = records.next_batch()
        if not batch.validate_crc():
            raise SystemExit("a CRC is wrong")
        found.append(batch)
    return found


def aiokafka_tuples(chunk: bytes) -> list[tuple[Any, ...]]:
    """The records of a chunk: key, value, offset, timestamp."""
    return [
        (each.key, each.value, each.offset, each.timestamp)
        for batch in aiokafka_batches(chunk)
        for each in batch
    ]


def by_aiokafka_and_pyarrow(chunk: bytes) -> int:
    """The same table as `by_parser`."""
    rows = aiokafka_tuples(chunk)
    keys, values, offsets, times = zip(*rows, strict=True)
    count = len(rows)
    columns = {
        "key": pa.array(keys, pa.binary()),
        "value": pa.array(values, pa.binary()),
        "topic": pa.repeat(TOPIC, count),
        "offset": pa.array(offsets, pa.int64()),
        "timestamp": pa.array(times, pa.timestamp("ms", "UTC")).cast(
            RECORDS.field("timestamp").type
        ),
    }
    arrays = [
        columns.get(field.name, pa.nulls(count, field.type)).cast(field.type) for field in RECORDS
    ]
    return int(pa.RecordBatch.from_arrays(arrays, schema=RECORDS).num_rows)


def to_parquet(chunk: bytes, compression: str) -> bytes:
    """The rows as a Parquet file."""
    table = pa.Table.from_batches(parse("records", chunk, 0, 1 << 62, _ORIGIN))
    out = io.BytesIO()
    pq.write_table(table, out, compression=compression)
    return out.getvalue()


def by_pyarrow(data: bytes) -> int:
    """All rows of a Parquet file, on one core."""
    return int(pq.read_table(pa.BufferReader(data), use_threads=False).num_rows)


def best_of(rounds: int, run: Callable[[], int], rows: int) -> Best:
    """The best round, each of which has to find so many rows."""
    walls, cpus = [], []
    for _ in range(rounds):
        wall, cpu = time.perf_counter(), time.process_time()
        found = run()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
        if found != rows:
            raise SystemExit(f"{found} rows instead of {rows}")
    return Best(min(walls), min(cpus))


def measure(batch_records: int, codec: int, rounds: int) -> list[dict[str, Any]]:
    """Every way to read one chunk."""
    chunk, rows = make_chunk(batch_records, codec)
    plain, packed = to_parquet(chunk, "none"), to_parquet(chunk, "zstd")
    batches = rows // batch_records
    runs: list[tuple[str, int, Callable[[], int]]] = [
        ("parse, records", rows, lambda: by_parser(chunk)),
        ("parse, batches", batches, lambda: by_parser(chunk, "batches")),
        ("aiokafka, tuples", rows, lambda: len(aiokafka_tuples(chunk))),
        ("aiokafka, table", rows, lambda: by_aiokafka_and_pyarrow(chunk)),
        ("pyarrow, Parquet", rows, lambda: by_pyarrow(plain)),
        ("pyarrow, Parquet zstd", rows, lambda: by_pyarrow(packed)),
    ]
    found = []
    for name, expected, run in runs:
        best = best_of(rounds, run, expected)
        found.append(
            {
                "name": name,
                "batch_records": batch_records,
                "codec": codec,
                "records": rows,
                "chunk_bytes": len(chunk),
                "wall_s": best.wall,
                "cpu_s": best.cpu,
                "records_per_cpu_s": rows / best.cpu,
            }
        )
    return found


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-records", type=int, nargs="+", default=[500, 100, 10, 1, 10_000])
    parser.add_argument(
        "--codec", type=int, default=0, help="0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd"
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="file for all figures")
    args = parser.parse_args()
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    rows = []
    for batch_records in args.batch_records:
        some = measure(batch_records, args.codec, args.rounds)
        rows += some
        print(f"{batch_records} records a batch, {some[0]['chunk_bytes'] / 1e6:.1f} MB")
        print(
            f"  {'':24}{'M records/s':>12}{'on the clock':>14}{'MB/s':>8}{'x of aiokafka, table':>22}"
        )
        table = next(row for row in some if row["name"] == "aiokafka, table")
        for row in some:
            print(
                f"  {row['name']:24}{row['records'] / row['cpu_s'] / 1e6:12.2f}"
                f"{row['records'] / row['wall_s'] / 1e6:14.2f}"
                f"{row['chunk_bytes'] / row['cpu_s'] / 1e6:8.0f}"
                f"{table['cpu_s'] / row['cpu_s']:22.1f}",
                flush=True,
            )
    write_json(args.json, rows)


if __name__ == "__main__":
    main()
