"""Three hosts of docs/security.md, which are addresses of this one, and what the document has them run."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.docs.shell import BIN, environment, replaced, run_shell
from tests.docs.test_commands import blocks_of
from tests.support import canary
from tests.support.ports import free_ports

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
        self._port, self._secure_port, self._http_port = free_ports(3)
        self._nodes: dict[int, subprocess.Popen[bytes]] = {}
        self._environ = environment()

    def host(self, node: int) -> Path:
        return self._folder / f"host{node}"

    def config(self, node: int) -> Path:
        return self.host(node) / "etc/controller.yaml"

    def set_up(self, node: int, *keys: str) -> None:
        """The sample's file, with these lines of the document behind it."""
        sample = (ROOT / f"deploy/hosts/{node}/controller.yaml").read_text()
        config = "\n".join([sample, *keys, ""])
        self.config(node).write_text(self.here(config, node))

    def install(self, commands: list[str], node: int) -> None:
        """What the admin's machine has made for a node, put where the document's commands put it."""
        for name in ("ca.pem", f"quorumd-{node}.pem"):
            shutil.copy(self.host(ADMIN) / "certs" / name, self.host(node))
        self.run(commands, node)

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
                (r":9095", f":{self._secure_port}"),
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
        command = [BIN / "quorumd", "start", "--config", self.config(node)]
        with (self.host(node) / "log").open("ab") as log:
            self._nodes[node] = subprocess.Popen(command, stdout=log, stderr=log)

    def restart(self, node: int) -> None:
        """In order, as a service manager does it; it is ready when this returns."""
        process = self._nodes.pop(node)
        process.terminate()
        assert process.wait(WAIT_S) == 0
        self.start(node)
        self.wait_ready(node)

    def stop(self) -> None:
        for process in self._nodes.values():
            process.kill()
            process.wait()
        for path in self._folder.glob("*/log"):
            canary.check(path.read_text(), f"the log {path}")

    def status(self, node: int) -> dict[str, Any]:
        url = f"http://{self.address(node)}:{self._http_port}/status"
        with urllib.request.urlopen(url, timeout=5) as response:
            found: dict[str, Any] = json.load(response)
        return found

    def wait_status(self, node: int, field: str, value: object) -> None:
        deadline = time.monotonic() + WAIT_S
        while (found := self.status(node)[field]) != value:
            assert time.monotonic() < deadline, f"node {node}: {field} is {found}"
            time.sleep(0.1)

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


@contextmanager
def three_hosts(folder: Path) -> Iterator[Hosts]:
    """Their nodes are ended with it."""
    made = Hosts(folder)
    try:
        yield made
    finally:
        made.stop()


def section(title: str) -> str:
    """The text of a section whose title begins so."""
    return DOCUMENT.read_text().partition(f"\n## {title}")[2].partition("\n## ")[0]


def set_up_blocks(folder: Path) -> Callable[[str], list[str]]:
    """Finds a block of the set-up by how its first line begins."""
    (folder / "section.md").write_text(f"\n## Three hosts{section('Three hosts')}")
    blocks = list(blocks_of(folder / "section.md"))

    def block(start: str) -> list[str]:
        (found,) = (each for each in blocks if each[0].startswith(start))
        blocks.remove(found)
        return found

    return block
