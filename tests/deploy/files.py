"""What is under deploy/, read for tests: alert rules, panels, and the queries in them."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import yaml

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
CONFIG = DEPLOY / "prometheus/prometheus.yml"
RULES = DEPLOY / "prometheus/quorumd.rules.yml"
RULE_TESTS = DEPLOY / "prometheus/quorumd.rules.test.yml"
DASHBOARD = DEPLOY / "grafana/dashboards/quorumd.json"
UNIT = DEPLOY / "quorumd.service"
JOINING = DEPLOY / "hosts/joining.yaml"
FIREWALL = DEPLOY / "hosts/firewall.nft"
HOSTS = tuple(sorted((DEPLOY / "hosts").glob("*/controller.yaml")))

_IDENTIFIER = re.compile(r"[a-zA-Z_:][\w:]*")
_WORDS = frozenset({"or", "and", "unless", "bool", "inf", "nan"})


class Query(NamedTuple):
    """An expression in PromQL, and where it stands."""

    where: str
    expression: str


@functools.cache
def load_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


@functools.cache
def alert_rules() -> tuple[dict[str, Any], ...]:
    return tuple(rule for group in load_yaml(RULES)["groups"] for rule in group["rules"])


@functools.cache
def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return found


def panels() -> list[dict[str, Any]]:
    """Every panel that shows something."""
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def rule_queries() -> list[Query]:
    return [Query(rule["alert"], rule["expr"]) for rule in alert_rules()]


def panel_queries() -> list[Query]:
    """With the dashboard's variables filled in."""
    return [
        Query(f"{panel['title']} {target['refId']}", filled_in(target["expr"]))
        for panel in panels()
        for target in panel["targets"]
    ]


def filled_in(expression: str) -> str:
    """With the dashboard's variables: job quorumd, every instance, rates over 10 s."""
    for name, value in (("$__rate_interval", "10s"), ("$job", "quorumd"), ("$instance", ".*")):
        expression = expression.replace(name, value)
    return expression


def selectors(expression: str) -> set[str]:
    """The series that an expression names, with their label matchers."""
    found = set()
    bare = re.sub(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", "", expression)
    bare = re.sub(r"\[[^]]*\]", "", bare)
    at = 0
    while match := re.search(r'[a-zA-Z_:][\w:]*|"[^"]*"|\{[^}]*\}|[\d.]+\w*', bare[at:]):
        name, end = match.group(), at + match.end()
        if _IDENTIFIER.fullmatch(name) and name not in _WORDS:
            rest = bare[end:]
            if not rest.lstrip().startswith("("):
                labels = re.match(r"\{[^}]*\}", rest)
                found.add(name + (labels.group() if labels else ""))
        at = end
    return found
