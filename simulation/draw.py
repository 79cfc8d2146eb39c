"""Settings of a run, drawn from its seed: how many nodes, which limits, which faults and how often."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from random import Random

from quorumd.server.model.conditions import WINDOW_BYTES, WINDOW_IDLE_S
from quorumd.server.node import TAIL_CACHE_BYTES
from quorumd.server.requests.produce import UNCOMMITTED_BYTES_MAX
from simulation.clients.producer import FIRST_TIMESTAMP_MS
from simulation.faults import FAULTS, OPERATIONS
from simulation.faults.hostile import HOSTILE
from simulation.faults.partitions import FIREWALLS, LEADER_FAILS, LONE_WITNESS
from simulation.machines.hardware import BEGINNING_MS
from simulation.scheduler import MS, SECOND
from simulation.settings import NODES_MAX, Settings


def draw_settings(
    seed: int, only: Collection[str] | None = None, membership: bool = True
) -> Settings:
    """The settings of a seed. `only` restricts the faults; everything else stays as it is.

    Without `membership` voters are those of quorum.voters, and never change.
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
        faults=_draw_faults(random, chaos_us, only)
        | _draw_firewalls(Random(f"{seed}/firewalls"), chaos_us, only),
    )
    settings = _draw_limits(Random(f"{seed}/limits"), settings)
    if membership:
        settings = _draw_membership(Random(f"{seed}/membership"), settings, only)
    settings = _draw_hostile(Random(f"{seed}/hostile"), settings, only)
    return _draw_contenders(Random(f"{seed}/contenders"), settings)


def _draw_contenders(random: Random, settings: Settings) -> Settings:
    """In one run of four, so that the others have time for the rest."""
    return replace(
        settings,
        contenders=random.choice([0, 0, 0, random.randint(2, 4)]),
        condition_window_bytes=random.choice([2_000, WINDOW_BYTES, WINDOW_BYTES]),
        condition_idle_s=random.choice([0.5, WINDOW_IDLE_S, WINDOW_IDLE_S]),
    )


def _draw_hostile(random: Random, settings: Settings, only: Collection[str] | None) -> Settings:
    """In one run of eight."""
    count = random.choice([0, 0, 0, 0, 0, 0, 0, 1])
    acts = _draw_acts(random, [HOSTILE], count, settings.chaos_us, [1, 2, 4], only)
    return replace(settings, faults=settings.faults | acts)


def _draw_limits(random: Random, settings: Settings) -> Settings:
    """Draws numbers of clients that ask for offsets, of batches under way, and limits that are hit soon."""
    ages_ms = [None, None, 0, 1_000, 3_000]
    age_ms = random.choice(ages_ms)
    return replace(
        settings,
        inquirers=random.choice([0, 1, 1, 2]),
        in_flight_max=random.choice([1, 2, 5, 5]),
        retention_ms=None if age_ms is None else age_ms + BEGINNING_MS - FIRST_TIMESTAMP_MS,
        tail_cache_bytes=random.choice([0, 1_000, 5_000, TAIL_CACHE_BYTES, TAIL_CACHE_BYTES]),
        uncommitted_bytes_max=random.choice([1_000, 8_000, *3 * [UNCOMMITTED_BYTES_MAX]]),
    )


def _draw_faults(random: Random, chaos_us: int, only: Collection[str] | None) -> dict[str, int]:
    """Each fault alone in one seed of ten, a handful at a time otherwise; seldom none at all."""
    count = random.choice([0, 1, 1, 2, 3, 4, 5, 6, 8, 12])
    drawn_apart = (LONE_WITNESS, LEADER_FAILS, FIREWALLS, HOSTILE)
    names = [name for name in FAULTS if name not in drawn_apart]
    return _draw_acts(random, names, count, chaos_us, [2, 4, 8, 16], only)


def _draw_firewalls(random: Random, chaos_us: int, only: Collection[str] | None) -> dict[str, int]:
    """Firewalls stay until all faults stop, and others hardly matter behind one: seldom, once or twice."""
    return _draw_acts(random, [FIREWALLS], random.random() < 0.1, chaos_us, [1, 2], only)


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
    """Voters, observers, and what operators do: in every second run voters come and go."""
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
        # The time that a replica is silent matters: time for more than one round of it.
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
