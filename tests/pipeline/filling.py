"""Records for the tests: written to a live quorum, and what of them is expected back."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterable, Mapping
from typing import Any

import quorumd
from quorumd.wire.records import Record
from tests.support.live_cluster import Cluster

# Half an hour ahead of what the nodes themselves write: so the times of all records ascend.
_times_ms = itertools.count(int(time.time() * 1000) + 1_800_000)


def some_records(count: int, *, first: int = 0, value: bytes = b"") -> list[Record]:
    """Records of all shapes; each has a time of its own, later than any before."""
    return [
        Record(
            timestamp=next(_times_ms),
            key=None if i % 7 == 0 else b"key%d" % (i % 5),
            value=None if i % 11 == 3 else b"%d " % i + value,
            headers=(("name", b"%d" % i), ("null", None)) if i % 3 == 0 else (),
        )
        for i in range(first, first + count)
    ]


def append(cluster: Cluster, records: Iterable[Record], *, batch_bytes: int = 1000) -> list[Record]:
    """Appends them, and returns them with their offsets when all are committed."""
    sent = list(records)

    async def run() -> list[int]:
        offsets: list[int] = []
        async with quorumd.QuorumClient(cluster.bootstrap) as client:
            producer = client.producer(
                batch_bytes=batch_bytes,
                on_acknowledged=lambda base, count: offsets.extend(range(base, base + count)),
            )
            for record in sent:
                await producer.append(record)
            await producer.flush()
        return offsets

    offsets = asyncio.run(run())
    return [record._replace(offset=offset) for record, offset in zip(sent, offsets, strict=True)]


def as_records(rows: Iterable[Mapping[str, Any]]) -> list[Record]:
    """Rows of the table `records` as what was written."""
    return [as_record(row) for row in rows]


def as_record(row: Mapping[str, Any]) -> Record:
    """A row as what was written."""
    headers = [each if isinstance(each, dict) else each.asDict() for each in row["headers"] or ()]
    return Record(
        offset=row["offset"],
        timestamp=round(row["timestamp"].timestamp() * 1000),
        key=_bytes(row["key"]),
        value=_bytes(row["value"]),
        headers=tuple((each["key"], _bytes(each["value"])) for each in headers),
    )


def _bytes(value: bytes | bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)
