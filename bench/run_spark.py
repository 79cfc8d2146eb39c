"""Measures Spark's reading of the log: `python -m bench.run_spark`.

A single voter has two million records in its log. They are read from its files without Spark on one core,
then by Spark on one core and on two: by a source that only hands out rows it has already (what Spark itself
costs), from the files, from the live node, and from the live node by Spark's own Kafka source. Nothing is
done with the rows. Files are in the page cache. Each is read several times: the first is cold, of the
others the fastest counts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from bench.common import Quorum, running_quorum, write_json
from bench.filling import fill
from quorumd.pipeline.files import FileRange, find_replicas, plan_segment, read_rows
from quorumd.pipeline.session import build_session
from quorumd.pipeline.source.columns import spark_schema
from quorumd.pipeline.source.live import OFFSETS_MAX
from tests.pipeline.spark_kafka_jars import spark_kafka_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

SEGMENT_BYTES = 32 << 20


class ReadySource(DataSource):
    """Hands out the rows of one range of a file again and again, read once in each task."""

    def __init__(self, options: dict[str, str]) -> None:
        self._options = options

    @classmethod
    def name(cls) -> str:
        return "ready"

    def schema(self) -> StructType:
        return spark_schema("records")

    def reader(self, schema: StructType) -> DataSourceReader:
        return ReadyReader(Path(self._options["path"]), int(self._options["records"]))


class ReadyReader(DataSourceReader):
    """One task for each four ranges, as the source for files has."""

    def __init__(self, folder: Path, records: int) -> None:
        self._range = ranges_of(folder)[0]
        self._count = records

    def partitions(self) -> list[InputPartition]:
        per_task = 4 * self._rows_in_range()
        tasks = max(1, self._count // per_task)
        return [InputPartition(self._count // tasks) for _ in range(tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        ready = list(read_rows("records", self._range, 0, 1 << 62))
        left = partition.value
        while left > 0:
            for rows in ready:
                yield rows.slice(0, left)
                left -= min(left, rows.num_rows)

    def _rows_in_range(self) -> int:
        return self._range.end_offset - self._range.start_offset


def ranges_of(folder: Path) -> list[FileRange]:
    """The ranges of all segments of a log."""
    (replica,) = find_replicas([folder])
    return [each for segment in replica.segments for each in plan_segment(segment).ranges]


def read_plainly(folder: Path) -> int:
    """All rows to Arrow, one after the other; how many there are."""
    return sum(
        rows.num_rows
        for each in ranges_of(folder)
        for rows in read_rows("records", each, 0, 1 << 62)
    )


def sources(quorum: Quorum, records: int) -> dict[str, tuple[str, dict[str, str], str | None]]:
    """Sources to read, by name: format, options, and the columns if not all."""
    server = f"127.0.0.1:{quorum.ports[0]}"
    folder = str(quorum.log_folder(0).parent)
    found = {
        "ready rows": ("ready", {"path": folder, "records": str(records)}, None),
        "files": ("quorumd", {"path": folder}, None),
        "files, 3 columns": ("quorumd", {"path": folder}, "offset long, key binary, value binary"),
        "live": ("quorumd", {"bootstrap.servers": server}, None),
    }
    if spark_kafka_jars():
        kafka = {"kafka.bootstrap.servers": server, "subscribe": quorum.topic}
        split = {"minPartitions": str(-(-records // OFFSETS_MAX)), "includeHeaders": "true"}
        found["live, Kafka source"] = ("kafka", {**kafka, **split}, None)
    return found


def read_with(
    spark: SparkSession, source: str, options: dict[str, str], columns: str | None
) -> None:
    """All rows to nowhere; planned anew."""
    reader = spark.read.format(source).options(**options)
    frame = (reader if columns is None else reader.schema(columns)).load()
    frame.write.format("noop").mode("overwrite").save()


def timed(read: Callable[[], object], times: int) -> list[float]:
    """Seconds of each read."""
    seconds = []
    for _ in range(times):
        begun = time.monotonic()
        read()
        seconds.append(round(time.monotonic() - begun, 3))
    return seconds


def measure(quorum: Quorum, records: int, cores: int, times: int) -> Iterator[dict[str, Any]]:
    """A row for each source on so many cores."""
    config = {"spark.jars": ",".join(map(str, spark_kafka_jars())), "spark.driver.memory": "3g"}
    spark = build_session("bench", master=f"local[{cores}]", config=config)
    try:
        spark.dataSource.register(ReadySource)
        for name, source in sources(quorum, records).items():
            seconds = timed(partial(read_with, spark, *source), times)
            yield {"name": name, "cores": cores, "seconds": seconds}
    finally:
        spark.stop()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--batch-records", type=int, default=500, help="records in each batch")
    parser.add_argument("--times", type=int, default=4, help="how often each is read")
    parser.add_argument("--folder", type=Path, help="where the node keeps its data while it runs")
    parser.add_argument("--json", type=Path, help="file for all figures")
    args = parser.parse_args()
    settings = {"log.segment.bytes": SEGMENT_BYTES, "snapshot.max.new.record.bytes": 1 << 40}
    rows = []
    with running_quorum(args.folder, settings, size=1) as quorum:
        kind = {"value_bytes": args.value_bytes, "batch_records": args.batch_records}
        records = fill(quorum.ports[0], args.records, keys=10_000, **kind)
        folder = quorum.log_folder(0)
        size = sum(path.stat().st_size for path in folder.glob("*.log"))
        print(f"{records:,} records, {size / 1e6:.0f} MB")
        print(f"{'':20}{'cores':>6}{'first s':>9}{'best s':>8}{'records/s':>12}{'MB/s':>7}")
        seconds = timed(partial(read_plainly, folder), args.times)
        rows.append({"name": "files, no Spark", "cores": 1, "seconds": seconds})
        show(rows[-1], records, size)
        for cores in (1, 2):
            for row in measure(quorum, records, cores, args.times):
                rows.append(row)
                show(row, records, size)
    write_json(args.json, rows)


def show(row: dict[str, Any], records: int, size_bytes: int) -> None:
    """A line of the table."""
    first, *others = row["seconds"]
    best = min(others, default=first)
    print(
        f"{row['name']:20}{row['cores']:6}{first:9.2f}{best:8.2f}{records / best:12,.0f}"
        f"{size_bytes / best / 1e6:7.0f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
