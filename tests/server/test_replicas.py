"""Requests of replicas and to replicas: fetch answers that must not reach the log, links, leftovers."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from uuid import UUID

import pytest

from quorumd.config.addresses import ConfiguredVoter
from quorumd.config.model import Config
from quorumd.raft.config import StoredState
from quorumd.raft.effects import (
    EndQuorumEpoch,
    Fetch,
    FetchSnapshot,
    SendReply,
    SendRequest,
    SnapshotReply,
)
from quorumd.raft.events import Event, FetchSnapshotRequestReceived, RequestFailed, TimerFired
from quorumd.raft.log_view import LogView, VoterEntry
from quorumd.raft.node import RaftNode
from quorumd.raft.roles import Role
from quorumd.raft.types import Endpoint, OffsetAndEpoch, ReplicaKey, SnapshotId
from quorumd.server.daemon_runtime import daemon_runtime
from quorumd.server.disk.log_reader import LogReader
from quorumd.server.disk.storage_adapter import ClientBatches, StorageAdapter
from quorumd.server.dispatch import Dispatch
from quorumd.server.model.kafka_drift import KafkaDrift
from quorumd.server.model.metrics import Metrics
from quorumd.server.model.producer_state import ProducerState
from quorumd.server.model.runtime import Runtime
from quorumd.server.model.topic import METADATA
from quorumd.server.net.listeners import Listeners
from quorumd.server.node import Node, open_partition
from quorumd.server.partition.partition import Partition
from quorumd.server.partition.stopping import close
from quorumd.server.peers.outbound import FETCH, Outbound, OutboundSettings
from quorumd.server.peers.peer_channel import TcpPeerChannel
from quorumd.server.requests.raft_requests import RaftRequestHandler
from quorumd.server.translate import fetch as translate_fetch
from quorumd.server.translate.snapshot import snapshot_request
from quorumd.storage.directory import Directory, format_directory, open_directory
from quorumd.storage.errors import EXIT_FAILED, DiskFailed
from quorumd.storage.filesystem import RealFileSystem
from quorumd.storage.log import Log
from quorumd.storage.quorum_state import QuorumState
from quorumd.storage.snapshot_store import SnapshotStore
from quorumd.wire import control_records
from quorumd.wire.errors import UnsupportedVersion
from quorumd.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartition,
    DescribeQuorumRequestTopic,
    DescribeQuorumResponse,
)
from quorumd.wire.messages.fetch import (
    FetchRequest,
    FetchRequestPartition,
    FetchRequestReplicaState,
    FetchRequestTopic,
    FetchResponse,
)
from quorumd.wire.messages.fetch_snapshot import FetchSnapshotResponse
from quorumd.wire.registry import APIS
from simulation.default_raft_config import default_raft_config
from tests.raft.harness import CLUSTER, endpoints, key, keyed_set, voter_set
from tests.server.test_fetch_answers import fetch_answer
from tests.storage.helpers import DIRECTORY, empty_disk, undamaged
from tests.support.asking import TOPIC, answer_to, ask, question
from tests.support.ports import free_ports
from tests.support.serving import Client, Parking, run, serving

VERSION = 17


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("version", range(12, 17))
def test_a_fetch_that_cannot_say_whose_disk_it_is_is_not_sent(version: int) -> None:
    fetch = Fetch(epoch=1, position=OffsetAndEpoch(0, 0), high_watermark=-1)
    frames = translate_fetch.FetchRequestFrames(METADATA, "x", key(1), 500)
    with pytest.raises(UnsupportedVersion):
        frames.of(fetch, version, 1, None)


# -- requests to replicas


@dataclass
class Sender:
    """An Outbound of replica 1, and the events that come of it."""

    voters: Sequence[ReplicaKey]
    folder: Path
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        settings = OutboundSettings("CONTROLLER", "1.0", 1000, 500, ())
        metrics = Metrics()
        self.log = Log.open(
            RealFileSystem(), self.folder, segment_bytes=1 << 20, tail_cache_bytes=0
        )

        class NoDisk:
            def submit(self, job: object) -> None:
                raise AssertionError("nothing is appended here")

            def flush(self) -> None:
                raise AssertionError("nothing is appended here")

        config = default_raft_config(
            key(1),
            endpoints=endpoints(1),
            configured_voters=voter_set(1, 2, 3, by_id=True),
            is_bootstrap=True,
        )
        self.node = RaftNode(config, StoredState(epoch=1), LogView(), lambda bound: bound // 2)
        self.node.start(0)
        storage_adapter = StorageAdapter(
            self.log,
            NoDisk(),
            ProducerState(),
            metrics,
            lambda: CLUSTER,
            cast(ClientBatches, None),
            lambda facts: None,
            None,
            lambda: 0,
        )
        self.outbound = Outbound(
            METADATA,
            settings,
            self.node,
            storage_adapter,
            metrics,
            self.events.append,
            cast(Runtime, SimpleNamespace(peer_channel=TcpPeerChannel)),
            KafkaDrift(metrics),
        )

    def name_voters(self, *keys: ReplicaKey) -> None:
        """As a record of the log does."""
        entry = self.node.core.log.voter_entries[-1]
        record = type(entry.record)(keyed_set(*keys), CLUSTER)
        self.node.core.log.voter_entries.append(VoterEntry(entry.offset + 1, record))

    def send(self, to: ReplicaKey, request_id: int = 1) -> None:
        end = EndQuorumEpoch(epoch=1, leader_id=1, successors=())
        self.outbound.send_request(SendRequest(request_id=request_id, to=to, request=end, after=0))

    @property
    def linked(self) -> set[object]:
        return {peer for peer, _ in self.outbound._channels}


@asynccontextmanager
async def sender(folder: Path) -> AsyncIterator[Sender]:
    made = Sender((), folder)
    try:
        yield made
    finally:
        await made.outbound.close()
        made.log.close()


def other_tasks() -> int:
    return len(asyncio.all_tasks()) - 1


def test_links_of_replicas_that_are_no_voters_any_more_are_given_up(tmp_path: Path) -> None:
    async def work() -> None:
        async with sender(tmp_path) as at:
            before = other_tasks()
            by_id = [ReplicaKey(2), ReplicaKey(3)]
            at.outbound.prepare(at.node.core.other_voters())
            assert at.linked == set(by_id)
            at.name_voters(key(1), key(2), key(3))
            at.send(key(2))
            assert at.linked == {key(2)}, "the keys without storage ids are nobody's now"
            at.outbound.prepare(at.node.core.other_voters())
            assert at.linked == {key(2), key(3)}
            at.name_voters(key(1), key(2))
            at.outbound.prepare(at.node.core.other_voters())
            assert at.linked == {key(2)}
            await until(lambda: other_tasks() == before + 1)

    run(work())


def test_nothing_is_sent_and_nobody_connected_to_after_the_end(tmp_path: Path) -> None:
    async def work() -> None:
        async with sender(tmp_path) as at:
            before = other_tasks()

            def again(event: Event) -> None:
                at.events.append(event)
                at.send(key(3), request_id=2)

            at.outbound._handle = again
            at.send(ReplicaKey(2))
            await at.outbound.close()
            at.outbound.prepare(at.node.core.other_voters())
            assert [
                event.request_id for event in at.events if isinstance(event, RequestFailed)
            ] == [1]
            assert not at.linked
            assert other_tasks() == before

    run(work())


def test_a_voter_set_that_contradicts_itself_fails_the_fetch_and_nothing_else(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        async with sender(tmp_path) as at:
            twice = (control_records.KRaftVoter(voter_id=2), control_records.KRaftVoter(voter_id=2))
            data = control_records.encode_control_batch(
                [control_records.KRaftVoters(voters=twice)], base_offset=0, epoch=1, timestamp_ms=1
            )
            at.outbound.on_response(
                FETCH, 7, key(2), VERSION, *fetch_answer(data), ("two", 1), True
            )
            (event,) = at.events
            assert isinstance(event, RequestFailed)
            assert event.request_id == 7

    run(work())


# -- reading


def test_a_reader_that_is_closed_ends_what_it_has_begun_and_says_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        log = Log.open(RealFileSystem(), tmp_path, segment_bytes=1 << 20, tail_cache_bytes=0)
        reader = LogReader(log, undamaged)
        begun, outcomes = threading.Event(), list[object]()
        reader.run(lambda: (begun.set(), threading.Event().wait(0.2)), outcomes.append)
        for _ in range(50):
            reader.read(99, 1, 100, outcomes.append)
        assert begun.wait(10)
        reader.close()
        await asyncio.sleep(0)
        assert outcomes == [(None, False)]
        log.close()

    run(work())
    assert caplog.records == []


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_snapshot_that_cannot_be_read_for_a_replica_is_withdrawn(
    tmp_path: Path, is_gone: bool
) -> None:
    fs, snapshot, damaged = empty_disk(), SnapshotId(20, 1), list[SnapshotId]()
    store = SnapshotStore(fs, DIRECTORY)
    store.write_part(snapshot, 0, b"a snapshot")
    store.complete_part(snapshot)
    if is_gone:
        fs.remove(store.path(snapshot))
    else:
        fs.errors["open"] = errno.EIO

    class Snapshots:
        def serve(self, snapshot: SnapshotId, replica: ReplicaKey | None, position: int) -> bool:
            return True

        def on_damage(self, snapshot: SnapshotId, problem: str) -> None:
            damaged.append(snapshot)

    async def work() -> None:
        def handle(event: Event) -> None:
            assert isinstance(event, FetchSnapshotRequestReceived)
            reply = SnapshotReply(epoch=1, leader_id=1, leader_endpoints=(), snapshot=snapshot)
            handler.send_reply(SendReply(event.reply_to, reply, 0))

        log = Log.open(RealFileSystem(), tmp_path, segment_bytes=1 << 20, tail_cache_bytes=0)
        reader, topic = LogReader(log, undamaged), METADATA
        handler = RaftRequestHandler(
            topic, reader, store, Snapshots(), Metrics(), handle, 1000, is_kafka_log=False
        )
        async with serving(Parking(handler.fetch_snapshot)) as served:
            client = await served.connect()
            piece = FetchSnapshot(epoch=1, snapshot=snapshot, position=0, max_bytes=10)
            await client.send(question(59, 1, snapshot_request(piece, topic, CLUSTER, key(2))))
            if is_gone:
                answer = cast(FetchSnapshotResponse, await answer_to(client, 59, 1))
                assert answer.topics[0].partitions[0].error_code == 98
            else:
                assert await client.rest() == b""
        reader.close()
        log.close()

    run(work())
    assert damaged == [snapshot]


# -- one voter alone, everything real


@dataclass
class Alone:
    partition: Partition
    directory: Directory
    listeners: Listeners
    failures: list[tuple[str, BaseException | None]]
    clients: list[Client] = field(default_factory=list)

    async def connect(self) -> Client:
        (address,) = self.listeners.addresses
        client = Client(*await asyncio.open_connection(address.host, address.port))
        self.clients.append(client)
        return client


def config_of(folder: Path, port: int, voters: int = 1) -> Config:
    at = Endpoint("CONTROLLER", "127.0.0.1", port)
    return Config(
        node_id=1,
        storage_dir=folder,
        listeners=(at,),
        advertised_listeners=(at,),
        quorum_voters=tuple(
            ConfiguredVoter(i, "127.0.0.1", port + i - 1) for i in range(1, voters + 1)
        ),
    )


@asynccontextmanager
async def alone(folder: Path, **clocks: Callable[[], int]) -> AsyncIterator[Alone]:
    """A quorum of one that leads; `clocks` are those of its runtime that are not the machine's."""
    fs, metrics = RealFileSystem(), Metrics()
    failures: list[tuple[str, BaseException | None]] = []
    (port,) = free_ports(1)
    config = config_of(folder, port)
    format_directory(fs, folder, node_id=1, cluster_id=CLUSTER, bootstrap=True)
    directory = open_directory(fs, folder, node_id=1)

    def fail(reason: str, error: BaseException | None) -> None:
        failures.append((reason, error))

    runtime = replace(daemon_runtime(), **clocks)
    partition = open_partition(METADATA, config, fs, directory, metrics, fail, runtime)
    listeners = Listeners(
        config.listeners,
        Dispatch(partition, metrics),
        metrics,
        max_frame_bytes=1 << 20,
        max_connections=10,
        max_idle_ms=0,
    )
    await listeners.open()
    made = Alone(partition, directory, listeners, failures)
    partition.start()
    try:
        await until(
            lambda: partition.append_refusal is None and partition.view.has_committed_in_epoch
        )
        yield made
    finally:
        for client in made.clients:
            client.close()
        await listeners.close(0)
        await close(partition)
        directory.close()
    assert not failures


