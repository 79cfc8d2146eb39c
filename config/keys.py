"""Which keys there are, how their text is read, and what a mistyped one was meant to be.

Knows no file and no environment. Defaults are those of `quorumd.config.model.Config`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from types import MappingProxyType

from quorumd.config import values

ENVIRONMENT_PREFIX = "QUORUMD_"

_A_DAY_MS = 86_400_000
_TEN_YEARS_MS = 3_650 * _A_DAY_MS
_MAX_BATCH_BYTES = 8 << 20
_MAX_TOTAL_BYTES = 1 << 50
_MAX_FILE_BYTES = 2**31 - 1  # positions in the offset index are 32-bit

_duration_ms = values.whole_number(1, _A_DAY_MS, "milliseconds")

PARSERS: Mapping[str, Callable[[str], object]] = MappingProxyType(
    {
        "node.id": values.whole_number(0, values.MAX_ID),
        "storage.dir": values.folder,
        "listeners": values.listeners,
        "advertised.listeners": values.advertised_listeners,
        "http.listen": values.listen_address,
        "quorum.voters": values.voters,
        "quorum.bootstrap.servers": values.addresses,
        "quorum.fetch.timeout.ms": _duration_ms,
        "quorum.election.timeout.ms": _duration_ms,
        "quorum.election.backoff.max.ms": _duration_ms,
        "quorum.request.timeout.ms": _duration_ms,
        "quorum.retry.backoff.ms": _duration_ms,
        "quorum.retry.backoff.max.ms": _duration_ms,
        "quorum.auto.join": values.true_or_false,
        "quorum.witness": values.true_or_false,
        "log.segment.bytes": values.whole_number(4096, _MAX_FILE_BYTES, "bytes"),
        "log.max.batch.bytes": values.whole_number(1024, _MAX_BATCH_BYTES, "bytes"),
        "snapshot.max.new.record.bytes": values.whole_number(1, _MAX_TOTAL_BYTES, "bytes"),
        "snapshot.interval.ms": values.whole_number(1_000, _TEN_YEARS_MS, "milliseconds"),
        "snapshot.bandwidth.bytes.per.second": values.limit(1, _MAX_TOTAL_BYTES, "bytes"),
        "retention.bytes": values.limit(0, _MAX_TOTAL_BYTES, "bytes"),
        "retention.ms": values.limit(0, _TEN_YEARS_MS, "milliseconds"),
        "socket.request.max.bytes": values.whole_number(4096, _MAX_FILE_BYTES, "bytes"),
        "max.connections": values.whole_number(16, 1_000_000),
        "connections.max.idle.ms": values.whole_number(1_000, _A_DAY_MS, "milliseconds"),
    }
)

REQUIRED: Mapping[str, str] = MappingProxyType(
    {
        "node.id": "the id of this node, for example 1",
        "storage.dir": "the folder of its data, for example /var/lib/quorumd",
        "listeners": "where it listens, for example CONTROLLER://db1.example.com:9093",
    }
)

LISTS = frozenset(
    {"listeners", "advertised.listeners", "quorum.voters", "quorum.bootstrap.servers"}
)
"""Keys whose value may be a YAML list as well as text with commas."""

# What the same thing is called in Kafka's own files, and what people write instead.
_SYNONYMS: Mapping[str, str] = MappingProxyType(
    {
        "controller.quorum.voters": "quorum.voters",
        "controller.quorum.bootstrap.servers": "quorum.bootstrap.servers",
        "bootstrap.servers": "quorum.bootstrap.servers",
        "broker.id": "node.id",
        "log.dir": "storage.dir",
        "log.dirs": "storage.dir",
        "data.dir": "storage.dir",
        "http.port": "http.listen",
    }
)


def variable_of(key: str) -> str:
    """The environment variable that overrides this key."""
    return ENVIRONMENT_PREFIX + key.upper().replace(".", "_")


def nearest(key: str) -> str | None:
    """The known key that a mistyped one was probably meant to be, or None."""
    plain = key.strip().lower().replace("_", ".").replace("-", ".")
    if plain in PARSERS:
        return plain
    if plain in _SYNONYMS:
        return _SYNONYMS[plain]
    close = difflib.get_close_matches(plain, sorted(PARSERS), n=1, cutoff=0.6)
    return close[0] if close else None


def nearest_variable(name: str) -> str | None:
    """The variable that `name` is a slip of, or None.

    Stricter than `nearest`: variables of this prefix may belong to somebody else (Kubernetes sets
    QUORUMD_SERVICE_HOST beside a service called quorumd).
    """
    known = sorted(variable_of(key) for key in PARSERS)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.9)
    return close[0] if close else None
