"""The clients that write and read during a run."""

from __future__ import annotations

from random import Random

from simulation.clients.client import Client
from simulation.clients.contender import Contender
from simulation.clients.inquirer import Inquirer
from simulation.clients.producer import Producer
from simulation.clients.reader import Reader
from simulation.cluster import Cluster

PROBE = 100
"""Number of the producer that begins when the faults have stopped."""


class Workload:
    """Producers, readers, inquirers and contenders, as many as the settings say."""

    def __init__(self, cluster: Cluster) -> None:
        settings, seed = cluster.env.settings, cluster.env.seed
        self._cluster = cluster
        self.producers = [self._producer(i) for i in range(settings.producers)]
        self.readers = [
            Reader(cluster, f"reader{i}", Random(f"{seed}/reader/{i}"))
            for i in range(settings.readers)
        ]
        self.inquirers = [
            Inquirer(cluster, f"inquirer{i}", Random(f"{seed}/inquirer/{i}"))
            for i in range(settings.inquirers)
        ]
        self.contenders = [
            Contender(cluster, f"contender{i}", Random(f"{seed}/contender/{i}"), i)
            for i in range(settings.contenders)
        ]

    @property
    def clients(self) -> list[Client]:
        """All of them, but operators."""
        return [*self.producers, *self.readers, *self.inquirers, *self.contenders]

    def _producer(self, number: int) -> Producer:
        random = Random(f"{self._cluster.env.seed}/producer/{number}")
        return Producer(self._cluster, f"producer{number}", random, number)

    def add_probe(self) -> Producer:
        """A producer that begins when the faults have stopped."""
        probe = self._producer(PROBE)
        self.producers.append(probe)
        return probe
