"""What a node counts, and the text that Prometheus reads of it."""

from __future__ import annotations

import asyncio
import math
import shutil
import sys
from pathlib import Path
from threading import Event
from typing import NamedTuple
from uuid import UUID

import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as open_metrics_families,
)
from prometheus_client.parser import text_string_to_metric_families

from quorumd.raft.types import ReplicaKey, uuid_to_text
from quorumd.server.http import http_server
from quorumd.server.http.exposition import IdleRatio, MetricsText
from quorumd.server.http.http_server import MetricsPage
from quorumd.server.model.metrics import LABELS_MAX, Metrics
from quorumd.server.model.partition_view import PartitionView, ReplicaStatus
from quorumd.server.model.sampled_stats import Histogram, SampledStats
from quorumd.wire.registry import APIS
from tests.support.cluster import FixedView
from tests.support.serving import run


class Usage(NamedTuple):
    total: int
    used: int
    free: int


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


Labels = tuple[tuple[str, str], ...]


def scrape(
    metrics: Metrics,
    source: PartitionView,
    *,
    is_ready: bool = True,
    disk_bytes: tuple[int, int] | None = None,
) -> dict[tuple[str, Labels], float]:
    body, _ = MetricsText(metrics, source, "0.1", lambda: is_ready).render("", disk_bytes)
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


# -- windows


def test_a_window_covers_the_last_30_to_60_seconds() -> None:
    clock = Clock()
    window = SampledStats(clock)
    window.record(10)
    clock.now += 29
    window.record(20)
    assert (window.average(), window.maximum()) == (15, 20)
    clock.now += 1
    window.record(3)
    assert (window.average(), window.maximum()) == (11, 20)
    clock.now += 30
    assert (window.average(), window.maximum()) == (3, 3)
    clock.now += 30
    assert (window.average(), window.maximum(), window.rate()) == (None, None, 0)


def test_a_window_forgets_at_once_what_is_a_minute_old() -> None:
    clock = Clock()
    window = SampledStats(clock)
    window.record(10)
    clock.now += 60
    assert window.average() is None
    window.record(1)
    assert (window.average(), window.maximum()) == (1, 1)


def test_a_rate_is_per_second_and_a_young_window_counts_as_30_seconds() -> None:
    clock = Clock()
    window = SampledStats(clock)
    window.record(300)
    assert window.rate() == 10
    clock.now += 45
    window.record(150)
    assert window.rate() == 10
    clock.now += 120
    window.record(60)
    assert window.rate() == 2, "what lies in between is forgotten, too"


def test_a_histogram_counts_by_inclusive_upper_bound() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 9.0):
        histogram.observe(value)
    assert histogram.buckets() == [("1.0", 2), ("2.0", 4), ("+Inf", 5)]
    assert (histogram.sum, histogram.count) == (14.0, 5)


# -- counters


def test_labels_that_peers_could_make_up_are_bounded() -> None:
    metrics = Metrics()
    for n in range(LABELS_MAX * 3):
        metrics.count_ignored(f"reason {n}")
    assert len(metrics.ignored) <= LABELS_MAX + 1
    assert sum(metrics.ignored.values()) == LABELS_MAX * 3
    assert metrics.ignored["other"] == LABELS_MAX * 2


def test_the_idle_ratio_is_the_share_of_time_off_the_processor() -> None:
    busy, clock = Clock(), Clock()
    ratio = IdleRatio(busy, clock)
    assert ratio.read() == 1
    clock.now, busy.now = clock.now + 10, busy.now + 2.5
    assert ratio.read() == 0.75
    clock.now, busy.now = clock.now + 1, busy.now + 2
    assert ratio.read() == 0


# -- exposition


