"""When a replica takes snapshots of its own; behind them `history_deletion` deletes what is not needed.

A build runs in a subprocess, from files alone; here it is begun and watched, and its result handed to the
rules. Triggers are bytes of new records, time, and operators. Every replica takes its own. One that turns
out to be damaged is built anew, from what it was made of: the same bytes under the same name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from quorumd.raft.events import Event, ResignationRequested, SnapshotTaken
from quorumd.raft.node import RaftNode
from quorumd.raft.types import ReplicaKey, SnapshotId
from quorumd.server.model.logs import Logger
from quorumd.server.model.metrics import Metrics
from quorumd.server.model.partition_view import SnapshotWork
from quorumd.server.model.runtime import Reader, Runtime, TimerHandle
from quorumd.server.model.snapshot_builds import Build, BuildFailed, BuildResult
from quorumd.server.snapshots.history_deletion import HistoryDeletion
from quorumd.server.snapshots.known_snapshots import KnownSnapshots
from quorumd.server.snapshots.outgoing_copies import OutgoingCopies
from quorumd.server.snapshots.settings import SnapshotSettings, WriteProgress
from quorumd.storage.errors import StorageError
from quorumd.storage.log import Log
from quorumd.storage.snapshot_file import SnapshotFacts
from quorumd.storage.snapshot_store import SnapshotStore

LOG = Logger("snapshots")

DELETION_INTERVAL_S = 5.0
RETRY_MIN_S, RETRY_MAX_S = 5.0, 60.0
"""After a build that failed, doubled with every further one; those that operators ask for do not count."""
REST_RATIO, REST_MAX_S = 19, 60.0
"""After a build, new bytes begin no other one for so many times as long as it took: what they ask for, in a
twentieth of the time of one processor."""
RESIGN_INTERVAL_S = 60.0
"""Between two leaderships that are given away for a snapshot that can't be repaired."""

OnSnapshot = Callable[[SnapshotFacts | str], None]
"""Gets the newest snapshot, or the reason why there is none."""


@dataclass(slots=True)
class RunningBuild:
    """A build that goes on; `written_bytes` is how much had been written when it began.

    `repairs` is the damaged snapshot whose place it is to take, None for a new one.
    """

    end_offset: int
    written_bytes: int
    begun_at_s: float
    repairs: SnapshotId | None
    build: Build | None = None


