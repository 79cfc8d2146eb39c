"""One node: its directory, its partitions, its listeners, and its life from start to stop."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from quorumd.config.connection_limits import ConnectionLimits
from quorumd.config.errors import BadValue
from quorumd.config.model import Config
from quorumd.raft.config import RaftConfig, StoredState
from quorumd.raft.types import Address, Endpoint, ReplicaKey, Voter, VoterSet, uuid_to_text
from quorumd.security.handshakes import Handshakes
from quorumd.server.admin.initial_voters import parse_initial_voters
from quorumd.server.daemon_runtime import daemon_runtime
from quorumd.server.disk.recovered_log import RecoveredLog
from quorumd.server.dispatch import Dispatch
from quorumd.server.http.http_server import HttpServer, MetricsPage
from quorumd.server.model.logs import Logger
from quorumd.server.model.metrics import Metrics
from quorumd.server.model.producer_state import ProducerState
from quorumd.server.model.runtime import Runtime
from quorumd.server.model.topic import METADATA, TopicPartition
from quorumd.server.model.unhandled import SHORTAGE, end_on_unhandled, is_shortage
from quorumd.server.net.listeners import Listeners
from quorumd.server.net.turns import Turns
from quorumd.server.node_status import access_as_json
from quorumd.server.partition.partition import Partition, PartitionHooks, PartitionSettings
from quorumd.server.partition.stopping import close, hand_over
from quorumd.server.peers.outbound import OutboundSettings
from quorumd.server.requests.raft_gate import RaftGate
from quorumd.server.snapshots.settings import SnapshotSettings
from quorumd.server.translate.fetch import FETCH_MAX_WAIT_MS
from quorumd.storage.directory import Directory
from quorumd.storage.errors import (
    EXIT_FAILED,
    DamagedFile,
    DamagedLog,
    DamagedSnapshot,
    StorageError,
)
from quorumd.storage.filesystem import FileSystem
from quorumd.storage.layout import META_PROPERTIES
from quorumd.storage.log import Log
from quorumd.storage.meta_properties import LogOwner, random_storage_id
from quorumd.storage.quorum_state import QuorumState
from quorumd.storage.snapshot_file import SnapshotFacts, check_cluster
from quorumd.storage.snapshot_store import SnapshotStore
from quorumd.version import VERSION, form
from quorumd.wire.batch_header import BatchHeader
from quorumd.wire.registry import ELECTION_KEYS, warm, warm_all

if TYPE_CHECKING:
    from quorumd.server.node_tls import NodeTls
    from quorumd.server.page.page import QuorumPage

LOG = Logger("node")

TAIL_CACHE_BYTES = 16 * 2**20
CLOSE_GRACE_S = 2.0
WARM_AFTER_S = 2.0
"""Delay of preparing the codecs that no election needs, from the start; a request before compiles its own."""
WARM_PAUSE_S = 0.02
"""Between two of them: 2 ms of work each, some 200 in all."""


def open_log(
    fs: FileSystem, directory: Directory, config: Config, applied_offset: int
) -> RecoveredLog:
    """Recover a partition's log, and what it and its snapshots say of producers. Raises StorageError."""
    snapshots = SnapshotStore(fs, directory.log_directory)
    facts = _sound_snapshots(snapshots, directory.meta.cluster_id, applied_offset)
    producers, new_bytes = ProducerState(), 0
    if facts:
        newest = facts[-1]
        producers.load(newest.producers)
        applied_offset = max(applied_offset, newest.id.end_offset)
    producers.commit(applied_offset)

    def observe(header: BatchHeader) -> None:
        nonlocal new_bytes
        new_bytes += header.size_bytes
        producers.note(header)

    try:
        log = Log.open(
            fs,
            directory.log_directory,
            segment_bytes=config.log_segment_bytes,
            tail_cache_bytes=TAIL_CACHE_BYTES,
            committed_offset=applied_offset,
            observe=observe,
            snapshots=[found.id for found in facts],
        )
    except DamagedLog:
        for damage in snapshots.damaged:
            LOG.error("snapshot unusable", reason=str(damage))
        raise
    LOG.info(
        "log opened",
        path=directory.log_directory,
        log_start=log.log_start_offset,
        log_end=log.log_end_offset,
        epoch=log.last_epoch,
    )
    for message in log.recovery.messages():
        LOG.warning(message)
    for damage in snapshots.damaged:
        LOG.error(
            "snapshot unusable, ignored: the log does not need it. Inspect it, then delete it",
            reason=f"{damage.path}: {damage.what}",
        )
    return RecoveredLog(
        log=log, snapshots=snapshots, facts=facts, producers=producers, new_bytes=new_bytes
    )