def test_the_state_is_told_under_the_names_of_the_kips() -> None:
    found = scrape(Metrics(), FixedView())
    expected = {
        "current_leader": 2,
        "current_epoch": 7,
        "current_vote": 2,
        "log_end_offset": 120,
        "log_end_epoch": 7,
        "high_watermark": 110,
        "number_unknown_voter_connections": 0,
        "number_of_voters": 3,
        "number_of_possible_voters": 0,
        "pending_add_voter": 0,
        "pending_remove_voter": 0,
        "append_records_rate": 0,
        "fetch_records_rate": 0,
    }
    assert {name: found[f"raft_manager_{name}", ()] for name in expected} == expected
    states = {
        labels[0][1]: value
        for (name, labels), value in found.items()
        if name == "raft_manager_current_state"
    }
    assert states.pop("leader") == 1
    assert set(states) >= {"follower", "candidate", "observer", "unattached", "resigned"}
    assert set(states.values()) == {0}
    assert 0 <= found["raft_manager_poll_idle_ratio_avg", ()] <= 1
    assert found["quorumd_build_info", (("version", "0.1"),)] == 1


def test_what_is_unknown_is_minus_one() -> None:
    view = FixedView(leader_id=None, voted_id=None, high_watermark=-1, role="unattached")
    found = scrape(Metrics(), view)
    for name in ("current_leader", "current_vote", "high_watermark"):
        assert found[f"raft_manager_{name}", ()] == -1


def test_an_average_without_samples_is_left_out_and_nothing_is_ever_nan() -> None:
    found = scrape(Metrics(), FixedView())
    assert not any("latency" in name for name, _ in found)
    assert not any(math.isnan(value) for value in found.values())


def test_latencies_are_milliseconds_in_the_windows_and_seconds_in_the_histograms() -> None:
    metrics = Metrics()
    metrics.observe_commit(0.0025, 2)
    metrics.observe_commit(0.004)
    metrics.observe_election(0.25)
    metrics.observe_fsync(0.5)
    metrics.observe_batches([100, 60])
    found = scrape(metrics, FixedView())
    assert found["raft_manager_commit_latency_avg", ()] == pytest.approx(3)
    assert found["raft_manager_commit_latency_max", ()] == 4
    assert found["raft_manager_election_latency_max", ()] == 250
    assert found["quorumd_commit_seconds_sum", ()] == pytest.approx(0.009)
    assert found["quorumd_commit_seconds_bucket", (("le", "0.0025"),)] == 2
    assert found["quorumd_fsync_seconds_bucket", (("le", "0.5"),)] == 1
    assert found["quorumd_fsync_seconds_count", ()] == 1
    assert found["quorumd_batch_bytes_bucket", (("le", "256.0"),)] == 2


def test_a_write_that_is_under_way_is_told_by_its_age() -> None:
    assert scrape(Metrics(), FixedView())["quorumd_write_age_seconds", ()] == 0
    assert scrape(Metrics(), FixedView(age_s=7.5))["quorumd_write_age_seconds", ()] == 7.5


def test_requests_of_every_api_are_told_from_the_start() -> None:
    """Prometheus sees no increase in a counter that begins with its first event."""
    found = scrape(Metrics(), FixedView())
    assert {
        labels: value for (name, labels), value in found.items() if name == "quorumd_requests_total"
    } == {(("api", spec.name),): 0 for spec in APIS.values()}


def test_counters_are_told_by_api_reason_and_error() -> None:
    metrics = Metrics()
    metrics.requests[0] += 2
    metrics.requests[52] += 1
    metrics.count_refused("CORRUPT_MESSAGE")
    metrics.count_closed("malformed")
    metrics.count_election("won")
    metrics.count_appended(128, 9_000)
    metrics.count_fetched(3, 300)
    metrics.connections_at["SECURE", "SSL"] = 4
    metrics.tls_handshakes["SECURE", "expired"] = 3
    found = scrape(metrics, FixedView())
    assert found["quorumd_requests_total", (("api", "Produce"),)] == 2
    assert found["quorumd_requests_total", (("api", "Vote"),)] == 1
    assert found["quorumd_refused_batches_total", (("error", "CORRUPT_MESSAGE"),)] == 1
    assert found["quorumd_connections_closed_total", (("reason", "malformed"),)] == 1
    at = ("listener", "SECURE")
    assert found["quorumd_connections", (at, ("protocol", "SSL"))] == 4
    assert found["quorumd_tls_handshakes_total", (at, ("outcome", "expired"))] == 3
    assert found["quorumd_elections_total", (("outcome", "won"),)] == 1
    assert found["quorumd_appended_records_total", ()] == 128
    assert found["quorumd_fetched_bytes_total", ()] == 300
    assert found["raft_manager_append_records_rate", ()] == pytest.approx(128 / 30)


