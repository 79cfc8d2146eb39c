"""A node whose pages are served over TLS, and those who look at them."""

from __future__ import annotations

import json
import ssl
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from tests.support.live_cluster import PAGE_S, Cluster
from tests.support.odd_certificates import Authority

HOSTS = ("127.0.0.1", "localhost")


class HttpsCluster(Cluster):
    """One node, all of it TLS; its pages are for those alone who have a certificate, but for `settings`."""

    def __init__(self, folder: Path, settings: Mapping[str, object] | None = None) -> None:
        super().__init__(folder, size=1, settings=settings)
        folder.mkdir(parents=True, exist_ok=True)
        self.authority = Authority("site CA")
        self.trust = folder / "ca.pem"
        self.trust.write_bytes(self.authority.pem)
        self.authority.issue("quorumd-1", HOSTS).write(folder / "node.pem")
        client = self.authority.issue("prometheus", ())
        client.write(folder / "client.pem")
        (folder / "prometheus.crt").write_bytes(client.chain_pem)
        (folder / "prometheus.key").write_bytes(client.key_pem)

    def write_config(self, node: int, changes: Mapping[str, object] | None = None) -> None:
        keys = {
            "listener.security.protocol.map": "CONTROLLER:SSL",
            "ssl.keystore.location": self.folder / "node.pem",
            "ssl.truststore.location": self.trust,
            "ssl.client.auth": "required",
            "quorum.node.principals": "User:CN=quorumd-{id}",
            "http.security.protocol": "SSL",
        }
        super().write_config(node, {**keys, **(changes or {})})

    def http_url(self, node: int, page: str) -> str:
        return super().http_url(node, page).replace("http://", "https://")

    def context(self, *, has_certificate: bool) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.trust))
        if has_certificate:
            context.load_cert_chain(self.folder / "client.pem")
        return context

    def is_ready(self, node: int) -> bool:
        """As an orchestrator's probe, which has no certificate."""
        try:
            url, context = self.http_url(node, "/readyz"), self.context(has_certificate=False)
            with urllib.request.urlopen(url, timeout=PAGE_S, context=context) as answer:
                assert answer.read() == b"ready\n"
                return bool(answer.status == 200)
        except HTTPError as error:
            error.close()
            return False
        except OSError:
            return False

    def status(self, node: int) -> dict[str, Any]:
        url, context = self.http_url(node, "/status"), self.context(has_certificate=True)
        with urllib.request.urlopen(url, timeout=PAGE_S, context=context) as answer:
            found: dict[str, Any] = json.load(answer)
        return found
