"""A real Prometheus with the project's rules scrapes a real quorum: queries find data, alerts fire."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from quorumd.wire.records import Record, build_batch
from tests.deploy.files import (
    Query,
    panel_queries,
    panels,
    rule_queries,
    selectors,
)
from tests.deploy.prometheus import Programs, Server
from tests.deploy.watching import watched
from tests.support.live_cluster import Cluster, running_cluster
from tests.support.live_snapshots import ask_for_snapshot, put
from tests.support.load import Load, produce, produce_of
from tests.support.raw_client import RawClient

QUICK = {"quorum.fetch.timeout.ms": 600, "quorum.election.timeout.ms": 300}
LOOK_BACK_S = 300
OF_PROMETHEUS = {"up", "ALERTS"}
OF_TLS = {
    "quorumd_certificate_expiry_timestamp_seconds",
    "quorumd_certificate_start_timestamp_seconds",
    'quorumd_certificate_expiry_timestamp_seconds{role="own", listener!="http"}',
    "quorumd_certificate_reload_failures_total",
}
"""tests/deploy/test_https.py"""
OF_KAFKA_LOGS = {'quorumd_unknown_total{what!~"request: .*"}'}
"""tests/kafka/test_drift.py: records that this version does not know"""
DEPENDS_ON_THE_MACHINE = ("QuorumdDisk", "QuorumdSlowFsync")


class Watched(NamedTuple):
    cluster: Cluster
    server: Server


@pytest.fixture(scope="module")
def quorum(tmp_path_factory: pytest.TempPathFactory, prometheus: Programs) -> Iterator[Watched]:
    """Three voters and an observer that have seen everything that a quorum counts."""
    folder = tmp_path_factory.mktemp("quorum")
    with (
        running_cluster(folder, observers=1, settings=QUICK) as cluster,
        watched(folder, cluster) as server,
    ):
        server.wait_for(lambda: len(server.query("up == 1")) == 4, "four nodes to be scraped")
        with Load(cluster) as load:
            load.wait_progress()
            have_batches_refused(cluster)
            for error in ("CORRUPT_MESSAGE", "INVALID_TIMESTAMP"):
                refused = f'quorumd_refused_batches_total{{error="{error}"}}'
                server.wait_for(lambda refused=refused: server.query(refused), refused)
            old = cluster.wait_leader()
            cluster.kill(old)
            cluster.wait_leader(other_than=old)
            cluster.start(old)
            cluster.wait_ready()
            load.wait_progress(200)
            server.wait_for(
                lambda: server.query("rate(quorumd_appended_records_total[10s]) > 0"), "rates"
            )
        put(cluster, 200)
        for node in cluster.voters:
            ask_for_snapshot(cluster, node)
        server.wait_for(
            lambda: len(server.query("quorumd_snapshot_end_offset > 0")) >= 3, "snapshots"
        )
        yield Watched(cluster, server)


def have_batches_refused(cluster: Cluster) -> None:
    """Bytes that are none, and one whose records are two hours ahead of the leader's clock."""
    ahead_ms = int((time.time() + 7200) * 1000)
    ahead = build_batch([Record(value=b"ahead", timestamp=ahead_ms)])
    with RawClient(cluster.port(cluster.wait_leader())) as client:
        for batch in (b"this is no batch of records" * 4, ahead):
            assert produce(client, produce_of(batch)).error_code


def test_the_three_voters_are_scraped_and_say_the_same(quorum: Watched) -> None:
    cluster, server = quorum
    leader = cluster.wait_leader()
    server.wait_for(
        lambda: {row.value for row in server.query("raft_manager_current_leader")} == {leader},
        "the same leader everywhere",
    )
    rows = server.query('raft_manager_current_state{job="quorumd"} == 1')
    assert sorted(row.labels["state"] for row in rows) == [
        "follower",
        "follower",
        "leader",
        "observer",
    ]
    (fetching,) = server.query("quorumd_fetching_voters")
    assert fetching.value == 3
    assert server.query("sum(quorumd_ready)")[0].value == 4
    appended = server.query("sum(quorumd_appended_records_total)")[0].value
    assert appended > 200