def test_the_leader_tells_how_far_each_replica_is_behind() -> None:
    uuid = UUID(int=77)
    view = FixedView(
        voter_rows=(
            ReplicaStatus(ReplicaKey(2, UUID(int=1002)), 120, 1, 1),
            ReplicaStatus(ReplicaKey(3, uuid), 100, 1, 1),
            ReplicaStatus(ReplicaKey(1, UUID(int=1001)), -1),
        ),
        observer_rows=(ReplicaStatus(ReplicaKey(8, uuid), 0, 1), ReplicaStatus(ReplicaKey(9), 0)),
    )
    found = scrape(Metrics(), view)
    lags = {
        (dict(labels)["replica_id"], dict(labels)["kind"], dict(labels)["replica_uuid"]): value
        for (name, labels), value in found.items()
        if name == "quorumd_replica_lag_records"
    }
    assert lags == {
        ("2", "voter", uuid_to_text(UUID(int=1002))): 0,
        ("3", "voter", uuid_to_text(uuid)): 20,
        ("8", "observer", uuid_to_text(uuid)): 120,
        ("9", "observer", ""): 120,
    }
    assert found["raft_manager_number_of_possible_voters", ()] == 1


def test_how_long_a_replica_is_behind_is_told_by_the_clock_of_its_times() -> None:
    rows = (
        ReplicaStatus(ReplicaKey(2), 120, 5_000, 5_000),
        ReplicaStatus(ReplicaKey(3), 9, 10, 10),
    )
    found = scrape(Metrics(), FixedView(voter_rows=rows, now_ms=5_000))
    behind = {
        dict(labels)["replica_id"]: value
        for (name, labels), value in found.items()
        if name == "quorumd_replica_behind_seconds"
    }
    assert behind == {"2": 0, "3": 4.99}


def test_only_the_leader_tells_how_many_voters_fetch() -> None:
    found = scrape(Metrics(), FixedView(in_sync=(2, 3)))
    assert found["quorumd_fetching_voters", ()] == 2
    follower = FixedView(role="follower", is_leader=False)
    assert ("quorumd_fetching_voters", ()) not in scrape(Metrics(), follower)


@pytest.mark.parametrize("is_ready", [True, False])
def test_readiness_is_told_as_on_its_page(is_ready: bool) -> None:
    assert scrape(Metrics(), FixedView(), is_ready=is_ready)["quorumd_ready", ()] == is_ready


def test_a_disk_is_told_if_it_says_how_much_room_it_has() -> None:
    found = scrape(Metrics(), FixedView(), disk_bytes=(30, 100))
    assert found["quorumd_disk_free_bytes", ()] == 30
    assert found["quorumd_disk_size_bytes", ()] == 100
    assert not any("disk" in name for name, _ in scrape(Metrics(), FixedView(), disk_bytes=None))


def test_process_figures_are_among_them() -> None:
    found = scrape(Metrics(), FixedView())
    assert found["process_resident_memory_bytes", ()] > 0
    assert any(name == "python_info" for name, _ in found)


