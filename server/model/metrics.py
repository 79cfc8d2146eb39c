"""The counters of a node: plain numbers, incremented where things happen.

Nothing here knows how the figures are published; `quorumd.server.http.exposition` turns them, and the
`PartitionView` of that moment, into Prometheus' text. Belongs to the event loop's thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from quorumd.server.model.sampled_stats import Histogram, SampledStats
from quorumd.wire.registry import APIS

LATENCY_BOUNDS_SECONDS: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
BATCH_BOUNDS_BYTES: Final = tuple(float(64 << shift) for shift in range(0, 18, 2))
LABELS_MAX: Final = 64
OTHER_LABEL: Final = "other"


def count_label(counts: dict[str, int], label: str) -> None:
    """Add one to the count under this label; beyond LABELS_MAX different ones, under `other`.

    Labels come from code, but some of that code quotes what a peer sent.
    """
    if label not in counts and len(counts) >= LABELS_MAX:
        label = OTHER_LABEL
    counts[label] = counts.get(label, 0) + 1


@dataclass(slots=True)
class SnapshotMetrics:
    """Snapshots that this node builds, and those that it copies from a leader."""

    taken: int = 0
    failed: int = 0
    damaged: int = 0
    """Found to be damaged while this process ran."""
    build_ratio: float = -1.0
    """Part of a snapshot that has been built, 0 to 1; -1 if none is."""
    copied_bytes: int = 0
    copies_failed: int = 0
    """All of a copy, or as much as there was room for, in vain."""


@dataclass(slots=True)
class CertificateMetrics:
    """The certificates of this node's listeners and links. Nothing of it changes without TLS."""

    lifetimes: dict[tuple[str, str, str], tuple[float, float]] = field(default_factory=dict)
    """When each one begins and ends, in seconds since 1970; by listener, role and subject."""
    loaded_at_s: float = 0.0
    """Seconds since 1970."""
    reload_failures: int = 0
    """Looks at new files that could not be used."""


class Metrics:
    """Counters of one process. The public attributes are meant to be incremented in place."""

    __slots__ = (
        "append_records",
        "appended_bytes",
        "appended_records",
        "batch_bytes",
        "bytes_received",
        "bytes_sent",
        "certificates",
        "commit_seconds",
        "commit_stats",
        "connections_at",
        "connections_by_kind",
        "connections_closed",
        "connections_opened",
        "connections_refused",
        "duplicate_batches",
        "election_stats",
        "elections",
        "fetch_records",
        "fetched_bytes",
        "fetched_records",
        "fsync_seconds",
        "ignored",
        "log_lines_dropped",
        "peer_bytes_received",
        "peer_bytes_sent",
        "peer_connect_failures",
        "peer_connections_opened",
        "refused",
        "requests",
        "snapshots",
        "tls_handshakes",
        "truncated_records",
        "unknown",
        "unreadable_batches",
        "witness_ahead_records",
    )

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives seconds that never go back; it serves the windowed figures alone."""
        self.connections_opened = 0
        self.connections_refused = 0
        """Closed at once, because no slot was free or a quota was reached."""
        self.witness_ahead_records = 0
        """Of a witness that follows a Kafka leader: what all other voters lack."""
        self.connections_by_kind = {
            "client": 0,
            "peer": 0,
            "observer": 0,
            "operator": 0,
            "new": 0,
        }
        """Open now, by `quorumd.server.net.connection_slots.ConnectionKind`."""
        self.connections_at: dict[tuple[str, str], int] = {}
        """Open now, by listener and `quorumd.config.tls.SecurityProtocol`."""
        self.tls_handshakes: dict[tuple[str, str], int] = {}
        """Of those that came in, by listener and `quorumd.security.errors.HandshakeOutcome`."""
        self.connections_closed: dict[str, int] = {}
        """By `quorumd.server.net.connection_state.CloseReason`."""
        self.bytes_received = 0
        self.bytes_sent = 0
        # These and `elections` from the start: Prometheus sees no increase in a counter that begins with
        # its first event.
        self.requests = dict.fromkeys(APIS, 0)
        """Number of requests whose header has been understood, by api key."""
        self.peer_connections_opened = 0
        self.peer_connect_failures = 0
        self.peer_bytes_sent = 0
        self.peer_bytes_received = 0
        self.appended_records = 0
        self.appended_bytes = 0
        self.fetched_records = 0
        self.fetched_bytes = 0
        self.truncated_records = 0
        self.snapshots = SnapshotMetrics()
        self.duplicate_batches = 0
        """Batches of idempotent producers that were in the log already."""
        self.unreadable_batches = 0
        """Compressed batches that do not unpack to what their header says."""
        self.refused: dict[str, int] = {}
        """Produced batches that were not appended, by the name of the error code."""
        self.ignored: dict[str, int] = {}
        """Requests and responses that were ignored, by reason."""
        self.unknown: dict[str, int] = {}
        """Requests, API versions and records of others that this version does not know, by name."""
        self.elections = {"won": 0, "lost": 0}
        """Campaigns, by outcome."""
        self.log_lines_dropped = 0
        self.certificates = CertificateMetrics()
        self.commit_seconds = Histogram(LATENCY_BOUNDS_SECONDS)
        self.fsync_seconds = Histogram(LATENCY_BOUNDS_SECONDS)
        self.batch_bytes = Histogram(BATCH_BOUNDS_BYTES)
        self.commit_stats = SampledStats(clock)
        self.election_stats = SampledStats(clock)
        self.append_records = SampledStats(clock)
        self.fetch_records = SampledStats(clock)

    def count_closed(self, reason: str) -> None:
        """An inbound connection that had been opened is gone."""
        count_label(self.connections_closed, reason)

    def count_refused(self, error: str) -> None:
        """A produced batch was not appended; `error` is the name of the error code."""
        count_label(self.refused, error)

    def count_ignored(self, reason: str) -> None:
        """Something from a peer was disregarded, as the rules ask. Reasons are few and fixed."""
        count_label(self.ignored, reason)

    def count_unknown(self, what: str) -> bool:
        """Something of another's came that this version does not know. True if it is the first so named."""
        is_news = what not in self.unknown
        count_label(self.unknown, what)
        return is_news and what in self.unknown

    def count_dropped_line(self) -> None:
        """A line of the log was not written: it is read too slowly. For any thread, for one at a time."""
        self.log_lines_dropped += 1

    def count_election(self, outcome: str) -> None:
        """A campaign of this node has ended."""
        count_label(self.elections, outcome)

    def observe_election(self, seconds: float) -> None:
        """From the loss of a leader, or the start of a campaign, until a leader was known."""
        self.election_stats.record(seconds)

    def observe_commit(self, seconds: float, batches: int = 1) -> None:
        """On the leader: from the append of a turn's batches until the high watermark passed them."""
        self.commit_seconds.observe(seconds, batches)
        self.commit_stats.record(seconds, batches)

    def observe_fsync(self, seconds: float) -> None:
        """One write and fdatasync of the log."""
        self.fsync_seconds.observe(seconds)

    def observe_batches(self, sizes_bytes: Sequence[int]) -> None:
        """Batches of producers were appended, at least one."""
        self.batch_bytes.observe_each(sizes_bytes)

    def count_appended(self, records: int, size_bytes: int) -> None:
        """Appended as leader; once per append, not per batch."""
        self.appended_records += records
        self.appended_bytes += size_bytes
        self.append_records.record(records)

    def count_fetched(self, records: int, size_bytes: int) -> None:
        """Appended as follower or observer, from one Fetch response."""
        self.fetched_records += records
        self.fetched_bytes += size_bytes
        self.fetch_records.record(records)
