"""Consumers' requests on real sockets, answered from a real log by a partition in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

from quorumd.raft.log_view import LogView
from quorumd.server.daemon_runtime import daemon_runtime
from quorumd.server.disk.log_reader import LogReader
from quorumd.server.model.runtime import Runtime
from quorumd.server.net.inbound_request import InboundRequest
from quorumd.server.requests.fetch import FetchHandler
from quorumd.server.requests.offsets import OffsetsHandler
from quorumd.storage.filesystem import RealFileSystem
from quorumd.storage.log import Log
from quorumd.wire.codec import decode
from quorumd.wire.messages.fetch import FetchRequest, FetchResponse
from quorumd.wire.messages.list_offsets import ListOffsetsRequest
from quorumd.wire.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest
from quorumd.wire.records import Record, build_batch
from quorumd.wire.registry import APIS
from tests.storage.helpers import undamaged
from tests.support.asking import InMemoryPartition, answer_to, ask, question
from tests.support.serving import Client, Parking, Served, run, serving

FETCH, LIST_OFFSETS, EPOCH_END = 1, 2, 23
RECORDS = 10
"""In the log, each a batch; the first five are of epoch 4, the others of the leader's epoch 5."""


def one_batch(offset: int) -> bytes:
    epoch = 4 if offset < 5 else 5
    record = Record(timestamp=1000 + offset * 10, key=b"k", value=b"x" * 100)
    return build_batch([record], base_offset=offset, epoch=epoch)


BATCH_BYTES = len(one_batch(0))


class Bench:
    def __init__(self, served: Served, client: Client, handler: FetchHandler, log: Log) -> None:
        self.served = served
        self.client = client
        self.handler = handler
        self.log = log
        self.partition = cast(InMemoryPartition, handler._view)

    async def fetch(self, message: FetchRequest, version: int = 11) -> FetchResponse:
        return cast(FetchResponse, await ask(self.client, FETCH, version, message))

    async def parked(self, message: FetchRequest, version: int = 11, count: int = 1) -> None:
        """Send it, and see it wait."""
        await self.client.send(question(FETCH, version, message))
        await until(lambda: len(self.handler._parked) == count)

    async def answer(self, version: int = 11) -> FetchResponse:
        return cast(FetchResponse, await answer_to(self.client, FETCH, version))

    def append(self) -> None:
        offset = self.log.log_end_offset
        data = one_batch(offset)
        self.log.append(data, offset, offset + 1)
        self.log.write(data, offset, offset + 1)
        self.partition.committed_offset = offset + 1
        self.handler.on_high_watermark()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(0.001)


def with_bench(
    folder: Path,
    work: Callable[[Bench], Coroutine[Any, Any, None]],
    *,
    is_cached: bool = True,
    segment_bytes: int = 1 << 20,
    changed: Callable[[Runtime], Runtime] = lambda runtime: runtime,
    **settings: Any,
) -> None:
    log = Log.open(
        RealFileSystem(),
        folder,
        segment_bytes=segment_bytes,
        tail_cache_bytes=1 << 20 if is_cached else 0,
        index_interval_bytes=1,
    )
    for offset in range(RECORDS):
        data = one_batch(offset)
        log.append(data, offset, offset + 1)
        log.write(data, offset, offset + 1)

    async def whole() -> None:
        log_view = LogView(end_offset=RECORDS, epoch_starts=[(4, 0), (5, 5)])
        values = {
            "committed_offset": RECORDS,
            "log_end_offset": RECORDS,
            "log_view": log_view,
            **settings,
        }
        reader = LogReader(log, undamaged)
        view = InMemoryPartition(**values)
        handler = FetchHandler(view, log, reader, changed(daemon_runtime()))
        offsets = OffsetsHandler(view, log, reader)

        def dispatch(request: InboundRequest) -> None:
            spec = APIS[request.api_key]
            message = decode(spec.request, request.api_version, request.frame, request.body_at)
            if isinstance(message, FetchRequest):
                handler.fetch(request, message)
            elif isinstance(message, ListOffsetsRequest):
                offsets.list_offsets(request, message)
            else:
                assert isinstance(message, OffsetForLeaderEpochRequest)
                offsets.offset_for_leader_epoch(request, message)

        async with serving(Parking(dispatch)) as served:
            await work(Bench(served, await served.connect(), handler, log))
        handler.close()
        reader.close()

    try:
        run(whole())
    finally:
        log.close()
