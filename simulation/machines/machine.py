"""A simulated machine: a disk, clocks that are not quite right, and one process at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
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
from simulation.machines.disk import ProcessKilled
from simulation.machines.environment import Environment
from simulation.machines.hardware import CATCH_UP_US, PPM, DiskSpeed, Hardware
from simulation.machines.node_process import STORAGE, NodeProcess
from simulation.machines.peer_channel import Endpoints
from simulation.scheduler import MS, SECOND
from simulation.violation import ProcessEnded, Violation


@dataclass(frozen=True, slots=True)
class FirstVoter:
    """Format of a directory of a new quorum; no value: configuration names the voters."""

    storage_id: UUID | None = None
    initial_voters: str = ""


class Machine(Hardware):
    """See the module's docstring. Without `first` its directory joins a quorum."""

    def __init__(
        self,
        env: Environment,
        endpoints: Endpoints,
        host: str,
        config: Config,
        random: Random,
        first: FirstVoter | None,
    ) -> None:
        super().__init__(env, host, config, random)
        self._endpoints = endpoints
        self.process: NodeProcess | None = None
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
        facts = self.env.facts
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
        self.note_damaged()
        self.replace_disk()
        self.start_later()

    def note_damaged(self) -> None:
        """Data is about to be lost or changed behind its back."""
        self.is_damaged = True
        self.env.facts.is_undisturbed = False
        self.env.facts.excused.add(self.replica.key)

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
    def role(self) -> str:
        """Role of its node, or `down`."""
        return "down" if self.process is None else self.process.role

    def start(self) -> None:
        """Start the process, unless it runs; one that fails at that is started again later."""
        self.is_wanted = True
        if self.process is not None:
            return
        self.starts += 1
        self.clock.restart()
        self.note("starts")
        try:
            process = NodeProcess(self, self.replica, self._endpoints)
            self.process = process
            self.env.facts.up_since[process.key] = self.env.scheduler.now_us
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
        loses_power, self.loses_power = self.loses_power, False
        if self.random.random() < 0.5 or loses_power:
            self.disk.power_loss()
        else:
            self.disk.crash()

    def start_later(self) -> None:
        delay_us = self.random.randrange(self.random.choice([20 * MS, 200 * MS, 2 * SECOND]))
        self.env.scheduler.call_later(delay_us, self._start_if_wanted)

    def _start_if_wanted(self) -> None:
        if self.is_wanted and self.process is None:
            self.start()

    def end_process(self, why: str, *, power: bool | None = False) -> None:
        """The process is gone; with `power`, so is what the disk had not synced. None: perhaps."""
        process, self.process = self.process, None
        self.env.observer.show_disk_updates(self.replica)
        if process is not None:
            self.note("dies", why)
            self.env.facts.up_since.pop(process.key, None)
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
        self.env.scheduler.call_later(duration_us, lambda: self._resume(process))

    def _resume(self, process: NodeProcess | None) -> None:
        if process is None or process is not self.process or not self.pauses:
            return
        self.pauses -= 1
        if not self.pauses:
            self.prompt_from_us = self.env.scheduler.now_us + CATCH_UP_US
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

    def next_deadline_us(self) -> int | None:
        """When a rule of its node is due next, in simulated time."""
        process = self.process
        at_ms = None if process is None else process.node.next_deadline_ms()
        if at_ms is None:
            return None
        clock = self.clock
        return self.env.scheduler.now_us + clock.real_us(at_ms * MS - clock.monotonic_us())

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

    def count(self, fault: str) -> None:
        """Note that a fault has hit this machine."""
        message = "-" if self.process is None else self.process.last_message
        self.env.coverage.count(fault, self.role, message)
