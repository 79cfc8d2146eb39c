"""A Prometheus with the project's own files, but for the nodes of a test, and everything soon."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path

import yaml

from tests.deploy.files import CONFIG, RULES, load_yaml
from tests.deploy.prometheus import Server, running_prometheus
from tests.support.live_cluster import Cluster

SCRAPE_MS = 1000
PENDING_S = 2


def as_with_tls(text: str) -> str:
    """The lines about TLS are comments no more."""
    return re.sub(
        r"^#(?=    scheme:|    tls_config:|      \w+_file:)", "", text, flags=re.MULTILINE
    )


@contextmanager
def watched(folder: Path, cluster: Cluster, *, with_tls: bool = False) -> Iterator[Server]:
    """Prometheus scrapes these nodes, and alerts wait PENDING_S instead of minutes.

    With TLS as the file shows it in comments; the files that it names are in this folder then.
    """
    config = yaml.safe_load(as_with_tls(CONFIG.read_text()) if with_tls else CONFIG.read_text())
    interval = f"{SCRAPE_MS}ms"
    config["global"] = {
        "scrape_interval": interval,
        "scrape_timeout": interval,
        "evaluation_interval": interval,
    }
    (job,) = config["scrape_configs"]
    targets = [cluster.http_url(node, "").partition("://")[2] for node in cluster.ids]
    job["static_configs"] = [{"targets": targets}]
    rules = deepcopy(load_yaml(RULES))
    for group in rules["groups"]:
        for rule in group["rules"]:
            if "for" in rule:
                rule["for"] = f"{PENDING_S}s"
    (folder / RULES.name).write_text(yaml.safe_dump(rules))
    path = folder / CONFIG.name
    path.write_text(yaml.safe_dump(config))
    with running_prometheus(folder, path) as server:
        yield server
