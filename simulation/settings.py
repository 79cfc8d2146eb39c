"""What a run is like, drawn from its seed: how many nodes, which limits, which faults and how often."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import NamedTuple

from quorumd.config.addresses import ConfiguredVoter, Listener
from quorumd.config.model import Config
from quorumd.raft.types import Address
from simulation.faults.faults import FAULTS, LEADER_FAILS, LONE_WITNESS
from simulation.faults.operations import OPERATIONS
from simulation.scheduler import MS, SECOND

PORT = 9093
NODES_MAX = 7


class Site(NamedTuple):
    """A machine: the name under which it listens at first, the id of its node, what it is at first."""

    host: str
    node_id: int
    is_first_voter: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Times are µs. `values_bytes_max` is for all values of a batch together. Snapshots are
    taken after `snapshot_bytes` of records, and built with `snapshot_memory_bytes`.

    `voters` is how many nodes begin as voters. If the quorum is dynamic, anybody may become one, and
    nobody stays one for ever; otherwise quorum.voters names their ids. There is a second machine, with
    a disk of its own, under the id `twin`. `movers` are ids of nodes that may be reached elsewhere after
    a restart.

    `faults` gives for each fault and each operation the mean time between two of its kind.
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
    is_dynamic: bool = False
    auto_join: bool = False
    witness: int | None = None
    twin: int | None = None
    movers: tuple[int, ...] = ()
    faults: dict[str, int]

    @property
    def node_ids(self) -> range:
        return range(1, self.voters + self.observers + 1)

    @property
    def sites(self) -> list[Site]:
        """All machines."""
        sites = [Site(f"node{i}", i, i <= self.voters) for i in self.node_ids]
        if self.twin is not None:
            sites.append(Site(f"node{self.twin}b", self.twin, False))
        return sites

    def config_of(self, site: Site) -> Config:
        """The configuration file of a node."""
        node_id = site.node_id
        listener = listener_at(site.host)
        voters = tuple(ConfiguredVoter(i, f"node{i}", PORT) for i in range(1, self.voters + 1))
        return Config(
            node_id=node_id,
            storage_dir=Path("/data"),
            listeners=(listener,),
            advertised_listeners=(listener,),
            quorum_voters=() if self.is_dynamic else voters,
            quorum_bootstrap_servers=self._bootstrap_servers(node_id),
            quorum_auto_join=self.auto_join,
            quorum_witness=node_id == self.witness,
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

    def _bootstrap_servers(self, node_id: int) -> tuple[Address, ...]:
        """Where a quorum without quorum.voters is found: also where its nodes may be later."""
        if not self.is_dynamic:
            return () if node_id <= self.voters else (Address("node1", PORT),)
        hosts = [site.host for site in self.sites]
        hosts += [moved(f"node{i}") for i in self.movers]
        return tuple(Address(host, PORT) for host in hosts)


def listener_at(host: str) -> Listener:
    return Listener("CONTROLLER", host, PORT)


def moved(host: str) -> str:
    """The other name under which a node that moves listens."""
    return host.removesuffix("m") if host.endswith("m") else f"{host}m"


def draw_settings(
    seed: int, only: Collection[str] | None = None, membership: bool = True
) -> Settings:
    """The settings of a seed. `only` restricts the faults; everything else stays as it is.

    Without `membership` voters are those of quorum.voters, and nobody changes them.
    """
    random = Random(f"{seed}/settings")
    fetch_timeout_ms = random.choice([100, 200, 200, 500, 1000, 2000])
    chaos_us = random.choice([2, 3, 4, 6]) * SECOND
    batch_bytes_max = random.choice([1_000, 4_000, 1 << 20])
    settings = Settings(
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
    if not membership:
        return settings
    return _draw_membership(Random(f"{seed}/membership"), settings, only)


def _draw_faults(random: Random, chaos_us: int, only: Collection[str] | None) -> dict[str, int]:
    """Each fault alone in one seed of ten, a handful at a time otherwise; seldom none at all."""
    count = random.choice([0, 1, 1, 2, 3, 4, 5, 6, 8, 12])
    names = [name for name in FAULTS if name not in (LONE_WITNESS, LEADER_FAILS)]
    return _draw_acts(random, names, count, chaos_us, [2, 4, 8, 16], only)


def _draw_acts(
    random: Random,
    names: list[str],
    count: int,
    chaos_us: int,
    shares: list[int],
    only: Collection[str] | None,
) -> dict[str, int]:
    chosen = random.sample(names, count)
    intervals = {name: int(chaos_us / random.choice(shares)) for name in names}
    if only is not None:
        chosen = [name for name in names if name in only]
    return {name: intervals[name] for name in names if name in chosen}


def _draw_membership(random: Random, settings: Settings, only: Collection[str] | None) -> Settings:
    """Who else may vote, and what operators do: in every second run voters come and go."""
    is_dynamic = random.random() < 0.5
    voters, observers = settings.voters, settings.observers
    if is_dynamic:
        voters = random.choice([1, 2, 2, 3, 3, 3, 4, 5])
        observers = min(random.choice([0, 1, 1, 2, 2, 3, 4]), NODES_MAX - voters)
    first = range(1, voters + 1)
    nodes = range(1, voters + observers + 1)
    witness = random.choice(first) if voters > 1 and random.random() < 0.25 else None
    twins = [node_id for node_id in nodes if node_id != witness]
    has_twin = is_dynamic and twins and random.random() < 0.3
    twin = random.choice(twins) if has_twin else None
    movers = tuple(sorted(random.sample(nodes, min(2, len(nodes)))))
    if is_dynamic:
        # Who is silent, and for how long, matters: time for more than one round of it.
        settings = replace(
            settings,
            fetch_timeout_ms=random.choice([100, 100, 200, 200, 500, 1000]),
            chaos_us=random.choice([3, 4, 6, 8]) * SECOND,
        )
    counts = [1, 2, 3, 5, len(OPERATIONS)] if is_dynamic else [0, 0, 0, 1, 2]
    names, chaos_us = list(OPERATIONS), settings.chaos_us
    acts = _draw_acts(random, names, random.choice(counts), chaos_us, [2, 4, 8], only)
    for name, is_possible in ((LONE_WITNESS, witness is not None), (LEADER_FAILS, is_dynamic)):
        if is_possible:
            acts |= _draw_acts(random, [name], random.randrange(2), chaos_us, [2, 4, 8], only)
    return replace(
        settings,
        voters=voters,
        observers=observers,
        is_dynamic=is_dynamic,
        auto_join=random.random() < 0.4,
        witness=witness,
        twin=twin,
        movers=movers if is_dynamic else (),
        faults=settings.faults | acts,
    )
