"""New quorums from backups: what they hold, who may be part of them, and what is refused."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from quorumd.cli.main import run
from quorumd.raft.types import uuid_to_text
from quorumd.server.admin.restore import EPOCH_GAP
from quorumd.storage.backup_manifest import load_manifest
from quorumd.storage.filesystem import RealFileSystem
from quorumd.storage.meta_properties import load_meta_properties
from quorumd.storage.reader import find_files
from tests.daemon.restoring import (
    BATCH,
    FORGETFUL,
    NEXT_BATCH,
    Former,
    cluster_id,
    everything,
    former_quorum,
    put,
    restore,
    restored,
    send,
)
from tests.storage.verifying import verified
from tests.support.live_cluster import Cluster, running_cluster
from tests.support.load import Load, produce, produce_of
from tests.support.raw_client import RawClient


@pytest.fixture(scope="module")
def former(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Former]:
    with former_quorum(tmp_path_factory.mktemp("site"), {}) as found:
        yield found


@pytest.fixture(scope="module")
def former_without_history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Former]:
    with former_quorum(tmp_path_factory.mktemp("forgetful"), dict(FORGETFUL)) as found:
        assert load_manifest(RealFileSystem(), found.backup).start_offset > found.once_offset
        yield found


@pytest.fixture
def new(folder: Path) -> Iterator[Cluster]:
    """The nodes of a new quorum, configured, without directories."""
    cluster = Cluster(folder)
    folder.mkdir()
    for node in cluster.ids:
        cluster.write_config(node)
    yield cluster
    cluster.kill_all()


# --- what a restored quorum is


def check_restored(former: Former, new: Cluster) -> None:
    """Contents, deduplication and voters; then it lives on as any quorum does."""
    new.wait_ready()
    records, contents = everything(new, former.end_offset)
    assert records == former.records
    assert contents == former.contents
    assert send(new, BATCH) == former.once_offset
    offset = send(new, NEXT_BATCH)
    assert offset > former.end_offset
    ids = {cluster_id(new, node) for node in new.ids}
    assert len(ids) == 1
    assert ids.pop() not in (None, cluster_id(former.cluster, 1))
    status = new.status(new.wait_leader())
    own = [load_meta_properties(RealFileSystem(), new.storage_dir(n)).storage_id for n in new.ids]
    assert [voter["storage_id"] for voter in status["voters"]] == list(map(uuid_to_text, own))
    with Load(new) as load:
        load.wait_progress()
        leader = new.wait_leader()
        new.kill(leader)
        new.wait_leader(other_than=leader)
        load.wait_progress()
        new.start(leader)
        new.wait_ready()
    new.assert_same_logs()
    load.assert_nothing_lost()
    assert send(new, NEXT_BATCH) == offset
    for node in new.ids:
        new.restart(node)
    assert send(new, BATCH) == former.once_offset
    for node in new.ids:
        assert verified(new.storage_dir(node)).texts == []


def test_three_restored_nodes_are_a_quorum_with_everything_in_it(
    former: Former, new: Cluster
) -> None:
    restored(new, former.backup)
    for node in new.ids:
        assert verified(new.storage_dir(node)).texts == []
    new.start()
    check_restored(former, new)
    former_epoch = load_manifest(RealFileSystem(), former.backup).epoch
    assert new.status(new.wait_leader())["epoch"] > former_epoch + EPOCH_GAP


def test_a_log_without_its_beginning_is_restored_with_its_snapshot(
    former_without_history: Former, new: Cluster
) -> None:
    restored(new, former_without_history.backup)
    new.start()
    check_restored(former_without_history, new)


def test_a_quorum_begins_anew_with_what_the_disks_that_are_left_have(
    new: Cluster, tmp_path: Path
) -> None:
    """All nodes are killed while records are written; of three disks the one whose log ends last is used."""
    with running_cluster(tmp_path / "former") as cluster, Load(cluster) as load:
        load.wait_progress(200)
        leader = cluster.wait_leader()
        cluster.kill(leader)
        cluster.wait_leader(other_than=leader)
        load.wait_progress(200)
        cluster.kill_all()
        load.stop()
        ends = {node: verified(cluster.storage_dir(node)).facts for node in cluster.ids}
        best = max(ends, key=lambda node: (ends[node].last_epoch, ends[node].end_offset))
        backup = tmp_path / "backup"
        assert run(["backup", "--storage-dir", str(cluster.storage_dir(best)), str(backup)]) == 0
        former_log = cluster.records(best)
    end_offset = load_manifest(RealFileSystem(), backup).end_offset
    assert end_offset == ends[best].end_offset
    restored(new, backup)
    new.start()
    new.wait_ready()
    records, _ = everything(new, end_offset)
    found = {record.offset: record.value for record in records}
    assert found == {record.offset: record.value for record in former_log}
    assert {one.offset: one.value for one in load.acknowledged}.items() <= found.items()
    with Load(new) as more:
        more.wait_progress()
    new.assert_same_logs()
    more.assert_nothing_lost()


def test_it_takes_nothing_before_all_of_its_voters_were_seen(former: Former, new: Cluster) -> None:
    restored(new, former.backup)
    new.start(1, 2)

    def waits_for_the_third() -> bool:
        with RawClient(new.port(new.wait_leader())) as client:
            answer = produce(client, produce_of(NEXT_BATCH))
        assert answer.error_code, "it was taken"
        return "waits for voter 3 to be seen" in str(answer.error_message)

    new.wait_for(waits_for_the_third, "a leader that has seen the second voter")
    new.start(3)
    new.wait_ready()
    assert send(new, NEXT_BATCH) > former.end_offset


def test_an_empty_node_copies_a_restored_log(former: Former, folder: Path) -> None:
    new = Cluster(folder, observers=1)
    folder.mkdir()
    for node in new.ids:
        new.write_config(node)
    restored(new, former.backup)
    observer = new.ids[-1]
    new.format_one(observer)
    try:
        new.start()
        new.wait_ready()
        new.assert_same_logs()
        voters = new.status(observer)["voters"]
        assert [voter["id"] for voter in voters] == [1, 2, 3]
    finally:
        new.kill_all()


def test_a_voter_that_was_only_formatted_gets_the_log_from_the_others(
    former: Former, new: Cluster
) -> None:
    restored(new, former.backup, nodes=(1, 2))
    new.format_one(3, "--bootstrap")
    new.start()
    new.wait_ready()
    new.assert_same_logs()
    assert everything(new, former.end_offset)[0] == former.records


def test_two_empty_voters_take_nothing_from_the_one_that_was_restored(
    former: Former, new: Cluster
) -> None:
    """A mistake of an operator: it costs time, not records."""
    restored(new, former.backup, nodes=(1,))
    for node in (2, 3):
        new.format_one(node, "--bootstrap")
    before = new.log_bytes(1)
    new.start(2, 3)
    new.wait_leader()
    new.start(1)
    new.wait_for(lambda: refuses(new, 1) or commits(new, 1, former), "a refusal, or a good leader")
    assert new.log_bytes(1).startswith(before)
    for node in (2, 3):
        new.stop(node)
    if not commits(new, 1, former):
        for node in (2, 3):
            shutil.rmtree(new.storage_dir(node))
        restored(new, former.backup, nodes=(2, 3))
    new.start(2, 3)
    new.wait_ready()
    assert everything(new, former.end_offset)[0] == former.records


def commits(cluster: Cluster, node: int, former: Former) -> bool:
    """True once something is committed behind what was restored."""
    return bool(cluster.status(node)["high_watermark"] > former.end_offset)


# --- who may be part of it


def test_a_node_of_the_former_quorum_is_refused(former: Former, new: Cluster) -> None:
    restored(new, former.backup)
    new.start()
    new.wait_ready()
    stranger = new.folder / "stranger"
    shutil.copytree(former.cluster.storage_dir(3), stranger)
    before = [file.path.read_bytes() for file in find_files(stranger)]
    new.stop(3)
    new.write_config(3, {"storage.dir": stranger})
    new.start(3)
    new.wait_for(lambda: "belongs to another cluster" in str(new.status(3)["problems"]), "why")
    new.wait_for(lambda: "belongs to another cluster" in str(new.status(3)["warnings"]), "words")
    send(new, NEXT_BATCH)
    assert not new.is_ready(3)
    new.kill(3)
    assert b"".join(before) in b"".join(file.path.read_bytes() for file in find_files(stranger))
    new.write_config(3)
    new.start(3)
    new.wait_ready()
    new.assert_same_logs()


def test_nodes_that_restored_different_backups_never_meet(
    former: Former, former_without_history: Former, new: Cluster
) -> None:
    restored(new, former.backup, nodes=(1, 2))
    restored(new, former_without_history.backup, nodes=(3,))
    assert cluster_id(new, 1) == cluster_id(new, 2) != cluster_id(new, 3)
    before = new.log_bytes(3)
    new.start()
    new.wait_for(lambda: "refused: cluster" in new.output(1) + new.output(2), "a refusal")
    assert new.log_bytes(3) == before


def test_a_later_backup_on_one_of_the_nodes_is_told_apart(new: Cluster, tmp_path: Path) -> None:
    """A mistake of an operator who gives the cluster id: it costs time, and nothing diverges."""
    backups = [tmp_path / "first", tmp_path / "second"]
    with running_cluster(tmp_path / "former") as cluster:
        put(cluster, 50)
        assert run(["backup", "-b", cluster.bootstrap, str(backups[0])]) == 0
        leader = cluster.wait_leader()
        cluster.kill(leader)
        cluster.wait_leader(other_than=leader)
        put(cluster, 1)
        assert run(["backup", "-b", cluster.bootstrap, str(backups[1])]) == 0
    for node in new.ids:
        restored(new, backups[node == 3], "--cluster-id", "same", nodes=(node,))
    before = new.log_bytes(3)
    new.start(1, 2)
    new.wait_leader()
    new.start(3)
    new.wait_for(
        lambda: any(map(new.is_ready, new.ids)) or refuses(new, 3), "a leader or a refusal"
    )
    if refuses(new, 3):
        assert new.log_bytes(3) == before
    else:
        new.wait_ready()
        new.assert_same_logs()
        assert new.log_bytes(1).startswith(before)


def refuses(cluster: Cluster, node: int) -> bool:
    return "is committed: its log is not the one" in cluster.output(node)


def test_a_cluster_id_can_be_given_or_kept(former: Former, new: Cluster) -> None:
    restored(new, former.backup, "--cluster-id", "given", nodes=(1,))
    assert cluster_id(new, 1) == "given"
    restored(new, former.backup, "--keep-cluster-id", nodes=(2,))
    assert cluster_id(new, 2) == cluster_id(former.cluster, 1)


def test_a_quorum_that_keeps_its_cluster_id_works(former: Former, new: Cluster) -> None:
    restored(new, former.backup, "--keep-cluster-id")
    new.start()
    new.wait_ready()
    assert send(new, BATCH) == former.once_offset


def without_configured_voters(cluster: Cluster, node: int) -> None:
    """The node's configuration names nodes to ask instead."""
    path = cluster.config_path(node)
    lines = path.read_text().splitlines()
    lines = [line for line in lines if not line.startswith("quorum.voters")]
    path.write_text("\n".join([*lines, f"quorum.bootstrap.servers: {cluster.bootstrap}", ""]))