def test_open_metrics_is_given_to_those_who_ask() -> None:
    text = MetricsText(Metrics(), FixedView(), "0.1", lambda: True)
    body, content_type = text.render("application/openmetrics-text; version=1.0.0", None)
    assert content_type.startswith("application/openmetrics-text")
    assert list(open_metrics_families(body.decode()))
    _, content_type = text.render("*/*", None)
    assert content_type.startswith("text/plain")


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ('text/plain;version="0.0.4"', "text/plain; version=0.0.4"),
        (
            'application/openmetrics-text;version="1.0.0"',
            "application/openmetrics-text; version=1.0.0",
        ),
        ("application/openmetrics-text;version=abc", "text/plain; version=0.0.4"),
        ("text/plain;version=1.b;q=0.5", "text/plain; version=0.0.4"),
        ('text/plain;version="', "text/plain; version=0.0.4"),
    ],
)
def test_a_version_may_be_quoted_and_an_unknown_one_gets_plain_text(
    accept: str, expected: str
) -> None:
    text = MetricsText(Metrics(), FixedView(), "0.1", lambda: True)
    body, content_type = text.render(accept, None)
    assert content_type.startswith(expected)
    assert b"raft_manager_current_epoch 7.0" in body


def test_the_page_renders_the_same_figures(tmp_path: Path) -> None:
    async def work() -> None:
        page = MetricsPage(Metrics(), FixedView(), "0.1", tmp_path, lambda: True)
        for _ in range(2):
            body, content_type = await page.render("")
            assert b"raft_manager_current_epoch 7.0" in body
            assert b"quorumd_disk_free_bytes" in body
            assert content_type.startswith("text/plain")

    run(work())


def test_the_page_tells_how_much_room_the_disk_has_if_it_says_so(tmp_path: Path) -> None:
    async def figures(directory: Path) -> dict[str, float]:
        page = MetricsPage(Metrics(), FixedView(), "0.1", directory, lambda: True)
        return await figures_of(page)

    async def figures_of(page: MetricsPage) -> dict[str, float]:
        body, _ = await page.render("")
        lines = (line for line in body.decode().splitlines() if line.startswith("quorumd_disk"))
        return {name: float(value) for name, value in map(str.split, lines)}

    async def work() -> None:
        total, _, free = shutil.disk_usage(tmp_path)
        found = await figures(tmp_path)
        assert found["quorumd_disk_size_bytes"] == total
        assert found["quorumd_disk_free_bytes"] == pytest.approx(free, rel=0.05)
        later = tmp_path / "later"
        page = MetricsPage(Metrics(), FixedView(), "0.1", later, lambda: True)
        assert await figures_of(page) == {}
        await asyncio.to_thread(later.mkdir)
        assert await figures_of(page), "it is asked each time"

    run(work())


def test_a_disk_that_hangs_does_not_hold_the_page_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    responds = Event()
    looks: list[Path] = []

    def disk_usage(directory: Path) -> Usage:
        looks.append(directory)
        assert responds.wait(5)
        return Usage(100, 60, 40)

    async def work() -> None:
        page = MetricsPage(Metrics(), FixedView(age_s=9), "0.1", tmp_path, lambda: True)
        for _ in range(2):
            body, _ = await page.render("")
            assert b"quorumd_write_age_seconds 9.0" in body
            assert b"quorumd_disk_free_bytes" not in body
        assert looks == [tmp_path], "no second thread waits for it"
        responds.set()
        monkeypatch.setattr(http_server, "DISK_SECONDS_MAX", 5)
        body, _ = await page.render("")
        assert b"quorumd_disk_free_bytes 40.0" in body

    monkeypatch.setattr(http_server, "DISK_SECONDS_MAX", 0.01)
    monkeypatch.setattr("quorumd.server.http.http_server.shutil.disk_usage", disk_usage)
    run(work())


@pytest.mark.live
def test_counting_needs_no_library() -> None:
    """Its import takes 60 ms and 14 MB, which a node pays for with the first scrape only."""
    import subprocess

    code = (
        "import sys, quorumd.server.model.metrics\n"
        "import quorumd.server.http.http_server, quorumd.server.net.listeners\n"
        "print([name for name in sys.modules if name.startswith('prometheus_client')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout.strip() == "[]"
