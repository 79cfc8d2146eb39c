"""A directory for the log of a Kafka quorum is told apart from all others, and refused where it harms."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.commands import quorumd
from tests.support.live_cluster import Cluster

USAGE = 2


@pytest.fixture
def node(tmp_path: Path) -> Cluster:
    settings = {"node.id": 9, "quorum.bootstrap.servers": "127.0.0.1:9"}
    made = Cluster(tmp_path / "nodes", size=0, observers=1, settings=settings)
    made.folder.mkdir()
    made.write_config(1)
    return made


def test_the_directory_says_whose_log_it_holds(node: Cluster) -> None:
    done = quorumd("format", "--config", node.config_path(1), "--kafka-log", "--cluster-id", "c")
    assert done.code == 0, done.text
    assert "observes a Kafka quorum" in done.out
    lines = (node.storage_dir(1) / "meta.properties").read_text().splitlines()
    assert {"log.owner=kafka", "cluster.id=c", "node.id=9", "bootstrap=false"} <= set(lines)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "--kafka-log needs --cluster-id"),
        (["--cluster-id", "c", "--standalone"], "joins a Kafka quorum that exists"),
        (["--cluster-id", "c", "--bootstrap"], "joins a Kafka quorum that exists"),
    ],
)
def test_what_would_begin_a_quorum_or_follow_any_is_refused(
    node: Cluster, options: list[str], said: str
) -> None:
    done = quorumd("format", "--config", node.config_path(1), "--kafka-log", *options)
    assert done.code == USAGE
    assert said in done.err
    assert not node.storage_dir(1).exists()


def test_the_id_of_a_controller_is_refused(node: Cluster) -> None:
    """Kafka tells its nodes apart by id: a second one under the same id ends the first."""
    node.write_config(1, {"quorum.voters": "9@127.0.0.1:9093"})
    done = quorumd("format", "--config", node.config_path(1), "--kafka-log", "--cluster-id", "c")
    assert done.code == USAGE
    assert "node.id 9 is that of a voter" in done.err


@pytest.mark.parametrize("voters", [{}, {"quorum.voters": "1@127.0.0.1:9,9@127.0.0.1:9093"}])
def test_a_witness_may_be_a_voter(node: Cluster, voters: dict[str, str]) -> None:
    node.write_config(1, {"quorum.witness": "true", **voters})
    done = quorumd("format", "--config", node.config_path(1), "--kafka-log", "--cluster-id", "c")
    assert done.code == 0, done.text
    assert "witness of a Kafka quorum" in done.out