def _sound_snapshots(
    snapshots: SnapshotStore, cluster_id: str | None, applied_offset: int
) -> list[SnapshotFacts]:
    """Facts of the snapshots of a directory, ascending, without the unusable ones.

    One that ends above what is known to be committed may stand for more than the log holds, which is
    dropped then: all of it is read before. Raises StorageError if the disk fails.
    """
    sound = []
    for facts in snapshots.open():
        try:
            check_cluster(facts, cluster_id, snapshots.path(facts.id))
            if facts.id.end_offset > applied_offset:
                snapshots.verify(facts.id)
        except DamagedSnapshot as damage:
            snapshots.quarantine(facts.id, damage)
        else:
            sound.append(facts)
    return sound


def raft_config(config: Config, directory: Directory, new_cluster_id: str) -> RaftConfig:
    """The configuration of the rules, from the node's and from meta.properties."""
    meta = directory.meta
    peers_listener = config.advertised_listeners[0].name
    return RaftConfig(
        local=ReplicaKey(meta.node_id, meta.storage_id),
        endpoints=config.advertised_listeners,
        configured_voters=VoterSet.of(
            Voter(ReplicaKey(voter.id), (Endpoint(peers_listener, voter.host, voter.port),))
            for voter in config.quorum_voters
        ),
        formatted_voters=_formatted_voters(directory, peers_listener),
        bootstrap_servers=len(config.quorum_bootstrap_servers),
        is_bootstrap=meta.bootstrap,
        cluster_id=meta.cluster_id,
        new_cluster_id=new_cluster_id,
        fetch_timeout_ms=config.quorum_fetch_timeout_ms,
        election_timeout_ms=config.quorum_election_timeout_ms,
        election_backoff_max_ms=config.quorum_election_backoff_max_ms,
        retry_backoff_ms=config.quorum_retry_backoff_ms,
        retry_backoff_max_ms=config.quorum_retry_backoff_max_ms,
        is_witness=config.quorum_witness,
        auto_join=config.quorum_auto_join,
        was_removed=meta.removed,
        is_kafka_log=meta.log_owner is LogOwner.KAFKA,
        snapshot_bytes_per_s=config.snapshot_bandwidth_bytes_per_second,
    )


def _formatted_voters(directory: Directory, listener: str) -> VoterSet:
    """The voters that the directory was formatted with, none if it was not. Raises DamagedFile."""
    text = directory.meta.initial_voters
    try:
        return parse_initial_voters(text, listener) if text else VoterSet()
    except BadValue as error:
        raise DamagedFile(
            f"initial.voters: {error}",
            path=directory.path / META_PROPERTIES,
            remedy="Correct the file by hand, or restore it from a backup",
        ) from error


def stored_state(state: QuorumState) -> StoredState:
    """The rules' view of quorum-state.json."""
    leader = voted = None
    if state.leader_id is not None:
        leader = ReplicaKey(state.leader_id, state.leader_uuid)
    if state.voted_id is not None:
        voted = ReplicaKey(state.voted_id, state.voted_uuid)
    return StoredState(
        epoch=state.leader_epoch, leader=leader, voted=voted, applied_offset=state.applied_offset
    )


