"""`quorumd-pipeline audit -b`: the replicas of a live quorum, none of whose files it can see."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from quorumd.client.addresses import parse_addresses
from quorumd.pipeline.audit import AuditReport, FindingKind
from quorumd.pipeline.audit.collect import audit_copies, collected
from tests.pipeline import planting
from tests.support.live_cluster import Cluster, running_cluster
from tests.support.live_snapshots import put, take
from tests.support.load import Load
from tests.support.ports import free_ports

COMMAND = (sys.executable, "-c", "from quorumd.pipeline.cli import main; main()", "audit")
WAIT_S = 60.0


class Done(NamedTuple):
    """How the command ended, and what it printed."""

    code: int
    out: str
    err: str


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Copies go to `folder`/tmp."""
    (folder / "tmp").mkdir(exist_ok=True)
    kept = {k: v for k, v in os.environ.items() if k != "QUORUM_BOOTSTRAP_SERVERS"}
    return {**kept, "TMPDIR": str(folder / "tmp"), **more}


def command(folder: Path, *arguments: object, **more: str) -> Done:
    """Runs it to the end; whatever it says, it leaves nothing behind and shows no traceback."""
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=environment(folder, **more),
        timeout=WAIT_S,
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert list((folder / "tmp").iterdir()) == []
    return Done(done.returncode, done.stdout, done.stderr)


def audited(cluster: Cluster) -> AuditReport:
    with collected(parse_addresses(cluster.bootstrap), timeout_ms=10_000) as copies:
        return audit_copies(copies)


def told(done: Done) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done.out)
    return found


def label(cluster: Cluster, node: int) -> str:
    return f"replica {node} at {cluster.address(node)}"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = {"log.segment.bytes": 8192, "log.max.batch.bytes": 4096}
    with running_cluster(tmp_path_factory.mktemp("quorum"), settings=settings) as cluster:
        put(cluster, 400)
        yield cluster


@pytest.fixture
def cluster(running: Cluster) -> Cluster:
    """Three nodes that run, with the same log."""
    running.start()
    running.wait_ready()
    running.wait_converged()
    return running


def follower_of(cluster: Cluster) -> int:
    leader = cluster.wait_leader()
    return next(node for node in cluster.ids if node != leader)


@contextmanager
def stopped(cluster: Cluster, node: int) -> Iterator[None]:
    """Its files can be changed; then it runs again, and is up to date."""
    cluster.stop(node)
    yield
    cluster.start(node)
    cluster.wait_ready()
    cluster.wait_converged()


def test_a_healthy_quorum_is_sound(cluster: Cluster, tmp_path: Path) -> None:
    end = cluster.wait_converged()
    done = command(tmp_path, "-b", cluster.address(2))
    assert (done.code, done.out.splitlines()[-1]) == (0, "sound"), done
    for node in cluster.ids:
        assert f"{label(cluster, node)}  " in done.out
    assert f"offsets 0 to {end} (exclusive)" in done.out
    assert f"everything below offset {end}" in done.out
    found = told(command(tmp_path, "-b", cluster.bootstrap, "--output", "json"))
    assert (found["sound"], found["findings"]) == (True, [])
    assert [each["replica_id"] for each in found["replicas"]] == list(cluster.ids)
    assert len({each["storage_id"] for each in found["replicas"]}) == 3
    assert {each["end_offset"] for each in found["replicas"]} == {end}


def test_a_value_that_was_changed_with_its_crc_is_found_and_the_replica_named(
    cluster: Cluster, tmp_path: Path
) -> None:
    for node in (follower_of(cluster), cluster.wait_leader()):
        with stopped(cluster, node):
            at = planting.place(cluster.storage_dir(node), 1, 2)
            sound = at.path.read_bytes()
            planting.change_value(at)
        done = command(tmp_path, "-b", cluster.bootstrap)
        assert done.code == 3, done
        header = at.header
        assert f"offsets {header.base_offset} to {header.last_offset}, {label(cluster, node)}" in (
            done.out
        )
        assert done.out.splitlines()[-1] == "NOT SOUND: 1 problem"
        (finding,) = told(command(tmp_path, "-b", cluster.bootstrap, "-o", "json"))["findings"]
        assert (finding["kind"], finding["replicas"]) == (
            "different_records",
            [label(cluster, node)],
        )
        assert finding["against"] == [
            label(cluster, other) for other in cluster.ids if other != node
        ]
        assert finding["file"] is None
        with stopped(cluster, node):
            at.path.write_bytes(sound)
    assert audited(cluster).is_sound


def test_what_a_disk_does_not_give_any_more_is_named_with_the_rest_audited(
    cluster: Cluster, tmp_path: Path
) -> None:
    node = follower_of(cluster)
    cluster.restart(node)
    at = planting.place(cluster.storage_dir(node), 1, 2)
    sound = at.path.read_bytes()
    planting.flip_byte(at)
    try:
        done = command(tmp_path, "-b", cluster.bootstrap, "-o", "json")
    finally:
        at.path.write_bytes(sound)
    (finding,) = told(done)["findings"]
    assert (done.code, finding["kind"], finding["offset"]) == (1, "unread", at.header.base_offset)
    assert finding["replicas"] == [label(cluster, node)]