def test_every_series_that_a_rule_or_a_panel_names_is_exported(quorum: Watched) -> None:
    named = {
        selector
        for query in rule_queries() + panel_queries()
        for selector in selectors(query.expression)
        if selector.partition("{")[0] not in OF_PROMETHEUS
    } - (OF_TLS | OF_KAFKA_LOGS)
    assert len(named) > 30
    missing = [
        selector
        for selector in sorted(named)
        if not quorum.server.query(f"last_over_time({selector}[5m])")
    ]
    assert missing == []


def test_a_series_that_nobody_exports_is_noticed(quorum: Watched) -> None:
    expression = 'sum by (le) (rate(quorumd_fsyncs_bucket{job="a", x=~".*"}[5m])) > 1.5 or on () up'
    assert selectors(expression) == {'quorumd_fsyncs_bucket{job="a", x=~".*"}', "up"}
    assert not quorum.server.query("last_over_time(quorumd_fsyncs_bucket[5m])")


def test_every_panel_shows_data_of_a_live_quorum(quorum: Watched) -> None:
    empty = [query for query in panel_queries() if not has_data(quorum.server, query)]
    assert empty == []


def has_data(server: Server, query: Query) -> bool:
    rows = server.query_range(query.expression, LOOK_BACK_S)
    return any(math.isfinite(float(value)) for row in rows for _, value in row["values"])


def test_the_first_campaign_that_a_node_wins_is_counted(quorum: Watched) -> None:
    """A counter that begins with its first event shows no increase."""
    expression = 'sum(increase(quorumd_elections_total{outcome="won"}[5m])) > 0'
    quorum.server.wait_for(lambda: quorum.server.query(expression), "a campaign that was won")


def test_legends_name_labels_that_the_series_have(quorum: Watched) -> None:
    legends = [target["legendFormat"] for panel in panels() for target in panel["targets"]]
    for legend, query in zip(legends, panel_queries(), strict=True):
        wanted = set(re.findall(r"\{\{(\w+)}}", legend))
        for row in quorum.server.query_range(query.expression, LOOK_BACK_S):
            assert wanted <= set(row["metric"]), (query.where, row["metric"])


def test_no_alert_fires_for_a_quorum_that_is_well(quorum: Watched) -> None:
    server = quorum.server
    for query in rule_queries():
        if not query.where.startswith(DEPENDS_ON_THE_MACHINE):
            server.wait_for(partial(is_silent, server, query), f"{query.where} to be silent")


def is_silent(server: Server, query: Query) -> bool:
    return not server.query(query.expression)


@pytest.mark.live
def test_alerts_go_with_a_quorum_that_loses_its_nodes_and_gets_them_back(
    tmp_path: Path, prometheus: Programs
) -> None:
    with (
        running_cluster(tmp_path, settings=QUICK) as cluster,
        watched(tmp_path, cluster) as server,
    ):
        server.wait_for(lambda: server.query("quorumd_fetching_voters == 3"), "a quorum of three")
        server.wait_for(partial(is_quiet, server), "no alert")

        leader = cluster.wait_leader()
        first, second = (node for node in cluster.ids if node != leader)
        cluster.kill(first)
        for name in ("QuorumdNodeDown", "QuorumdQuorumAtRisk"):
            server.wait_firing(name)
            pending = f'ALERTS{{alertname="{name}", alertstate="pending"}}'
            assert server.query(f"last_over_time({pending}[1m])"), "it did not wait"
        (down,) = (
            alert
            for alert in server.get("alerts")["alerts"]
            if alert["labels"]["alertname"] == "QuorumdNodeDown"
        )
        address = cluster.http_url(first, "").removeprefix("http://")
        assert down["labels"]["instance"] == address
        assert down["annotations"]["summary"] == f"Node {address} does not respond"
        assert "QuorumdNoLeader" not in server.alerts()

        cluster.kill(second)
        server.wait_firing("QuorumdNoLeader")
        server.wait_firing("QuorumdNodeNotReady")
        assert "QuorumdQuorumAtRisk" not in server.alerts(), "nobody leads who could see that"

        cluster.kill(leader)
        server.wait_for(lambda: not server.query("up == 1"), "all to be down")
        server.wait_firing("QuorumdNoLeader")

        cluster.start()
        cluster.wait_ready()
        server.wait_for(partial(is_quiet, server), "every alert to end")


def is_quiet(server: Server) -> bool:
    """No alert, save for those that this machine itself may cause."""
    return not [name for name in server.alerts() if not name.startswith(DEPENDS_ON_THE_MACHINE)]
