"""A node listens before its partition starts: a request that comes in between waits for the start."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID

from quorumd.config.addresses import ConfiguredVoter
from quorumd.config.model import Config
from quorumd.raft.types import Endpoint
from quorumd.server.daemon_runtime import daemon_runtime
from quorumd.server.dispatch import Dispatch
from quorumd.server.model.metrics import Metrics
from quorumd.server.model.topic import METADATA
from quorumd.server.net.listeners import Listeners
from quorumd.server.node import open_partition
from quorumd.server.partition.stopping import close
from quorumd.storage.directory import format_directory, open_directory
from quorumd.storage.filesystem import RealFileSystem
from quorumd.wire.codec import decode
from quorumd.wire.headers import decode_response_header
from quorumd.wire.messages.vote import (
    VoteRequest,
    VoteRequestPartition,
    VoteRequestTopic,
    VoteResponse,
)
from tests.support.ports import free_ports
from tests.support.raw_client import frame, request
from tests.support.serving import run

VOTE, VERSION = 52, 1
CANDIDATE = VoteRequestPartition(
    replica_epoch=5, replica_id=2, replica_directory_id=UUID(int=2), last_offset=0
)


def failed(reason: str, error: BaseException | None) -> None:
    raise AssertionError(reason) from error


async def ask_for_a_vote(port: int) -> VoteResponse:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    topic = VoteRequestTopic(topic_name=METADATA.name, partitions=(CANDIDATE,))
    try:
        writer.write(frame(request(VOTE, VERSION, VoteRequest(topics=(topic,)))))
        response = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
    finally:
        writer.close()
    _, body_at = decode_response_header(VOTE, VERSION, response)
    return decode(VoteResponse, VERSION, response, body_at)


def test_a_vote_that_is_asked_for_before_the_start_is_answered_after_it(tmp_path: Path) -> None:
    async def work() -> None:
        ports = free_ports(3)
        at = Endpoint("CONTROLLER", "127.0.0.1", ports[0])
        config = Config(
            node_id=1,
            storage_dir=tmp_path,
            listeners=(at,),
            advertised_listeners=(at,),
            quorum_voters=tuple(
                ConfiguredVoter(node, "127.0.0.1", port) for node, port in enumerate(ports, 1)
            ),
        )
        fs, metrics = RealFileSystem(), Metrics()
        format_directory(fs, tmp_path, node_id=1, bootstrap=True)
        directory = open_directory(fs, tmp_path, node_id=1)
        partition = open_partition(
            METADATA, config, fs, directory, metrics, failed, daemon_runtime()
        )
        listeners = Listeners(
            (at,),
            Dispatch(partition, metrics),
            metrics,
            max_frame_bytes=1 << 20,
            max_connections=100,
            max_idle_ms=0,
        )
        await listeners.open()
        try:
            response = asyncio.create_task(ask_for_a_vote(at.port))
            while not metrics.requests[VOTE]:  # noqa: ASYNC110  # there is no event to wait for
                await asyncio.sleep(0.005)
            assert (partition.node.epoch, response.done()) == (0, False)
            partition.start()
            (voted,) = (await response).topics[0].partitions
            assert (voted.leader_epoch, voted.vote_granted) == (5, True)
        finally:
            await listeners.close(0)
            await close(partition)
            directory.close()

    run(work())
