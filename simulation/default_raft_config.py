"""The rules as a node with the defaults of its keys configures them, for what runs them without a node."""

from __future__ import annotations

from typing import Any

from quorumd.config.keys import KEYS
from quorumd.raft.config import RaftConfig
from quorumd.raft.types import ReplicaKey

_KEY_OF = {
    "fetch_timeout_ms": "quorum.fetch.timeout.ms",
    "election_timeout_ms": "quorum.election.timeout.ms",
    "election_backoff_max_ms": "quorum.election.backoff.max.ms",
    "retry_backoff_ms": "quorum.retry.backoff.ms",
    "retry_backoff_max_ms": "quorum.retry.backoff.max.ms",
    "is_witness": "quorum.witness",
    "auto_join": "quorum.auto.join",
    "snapshot_bytes_per_s": "snapshot.bandwidth.bytes.per.second",
}
_DEFAULTS = {field: KEYS[key].default for field, key in _KEY_OF.items()}


def default_raft_config(local: ReplicaKey, **more: Any) -> RaftConfig:
    """The rules of this replica; `more` are fields with other values than a node's defaults."""
    values: dict[str, Any] = {**_DEFAULTS, **more}
    return RaftConfig(local=local, **values)
