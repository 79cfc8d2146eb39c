"""The page over TLS in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.browser import PROFILE, Tab, missing_chromium, running_browser
from tests.support.browser_certificate import give_certificate
from tests.support.https_cluster import HttpsCluster
from tests.support.live_cluster import running

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


def test_where_certificates_are_required_the_page_is_for_those_who_show_one(
    tmp_path: Path, tab: Tab
) -> None:
    with running(HttpsCluster(tmp_path / "node")) as cluster:
        tab.trust_everybody()
        tab.go(cluster.http_url(1, "/"))
        tab.wait_text("a certificate that it trusts (http.ssl.client.auth)")
        assert "leads" not in tab.text()
        for page, verdict in (("/livez", "ok"), ("/readyz", "ready")):
            tab.go(cluster.http_url(1, page))
            tab.wait_text(verdict)

        folder = tmp_path / "browser"
        issued = cluster.authority.issue("operator", ())
        give_certificate(folder, folder / PROFILE, issued, cluster.http_url(1, ""))
        with running_browser(folder, home=folder) as browser:
            known = browser.open()
            known.show(width=1180)
            known.trust_everybody()
            known.go(cluster.http_url(1, "/"))
            known.wait_text("Node 1 leads", "h1")
            known.wait_text("clients show a certificate; CN=quorumd-1 ends in 29 d", "#access")
            assert known.complaints() == []
