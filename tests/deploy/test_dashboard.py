"""The dashboard's model: what Grafana needs of it, without Grafana."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.deploy.files import DASHBOARD, DEPLOY, dashboard, load_yaml, panels

COLUMNS = 24
SCHEMA_OF_GRAFANA_10 = 36
PANEL_TYPES = {"bargauge", "stat", "state-timeline", "table", "timeseries"}


def test_the_model_is_one_that_grafana_10_reads() -> None:
    model = dashboard()
    assert model["uid"] == "quorumd"
    assert model["title"]
    assert model["schemaVersion"] >= SCHEMA_OF_GRAFANA_10
    assert "id" not in model, "Grafana gives it"
    ids = Counter(panel["id"] for panel in model["panels"])
    assert max(ids.values()) == 1
    assert {panel["type"] for panel in panels()} <= PANEL_TYPES
    variables = {variable["name"] for variable in model["templating"]["list"]}
    assert variables == {"datasource", "job", "instance"}


def test_panels_lie_in_the_grid_and_not_on_each_other() -> None:
    taken: Counter[tuple[int, int]] = Counter()
    for panel in dashboard()["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= COLUMNS, panel["title"]
        taken.update(
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        )
    assert max(taken.values()) == 1
    lines = max(y for _, y in taken) + 1
    assert len(taken) == COLUMNS * lines, "a hole"


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: panel["title"])
def test_a_panel_says_what_it_shows_and_asks_the_source_that_was_chosen(
    panel: dict[str, Any],
) -> None:
    assert panel["title"]
    assert len(panel["description"]) > 10
    chosen = {"type": "prometheus", "uid": "${datasource}"}
    assert panel["datasource"] == chosen
    assert panel["fieldConfig"]["defaults"]
    references = [target["refId"] for target in panel["targets"]]
    assert references == sorted(set(references))
    for target in panel["targets"]:
        assert target["datasource"] == chosen
        assert target["instant"] != target["range"]
        assert '{job="$job"' in target["expr"] or ', job="$job"' in target["expr"]


def test_provisioning_leads_to_the_dashboard_and_to_prometheus() -> None:
    (source,) = load_yaml(DEPLOY / "grafana/provisioning/datasources/quorumd.yml")["datasources"]
    assert source["type"] == "prometheus"
    scrapes = load_yaml(DEPLOY / "prometheus/prometheus.yml")["global"]["scrape_interval"]
    assert source["jsonData"]["timeInterval"] == scrapes
    provisioning = load_yaml(DEPLOY / "grafana/provisioning/dashboards/quorumd.yml")
    (provider,) = provisioning["providers"]
    assert provider["type"] == "file"
    assert provider["options"]["path"].endswith("/quorumd")
    assert DASHBOARD.parent.name == "dashboards"