def replica_fetch(
    partition: Partition,
    replica: ReplicaKey,
    *,
    cluster_id: str | None = CLUSTER,
    offset: int = 0,
    max_wait_ms: int = 0,
) -> FetchRequest:
    asked = FetchRequestPartition(
        current_leader_epoch=partition.view.leader_epoch,
        fetch_offset=offset,
        last_fetched_epoch=partition.view.leader_epoch if offset else 0,
        replica_directory_id=replica.uuid or UUID(int=0),
    )
    topic = FetchRequestTopic(topic_id=METADATA.topic_id, partitions=(asked,))
    return FetchRequest(
        cluster_id=cluster_id,
        replica_state=FetchRequestReplicaState(replica_id=replica.id),
        max_wait_ms=max_wait_ms,
        topics=(topic,),
    )


def test_a_replica_of_another_cluster_is_refused_and_not_listed(tmp_path: Path) -> None:
    async def work() -> None:
        async with alone(tmp_path) as at:
            client = await at.connect()
            foreign = replica_fetch(at.partition, key(8), cluster_id="elsewhere")
            answer = cast(FetchResponse, await ask(client, FETCH, VERSION, foreign))
            assert (answer.error_code, answer.responses) == (104, ())
            ours = replica_fetch(at.partition, key(9))
            answer = cast(FetchResponse, await ask(client, FETCH, VERSION, ours))
            assert answer.responses[0].partitions[0].error_code == 0
            assert [row.key.id for row in at.partition.view.observer_statuses()] == [9]

    run(work())


