"""What a node is told before it starts: one immutable value with every key and its default.

The key of a field is its name with dots for underscores: `quorum_fetch_timeout_ms` is
`quorum.fetch.timeout.ms`. How text becomes a value is `quorumd.config.keys`' business; what must hold
between the values is checked in `quorumd.config.load`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from quorumd.config.addresses import ConfiguredVoter, Listener
from quorumd.raft.types import Address


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The configuration of one node. Times are milliseconds, sizes are bytes.

    `advertised_listeners` holds the same names as `listeners`, in the same order. `http_listen` of
    None means that no HTTP is served; other limits of None are none. A node whose id is not in
    `quorum_voters` is an observer.
    """

    node_id: int
    storage_dir: Path
    listeners: tuple[Listener, ...]
    advertised_listeners: tuple[Listener, ...]
    http_listen: Address | None = None
    quorum_voters: tuple[ConfiguredVoter, ...] = ()
    quorum_bootstrap_servers: tuple[Address, ...] = ()
    quorum_fetch_timeout_ms: int = 2_000
    quorum_election_timeout_ms: int = 1_000
    quorum_election_backoff_max_ms: int = 1_000
    quorum_request_timeout_ms: int = 2_000
    quorum_retry_backoff_ms: int = 20
    quorum_retry_backoff_max_ms: int = 1_000
    quorum_auto_join: bool = False
    quorum_witness: bool = False
    log_segment_bytes: int = 128 << 20
    log_max_batch_bytes: int = 1 << 20
    snapshot_max_new_record_bytes: int = 20 << 20
    snapshot_interval_ms: int = 3_600_000
    snapshot_bandwidth_bytes_per_second: int | None = None
    retention_bytes: int | None = None
    retention_ms: int | None = None
    socket_request_max_bytes: int = 100 << 20
    max_connections: int = 1_000
    connections_max_idle_ms: int = 600_000
