"""What a run is like, drawn from its seed: how many nodes, which limits, which faults and how often."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from random import Random

from config.model import Address, Config, ConfiguredVoter, Listener
from simulation.faults import FAULTS
from simulation.scheduler import MS, SECOND

PORT = 9093


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Times are µs. `values_bytes_max` is for all values of a batch together. Snapshots are
    taken after `snapshot_bytes` of records, and built with `snapshot_memory_bytes`.

    `faults` gives for each fault the mean time between two of its kind.
    """

    voters: int
    observers: int
    fetch_timeout_ms: int
    election_timeout_ms: int
    backoff_max_ms: int
    request_timeout_ms: int
    retry_backoff_ms: int
    segment_bytes: int
    batch_bytes_max: int
    chaos_us: int
    producers: int
    readers: int
    pause_between_appends_us: int
    values_bytes_max: int
    snapshot_bytes: int
    retention_bytes: int | None
    snapshot_bandwidth: int | None
    snapshot_memory_bytes: int
    faults: dict[str, int]

    @property
    def node_ids(self) -> range:
        return range(1, self.voters + self.observers + 1)

    def config_of(self, node_id: int) -> Config:
        """The configuration file of a node."""
        listener = Listener("CONTROLLER", f"node{node_id}", PORT)
        voters = tuple(ConfiguredVoter(i, f"node{i}", PORT) for i in range(1, self.voters + 1))
        return Config(
            node_id=node_id,
            storage_dir=Path("/data"),
            listeners=(listener,),
            advertised_listeners=(listener,),
            quorum_voters=voters,
            quorum_bootstrap_servers=() if node_id <= self.voters else (Address("node1", PORT),),
            quorum_fetch_timeout_ms=self.fetch_timeout_ms,
            quorum_election_timeout_ms=self.election_timeout_ms,
            quorum_election_backoff_max_ms=self.backoff_max_ms,
            quorum_request_timeout_ms=self.request_timeout_ms,
            quorum_retry_backoff_ms=self.retry_backoff_ms,
            log_segment_bytes=self.segment_bytes,
            log_max_batch_bytes=self.batch_bytes_max,
            snapshot_max_new_record_bytes=self.snapshot_bytes,
            snapshot_interval_ms=10_000,
            snapshot_bandwidth_bytes_per_second=self.snapshot_bandwidth,
            retention_bytes=self.retention_bytes,
        )


def draw_settings(seed: int, only: Collection[str] | None = None) -> Settings:
    """The settings of a seed. `only` restricts the faults; everything else stays as it is."""
    random = Random(f"{seed}/settings")
    fetch_timeout_ms = random.choice([100, 200, 200, 500, 1000, 2000])
    chaos_us = random.choice([2, 3, 4, 6]) * SECOND
    batch_bytes_max = random.choice([1_000, 4_000, 1 << 20])
    return Settings(
        voters=random.choice([1, 2, 3, 3, 3, 3, 3, 4, 5, 5, 6, 7]),
        observers=random.choice([0, 0, 0, 1, 2]),
        fetch_timeout_ms=fetch_timeout_ms,
        election_timeout_ms=random.choice([50, 100, 300, 1000]),
        backoff_max_ms=random.choice([50, 300, 1000]),
        request_timeout_ms=random.choice([100, 200, 500, 2000]),
        retry_backoff_ms=random.choice([5, 20, 50]),
        segment_bytes=random.choice([600, 2_000, 2_000, 10_000, 100_000]),
        batch_bytes_max=batch_bytes_max,
        chaos_us=chaos_us,
        producers=random.randint(1, 4),
        readers=random.randint(0, 2),
        pause_between_appends_us=random.choice([10, 40, 150, 150, 400, 400]) * MS,
        values_bytes_max=min(random.choice([10, 60, 400, 5_000]), batch_bytes_max - 200),
        snapshot_bytes=random.choice([300, 300, 1_000, 10_000, 1 << 40]),
        retention_bytes=random.choice([0, 0, 0, 2_000, None]),
        snapshot_bandwidth=random.choice([None, 2_000, 10_000]),
        snapshot_memory_bytes=random.choice([1, 1_000, 1 << 20]),
        faults=_draw_faults(random, chaos_us, only),
    )


def _draw_faults(random: Random, chaos_us: int, only: Collection[str] | None) -> dict[str, int]:
    """Each fault alone in one seed of ten, a handful at a time otherwise; seldom none at all."""
    names = list(FAULTS)
    count = random.choice([0, 1, 1, 2, 3, 4, 5, 6, 8, 12])
    chosen = random.sample(names, count)
    intervals = {name: int(chaos_us / random.choice([2, 4, 8, 16])) for name in names}
    if only is not None:
        chosen = [name for name in names if name in only]
    return {name: intervals[name] for name in names if name in chosen}
