"""A live quorum for the tests of a module; its nodes' log lines are shown with a failure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from tests.support.live_cluster import Cluster, running_cluster

SMALL_SEGMENTS = {"log.segment.bytes": 4 << 20}
"""So small that tests roll them."""
UNHURRIED = {"quorum.fetch.timeout.ms": 20_000}
"""No election because a node pauses on a machine that has too much to do."""


@pytest.fixture(scope="module")
def settings() -> Mapping[str, object]:
    """What differs from the defaults; modules may have their own."""
    return SMALL_SEGMENTS


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, settings: Mapping[str, object]
) -> Iterator[Cluster]:
    """Three nodes."""
    folder = tmp_path_factory.mktemp("quorum")
    with running_cluster(folder, settings=settings) as running:
        yield running


@pytest.fixture(autouse=True)
def _whole_quorum(cluster: Cluster) -> None:
    """Every test begins with three nodes, whatever the one before it did to them."""
    cluster.start()
    cluster.wait_ready()