def test_a_node_alone_begins_a_quorum(former: Former, new: Cluster) -> None:
    without_configured_voters(new, 1)
    done = restore(new, 1, former.backup)
    assert done.code == 2
    assert "quorum.voters is not set" in done.err
    assert "by --standalone, for this node alone, or by --initial-voters" in done.err
    restored(new, former.backup, "--standalone", nodes=(1,))
    new.start(1)
    new.wait_ready()
    assert everything(new, former.end_offset)[0] == former.records
    assert send(new, BATCH) == former.once_offset
    assert [voter["id"] for voter in new.status(1)["voters"]] == [1]


def test_the_first_voters_can_be_listed(former: Former, new: Cluster) -> None:
    ids = [UUID(int=(4 << 76) + (2 << 62) + node, version=4) for node in new.ids]
    listed = ",".join(
        f"{node}@{new.address(node)}:{uuid_to_text(uuid)}"
        for node, uuid in zip(new.ids, ids, strict=True)
    )
    for node in new.ids:
        without_configured_voters(new, node)
    restored(new, former.backup, "--initial-voters", listed)
    assert len({cluster_id(new, node) for node in new.ids}) == 1
    new.start()
    new.wait_ready()
    voters = new.status(new.wait_leader())["voters"]
    assert [voter["storage_id"] for voter in voters] == list(map(uuid_to_text, ids))
    assert everything(new, former.end_offset)[0] == former.records
