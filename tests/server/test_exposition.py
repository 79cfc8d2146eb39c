"""Each figure of Prometheus is the one that its name says: all that can be told apart are other numbers."""

from __future__ import annotations

from itertools import count
from operator import attrgetter
from typing import Any, cast
from uuid import UUID

import pytest
from prometheus_client.parser import text_string_to_metric_families

from quorumd.raft.types import ReplicaKey
from quorumd.server.http.exposition import MetricsText
from quorumd.server.model.metrics import LABELS_MAX, OTHER_LABEL, Metrics, count_label
from quorumd.server.model.partition_view import ReplicaStatus
from quorumd.server.model.sampled_stats import Histogram

COUNTERS = {
    "quorumd_appended_records_total": "appended_records",
    "quorumd_appended_bytes_total": "appended_bytes",
    "quorumd_fetched_records_total": "fetched_records",
    "quorumd_fetched_bytes_total": "fetched_bytes",
    "quorumd_truncated_records_total": "truncated_records",
    "quorumd_duplicate_batches_total": "duplicate_batches",
    "quorumd_unreadable_batches_total": "unreadable_batches",
    "quorumd_snapshots_taken_total": "snapshots.taken",
    "quorumd_snapshots_failed_total": "snapshots.failed",
    "quorumd_snapshots_damaged_total": "snapshots.damaged",
    "quorumd_snapshot_copied_bytes_total": "snapshots.copied_bytes",
    "quorumd_snapshot_copies_failed_total": "snapshots.copies_failed",
    "quorumd_snapshot_build_ratio": "snapshots.build_ratio",
    "quorumd_connections_opened_total": "connections_opened",
    "quorumd_connections_refused_total": "connections_refused",
    "quorumd_received_bytes_total": "bytes_received",
    "quorumd_sent_bytes_total": "bytes_sent",
    "quorumd_peer_connections_opened_total": "peer_connections_opened",
    "quorumd_peer_connect_failures_total": "peer_connect_failures",
    "quorumd_peer_received_bytes_total": "peer_bytes_received",
    "quorumd_peer_sent_bytes_total": "peer_bytes_sent",
    "quorumd_log_lines_dropped_total": "log_lines_dropped",
    "quorumd_witness_ahead_records": "witness_ahead_records",
}
OF_THE_VIEW = {
    "raft_manager_current_leader": "leader_id",
    "raft_manager_current_epoch": "leader_epoch",
    "raft_manager_current_vote": "voted_id",
    "raft_manager_log_end_offset": "log_end_offset",
    "raft_manager_log_end_epoch": "log_end_epoch",
    "raft_manager_high_watermark": "high_watermark",
    "raft_manager_number_unknown_voter_connections": "unknown_voter_connections",
    "quorumd_missing_records": "missing_records",
    "quorumd_log_start_offset": "log_start_offset",
    "quorumd_kraft_version": "kraft_version",
    "quorumd_snapshot_end_offset": "snapshot_end_offset",
    "quorumd_snapshot_copy_ratio": "snapshot_copy_ratio",
}


class View:
    """Every plain figure is another number."""

    role = "leader"
    voters = (1, 2, 3)
    obstacles = ()
    is_leader = is_adding_voter = is_ahead = True
    is_removing_voter = False

    def __init__(self) -> None:
        for value, name in enumerate(OF_THE_VIEW.values(), 1000):
            setattr(self, name, value)
        self.observers: list[ReplicaStatus] = []

    def wall_ms(self) -> int:
        return 50_000

    def write_age_s(self) -> float:
        return 0.25

    def in_sync_ids(self) -> tuple[int, ...]:
        return 1, 2

    def voter_statuses(self) -> list[ReplicaStatus]:
        return []

    def observer_statuses(self) -> list[ReplicaStatus]:
        return self.observers


def scraped(metrics: Metrics, view: View) -> dict[tuple[str, ...], float]:
    """By name and the values of the labels, whose names ascend."""
    text = MetricsText(metrics, cast(Any, view), "0.1", lambda: True)
    body, _ = text.render("", (7, 9))
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


def test_every_plain_figure_is_its_own() -> None:
    metrics, numbers = Metrics(lambda: 0.0), count(1)
    for name in COUNTERS.values():
        group, _, figure = name.rpartition(".")
        setattr(attrgetter(group)(metrics) if group else metrics, figure, next(numbers))
    view = View()
    found = scraped(metrics, view)
    wrong = {
        name: found[(name,)]
        for name, of in COUNTERS.items()
        if found[(name,)] != attrgetter(of)(metrics)
    }
    wrong |= {
        name: found[(name,)]
        for name, of in OF_THE_VIEW.items()
        if found[(name,)] != getattr(view, of)
    }
    assert wrong == {}
    assert (
        found["raft_manager_pending_add_voter",],
        found["raft_manager_pending_remove_voter",],
    ) == (1, 0)
    assert (found["quorumd_disk_free_bytes",], found["quorumd_disk_size_bytes",]) == (7, 9)


