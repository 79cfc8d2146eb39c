"""One replicated partition of a node: rules, log, disk, peers and clients, put together.

Everything that can happen to it passes through `handle`: an exception there is a broken invariant or a
failed disk, and ends the process before it can harm the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from quorumd.raft.config import RaftConfig, StoredState
from quorumd.raft.effects import AnnounceHighWatermark, AnnounceRole, AnnounceVoters
from quorumd.raft.errors import KafkaError, Refusal
from quorumd.raft.events import (
    AppendRequested,
    ChunkNotStored,
    DiskSpaceChanged,
    Event,
    ResignationRequested,
    SnapshotVerified,
)
from quorumd.raft.node import RaftNode
from quorumd.raft.roles import Role
from quorumd.raft.types import SnapshotId, VoterSet
from quorumd.server.disk.recovered_log import RecoveredLog, log_view, voters_of
from quorumd.server.disk.storage_adapter import StorageAdapter
from quorumd.server.model.disk_jobs import Files
from quorumd.server.model.kafka_drift import KafkaDrift
from quorumd.server.model.logs import Logger, RateLimit
from quorumd.server.model.metrics import Metrics
from quorumd.server.model.runtime import Runtime
from quorumd.server.model.topic import TopicPartition
from quorumd.server.partition.controller_registration import ControllerRegistration
from quorumd.server.partition.driver import Driver
from quorumd.server.partition.health import PartitionHealth
from quorumd.server.partition.raft_view import RaftPartitionView
from quorumd.server.partition.runtime_timer import RuntimeTimer
from quorumd.server.partition.witness_lead import WitnessLead
from quorumd.server.peers.outbound import Outbound, OutboundSettings
from quorumd.server.requests.fetch import FetchHandler
from quorumd.server.requests.offsets import OffsetsHandler
from quorumd.server.requests.produce import ProduceHandler
from quorumd.server.requests.raft_requests import RaftRequestHandler
from quorumd.server.requests.take_snapshot import take_snapshot
from quorumd.server.snapshots.manager import SnapshotManager
from quorumd.server.snapshots.settings import SnapshotSettings
from quorumd.server.translate.unknown_records import KafkaNews, news_of
from quorumd.storage.errors import DamagedLog, DamagedSnapshot, DiskFailed, StorageError
from quorumd.storage.quorum_state import QuorumState
from quorumd.storage.snapshot_file import SnapshotFacts
from quorumd.storage.snapshot_store import SnapshotNotFound

LOG: Final = Logger("raft")

SLOW_WRITE_S: Final = 1.0
"""A write that takes so long may be why this replica heard nothing of the leader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionHooks:
    """The node's functions that a partition calls."""

    save_state: Callable[[QuorumState], None]
    """Write quorum-state.json; runs on the disk's thread."""
    adopt_cluster_id: Callable[[str], None]
    """Write the cluster id to meta.properties; runs on the reader's thread."""
    remember_removal: Callable[[], None]
    """Write to meta.properties that this node was removed; runs on the reader's thread."""
    fail: Callable[[str, BaseException | None], None]
    """End the process, saying why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSettings:
    """The configuration of a partition."""

    raft: RaftConfig
    outbound: OutboundSettings
    snapshots: SnapshotSettings
    max_batch_bytes: int
    condition_window_bytes: int
    is_tls: bool = False
    """The peers' listener speaks TLS."""


