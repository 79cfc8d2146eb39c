"""HTTP over TLS as operators use it: Prometheus with a certificate, curl, and probes without one."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.files import RULES, load_yaml
from tests.deploy.prometheus import Programs
from tests.deploy.watching import watched
from tests.support.https_cluster import HttpsCluster
from tests.support.live_cluster import running

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpsCluster]:
    with running(HttpsCluster(tmp_path_factory.mktemp("https"))) as cluster:
        yield cluster


def test_prometheus_scrapes_with_the_certificate_that_the_sample_names(
    cluster: HttpsCluster, prometheus: Programs
) -> None:
    with watched(cluster.folder, cluster, with_tls=True) as server:
        server.wait_for(lambda: server.query("up == 1"), "the node to be scraped")
        roles = {
            (row.labels["listener"], row.labels["role"], row.labels["subject"])
            for row in server.query("quorumd_certificate_expiry_timestamp_seconds > time()")
        }
        assert roles == {
            (listener, role, subject)
            for listener in ("CONTROLLER", "http")
            for role, subject in (("own", "CN=quorumd-1"), ("ca", "CN=site CA"))
        }
        (failures,) = server.query("quorumd_certificate_reload_failures_total")
        assert failures.value == 0
        (loaded,) = server.query("time() - quorumd_certificates_loaded_timestamp_seconds")
        assert 0 <= loaded.value < 600
        own = 'quorumd_certificate_expiry_timestamp_seconds{role="own", listener!="http"}'
        assert len(server.query(own)) == 1
        names = [rule["alert"] for group in load_yaml(RULES)["groups"] for rule in group["rules"]]
        assert "QuorumdCertificateEnds" in names
        assert not {name for name in server.alerts() if "Certificate" in name or "Plain" in name}


def test_status_says_what_is_tls_and_that_nothing_is_plaintext(cluster: HttpsCluster) -> None:
    status = cluster.status(1)
    (listener,) = status["listeners"]
    assert (listener["name"], listener["protocol"], listener["client_auth"]) == (
        "CONTROLLER",
        "SSL",
        "required",
    )
    assert [each["subject"] for each in listener["certificates"]] == ["CN=quorumd-1", "CN=site CA"]
    assert (status["http"]["protocol"], status["http"]["client_auth"]) == ("SSL", "required")
    assert (status["links"], status["plaintext_connections"]) == ("SSL", 0)
    assert status["warnings"] == []


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl_is_shown_the_pages_with_a_certificate_and_the_verdict_without(
    cluster: HttpsCluster,
) -> None:
    def curl(page: str, *options: str | Path) -> tuple[int, str]:
        command = ["curl", "-sS", "--cacert", cluster.trust]
        done = subprocess.run(
            [*command, *options, "-w", "\n%{http_code}", cluster.http_url(1, page)],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        body, _, status = done.stdout.rpartition("\n")
        return int(status), body

    status, body = curl("/status", "--cert", cluster.folder / "client.pem")
    assert (status, json.loads(body)["node_id"]) == (200, 1)
    assert curl("/livez") == (200, "ok\n")
    assert curl("/readyz") == (200, "ready\n")
    for page in ("/status", "/metrics", "/", "/page.json"):
        status, body = curl(page)
        assert status == 403
        assert "http.ssl.client.auth" in body
