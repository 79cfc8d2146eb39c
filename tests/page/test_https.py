"""The page over TLS in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.browser import Tab, missing_chromium
from tests.support.https_cluster import HttpsCluster

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(bool(missing_chromium()), reason=missing_chromium()),
]


def test_the_page_works_over_tls_and_shows_certificates(tmp_path: Path, tab: Tab) -> None:
    cluster = HttpsCluster(tmp_path, {"http.ssl.client.auth": "none"})
    cluster.format()
    cluster.start()
    try:
        cluster.wait_for(lambda: "Node 1 leads" if cluster.status(1)["ready"] else None, "a leader")
        tab.trust_everybody()
        tab.go(cluster.http_url(1, "/"))
        tab.wait_text("Node 1 leads", "h1")
        tab.wait_text("clients show no certificate; CN=quorumd-1 ends in 29 d", "#access")
        shown = tab.text("#access")
        assert "clients show a certificate; CN=quorumd-1 ends in 29 d" in shown
        assert "CA CN=site CA ends in 299 d" in shown
        assert "no connections" in shown
        assert tab.complaints() == []
    finally:
        cluster.kill_all()
