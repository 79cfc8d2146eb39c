"""The ways to begin a quorum without quorum.voters, and to do without that key later."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from quorumd.raft.types import uuid_to_text
from quorumd.storage.meta_properties import random_storage_id
from tests.support.commands import quorumd
from tests.support.live_cluster import Cluster, running_cluster
from tests.support.load import Load
from tests.support.voters import add_voter, voters_of

QUICK = {"quorum.fetch.timeout.ms": 600, "quorum.election.timeout.ms": 300}
FAILED, USAGE, DAMAGED = 1, 2, 3


def without_voters(cluster: Cluster, node: int) -> None:
    """The node finds the quorum by bootstrap servers only, from its next start on."""
    cluster.write_config(node, {"quorum.bootstrap.servers": cluster.bootstrap})
    path = cluster.config_path(node)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if not line.startswith("quorum.voters:")))


@pytest.fixture
def nodes(folder: Path) -> Iterator[Cluster]:
    """Three configured nodes without quorum.voters, not formatted."""
    cluster = Cluster(folder, settings=QUICK)
    folder.mkdir(parents=True)
    for node in cluster.ids:
        without_voters(cluster, node)
    try:
        yield cluster
    finally:
        cluster.kill_all()


def test_a_quorum_of_one_grows_to_three_and_survives_the_first(nodes: Cluster) -> None:
    nodes.format_one(1, "--standalone")
    for node in (2, 3):
        nodes.format_one(node)
    nodes.start(1)
    assert nodes.wait_leader() == 1
    with Load(nodes) as load:
        load.wait_progress()
        nodes.start(2, 3)
        nodes.wait_ready()
        assert nodes.status(2)["role"] == "observer"
        for node in (2, 3):
            answer = add_voter(nodes, node)
            assert answer.error_code == 0, answer
        load.wait_progress()
        nodes.kill(1)
        nodes.wait_leader(other_than=1)
        load.wait_progress()
        nodes.start(1)
        nodes.wait_ready()
    nodes.assert_same_logs()
    load.assert_nothing_lost()
    assert sorted(voters_of(nodes, 1).values()) == [1, 2, 3]


def test_a_listed_quorum_starts_with_the_storage_ids_of_the_list(nodes: Cluster) -> None:
    ids = {node: uuid_to_text(random_storage_id()) for node in nodes.ids}
    listed = ",".join(f"{node}@{nodes.address(node)}:{ids[node]}" for node in nodes.ids)
    for node in nodes.ids:
        nodes.format_one(node, "--initial-voters", listed)
    nodes.start(1, 2)
    nodes.wait_leader()
    with Load(nodes) as load:
        # Nobody can take another one for the third, so nobody need wait for it.
        load.wait_progress()
        nodes.start(3)
        nodes.wait_ready()
        assert voters_of(nodes, 1) == {ids[node]: node for node in nodes.ids}
        # Another disk under a listed id is not who was listed.
        nodes.kill(3)
        nodes.new_disk(3)
        nodes.start(3)
        nodes.wait_ready(3)
        assert nodes.status(3)["role"] == "observer"
        load.wait_progress()
    nodes.assert_same_logs()
    load.assert_nothing_lost()


def test_quorum_voters_is_removed_by_a_rolling_restart_and_refuses_strangers_later(
    folder: Path,
) -> None:
    with running_cluster(folder, observers=1, settings=QUICK) as cluster, Load(cluster) as load:
        answer = add_voter(cluster, 4)
        assert "quorum.voters permits the ids 1, 2, 3 only" in (answer.error_message or "")
        for node in cluster.ids:
            without_voters(cluster, node)
            cluster.restart(node)
            cluster.wait_ready()
        load.wait_progress()
        answer = add_voter(cluster, 4)
        assert answer.error_code == 0, answer
        load.wait_progress()
        # Who still has the key is told what to do, at run time and at the next start.
        cluster.write_config(2)
        cluster.stop(2)
        cluster.start(2)
        ended = cluster.wait_exit(2)
        assert ended.exit_code == FAILED
        assert "replica 4 votes, which quorum.voters does not name" in ended.output
        assert "Remove quorum.voters" in ended.output
        without_voters(cluster, 2)
        cluster.start(2)
        cluster.wait_ready()
        load.wait_progress()
        load.stop()
        cluster.assert_same_logs()
        load.assert_nothing_lost()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--bootstrap"], "by --standalone, for this node alone, or by --initial-voters"),
        (["--standalone", "--bootstrap"], "exclude each other"),
        (["--initial-voters", "1@127.0.0.1:9093"], "is not of the form id@host:port:storage-id"),
        (["--initial-voters", "1@127.0.0.1:9093:nonsense"], "is not a uuid"),
        (["--initial-voters", "2@127.0.0.1:9093:JEXY6aqzQY-32P5TStzaFg"], "is not in --initial"),
        (["--initial-voters", "1@h:1:JEXY6aqzQY-32P5TStzaFg,2@h:2:JEXY6aqzQY-32P5TStzaFg"], "once"),
        (["--initial-voters", "1@h:1:AAAAAAAAAAAAAAAAAAAAAA"], "not zero"),
        (["--initial-voters", ""], "is not of the form"),
    ],
)
def test_a_first_voter_set_that_makes_no_sense_is_refused(
    nodes: Cluster, options: list[str], said: str
) -> None:
    done = quorumd("format", "--config", nodes.config_path(1), *options)
    assert done.code == USAGE
    assert said in done.err
    assert not nodes.storage_dir(1).exists()


def test_standalone_beside_quorum_voters_is_refused(nodes: Cluster) -> None:
    nodes.write_config(1)
    done = quorumd("format", "--config", nodes.config_path(1), "--standalone")
    assert done.code == USAGE
    assert "quorum.voters names the voters already" in done.err


def test_damaged_initial_voters_end_a_start_with_what_to_do(nodes: Cluster) -> None:
    nodes.format_one(1, "--standalone")
    path = nodes.storage_dir(1) / "meta.properties"
    path.write_text(path.read_text().replace("initial.voters=1@", "initial.voters=1!"))
    nodes.start(1)
    ended = nodes.wait_exit(1)
    assert ended.exit_code == DAMAGED
    assert f"{path}: initial.voters: '1!" in ended.output
    assert "Correct the file by hand" in ended.output
    assert "Traceback" not in ended.output
