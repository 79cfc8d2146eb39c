"""Questions on the raw connections of `serving`, with messages instead of bytes; and a partition in
memory for the handlers that answer them."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from quorumd.raft.effects import AppendClient
from quorumd.raft.errors import Refusal
from quorumd.raft.log_view import LogView
from quorumd.raft.types import Endpoint, OffsetAndEpoch
from quorumd.server.model.topic import METADATA
from quorumd.server.requests.produce import ProduceHandler
from quorumd.storage.log import Chunk
from quorumd.wire.codec import decode, encode
from quorumd.wire.headers import decode_response_header, encode_request_header
from quorumd.wire.records import Record, build_batch
from quorumd.wire.registry import APIS
from quorumd.wire.schema import Message
from tests.support.cluster import FixedView
from tests.support.serving import Client, frame

TOPIC = METADATA.name


def question(key: int, version: int, message: Message, correlation_id: int = 1) -> bytes:
    """A complete request."""
    header = encode_request_header(key, version, correlation_id, "tests")
    return frame(header + encode(message, version))


async def answer_to(client: Client, key: int, version: int) -> Message:
    """The next answer, which must be one to this api key and version."""
    (length,) = struct.unpack(">i", await client.reader.readexactly(4))
    data = await client.reader.readexactly(length)
    _, body_at = decode_response_header(key, version, data)
    return decode(APIS[key].response, version, data, body_at)


async def ask(client: Client, key: int, version: int, message: Message) -> Message:
    """One request and its answer."""
    await client.send(question(key, version, message))
    return await answer_to(client, key, version)


def batch(
    count: int = 1, *, producer: tuple[int, int, int] = (-1, -1, -1), value: bytes = b"v"
) -> bytes:
    """A batch as clients send it; `producer` is id, epoch and first sequence."""
    return build_batch(
        [Record(timestamp=1, key=b"k", value=value) for _ in range(count)],
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
    )


@dataclass
class InMemoryPartition(FixedView):
    """A leader whose commits the test decides; what is appended goes to `chunks`."""

    leader_id: int | None = 1
    leader_epoch: int = 5
    leader_endpoints: tuple[Endpoint, ...] = (Endpoint("PLAINTEXT", "leader.example", 9092),)
    log_end_offset: int = 0
    committed_offset: int = 0
    append_refusal: Refusal | None = None
    chunks: list[Chunk] = field(default_factory=list)
    log_view: LogView = field(default_factory=LogView)
    produce: ProduceHandler | None = None
    ended: list[BaseException] = field(default_factory=list)
    """Why the process ended."""

    def end_process(self, error: BaseException) -> None:
        self.ended.append(error)

    def append(self, token: int, record_count: int) -> None:
        assert self.produce is not None
        base = self.log_end_offset
        self.log_end_offset = base + record_count
        effect = AppendClient(write=1, base_offset=base, epoch=self.leader_epoch, token=token)
        self.chunks.append(self.produce.take_batches(effect))

    def commit(self, offset: int) -> None:
        assert self.produce is not None
        self.committed_offset = offset
        self.produce.parked.on_high_watermark(offset)

    def end_offset_for(self, epoch: int) -> OffsetAndEpoch:
        return self.log_view.end_offset_for(epoch)
