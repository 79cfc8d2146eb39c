"""Settings of a run: how many nodes, which limits, which faults and how often."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from quorumd.config.addresses import ConfiguredVoter
from quorumd.config.model import Config
from quorumd.raft.types import Address, Endpoint
from quorumd.server.model.conditions import WINDOW_BYTES, WINDOW_IDLE_S
from quorumd.server.node import TAIL_CACHE_BYTES
from quorumd.server.requests.produce import UNCOMMITTED_BYTES_MAX

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
    taken after `snapshot_bytes` of records, and built with `snapshot_memory_bytes`. A producer has up to
    `in_flight_max` batches under way. `tail_cache_bytes`, `uncommitted_bytes_max`, `condition_window_bytes`
    and `condition_idle_s` stand in for the daemon's own limits, which a run of seconds would never reach.

    `voters` is how many nodes begin as voters. If the quorum is dynamic, any node may become one, and
    none stays one for ever; otherwise quorum.voters names their ids. There is a second machine, with
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
    inquirers: int = 0
    contenders: int = 0
    in_flight_max: int = 1
    pause_between_appends_us: int
    values_bytes_max: int
    snapshot_bytes: int
    retention_bytes: int | None
    retention_ms: int | None = None
    tail_cache_bytes: int = TAIL_CACHE_BYTES
    uncommitted_bytes_max: int = UNCOMMITTED_BYTES_MAX
    condition_window_bytes: int = WINDOW_BYTES
    condition_idle_s: float = WINDOW_IDLE_S
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
        """Voters first, then observers."""
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
            conditions_window_bytes=self.condition_window_bytes,
            snapshot_max_new_record_bytes=self.snapshot_bytes,
            snapshot_interval_ms=10_000,
            snapshot_bandwidth_bytes_per_second=self.snapshot_bandwidth,
            retention_bytes=self.retention_bytes,
            retention_ms=self.retention_ms,
        )

    def _bootstrap_servers(self, node_id: int) -> tuple[Address, ...]:
        """Servers at which a quorum without quorum.voters is found: also where its nodes may be later."""
        if not self.is_dynamic:
            return () if node_id <= self.voters else (Address("node1", PORT),)
        hosts = [site.host for site in self.sites]
        hosts += [moved(f"node{i}") for i in self.movers]
        return tuple(Address(host, PORT) for host in hosts)


def listener_at(host: str) -> Endpoint:
    """The listener of a node on this host."""
    return Endpoint("CONTROLLER", host, PORT)


def moved(host: str) -> str:
    """The other name under which a node that moves listens."""
    return host.removesuffix("m") if host.endswith("m") else f"{host}m"
