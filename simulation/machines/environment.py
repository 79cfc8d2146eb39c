"""Surroundings of the machines of a run, and their reports."""

from __future__ import annotations

from dataclasses import dataclass

from simulation.coverage import Coverage
from simulation.history.facts import Facts
from simulation.machines.network import Network
from simulation.observer import Observer
from simulation.scheduler import Scheduler
from simulation.settings import Settings
from simulation.trace import Trace


@dataclass(frozen=True, slots=True)
class Environment:
    """One for all machines and clients of a run."""

    seed: int
    settings: Settings
    scheduler: Scheduler
    network: Network
    trace: Trace
    coverage: Coverage
    facts: Facts
    observer: Observer