def test_a_node_that_is_down_is_named_and_the_others_are_audited(
    cluster: Cluster, tmp_path: Path
) -> None:
    node = follower_of(cluster)
    cluster.kill(node)
    done = command(tmp_path, "-b", cluster.bootstrap, "--output", "json")
    found = told(done)
    (finding,) = found["findings"]
    assert (done.code, finding["kind"], finding["severity"]) == (1, "unread", "unread")
    assert finding["replicas"][0].startswith(f"replica {node} (")
    assert f"{cluster.address(node)}: connection refused" in finding["what"]
    assert len(found["replicas"]) == 2
    assert found["batches"] > 0


def test_a_node_that_hangs_is_named_after_a_moment(cluster: Cluster) -> None:
    node = follower_of(cluster)
    cluster.suspend(node)
    try:
        found = audited(cluster)
    finally:
        cluster.resume_all()
    (finding,) = found.findings
    assert finding.kind is FindingKind.UNREAD
    assert "did not respond within" in finding.what


def test_nothing_is_invented_while_writers_write(cluster: Cluster) -> None:
    with Load(cluster, value_bytes=300) as load:
        for _ in range(5):
            load.wait_progress(20)
            found = audited(cluster)
            assert found.findings == []
            assert found.batches


def test_nothing_is_invented_while_history_is_deleted_and_the_leader_changes(
    tmp_path: Path,
) -> None:
    settings = {
        "log.segment.bytes": 8192,
        "log.max.batch.bytes": 4096,
        "snapshot.max.new.record.bytes": 20_000,
        "retention.bytes": 0,
    }
    with running_cluster(tmp_path / "quorum", observers=1, settings=settings) as cluster:
        put(cluster, 300)
        with Load(cluster, value_bytes=500) as load:
            for _ in range(3):
                load.wait_progress(20)
                cluster.restart(cluster.wait_leader())
                for _ in range(3):
                    found = audited(cluster)
                    wrong = [each for each in found.findings if each.is_damage]
                    assert wrong == []
        for node in cluster.ids:
            take(cluster, node)
        found = audited(cluster)
        assert len(found.replicas) == 4
        notes = {each.kind for each in found.findings}
        assert notes == {FindingKind.NOT_SERVED}


# -- who can't be asked


@pytest.mark.long
def test_an_address_where_nobody_is_ends_with_3_and_says_so(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    done = command(tmp_path, "-b", f"127.0.0.1:{port}", "--timeout", "0.3")
    assert (done.code, done.out) == (1, "")
    assert f"127.0.0.1:{port}: connection refused" in done.err


def test_a_port_that_speaks_something_else_ends_with_3(cluster: Cluster, tmp_path: Path) -> None:
    http = cluster.http_url(1, "").removeprefix("http://")
    done = command(tmp_path, "-b", http, "--timeout", "1")
    assert (done.code, done.out) == (1, "")
    assert http in done.err


def test_a_node_of_another_cluster_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    with running_cluster(tmp_path / "other", size=1) as other:
        other.wait_leader()
        servers = f"{cluster.bootstrap},{other.bootstrap}"
        done = command(tmp_path, "-b", servers)
    assert (done.code, done.out) == (2, "")
    assert "different clusters" in done.err


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "Give directories, or --bootstrap-server"),
        (("-b", "host:1", "."), "Give directories, or --bootstrap-server"),
        (("-b", "nowhere"), "has no port"),
        (("-b", "host:1", "--master", "local[2]"), "--master is for directories"),
    ],
)
def test_wrong_use_ends_with_2(tmp_path: Path, arguments: tuple[str, ...], text: str) -> None:
    done = command(tmp_path, *arguments)
    assert (done.code, done.out) == (2, "")
    assert text in " ".join(done.err.split())


def test_the_variable_names_the_quorum_unless_directories_are_given(
    cluster: Cluster, tmp_path: Path
) -> None:
    variable = {"QUORUM_BOOTSTRAP_SERVERS": cluster.bootstrap}
    assert command(tmp_path, **variable).code == 0
    done = command(tmp_path, cluster.storage_dir(1), **variable)
    assert done.code == 0
    assert str(cluster.storage_dir(1)) in done.out


def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(WAIT_S)
        process = subprocess.Popen(
            [*COMMAND, "-b", f"127.0.0.1:{silent.getsockname()[1]}"],
            env=environment(tmp_path),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        connection, _ = silent.accept()
        with connection:
            assert len(list((tmp_path / "tmp").iterdir())) == 1
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, out, err) == (130, "", "")
    assert list((tmp_path / "tmp").iterdir()) == []
