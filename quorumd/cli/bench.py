"""`quorumctl bench`: how many records a second a quorum takes, and how long each one waits.

A closed loop: every client has a connection of its own and sends the next batch when the last one
is acknowledged (or keeps several in flight). The same encoded request is sent over and over, so
that the load costs as little as possible on this side.
"""

from __future__ import annotations

import asyncio
import sys
import time
from array import array
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import click

from quorumd.cli.options import (
    Count,
    Seconds,
    Target,
    option_group,
    output_option,
    quorum_options,
    timeout_option,
    to_ms,
)
from quorumd.cli.text import bytes_text, to_json

if TYPE_CHECKING:
    from quorumd.client.connection import ClientConnection, SentRequest
    from quorumd.client.leader import LeaderFinder

_PERCENTILES = (50.0, 95.0, 99.0, 99.9)
_STALL_TIMEOUT_S = 5.0
_PROGRESS_INTERVAL_S = 0.25
_MARK = 0x0102030405060708

T = TypeVar("T")

BATCH_BYTES_MAX = 8 << 20
"""The highest log.max.batch.bytes."""
_HELP = """Measure how fast a running quorum appends.

Each client sends a batch, waits until a majority has it on disk, and sends the next one. The figures
are those of this host, network and quorum together; run it beside the real load to see what is
left.

THE RECORDS STAY IN THE LOG: use it on a quorum whose log may grow.

\b
Examples:
  quorumctl bench -b localhost:9093
  quorumctl bench --clients 64 --seconds 30 --record-bytes 1000
  quorumctl bench --clients 1 --batch-records 128 --output json
"""


class BenchLoad:
    """The load that one run sends."""

    def __init__(
        self, *, clients: int, seconds: float, record_bytes: int, batch_records: int, in_flight: int
    ) -> None:
        self.clients = clients
        self.seconds = seconds
        self.record_bytes = record_bytes
        self.batch_records = batch_records
        self.in_flight = in_flight


class BenchTally:
    """Measurements of a run: a latency in ms for each acknowledged batch, and the failures."""

    def __init__(self) -> None:
        self.latencies_ms = array("d")
        self.failures = 0
        self.last_failure = ""
        self.started = time.perf_counter()
        self.seconds = 0.0

    def restart(self) -> None:
        """Forgets the warm-up."""
        self.latencies_ms = array("d")
        self.failures = 0
        self.started = time.perf_counter()

    def stop(self) -> None:
        """The time is up: the rest of the responses does not count."""
        self.seconds = time.perf_counter() - self.started


_load_options = option_group(
    click.option("--clients", "-c", type=Count(1, 4096), default=16, show_default=True),
    click.option(
        "--seconds",
        "-s",
        type=Seconds(0.1),
        default=10.0,
        show_default=True,
        help="How long to measure.",
    ),
    click.option(
        "--warmup",
        type=Seconds(0),
        default=1.0,
        show_default=True,
        help="Seconds before that, not counted.",
    ),
    click.option(
        "--record-bytes",
        type=Count(0, 1 << 20),
        default=100,
        show_default=True,
        help="Size of each value.",
    ),
    click.option(
        "--batch-records",
        type=Count(1, 100_000),
        default=1,
        show_default=True,
        help="Records in each batch.",
    ),
    click.option(
        "--in-flight",
        type=Count(1, 64),
        default=1,
        show_default=True,
        help="Batches that a client sends ahead.",
    ),
)


@click.command(help=_HELP, short_help="Measure how fast a quorum appends.")
@quorum_options
@_load_options
@output_option("text", "json")
@timeout_option
def bench(
    target: Target,
    clients: int,
    seconds: float,
    warmup: float,
    record_bytes: int,
    batch_records: int,
    in_flight: int,
    output: str,
    timeout_s: float,
) -> None:
    """Runs the load and prints the figures, also those until Ctrl-C."""
    if record_bytes * batch_records > BATCH_BYTES_MAX:
        raise click.UsageError(
            f"--record-bytes {record_bytes} times --batch-records {batch_records} is more than the "
            f"{BATCH_BYTES_MAX:,} bytes that any quorum takes in a batch: lower one of them"
        )
    load = BenchLoad(
        clients=clients,
        seconds=seconds,
        record_bytes=record_bytes,
        batch_records=batch_records,
        in_flight=in_flight,
    )
    tally = BenchTally()
    try:
        _run_fast(_run(target, load, tally, warmup, to_ms(timeout_s)))
    except KeyboardInterrupt:
        tally.stop()
        if tally.latencies_ms:
            _report(load, tally, output)
        raise
    _report(load, tally, output)