def test_times_of_replicas_are_of_the_wall_clock_that_the_runtime_has(tmp_path: Path) -> None:
    now_ms = 1_234_567_890_000

    async def work() -> None:
        async with alone(tmp_path, wall_ms=lambda: now_ms) as at:
            (leader,) = at.partition.view.voter_statuses()
            assert (leader.last_fetch_ms, leader.last_caught_up_ms) == (now_ms, now_ms)
            client = await at.connect()
            await ask(client, FETCH, VERSION, replica_fetch(at.partition, key(9)))
            (observer,) = at.partition.view.observer_statuses()
            assert now_ms - 10_000 < observer.last_fetch_ms <= now_ms

    run(work())


def test_what_was_asked_is_forgotten_with_its_answer_and_with_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(translate_fetch, "MAX_WAIT_MS_MAX", 100)

    async def work() -> None:
        async with alone(tmp_path) as at:
            asked = at.partition.raft_handler._fetches
            client = await at.connect()
            for version in range(13, 19):
                await ask(
                    client, FETCH, version, plain(replica_fetch(at.partition, key(9)), version)
                )
            assert not asked
            end = at.partition.view.log_end_offset
            nameless = ReplicaKey(-1, UUID(int=7))
            waiting = replica_fetch(at.partition, nameless, offset=end, max_wait_ms=2**31 - 1)
            for _ in range(3):
                other = await at.connect()
                await other.send(question(FETCH, VERSION, waiting))
            await until(lambda: len(asked) == 3)
            for other in at.clients[1:]:
                other.close()
            await until(lambda: not asked)

    run(work())


