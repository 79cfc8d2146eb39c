"""What docker-compose.secure.yml has run beside a node whose HTTP is TLS: its healthcheck, and Prometheus."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.deploy.files import DEPLOY, load_yaml
from tests.deploy.prometheus import Programs, running_prometheus
from tests.support.https_cluster import HttpsCluster
from tests.support.live_cluster import running

SECURE = load_yaml(DEPLOY / "docker-compose.secure.yml")
PROMETHEUS = DEPLOY / "containers" / "prometheus.secure.yml"

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpsCluster]:
    with running(HttpsCluster(tmp_path_factory.mktemp("secure"))) as cluster:
        yield cluster


def listen(cluster: HttpsCluster) -> str:
    return cluster.http_url(1, "").removeprefix("https://")


@pytest.mark.parametrize("node", [1, 2, 3])
def test_the_healthcheck_asks_by_tls_whether_the_node_lives(
    cluster: HttpsCluster, node: int
) -> None:
    kind, program, *arguments = SECURE["services"][f"quorumd-{node}"]["healthcheck"]["test"]
    assert (kind, program) == ("CMD", "python3")

    def code(trust: str) -> int:
        told = [each.replace("/run/secrets/ca.pem", trust) for each in arguments]
        environ = {**os.environ, "QUORUMD_HTTP_LISTEN": listen(cluster)}
        return subprocess.run(
            [sys.executable, *told], env=environ, stderr=subprocess.DEVNULL, timeout=20, check=False
        ).returncode

    assert code(str(cluster.trust)) == 0
    assert code(str(cluster.folder / "prometheus.crt")) != 0, "it knows by whom it is answered"


def test_prometheus_scrapes_with_key_and_certificate_in_one_file(
    cluster: HttpsCluster, prometheus: Programs, tmp_path: Path
) -> None:
    config = load_yaml(PROMETHEUS)
    (job,) = config["scrape_configs"]
    mounted = {"ca.pem": cluster.trust, "prometheus.pem": cluster.folder / "client.pem"}
    for key, path in job["tls_config"].items():
        job["tls_config"][key] = str(mounted[Path(path).name])
    job["static_configs"] = [{"targets": [listen(cluster)]}]
    config["rule_files"] = []
    path = tmp_path / "prometheus.yml"
    path.write_text(yaml.safe_dump(config))
    with running_prometheus(tmp_path, path) as server:
        server.wait_for(lambda: server.query("up == 1"), "the node to be scraped")
