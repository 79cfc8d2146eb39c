"""The set-up of docs/security.md, followed as it is written: its three hosts are addresses of this one."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.three_hosts import DOCUMENT, NODES, Hosts, set_up_blocks, three_hosts

pytestmark = pytest.mark.live


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    with three_hosts(tmp_path) as made:
        yield made


def stranger() -> str:
    """The command of the checklist, whose standard input stays open for longer than the handshake takes."""
    (command,) = re.findall(r"`(openssl s_client [^`]+)`", DOCUMENT.read_text())
    return f"{command} < <(sleep 20 2> /dev/null) || true"


def test_three_hosts_are_secure_when_the_document_was_followed(
    hosts: Hosts, tmp_path: Path
) -> None:
    block = set_up_blocks(tmp_path)
    hosts.run(block("quorumd certs ca "))
    install, keys = block("install -d "), block("listener.security.protocol.map")
    check = block("quorumd certs check ")
    for node in NODES:
        hosts.install(install, node)
        hosts.set_up(node, *keys)
        report = hosts.run(check, node)
        assert "nothing would be refused" in report
        assert "warning" not in report
    for node in NODES:
        hosts.run(["quorumd format --config /etc/quorumd/controller.yaml --bootstrap"], node)
        hosts.start(node)
    for node in NODES:
        hosts.wait_ready(node)
    assert "LeaderId" in hosts.run(block("quorumctl describe "))

    # The checklist.
    for node in NODES:
        status = hosts.status(node)
        seen = status["links"], status["plaintext_connections"], status["warnings"]
        assert seen == ("SSL", 0, []), f"node {node}"
        assert not list(hosts.host(node).rglob("ca.key"))
        assert (hosts.host(node) / "etc/tls/node.pem").stat().st_mode & 0o777 == 0o400
    if shutil.which("openssl"):
        assert "certificate required" in hosts.run([stranger()])
