"""One replicated partition of a node: rules, log, disk, peers and clients, put together.

Everything that can happen to it passes through `handle`: an exception there is a broken invariant or a
failed disk, and ends the process before it can harm the log.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from quorumd.raft.config import RaftConfig, StoredState
from quorumd.raft.effects import AnnounceRole, AnnounceVoters
from quorumd.raft.errors import KafkaError, Refusal
from quorumd.raft.events import (
    AppendRequested,
    ChunkNotStored,
    Event,
    ResignationRequested,
    SnapshotVerified,
)
from quorumd.raft.node import RaftNode
from quorumd.raft.roles import Role
from quorumd.raft.types import SnapshotId, VoterSet, uuid_to_text
from quorumd.server.disk.recovered_log import RecoveredLog, log_view, voters_of
from quorumd.server.disk.storage_adapter import StorageAdapter
from quorumd.server.model.disk_jobs import Files
from quorumd.server.model.logs import Logger, RateLimit
from quorumd.server.model.metrics import Metrics
from quorumd.server.model.runtime import Runtime, TimerHandle
from quorumd.server.model.topic import TopicPartition
from quorumd.server.partition.driver import Driver
from quorumd.server.partition.raft_view import RaftPartitionView
from quorumd.server.peers.outbound import Outbound, OutboundSettings
from quorumd.server.requests.fetch import FetchHandler
from quorumd.server.requests.produce import ProduceHandler
from quorumd.server.requests.raft_requests import RaftRequestHandler
from quorumd.server.snapshots.manager import SnapshotManager, SnapshotSettings
from quorumd.storage.errors import DamagedSnapshot, StorageError
from quorumd.storage.quorum_state import QuorumState
from quorumd.storage.snapshot_file import SnapshotFacts
from quorumd.storage.snapshot_store import SnapshotNotFound

LOG = Logger("raft")

DRAIN_S = 2.0
"""How long a leader that shuts down waits for what it has appended to be committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionHooks:
    """What a partition asks of its node."""

    save_state: Callable[[QuorumState], None]
    """Write quorum-state.json; runs on the disk's thread."""
    adopt_cluster_id: Callable[[str], None]
    """Write the cluster id to meta.properties; runs on the reader's thread."""
    remember_removal: Callable[[], None]
    """Write to meta.properties that this node was removed; runs on the reader's thread."""
    fail: Callable[[str, BaseException | None], None]
    """End the process, saying why."""


