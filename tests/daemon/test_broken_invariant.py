"""A node in whose callbacks something goes wrong that nothing expects."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.live_cluster import Cluster

FAULTY_NODE = """
import sys
from pathlib import Path
from quorumd.config.load import load
from quorumd.server.net.listeners import Listeners
from quorumd.server.run import run_node

def fails(listeners, loop):
    raise KeyError("an invariant is broken")

Listeners._sweep = fails
raise SystemExit(run_node(load(Path(sys.argv[1]), {})))
"""


def test_an_error_in_a_callback_ends_the_node_with_a_report(folder: Path) -> None:
    cluster = Cluster(folder, size=1, settings={"connections.max.idle.ms": 1000})
    cluster.format()
    node = [sys.executable, "-c", FAULTY_NODE, str(cluster.config_path(1))]
    ended = subprocess.run(node, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 1, ended.stderr
    report = ended.stderr.partition(" FATAL node ")[2]
    assert "it is a bug, please report it" in report
    assert "Traceback" in report
    assert "KeyError: 'an invariant is broken'" in report
