"""Batches that a benchmark fills a log with, and what it makes of its measurements."""

from __future__ import annotations

from bench.filling import _template, _under_other_keys
from bench.run_snapshot_pause import RoundTrip, summary
from quorumd.wire.records import crc_is_valid, iter_records, read_header

MS = 1_000_000


def test_a_batch_under_other_keys_is_valid_and_differs_in_nothing_else() -> None:
    template = _template(100, 10)
    first, second = (_under_other_keys(template, number) for number in (1, 2))
    for batch in (first, second):
        assert len(batch) == len(template)
        assert crc_is_valid(batch, 0, read_header(batch))
    rows = list(zip(iter_records(first), iter_records(second), strict=True))
    assert len(rows) == 100
    for one, other in rows:
        assert one._replace(key=other.key) == other
        assert one.key != other.key
    assert len({record.key for row in rows for record in row}) == 200


def test_the_worst_round_trip_is_told_with_its_time() -> None:
    found = [RoundTrip(MS, at * MS) for at in range(1000)]
    found[500] = RoundTrip(60 * MS, 500 * MS)
    shown = summary("building", found)
    assert (shown["p50_ms"], shown["p99_ms"]) == (1.0, 1.0)
    assert (shown["worst_ms"], shown["worst_at_s"]) == (60.0, 0.5)
    assert (shown["above_10_ms"], shown["above_50_ms"], shown["requests"]) == (1, 1, 1000)