class RuntimeTimer:
    """One alarm of the host: setting it again replaces the earlier one."""

    def __init__(self, host: Runtime, callback: Callable[[], None]) -> None:
        self._host = host
        self._callback = callback
        self._alarm: TimerHandle | None = None

    def set(self, deadline_ms: int) -> None:
        self.cancel()
        self._alarm = self._host.call_at(deadline_ms / 1000, self._callback)

    def cancel(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()


class Partition:
    """See the module's docstring. Construct it, then `start`."""

    def __init__(
        self,
        topic: TopicPartition,
        opened: RecoveredLog,
        raft_config: RaftConfig,
        stored: StoredState,
        outbound: OutboundSettings,
        snapshot_settings: SnapshotSettings,
        metrics: Metrics,
        max_batch_bytes: int,
        hooks: PartitionHooks,
        host: Runtime,
    ) -> None:
        self._host = host
        self.topic = topic
        log, snapshots = opened.log, opened.snapshots
        self.log = log
        self.metrics = metrics
        self._hooks = hooks
        self._is_draining = False
        self._is_disk_full = False
        self._election_since: float | None = None
        self._role_since = self._host.monotonic_s()
        self._progress = asyncio.Event()
        self._report_lines = RateLimit(per_second=2, burst=20)
        self.last_report = ""
        self.producers = opened.producers
        self.producers.commit(stored.applied_offset)
        self.node = RaftNode(raft_config, stored, log_view(opened), host.draw)
        self.view = RaftPartitionView(topic, self.node, host.monotonic_ms, host.wall_ms)
        self.reader = host.reader(log)
        self.store = snapshots
        self.disk = host.disk(Files(log, snapshots, hooks.save_state), self)
        newest = opened.facts[-1] if opened.facts else None
        recorder = self._recorder = StorageAdapter(
            log,
            self.disk,
            self.producers,
            metrics,
            lambda: self.node.cluster_id,
            newest,
            host.wall_ms,
        )
        self.snapshots = SnapshotManager(
            snapshot_settings,
            self.node,
            log,
            snapshots,
            self.reader,
            host,
            metrics,
            self.handle,
            recorder,
            opened.facts,
            opened.new_bytes,
        )
        recorder.on_installed = self.snapshots.note_installed
        self.outbound = Outbound(topic, outbound, recorder, metrics, self.handle, host.link)
        self.outbound.attach(self.node)
        self.inbound = RaftRequestHandler(
            topic, self.reader, snapshots, metrics, self.handle, outbound.request_timeout_ms
        )
        self.inbound.serve = self.snapshots.serve
        self.inbound.on_unreadable = self.snapshots.on_damage
        self.produce = ProduceHandler(
            self.view, self, self.producers, metrics, max_batch_bytes, host, self._call_soon
        )
        recorder.batches = self.produce
        self.consume = FetchHandler(self.view, log, self.reader, host)
        self._timer = RuntimeTimer(host, self._on_timer)
        self.driver = Driver(
            self.node,
            recorder,
            self.outbound.send_request,
            self.inbound.send_answer,
            self,
            self._timer,
            host.monotonic_ms,
        )
        self.driver.hold()

    # -- life

    def start(self) -> None:
        """Begin to take part."""
        self.disk.start()
        self._connect_to(self.node.voters)
        self.driver.start()
        self.snapshots.start()

    async def hand_over(self, timeout_s: float) -> None:
        """Before the listeners close: let what was appended commit, then give leadership away."""
        self._is_draining = True
        if self.node.is_leader:
            await self._wait_until(lambda: not self.produce.parked_count, DRAIN_S)
        self.resign()
        if self.node.role is Role.RESIGNED:
            await self._wait_until(lambda: self.node.role is not Role.RESIGNED, timeout_s)

    def resign(self) -> None:
        """Give leadership away, and take no append from now on, because the node stops."""
        self._is_draining = True
        self.handle(ResignationRequested(reason="the node shuts down", shutting_down=True))
        self.consume.on_leadership_lost()

    async def _wait_until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        """Look again whenever something was committed or a role changed; give up after a while."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not condition():
                    self._progress.clear()
                    await self._progress.wait()

    async def close(self) -> None:
        """Stop for good: peers, timers, disk, log, in this order. What was queued is written."""
        self.driver.stop()
        self._timer.cancel()
        self.snapshots.close()
        self.produce.close()
        self.consume.close()
        await self.outbound.close()
        await asyncio.to_thread(self.disk.stop)
        await self.snapshots.ended()
        await asyncio.to_thread(self.reader.close)
        await asyncio.to_thread(self.log.close)

    # -- events

    def handle(self, event: Event) -> None:
        """Let the rules decide on an event, and carry out what they ask for."""
        try:
            self.driver.handle(event)
        except BaseException as error:
            self._end(error)
            raise

    def _on_timer(self) -> None:
        try:
            self.driver.on_timer()
        except BaseException as error:
            self._end(error)
            raise

    def on_writes_completed(self, write: int, sync_s: float | None) -> None:
        if sync_s is not None:
            self.metrics.observe_fsync(sync_s)
        try:
            self.driver.on_writes_completed(write)
        except BaseException as error:
            self._end(error)
            raise

    def _call_soon(self, callback: Callable[[], None]) -> None:
        """Call at the end of this turn of the event loop, which would only log what goes wrong."""
        self._host.call_soon(partial(self._guarded, callback))

    def _guarded(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except BaseException as error:
            self._end(error)
            raise

    def _end(self, error: BaseException) -> None:
        """A rule that failed must not be tried again on half-changed state."""
        if isinstance(error, StorageError):
            self.on_disk_failed(error)
        else:
            what = "a rule of the quorum is broken; this is a bug, please report it"
            self._hooks.fail(what, error)

    def on_disk_failed(self, error: BaseException) -> None:
        self._hooks.fail("the disk failed", error)

    def on_disk_full(self, is_full: bool) -> None:
        self._is_disk_full = is_full
        if is_full:
            LOG.error("the disk is full: nothing is appended until there is space again")
            self.handle(ResignationRequested(reason="the disk is full", shutting_down=False))
        else:
            LOG.info("there is space on the disk again")

    def on_piece_not_stored(self, snapshot: SnapshotId, problem: str) -> None:
        LOG.error("there is no room for the leader's snapshot: what was copied is deleted")
        self.metrics.snapshot_copies_failed += 1
        self.handle(ChunkNotStored(snapshot=snapshot, problem=problem))

    # -- the driver's listener

    def on_high_watermark(self, offset: int) -> None:
        self.producers.commit(offset)
        self.produce.on_high_watermark(offset)
        self.consume.on_high_watermark()
        self.snapshots.look()
        self._progress.set()

    def on_role(self, effect: AnnounceRole) -> None:
        self._role_since = self._host.monotonic_s()
        leader = "-" if effect.leader_id is None else effect.leader_id
        LOG.info(f"{effect.role}", epoch=effect.epoch, leader=leader, reason=effect.reason)
        self._note_election(effect)
        if effect.role is not Role.LEADER:
            self.produce.on_leadership_lost()
            self.consume.on_leadership_lost()
        self._progress.set()

    def on_voters(self, effect: AnnounceVoters) -> None:
        """A voter that is known by another key than before is another peer: connect to it now."""
        self._connect_to(effect.voters)

    def _connect_to(self, voters: VoterSet) -> None:
        self.outbound.prepare([key for key in voters.keys if not self.node.is_local(key)])

    def _note_election(self, effect: AnnounceRole) -> None:
        """How long this replica was without a leader since it began to campaign."""
        if effect.role in (Role.PROSPECTIVE, Role.CANDIDATE):
            self._election_since = self._election_since or self._host.monotonic_s()
        elif self._election_since is not None and effect.leader_id is not None:
            self.metrics.observe_election(self._host.monotonic_s() - self._election_since)
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
        def done(outcome: SnapshotFacts | BaseException) -> None:
            if isinstance(outcome, (DamagedSnapshot, SnapshotNotFound)):
                self.metrics.snapshot_copies_failed += 1
                self.handle(SnapshotVerified(snapshot=snapshot, problem=str(outcome)))
            elif isinstance(outcome, BaseException):
                self._end(outcome)
            else:
                self._recorder.hold_copied(outcome)
                voters = voters_of(outcome)
                self.handle(SnapshotVerified(snapshot=snapshot, voters=voters))

        self.reader.run(lambda: self.store.verify_part(snapshot), done)

    def on_report(self, reason: str) -> None:
        self.last_report = reason
        self.metrics.count_ignored("by the rules")
        if self._report_lines.take() is not None:
            LOG.info(reason)

    def on_halt(self, reason: str) -> None:
        self._hooks.fail(reason, None)

    # -- what producers ask for

    @property
    def append_obstacle(self) -> Refusal | None:
        """Why nothing can be appended now; None if it can."""
        refusal = self.node.append_refusal
        if refusal is not None:
            return refusal
        if self._is_disk_full:
            return Refusal(KafkaError.KAFKA_STORAGE_ERROR, "the disk of this node is full")
        if self._is_draining:
            return Refusal(KafkaError.NOT_LEADER_OR_FOLLOWER, "this node shuts down")
        return None

    def append(self, token: int, record_count: int) -> None:
        self.handle(AppendRequested(token, record_count))

    # -- what operators see

    def problems(self) -> list[str]:
        """Why this node is not ready, in words; empty if it is."""
        now, found = self.node.status(), []
        if self._is_disk_full:
            found.append("the disk is full: free space, the node goes on by itself")
        if now.leader is None or now.role is Role.RESIGNED:
            reachable = len(now.voters) - len(now.unreachable & set(now.voters.ids))
            found.append(
                f"no leader is known in epoch {now.epoch}: {reachable} of {len(now.voters)} voters "
                "seem to be up, a majority is needed"
            )
        elif now.role is Role.LEADER:
            if now.bootstrap_problem is not None:
                found.append(now.bootstrap_problem)
            elif now.high_watermark is None:
                found.append("leads, but has not committed a record of its epoch yet")
        elif now.problem is not None:
            found.append(now.problem)
        elif not now.has_leader_contact:
            found.append(f"the leader, node {now.leader.id}, does not answer")
        elif now.high_watermark is None:
            found.append(
                f"follows, but does not know yet what is committed: ask node {now.leader.id}, which "
                "leads and knows what it waits for"
            )
        return found

    def warnings(self) -> list[str]:
        """What will be a problem at the next start, in words."""
        return [
            f"replica {voter_id} votes, but quorum.voters does not name it: this node would not start "
            "again. Remove quorum.voters from its configuration, or add the id there"
            for voter_id in self.node.status().unexpected_voters
        ]

    def status(self) -> dict[str, object]:
        """Where this replica stands, and what is wrong, for `/status`."""
        view, unreachable = self.view, self.node.status().unreachable
        return {
            "problems": self.problems(),
            "warnings": self.warnings(),
            "cluster_id": view.cluster_id,
            "role": view.role,
            "epoch": view.leader_epoch,
            "leader_id": view.leader_id,
            "role_since_s": round(self._host.monotonic_s() - self._role_since, 3),
            "log_start_offset": view.log_start_offset,
            "log_end_offset": view.log_end_offset,
            "high_watermark": view.high_watermark,
            "voters": [
                {
                    "id": voter.key.id,
                    "storage_id": None if voter.key.uuid is None else uuid_to_text(voter.key.uuid),
                    "endpoints": [f"{at.name}://{at.host}:{at.port}" for at in voter.endpoints],
                    "unreachable": voter.key.id in unreachable,
                }
                for voter in view.voters
            ],
            "replicas": [
                {
                    "id": row.key.id,
                    "storage_id": None if row.key.uuid is None else uuid_to_text(row.key.uuid),
                    "is_voter": is_voter,
                    "log_end_offset": row.log_end_offset,
                    "lag": max(0, view.log_end_offset - max(0, row.log_end_offset)),
                    "last_fetch_ms": row.last_fetch_ms,
                    "last_caught_up_ms": row.last_caught_up_ms,
                }
                for is_voter, rows in (
                    (True, view.voter_statuses()),
                    (False, view.observer_statuses()),
                )
                for row in rows
            ],
            "voters_committed": view.committed_voters == view.voters,
            "target_voters": view.target_voters,
            "pending_changes": [
                {
                    "kind": change.kind,
                    "replica": None if change.key is None else str(change.key),
                    "waiting_ms": change.waiting_ms,
                    "waits_for": change.waits_for,
                }
                for change in view.pending_changes()
            ],
            "snapshots": self.snapshots.status(),
            "last_report": self.last_report,
        }
