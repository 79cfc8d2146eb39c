"""A whole run of one seed: first chaos, then all faults stop, and within a bound all must be well again.

The same seed gives the same events, whatever the hash seed of Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from random import Random
from unittest.mock import patch

from quorumd.server import node
from quorumd.server.model import conditions
from quorumd.server.requests import produce
from simulation.checkers.conditions import check_conditions
from simulation.checkers.linearizable import check_linearizable
from simulation.checkers.producers import check_producers
from simulation.clients.workload import Workload
from simulation.cluster import Cluster
from simulation.draw import draw_settings
from simulation.faults import FAULTS
from simulation.faults.chaos import Chaos
from simulation.options import Options
from simulation.plan import Planned, draw_plan
from simulation.recovery import recover
from simulation.scheduler import SECOND
from simulation.settings import Settings
from simulation.stale_disks import DiskCopy, copy_disks, start_from_stale_disk


@contextmanager
def lowered_limits(settings: Settings) -> Iterator[None]:
    """The daemon's own limits are those of the run for as long as the block lasts."""
    with (
        patch.object(node, "TAIL_CACHE_BYTES", settings.tail_cache_bytes),
        patch.object(produce, "UNCOMMITTED_BYTES_MAX", settings.uncommitted_bytes_max),
        patch.object(conditions, "WINDOW_IDLE_S", settings.condition_idle_s),
    ):
        yield


class World:
    """See the module's docstring. Nothing has happened yet."""

    def __init__(self, seed: int, options: Options | None = None) -> None:
        self.seed = seed
        self.options = options or Options()
        self.settings: Settings = draw_settings(seed, self.options.faults, self.options.membership)
        self.cluster = Cluster(seed, self.settings)
        self.env = self.cluster.env
        self.chaos = Chaos(self.cluster)
        self.workload = Workload(self.cluster)
        self.begun: list[Planned] = []
        """The faults and operations of the schedule that have begun."""

    def run(self) -> None:
        """Raises Violation."""
        with lowered_limits(self.settings):
            self._run()

    def run_chaos(self, end_us: int) -> None:
        """Of the chaos what is due by then, and nothing behind it. Raises Violation."""
        with lowered_limits(self.settings):
            self._run_chaos(end_us)

    def _run(self) -> None:
        self._run_chaos(self.settings.chaos_us)
        copies = self._stop_faults()
        recover(self.chaos, self.workload)
        self._check_end()
        start_from_stale_disk(self.chaos, copies)

    def _run_chaos(self, end_us: int) -> None:
        self._schedule()
        self.env.scheduler.run_until(end_us, self.options.steps)

    def _schedule(self) -> None:
        scheduler, random = self.env.scheduler, Random(f"{self.seed}/start")
        for machine in self.cluster.machines:
            scheduler.call_later(random.choice([0, random.randrange(SECOND)]), machine.start)
        for planned in draw_plan(self.seed, self.settings, self.options.numbers):
            scheduler.call_at(planned.at_us, partial(self._begin_at_edge, planned))
        for client in self.workload.clients:
            scheduler.call_later(random.randrange(SECOND), client.start)

    def _begin_at_edge(self, planned: Planned) -> None:
        """Some begin only when a node is just about to do something, or has just done it."""
        random = Random(f"{planned.random_seed}/edge")
        self.env.scheduler.call_later(
            self.chaos.edge_delay_us(random), partial(self._begin, planned)
        )

    def _begin(self, planned: Planned) -> None:
        chaos, env = self.chaos, self.env
        if chaos.is_over:
            return
        self.begun.append(planned)
        env.trace.note("faults", f"{planned.number}: {planned.name}")
        if planned.name in FAULTS:
            env.facts.is_undisturbed = False
            for operator in chaos.operators:
                if operator.is_busy:
                    env.coverage.pairs[operator.operation, planned.name] += 1
        planned.act(chaos, Random(planned.random_seed))

    def _stop_faults(self) -> dict[str, DiskCopy]:
        """All machines start; one that has lost data has an empty disk, as an observer. Returns copies of
        the disks as they were before."""
        self.chaos.stop()
        machines = self.cluster.machines
        copies = copy_disks(self.cluster)
        for machine in Random(f"{self.seed}/heal").sample(machines, len(machines)):
            if machine.is_damaged:
                machine.replace_disk()
            machine.start()
        return copies

    def _check_end(self) -> None:
        facts = self.env.facts
        self.env.observer.on_end()
        check_linearizable(facts.appends, facts.committed)
        check_conditions(facts)
        for machine in self.cluster.machines:
            if machine.process is not None:
                partition = machine.process.partition
                check_producers(machine.replica.key, machine.replica.log, partition.producers)