def _run_fast(main: Coroutine[Any, Any, T]) -> T:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


async def _run(
    target: Target,
    load: BenchLoad,
    tally: BenchTally,
    warmup_s: float,
    timeout_ms: int,
) -> None:
    from quorumd.client.leader import LeaderFinder
    from quorumd.client.timing import Deadline

    finder = LeaderFinder(target.servers, client_id="quorumctl-bench", security=target.security)
    workers: list[asyncio.Task[None]] = []
    try:
        await finder.connection("reach the leader", Deadline(timeout_ms))
        workers = [
            asyncio.create_task(_Worker(finder, load, tally, timeout_ms).run())
            for _ in range(load.clients)
        ]
        await _until(workers, warmup_s, None)
        tally.restart()
        await _watch(workers, load, tally)
        tally.stop()
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        finder.close()


async def _until(
    workers: list[asyncio.Task[None]], seconds: float, tick: Callable[[], None] | None
) -> None:
    """Lets the workers run; raises what ends one of them, for none ends by itself."""
    end = time.perf_counter() + seconds
    while (left := end - time.perf_counter()) > 0:
        timeout_s = min(left, _PROGRESS_INTERVAL_S)
        done, _ = await asyncio.wait(
            workers, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
        for worker in done:
            worker.result()
        if tick is not None:
            tick()


async def _watch(workers: list[asyncio.Task[None]], load: BenchLoad, tally: BenchTally) -> None:
    if not sys.stderr.isatty():
        await _until(workers, load.seconds, None)
        return
    from quorumd.cli.progress import time_progress

    with time_progress("appending", load.seconds) as show:

        def tick() -> None:
            elapsed_s = time.perf_counter() - tally.started
            rate = len(tally.latencies_ms) * load.batch_records / elapsed_s
            show(elapsed_s, f"{rate:,.0f} records/s, {tally.failures} failed")

        await _until(workers, load.seconds, tick)


class _Worker:
    """One client: its connection and what it has in flight."""

    def __init__(
        self, finder: LeaderFinder, load: BenchLoad, tally: BenchTally, timeout_ms: int
    ) -> None:
        self._finder = finder
        self._load = load
        self._tally = tally
        self._timeout_ms = timeout_ms

    async def run(self) -> None:
        """Sends until cancelled. Raises QuorumUnavailable, RequestRefused, NotSupported."""
        from quorumd.client.errors import ConnectionFailed
        from quorumd.client.leader import RetriableError
        from quorumd.client.timing import Deadline, RetryBackoff

        backoff = RetryBackoff()
        deadline = Deadline(self._timeout_ms)
        while True:
            known = await self._finder.connection("append to the log", deadline)
            connection: ClientConnection | None = None
            before = len(self._tally.latencies_ms)
            try:
                connection = await self._finder.connector.connect(known.address, _STALL_TIMEOUT_S)
                await self._send_for_ever(connection)
            except ConnectionFailed as error:
                self._failed(str(error))
                self._finder.forget(known.address, str(error))
            except RetriableError as error:
                self._failed(error.reason)
                self._finder.retry_later(known.address, error)
            finally:
                if connection is not None:
                    connection.close()
            if len(self._tally.latencies_ms) > before:
                deadline = Deadline(self._timeout_ms)
                backoff.reset()
            await self._finder.pause("append to the log", deadline, backoff)

    def _failed(self, reason: str) -> None:
        self._tally.failures += 1
        self._tally.last_failure = reason

    async def _send_for_ever(self, connection: ClientConnection) -> None:
        from quorumd.wire.messages.produce import ProduceRequest

        version = connection.version_for(ProduceRequest)
        body = _request_body(self._load, version)
        success = success_prefix(version)
        success_end = 4 + len(success)
        waiting: deque[tuple[float, SentRequest]] = deque()
        clock = time.perf_counter
        tally = self._tally
        loop = asyncio.get_running_loop()
        stall = _Stall(connection, loop)
        try:
            while True:
                while len(waiting) < self._load.in_flight:
                    waiting.append((clock(), connection.send_body(0, version, body)))
                sent_at, sent = waiting.popleft()
                frame = await sent.response
                if frame[4:success_end] != success:
                    _raise_refusal(connection, sent, frame)
                tally.latencies_ms.append((clock() - sent_at) * 1000)
                stall.moved = True
        finally:
            stall.cancel()


class _Stall:
    """Ends a connection that has got no response for some seconds; one timer, not one each."""

    def __init__(self, connection: ClientConnection, loop: asyncio.AbstractEventLoop) -> None:
        self.moved = False
        self._connection = connection
        self._loop = loop
        self._timer = loop.call_later(_STALL_TIMEOUT_S, self._check)

    def _check(self) -> None:
        if not self.moved:
            self._connection.fail(f"no acknowledgement within {_STALL_TIMEOUT_S:g} s")
            return
        self.moved = False
        self._timer = self._loop.call_later(_STALL_TIMEOUT_S, self._check)

    def cancel(self) -> None:
        self._timer.cancel()


def _request_body(load: BenchLoad, version: int) -> bytes:
    from quorumd.client.producer import produce_request
    from quorumd.wire.codec import encode
    from quorumd.wire.records import Record, build_batch

    now_ms = int(time.time() * 1000)
    record = Record(timestamp=now_ms, value=b"x" * load.record_bytes)
    data = build_batch([record] * load.batch_records)
    return encode(produce_request(data, timeout_ms=int(_STALL_TIMEOUT_S * 1000)), version)


def success_prefix(version: int) -> bytes:
    """First bytes of a Produce response without error, behind the correlation id.

    Comparing bytes costs a fraction of decoding. The prefix ends before the base offset.
    """
    from quorumd.wire.codec import encode
    from quorumd.wire.headers import encode_response_header
    from quorumd.wire.messages.produce import (
        ProduceResponse,
        ProduceResponsePartition,
        ProduceResponseTopic,
    )
    from quorumd.wire.metadata_topic import TOPIC, TOPIC_ID

    partition = ProduceResponsePartition(base_offset=_MARK)
    topic = ProduceResponseTopic(name=TOPIC, topic_id=TOPIC_ID, partition_responses=(partition,))
    body = encode(ProduceResponse(responses=(topic,)), version)
    header = encode_response_header(0, version, 0)
    return header[4:] + body[: body.index(_MARK.to_bytes(8, "big"))]


def _raise_refusal(connection: ClientConnection, sent: SentRequest, frame: bytes) -> None:
    from quorumd.client.leader import check
    from quorumd.wire.messages.produce import ProduceResponse

    response = connection.read(frame, sent, ProduceResponse)
    for topic in response.responses:
        for partition in topic.partition_responses:
            check(
                "append to the log",
                partition.error_code,
                message=partition.error_message,
                response=response,
                partition=partition,
            )


def percentile(ascending: list[float], percent: float) -> float:
    """The smallest value that so many percent of the values don't exceed."""
    index = -(-len(ascending) * percent // 100) - 1
    return ascending[max(0, min(len(ascending) - 1, int(index)))]


def _report(load: BenchLoad, tally: BenchTally, output: str) -> None:
    latencies = sorted(tally.latencies_ms)
    if not latencies:
        raise click.ClickException(
            f"nothing was acknowledged in {tally.seconds:.1f} s"
            + (f"; the last failure: {tally.last_failure}" if tally.last_failure else "")
        )
    records = len(latencies) * load.batch_records
    per_second = records / tally.seconds
    found = {f"p{percent:g}": percentile(latencies, percent) for percent in _PERCENTILES}
    found["max"] = latencies[-1]
    if output == "json":
        figures = {
            "clients": load.clients,
            "in_flight": load.in_flight,
            "batch_records": load.batch_records,
            "record_bytes": load.record_bytes,
            "seconds": round(tally.seconds, 3),
            "records": records,
            "records_per_second": round(per_second, 1),
            "latency_ms": {name: round(value, 3) for name, value in found.items()},
            "failures": tally.failures,
        }
        click.echo(to_json(figures))
        return
    click.echo(
        f"{records:,} records in {tally.seconds:.1f} s: {per_second:,.0f} records/s, "
        f"{bytes_text(per_second * load.record_bytes)}/s"
    )
    click.echo("latency: " + ", ".join(f"{name} {value:.2f} ms" for name, value in found.items()))
    if tally.failures:
        click.echo(f"failures: {tally.failures}, the last one: {tally.last_failure}")
