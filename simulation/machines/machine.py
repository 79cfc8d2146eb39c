"""A simulated machine: a disk, clocks that are not quite right, and one process at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING
from uuid import UUID

from quorumd.config.model import Config
from quorumd.raft.types import ReplicaKey
from quorumd.storage.directory import format_directory
from quorumd.storage.errors import (
    DamagedLog,
    DamagedSnapshot,
    DiskFull,
    ForeignDirectory,
    StorageError,
)
from quorumd.storage.meta_properties import random_storage_id, save_meta_properties
from simulation.history.replica import Replica
from simulation.machines.disk import ProcessKilled, SimDisk
from simulation.machines.process import STORAGE, NodeProcess
from simulation.scheduler import MS, SECOND, Callback, Scheduler
from simulation.violation import ProcessEnded, Violation

if TYPE_CHECKING:
    from simulation.world import World

BEGINNING_MS = 1_700_000_000_000
"""Wall clock at the beginning."""
PPM = 1_000_000


class Clock:
    """The clocks of a machine: one that never goes back, and one that people set."""

    def __init__(self, scheduler: Scheduler, random: Random) -> None:
        self._scheduler = scheduler
        self._random = random
        self._since_us = 0
        self.is_true = True
        """It has never been wrong."""
        self._base_us = random.randrange(SECOND, 3600 * SECOND)
        self.rate_ppm = PPM
        self.wall_offset_us = 0

    def monotonic_us(self) -> int:
        elapsed_us = self._scheduler.now_us - self._since_us
        return self._base_us + elapsed_us * self.rate_ppm // PPM

    def wall_us(self) -> int:
        return BEGINNING_MS * MS + self.wall_offset_us + self._scheduler.now_us

    def real_us(self, delay_us: int) -> int:
        """How long a delay by this clock takes, rounded up."""
        return -(-delay_us * PPM // self.rate_ppm)

    def set_rate(self, ppm: int) -> None:
        self._base_us, self._since_us = self.monotonic_us(), self._scheduler.now_us
        self.is_true = self.is_true and ppm == PPM
        self.rate_ppm = ppm

    def jump(self, forward_us: int) -> None:
        """Time in which the machine did not run, all at once."""
        self._base_us += forward_us
        self.is_true = False

    def restart(self) -> None:
        """The clock that never goes back begins anew with each start of a machine."""
        self._base_us, self._since_us = (
            self._random.randrange(SECOND, 3600 * SECOND),
            self._scheduler.now_us,
        )


@dataclass(slots=True)
class DiskSpeed:
    """How long the disk takes, in µs."""

    write_us: tuple[int, int] = (5, 100)
    sync_us: tuple[int, int] = (100, 3_000)
    stalled_until_us: int = 0


@dataclass(frozen=True, slots=True)
class FirstVoter:
    """What a directory of a new quorum is formatted with; nothing: configuration says who votes."""

    storage_id: UUID | None = None
    initial_voters: str = ""


class Machine:
    """See the module's docstring. Without `first` its directory joins a quorum."""

    def __init__(
        self,
        world: World,
        host: str,
        config: Config,
        random: Random,
        first: FirstVoter | None,
    ) -> None:
        self.world = world
        self.id = config.node_id
        self.host = host
        self.config = config
        self.random = random
        self.disk: SimDisk = SimDisk(Random(f"{world.seed}/disk/{self.host}"))
        self.clock = Clock(world.scheduler, random)
        self.speed = DiskSpeed()
        self.process: NodeProcess | None = None
        self.backlog: list[Callback] = []
        self.pauses = 0
        self.is_wanted = False
        """Somebody would start the process again if it ended."""
        self.is_damaged = False
        """Data was lost or changed behind its back: its voter has failed, until its storage is new."""
        self.has_disk_errors = False
        self.on_written: Callback | None = None
        """Called when records have been written, and are to be synced next."""
        self.starts = 0
        self.replica = self._format(first)

    # -- directories

    def _format(self, first: FirstVoter | None) -> Replica:
        """Begin a quorum, or join one."""
        uuid = first.storage_id if first else None
        uuid = uuid or random_storage_id(self.random.randrange)
        meta = format_directory(
            self.disk, STORAGE, node_id=self.id, storage_id=uuid, bootstrap=first is not None
        )
        if first is not None and first.initial_voters:
            meta = replace(meta, initial_voters=first.initial_voters)
            save_meta_properties(self.disk, STORAGE, meta)
        facts = self.world.facts
        replica = Replica(ReplicaKey(self.id, uuid), facts.committed_below, facts.voters.note)
        facts.replicas[replica.key] = replica
        return replica

    def replace_disk(self) -> None:
        """An empty disk, formatted to join: an observer under a new storage id."""
        self.end_process("its disk is replaced")
        self.disk.heal()
        self.disk.wipe()
        self.replica = self._format(None)
        self.is_damaged = False

    def lose_disk(self) -> None:
        """The directory is gone: the node comes back under a new storage id."""
        self.world.note_damaged(self)
        self.replace_disk()
        self.start_later()

    # -- where it is reached

    @property
    def address(self) -> str:
        """The name under which it listens, from its next start on."""
        return self.config.listeners[0].host

    def move(self, address: str) -> None:
        """Stop it, and have it listen elsewhere when it starts again."""
        listener = self.config.listeners[0]._replace(host=address)
        self.end_process("it moves")
        self.config = replace(self.config, listeners=(listener,), advertised_listeners=(listener,))

    # -- process

    @property
    def is_paused(self) -> bool:
        return self.pauses > 0

    def start(self) -> None:
        """Start the process, unless it runs; one that fails at that is started again later."""
        self.is_wanted = True
        if self.process is not None:
            return
        self.starts += 1
        self.clock.restart()
        self.note("starts")
        try:
            process = NodeProcess(self)
            self.process = process
            process.run(process.partition.start)
        except ProcessKilled:
            self.note("is killed while it starts")
            self._end_disk()
            self.process = None
            self.start_later()
        except ProcessEnded:
            self.process = None
            self.disk.crash()
        except StorageError as error:
            self.disk.crash()
            self.process = None
            self.on_storage_error(error)
        if self.process is not None and not self.process.is_alive:
            self.process = None

    def _end_disk(self) -> None:
        """A process that was killed may have taken the whole machine's power with it."""
        if self.random.random() < 0.5:
            self.disk.power_loss()
        else:
            self.disk.crash()

    def start_later(self) -> None:
        delay_us = self.random.randrange(self.random.choice([20 * MS, 200 * MS, 2 * SECOND]))
        self.world.scheduler.call_later(delay_us, self._start_if_wanted)

    def _start_if_wanted(self) -> None:
        if self.is_wanted and self.process is None:
            self.start()

    def end_process(self, why: str, *, power: bool | None = False) -> None:
        """The process is gone; with `power`, so is what the disk had not synced. None: perhaps."""
        process, self.process = self.process, None
        self.world.show_disk_updates(self.replica)
        if process is not None:
            self.note("dies", why)
            process.end()
        self.backlog.clear()
        self.pauses = 0
        if power is None:
            self._end_disk()
        elif power:
            self.disk.power_loss()
        else:
            self.disk.crash()
        if self.is_wanted and process is not None:
            self.start_later()

    def stop(self) -> None:
        """SIGTERM and a clean end, as the daemon does it; the network does not wait for it."""
        process = self.process
        if process is None:
            return

        def close() -> None:
            process.partition.driver.stop()
            try:
                process.partition.disk.stop()
                process.partition.log.close()
                process.directory.close()
            except StorageError as error:
                self.on_storage_error(error)
            raise ProcessEnded

        process.run(process.partition.resign)
        process.call(self.random.randrange(300 * MS), close)

    def pause(self, duration_us: int) -> None:
        """SIGSTOP for a while."""
        self.pauses += 1
        process = self.process
        self.world.scheduler.call_later(duration_us, lambda: self._resume(process))

    def _resume(self, process: NodeProcess | None) -> None:
        if process is None or process is not self.process or not self.pauses:
            return
        self.pauses -= 1
        if not self.pauses:
            backlog, self.backlog = self.backlog, []
            for callback in backlog:
                callback()

    def heal(self) -> None:
        """Nothing more goes wrong here."""
        self.disk.heal()
        self.on_written = None
        self.speed = DiskSpeed()
        self.clock.set_rate(PPM)
        if self.process is not None:
            self.process.effects_left = None
        self.pauses = min(self.pauses, 1)
        self._resume(self.process)

    # -- what goes wrong

    def on_storage_error(self, error: StorageError) -> None:
        """The daemon gives up on its directory: that needs a cause. A flipped bit may name another node."""
        self.note("gives up", str(error))
        if isinstance(error, (DamagedLog, DamagedSnapshot, ForeignDirectory)):
            has_cause = self.is_damaged
        else:
            has_cause = isinstance(error, DiskFull) or self.has_disk_errors
            self.start_later()
        if not has_cause:
            raise Violation("a sound disk is not refused", f"{self.replica.key}: {error}")

    def on_build_failed(self, error: StorageError) -> None:
        """No snapshot can be taken: that needs a cause as well, but ends nothing."""
        self.note("takes no snapshot", str(error))
        if not (self.is_damaged or self.has_disk_errors or isinstance(error, DiskFull)):
            raise Violation("a sound disk is not refused", f"{self.replica.key}: {error}")

    def on_halt(self, reason: str) -> None:
        """The rules stop the node: that needs a cause, too."""
        self.note("halts", reason)
        if not self.is_damaged:
            raise Violation("no node stops without cause", f"{self.replica.key}: {reason}")

    def note(self, what: str, wording: str = "") -> None:
        self.world.note(self.host, what, wording=wording)

    def count(self, fault: str) -> None:
        """Note that a fault has hit this machine."""
        self.world.count(fault, self)

    # -- how long things take, in µs

    def turn_us(self) -> int:
        return self.random.randrange(100)

    def thread_us(self) -> int:
        return self.random.randrange(10, 100)

    def read_us(self) -> int:
        return self.random.randrange(20, 2_000) + self._stall_us()

    def write_us(self) -> int:
        return self.random.randint(*self.speed.write_us) + self._stall_us()

    def sync_us(self) -> int:
        return self.random.randint(*self.speed.sync_us) + self._stall_us()

    def _stall_us(self) -> int:
        return max(0, self.speed.stalled_until_us - self.world.scheduler.now_us)
