"""A live quorum for the tests of a module; its nodes' log lines are shown with a failure."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.live_cluster import Cluster, running_cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes, with segments so small that tests roll them."""
    folder = tmp_path_factory.mktemp("quorum")
    with running_cluster(folder, settings={"log.segment.bytes": 4 << 20}) as running:
        yield running


@pytest.fixture(autouse=True)
def _whole_quorum(cluster: Cluster) -> None:
    """Every test begins with three nodes, whatever the one before it did to them."""
    cluster.start()
    cluster.wait_ready()
