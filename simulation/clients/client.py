"""Clients of the quorum: producers, idempotent and plain, and readers; all speak Kafka's protocol.

A producer has one batch under way. An idempotent one repeats it until it is acknowledged; a plain one
goes on to the next after any error, not knowing what became of the last. A reader follows the committed
log from offset 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, TypeVar

from quorumd.wire.batch_header import read_header
from quorumd.wire.codec import decode, encode
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.headers import decode_response_header, encode_request_header
from quorumd.wire.messages.fetch import (
    FetchRequest,
    FetchRequestPartition,
    FetchRequestTopic,
    FetchResponse,
)
from quorumd.wire.messages.produce import (
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
    ProduceResponse,
)
from quorumd.wire.metadata_topic import TOPIC
from quorumd.wire.records import Record, build_batch
from quorumd.wire.registry import APIS
from quorumd.wire.schema import Message as WireMessage
from simulation.history.replica import Batch, Identity, batches_of
from simulation.machines.links import Channel
from simulation.machines.network import Message
from simulation.scheduler import MS, SECOND, Timer

if TYPE_CHECKING:
    from simulation.world import World

PRODUCE, FETCH = 0, 1
PRODUCE_VERSION, FETCH_VERSION = 12, 12
SOFTWARE = "simulated-client"
FIRST_TIMESTAMP_MS = 1_699_999_000_000
"""Timestamps count up from here: one for each batch, so that no two batches are equal."""
RECORDS_MAX = 5
"""In a batch."""
GIVE_UP_US = 1_500 * MS
M = TypeVar("M", bound=WireMessage)


@dataclass(slots=True)
class Append:
    """One batch that a client wants appended. Times are µs; None is: not yet, or never known."""

    client: str
    identity: Identity
    record_count: int
    is_idempotent: bool
    invoked_us: int
    acknowledged_us: int | None = None
    offset: int | None = None


class Client(ABC):
    """A name, a target that is changed when it does not lead, and one request at a time."""

    def __init__(self, world: World, name: str, random: Random) -> None:
        self.world = world
        self.name = name
        self.random = random
        self.target = random.choice(world.hosts)
        self.is_stopping = False
        """Finish what is under way, begin nothing new."""
        self._asked = 0
        self._timer: Timer | None = None

    @abstractmethod
    def start(self) -> None:
        """Begin to ask; called once."""

    def ask(
        self,
        api_key: int,
        version: int,
        message: WireMessage,
        answered: Callable[[bytes], None],
        failed: Callable[[], None],
        *,
        is_repeatable: bool,
    ) -> None:
        """Send to the target; exactly one of the two is called."""
        world = self.world
        self._asked += 1
        asked = self._asked
        header = encode_request_header(api_key, version, asked, self.name)
        body = encode(message, version)
        frame = (len(header) + len(body)).to_bytes(4, "big") + header + body
        host = self.target
        kind = "Consumer fetch" if api_key == FETCH else APIS[api_key].name

        def lost() -> None:
            if asked == self._asked:
                self._asked += 1
                failed()

        def arrived(answer: bytes) -> None:
            if asked == self._asked:
                self._asked += 1
                if self._timer is not None:
                    self._timer.cancel()
                answered(answer)

        def reply(answer: bytes) -> None:
            world.network.send(Message(host, self.name, f"{kind} answer", answer), arrived, lost)

        def deliver(data: bytes) -> None:
            process = world.process_at(host)
            if process is None:
                world.scheduler.call_later(world.network.latency_us(), lost)
            else:
                channel = Channel(process.listener, self.name, SOFTWARE)
                process.receive(data, channel, kind, reply, lost)

        if self._timer is not None:
            self._timer.cancel()
        self._timer = world.scheduler.call_later(GIVE_UP_US, lost)
        request = Message(self.name, host, kind, frame, is_repeatable)
        world.network.send(request, deliver, lost)

    def change_target(self, leader_id: int = -1) -> None:
        """Ask whom the answer named next, or anybody."""
        self.target = self.world.host_of(leader_id) or self.random.choice(self.world.hosts)

    def later(self, delay_us: int, callback: Callable[[], None]) -> None:
        self.world.scheduler.call_later(delay_us, callback)

    @staticmethod
    def decode_answer(cls: type[M], api_key: int, version: int, frame: bytes) -> M:
        _, at = decode_response_header(api_key, version, frame)
        return decode(cls, version, frame, at)


class Producer(Client):
    def __init__(self, world: World, name: str, random: Random, number: int) -> None:
        super().__init__(world, name, random)
        self.is_idempotent = number % 2 == 0
        self.producer_id = 1_000 + number if self.is_idempotent else -1
        self.sequence = 0
        self._batch = b""
        self._append: Append | None = None

    def start(self) -> None:
        self._next()

    def _next(self) -> None:
        self._append = None
        if self.is_stopping:
            return
        pause_us = self.world.settings.pause_between_appends_us
        self.later(self.random.randrange(2 * pause_us), self._begin)

    def _begin(self) -> None:
        if self.is_stopping:
            return
        world, random = self.world, self.random
        timestamp = FIRST_TIMESTAMP_MS + world.next_number()
        count = random.choice([1, 1, 1, 2, RECORDS_MAX])
        records = [Record(i, timestamp, *self._key_and_value(), ()) for i in range(count)]
        self._batch = build_batch(
            records,
            producer_id=self.producer_id,
            producer_epoch=0 if self.is_idempotent else -1,
            base_sequence=self.sequence if self.is_idempotent else -1,
        )
        header = read_header(self._batch)
        identity = Identity(
            header.crc, header.base_timestamp, header.producer_id, header.base_sequence
        )
        self._append = Append(
            self.name, identity, count, self.is_idempotent, world.scheduler.now_us
        )
        world.appends.append(self._append)
        world.facts.records[identity] = records
        self._send()

    def _key_and_value(self) -> tuple[bytes | None, bytes | None]:
        random = self.random
        size = random.randint(0, self.world.settings.values_bytes_max // RECORDS_MAX)
        value = random.randbytes(size)
        match random.randrange(10):
            case 0:
                return None, value
            case 1 | 2:
                return b"key%d" % random.randrange(20), None
            case _:
                return b"key%d" % random.randrange(20), value

    def _send(self) -> None:
        partition = ProduceRequestPartition(index=0, records=self._batch)
        message = ProduceRequest(
            acks=-1,
            timeout_ms=self.random.choice([100, 1000]),
            topic_data=(ProduceRequestTopic(name=TOPIC, partition_data=(partition,)),),
        )
        self.ask(
            PRODUCE,
            PRODUCE_VERSION,
            message,
            self._on_answer,
            self._on_failure,
            is_repeatable=self.is_idempotent,
        )

    def _on_answer(self, frame: bytes) -> None:
        answer = self.decode_answer(ProduceResponse, PRODUCE, PRODUCE_VERSION, frame)
        found = answer.responses[0].partition_responses[0]
        assert self._append is not None, "an answer answers an append"
        if found.error_code == ErrorCode.NONE:
            self._append.acknowledged_us = self.world.scheduler.now_us
            self._append.offset = found.base_offset
            self.world.on_acknowledged(self._append)
            self.sequence += self._append.record_count
            self._next()
            return
        error = ErrorCode(found.error_code)
        self.world.on_refused(self._append, self.target, error, found.error_message)
        self.change_target(found.current_leader.leader_id)
        self._again()

    def _on_failure(self) -> None:
        self.change_target()
        self._again()

    def _again(self) -> None:
        if self.is_idempotent:
            self.later(self.random.randrange(5 * MS, 60 * MS), self._send)
        else:
            self._next()


class Reader(Client):
    def __init__(self, world: World, name: str, random: Random) -> None:
        super().__init__(world, name, random)
        self.offset = 0

    def start(self) -> None:
        self._fetch()

    def _fetch(self) -> None:
        if self.is_stopping:
            return
        partition = FetchRequestPartition(
            partition=0, fetch_offset=self.offset, partition_max_bytes=1 << 20
        )
        message = FetchRequest(
            max_wait_ms=self.random.choice([0, 200, 500]),
            min_bytes=1,
            max_bytes=1 << 20,
            topics=(FetchRequestTopic(topic=TOPIC, partitions=(partition,)),),
        )
        self.ask(
            FETCH, FETCH_VERSION, message, self._on_answer, self._on_failure, is_repeatable=True
        )

    def _on_answer(self, frame: bytes) -> None:
        answer = self.decode_answer(FetchResponse, FETCH, FETCH_VERSION, frame)
        found = answer.responses[0].partitions[0]
        if found.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            # What it would have read is behind a snapshot now; or this node knows less yet.
            self.offset = max(self.offset, found.log_start_offset)
        if found.error_code != ErrorCode.NONE:
            self.change_target(found.current_leader.leader_id)
            self.later(self.random.randrange(20 * MS, 200 * MS), self._fetch)
            return
        batches: list[Batch] = batches_of(found.records or b"")
        if batches:
            self.world.on_read(self.name, self.offset, batches)
            self.offset = batches[-1].end_offset
        self.later(self.random.randrange(50 * MS, SECOND // 2), self._fetch)

    def _on_failure(self) -> None:
        self.change_target()
        self._fetch()
