"""Starts that must not happen: each ends at once, with a text that says what to do, and no traceback.

Most of them on one node that was set up correctly and then spoiled; nothing listens afterwards.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.live_cluster import Cluster, Ended, limited_to
from tests.support.mounts import mount_or_skip, mounted
from tests.support.odd_certificates import HOUR, Authority, now
from tests.support.ports import free_port

USAGE, FAILED, DAMAGED = 2, 1, 3

INTERRUPTED_BEFORE_THE_LOOP = """
import uvloop

def run(main):
    raise KeyboardInterrupt

uvloop.run = run

from quorumd.server.main import main
main()
"""
"""`quorumd`, with a signal in the moment before the event loop runs."""


@pytest.fixture
def node(folder: Path) -> Iterator[Cluster]:
    """One formatted node that does not run."""
    cluster = Cluster(folder, size=1)
    cluster.format()
    yield cluster
    cluster.kill_all()


def refused(cluster: Cluster, exit_code: int, node: int = 1) -> str:
    """The text with which a start fails; without a traceback, and soon."""
    begun = len(cluster.output(node))
    cluster.start_with(node)
    ended = cluster.wait_exit(node)
    text = ended.output[begun:]
    assert ended.exit_code == exit_code, text
    assert "Traceback" not in text, text
    return text


def quorumd(*arguments: str, cwd: Path, interpreter: tuple[str, ...] = (), **environ: str) -> Ended:
    """Run to the end."""
    command = [*interpreter, str(Path(sys.executable).with_name("quorumd")), *arguments]
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=20,
        check=False,
    )
    return Ended(done.returncode, done.stdout)


# -- configuration


def test_a_limit_of_open_files_that_leaves_no_room_for_clients_is_named(node: Cluster) -> None:
    config = str(node.config_path(1))
    ended = quorumd("start", "--config", config, cwd=node.folder, interpreter=limited_to(1500))
    assert ended.exit_code == USAGE, ended.output
    assert "LimitNOFILE" in ended.output
    assert "to 1552 at least, or to 2536 for all of max.connections" in ended.output
    assert "Traceback" not in ended.output


def test_a_typo_in_the_configuration_is_named_with_file_and_line(node: Cluster) -> None:
    path = node.config_path(1)
    path.write_text(path.read_text().replace("http.listen", "htpp.listen"))
    line = 1 + [row.split(":")[0] for row in path.read_text().splitlines()].index("htpp.listen")
    text = refused(node, USAGE)
    assert f"{path}:{line}" in text
    assert "htpp.listen" in text
    assert "did you mean http.listen" in text.lower()


def test_an_impossible_value_is_named_with_what_is_permitted(node: Cluster) -> None:
    path = node.config_path(1)
    path.write_text(path.read_text() + "quorum.fetch.timeout.ms: soon\n")
    text = refused(node, USAGE)
    assert "quorum.fetch.timeout.ms" in text
    assert "soon" in text
    assert str(path) in text


def test_tls_that_is_wrong_is_told_at_once_with_everything_else(node: Cluster) -> None:
    folder, path = node.folder, node.config_path(1)
    ca = Authority()
    (folder / "ca.pem").write_bytes(ca.pem)
    ca.issue("quorumd-2", ["elsewhere"], end=now() - HOUR).write(folder / "node.pem")
    lines = len(path.read_text().splitlines())
    name = re.findall(r"(\w+)://", path.read_text())[0]
    path.write_text(
        path.read_text()
        + f"listener.security.protocol.map: {name}:SSL\n"
        + f"ssl.keystore.location: {folder / 'node.pem'}\n"
        + f"ssl.truststore.location: {folder / 'ca.pem'}\n"
        + "ssl.client.auth: requested\n"
        + "quorum.node.principals: User:CN=quorumd-{id}\n"
        + "ssl.key.password: ${env:QUORUM_TEST_NOT_SET}\n"
    )
    text = refused(node, USAGE)
    assert f"{path}:{lines + 4}: ssl.client.auth: {name} is the first listener" in text
    assert f"{path}:{lines + 6}: ssl.key.password: ${{env:QUORUM_TEST_NOT_SET}}" in text
    assert f"{path}:{lines + 2}: ssl.keystore.location: the certificate CN=quorumd-2" in text
    assert "expired" in text
    assert "names elsewhere, not" in text
    assert f"{path}:{lines + 5}: quorum.node.principals: this node's certificate is that of" in text


def test_a_file_that_is_no_yaml_is_named(node: Cluster) -> None:
    node.config_path(1).write_text("node.id: [1\n")
    assert str(node.config_path(1)) in refused(node, USAGE)


def test_a_missing_configuration_file_is_named(node: Cluster) -> None:
    path = node.config_path(1)
    path.unlink()
    text = refused(node, USAGE)
    assert str(path) in text
    assert "no such file" in text.lower()


def test_a_wrong_environment_variable_is_named(node: Cluster) -> None:
    ended = quorumd(
        "start", "--config", str(node.config_path(1)), cwd=node.folder, QUORUMD_NODE_ID="one"
    )
    assert ended.exit_code == USAGE
    assert "QUORUMD_NODE_ID" in ended.output
    ended = quorumd(
        "start", "--config", str(node.config_path(1)), cwd=node.folder, QUORUMD_LOG_LEVEL="loud"
    )
    assert ended.exit_code == USAGE
    assert "QUORUMD_LOG_LEVEL" in ended.output


def test_python_without_assertions_is_refused(node: Cluster) -> None:
    config = str(node.config_path(1))
    for ended in (
        quorumd("start", "--config", config, cwd=node.folder, interpreter=(sys.executable, "-O")),
        quorumd("start", "--config", config, cwd=node.folder, PYTHONOPTIMIZE="1"),
    ):
        assert ended.exit_code != 0
        assert "python -O" in ended.output
        assert "run without it" in ended.output


# -- addresses


def test_a_port_in_use_is_named_with_its_key(node: Cluster) -> None:
    with socket.create_server(("127.0.0.1", node.port(1))):
        text = refused(node, FAILED)
    assert "listeners" in text
    assert f"127.0.0.1:{node.port(1)}" in text
    assert "in use" in text


def test_an_http_port_in_use_is_named_with_its_key(node: Cluster) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        at = f"127.0.0.1:{taken.getsockname()[1]}"
        node.write_config(1, {"http.listen": at})
        text = refused(node, FAILED)
    assert "http.listen" in text
    assert at in text
    assert "in use" in text


def test_an_address_of_another_host_is_named(node: Cluster) -> None:
    node.write_config(1, {"listeners": "CONTROLLER://192.0.2.1:9093"})
    text = refused(node, FAILED)
    assert "listeners" in text
    assert "192.0.2.1:9093" in text


# -- directories


def test_an_unformatted_directory_is_refused_and_the_command_named(node: Cluster) -> None:
    directory = node.storage_dir(1)
    shutil.rmtree(directory)
    text = refused(node, FAILED)
    assert str(directory) in text
    assert "quorumd format --config" in text
    assert not directory.exists()
    directory.mkdir()
    assert "quorumd format --config" in refused(node, FAILED)
    assert list(directory.iterdir()) == []


def test_another_nodes_directory_is_refused(node: Cluster) -> None:
    node.write_config(1, {"node.id": 7, "quorum.voters": f"7@{node.address(1)}"})
    text = refused(node, FAILED)
    assert "belongs to node 1, this is node 7" in text
    assert "Correct storage.dir or node.id" in text


def test_a_directory_in_use_is_refused_and_its_process_named(node: Cluster) -> None:
    node.start(1)
    node.wait_ready(1)
    pid = node.pid(1)
    before = node.output(1)
    config = node.config_path(1).read_text()
    second = node.folder / "second.yaml"
    second.write_text(config.replace(f"//{node.address(1)}", f"//127.0.0.1:{free_port()}"))
    ended = quorumd("start", "--config", str(second), cwd=node.folder)
    assert ended.exit_code == FAILED
    assert f"in use by the process with pid {pid}" in ended.output
    assert "Stop that process first" in ended.output
    # The first one goes on, undisturbed, and still holds its lock.
    since = node.output(1).removeprefix(before)
    assert [line for line in since.splitlines() if " INFO " not in line] == []
    assert node.is_ready(1)
    assert quorumd("start", "--config", str(second), cwd=node.folder).exit_code == FAILED


def test_formatting_twice_is_refused(node: Cluster) -> None:
    before = (node.storage_dir(1) / "meta.properties").read_bytes()
    ended = quorumd("format", "--config", str(node.config_path(1)), cwd=node.folder)
    assert ended.exit_code == FAILED
    assert "formatted already" in ended.output
    assert (node.storage_dir(1) / "meta.properties").read_bytes() == before


def test_a_damaged_meta_properties_is_damage_and_not_taken_for_empty(node: Cluster) -> None:
    path = node.storage_dir(1) / "meta.properties"
    path.write_text(path.read_text().replace("storage.id=", "storage.id=x"))
    text = refused(node, DAMAGED)
    assert str(path) in text
    assert "backup" in text


def test_a_damaged_quorum_state_is_damage_and_not_taken_for_empty(node: Cluster) -> None:
    node.start(1)
    node.wait_ready(1)
    node.stop(1)
    path = node.log_folder(1) / "quorum-state.json"
    path.write_bytes(path.read_bytes()[:-9])
    text = refused(node, DAMAGED)
    assert str(path) in text
    assert "vote twice" in text


@pytest.mark.parametrize("lost", ["quorum-state.json", ""])
def test_a_lost_log_is_damage_and_not_taken_for_a_first_start(node: Cluster, lost: str) -> None:
    """A mount that is missing, say. It would vote for a candidate that lacks what it has acknowledged."""
    node.start(1)
    node.wait_ready(1)
    node.kill(1)
    path = node.log_folder(1) / lost if lost else node.log_folder(1)
    path.rename(node.folder / "lost")
    for text in (refused(node, DAMAGED), refused(node, DAMAGED)):
        assert str(node.log_folder(1) / "quorum-state.json") in text
        assert "this node has run before" in text
        assert "not mounted" in text
    if path.exists():
        path.rmdir()  # the node has made it anew
    (node.folder / "lost").rename(path)
    node.start(1)
    node.wait_ready(1)


def test_a_lost_storage_id_is_damage_and_not_replaced_by_another(node: Cluster) -> None:
    path = node.storage_dir(1) / "meta.properties"
    node.start(1)
    node.wait_ready(1)
    node.stop(1)
    found = path.read_text()
    ids = ("storage.id=", "directory.id=")
    lines = found.splitlines(keepends=True)
    path.write_text("".join(line for line in lines if not line.startswith(ids)))
    text = refused(node, DAMAGED)
    assert f"{path}: storage.id and directory.id are missing" in text
    path.write_text(found)
    node.start(1)
    node.wait_ready(1)


def test_the_cluster_id_of_another_cluster_stops_the_start_before_anything_is_written(
    node: Cluster,
) -> None:
    path = node.storage_dir(1) / "meta.properties"
    node.start(1)
    node.wait_ready(1)
    node.stop(1)
    found = path.read_text()
    path.write_text(re.sub("cluster.id=.*", "cluster.id=4L6g3nShT-eMCtK--X86sw", found))
    before = node.log_bytes(1)
    text = refused(node, FAILED)
    assert "meta.properties says 4L6g3nShT-eMCtK--X86sw. Correct cluster.id there" in text
    assert node.log_bytes(1) == before
    path.write_text(found)
    node.start(1)
    node.wait_ready(1)


def test_a_storage_dir_that_is_a_file_is_refused(node: Cluster) -> None:
    shutil.rmtree(node.storage_dir(1))
    node.storage_dir(1).write_text("no directory")
    assert str(node.storage_dir(1)) in refused(node, DAMAGED)
    ended = quorumd("format", "--config", str(node.config_path(1)), cwd=node.folder)
    assert ended.exit_code == DAMAGED
    assert "Traceback" not in ended.output
    assert str(node.storage_dir(1)) in ended.output


def test_a_read_only_directory_is_refused(node: Cluster) -> None:
    """A bind mount of the directory, read-only: root is not stopped by permissions."""
    directory = node.storage_dir(1)
    with mounted(directory, mount_or_skip("--bind", str(directory)), read_only=True):
        text = refused(node, FAILED)
        formatted = quorumd("format", "--config", str(node.config_path(1)), cwd=node.folder)
    assert str(directory) in text
    assert "Read-only file system" in text
    assert "Check the mount options" in text
    assert formatted.exit_code == FAILED
    node.start(1)
    node.wait_ready(1)


def test_formatting_below_a_read_only_directory_is_refused(node: Cluster) -> None:
    directory = node.storage_dir(1)
    shutil.rmtree(directory)
    parent = node.folder / "mount"
    parent.mkdir()
    node.write_config(1, {"storage.dir": parent / "below"})
    with mounted(parent, mount_or_skip("--bind", str(parent)), read_only=True):
        ended = quorumd("format", "--config", str(node.config_path(1)), cwd=node.folder)
    assert ended.exit_code == FAILED
    assert "Read-only file system" in ended.output
    assert "Traceback" not in ended.output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_the_node_is_up_stops_it_without_a_failure(
    node: Cluster, number: signal.Signals
) -> None:
    command = [Path(sys.executable).with_name("quorumd"), "start", "--config", node.config_path(1)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as it:
        # Both are handled from here on; half a second of imports follows.
        while not handles(it.pid, signal.SIGTERM):
            time.sleep(0.001)
        it.send_signal(number)
        text, _ = it.communicate(timeout=20)
    assert it.returncode == 0, text
    assert text == "quorumd: stopped before the node was up\n"


def test_a_signal_just_before_the_event_loop_runs_leaves_no_other_word(node: Cluster) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            INTERRUPTED_BEFORE_THE_LOOP,
            "start",
            "--config",
            node.config_path(1),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=20,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "quorumd: stopped before the node was up\n")


def handles(pid: int, number: signal.Signals) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    (caught,) = [line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")]
    return bool(int(caught, 16) >> (number - 1) & 1)


@pytest.mark.parametrize("arguments", ["--version", "certs ca", "random-uuid"])
def test_output_to_a_full_disk_is_told_in_a_line(tmp_path: Path, arguments: str) -> None:
    program = Path(sys.executable).with_name("quorumd")
    done = subprocess.run(
        f"{program} {arguments} >/dev/full",
        shell=True,
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        timeout=20,
        check=False,
    )
    assert done.returncode == FAILED
    assert done.stderr == "quorumd: the output cannot be written: No space left on device\n"