def plain(message: FetchRequest, version: int) -> FetchRequest:
    """The replica's id where this version has it."""
    if version >= 15:
        return message
    return FetchRequest(
        cluster_id=message.cluster_id,
        replica_id=message.replica_state.replica_id,
        topics=message.topics,
    )


@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_quorum_is_described_in_every_version(tmp_path: Path, version: int) -> None:
    async def work() -> None:
        async with alone(tmp_path) as at:
            client = await at.connect()
            topic = DescribeQuorumRequestTopic(
                topic_name=TOPIC, partitions=(DescribeQuorumRequestPartition(),)
            )
            await ask(client, FETCH, VERSION, replica_fetch(at.partition, key(9)))
            request = DescribeQuorumRequest(topics=(topic,))
            answer = cast(DescribeQuorumResponse, await ask(client, 55, version, request))
            described = answer.topics[0].partitions[0]
            assert (described.error_code, described.leader_id) == (0, 1)
            (voter,) = described.current_voters
            (observer,) = described.observers
            assert (voter.replica_id, observer.replica_id) == (1, 9)
            assert bool(voter.replica_directory_id.int) == (version >= 2)
            assert len(answer.nodes) == (version >= 2)

    run(work())


def test_every_api_that_is_advertised_has_a_handler(tmp_path: Path) -> None:
    async def work() -> None:
        async with alone(tmp_path) as at:
            dispatch = Dispatch(at.partition, Metrics())
            assert set(dispatch._handlers) == set(APIS)

    run(work())


