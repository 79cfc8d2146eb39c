"""Two partitions in each of three nodes, behind one listener: each elects and replicates alone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from uuid import UUID

from quorumd.config.addresses import ConfiguredVoter, Listener
from quorumd.config.model import Config
from quorumd.raft.events import ResignationRequested
from quorumd.raft.roles import Role
from quorumd.server.daemon_runtime import daemon_runtime
from quorumd.server.dispatch import Dispatch
from quorumd.server.model.metrics import Metrics
from quorumd.server.model.topic import TopicPartition
from quorumd.server.net.listeners import Listeners
from quorumd.server.node import open_partition
from quorumd.server.partition.partition import Partition
from quorumd.storage.directory import Directory, format_directory, open_directory
from quorumd.storage.filesystem import RealFileSystem
from quorumd.storage.reader import find_files
from quorumd.wire.codec import decode
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.headers import decode_response_header
from quorumd.wire.messages.produce import (
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
    ProduceResponse,
    ProduceResponsePartition,
)
from quorumd.wire.messages.vote import (
    VoteRequest,
    VoteRequestPartition,
    VoteRequestTopic,
    VoteResponse,
)
from quorumd.wire.records import Record, build_batch, iter_records
from quorumd.wire.schema import Message
from tests.support.ports import free_ports
from tests.support.raw_client import frame, request
from tests.support.serving import run

# One name begins with the other: a request must not be taken for one about the wrong topic.
TOPICS = (
    TopicPartition("orders", UUID(int=11), 0),
    TopicPartition("orders-audit", UUID(int=12), 0),
)
IDS = (1, 2, 3)
PRODUCE, VOTE = 0, 52

M = TypeVar("M", bound=Message)


@dataclass(slots=True)
class TwoPartitionNode:
    """What a daemon would be with two partitions."""

    port: int
    partitions: list[Partition]
    directories: list[Directory]
    listeners: Listeners


def failed(reason: str, error: BaseException | None) -> None:
    raise AssertionError(reason) from error


async def opened(folder: Path, node: int, ports: list[int]) -> TwoPartitionNode:
    """It listens, and takes no part yet."""
    at = Listener("CONTROLLER", "127.0.0.1", ports[node - 1])
    fs, metrics = RealFileSystem(), Metrics()
    partitions, directories = [], []
    for topic in TOPICS:
        path = folder / f"node-{node}" / topic.name
        format_directory(fs, path, node_id=node, bootstrap=True)
        directory = open_directory(fs, path, node_id=node)
        config = Config(
            node_id=node,
            storage_dir=path,
            listeners=(at,),
            advertised_listeners=(at,),
            quorum_voters=tuple(ConfiguredVoter(i, "127.0.0.1", ports[i - 1]) for i in IDS),
        )
        partitions.append(
            open_partition(topic, config, fs, directory, metrics, failed, daemon_runtime())
        )
        directories.append(directory)
    dispatch = Dispatch(partitions, metrics)
    listeners = Listeners(
        (at,), dispatch, metrics, max_frame_bytes=1 << 20, max_connections=100, max_idle_ms=0
    )
    await listeners.open()
    return TwoPartitionNode(at.port, partitions, directories, listeners)


async def started(folder: Path, node: int, ports: list[int]) -> TwoPartitionNode:
    made = await opened(folder, node, ports)
    for partition in made.partitions:
        partition.start()
    return made


async def stopped(node: TwoPartitionNode) -> None:
    await node.listeners.close(0)
    for partition, directory in zip(node.partitions, node.directories, strict=True):
        await partition.close()
        directory.close()


@asynccontextmanager
async def three_nodes(folder: Path) -> AsyncIterator[list[TwoPartitionNode]]:
    ports = free_ports(len(IDS))
    nodes = [await started(folder, node, ports) for node in IDS]
    try:
        yield nodes
    finally:
        for node in nodes:
            await stopped(node)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  # what changes is inside the nodes
        await asyncio.sleep(0.005)


def leader(nodes: list[TwoPartitionNode], at: int) -> TwoPartitionNode | None:
    """The node that leads this partition and can be written to."""
    for node in nodes:
        partition = node.partitions[at]
        if partition.node.role is Role.LEADER and partition.append_refusal is None:
            return node
    return None


async def produce(
    node: TwoPartitionNode, topic: TopicPartition, value: bytes
) -> ProduceResponsePartition:
    partition = ProduceRequestPartition(index=0, records=build_batch([Record(value=value)]))
    data = ProduceRequestTopic(name=topic.name, partition_data=(partition,))
    message = ProduceRequest(acks=-1, timeout_ms=5000, topic_data=(data,))
    decoded = await ask(node, PRODUCE, 9, message, ProduceResponse)
    assert decoded.responses[0].name == topic.name
    return decoded.responses[0].partition_responses[0]


async def ask(
    node: TwoPartitionNode, key: int, version: int, message: Message, response: type[M]
) -> M:
    reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
    with contextlib.closing(writer):
        writer.write(frame(request(key, version, message)))
        answer = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
    _, body_at = decode_response_header(key, version, answer)
    return decode(response, version, answer, body_at)


def log_bytes(directory: Directory) -> bytes:
    files = find_files(directory.log_directory)
    return b"".join(batch.data for file in files for batch in file.batches())


def values(directory: Directory) -> list[bytes | None]:
    files = find_files(directory.log_directory)
    return [
        record.value
        for file in files
        for batch in file.batches()
        if not batch.header.is_control
        for record in iter_records(batch.data)
    ]


async def append(nodes: list[TwoPartitionNode], at: int, value: bytes) -> TwoPartitionNode:
    """Append at whichever node leads the partition; returns it."""
    while True:
        await until(lambda: leader(nodes, at) is not None)
        chosen = leader(nodes, at)
        assert chosen is not None
        answer = await produce(chosen, TOPICS[at], value)
        if answer.error_code == ErrorCode.NONE:
            return chosen
        # An election may still go on: nothing else is a reason.
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER, answer.error_message


def test_each_partition_elects_and_replicates_on_its_own(tmp_path: Path) -> None:
    async def work() -> None:
        async with three_nodes(tmp_path) as nodes:
            for number in range(5):
                for at, topic in enumerate(TOPICS):
                    await append(nodes, at, f"{topic.name} {number}".encode())
            for at, topic in enumerate(TOPICS):
                partitions = [node.partitions[at] for node in nodes]
                directories = [node.directories[at] for node in nodes]
                await until(lambda p=partitions: len({x.view.committed_offset for x in p}) == 1)
                assert len({x.node.epoch for x in partitions}) == 1
                assert len({x.view.leader_id for x in partitions}) == 1
                await until(lambda d=directories: len({log_bytes(x) for x in d}) == 1)
                assert values(directories[0]) == [
                    f"{topic.name} {number}".encode() for number in range(5)
                ]

    run(work())


def test_a_change_of_leader_in_one_partition_leaves_the_other_alone(tmp_path: Path) -> None:
    async def work() -> None:
        async with three_nodes(tmp_path) as nodes:
            for moved, other in ((0, 1), (1, 0)):
                old = await append(nodes, moved, b"before")
                quiet = await append(nodes, other, b"before")
                quiet_epoch = quiet.partitions[other].node.epoch
                before = old.partitions[moved].node.epoch
                old.partitions[moved].handle(ResignationRequested("a test", shutting_down=False))
                refused = await produce(old, TOPICS[moved], b"to a leader that resigned")
                assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
                chosen = await append(nodes, moved, b"after")
                assert chosen.partitions[moved].node.epoch > before
                assert await append(nodes, other, b"after") is quiet
                assert quiet.partitions[other].node.epoch == quiet_epoch

    run(work())


def test_a_topic_that_is_not_there_is_unknown(tmp_path: Path) -> None:
    async def work() -> None:
        async with three_nodes(tmp_path) as nodes:
            for name in ("order", "orders-audits", "x"):
                answer = await produce(nodes[0], TopicPartition(name, UUID(int=9), 0), b"x")
                assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run(work())


def test_a_vote_that_is_asked_for_before_the_start_is_answered_after_it(tmp_path: Path) -> None:
    """Who listens is asked, and has no role yet."""
    asked = VoteRequestPartition(
        replica_epoch=5, replica_id=2, replica_directory_id=UUID(int=2), last_offset=0
    )
    topic = VoteRequestTopic(topic_name=TOPICS[0].name, partitions=(asked,))

    async def work() -> None:
        node = await opened(tmp_path, 1, free_ports(len(IDS)))
        partition = node.partitions[0]
        try:
            answer = asyncio.create_task(
                ask(node, VOTE, 1, VoteRequest(topics=(topic,)), VoteResponse)
            )
            await until(lambda: bool(partition.raft_handler._asked))
            assert partition.node.epoch == 0
            for each in node.partitions:
                each.start()
            (voted,) = (await answer).topics[0].partitions
            assert (voted.leader_epoch, voted.vote_granted) == (5, True)
        finally:
            await stopped(node)

    run(work())