def test_ids_from_0_on_are_ids_and_none_is_minus_one() -> None:
    for leader_id, voted_id, shown in ((0, 0, (0, 0)), (None, None, (-1, -1))):
        view = View()
        cast(Any, view).leader_id, cast(Any, view).voted_id = leader_id, voted_id
        found = scraped(Metrics(lambda: 0.0), view)
        names = ("raft_manager_current_leader", "raft_manager_current_vote")
        assert tuple(found[(name,)] for name in names) == shown


def test_windows_and_histograms_are_those_of_their_names() -> None:
    metrics = Metrics(lambda: 0.0)
    metrics.observe_commit(0.002, 3)
    metrics.observe_commit(0.010)
    metrics.observe_fsync(0.5)
    metrics.observe_election(1.5)
    metrics.observe_batches([100, 200, 300])
    metrics.count_appended(60, 5)
    metrics.count_fetched(90, 7)
    found = scraped(metrics, View())
    figures = {
        "raft_manager_commit_latency_avg": 4.0,
        "raft_manager_commit_latency_max": 10.0,
        "raft_manager_election_latency_avg": 1500.0,
        "raft_manager_election_latency_max": 1500.0,
        "raft_manager_append_records_rate": 2.0,
        "raft_manager_fetch_records_rate": 3.0,
        "quorumd_commit_seconds_count": 4.0,
        "quorumd_commit_seconds_sum": 0.016,
        "quorumd_fsync_seconds_count": 1.0,
        "quorumd_fsync_seconds_sum": 0.5,
        "quorumd_batch_bytes_count": 3.0,
        "quorumd_batch_bytes_sum": 600.0,
        "quorumd_appended_bytes_total": 5.0,
        "quorumd_fetched_bytes_total": 7.0,
    }
    assert {name: found[(name,)] for name in figures} == pytest.approx(figures)


def test_batches_that_fall_into_one_bucket_are_all_counted() -> None:
    one, each = Histogram((10.0, 20.0)), Histogram((10.0, 20.0))
    for values in ([11, 12, 20], [1], [9, 10], [5, 15, 25]):
        one.observe_each(values)
        for value in values:
            each.observe(value)
    assert one.buckets() == each.buckets() == [("10.0", 4), ("20.0", 8), ("+Inf", 9)]
    assert one.sum == each.sum


def test_a_replica_that_was_never_caught_up_is_behind_by_no_time_that_is_known() -> None:
    view, known = View(), ReplicaKey(8, UUID(int=1))
    for key, caught_up_ms in ((known, 20_000), (ReplicaKey(9, UUID(int=2)), -1)):
        view.observers.append(
            ReplicaStatus(
                key=key, log_end_offset=0, last_fetch_ms=0, last_caught_up_ms=caught_up_ms
            )
        )
    found = scraped(Metrics(lambda: 0.0), view)
    behind = {
        at[2]: value for at, value in found.items() if at[0] == "quorumd_replica_behind_seconds"
    }
    assert behind == {"8": 30.0}
    lags = {at[2]: value for at, value in found.items() if at[0] == "quorumd_replica_lag_records"}
    assert lags == {"8": cast(Any, view).log_end_offset, "9": cast(Any, view).log_end_offset}


def test_a_certificate_begins_before_it_ends() -> None:
    metrics = Metrics(lambda: 0.0)
    metrics.certificates.lifetimes["A", "own", "CN=x"] = 100.0, 200.0
    metrics.certificates.loaded_at_s, metrics.certificates.reload_failures = 150.0, 3
    found = scraped(metrics, View())
    assert found["quorumd_certificate_start_timestamp_seconds", "A", "own", "CN=x"] == 100
    assert found["quorumd_certificate_expiry_timestamp_seconds", "A", "own", "CN=x"] == 200
    assert found["quorumd_certificates_loaded_timestamp_seconds",] == 150
    assert found["quorumd_certificate_reload_failures_total",] == 3


def test_labels_that_are_known_are_counted_beyond_the_most_that_there_may_be() -> None:
    counts: dict[str, int] = {}
    for number in [*range(LABELS_MAX + 2), 0, 0]:
        count_label(counts, f"label {number}")
    assert (counts["label 0"], counts[OTHER_LABEL]) == (3, 2)
    metrics = Metrics(lambda: 0.0)
    news = [
        metrics.count_unknown(f"request {number % LABELS_MAX}") for number in range(LABELS_MAX * 2)
    ]
    assert news == [True] * LABELS_MAX + [False] * LABELS_MAX
    assert not metrics.count_unknown("one more"), "it is not named"


def test_a_replica_whose_log_is_longer_than_the_leaders_lacks_nothing() -> None:
    """Its end is cut off when it fetches next."""
    view = View()
    ends = {4: cast(Any, view).log_end_offset + 5, 5: 0, 6: -1}
    view.observers = [ReplicaStatus(ReplicaKey(each, None), end) for each, end in ends.items()]
    found = scraped(Metrics(), view)
    lags = {at[2]: value for at, value in found.items() if at[0] == "quorumd_replica_lag_records"}
    assert lags == {"4": 0, "5": ends[4] - 5}
