"""A machine without its process: a disk, clocks that are not quite right, and how long things take."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from random import Random

from quorumd.config.model import Config
from quorumd.storage.errors import StorageError
from simulation.machines.disk import SimDisk
from simulation.machines.environment import Environment
from simulation.scheduler import MS, SECOND, Callback, Scheduler

BEGINNING_MS = 1_700_000_000_000
"""Wall clock at the beginning."""
PPM = 1_000_000
TRUNCATION, RESET, DELETION = "truncation", "reset", "deletion"
CATCH_UP_US = 100 * MS
"""Time after a pause at which overdue work is done."""


class Clock:
    """The clocks of a machine: one that never goes back, and one that people set."""

    def __init__(self, scheduler: Scheduler, random: Random) -> None:
        self._scheduler = scheduler
        self._random = random
        self._since_us = 0
        self.is_true = True
        """True if the clock has never been wrong."""
        self._base_us = random.randrange(SECOND, 3600 * SECOND)
        self.rate_ppm = PPM
        self.wall_offset_us = 0

    def monotonic_us(self) -> int:
        """Time of the machine's clock that never goes back."""
        elapsed_us = self._scheduler.now_us - self._since_us
        return self._base_us + elapsed_us * self.rate_ppm // PPM

    def wall_us(self) -> int:
        """Unix time in µs by the machine's clock."""
        return BEGINNING_MS * MS + self.wall_offset_us + self._scheduler.now_us

    def real_us(self, delay_us: int) -> int:
        """True time that a delay by this clock takes, rounded up."""
        return -(-delay_us * PPM // self.rate_ppm)

    def set_rate(self, ppm: int) -> None:
        """Run at this rate from now on: 1,000,000 is right."""
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
    """Time that calls of the disk take, in µs."""

    write_us: tuple[int, int] = (5, 100)
    sync_us: tuple[int, int] = (100, 3_000)
    stalled_until_us: int = 0


class Hardware(ABC):
    """See the module's docstring. What a process asks of its surroundings when it ends is abstract."""

    def __init__(self, env: Environment, host: str, config: Config, random: Random) -> None:
        self.env = env
        self.host = host
        self.config = config
        self.random = random
        self.disk: SimDisk = SimDisk(Random(f"{env.seed}/disk/{host}"))
        self.clock = Clock(env.scheduler, random)
        self.speed = DiskSpeed()
        self.hangs_until_us = 0
        """Until then a call of the disk hangs; it goes on hanging when the disk is well again."""
        self.backlog: list[Callback] = []
        """Work of the process for the end of its pause."""
        self.pauses = 0
        self.prompt_from_us = 0
        """After a pause: when all that was due meanwhile is done."""
        self.is_wanted = False
        """The process is started again when it ends."""
        self.is_damaged = False
        """Data was lost or changed behind its back: its voter has failed, until its storage is new."""
        self.has_disk_errors = False
        self.loses_power = False
        """The next kill is a loss of power."""
        self.disk_operation = ""
        """Work on the log at the moment, if it is one of these of several steps."""
        self.on_written: Callback | None = None
        """Called when records have been written, and are to be synced next."""

    @property
    def id(self) -> int:
        """The node id."""
        return self.config.node_id

    @property
    def is_paused(self) -> bool:
        """True while the process stands still."""
        return self.pauses > 0

    @property
    def is_prompt(self) -> bool:
        """Its clock has always been right, and what was due while it was paused is done."""
        is_awake = not self.pauses and self.env.scheduler.now_us >= self.prompt_from_us
        return is_awake and self.clock.is_true

    def note(self, what: str, wording: str = "") -> None:
        """Put an event of this machine into the trace."""
        self.env.trace.note(self.host, what, wording=wording)

    # -- the end of a process

    @abstractmethod
    def end_process(self, why: str, *, power: bool | None = False) -> None:
        """The process is gone; with `power`, so is what the disk had not synced. None: perhaps."""

    @abstractmethod
    def on_storage_error(self, error: StorageError) -> None:
        """The daemon gives up on its directory. Raises Violation if that has no cause."""

    @abstractmethod
    def on_build_failed(self, error: StorageError) -> None:
        """No snapshot can be taken. Raises Violation if that has no cause."""

    @abstractmethod
    def on_halt(self, reason: str) -> None:
        """The rules stop the node. Raises Violation if that has no cause."""

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
        stall_us = max(0, self.speed.stalled_until_us - self.env.scheduler.now_us)
        if stall_us:
            self.hangs_until_us = max(self.hangs_until_us, self.speed.stalled_until_us)
        return stall_us
