"""The set-up of docs/security.md, followed as it is written: its three hosts are addresses of this one."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docs.shell import BIN, environment, replaced, run_shell
from tests.docs.test_commands import blocks_of
from tests.support import canary
from tests.support.ports import free_ports

pytestmark = pytest.mark.live

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs/security.md"
ADMIN, *NODES = range(4)
WAIT_S = 60.0


class Hosts:
    """Folders that stand for three hosts, and one for the machine with the CA's key."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for node in (ADMIN, *NODES):
            self.host(node).mkdir()
        self._port, self._http_port = free_ports(2)
        self._nodes: list[subprocess.Popen[bytes]] = []
        self._environ = environment()

    def host(self, node: int) -> Path:
        return self._folder / f"host{node}"

    def address(self, node: int) -> str:
        return f"127.0.10.{node}"

    def here(self, text: str, node: int) -> str:
        """What the document says of a host, as it is on this one."""
        return replaced(
            text,
            (
                (r"0\.0\.0\.0:", f"{self.address(node)}:"),
                (r"db(\d)\.example\.com", r"127.0.10.\1"),
                (r":9093", f":{self._port}"),
                (r":8080", f":{self._http_port}"),
                (r"/etc/quorumd", f"{self.host(node)}/etc"),
                (r"/var/lib/quorumd", f"{self.host(node)}/data"),
                (r"quorumd-1\.pem", f"quorumd-{node}.pem"),
                (r"-o quorumd ", ""),
            ),
        )

    def run(self, lines: list[str], node: int = ADMIN) -> str:
        """Commands of the document, on a host, or where the CA's key is."""
        script = self.here("\n".join(lines), node)
        done = run_shell(
            script, "-e", folder=self.host(node), environ=self._environ, timeout_s=WAIT_S
        )
        assert done.returncode == 0, f"{lines}\n{done.stdout}"
        canary.remember_keys_below(self._folder)
        canary.check(done.stdout, f"what {lines} print")
        return done.stdout

    def start(self, node: int) -> None:
        command = [BIN / "quorumd", "start", "--config", self.host(node) / "etc/controller.yaml"]
        with (self.host(node) / "log").open("wb") as log:
            self._nodes.append(subprocess.Popen(command, stdout=log, stderr=log))

    def stop(self) -> None:
        for process in self._nodes:
            process.kill()
            process.wait()
        for path in self._folder.glob("*/log"):
            canary.check(path.read_text(), f"the log {path}")

    def status(self, node: int) -> dict[str, Any]:
        url = f"http://{self.address(node)}:{self._http_port}/status"
        with urllib.request.urlopen(url, timeout=5) as response:
            found: dict[str, Any] = json.load(response)
        return found

    def wait_ready(self, node: int) -> None:
        deadline = time.monotonic() + WAIT_S
        while not self._is_ready(node):
            assert time.monotonic() < deadline, (self.host(node) / "log").read_text()
            time.sleep(0.1)

    def _is_ready(self, node: int) -> bool:
        try:
            return bool(self.status(node)["ready"])
        except OSError:
            return False


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    made = Hosts(tmp_path)
    try:
        yield made
    finally:
        made.stop()


def set_up_blocks(folder: Path) -> Callable[[str], list[str]]:
    """Finds a block of the set-up by how its first line begins."""
    section = DOCUMENT.read_text().partition("\n## Three hosts")[2].partition("\n## ")[0]
    (folder / "section.md").write_text(f"\n## Three hosts{section}")
    blocks = list(blocks_of(folder / "section.md"))

    def block(start: str) -> list[str]:
        (found,) = (each for each in blocks if each[0].startswith(start))
        blocks.remove(found)
        return found

    return block


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
        for name in ("ca.pem", f"quorumd-{node}.pem"):
            shutil.copy(hosts.host(ADMIN) / "certs" / name, hosts.host(node))
        hosts.run(install, node)
        sample = (ROOT / f"deploy/hosts/{node}/controller.yaml").read_text()
        config = "\n".join([sample, *keys, ""])
        (hosts.host(node) / "etc/controller.yaml").write_text(hosts.here(config, node))
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
