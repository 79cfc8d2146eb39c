"""A quorum that writers use while a test does its worst to it."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.audited import assert_audited
from tests.support.live_cluster import Cluster, running_cluster
from tests.support.load import Load


@pytest.fixture(scope="module")
def quorum(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes for a whole module; a test leaves all of them running."""
    with running_cluster(tmp_path_factory.mktemp("quorum")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def load(quorum: Cluster) -> Iterator[Load]:
    """Writers that never stop while the module's tests run."""
    with Load(quorum) as load:
        load.wait_settled()
        yield load
    quorum.assert_same_logs()
    assert_audited(quorum)
    load.assert_nothing_lost()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cluster"


@contextmanager
def undisturbed(cluster: Cluster, load: Load) -> Iterator[None]:
    """What happens inside ends no process, no leadership, no epoch, and fails no writer."""
    before = _identity(cluster), load.failures
    yield
    load.wait_progress()
    assert (_identity(cluster), load.failures) == before, cluster.logs()


@pytest.fixture
def harmless(quorum: Cluster, load: Load) -> Iterator[None]:
    """The test must be one that nobody else notices."""
    with undisturbed(quorum, load):
        yield


def _identity(cluster: Cluster) -> list[tuple[object, ...]]:
    seen = []
    for node in cluster.ids:
        status = cluster.wait_for(functools.partial(cluster.status, node), f"status of {node}")
        seen.append((node, status["pid"], status["epoch"], status["leader_id"], status["problems"]))
    return seen