class SnapshotManager:
    """See the module's docstring. All methods are for the event loop's thread."""

    def __init__(
        self,
        settings: SnapshotSettings,
        node: RaftNode,
        log: Log,
        store: SnapshotStore,
        reader: Reader,
        runtime: Runtime,
        metrics: Metrics,
        handle: Callable[[Event], None],
        written: WriteProgress,
        found: Sequence[SnapshotFacts],
        new_bytes: int,
    ) -> None:
        """`found` are the snapshots that are there, ascending; the newest does not stand for `new_bytes`
        of records.
        """
        self._settings = settings
        self._node = node
        self._log = log
        self._store = store
        self._reader = reader
        self._runtime = runtime
        self._metrics = metrics
        self._handle = handle
        self._written = written
        self._known = KnownSnapshots(found)
        self._bytes_before = -new_bytes
        """Bytes that were written when the newest snapshot was begun."""
        self._begun_at_s = runtime.monotonic_s()
        self._failures = 0
        self._not_before_s = 0.0
        self._rests_until_s = 0.0
        self._building: RunningBuild | None = None
        self._callbacks: list[OnSnapshot] = []
        self._resign_not_before_s = 0.0
        self._copies = OutgoingCopies(
            node, store, reader, runtime, settings.copier_silent_s, self.on_damage
        )
        self.deletion = HistoryDeletion(
            settings, node, log, runtime, self._known, self._copies, handle, self._is_building
        )
        self._timer: TimerHandle | None = None
        self._is_closed = False
        self._has_ended = asyncio.Event()
        self.problem = ""
        """The reason why the last attempt failed; empty if it did not."""
        self.log_damage = ""
        """Damage of the log on this disk that an attempt has found, and none has read the log since."""

    def start(self) -> None:
        """Begin to watch the clock."""
        self._arm()

    def close(self) -> None:
        """Give up what goes on."""
        self._is_closed = True
        self._copies.close()
        self.deletion.close()
        if self._timer is not None:
            self._timer.cancel()
        if self._building is not None and self._building.build is not None:
            self._building.build.cancel(self._has_ended.set)
        else:
            self._has_ended.set()
        self._notify("the node stops")

    async def ended(self) -> None:
        """After `close`: wait until nothing of it is left."""
        await self._has_ended.wait()
        if self._building is not None:
            try:
                await asyncio.to_thread(self._store.drop_build, self._building.end_offset)
            except StorageError as error:
                LOG.warning("an unfinished snapshot stays", reason=str(error))

    def _arm(self) -> None:
        wait_s = min(DELETION_INTERVAL_S, self._settings.interval_s)
        self._timer = self._runtime.call_at(self._runtime.monotonic_s() + wait_s, self._on_timer)

    def _on_timer(self) -> None:
        self._arm()
        self.build_if_due()
        self.deletion.delete_due()

    # -- the beginning of a build

    @property
    def new_bytes(self) -> int:
        """Records that no snapshot stands for, about."""
        return self._written.written_bytes - self._bytes_before

    def note_installed(self, facts: SnapshotFacts) -> None:
        """The log begins behind this snapshot now: what was being built from it is void."""
        building = self._building
        if building is not None and building.build is not None:
            building.build.cancel(partial(self._drop_parts, building))
        self._end_build()
        self._known.keep([facts])
        self._copies.keep([facts.id])
        self._bytes_before = self._written.written_bytes
        self._notify(facts)

    def _is_building(self) -> bool:
        return self._building is not None

    def build_if_due(self) -> None:
        """Begin a build if it is time for one; called whenever something was committed."""
        settings, now_s = self._settings, self._runtime.monotonic_s()
        is_due = (
            (self.new_bytes >= settings.max_new_record_bytes and now_s >= self._rests_until_s)
            or now_s - self._begun_at_s >= settings.interval_s
            or self._known.to_repair
        )
        if not (is_due and settings.builds) or self._building is not None or self._is_pausing:
            return
        if self._node.snapshot_download is None:
            self._begin()

    @property
    def _is_pausing(self) -> bool:
        """A build has failed, and it is too soon for the next one."""
        return self._runtime.monotonic_s() < self._not_before_s

    def take(self, done: OnSnapshot) -> None:
        """Take one for an operator; `done` is called when it is there."""
        if self._building is not None and self._building.end_offset < self._end_offset():
            # The build under way is not new enough: another one follows it.
            self._callbacks.append(lambda _: self.take(done))
            return
        self._callbacks.append(done)
        if self._building is None:
            self._begin()

    @property
    def is_limited_in_vain(self) -> bool:
        """retention.* is set, but nothing here makes the snapshots behind which it would delete."""
        settings = self._settings
        is_limited = settings.retention_bytes is not None or settings.retention_ms is not None
        return is_limited and not settings.builds

    def _end_offset(self) -> int:
        """Everything below is committed, and on this disk."""
        return min(self._node.committed_offset, self._node.synced_end_offset)

    def _begin(self) -> None:
        """Repair what is damaged, one after the other; then take a new one, if anything is new."""
        if not self._settings.builds:
            return self._notify("the log is a Kafka quorum's, whose snapshots Kafka makes")
        if self._known.to_repair:
            return self._build(
                self._known.to_repair[0].end_offset, repairs=self._known.to_repair[0]
            )
        self._begun_at_s = self._runtime.monotonic_s()
        newest = self._node.newest_snapshot
        end_offset = self._end_offset()
        if end_offset <= (0 if newest is None else newest.end_offset):
            return self._notify(self._known.facts[newest] if newest else "nothing is committed yet")
        return self._build(end_offset)

    def _build(self, end_offset: int, repairs: SnapshotId | None = None) -> None:
        self._metrics.snapshots.build_ratio = 0.0
        self._building = building = RunningBuild(
            end_offset, self._written.written_bytes, self._runtime.monotonic_s(), repairs
        )
        what = "taking a snapshot" if repairs is None else "building a damaged snapshot anew"
        LOG.info(what, end_offset=end_offset)
        building.build = self._runtime.build(
            self._log.directory,
            end_offset,
            self._on_progress,
            partial(self._on_built, building),
        )

    def _on_progress(self, ratio: float) -> None:
        self._metrics.snapshots.build_ratio = ratio

    # -- the result of a build

    def _on_built(self, building: RunningBuild, outcome: BuildResult | BuildFailed) -> None:
        if self._is_closed:
            return
        if isinstance(outcome, BuildFailed):
            self._drop_parts(building)
            if outcome.is_log_damaged:
                self.log_damage = str(outcome)
            if outcome.damaged is not None and self._note_damage(outcome.damaged, str(outcome)):
                # The snapshot that it was to be built on comes first.
                self._end_build()
                self._begin()
            else:
                self._failed(str(outcome))
            return
        if outcome.empty_batches:
            self._metrics.unreadable_batches += outcome.empty_batches
            LOG.warning("batches did not unpack and count as empty", batches=outcome.empty_batches)
        newest, is_repair = self._node.newest_snapshot, building.repairs is not None
        if not is_repair and newest is not None and newest.end_offset >= outcome.id.end_offset:
            # A newer one was copied from the leader meanwhile.
            self._drop_parts(building)
            self._finished(newest)
            return
        is_same = outcome.id == building.repairs
        if not (is_same if is_repair else self._node.contains(outcome.id.position)):
            # No CRC covers a batch's epoch: what is in memory is compared with what was on disk.
            self._drop_parts(building)
            self._failed(
                f"the log on disk says epoch {outcome.id.epoch} below {outcome.id.end_offset}"
            )
            return

        def complete() -> SnapshotFacts:
            facts = self._store.part_facts(outcome.id)
            self._store.complete_part(outcome.id)
            return facts

        def done(completed: SnapshotFacts | BaseException) -> None:
            if self._is_closed or self._building is not building:
                return
            if isinstance(completed, BaseException):
                self._drop_parts(building)
                self._failed(str(completed))
            elif is_repair:
                self._repaired(completed)
            else:
                self._bytes_before = building.written_bytes
                self._taken(completed, self._runtime.monotonic_s() - building.begun_at_s)

        self._reader.run(complete, done)

    def _drop_parts(self, building: RunningBuild) -> None:
        """A build that did not get to its end may have left something; a copy is left alone."""
        end_offset, download = building.end_offset, self._node.snapshot_download
        if download is None or download.snapshot.end_offset != end_offset:
            self._reader.run(lambda: self._store.drop_build(end_offset), lambda _: None)

    def _repaired(self, facts: SnapshotFacts) -> None:
        LOG.info("a damaged snapshot was built anew", end_offset=facts.id.end_offset)
        self._known.repaired(facts)
        self._end_build()
        self._failures, self.problem = 0, ""
        if self._known.to_repair or self._callbacks:
            self._begin()
        else:
            self.build_if_due()

    def _taken(self, facts: SnapshotFacts, seconds: float) -> None:
        self._metrics.snapshots.taken += 1
        LOG.info(
            "snapshot taken",
            end_offset=facts.id.end_offset,
            epoch=facts.id.epoch,
            size_bytes=facts.size_bytes,
            seconds=round(seconds, 3),
        )
        self._known.facts[facts.id] = facts
        rest_s = min(REST_MAX_S, REST_RATIO * seconds)
        self._rests_until_s = self._runtime.monotonic_s() + rest_s
        self._written.base = facts
        self._handle(SnapshotTaken(snapshot=facts.id))
        self._finished(facts.id)
        self.deletion.delete_due()
        # Records that came meanwhile may be enough for the next one.
        self.build_if_due()

    def _finished(self, newest: SnapshotId) -> None:
        self._end_build()
        self._failures, self.problem, self.log_damage = 0, "", ""
        self._notify(self._known.facts[newest])

    def _end_build(self) -> None:
        self._building = None
        self._metrics.snapshots.build_ratio = -1.0

    def _failed(self, problem: str) -> None:
        assert self._building is not None, "a build has failed"
        repairs, newest = self._building.repairs, self._node.newest_snapshot
        self._metrics.snapshots.failed += 1
        LOG.error("no snapshot was taken", reason=problem)
        self._end_build()
        self.problem = problem
        if repairs is not None and newest is not None and repairs != newest:
            # The damaged snapshot is not the newest, and nothing is built on it.
            self._known.give_up(repairs)
        if not self._callbacks:
            pause_s = min(RETRY_MAX_S, RETRY_MIN_S * 2 ** min(self._failures, 10))
            self._failures += 1
            self._not_before_s = self._runtime.monotonic_s() + pause_s
        self._notify(problem)
        if repairs is not None:
            self._copies.check(repairs, partial(self._read_again, repairs))

    def _read_again(self, snapshot: SnapshotId, problem: str) -> None:
        """Takes a snapshot that a disk could not read once, and can read now, for sound."""
        if problem or self._building is not None or snapshot not in self._known.damaged:
            return
        LOG.info("a snapshot is sound after all", end_offset=snapshot.end_offset)
        self._known.is_sound_after_all(snapshot)
        self.problem = ""

    def _notify(self, outcome: SnapshotFacts | str) -> None:
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(outcome)

    # -- outgoing copies

    def serve(self, snapshot: SnapshotId, replica: ReplicaKey | None, position: int) -> bool:
        """A replica, or a client if it is None, asks for the chunk at `position`. Returns False if the
        snapshot is damaged.

        A leader that cannot repair its newest snapshot lets another replica lead, which has a sound one.
        """
        if snapshot not in self._known.damaged:
            self._copies.note(snapshot, replica, position)
            return True
        if self._building is None and snapshot in self._known.to_repair:
            self._let_another_lead()
        return False

    def _let_another_lead(self) -> None:
        now_s = self._runtime.monotonic_s()
        if self._node.is_leader and now_s >= self._resign_not_before_s:
            self._resign_not_before_s = now_s + RESIGN_INTERVAL_S
            reason = "its snapshot is damaged, and others need one"
            self._handle(ResignationRequested(reason=reason, shutting_down=False))

    def work(self) -> SnapshotWork:
        """The replicas that copy from here, and the build that goes on."""
        copies = self._copies.progress(self._known.facts)
        if self._building is None:
            return SnapshotWork(copies)
        return SnapshotWork(copies, self._building.end_offset, self._metrics.snapshots.build_ratio)

    def on_damage(self, snapshot: SnapshotId, problem: str) -> None:
        """A snapshot can't be read, or is not sound."""
        is_news = self._note_damage(snapshot, problem)
        if is_news and self._building is None and not self._is_closed and not self._is_pausing:
            self._begin()

    def _note_damage(self, snapshot: SnapshotId, problem: str) -> bool:
        """True if it is news, and of a snapshot that counts."""
        if snapshot in self._known.damaged or snapshot not in self._node.snapshots:
            return False
        LOG.error("snapshot damaged and withdrawn", reason=problem)
        self._metrics.snapshots.damaged += 1
        self._known.withdraw(snapshot)
        self.problem = problem
        return True

    # -- status

    def status(self) -> dict[str, object]:
        """For `/status`: the newest snapshot, what is being built, what is being copied."""
        node, building = self._node, self._building
        newest, download = node.newest_snapshot, node.snapshot_download
        return {
            "newest": None
            if newest is None
            else {"end_offset": newest.end_offset, "epoch": newest.epoch},
            "count": len(node.snapshots),
            "new_bytes": self.new_bytes,
            "problem": self.problem,
            "building": None
            if building is None
            else {
                "end_offset": building.end_offset,
                "done": round(self._metrics.snapshots.build_ratio, 3),
            },
            "copying": None
            if download is None
            else {
                "end_offset": download.snapshot.end_offset,
                "epoch": download.snapshot.epoch,
                "position": download.position,
                "size_bytes": download.size_bytes,
            },
        }