class Partition:
    """See the module's docstring. Construct it, then `start`.

    It is the listener of its driver and its disk, and takes what producers append.
    """

    def __init__(
        self,
        topic: TopicPartition,
        recovered: RecoveredLog,
        stored: StoredState,
        settings: PartitionSettings,
        metrics: Metrics,
        hooks: PartitionHooks,
        runtime: Runtime,
    ) -> None:
        self.topic = topic
        self.metrics = metrics
        self._hooks = hooks
        self._runtime = runtime
        self._is_draining = False
        self._election_since: float | None = None
        self._logged_at: tuple[int, int | None] | None = None
        """The epoch and the leader of the last line about a role."""
        self._role_lines = RateLimit(1 / 60, burst=10, clock=runtime.monotonic_s)
        self.progress = asyncio.Event()
        """Set whenever something was committed or a role changed."""
        self._report_lines = RateLimit(per_second=2, burst=20)
        self.log, self.store = recovered.log, recovered.snapshots
        self.producers = recovered.producers
        self.producers.commit(stored.applied_offset)
        self.reader = runtime.reader(self.log, self.on_unreadable)
        self.disk = runtime.disk(Files(self.log, self.store, hooks.save_state), self)
        self.node = RaftNode(settings.raft, stored, log_view(recovered), runtime.draw)
        self._drift = KafkaDrift(metrics)
        self.view = RaftPartitionView(
            topic,
            self.node,
            self._drift,
            runtime.monotonic_ms,
            runtime.wall_ms,
            self.disk.write_age_s,
        )
        self._make_client_handlers(settings, recovered)
        self._make_peer_handlers(settings, recovered)
        self.health = PartitionHealth(
            self.node, self.view, self.snapshots, self.outbound.links, runtime.monotonic_s
        )
        self._registration = ControllerRegistration(
            self.node, self.outbound.ask_leader, runtime, self._drift, is_tls=settings.is_tls
        )
        self._witness_lead = WitnessLead(
            self.node, self.outbound.ask_leader, runtime, metrics, topic
        )
        self._timer = RuntimeTimer(runtime, self._on_timer)
        self.driver = Driver(
            self.node,
            self._storage_adapter,
            self.outbound.send_request,
            self.raft_handler.send_reply,
            self,
            self._timer,
            runtime.monotonic_ms,
        )
        self.driver.hold()

    def _make_client_handlers(self, settings: PartitionSettings, recovered: RecoveredLog) -> None:
        """Handlers of clients, and the storage that appends for them: each is given what it calls."""
        runtime, metrics = self._runtime, self.metrics
        self.fetch_handler = FetchHandler(self.view, self.log, self.reader, runtime)
        self.offsets_handler = OffsetsHandler(self.view, self.log, self.reader)
        self.produce_handler = ProduceHandler(
            self.view,
            self,
            self.producers,
            metrics,
            settings.max_batch_bytes,
            runtime,
            self._call_soon,
            settings.condition_window_bytes,
            # Twice the check of the quorum: what it heard may be half as old as that.
            3 * settings.raft.fetch_timeout_ms / 1000,
        )
        self._storage_adapter = StorageAdapter(
            self.log,
            self.disk,
            self.producers,
            metrics,
            lambda: self.node.cluster_id,
            self.produce_handler,
            self._on_snapshot_installed,
            recovered.facts[-1] if recovered.facts else None,
            runtime.wall_ms,
        )

    def _make_peer_handlers(self, settings: PartitionSettings, recovered: RecoveredLog) -> None:
        """Snapshots, and the requests of this node and of its peers. They need the storage."""
        runtime, metrics = self._runtime, self.metrics
        self.snapshots = SnapshotManager(
            settings.snapshots,
            self.node,
            self.log,
            self.store,
            self.reader,
            runtime,
            metrics,
            self.handle,
            self._storage_adapter,
            recovered.facts,
            recovered.new_bytes,
        )
        self.take_snapshot = partial(take_snapshot, self.snapshots, runtime)
        self.outbound = Outbound(
            self.topic,
            settings.outbound,
            self.node,
            self._storage_adapter,
            metrics,
            self.handle,
            runtime,
            self._drift,
        )
        self.raft_handler = RaftRequestHandler(
            self.topic,
            self.reader,
            self.store,
            self.snapshots,
            metrics,
            self.handle,
            settings.outbound.request_timeout_ms,
            is_kafka_log=settings.raft.is_kafka_log,
        )

    # -- life

    def start(self) -> None:
        """Begin to take part."""
        self.disk.start()
        self._connect_to(self.node.voters)
        self.driver.start()
        self.snapshots.start()

    def drain(self) -> None:
        """Take no append from now on, because the node stops."""
        self._is_draining = True

    def resign(self) -> None:
        """Give leadership away, and take no append from now on, because the node stops."""
        self.drain()
        self.handle(ResignationRequested(reason="the node shuts down", shutting_down=True))
        self.fetch_handler.on_leadership_lost()

    def stop(self) -> None:
        """Take no event any more, neither of a timer; what was queued is still written."""
        self.driver.stop()
        self._timer.cancel()
        self._registration.close()
        self._witness_lead.close()
        self.snapshots.close()
        self.produce_handler.close()
        self.fetch_handler.close()

    # -- events

    def handle(self, event: Event) -> None:
        """Let the rules decide on an event, and carry out their effects."""
        try:
            self.driver.handle(event)
        except BaseException as error:
            self.end_process(error)
            raise

    def _on_timer(self) -> None:
        self._guarded(self.driver.on_timer)

    def catch_up(self) -> None:
        """For a read: who stood still for longer than its check quorum has to learn that first."""
        self._guarded(self.driver.catch_up)

    def on_writes_completed(self, write: int, sync_s: float | None) -> None:
        try:
            self.driver.on_writes_completed(write)
        except BaseException as error:
            self.end_process(error)
            raise
        if sync_s is not None:
            self.metrics.observe_fsync(sync_s)

    def _call_soon(self, callback: Callable[[], None]) -> None:
        """Call at the end of this turn of the event loop; an error ends the process, as in `handle`."""
        self._runtime.call_soon(partial(self._guarded, callback))

    def _guarded(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except BaseException as error:
            self.end_process(error)
            raise

    def end_process(self, error: BaseException) -> None:
        """A rule that failed must not be tried again on half-changed state."""
        if isinstance(error, StorageError):
            self.on_disk_failed(error)
        else:
            what = "a rule of the quorum is broken; this is a bug, please report it"
            self._hooks.fail(what, error)

    def on_state_saved(self, write: int) -> None:
        self._guarded(partial(self.driver.on_state_saved, write))

    def on_disk_failed(self, error: BaseException) -> None:
        self._hooks.fail("the disk failed", error)

    def on_unreadable(self, error: DamagedLog | DiskFailed) -> None:
        """Stops a node that cannot read committed records: it must neither lead nor count as a copy.

        Of damage the rest is still to be written, or to be truncated.
        """
        if isinstance(error, DiskFailed):
            self.on_disk_failed(error)
        elif error.offset is not None and error.offset < self.view.committed_offset:
            self._hooks.fail("the log is damaged", error)

    def on_disk_full(self, is_full: bool) -> None:
        self.health.is_disk_full = is_full
        self.handle(DiskSpaceChanged(is_full=is_full))
        if is_full:
            LOG.error("the disk is full: nothing is appended until there is space again")
            self._give_lead_away_if_committed()
        else:
            LOG.info("there is space on the disk again")

    def _give_lead_away_if_committed(self) -> None:
        """Once a majority without this replica has all that finds no space here: the next leader can commit.

        Else it may be that nobody could, and here at least what is committed can be read. A part is no proof:
        the others' disks may have filled up with it.
        """
        node = self.node
        if (
            node.is_leader
            and self.view.committed_offset == node.log_end_offset > node.synced_end_offset
        ):
            self.handle(ResignationRequested(reason="the disk is full", shutting_down=False))

    def on_chunk_not_stored(self, snapshot: SnapshotId, problem: str) -> None:
        LOG.error("there is no room for the leader's snapshot: what was copied is deleted")
        self.metrics.snapshots.copies_failed += 1
        self.handle(ChunkNotStored(snapshot=snapshot, problem=problem))

    # -- the driver's listener

    def on_high_watermark(self, effect: AnnounceHighWatermark) -> None:
        self.produce_handler.parked.on_high_watermark(effect.offset)
        self.fetch_handler.on_high_watermark()
        self.producers.commit(effect.offset)
        self.snapshots.build_if_due()
        if self.health.is_disk_full:
            self._give_lead_away_if_committed()
        self.progress.set()

    def _on_snapshot_installed(self, facts: SnapshotFacts) -> None:
        self.snapshots.note_installed(facts)

    def on_role(self, effect: AnnounceRole) -> None:
        self.health.note_role()
        self._log_role(effect)
        self._note_election(effect)
        self.outbound.on_role()
        self._registration.on_role()
        self._witness_lead.on_role()
        if effect.role is not Role.LEADER:
            self.produce_handler.on_leadership_lost()
            self.fetch_handler.on_leadership_lost()
        self.progress.set()

    def _log_role(self, effect: AnnounceRole) -> None:
        """Always if the epoch or the leader is another; a replica that campaigns in vain does it for long."""
        at, self._logged_at = self._logged_at, (effect.epoch, effect.leader_id)
        more = {} if at != self._logged_at else self._role_lines.take_fields()
        if more is not None:
            age_s = self.disk.write_age_s()
            if age_s >= SLOW_WRITE_S:
                more["disk_silent_s"] = round(age_s, 1)
            leader = "-" if effect.leader_id is None else effect.leader_id
            LOG.info(
                f"{effect.role}", epoch=effect.epoch, leader=leader, reason=effect.reason, **more
            )

    def on_voters(self, effect: AnnounceVoters) -> None:
        """A voter that is known by another key than before is another peer: connect to it now."""
        self._connect_to(effect.voters)

    def _connect_to(self, voters: VoterSet) -> None:
        self.outbound.prepare([key for key in voters.keys if not self.node.is_local(key)])

    def _note_election(self, effect: AnnounceRole) -> None:
        """Takes the time that this replica was without a leader since it began to campaign."""
        if effect.role in (Role.PROSPECTIVE, Role.CANDIDATE):
            self._election_since = self._election_since or self._runtime.monotonic_s()
        elif self._election_since is not None and effect.leader_id is not None:
            self.metrics.observe_election(self._runtime.monotonic_s() - self._election_since)
            self.metrics.count_election("won" if effect.role is Role.LEADER else "lost")
            self._election_since = None

    def on_cluster_id(self, cluster_id: str) -> None:
        LOG.info("cluster id is committed", cluster_id=cluster_id)

        def done(outcome: BaseException | None) -> None:
            if isinstance(outcome, BaseException):
                self._hooks.fail("the cluster id could not be stored", outcome)

        self.reader.run(lambda: self._hooks.adopt_cluster_id(cluster_id), done)

    def on_removed(self) -> None:
        LOG.info("this node was removed from the voters: it will not join again by itself")

        def done(outcome: BaseException | None) -> None:
            if isinstance(outcome, BaseException):
                self._hooks.fail("the removal could not be stored", outcome)

        self.reader.run(self._hooks.remember_removal, done)

    def on_snapshot_copied(self, snapshot: SnapshotId) -> None:
        def verify() -> tuple[SnapshotFacts, KafkaNews]:
            facts = self.store.verify_part(snapshot)
            is_kafkas = self.node.config.is_kafka_log
            return facts, news_of(self.store.part_batches(snapshot) if is_kafkas else ())

        def done(outcome: tuple[SnapshotFacts, KafkaNews] | BaseException) -> None:
            if isinstance(outcome, (DamagedSnapshot, SnapshotNotFound)):
                self.metrics.snapshots.copies_failed += 1
                self.handle(SnapshotVerified(snapshot=snapshot, problem=str(outcome)))
            elif isinstance(outcome, BaseException):
                self.end_process(outcome)
            else:
                facts, news = outcome
                self._drift.note_records(*news)
                self._storage_adapter.hold_copied(facts)
                self.handle(SnapshotVerified(snapshot=snapshot, voters=voters_of(facts)))

        self.reader.run(verify, done)

    def on_report(self, reason: str) -> None:
        self.health.last_report = reason
        self.metrics.count_ignored("by the rules")
        if self._report_lines.take() is not None:
            LOG.info(reason)

    def on_halt(self, reason: str) -> None:
        self._hooks.fail(reason, None)

    # -- what producers ask for

    @property
    def append_refusal(self) -> Refusal | None:
        """The reason why nothing can be appended now; None if it can."""
        refusal = self.node.append_refusal
        if refusal is not None:
            return refusal
        if self.health.is_disk_full:
            return Refusal(KafkaError.KAFKA_STORAGE_ERROR, "the disk of this node is full")
        if self._is_draining:
            return Refusal(KafkaError.NOT_LEADER_OR_FOLLOWER, "this node shuts down")
        return None

    def append(self, token: int, record_count: int) -> None:
        self.handle(AppendRequested(token, record_count))
