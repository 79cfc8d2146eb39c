"""A picture of the dashboard, with the data of a real quorum that is mistreated for two minutes.

    python -m tests.deploy.pictures dashboard.png

Needs Prometheus and Chromium.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.deploy.drawing import Series, Span, draw
from tests.deploy.files import dashboard, filled_in
from tests.deploy.prometheus import Server
from tests.deploy.watching import watched
from tests.support.browser import running_browser
from tests.support.live_cluster import Cluster, running_cluster
from tests.support.live_snapshots import ask_for_snapshot
from tests.support.load import Load

CALM_S, DOWN_S = 30.0, 15.0
WIDTH_PX = 1600


def main(path: Path) -> None:
    """Have something to show, draw it, and take its picture."""
    with tempfile.TemporaryDirectory(prefix="quorumd-pictures-") as name:
        folder = Path(name)
        began = time.time()
        with running_cluster(folder, observers=1) as cluster, watched(folder, cluster) as server:
            mistreat(cluster)
            span = Span(began, time.time())
            text = draw([(panel, answers(server, panel, span)) for panel in all_panels()], span)
        (folder / "page.html").write_text(text)
        with running_browser(folder / "browser") as browser:
            tab = browser.open()
            tab.show(width=WIDTH_PX)
            tab.go((folder / "page.html").as_uri())
            tab.wait_text(all_panels()[-1]["title"])
            tab.screenshot(path)


def mistreat(cluster: Cluster) -> None:
    """Load; the leader is killed and comes back; a follower is away; snapshots are taken."""
    with Load(cluster, writers=2, value_bytes=200):
        time.sleep(CALM_S)
        leader = cluster.wait_leader()
        cluster.kill(leader)
        time.sleep(DOWN_S)
        cluster.start(leader)
        time.sleep(CALM_S)
        for node in cluster.voters:
            ask_for_snapshot(cluster, node)
        follower = next(node for node in cluster.voters if node != cluster.wait_leader())
        cluster.stop(follower)
        time.sleep(DOWN_S)
        cluster.start(follower)
        time.sleep(CALM_S)


def all_panels() -> list[dict[str, Any]]:
    """The rows, too."""
    found: list[dict[str, Any]] = dashboard()["panels"]
    return found


def answers(server: Server, panel: dict[str, Any], span: Span) -> list[Series]:
    """What Prometheus has for a panel."""
    found = []
    for target in panel.get("targets", ()):
        rows = server.query_range(filled_in(target["expr"]), span.end - span.start)
        for row in rows:
            labels: dict[str, str] = row["metric"]
            legend = target["legendFormat"]
            for name in re.findall(r"\{\{(\w+)}}", legend):
                legend = legend.replace(f"{{{{{name}}}}}", labels[name])
            found.append(Series(legend, labels, with_gaps(row["values"])))
    return found


def with_gaps(values: list[list[Any]]) -> list[tuple[float, float]]:
    """Prometheus leaves out what it does not have; a curve has to be broken there."""
    points: list[tuple[float, float]] = []
    for at, text in values:
        if points and at - points[-1][0] > 1.5:
            points.append((points[-1][0] + 1, float("nan")))
        points.append((float(at), float(text)))
    return points


if __name__ == "__main__":
    main(Path(sys.argv[1]))
