"""The processes of the nodes: one for each, whatever starts it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from chaos.hosts import Hosts
from chaos.nodes import Nodes


class OneHost:
    """A host whose node's process does nothing but live."""

    ids = range(1, 2)

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def prefix(self, node: int) -> list[str]:
        return ["sh", "-c", f"echo $$ >> {self.folder}/pids; exec sleep 60"]

    def environ(self, node: int) -> None:
        """That of this process."""


def wait_for(look: Callable[[], bool]) -> None:
    for _ in range(500):
        if look():
            return
        time.sleep(0.02)
    raise AssertionError("waited 10 s")


@pytest.mark.live
def test_a_node_that_two_faults_start_again_runs_once(tmp_path: Path) -> None:
    nodes = Nodes(cast(Hosts, OneHost(tmp_path)))
    pids = tmp_path / "pids"
    for end in (nodes.kill, nodes.stop):
        pids.unlink(missing_ok=True)
        nodes.start(1)
        nodes.start(1)
        wait_for(lambda: pids.exists() and bool(pids.read_text()))
        end(1)
        assert len(pids.read_text().split()) == 1
