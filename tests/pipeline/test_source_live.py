"""The rows of a live quorum as tasks read them, without Spark: what happens to nodes meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

import pyarrow as pa
import pytest

from quorumd.pipeline.errors import LogUnreachable, PipelineError
from quorumd.pipeline.source.live import LiveLogSplit
from quorumd.pipeline.source.options import Options, parse_options
from quorumd.pipeline.source.quorum import FETCH_BYTES
from quorumd.pipeline.source.views import viewing
from quorumd.wire.records import Record
from tests.pipeline.filling import append, as_records, some_records
from tests.support.live_cluster import Cluster
from tests.support.ports import free_ports


def rows_of(batches: Iterable[pa.RecordBatch]) -> list[Record]:
    return as_records(row for batch in batches for row in batch.to_pylist())


def options(cluster: Cluster, **given: str) -> Options:
    return parse_options({"bootstrap.servers": cluster.bootstrap, **given})


def test_a_range_brings_exactly_its_offsets(quorum: Cluster) -> None:
    written = append(quorum, some_records(100))
    first = written[0].offset
    for start, end in [(0, 100), (1, 99), (50, 51), (99, 100)]:
        piece = LiveLogSplit(first + start, first + end)
        assert rows_of(piece.read(options(quorum))) == written[start:end]


def test_a_leader_killed_in_mid_read_loses_and_doubles_nothing(quorum: Cluster) -> None:
    value = b"x" * 100_000
    written = append(
        quorum,
        some_records(3 * FETCH_BYTES // len(value), value=value),
        batch_bytes=900_000,
    )
    piece = LiveLogSplit(written[0].offset, written[-1].offset + 1)
    reading = piece.read(options(quorum))
    found = rows_of([next(reading)])
    assert len(found) < len(written) / 2, "it was to be killed in the middle"
    quorum.kill(quorum.wait_leader())
    found += rows_of(reading)
    assert found == written


def test_a_quorum_that_is_not_there_is_one_clear_message_in_time() -> None:
    (port,) = free_ports(1)
    given = parse_options({"bootstrap.servers": f"127.0.0.1:{port}", "timeoutMs": "300"})
    begun = time.monotonic()
    with viewing(given) as view, pytest.raises(LogUnreachable) as caught:
        view.bounds()
    assert time.monotonic() - begun < 5
    said = str(caught.value)
    assert f"127.0.0.1:{port}: connection refused" in said
    assert "within 0.3 s" in said
    assert "timeoutMs" in said
    assert "\n" not in said


def test_a_quorum_without_a_majority_is_said_to_have_no_leader(quorum: Cluster) -> None:
    with viewing(options(quorum)) as view:
        end = view.end()
    leader = quorum.wait_leader()
    others = [node for node in quorum.voters if node != leader]
    for node in others:
        quorum.kill(node)
    quorum.kill(leader)
    quorum.start(leader)
    with pytest.raises(LogUnreachable, match="more than half of the voters"):
        rows_of(LiveLogSplit(end - 1, end).read(options(quorum, timeoutMs="1500")))


def test_an_offset_that_never_was_is_said_to_be_of_another_quorum(quorum: Cluster) -> None:
    with viewing(options(quorum)) as view:
        end = view.end()
    beyond = LiveLogSplit(end + 1000, end + 1001)
    with pytest.raises(PipelineError, match="formatted anew"):
        rows_of(beyond.read(options(quorum, timeoutMs="500")))


def test_a_leader_that_knows_less_than_was_read_is_given_time(quorum: Cluster) -> None:
    with viewing(options(quorum)) as view:
        end = view.end()
        later = threading.Timer(0.3, append, (quorum, some_records(5)))
        later.start()
        assert view.end(reaching=end + 5) == end + 5
        later.join()
        assert view.bounds(reaching=end + 5)[0].end == end + 5
    with viewing(options(quorum, timeoutMs="300")) as view:
        assert view.end(reaching=end + 6) == end + 5, "the time is up"
