"""The figures of a node in Prometheus' text form: what was counted, and what is true at this moment.

The client library is imported with the first scrape, because a node should not pay for it before: use
`MetricsPage`, which does so outside the event loop's thread. Names: `raft_manager_` for those of KIP-595
and KIP-856, with `_` for `-`; `quorumd_` for this program's own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from quorumd.raft.roles import Role
from quorumd.raft.types import uuid_to_text
from quorumd.server.model.metrics import Metrics
from quorumd.server.model.partition_view import PartitionView, ReplicaStatus
from quorumd.server.model.sampled_stats import Histogram
from quorumd.wire.registry import APIS


class IdleRatio:
    """Share of time that this thread was not on a processor, since the last reading.

    It stands for the time in which the event loop waits: nothing else makes that thread wait.
    """

    def __init__(self, busy: Callable[[], float], clock: Callable[[], float]) -> None:
        self._busy = busy
        self._clock = clock
        self._last = (busy(), clock())

    def read(self) -> float:
        """0 to 1; 1 if no time has passed."""
        busy, now = self._busy(), self._clock()
        busy_before, before = self._last
        self._last = (busy, now)
        if now <= before:
            return 1.0
        return min(1.0, max(0.0, 1.0 - (busy - busy_before) / (now - before)))


class QuorumCollector(Collector):
    """Builds all metric families when Prometheus asks for them."""

    def __init__(
        self, metrics: Metrics, view: PartitionView, version: str, is_ready: Callable[[], bool]
    ) -> None:
        self._metrics = metrics
        self._view = view
        self._version = version
        self._is_ready = is_ready
        self.disk_bytes: tuple[int, int] | None = None
        """Free, and in all, of the disk with the log; None if it is not known."""
        self._idle_ratio = IdleRatio(time.thread_time, time.monotonic)

    def describe(self) -> Iterable[Metric]:
        """Nothing: the names are fixed and belong to this collector alone."""
        return ()

    def collect(self) -> Iterator[Metric]:
        yield from self._state()
        yield from self._voters()
        yield from self._witness()
        yield from self._windows()
        yield from self._log()
        yield from self._network()
        yield from self._replicas()
        yield from self._disk()
        yield from self._certificates()
        build = GaugeMetricFamily(
            "quorumd_build_info", "Always 1; the version is in the label.", labels=["version"]
        )
        build.add_metric([self._version], 1)
        yield build

    def _state(self) -> Iterator[Metric]:
        view = self._view
        yield _raft("current_leader", "Id of the leader, -1 if unknown.", _id(view.leader_id))
        yield _raft("current_epoch", "Epoch of this replica.", view.leader_epoch)
        yield _raft("current_vote", "Id voted for in this epoch, -1 if none.", _id(view.voted_id))
        yield _raft("log_end_offset", "End of the log (exclusive).", view.log_end_offset)
        yield _raft("log_end_epoch", "Epoch of the last record.", view.log_end_epoch)
        yield _raft(
            "high_watermark", "End of what is committed, -1 if unknown.", view.high_watermark
        )
        state = GaugeMetricFamily(
            "raft_manager_current_state",
            "1 for the state that the replica is in.",
            labels=["state"],
        )
        for role in Role:
            state.add_metric([role.value], float(role.value == view.role))
        yield state
        yield _gauge("quorumd_ready", "1 while /readyz responds with 200.", int(self._is_ready()))
        yield _gauge(
            "quorumd_missing_records",
            "Offsets that the leader knows to be committed and this replica has not fetched yet.",
            view.missing_records,
        )
        yield _gauge("quorumd_log_start_offset", "First offset of the log.", view.log_start_offset)
        yield _gauge("quorumd_kraft_version", "Feature level of kraft.version.", view.kraft_version)

    def _voters(self) -> Iterator[Metric]:
        view = self._view
        yield _raft(
            "number_unknown_voter_connections",
            "Voters that no address is known for.",
            view.unknown_voter_connections,
        )
        yield _raft("number_of_voters", "Size of the latest voter set.", len(view.voters))
        possible = [status for status in view.observer_statuses() if status.key.uuid is not None]
        yield _raft(
            "number_of_possible_voters",
            "Observers that could be made voters; on the leader.",
            len(possible),
        )
        yield _raft(
            "pending_add_voter", "1 while a voter is being added.", int(view.is_adding_voter)
        )
        yield _raft(
            "pending_remove_voter",
            "1 while a voter is being removed.",
            int(view.is_removing_voter),
        )

    def _witness(self) -> Iterator[Metric]:
        view = self._view
        yield _gauge(
            "quorumd_witness_ahead",
            "1 while this witness holds records that no other voter within reach has.",
            int(view.is_ahead),
        )
        yield _gauge(
            "quorumd_witness_ahead_records",
            "Offsets that only this witness and its leader have, committed for two fetch timeouts.",
            self._metrics.witness_ahead_records,
        )
        yield _gauge(
            "quorumd_witness_obstacles",
            "Reasons why this node must not become a voter of the Kafka quorum; /status has them.",
            len(view.obstacles),
        )

    def _windows(self) -> Iterator[Metric]:
        """The windowed figures of KIP-595. Without a sample an average is left out: 0 would be a lie."""
        metrics = self._metrics
        for name, what, window in (
            ("election_latency", "until a leader was known", metrics.election_stats),
            ("commit_latency", "from append to commit", metrics.commit_stats),
        ):
            average, maximum = window.average(), window.maximum()
            if average is not None and maximum is not None:
                text = f"in the last minute: milliseconds {what}."
                yield _raft(f"{name}_avg", f"Average {text}", average * 1000)
                yield _raft(f"{name}_max", f"Maximum {text}", maximum * 1000)
        yield _raft(
            "append_records_rate",
            "Records per second appended as leader, in the last minute.",
            metrics.append_records.rate(),
        )
        yield _raft(
            "fetch_records_rate",
            "Records per second appended from fetches, in the last minute.",
            metrics.fetch_records.rate(),
        )
        yield _raft(
            "poll_idle_ratio_avg",
            "Share of time that the event loop was idle, since the last scrape.",
            self._idle_ratio.read(),
        )

    def _log(self) -> Iterator[Metric]:
        metrics = self._metrics
        yield _histogram(
            "quorumd_commit_seconds",
            "From append to commit, on the leader.",
            metrics.commit_seconds,
        )
        yield _histogram(
            "quorumd_fsync_seconds", "One sync of the log to disk.", metrics.fsync_seconds
        )
        yield _histogram(
            "quorumd_batch_bytes",
            "Size of producers' batches that were appended.",
            metrics.batch_bytes,
        )
        yield _counter("quorumd_appended_records", "Appended as leader.", metrics.appended_records)
        yield _counter("quorumd_appended_bytes", "Appended as leader.", metrics.appended_bytes)
        yield _counter("quorumd_fetched_records", "Appended from fetches.", metrics.fetched_records)
        yield _counter("quorumd_fetched_bytes", "Appended from fetches.", metrics.fetched_bytes)
        yield _counter(
            "quorumd_truncated_records", "Uncommitted, and cut off.", metrics.truncated_records
        )
        yield _counter(
            "quorumd_duplicate_batches",
            "Batches of idempotent producers that were in the log already.",
            metrics.duplicate_batches,
        )
        yield _counter(
            "quorumd_unreadable_batches",
            "Compressed batches that do not unpack to what their header says.",
            metrics.unreadable_batches,
        )
        yield _gauge(
            "quorumd_write_age_seconds",
            "How long the write or sync that is under way has taken so far; 0 if none is.",
            self._view.write_age_s(),
        )
        yield from self._snapshots()
        yield _labelled("quorumd_refused_batches", "Not appended.", "error", metrics.refused)
        yield _labelled("quorumd_elections", "Campaigns that ended.", "outcome", metrics.elections)
        yield _labelled(
            "quorumd_ignored", "Requests and responses disregarded.", "reason", metrics.ignored
        )
        yield _labelled(
            "quorumd_unknown",
            "Requests, API versions and records of others that this version does not know.",
            "what",
            metrics.unknown,
        )

    def _snapshots(self) -> Iterator[Metric]:
        metrics, view = self._metrics, self._view
        yield _gauge(
            "quorumd_snapshot_end_offset",
            "End of what the newest snapshot stands for; -1 without one.",
            view.snapshot_end_offset,
        )
        yield _gauge(
            "quorumd_snapshot_build_ratio",
            "How far the snapshot is that is being built; -1 if none is.",
            metrics.snapshots.build_ratio,
        )
        yield _gauge(
            "quorumd_snapshot_copy_ratio",
            "How much of a snapshot has been copied from the leader; -1 if none is copied.",
            view.snapshot_copy_ratio,
        )
        yield _counter("quorumd_snapshots_taken", "Of this node's own.", metrics.snapshots.taken)
        yield _counter(
            "quorumd_snapshots_failed", "Attempts without result.", metrics.snapshots.failed
        )
        yield _counter(
            "quorumd_snapshots_damaged",
            "Found to be damaged while the node ran.",
            metrics.snapshots.damaged,
        )
        yield _counter(
            "quorumd_snapshot_copied_bytes", "From leaders.", metrics.snapshots.copied_bytes
        )
        yield _counter(
            "quorumd_snapshot_copies_failed",
            "From leaders: not sound, or without room for them.",
            metrics.snapshots.copies_failed,
        )

    def _network(self) -> Iterator[Metric]:
        metrics = self._metrics
        connections = GaugeMetricFamily(
            "quorumd_connections", "Inbound, open now.", labels=["listener", "protocol"]
        )
        for at, count in metrics.connections_at.items():
            connections.add_metric(at, count)
        yield connections
        handshakes = CounterMetricFamily(
            "quorumd_tls_handshakes", "Of inbound connections.", labels=["listener", "outcome"]
        )
        for how, count in metrics.tls_handshakes.items():
            handshakes.add_metric(how, count)
        yield handshakes
        kinds = GaugeMetricFamily(
            "quorumd_connections_by_kind", "Inbound, open now.", labels=["kind"]
        )
        for kind, count in metrics.connections_by_kind.items():
            kinds.add_metric([kind], count)
        yield kinds
        yield _counter("quorumd_connections_opened", "Inbound.", metrics.connections_opened)
        yield _labelled(
            "quorumd_connections_closed", "Inbound.", "reason", metrics.connections_closed
        )
        yield _counter(
            "quorumd_connections_refused",
            "Closed at once, because no slot was free or a quota was reached.",
            metrics.connections_refused,
        )
        yield _counter("quorumd_received_bytes", "On inbound connections.", metrics.bytes_received)
        yield _counter("quorumd_sent_bytes", "On inbound connections.", metrics.bytes_sent)
        requests = {APIS[key].name: count for key, count in metrics.requests.items()}
        yield _labelled("quorumd_requests", "Taken, by API.", "api", requests)
        yield _counter(
            "quorumd_peer_connections_opened", "To other nodes.", metrics.peer_connections_opened
        )
        yield _counter(
            "quorumd_peer_connect_failures", "To other nodes.", metrics.peer_connect_failures
        )
        yield _counter("quorumd_peer_received_bytes", "From peers.", metrics.peer_bytes_received)
        yield _counter("quorumd_peer_sent_bytes", "To peers.", metrics.peer_bytes_sent)
        yield _counter(
            "quorumd_log_lines_dropped",
            "Lines not written because the log was not read.",
            metrics.log_lines_dropped,
        )

    def _replicas(self) -> Iterator[Metric]:
        """On the leader: how far behind each replica is."""
        view = self._view
        labels = ["replica_id", "replica_uuid", "kind"]
        lag = GaugeMetricFamily(
            "quorumd_replica_lag_records",
            "Records that a replica lacks; on the leader.",
            labels=labels,
        )
        behind = GaugeMetricFamily(
            "quorumd_replica_behind_seconds",
            "Since a replica last had everything; on the leader.",
            labels=labels,
        )
        now_ms = view.wall_ms()
        for kind, statuses in (
            ("voter", view.voter_statuses()),
            ("observer", view.observer_statuses()),
        ):
            for status in statuses:
                names = [str(status.key.id), _uuid(status), kind]
                if status.log_end_offset >= 0:
                    missing = max(0, view.log_end_offset - status.log_end_offset)
                    lag.add_metric(names, missing)
                if status.last_caught_up_ms >= 0:
                    seconds = max(0.0, (now_ms - status.last_caught_up_ms) / 1000)
                    behind.add_metric(names, seconds)
        yield lag
        yield behind
        if view.is_leader:
            yield _gauge(
                "quorumd_fetching_voters",
                "Voters that fetched within the fetch timeout, and the leader; on the leader.",
                len(view.in_sync_ids()),
            )

    def _disk(self) -> Iterator[Metric]:
        if self.disk_bytes is None:
            return
        free_bytes, size_bytes = self.disk_bytes
        yield _gauge(
            "quorumd_disk_free_bytes",
            "Left on the disk of storage.dir for users other than root.",
            free_bytes,
        )
        yield _gauge("quorumd_disk_size_bytes", "Size of the disk of storage.dir.", size_bytes)

    def _certificates(self) -> Iterator[Metric]:
        """Only where something is TLS."""
        metrics = self._metrics
        if not metrics.certificates.lifetimes:
            return
        labels = ["listener", "role", "subject"]
        start = GaugeMetricFamily(
            "quorumd_certificate_start_timestamp_seconds",
            "When a certificate or a revocation list begins.",
            labels=labels,
        )
        expiry = GaugeMetricFamily(
            "quorumd_certificate_expiry_timestamp_seconds",
            "When a certificate or a revocation list ends.",
            labels=labels,
        )
        for values, (start_s, end_s) in metrics.certificates.lifetimes.items():
            start.add_metric(values, start_s)
            expiry.add_metric(values, end_s)
        yield start
        yield expiry
        yield _gauge(
            "quorumd_certificates_loaded_timestamp_seconds",
            "When the newest set of keys and certificates was read.",
            metrics.certificates.loaded_at_s,
        )
        yield _counter(
            "quorumd_certificate_reload_failures",
            "Looks at new files that could not be used.",
            metrics.certificates.reload_failures,
        )


class MetricsText:
    """A registry of this node's own, and its text form."""

    def __init__(
        self, metrics: Metrics, view: PartitionView, version: str, is_ready: Callable[[], bool]
    ) -> None:
        self._collector = QuorumCollector(metrics, view, version, is_ready)
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self._collector)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)

    def render(self, accept: str, disk_bytes: tuple[int, int] | None) -> tuple[bytes, str]:
        """Body and content type, as the request's Accept header prefers; plain text if it says nothing."""
        self._collector.disk_bytes = disk_bytes
        try:
            # The library takes the quotes of a parameter for a part of its value.
            encode, content_type = choose_encoder(accept.replace('"', ""))
        except (TypeError, ValueError):  # a version that it does not understand
            encode, content_type = choose_encoder("")
        return encode(self._registry), content_type


def _id(value: int | None) -> int:
    return -1 if value is None else value


def _uuid(status: ReplicaStatus) -> str:
    return "" if status.key.uuid is None else uuid_to_text(status.key.uuid)


def _raft(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"raft_manager_{name}", text, value=value)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)


def _labelled(name: str, text: str, label: str, counts: dict[str, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=[label])
    for value in sorted(counts):
        family.add_metric([value], counts[value])
    return family


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    return HistogramMetricFamily(name, text, buckets=histogram.buckets(), sum_value=histogram.sum)
