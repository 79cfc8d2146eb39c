"""The alert rules: sound, tested one by one with promtool, and explained to operators."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.deploy.files import CONFIG, HOSTS, ROOT, RULE_TESTS, RULES, alert_rules, load_yaml
from tests.deploy.prometheus import run_promtool

NAMES = [rule["alert"] for rule in alert_rules()]
SECTION = (
    (ROOT / "docs/operations.md")
    .read_text()
    .partition("## What each alert means and what to do\n")[2]
    .partition("\n## ")[0]
)


def cases_of(name: str) -> list[dict[str, Any]]:
    return [case for case in load_yaml(RULE_TESTS)["tests"] if case["name"].split()[0] == name]


@pytest.mark.live
@pytest.mark.usefixtures("prometheus")
def test_promtool_finds_no_fault_in_the_rules_and_the_configuration() -> None:
    for arguments in (("rules", "--lint-fatal", RULES), ("config", "--lint-fatal", CONFIG)):
        done = run_promtool("check", *arguments)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.live
@pytest.mark.usefixtures("prometheus")
def test_every_alert_fires_when_it_should_and_only_then() -> None:
    done = run_promtool("test", "rules", RULE_TESTS)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_an_alert_has_a_case_in_which_it_fires_and_one_in_which_it_is_silent(name: str) -> None:
    verdicts = set()
    for case in cases_of(name):
        checks = case["alert_rule_test"]
        assert {check["alertname"] for check in checks} == {name}
        fires = any(check["exp_alerts"] for check in checks)
        assert case["name"].removeprefix(f"{name} ").startswith("fires" if fires else "is silent")
        verdicts.add(fires)
    assert verdicts == {True, False}


@pytest.mark.parametrize("rule", alert_rules(), ids=NAMES)
def test_an_alert_says_how_bad_it_is_and_what_to_do_next(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning")
    annotations = rule["annotations"]
    assert set(annotations) == {"summary", "description", "runbook"}
    document, _, anchor = annotations["runbook"].partition("#")
    assert document == "docs/operations.md"
    assert anchor == rule["alert"].lower()
    assert f"### {rule['alert']}\n" in SECTION


def test_the_document_explains_no_alert_that_is_gone() -> None:
    assert re.findall(r"^### (\w+)$", SECTION, re.MULTILINE) == NAMES


def test_links_of_the_section_lead_to_headings() -> None:
    titles = re.findall(r"^#+ (.+)$", (ROOT / "docs/operations.md").read_text(), re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}
    links = set(re.findall(r"\]\(#([^)]+)\)", SECTION))
    assert links
    assert links - anchors == set()


def test_the_hosts_that_are_scraped_are_the_hosts_of_the_samples() -> None:
    (job,) = load_yaml(CONFIG)["scrape_configs"]
    assert job["job_name"] == "quorumd"
    (group,) = job["static_configs"]
    ports = {load_yaml(path)["http.listen"].rpartition(":")[2] for path in HOSTS}
    hosts = [
        load_yaml(path)["advertised.listeners"].partition("://")[2].rpartition(":")[0]
        for path in HOSTS
    ]
    assert len(ports) == 1
    assert group["targets"] == [f"{host}:{port}" for host in hosts for port in ports]