def test_a_partition_that_is_closed_takes_no_event_and_leaves_no_task(tmp_path: Path) -> None:
    async def work() -> None:
        before = other_tasks()
        async with alone(tmp_path) as at:
            pass
        end = at.partition.view.log_end_offset
        at.partition.append(99, 1)
        at.partition._on_timer()
        assert at.partition.view.log_end_offset == end
        await until(lambda: other_tasks() == before)

    run(work())


def test_a_fault_at_the_end_of_a_turn_ends_the_node(tmp_path: Path) -> None:
    async def work() -> None:
        async with alone(tmp_path) as at:
            fault = RuntimeError("a fault")

            def broken() -> None:
                raise fault

            with pytest.raises(RuntimeError):
                at.partition._guarded(broken)
            ((reason, error),) = at.failures
            assert "bug" in reason
            assert error is fault
            at.failures.clear()

    run(work())


def test_a_leader_that_has_resigned_is_no_leader_to_clients(tmp_path: Path) -> None:
    async def work() -> None:
        (port,) = free_ports(1)
        fs = RealFileSystem()
        format_directory(fs, tmp_path, node_id=1, cluster_id=CLUSTER, bootstrap=True)
        directory = open_directory(fs, tmp_path, node_id=1)
        directory.save_quorum_state(
            QuorumState(leader_id=1, leader_uuid=directory.meta.storage_id, leader_epoch=3)
        )

        def fail(reason: str, error: BaseException | None) -> None:
            raise AssertionError(reason)

        config = config_of(tmp_path, port, voters=3)
        partition = open_partition(
            METADATA, config, fs, directory, Metrics(), fail, daemon_runtime()
        )
        partition.start()
        assert partition.node.role is Role.RESIGNED
        assert partition.view.leader_id is None
        assert partition.view.leader_endpoints == ()
        assert partition.view.leader_id is None
        await close(partition)
        directory.close()

    run(work())


def test_a_disk_that_fails_under_a_rule_is_no_bug(tmp_path: Path) -> None:
    broken = DiskFailed("reading failed", path=tmp_path, remedy="Replace the disk")
    is_broken = False

    async def work() -> None:
        nonlocal is_broken
        clock = daemon_runtime().monotonic_ms

        def monotonic_ms() -> int:
            if is_broken:
                raise broken
            return clock()

        async with alone(tmp_path, monotonic_ms=monotonic_ms) as at:
            is_broken = True
            with pytest.raises(DiskFailed):
                at.partition.handle(TimerFired())
            is_broken = False
            assert at.failures == [("the disk failed", broken)]
            at.failures.clear()

    run(work())


def test_a_node_whose_log_lost_committed_records_ends_with_a_reason_and_an_exit_code(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        (port,) = free_ports(1)
        fs = RealFileSystem()
        format_directory(fs, tmp_path, node_id=1, cluster_id=CLUSTER, bootstrap=True)
        directory = open_directory(fs, tmp_path, node_id=1)
        codes: list[int] = []
        node = Node(config_of(tmp_path, port), fs, directory, codes.append)
        # The log's own recovery refuses such a directory before: the rules are the second line.
        node.partition.node.core.recorded_offset = 100
        node.partition.start()
        assert codes == [EXIT_FAILED]
        await close(node.partition)
        directory.close()

    run(work())
