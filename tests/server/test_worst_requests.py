"""No request holds the event loop up: the largest legal ones of every API, by count of work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest

from quorumd.config.addresses import ConfiguredVoter
from quorumd.config.model import Config
from quorumd.raft.types import Endpoint
from quorumd.security.identity import ANONYMOUS
from quorumd.server.daemon_runtime import daemon_runtime
from quorumd.server.dispatch import Dispatch
from quorumd.server.model.metrics import Metrics
from quorumd.server.model.topic import METADATA
from quorumd.server.net.connection_state import CloseReason
from quorumd.server.net.inbound_request import InboundRequest, RequestConnection
from quorumd.server.node import open_partition
from quorumd.server.partition.stopping import close
from quorumd.server.translate.fetch import FETCH_MAX_BYTES
from quorumd.storage.directory import format_directory, open_directory
from quorumd.storage.filesystem import RealFileSystem
from quorumd.wire import compression
from quorumd.wire.codec import decode, encode
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.errors import LimitExceeded
from quorumd.wire.headers import decode_response_header
from quorumd.wire.messages.fetch import (
    FetchRequest,
    FetchRequestPartition,
    FetchRequestReplicaState,
    FetchRequestTopic,
)
from quorumd.wire.messages.produce import ProduceResponse
from quorumd.wire.packed_records import BLOCK_BYTES_MAX
from quorumd.wire.records import Record, build_batch
from quorumd.wire.registry import APIS, CONTROLLER_KEYS
from quorumd.wire.request_limits import REQUEST_LIMITS
from tests.server.worst_requests import (
    WorstRequest,
    produce,
    worst_batches,
    worst_compressed,
    worst_requests,
)
from tests.support.serving import run
from tests.support.work import STEPS_PER_MS, steps

pytestmark = pytest.mark.sim

STEPS_MAX = 5 * STEPS_PER_MS
"""Of the 10 ms that the loop may be held: the rest is for bytes, which are not counted, and for load."""
RESPONSE_BYTES_MAX = 1 << 18
DONE = object()
AT = Endpoint("CONTROLLER", "127.0.0.1", 9093)


class Recorder:
    """A connection that keeps what is sent."""

    def __init__(self) -> None:
        self.listener = AT
        self.peer = "tester"
        self.principal = ANONYMOUS
        self.client_software_name = self.client_software_version = ""
        self.is_open = True
        self.in_flight_bytes = 0
        self.sent = b""
        self.reason = ""

    def send(self, request: InboundRequest, buffers: list[bytes]) -> None:
        self.sent += b"".join(buffers)

    def close_behind(self, request: InboundRequest, closed: CloseReason, reason: str) -> None:
        self.reason = reason


@asynccontextmanager
async def leading(folder: Path) -> AsyncIterator[Dispatch]:
    """What takes the requests of a node that leads."""
    fs, metrics = RealFileSystem(), Metrics()
    format_directory(fs, folder / "node", node_id=1, bootstrap=True)
    directory = open_directory(fs, folder / "node", node_id=1)
    config = Config(
        node_id=1,
        storage_dir=folder / "node",
        listeners=(AT,),
        advertised_listeners=(AT,),
        quorum_voters=(ConfiguredVoter(1, AT.host, AT.port),),
    )

    def failed(reason: str, error: BaseException | None) -> None:
        raise AssertionError(reason) from error

    partition = open_partition(METADATA, config, fs, directory, metrics, failed, daemon_runtime())
    partition.start()
    while partition.append_refusal is not None:  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(0.001)
    try:
        yield Dispatch(partition, metrics)
    finally:
        await close(partition)
        directory.close()


def asked(worst: WorstRequest) -> tuple[InboundRequest, Recorder]:
    recorder = Recorder()
    connection = cast(RequestConnection, recorder)
    now_ns = time.monotonic_ns()  # what it waits for at the most counts from here
    request = InboundRequest(connection, worst.api_key, worst.version, 1, worst.body, 0, now_ns)
    return request, recorder


def at_their_limits(excess: int) -> Iterator[WorstRequest]:
    return worst_requests(lambda key: REQUEST_LIMITS[key].elements + excess)


def once(dispatch: Dispatch, request: InboundRequest) -> Callable[[], None]:
    def act() -> None:
        try:
            dispatch.dispatch(request)
        except LimitExceeded as error:
            request.close(str(error))

    return act


def test_the_largest_legal_request_of_every_api_is_little_work(tmp_path: Path) -> None:
    async def work() -> None:
        async with leading(tmp_path) as dispatch:
            heavy, long = [], []
            for worst in at_their_limits(0):
                # The first one compiles what the others need, which a node does once.
                once(dispatch, asked(worst)[0])()
                request, recorder = asked(worst)
                count = steps(once(dispatch, request))
                if count > STEPS_MAX:
                    heavy.append((count, worst.name))
                if len(recorder.sent) > RESPONSE_BYTES_MAX:
                    long.append((len(recorder.sent), worst.name))
                await asyncio.sleep(0)
            assert (heavy, long) == ([], [])

    run(work(), deadline_s=120)


def test_a_request_beyond_its_limit_is_refused_before_it_is_work(tmp_path: Path) -> None:
    async def work() -> None:
        async with leading(tmp_path) as dispatch:
            heavy, taken = [], []
            for worst in at_their_limits(300):
                if worst.name.endswith("-long") or worst.api_key in CONTROLLER_KEYS:
                    continue  # a controller's are refused unread
                request, recorder = asked(worst)
                count = steps(once(dispatch, request))
                if count > STEPS_MAX // 4:
                    heavy.append((count, worst.name))
                if not (recorder.reason or is_invalid_request(worst, recorder.sent)):
                    taken.append(worst.name)
            assert (heavy, taken) == ([], [])

    run(work(), deadline_s=120)


COUNTED = 100


def steps_by_turn(
    dispatch: Dispatch, request: InboundRequest, note_turn: Callable[[], None] = lambda: None
) -> list[int]:
    """The work of a request, cut where other requests may have their turn; of the first COUNTED turns."""
    left: Iterator[object] | None = None

    def begin() -> None:
        nonlocal left
        left = dispatch.dispatch(request)

    def go_on() -> None:
        nonlocal left
        if left is not None and next(left, DONE) is DONE:
            left = None

    counts = [steps(begin)]
    while left is not None:
        note_turn()
        if len(counts) < COUNTED:
            counts.append(steps(go_on))
        else:
            go_on()
    return counts


WORST_BATCHES = (
    "equal",
    "alternating",
    "in pairs",
    "in fours",
    "headers",
    "one value",
    "a record too many",
)


@cache
def batches() -> dict[str, bytes]:
    return dict(worst_batches())


def test_the_worst_batches_are_all_tried() -> None:
    assert tuple(batches()) == WORST_BATCHES


@pytest.mark.parametrize("name", WORST_BATCHES)
def test_the_hardest_batches_are_checked_in_turns(tmp_path: Path, name: str) -> None:
    data = batches()[name]

    async def work() -> None:
        async with leading(tmp_path) as dispatch:
            request, recorder = asked(produce(9, [data]))
            counts = steps_by_turn(dispatch, request)
            assert max(counts[:1]) < STEPS_MAX
            assert max(counts[1:], default=0) < STEPS_MAX // 3, "a step takes about a millisecond"
            await answered(recorder)
            is_sound = name != "a record too many"
            assert errors_of(9, recorder.sent) == [0 if is_sound else ErrorCode.INVALID_RECORD]

    run(work(), deadline_s=60)


WORST_COMPRESSED = (
    "gzip",
    "gzip of too much",
    "gzip of nothing",
    "snappy",
    "snappy block of many records",
    "one snappy block",
    "lz4",
    "large lz4 blocks",
    "lz4 of nothing",
    "zstd",
    "zstd blocks of nothing",
    "zstd of nothing",
)


@cache
def compressed() -> dict[str, bytes]:
    return dict(worst_compressed())


def test_the_worst_compressed_batches_are_all_tried() -> None:
    assert tuple(compressed()) == WORST_COMPRESSED


@pytest.mark.parametrize("name", WORST_COMPRESSED)
def test_the_hardest_compressed_batches_are_checked_in_turns(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpacked = [0]
    original = compression.unpack_in_steps

    def counting(*args: Any, **options: Any) -> Iterator[bytes]:
        for chunk in original(*args, **options):
            unpacked[-1] += len(chunk)
            yield chunk

    monkeypatch.setattr(compression, "unpack_in_steps", counting)
    data = compressed()[name]

    async def work() -> None:
        async with leading(tmp_path) as dispatch:
            request, recorder = asked(produce(9, [data]))
            counts = steps_by_turn(dispatch, request, lambda: unpacked.append(0))
            assert counts[0] < STEPS_MAX
            assert max(counts[1:], default=0) < STEPS_MAX // 3, "a step takes about a millisecond"
            assert unpacked[0] <= BLOCK_BYTES_MAX
            assert max(unpacked[1:], default=0) <= 2 * compression.CHUNK_BYTES_MAX
            await answered(recorder)
            expected = 0
            if name in ("gzip of too much", "one snappy block"):
                expected = ErrorCode.MESSAGE_TOO_LARGE
            elif name == "snappy" or name.endswith("of nothing"):
                expected = ErrorCode.INVALID_RECORD  # they end too early
            assert errors_of(9, recorder.sent) == [expected]

    run(work(), deadline_s=60)


def test_many_batches_in_one_request_are_checked_in_turns(tmp_path: Path) -> None:
    async def work() -> None:
        async with leading(tmp_path) as dispatch:
            request, recorder = asked(produce(9, [batches()["one value"][:-1]] * 15))
            assert max(steps_by_turn(dispatch, request)) < STEPS_MAX
            assert errors_of(9, recorder.sent) == [ErrorCode.INVALID_RECORD] * 15
            request, recorder = asked(produce(9, [build_batch([Record(value=b"v")])] * 200))
            assert max(steps_by_turn(dispatch, request)) < STEPS_MAX
            await answered(recorder)
            assert errors_of(9, recorder.sent) == [0] * 200

    run(work())


async def answered(recorder: Recorder) -> None:
    while not recorder.sent:  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(0.001)


def errors_of(version: int, sent: bytes) -> list[int]:
    _, at = decode_response_header(0, version, sent[4:])
    (topic,) = decode(ProduceResponse, version, sent[4:], at).responses
    return [partition.error_code for partition in topic.partition_responses]


def is_invalid_request(worst: WorstRequest, sent: bytes) -> bool:
    _, at = decode_response_header(worst.api_key, worst.version, sent[4:])
    response = decode(APIS[worst.api_key].response, worst.version, sent[4:], at)
    return getattr(response, "error_code", None) == ErrorCode.INVALID_REQUEST


def test_what_may_be_read_for_a_replica_counts_as_in_flight(tmp_path: Path) -> None:
    async def work() -> None:
        async with leading(tmp_path) as dispatch:
            row = FetchRequestPartition(
                replica_directory_id=UUID(int=7),
                fetch_offset=0,
                last_fetched_epoch=0,
                current_leader_epoch=dispatch._partition.view.leader_epoch,
                partition_max_bytes=1,
            )
            topic = FetchRequestTopic(topic_id=METADATA.topic_id, partitions=(row,))
            replica = FetchRequestReplicaState(replica_id=7)
            asking = FetchRequest(replica_state=replica, max_bytes=1, topics=(topic,))
            request, recorder = asked(WorstRequest("replica", 1, 17, encode(asking, 17)))
            dispatch.dispatch(request)
            assert recorder.in_flight_bytes == FETCH_MAX_BYTES

    run(work())


@pytest.mark.parametrize(
    ("key", "version", "has_error"),
    [(1, 6, False), (1, 7, True), (3, 12, False), (3, 13, True), (32, 4, False), (55, 2, True)],
)
def test_a_refusal_is_an_error_where_the_response_has_a_place_for_it(
    tmp_path: Path, key: int, version: int, has_error: bool
) -> None:
    async def work() -> None:
        async with leading(tmp_path) as dispatch:
            asking = worst_requests(lambda asked_key: 2_000 if asked_key == key else 0)
            worst = next(each for each in asking if each.version == version)
            request, recorder = asked(worst)
            once(dispatch, request)()
            assert bool(recorder.sent) is has_error
            assert ("elements in one message" in recorder.reason) is not has_error

    run(work())
