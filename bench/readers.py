"""Readers at the end of a log, by the hundred: observers or consumers, each with a fetch that waits."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

from bench.common import Quorum, compiled, leader_of
from bench.filling import framed
from quorumd.wire.messages.fetch import (
    FetchRequest,
    FetchRequestPartition,
    FetchRequestReplicaState,
    FetchRequestTopic,
)
from quorumd.wire.metadata_topic import TOPIC_ID

FETCH, VERSION = 1, 18
FIRST_OBSERVER_ID = 100_000
MAX_WAIT_MS = 500
MAX_BYTES = 1 << 20
_OFFSET, _HIGH_WATERMARK = 0x0102030405060708, 0x1112131415161718
_UNKNOWN = 0x7FFFFFFFFFFFFFFF
_STOP_S = 30


class Readers:
    """Readers that run; `result` has the offsets that they saw once they have ended."""

    def __init__(self) -> None:
        self.result: dict[str, Any] = {}


@contextmanager
def readers(
    quorum: Quorum, count: int, folder: Path, *, are_observers: bool, max_wait_ms: int = MAX_WAIT_MS
) -> Iterator[Readers]:
    """So many, from the leader's log end on; they end with the block."""
    leader = leader_of(quorum)
    status = quorum.status(leader)
    epoch = int(status["epoch"])
    requests = [_request(number, are_observers, epoch, max_wait_ms) for number in range(count)]
    templates = folder / f"templates-{count}"
    offset_at = requests[0].index(_OFFSET.to_bytes(8))
    mark_at = requests[0].index(_HIGH_WATERMARK.to_bytes(8)) if are_observers else -1
    start = int(status["high_watermark"]).to_bytes(8)
    place = start + epoch.to_bytes(4)
    with templates.open("wb") as file:
        for request in requests:
            there = request[:offset_at] + place + request[offset_at + 12 :]
            file.write(there.replace(_HIGH_WATERMARK.to_bytes(8), start))
    command = [str(compiled("tailgen.c", "tailgen")), str(quorum.ports[leader]), str(templates)]
    with subprocess.Popen(
        [*command, str(count), str(offset_at), str(mark_at)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        if process.stdout is None or process.stdout.readline() != "ready\n":
            raise SystemExit("the readers could not connect")
        found = Readers()
        yield found
        output, _ = process.communicate(timeout=_STOP_S)
        found.result = json.loads(output)
        if found.result["errors"]:
            raise SystemExit(f"{found.result['errors']} of {count} readers were refused")


def _request(number: int, is_observer: bool, epoch: int, max_wait_ms: int) -> bytes:
    partition = FetchRequestPartition(
        partition=0,
        current_leader_epoch=epoch,
        fetch_offset=_OFFSET,
        last_fetched_epoch=0,
        partition_max_bytes=MAX_BYTES,
        replica_directory_id=UUID(int=(1 << 64) + number if is_observer else 0),
        high_watermark=_HIGH_WATERMARK if is_observer else _UNKNOWN,
    )
    request = FetchRequest(
        replica_state=FetchRequestReplicaState(
            replica_id=FIRST_OBSERVER_ID + number if is_observer else -1
        ),
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=MAX_BYTES,
        topics=(FetchRequestTopic(topic_id=TOPIC_ID, partitions=(partition,)),),
    )
    return framed(FETCH, VERSION, request)
