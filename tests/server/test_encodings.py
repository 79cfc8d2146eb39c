"""Every valid encoding of a request or an answer does the same, whether a fast reader takes it or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, TypeVar, cast
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumd.raft.events import Event
from quorumd.raft.log_view import LogView
from quorumd.raft.types import Endpoint
from quorumd.server.dispatch import Dispatch
from quorumd.server.model.metrics import Metrics
from quorumd.server.model.producer_state import ProducerState
from quorumd.server.model.runtime import Reader, Runtime
from quorumd.server.model.topic import METADATA
from quorumd.server.net.inbound_request import InboundRequest
from quorumd.server.partition.partition import Partition
from quorumd.server.requests.produce import ProduceHandler
from quorumd.server.requests.raft_requests import RaftRequestHandler, ServedSnapshots
from quorumd.server.translate.fetch import fetch_response_received
from quorumd.server.translate.snapshot import snapshot_response_received
from quorumd.storage.snapshot_store import SnapshotStore
from quorumd.wire.codec import decode, encode
from quorumd.wire.fast import parse_fetch_request, parse_fetch_response, parse_produce
from quorumd.wire.headers import encode_request_header
from quorumd.wire.messages.fetch import FetchRequest, FetchResponse
from quorumd.wire.messages.fetch_snapshot import FetchSnapshotRequest, FetchSnapshotResponse
from quorumd.wire.messages.produce import ProduceRequest
from quorumd.wire.registry import APIS
from quorumd.wire.schema import Message, Struct
from tests.support.asking import InMemoryPartition, batch
from tests.wire.encodings import encodings
from tests.wire.wire_values import examples, messages

PRODUCE, FETCH, FETCH_SNAPSHOT = 0, 1, 59
SOME = examples(80)
LISTENER = Endpoint("CONTROLLER", "localhost", 1)
PARTITION: dict[str, Any] = {
    "topic": METADATA.name,
    "name": METADATA.name,
    "topic_id": METADATA.topic_id,
    "partition": 0,
    "index": 0,
    "partition_index": 0,
}
BATCHES = (batch(1), batch(3), batch(2) + b"torn", b"no batch", b"")

M = TypeVar("M", bound=Message)


def versions(key: int) -> st.SearchStrategy[int]:
    spec = APIS[key]
    return st.integers(spec.min_version, spec.max_version)


@contextmanager
def without_fast_readers() -> Iterator[None]:
    """Everything is left to the codec."""
    rooms = "quorumd.server."
    with (
        mock.patch(rooms + "dispatch.parse_fetch_request", return_value=None),
        mock.patch(rooms + "translate.fetch.parse_fetch_response", return_value=None),
        mock.patch(rooms + "requests.produce.parse_produce", return_value=None),
    ):
        yield


# -- messages that are worth being written in many ways

PARTITIONED = ("topics", "topic_data", "partitions", "partition_data", "responses")


def of_one_partition(message: Struct, version: int, known: dict[str, object]) -> Struct:
    """The message with one topic of one partition, and with these values for fields of these names."""
    changes: dict[str, object] = {}
    for spec in message.wire_spec.fields:
        value = getattr(message, spec.name)
        if version not in spec.versions:
            continue
        if spec.name in PARTITIONED:
            first = value[0] if value else cast("type[Struct]", spec.of)()
            changes[spec.name] = (of_one_partition(first, version, known),)
        elif spec.name in known:
            changes[spec.name] = known[spec.name]
    return cast("Struct", replace(cast("Any", message), **changes))


def likely(data: st.DataObject, cls: type[M], version: int, **known: object) -> M:
    """Any message of the class; more often than not about the one partition that there is."""
    message: Struct = data.draw(messages(cls, version))
    if data.draw(st.integers(0, 4)):
        message = of_one_partition(message, version, known)
    return cast("M", message)


# -- the node that takes them


class Heard:
    """A connection without a network, and everything that the node made of its requests."""

    listener = LISTENER
    peer = "tests"
    client_software_name = ""
    client_software_version = ""
    is_open = True
    in_flight_bytes = 0

    def __init__(self) -> None:
        self.all: list[object] = []

    def send(self, request: InboundRequest, buffers: Sequence[bytes | memoryview]) -> None:
        self.all.append(b"".join(buffers))

    def close_behind(self, request: InboundRequest, closed: object, reason: str) -> None:
        self.all.append(("closed", closed))

    def event(self, event: Event) -> None:
        self.all.append(event)

    def consumer(self, request: InboundRequest, message: FetchRequest) -> None:
        self.all.append(message)


def clock() -> Runtime:
    """Time stands still."""
    found = SimpleNamespace(
        monotonic_s=lambda: 1.0,
        wall_ms=lambda: 1,
        call_at=lambda at, call: SimpleNamespace(cancel=lambda: None),
    )
    return cast("Runtime", found)


def outcome(key: int, version: int, body: bytes) -> list[object]:
    """What a node that leads does with a request: events for the rules, answers, appended bytes."""
    heard, metrics = Heard(), Metrics()
    partition = InMemoryPartition(log_view=LogView())
    turn: list[Callable[[], None]] = []
    produce = ProduceHandler(
        partition, partition, ProducerState(), metrics, 1 << 20, clock(), turn.append
    )
    partition.produce = produce
    nothing = SimpleNamespace()
    raft = RaftRequestHandler(
        METADATA,
        cast("Reader", nothing),
        cast("SnapshotStore", nothing),
        cast("ServedSnapshots", nothing),
        metrics,
        heard.event,
        1000,
        is_kafka_log=False,
    )
    node = SimpleNamespace(
        topic=METADATA,
        produce_handler=produce,
        raft_handler=raft,
        fetch_handler=SimpleNamespace(fetch=heard.consumer),
        catch_up=lambda: None,
    )
    header = encode_request_header(key, version, 7, "tests")
    request = InboundRequest(heard, key, version, 7, header + body, len(header), 0)
    Dispatch(cast("Partition", node), metrics).dispatch(request)
    while turn:
        turn.pop(0)()
    partition.commit(partition.log_end_offset)
    produce.close()
    return [*heard.all, *(chunk.data for chunk in partition.chunks)]


def assert_all_the_same(
    data: st.DataObject, message: Message, version: int, look: Callable[[bytes], object]
) -> None:
    """Two encodings, each with and without the fast readers, come to the same."""
    seen = []
    for _ in range(2):
        body = data.draw(encodings(message, version))
        assert decode(type(message), version, body) == message
        seen.append(look(body))
        with without_fast_readers():
            seen.append(look(body))
    assert seen[1:] == seen[:1] * 3


@pytest.mark.long
@pytest.mark.pure
@SOME
@given(data=st.data(), version=versions(FETCH))
def test_every_encoding_of_a_fetch_asks_for_the_same(data: st.DataObject, version: int) -> None:
    message = likely(
        data,
        FetchRequest,
        version,
        **PARTITION,
        forgotten_topics_data=(),
        last_fetched_epoch=data.draw(st.sampled_from((-1, 0, 3))),
    )
    assert_all_the_same(data, message, version, lambda body: outcome(FETCH, version, body))


@pytest.mark.long
@pytest.mark.pure
@SOME
@given(data=st.data(), version=versions(FETCH_SNAPSHOT))
def test_every_encoding_of_a_fetch_of_a_snapshot_asks_for_the_same(
    data: st.DataObject, version: int
) -> None:
    message = likely(data, FetchSnapshotRequest, version, **PARTITION)
    assert_all_the_same(data, message, version, lambda body: outcome(FETCH_SNAPSHOT, version, body))


@pytest.mark.long
@pytest.mark.pure
@SOME
@given(data=st.data(), version=versions(PRODUCE))
def test_every_encoding_of_a_produce_appends_and_answers_the_same(
    data: st.DataObject, version: int
) -> None:
    message = likely(
        data,
        ProduceRequest,
        version,
        **{**PARTITION, "index": data.draw(st.sampled_from((0, 0, 1)))},
        acks=data.draw(st.sampled_from((-1, 0, 1, 2))),
        transactional_id=data.draw(st.sampled_from((None, None, None, ""))),
        records=data.draw(st.sampled_from((*BATCHES, None))),
    )
    assert_all_the_same(data, message, version, lambda body: outcome(PRODUCE, version, body))


@pytest.mark.long
@SOME
@given(data=st.data(), version=st.integers(12, 18))
def test_every_encoding_of_a_fetch_answer_tells_the_same(data: st.DataObject, version: int) -> None:
    message = likely(
        data,
        FetchResponse,
        version,
        error_code=data.draw(st.sampled_from((0, 0, 0, 74))),
        aborted_transactions=data.draw(st.sampled_from((None, ()))),
        records=data.draw(st.sampled_from((*BATCHES, None))),
    )

    def told(body: bytes) -> object:
        try:
            parsed = fetch_response_received(version, b"head" + body, 4, METADATA, 9, LISTENER.name)
        except ValueError as error:
            return repr(error)
        fetched = parsed.fetched
        return parsed.event, fetched and (fetched.chunk, fetched.count, fetched.of_producers)

    assert_all_the_same(data, message, version, told)


@pytest.mark.long
@SOME
@given(data=st.data(), version=versions(FETCH_SNAPSHOT))
def test_every_encoding_of_a_snapshot_answer_tells_the_same(
    data: st.DataObject, version: int
) -> None:
    message = likely(data, FetchSnapshotResponse, version, error_code=0)

    def told(body: bytes) -> object:
        try:
            return snapshot_response_received(
                version, b"head" + body, 4, METADATA, 9, LISTENER.name
            )
        except ValueError as error:
            return repr(error)

    assert_all_the_same(data, message, version, told)


def test_the_fast_readers_take_what_is_usual() -> None:
    """Else the tests above would compare the codec with itself."""
    asked = of_one_partition(FetchRequest(), 17, {**PARTITION, "last_fetched_epoch": 3})
    produced = of_one_partition(ProduceRequest(), 9, {**PARTITION, "records": b"r"})
    assert parse_fetch_request(17, encode(cast("Message", asked), 17)) is not None
    assert parse_produce(9, encode(cast("Message", produced), 9)) is not None
    answer = of_one_partition(FetchResponse(), 17, PARTITION)
    assert parse_fetch_response(17, encode(cast("Message", answer), 17)) is not None
