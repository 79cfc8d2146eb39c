"""What first requests need is prepared when a node has started, and never much of it at once."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path
from threading import Thread

import pytest

from quorumd.config.addresses import ConfiguredVoter
from quorumd.config.model import Config
from quorumd.raft.types import Endpoint
from quorumd.server import node as node_module
from quorumd.server.node import Node
from quorumd.storage.directory import format_directory, open_directory
from quorumd.storage.filesystem import RealFileSystem
from quorumd.testing.node_host import NodeHost
from quorumd.wire import codec
from quorumd.wire.codec import Codec
from quorumd.wire.registry import APIS, ELECTION_KEYS, warm, warm_all
from quorumd.wire.schema import Message
from tests.support.ports import free_ports
from tests.support.serving import run
from tests.support.work import STEPS_PER_MS, steps

Codecs = dict[tuple[type[Message], int], Codec]
EVERYTHING = {
    (cls, version)
    for spec in APIS.values()
    for cls in (spec.request, spec.response)
    for version in range(spec.min_version, spec.max_version + 1)
}
STEPS_MAX = 3 * STEPS_PER_MS


@pytest.fixture
def codecs(monkeypatch: pytest.MonkeyPatch) -> Codecs:
    """Those that are compiled: none so far."""
    made: Codecs = {}
    monkeypatch.setattr(codec, "_codecs", made)
    return made


@pytest.mark.long
@pytest.mark.pure
def test_one_codec_is_compiled_at_a_time_the_newest_versions_first(codecs: Codecs) -> None:
    warm(ELECTION_KEYS)
    assert {cls.wire_spec.api_key for cls, _ in codecs} == set(ELECTION_KEYS)
    codecs_left = warm_all()
    is_done = False

    def step() -> None:
        nonlocal is_done
        is_done = next(codecs_left, ...) is ...

    while not is_done:
        before = len(codecs)
        assert steps(step) < STEPS_MAX
        assert len(codecs) - before <= 1
    assert set(codecs) == EVERYTHING
    newest = {
        (cls, spec.max_version) for spec in APIS.values() for cls in (spec.request, spec.response)
    }
    assert set(list(codecs)[: len(newest)]) == newest


@pytest.mark.long
def test_a_node_that_runs_prepares_all_codecs(
    codecs: Codecs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(node_module, "WARM_AFTER_S", 0.01)
    monkeypatch.setattr(node_module, "WARM_PAUSE_S", 0.001)

    async def work() -> None:
        (port,) = free_ports(1)
        at = Endpoint("CONTROLLER", "127.0.0.1", port)
        fs = RealFileSystem()
        format_directory(fs, tmp_path / "node", node_id=1, bootstrap=True)
        directory = open_directory(fs, tmp_path / "node", node_id=1)
        config = Config(
            node_id=1,
            storage_dir=tmp_path / "node",
            listeners=(at,),
            advertised_listeners=(at,),
            quorum_voters=(ConfiguredVoter(1, at.host, at.port),),
        )
        exits: list[int] = []
        node = Node(config, fs, directory, exits.append)
        life = asyncio.create_task(node.run())
        while len(codecs) < len(EVERYTHING):  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.001)
        node.stop()
        await life
        assert exits == []

    run(work(), deadline_s=30)


@pytest.mark.long
def test_a_process_that_forks_nodes_prepares_all_codecs_while_nobody_asks(codecs: Codecs) -> None:
    own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with own, other:
        host = Thread(target=NodeHost(own).serve)
        host.start()
        while len(codecs) < len(EVERYTHING):
            time.sleep(0.001)
        other.shutdown(socket.SHUT_WR)
        host.join(30)
        assert not host.is_alive()


class DummyHandler:
    def handle(self) -> None: ...


class DummyPartition:
    produce_handler = DummyHandler()
