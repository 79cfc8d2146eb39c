"""Ingests a log into the tables: in one pass, or as a stream that follows it."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from quorumd.pipeline.errors import plain_message
from quorumd.pipeline.tables.compaction import compact
from quorumd.pipeline.tables.derive import refresh_state
from quorumd.pipeline.tables.origin import LogOrigin, first_batch_offsets
from quorumd.pipeline.tables.output import Output
from quorumd.pipeline.tables.sink import NAME, ORIGIN, register_sink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

OFFSETS_PER_BATCH: Final = 1_000_000
POLL_S: Final = 0.5
RETRY_S: Final = 5.0
STATE_EVERY_S: Final = 60.0
_NO_LEADER: Final = "LogUnreachable: "
_TRIES: Final = {"Python worker failed to connect back": 5, "NotContinued: ": 2}
"""Of failures that may pass: workers of Spark that don't start in time; a batch of the query before that
was just then being committed when that one was stopped. To begin again is safe at any time."""


@dataclass(frozen=True, slots=True)
class IngestProgress:
    """The ends of the tables and of the log (exclusive), and the records/s of the last batch."""

    end_offset: int
    log_end_offset: int
    records_per_s: float


def run_once(spark: SparkSession, origin: LogOrigin, output: Output) -> None:
    """Ingests all records that are in the log now. Raises what the source and the sink do, through Spark."""
    register_sink(spark)
    failures: Counter[str] = Counter()
    while True:
        try:
            return _ingest(spark, origin, output)
        except Exception as error:
            if not _may_pass(str(error), failures):
                raise
            time.sleep(RETRY_S)


def _ingest(spark: SparkSession, origin: LogOrigin, output: Output) -> None:
    options = origin.options_from(output.end_offset)
    rows = spark.read.format("quorumd").options(**options).load()
    writer = rows.write.format(NAME).mode("append").option("folder", str(output.folder))
    writer = writer.option(ORIGIN, json.dumps(origin.options()))
    writer.option("token", output.token).save()
    refresh_state(spark, output)
    compact(output)


class StreamingIngest:
    """A stream into the tables, restarted after the quorum was unreachable."""

    def __init__(
        self,
        spark: SparkSession,
        origin: LogOrigin,
        output: Output,
        *,
        interval_s: float,
        available_now: bool = False,
        offsets_per_batch: int = OFFSETS_PER_BATCH,
    ) -> None:
        self._spark = spark
        self._origin = origin
        self._output = output
        self._trigger: dict[str, Any] = {
            "processingTime": f"{round(interval_s * 1000)} milliseconds"
        }
        if available_now:
            self._trigger = {"availableNow": True}
        self._available_now = available_now
        self._offsets_per_batch = offsets_per_batch
        self._is_stopping = False
        register_sink(spark)

    def stop(self) -> None:
        """`run` returns soon, with `state` as new as `records`. May be called by a signal handler."""
        self._is_stopping = True

    def run(self, show: Callable[[IngestProgress], None], warn: Callable[[str], None]) -> None:
        """Until the end (available_now) or `stop`. Raises what the source and the sink do.

        A service manager stops all processes at once: that Java has ended then is no failure.
        """
        try:
            self._run(show, warn)
        except Exception:
            if not (self._is_stopping and _has_ended(self._spark)):
                raise
            warn(
                "Spark's Java was stopped, too: the next run brings state and key_history up to date."
            )

    def _run(self, show: Callable[[IngestProgress], None], warn: Callable[[str], None]) -> None:
        failures: Counter[str] = Counter()

        def show_success(progress: IngestProgress) -> None:
            failures.clear()
            show(progress)

        while not self._is_stopping:
            query = self._start()
            try:
                self._watch(query, show_success)
                break
            except Exception as error:
                if not self._may_pass(str(error), failures):
                    raise
                warn(f"{plain_message(error)} Trying again.")
                self._pause()
            finally:
                query.stop()
        refresh_state(self._spark, self._output)
        compact(self._output)

    def _may_pass(self, text: str, failures: Counter[str]) -> bool:
        if _NO_LEADER in text:
            return not self._available_now
        return _may_pass(text, failures)

    def _start(self) -> StreamingQuery:
        # The manifests alone record the offsets read, so every start has a checkpoint of its own.
        end = self._output.end_offset
        options = self._origin.options_from(end)
        least = 0 if end else first_batch_offsets(self._origin)
        options["maxOffsetsPerTrigger"] = str(max(self._offsets_per_batch, least))
        rows = self._spark.readStream.format("quorumd").options(**options).load()
        writer = rows.writeStream.format(NAME).trigger(**self._trigger)
        writer = writer.option("folder", str(self._output.folder))
        writer = writer.option("token", self._output.token)
        writer = writer.option(ORIGIN, json.dumps(self._origin.options()))
        return writer.option("checkpointLocation", f"file://{self._output.new_work()}").start()

    def _watch(self, query: StreamingQuery, show: Callable[[IngestProgress], None]) -> None:
        """Reports progress until the query ends by itself, or `stop` was called."""
        shown = -1
        refreshed_at = time.monotonic()
        while not self._is_stopping:
            if query.awaitTermination(POLL_S):  # type: ignore[arg-type]  # takes fractions of a second
                return
            last = query.lastProgress
            if last is not None and last.batchId != shown:
                shown = last.batchId
                show(_progress(json.loads(last.json)))
            if time.monotonic() - refreshed_at > STATE_EVERY_S:
                refresh_state(self._spark, self._output)
                compact(self._output)
                refreshed_at = time.monotonic()

    def _pause(self) -> None:
        until = time.monotonic() + RETRY_S
        while not self._is_stopping and time.monotonic() < until:
            time.sleep(POLL_S)


def _has_ended(spark: SparkSession) -> bool:
    """True if its Java is gone, or is about to go."""
    until = time.monotonic() + RETRY_S
    while time.monotonic() < until:
        try:
            if spark.sparkContext._jsc.sc().isStopped():
                return True
        except Exception:
            return True
        time.sleep(POLL_S)
    return False


def _may_pass(text: str, failures: Counter[str]) -> bool:
    """True if a restart may help; counts failures."""
    for mark, tries in _TRIES.items():
        if mark in text:
            failures[mark] += 1
            return failures[mark] < tries
    return False


def _progress(progress_json: dict[str, Any]) -> IngestProgress:
    source = progress_json["sources"][0]
    rate = source.get("processedRowsPerSecond")
    return IngestProgress(
        _offset(source["endOffset"]),
        _offset(source.get("latestOffset") or source["endOffset"]),
        rate or 0.0,
    )


def _offset(offset: Any) -> int:
    """Spark shows a source's offset as JSON, in a text or not."""
    found = json.loads(offset) if isinstance(offset, str) else offset
    return int(found["offset"])