def open_partition(
    topic: TopicPartition,
    config: Config,
    fs: FileSystem,
    directory: Directory,
    metrics: Metrics,
    fail: Callable[[str, BaseException | None], None],
    runtime: Runtime,
) -> Partition:
    """Recover a partition and put it together; it does nothing before its `start`."""
    state = directory.begin()
    recovered = open_log(fs, directory, config, state.applied_offset)
    outbound = OutboundSettings(
        listener=config.advertised_listeners[0].name,
        software_version=VERSION,
        request_timeout_ms=config.quorum_request_timeout_ms,
        # A Fetch response later than the fetch timeout would depose an idle leader.
        fetch_wait_ms=min(FETCH_MAX_WAIT_MS, config.quorum_fetch_timeout_ms // 2),
        bootstrap_servers=config.quorum_bootstrap_servers,
    )

    def adopt_cluster_id(cluster_id: str) -> None:
        directory.save_meta(replace(directory.meta, cluster_id=cluster_id))

    def remember_removal() -> None:
        directory.save_meta(replace(directory.meta, removed=True))

    hooks = PartitionHooks(
        save_state=directory.save_quorum_state,
        adopt_cluster_id=adopt_cluster_id,
        remember_removal=remember_removal,
        fail=fail,
    )
    settings = PartitionSettings(
        raft=raft_config(config, directory, uuid_to_text(random_storage_id(runtime.draw))),
        outbound=outbound,
        snapshots=SnapshotSettings(
            max_new_record_bytes=config.snapshot_max_new_record_bytes,
            interval_s=config.snapshot_interval_ms / 1000,
            retention_bytes=config.retention_bytes,
            retention_ms=config.retention_ms,
            builds=directory.meta.log_owner is LogOwner.QUORUMD,
            copier_silent_s=5 * config.quorum_fetch_timeout_ms / 1000,
        ),
        max_batch_bytes=config.log_max_batch_bytes,
        condition_window_bytes=config.conditions_window_bytes,
        is_tls=config.security_of(config.advertised_listeners[0].name) is not None,
    )
    return Partition(topic, recovered, stored_state(state), settings, metrics, hooks, runtime)


class Node:
    """Runs until it is stopped."""

    def __init__(
        self,
        config: Config,
        fs: FileSystem,
        directory: Directory,
        exit_process: Callable[[int], None],
    ) -> None:
        self.config = config
        self.metrics = Metrics()
        self._directory = directory
        self._exit_process = exit_process
        self._stop = asyncio.Event()
        self._has_failed = False
        self.handshakes = Handshakes(self._is_voters_ip, Turns(asyncio.get_running_loop()))
        self.tls = self._make_tls()
        runtime = daemon_runtime(None if self.tls is None else self.tls.links)
        self.partition = open_partition(
            METADATA, config, fs, directory, self.metrics, self.fail, runtime
        )
        self._gate = self._raft_gate()
        self.dispatch = Dispatch(
            self.partition,
            self.metrics,
            self._gate,
            peers_in_plaintext=self._has_plaintext_links,
        )
        self.listeners = Listeners(
            config.listeners,
            self.dispatch,
            self.metrics,
            max_frame_bytes=config.socket_request_max_bytes,
            max_connections=config.max_connections,
            max_idle_ms=config.connections_max_idle_ms,
            known=self.partition.outbound.addresses,
            handshakes=self.handshakes,
            sides={} if self.tls is None else self.tls.sides,
            may_speak_for=None if self.tls is None else self.tls.may_speak_for,
            is_behind=self.partition.outbound.is_behind if self._has_tls_links else None,
            limits=ConnectionLimits(
                config.max_connections_per_ip,
                config.max_connections_per_ip_overrides,
                config.max_connection_creation_rate,
            ),
            limits_of=config.listener_limits,
        )
        self.http: HttpServer | None = None
        self._page: QuorumPage | None = None
        if config.http_listen is not None:
            self._make_http(config.http_listen)

    def _is_voters_ip(self, ip: str) -> bool:
        return self.partition.outbound.addresses.is_voters_ip(ip)

    def _make_tls(self) -> NodeTls | None:
        if not self.config.tls_ports:
            return None
        # A node without TLS does not load what it takes.
        from quorumd.server.node_tls import NodeTls

        return NodeTls(self.config, self.metrics, self.handshakes)

    def _raft_gate(self) -> RaftGate | None:
        """None where the first listener, the peers', is plaintext: a request there proves no identity."""
        if self.tls is None or self.tls.links is None:
            return None
        is_behind = self.partition.outbound.is_behind
        return RaftGate(self.tls.links.rights, is_behind, self.tls.takes_nodes, self.metrics)

    @property
    def _has_tls_links(self) -> bool:
        return self.tls is not None and self.tls.links is not None

    @property
    def _has_plaintext_links(self) -> bool:
        """Though there is a TLS listener, which other nodes may connect to."""
        return self.tls is not None and self.tls.links is None and bool(self.tls.sides)

    def _make_http(self, address: Address) -> None:
        # A node without these pages does not load what they take.
        from quorumd.server.page.page import QuorumPage
        from quorumd.server.page.source import source_of

        metrics = MetricsPage(
            self.metrics,
            self.partition.view,
            VERSION,
            self.config.storage_dir,
            lambda: self.ready()[0],
        )
        self._page = QuorumPage(source_of(self.partition, self.config, self.status, self.warnings))
        self.http = HttpServer(
            address,
            ready=self.ready,
            status=self.status,
            metrics=metrics.render,
            pages=self._page.pages,
            tls=None if self.tls is None else self.tls.http(),
        )

    # -- life

    async def run(self) -> None:
        """Start, serve, and stop in order on SIGTERM or SIGINT. Raises ListenError."""
        loop = asyncio.get_running_loop()
        end_on_unhandled(loop, self.fail)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        loop.add_signal_handler(signal.SIGHUP, self._read_files_again)
        await self.listeners.open()
        if self.http is not None and self._page is not None:
            await self.http.open()
            self._page.open()
        if self.tls is not None:
            self.tls.open(self.listeners)
        LOG.info(
            "started",
            node=self.config.node_id,
            listeners=",".join(str(listener) for listener in self.listeners.addresses),
            http=self.config.http_listen or "-",
            storage=self.config.storage_dir,
            cluster_id=self._directory.meta.cluster_id or "-",
        )
        warm(ELECTION_KEYS)
        self.partition.start()
        loop.call_later(WARM_AFTER_S, self._warm, warm_all())
        await self._stop.wait()
        await self._shut_down()

    def _read_files_again(self) -> None:
        if self.tls is None:
            LOG.info("SIGHUP: this node has no keys and certificates to read")
        else:
            self.tls.read_again()

    def _warm(self, steps: Iterator[None]) -> None:
        """Prepare a codec, and others later: no client's request waits until a codec is compiled."""
        for _ in steps:
            asyncio.get_running_loop().call_later(WARM_PAUSE_S, self._warm, steps)
            return

    def stop(self) -> None:
        """Ask for an orderly stop; asked twice, it is an immediate one."""
        if self._stop.is_set():
            LOG.warning("asked to stop a second time: stopping at once")
            self._exit_process(EXIT_FAILED)
        self._stop.set()

    async def _shut_down(self) -> None:
        LOG.info("stopping")
        timeout_s = self.config.quorum_request_timeout_ms / 1000
        await hand_over(self.partition, timeout_s)
        if self.tls is not None:
            self.tls.close()
        await self.listeners.close(CLOSE_GRACE_S)
        if self.http is not None and self._page is not None:
            await self.http.close()
            await self._page.close()
        await close(self.partition)
        self.handshakes.close()
        self._directory.close()
        LOG.info("stopped")

    def fail(self, reason: str, error: BaseException | None) -> None:
        """End the process now: nothing was acknowledged that is not on disk."""
        if self._has_failed:
            return
        self._has_failed = True
        if isinstance(error, StorageError):
            LOG.error(reason, error=str(error))
        elif error is not None:
            LOG.critical(SHORTAGE if is_shortage(error) else reason, error)
        else:
            LOG.error(reason)
        self._exit_process(error.exit_code if isinstance(error, StorageError) else EXIT_FAILED)

    # -- health

    def ready(self) -> tuple[bool, str]:
        """Attached to a leader and caught up with it; else why not."""
        problems = self.partition.health.problems()
        return not problems, "; ".join(problems) or "ready"

    def warnings(self) -> list[str]:
        """Warnings about dangers now, and problems to come, in words."""
        found = self.partition.health.warnings()
        if self._gate is not None:
            found += self._gate.warnings()
        return found if self.tls is None else [*found, *self.tls.warnings()]

    def status(self) -> dict[str, object]:
        """Everything an operator asks first, as JSON."""
        return {
            "node_id": self.config.node_id,
            "version": VERSION,
            "form": form(),
            "pid": os.getpid(),
            "storage_dir": str(self.config.storage_dir),
            "storage_id": uuid_to_text(self._directory.meta.storage_id),
            "ready": self.ready()[0],
            "connections": dict(self.metrics.connections_by_kind),
            "unknown": dict(self.metrics.unknown),
            **access_as_json(self.config, self.listeners.connections, self.tls),
            **self.partition.health.as_json(),
            "warnings": self.warnings(),
        }
